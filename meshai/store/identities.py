"""SQL for identities: whose memory a direct conversation is, and what its person chose.

An identity is a node number with the public key first seen. One whose number was taken over is *locked*: it and its
conversation have a number below zero then, which no node has, until its key is seen again.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import aiosqlite

from meshai.messages import Direct, NodeNum
from meshai.store import forgetting

_COLUMNS: Final = "number, node, public_key, level, is_told, since, wish, wished_at"


class Identity(NamedTuple):
    """Who is behind a direct conversation."""

    number: int
    """Of the conversation: the node's, or below zero when locked."""
    node: NodeNum
    """The node it last spoke from."""
    public_key: bytes | None
    level: str | None
    """What its person chose; None for the default."""
    is_told: bool
    """It was told that notes are kept."""
    since: float
    """Unix seconds."""
    wish: str
    """What it asked for and still has to say once more."""
    wished_at: float

    @property
    def is_locked(self) -> bool:
        return self.number < 0


async def find(db: aiosqlite.Connection, node: NodeNum) -> Identity | None:
    """The identity that speaks from this node now."""
    return await _one(db, "number = ?", node)


async def of_key(db: aiosqlite.Connection, public_key: bytes) -> Identity | None:
    """The identity with this key, locked or not."""
    return await _one(db, "public_key = ?", public_key)


async def every(db: aiosqlite.Connection) -> Sequence[Identity]:
    """All identities, those that were known first before the others."""
    async with db.execute(f"SELECT {_COLUMNS} FROM identities ORDER BY since, number") as cursor:  # noqa: S608
        return [_identity(row) for row in await cursor.fetchall()]


async def add(db: aiosqlite.Connection, node: NodeNum, public_key: bytes | None, now: float) -> None:
    """Note a node that has none yet."""
    await db.execute(
        "INSERT INTO identities (number, node, public_key, since) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (node, node, public_key, now),
    )


async def learn_key(db: aiosqlite.Connection, node: NodeNum, public_key: bytes) -> None:
    await db.execute("UPDATE identities SET public_key = ? WHERE number = ?", (public_key, node))


async def set_level(db: aiosqlite.Connection, node: NodeNum, level: str) -> None:
    await db.execute("UPDATE identities SET level = ? WHERE number = ?", (level, node))


async def be_told(db: aiosqlite.Connection, node: NodeNum) -> None:
    await db.execute("UPDATE identities SET is_told = 1 WHERE number = ?", (node,))


async def wish(db: aiosqlite.Connection, node: NodeNum, wish: str, now: float) -> None:
    """Keep what a node asked for until it says so once more."""
    await db.execute("UPDATE identities SET wish = ?, wished_at = ? WHERE number = ?", (wish, now, node))


async def lock(db: aiosqlite.Connection, identity: Identity) -> None:
    """Put an identity and its memory where only its key gets them back from."""
    async with db.execute("SELECT min(-1, coalesce(min(number), 0) - 1) FROM identities") as cursor:
        row = await cursor.fetchone()
    await _renumber(db, identity.number, int(row[0]) if row else -1)


async def take(db: aiosqlite.Connection, identity: Identity, node: NodeNum) -> None:
    """Give a node, which has no identity now, this one and its memory."""
    await _renumber(db, identity.number, node)
    await db.execute("UPDATE identities SET node = ? WHERE number = ?", (node, node))


async def remove(db: aiosqlite.Connection, number: int) -> None:
    await db.execute("DELETE FROM identities WHERE number = ?", (number,))


async def _renumber(db: aiosqlite.Connection, old: int, new: int) -> None:
    # What nobody is known to have said is nobody's.
    await forgetting.forget_all(db, Direct(new))
    await db.execute("UPDATE identities SET number = ? WHERE number = ?", (new, old))
    await forgetting.move(db, old, new)


async def _one(db: aiosqlite.Connection, where: str, value: int | bytes) -> Identity | None:
    async with db.execute(f"SELECT {_COLUMNS} FROM identities WHERE {where}", (value,)) as cursor:  # noqa: S608
        row = await cursor.fetchone()
    return _identity(row) if row else None


def _identity(row: aiosqlite.Row) -> Identity:
    return Identity(
        row["number"],
        row["node"],
        None if row["public_key"] is None else bytes(row["public_key"]),
        row["level"],
        bool(row["is_told"]),
        row["since"],
        row["wish"],
        row["wished_at"],
    )
