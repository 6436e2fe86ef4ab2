"""Deleting what was said, everywhere at once: the one way rows of a conversation go, however that is asked for.

Every table that holds words of people, or anything made of them, is in `KEPT`; a new one needs its line there and
nothing else. Full-text indexes follow their tables by triggers. `Database.wipe` then takes the bytes out of the files.

A tombstone keeps what is late from bringing a forgotten exchange back: a packet heard again, a summary under way, an
answer that gets lost. It holds a keyed hash alone.
"""

import hashlib
import json
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import aiosqlite

from meshai.messages import Conversation, Fate, NodeNum
from meshai.store.conversations import conversation as of_row
from meshai.store.conversations import key

MARK_BYTES: Final = 16


class Kept(NamedTuple):
    """A table with the columns `kind` and `number` of a conversation, made of the exchanges from `first` to `last`."""

    table: str
    first: str = "exchange"
    last: str = "exchange"


KEPT: Final = (
    Kept("turns"),
    Kept("rests"),
    Kept("summaries", "0", "through"),
    Kept("pieces", "0", "through"),
    Kept("facts", "source", "source"),
    Kept("facts_read"),
)


async def forget(db: aiosqlite.Connection, conversation: Conversation, exchanges: Collection[int]) -> int:
    """Delete these exchanges and whatever was made of them; returns how many turns went.

    A row made of several exchanges goes when one of them does: its words cannot be told apart. What is left of its
    exchanges is there to make it anew.
    """
    kind, number = key(conversation)
    chosen = json.dumps(sorted(exchanges))
    await _bury(db, exchanges)
    gone = 0
    for table, first, last in KEPT:
        async with db.execute(
            f"DELETE FROM {table} WHERE kind = ? AND number = ?"  # noqa: S608 - our names
            f" AND EXISTS (SELECT 1 FROM json_each(?) WHERE value BETWEEN {first} AND {last})",
            (kind, number, chosen),
        ) as cursor:
            gone += cursor.rowcount if table == "turns" else 0
    await db.execute(
        "UPDATE outbox SET text = '', is_settled = 1, state = ?, reason = 'forgotten' WHERE NOT is_settled"
        " AND exchange IN (SELECT value FROM json_each(?))",
        (Fate.EXPIRED, chosen),
    )
    await be_due(db)
    return gone


async def forget_all(db: aiosqlite.Connection, conversation: Conversation) -> int:
    """Delete all of a conversation, also what no exchange is known of any more; returns how many turns went."""
    kind, number = key(conversation)
    gone = await forget(db, conversation, await exchanges(db, conversation))
    for table, _, _ in KEPT:
        await db.execute(f"DELETE FROM {table} WHERE kind = ? AND number = ?", (kind, number))  # noqa: S608
    return gone


async def move(db: aiosqlite.Connection, old: int, new: int) -> None:
    """Give all of one direct conversation another number, under which nothing may be kept yet."""
    for table, _, _ in KEPT:
        await db.execute(f"UPDATE {table} SET number = ? WHERE kind = 'direct' AND number = ?", (new, old))  # noqa: S608


async def is_empty(db: aiosqlite.Connection, conversation: Conversation) -> bool:
    """Whether nothing is kept of a conversation."""
    for table, _, _ in KEPT:
        query = f"SELECT 1 FROM {table} WHERE kind = ? AND number = ? LIMIT 1"  # noqa: S608
        async with db.execute(query, key(conversation)) as cursor:
            if await cursor.fetchone() is not None:
                return False
    return True


async def exchanges(db: aiosqlite.Connection, conversation: Conversation) -> Sequence[int]:
    """The exchanges of which turns are kept, the oldest first."""
    query = "SELECT DISTINCT exchange FROM turns WHERE kind = ? AND number = ? ORDER BY exchange"
    async with db.execute(query, key(conversation)) as cursor:
        return [int(row[0]) for row in await cursor.fetchall()]


async def begun_by(db: aiosqlite.Connection, conversation: Conversation, node: NodeNum) -> Sequence[int]:
    """The exchanges that `node` began in this conversation: all of a direct one, also those from an earlier number."""
    query = "SELECT exchange FROM turns WHERE kind = ? AND number = ? AND (kind = 'direct' OR node = ?) AND NOT is_ours"
    async with db.execute(query, (*key(conversation), node)) as cursor:
        return [int(row[0]) for row in await cursor.fetchall()]


# Retention: turns go with time, and what was made of them stays


async def conversations(db: aiosqlite.Connection) -> Sequence[Conversation]:
    """Those of which turns are kept."""
    async with db.execute("SELECT DISTINCT kind, number FROM turns") as cursor:
        return [of_row(row["kind"], row["number"]) for row in await cursor.fetchall()]


async def is_all_before(db: aiosqlite.Connection, conversation: Conversation, at: float) -> bool:
    """Whether nothing was said in a conversation since `at` (Unix seconds)."""
    async with db.execute("SELECT max(at) FROM turns WHERE kind = ? AND number = ?", key(conversation)) as cursor:
        row = await cursor.fetchone()
    return row is not None and row[0] is not None and float(row[0]) < at


async def drop_before(db: aiosqlite.Connection, conversation: Conversation, at: float) -> int:
    """Delete the turns of exchanges that were over before `at` (Unix seconds); returns how many."""
    query = (
        "DELETE FROM turns WHERE kind = ?1 AND number = ?2 AND exchange IN"
        " (SELECT exchange FROM turns WHERE kind = ?1 AND number = ?2 GROUP BY exchange HAVING max(at) < ?3)"
    )
    async with db.execute(query, (*key(conversation), at)) as cursor:
        return cursor.rowcount


async def drop_beyond(db: aiosqlite.Connection, conversation: Conversation, most: int) -> int:
    """Delete all turns but the newest `most`, and those they belong to; returns how many."""
    query = (
        "DELETE FROM turns WHERE kind = ?1 AND number = ?2 AND exchange < (SELECT exchange FROM turns"
        " WHERE kind = ?1 AND number = ?2 ORDER BY exchange DESC, is_ours DESC LIMIT 1 OFFSET ?3 - 1)"
    )
    async with db.execute(query, (*key(conversation), most)) as cursor:
        return cursor.rowcount


# Tombstones


async def is_forgotten(db: aiosqlite.Connection, exchange: int) -> bool:
    """Whether this exchange was forgotten, or one that began with the same packet."""
    secret = await _secret(db)
    marks = [_mark(secret, "exchange", exchange)]
    async with db.execute("SELECT node, packet_id FROM heard WHERE id = ? AND packet_id <> 0", (exchange,)) as cursor:
        marks += [_mark(secret, "packet", *row) for row in await cursor.fetchall()]
    query = f"SELECT 1 FROM tombstones WHERE mark IN ({', '.join('?' * len(marks))})"  # noqa: S608 - marks only
    async with db.execute(query, marks) as cursor:
        return await cursor.fetchone() is not None


async def _bury(db: aiosqlite.Connection, exchanges: Collection[int]) -> None:
    secret, chosen = await _secret(db), json.dumps(sorted(exchanges))
    marks = {_mark(secret, "exchange", exchange) for exchange in exchanges}
    async with db.execute(
        "SELECT node, packet_id FROM turns WHERE NOT is_ours AND packet_id <> 0"
        " AND exchange IN (SELECT value FROM json_each(?))",
        (chosen,),
    ) as cursor:
        marks |= {_mark(secret, "packet", *row) for row in await cursor.fetchall()}
    await db.executemany("INSERT OR IGNORE INTO tombstones (mark) VALUES (?)", [(mark,) for mark in sorted(marks)])


def _mark(secret: bytes, kind: str, *numbers: int) -> bytes:
    text = " ".join([kind, *map(str, numbers)])
    return hashlib.blake2b(text.encode(), key=secret, digest_size=MARK_BYTES).digest()


async def _secret(db: aiosqlite.Connection) -> bytes:
    async with db.execute("SELECT secret FROM forgetting") as cursor:
        row = await cursor.fetchone()
    return bytes(row["secret"]) if row else b""


# Bytes that are still to leave the files


async def be_due(db: aiosqlite.Connection) -> None:
    """Note that something was deleted whose bytes may still be in the files; it outlives the process."""
    await db.execute("UPDATE forgetting SET is_due = 1")


async def is_due(db: aiosqlite.Connection) -> bool:
    async with db.execute("SELECT is_due FROM forgetting") as cursor:
        row = await cursor.fetchone()
    return bool(row and row["is_due"])


async def be_done(db: aiosqlite.Connection) -> None:
    await db.execute("UPDATE forgetting SET is_due = 0")
