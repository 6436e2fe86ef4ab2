"""SQL for rests: what of the last answer to a node did not fit or did not arrive, one a conversation."""

from typing import NamedTuple

import aiosqlite

from meshai.messages import Conversation, NodeNum
from meshai.store.conversations import key


class Rest(NamedTuple):
    """Text that was not sent, of the answer to `exchange`, cut off at `cut_at` (Unix seconds)."""

    exchange: int
    text: str
    cut_at: float
    is_lost: bool = False
    """It was to be sent, but its reader could not be reached."""


async def keep(db: aiosqlite.Connection, conversation: Conversation, node: NodeNum, rest: Rest) -> None:
    """Keep a rest in place of the one before; an empty one only removes that."""
    await drop(db, conversation, node)
    if rest.text:
        await db.execute(
            "INSERT INTO rests (kind, number, node, exchange, cut_at, text, is_lost) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (*key(conversation), node, rest.exchange, rest.cut_at, rest.text, rest.is_lost),
        )


async def drop(db: aiosqlite.Connection, conversation: Conversation, node: NodeNum) -> None:
    await db.execute("DELETE FROM rests WHERE kind = ? AND number = ? AND node = ?", (*key(conversation), node))


async def drop_older(db: aiosqlite.Connection, than: float) -> None:
    """Delete every rest that was cut off before `than`."""
    await db.execute("DELETE FROM rests WHERE cut_at < ?", (than,))


async def find(db: aiosqlite.Connection, conversation: Conversation, node: NodeNum) -> Rest | None:
    async with db.execute(
        "SELECT exchange, text, cut_at, is_lost FROM rests WHERE kind = ? AND number = ? AND node = ?",
        (*key(conversation), node),
    ) as cursor:
        row = await cursor.fetchone()
    return Rest(row["exchange"], row["text"], row["cut_at"], bool(row["is_lost"])) if row else None
