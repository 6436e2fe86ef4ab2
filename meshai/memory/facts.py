"""What is known of each node: learned, replaced, ended, forgotten, and told to the model.

Facts are learned from what the person said, in the order it was said; our own texts and what was recalled teach
nothing. A fact belongs to its conversation: what was said in a direct message is never told on a channel. Reading the
same turns twice changes nothing that holds, so that turns kept while the database file could not be used are read then.
"""

from collections.abc import Sequence
from functools import cached_property

from meshai.memory.slots import SLOTS, normal, words
from meshai.memory.statements import Ends, Forgets, Reader, States
from meshai.messages import Conversation, NodeNum
from meshai.store import facts
from meshai.store.database import Connection


class Facts:
    """The facts of every node and conversation."""

    @cached_property
    def _reader(self) -> Reader:
        # Made when it is needed first: most meshes never ask for facts.
        return Reader()

    async def learn(self, db: Connection, conversation: Conversation, node: NodeNum, *, until: int) -> None:
        """Learn from what a node said here, up to this exchange, in the transaction that keeps it."""
        for exchange, at, text in await facts.unread(db, conversation, node, until=until):
            for statement in self._reader.read(text):
                match statement:
                    case States():
                        await _state(db, conversation, node, statement, source=exchange, at=at)
                    case Ends():
                        await _end(db, conversation, node, statement, exchange=exchange, at=at)
                    case Forgets():
                        await _forget(db, conversation, node, statement, exchange=exchange)
        await facts.mark_read(db, conversation, node, until=until)

    async def lines(self, db: Connection, conversation: Conversation, node: NodeNum, question: str) -> Sequence[str]:
        """One line a fact, the most important first; what has ended only when the question asks for the past."""
        is_past = self._reader.asks_for_the_past(question)
        known = await facts.known(db, conversation, node, with_closed=is_past)
        asked, order = set(words(question)), list(SLOTS)

        def rank(fact: facts.Fact) -> tuple[bool, bool, bool, int]:
            """Vital ones first, of the others those that share a word with the question; newest first in a slot."""
            is_vital = fact.slot in SLOTS and SLOTS[fact.slot].is_vital
            shares = not asked.isdisjoint(words(f"{fact.slot} {fact.key} {fact.value}"))
            place = order.index(fact.slot) if fact.slot in SLOTS else len(order)
            return fact.until is not None, not is_vital, not shares, place

        return [_line(fact) for fact in sorted(known, key=rank)]


def _line(fact: facts.Fact) -> str:
    ended = " (before, no longer so)" if fact.until is not None else ""
    quoted = fact.value.replace('"', "'")
    return f'{fact.key or fact.slot}: "{quoted}"{ended}'


async def _state(
    db: Connection, conversation: Conversation, node: NodeNum, said: States, *, source: int, at: float
) -> None:
    """Open a fact, and close those it takes the place of; nothing when it holds already or a newer one does."""
    slot, value = SLOTS[said.slot], normal(said.value)
    held = await facts.open_in(db, conversation, node, said.slot, said.key)
    if any(each == value for _, each, _ in held):
        return
    replaced = [row for row, each, _ in held if not slot.is_many or (slot.refines and _is_part(each, value))]
    if slot.refines and any(_is_part(value, each) for _, each, _ in held):
        return
    if not slot.is_many and any(learned > source for _, _, learned in held):
        return
    if slot.is_many and len(held) - len(replaced) >= facts.MOST_OPEN:
        replaced.append(held[0][0])
    new = facts.Value(said.slot, said.key, said.value, value)
    row = await facts.add(db, conversation, node, new, source=source, at=at)
    for old in replaced:
        await facts.close(db, old, exchange=source, at=at, superseded_by=row)


async def _end(
    db: Connection, conversation: Conversation, node: NodeNum, said: Ends, *, exchange: int, at: float
) -> None:
    ended = normal(said.value)
    for row, value, learned in await facts.open_in(db, conversation, node, said.slot, ""):
        is_meant = not said.value or _is_part(ended, value) or _is_part(value, ended)
        if is_meant and learned < exchange:
            await facts.close(db, row, exchange=exchange, at=at)


async def _forget(db: Connection, conversation: Conversation, node: NodeNum, said: Forgets, *, exchange: int) -> None:
    """Delete facts, what has ended too: they shall not be told as the past either."""
    rows = []
    for fact in await facts.known(db, conversation, node, with_closed=True):
        has = set(words(f"{fact.slot} {fact.key} {fact.value}"))
        is_meant = fact.slot in said.slots or (said.words and has.issuperset(said.words))
        if is_meant and fact.source < exchange:
            rows.append(fact.row)
    await facts.remove(db, rows)


def _is_part(one: str, other: str) -> bool:
    """Whether all words of one normal value are in the other."""
    return set(one.split()) <= set(other.split())
