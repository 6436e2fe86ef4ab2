"""What the model sees: system text, as many recent turns as fit, and the question, within a budget of tokens."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from meshai.errors import ContextTooLong
from meshai.model.base import ChatMessage
from meshai.model.tokens import estimate


@dataclass(frozen=True, slots=True)
class Context:
    """A prompt that fits its budget. `turns` are oldest first and alternate with the question."""

    messages: tuple[ChatMessage, ...]
    turns: int
    """How many remembered turns are in it."""
    tokens: int
    """Estimated cost of `messages`."""
    budget_tokens: int


async def fit(system: str, newest: AsyncIterator[ChatMessage], question: str, *, budget_tokens: int) -> Context:
    """Fill the budget: system text and question always, then turns from the newest back as long as they fit.

    Raises ContextTooLong when system text and question alone are more than that.

    Strict servers want roles to alternate and the first turn to be the user's, so neighbours of one role (two
    quick texts, a question whose answer failed) become one message, and an answer without its question is left out.
    """
    ask = ChatMessage("user", question)
    least = estimate([ChatMessage("system", system), ask])
    if least > budget_tokens:
        raise ContextTooLong(
            f"instructions and question take about {least} tokens, and {budget_tokens} fit; "
            "shorten bot.persona or raise model.context_tokens"
        )
    left = budget_tokens - least
    turns: list[ChatMessage] = []
    async for turn in newest:
        left -= estimate([turn])
        if left < 0:
            break
        turns.append(turn)
    while turns and turns[-1].role == "assistant":
        turns.pop()
    messages = [ChatMessage("system", system), *_alternating([*reversed(turns), ask])]
    return Context(tuple(messages), len(turns), estimate(messages), budget_tokens)


def _alternating(messages: list[ChatMessage]) -> list[ChatMessage]:
    merged: list[ChatMessage] = []
    for message in messages:
        if merged and merged[-1].role == message.role:
            merged[-1] = ChatMessage(message.role, f"{merged[-1].content}\n{message.content}")
        else:
            merged.append(message)
    return merged
