"""SQL for facts: what is known of a node in one conversation, what it replaced, and from which exchange it came.

The order is that of exchanges. A fact is open until another took its place or its end was said.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import aiosqlite

from meshai.messages import Conversation, NodeNum
from meshai.store import forgetting
from meshai.store.conversations import key

MOST_CLOSED: Final = 5
"""Closed facts kept of one slot and key, the newest: enough to tell what was before."""
MOST_OPEN: Final = 50
"""Open facts of one slot of many values; beyond it the oldest goes."""
MOST_READ: Final = 200
"""Turns looked at in one go for what is not learned yet."""


class Fact(NamedTuple):
    """One thing known about a node. `value` is untrusted text."""

    row: int
    slot: str
    key: str
    value: str
    source: int
    """Exchange in which it was learned."""
    since: float
    """Unix seconds of our clock, when it was learned."""
    until: float | None
    """When it was replaced or ended; None while it holds."""


class Value(NamedTuple):
    """What is to be kept. `normal` tells equal values; `key` is empty but for a slot with keys."""

    slot: str
    key: str
    value: str
    normal: str


async def open_in(
    db: aiosqlite.Connection, conversation: Conversation, node: NodeNum, slot: str, slot_key: str
) -> Sequence[tuple[int, str, int]]:
    """(row, normal value, source) of what holds in one slot."""
    async with db.execute(
        "SELECT id, normal, source FROM facts WHERE kind = ? AND number = ? AND (kind = 'direct' OR node = ?)"
        " AND slot = ? AND slot_key = ? AND closed IS NULL ORDER BY source, id",
        (*key(conversation), node, slot, slot_key),
    ) as cursor:
        return [(row["id"], row["normal"], row["source"]) for row in await cursor.fetchall()]


async def add(
    db: aiosqlite.Connection, conversation: Conversation, node: NodeNum, value: Value, *, source: int, at: float
) -> int:
    """Keep an open fact; returns its row."""
    async with db.execute(
        "INSERT INTO facts (kind, number, node, slot, slot_key, value, normal, source, since)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*key(conversation), node, value.slot, value.key, value.value, value.normal, source, at),
    ) as cursor:
        return int(cursor.lastrowid or 0)


async def close(
    db: aiosqlite.Connection, row: int, *, exchange: int, at: float, superseded_by: int | None = None
) -> None:
    """End a fact by what was said in `exchange`, and let go of what of its slot was closed long before."""
    await db.execute(
        "UPDATE facts SET closed = ?, until = ?, superseded_by = ? WHERE id = ?", (exchange, at, superseded_by, row)
    )
    await db.execute(
        "DELETE FROM facts WHERE id IN (SELECT old.id FROM facts AS old JOIN facts AS this ON this.id = ?"
        " WHERE (old.kind, old.number, old.node, old.slot, old.slot_key) ="
        " (this.kind, this.number, this.node, this.slot, this.slot_key) AND old.closed IS NOT NULL"
        " ORDER BY old.closed DESC, old.id DESC LIMIT -1 OFFSET ?)",
        (row, MOST_CLOSED),
    )


async def known(
    db: aiosqlite.Connection, conversation: Conversation, node: NodeNum, *, with_closed: bool = False
) -> Sequence[Fact]:
    """What is known of a node from this conversation, newest first; what has ended too if `with_closed`."""
    async with db.execute(
        "SELECT id, slot, slot_key, value, source, since, until FROM facts WHERE kind = ? AND number = ?"
        " AND (kind = 'direct' OR node = ?) AND (closed IS NULL OR ?) ORDER BY source DESC, id DESC",
        (*key(conversation), node, with_closed),
    ) as cursor:
        return [Fact(*row) for row in await cursor.fetchall()]


async def remove(db: aiosqlite.Connection, rows: Sequence[int]) -> None:
    """Delete facts as if they had never been known."""
    await db.executemany("DELETE FROM facts WHERE id = ?", [(row,) for row in rows])
    if rows:
        await forgetting.be_due(db)


async def unread(
    db: aiosqlite.Connection, conversation: Conversation, node: NodeNum, *, until: int
) -> Sequence[tuple[int, float, str]]:
    """(exchange, at, text) of what a node said here, up to `until`, that was not looked at yet, oldest first."""
    async with db.execute(
        "SELECT exchange, at, text FROM turns WHERE kind = ?1 AND number = ?2 AND (kind = 'direct' OR node = ?3)"
        " AND NOT is_ours AND exchange <= ?4 AND exchange > coalesce((SELECT exchange FROM facts_read"
        " WHERE kind = ?1 AND number = ?2 AND (kind = 'direct' OR node = ?3)), 0) ORDER BY exchange DESC LIMIT ?5",
        (*key(conversation), node, until, MOST_READ),
    ) as cursor:
        return [(row["exchange"], row["at"], row["text"]) for row in reversed(list(await cursor.fetchall()))]


async def mark_read(db: aiosqlite.Connection, conversation: Conversation, node: NodeNum, *, until: int) -> None:
    """What this node said here up to an exchange has been looked at."""
    kind, number = key(conversation)
    await db.execute(
        "INSERT INTO facts_read (kind, number, node, exchange) VALUES (?, ?, ?, ?)"
        " ON CONFLICT DO UPDATE SET exchange = max(exchange, excluded.exchange)",
        (kind, number, 0 if kind == "direct" else node, until),
    )
