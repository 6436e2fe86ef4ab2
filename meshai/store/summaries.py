"""SQL for rolling summaries, and the pieces from which one can be made anew."""

from collections.abc import Sequence
from typing import NamedTuple

import aiosqlite

from meshai.messages import Conversation
from meshai.store.conversations import conversation, key


class Summary(NamedTuple):
    text: str
    through: int
    """The watermark: the last exchange in it."""
    folds: int = 0
    """How often it was written on since it was last made from its pieces."""
    is_extract: bool = False
    """Made without a model, and to be replaced when there is one."""


class Piece(NamedTuple):
    """What the turns of some exchanges say, in their own words."""

    through: int
    """The last of these exchanges."""
    text: str


async def find(db: aiosqlite.Connection, about: Conversation) -> Summary | None:
    async with db.execute(
        "SELECT text, through, folds, is_extract FROM summaries WHERE kind = ? AND number = ?", key(about)
    ) as cursor:
        row = await cursor.fetchone()
    return Summary(row["text"], row["through"], row["folds"], bool(row["is_extract"])) if row else None


async def keep(db: aiosqlite.Connection, about: Conversation, summary: Summary) -> None:
    """Keep a summary in place of the one before."""
    await db.execute(
        "INSERT OR REPLACE INTO summaries (kind, number, text, through, folds, is_extract) VALUES (?, ?, ?, ?, ?, ?)",
        (*key(about), *summary),
    )


async def extracts(db: aiosqlite.Connection) -> Sequence[Conversation]:
    """The conversations whose summary was made without a model."""
    async with db.execute("SELECT kind, number FROM summaries WHERE is_extract") as rows:
        return [conversation(row["kind"], row["number"]) async for row in rows]


async def pieces(db: aiosqlite.Connection, about: Conversation) -> Sequence[Piece]:
    """Oldest first."""
    async with db.execute(
        "SELECT through, text FROM pieces WHERE kind = ? AND number = ? ORDER BY through", key(about)
    ) as rows:
        return [Piece(row["through"], row["text"]) async for row in rows]


async def add_piece(db: aiosqlite.Connection, about: Conversation, piece: Piece) -> None:
    await db.execute("INSERT INTO pieces (kind, number, through, text) VALUES (?, ?, ?, ?)", (*key(about), *piece))


async def join_pieces(db: aiosqlite.Connection, about: Conversation, joined: Piece) -> None:
    """Put one piece in the place of all up to its last exchange."""
    await db.execute("DELETE FROM pieces WHERE kind = ? AND number = ? AND through <= ?", (*key(about), joined.through))
    await add_piece(db, about, joined)


async def drop(db: aiosqlite.Connection, about: Conversation) -> None:
    """Delete the summary of a conversation and its pieces."""
    await db.execute("DELETE FROM summaries WHERE kind = ? AND number = ?", key(about))
    await db.execute("DELETE FROM pieces WHERE kind = ? AND number = ?", key(about))
