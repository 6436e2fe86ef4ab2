"""What the model sees: instructions, notes of what was before, the latest turns, and the question, within a budget.

One budget is filled in a fixed order: instructions and question, facts, summary, the last exchanges, what is recalled.
Each takes what it needs, up to its own limit, of what those before it have left.

Every earlier turn is in the prompt in some way: in the range of the summary, word for word, or, when neither holds it
(the budget is small, or summaries could not be made for a while), in a digest made on the spot.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from meshai.characters import is_blank
from meshai.errors import ContextTooLong
from meshai.memory import extract, prompts
from meshai.model.base import ChatMessage
from meshai.model.tokens import estimate, text_tokens, within

FACTS_TOKENS: Final = 96
SUMMARY_TOKENS: Final = 120
RECALL_TOKENS: Final = 256
LAST_TURNS: Final = 4
"""Two exchanges, which come before anything is recalled."""
_PART: Final = 3
"""What is recalled, or digested on the spot, takes at most one such part of what is left to it and to the turns."""


@dataclass(frozen=True, slots=True)
class Line:
    """A turn as the model sees it, and the exchange it belongs to."""

    exchange: int
    message: ChatMessage


@dataclass(frozen=True, slots=True)
class Recalled:
    """An older turn or episode as it is shown, its short date included, and the (last) exchange it is from."""

    exchange: int
    text: str


Recall: TypeAlias = Callable[[int, int], Awaitable[Sequence[Recalled]]]
"""Finds what is relevant in exchanges before the first argument, within tokens of the second, oldest first."""


@dataclass(frozen=True, slots=True)
class Digest:
    """A rolling summary: its text, and the last exchange it holds."""

    text: str
    through: int


@dataclass(frozen=True, slots=True)
class Context:
    """A prompt that fits its budget. The turns are oldest first and alternate with the question."""

    messages: tuple[ChatMessage, ...]
    turns: int
    """How many remembered turns are in it word for word."""
    tokens: int
    """Estimated cost of `messages`."""
    budget_tokens: int
    tiers: Mapping[str, int] = field(default_factory=dict)
    """Estimated tokens of each part that is in it: instructions, facts, summary, turns, recall, question."""


async def fit(
    system: str,
    newest: AsyncIterator[Line],
    question: str,
    *,
    budget_tokens: int,
    whole_turns: int = 0,
    facts: Sequence[str] = (),
    summary: Digest | None = None,
    recall: Recall | None = None,
) -> Context:
    """Fill the budget. A history of at most `whole_turns` that fits is sent whole, without summary or recall.

    `newest` gives turns from the newest back; those in the range of the summary are not needed. `facts` are lines,
    best first. All of these may be untrusted text. Raises ContextTooLong when instructions and question alone are
    more than the budget.
    """
    ask = ChatMessage("user", question)
    least = estimate([ChatMessage("system", system), ask])
    if least > budget_tokens:
        raise ContextTooLong(
            f"instructions and question take about {least} tokens, and {budget_tokens} fit; "
            "shorten bot.persona or raise model.context_tokens"
        )
    notes = _Notes(budget_tokens - least)
    for fact in facts:
        notes.add("facts", fact, most=FACTS_TOKENS)
    through = summary.through if summary is not None else 0
    lines, is_all = await _read(newest, through, whole_turns)
    if is_all and estimate(line.message for line in lines) <= notes.left:
        summary, recall = None, None
    else:
        lines = [line for line in lines if line.exchange > through]
    if summary is not None:
        notes.add("summary", within(summary.text, min(SUMMARY_TOKENS, notes.room("summary"))), most=SUMMARY_TOKENS)
    lines, left_out = _latest(lines, notes.left, notes.room("digest"), is_recalling=recall is not None)
    notes.left -= estimate(line.message for line in lines)
    if left_out:
        said = [line.message.content for line in reversed(left_out) if line.message.role == "user"]
        notes.add("digest", extract.digest(said, tokens=min(SUMMARY_TOKENS, notes.room("digest"))), most=SUMMARY_TOKENS)
    if recall is not None and notes.room("recall") > 0:
        before = lines[-1].exchange if lines else _NONE
        for each in reversed(await recall(before, min(RECALL_TOKENS, notes.room("recall")))):
            if each.exchange < before:
                notes.add("recall", each.text, most=RECALL_TOKENS)
    told = ChatMessage("system", f"{system}\n{notes.text}" if notes.text else system)
    turns = [line.message for line in reversed(lines)]
    messages = (told, *_alternating([*turns, ask]))
    tiers = {"instructions": estimate([ChatMessage("system", system)]), "question": estimate([ask]), **notes.tiers}
    if turns:
        tiers["turns"] = estimate(turns)
    return Context(messages, len(turns), estimate(messages), budget_tokens, tiers)


_NONE: Final = 2**63 - 1
"""Beyond every exchange."""


async def _read(newest: AsyncIterator[Line], through: int, whole_turns: int) -> tuple[list[Line], bool]:
    """The turns that may be shown, newest first, and whether they are all there are and few enough to be sent whole."""
    lines: list[Line] = []
    async for line in newest:
        if line.exchange <= through and len(lines) >= whole_turns:
            return lines, False
        lines.append(line)
    return lines, len(lines) <= whole_turns


def _latest(lines: Sequence[Line], left: int, beside: int, *, is_recalling: bool) -> tuple[list[Line], list[Line]]:
    """Of lines that are newest first, those to show, and those for which there is no room.

    `left` is what turns may take when nothing is noted beside them, and `beside` what is left when a note is.
    """
    costs = [estimate([line.message]) for line in lines]
    room = beside - min(RECALL_TOKENS, beside // _PART) if is_recalling else left
    if sum(costs) > room:
        room = min(room, beside) - min(SUMMARY_TOKENS, beside // _PART)
    count = spent = 0
    while count < len(lines) and spent + costs[count] <= (left if count < LAST_TURNS else room):
        spent += costs[count]
        count += 1
    # Strict servers want the first turn to be the user's.
    while count and lines[count - 1].message.role == "assistant":
        count -= 1
    return list(lines[:count]), list(lines[count:])


class _Notes:
    """What is remembered beside the turns, by tier in the order it is told, and what is left of the budget."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.tiers: dict[str, int] = {}
        self._lines: dict[str, list[str]] = {}

    def room(self, tier: str) -> int:
        """Tokens that one more line of a tier may take."""
        return self.left - self._around(tier)

    def add(self, tier: str, text: str, *, most: int) -> None:
        """Add one line, unless it says nothing, there is no room for it, or its tier would cost more than `most`."""
        text = prompts.note(text)
        cost = text_tokens(text)
        if is_blank(text) or cost > self.room(tier) or cost + self.tiers.get(tier, 0) > most:
            return
        self.left -= cost + self._around(tier)
        self.tiers[tier] = self.tiers.get(tier, 0) + cost
        self._lines.setdefault(tier, []).append(text)

    def _around(self, tier: str) -> int:
        frame = 0 if self._lines else text_tokens("\n" + prompts.notes({}))
        return frame + text_tokens("\n" + prompts.LABELS[tier])

    @property
    def text(self) -> str:
        """The block, with what was recalled in the order it was said; empty when there is nothing in it."""
        lines = {**self._lines, "recall": self._lines.get("recall", [])[::-1]}
        return prompts.notes(lines) if self._lines else ""


def _alternating(messages: list[ChatMessage]) -> list[ChatMessage]:
    merged: list[ChatMessage] = []
    for message in messages:
        if merged and merged[-1].role == message.role:
            merged[-1] = ChatMessage(message.role, f"{merged[-1].content}\n{message.content}")
        else:
            merged.append(message)
    return merged
