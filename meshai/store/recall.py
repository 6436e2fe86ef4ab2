"""SQL for recall: which turns of a conversation hold a word, from a full-text index that triggers keep in step.

The conversation is a token inside the index, of fixed width and of digits alone: no stemmer touches it, and an answer
for one node never reads the lists of the others. What it finds counts only as far as the rows say the same.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import aiosqlite

from meshai.messages import Conversation, NodeNum
from meshai.store.conversations import key


class Place(NamedTuple):
    """Where a turn stands in its conversation, without its words."""

    id: int
    exchange: int
    is_ours: bool
    node: NodeNum
    at: float
    length: int
    """Characters of its text."""
    asks: bool
    """It ends in a question mark."""


async def places(db: aiosqlite.Connection, conversation: Conversation, *, before: int, most: int) -> list[Place]:
    """The turns of a conversation in exchanges before `before`, oldest first; of more than `most` the newest."""
    async with db.execute(
        "SELECT id, exchange, is_ours, node, at, length(text), rtrim(text) LIKE '%?' FROM turns"
        " WHERE kind = ? AND number = ? AND exchange < ? ORDER BY exchange DESC, is_ours DESC LIMIT ?",
        (*key(conversation), before, most),
    ) as cursor:
        found = [Place(*row) for row in await cursor.fetchall()]
    found.reverse()
    return found


async def postings(
    db: aiosqlite.Connection, conversation: Conversation, words: Sequence[str], *, most: int
) -> list[list[int]]:
    """The newest `most` ids of turns that hold a form of each word, or words side by side, of letters and digits."""
    found: list[list[int]] = [[] for _ in words]
    if not words:
        return found
    one = "SELECT * FROM (SELECT {}, rowid FROM recall WHERE recall MATCH ? ORDER BY rowid DESC LIMIT ?)"
    statement = " UNION ALL ".join(one.format(number) for number in range(len(words)))
    owner = _owner(conversation)
    parameters: list[str | int] = []
    for word in words:
        parameters += [f'owner : "{owner}" AND text : "{word}"', most]
    async with db.execute(statement, parameters) as cursor:
        for number, turn in await cursor.fetchall():
            found[number].append(turn)
    return found


async def texts(db: aiosqlite.Connection, ids: Iterable[int]) -> dict[int, str]:
    """What was said in these turns."""
    wanted = list(ids)
    marks = ", ".join("?" * len(wanted))
    async with db.execute(f"SELECT id, text FROM turns WHERE id IN ({marks})", wanted) as cursor:  # noqa: S608 - marks
        return {row[0]: row[1] for row in await cursor.fetchall()}


def _owner(conversation: Conversation) -> str:
    kind, number = key(conversation)
    return f"{1 if kind == 'direct' else 2}{number:010d}"
