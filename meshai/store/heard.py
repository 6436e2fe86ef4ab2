"""SQL for the inbox: what was heard and decided to be answered, until it is settled.

A settled row keeps only who sent which packet, so that the same packet is never answered twice.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final, NamedTuple

import aiosqlite

from meshai.messages import IncomingMessage, NodeNum, TextLimits

log = logging.getLogger(__name__)

KEPT: Final = 5000
"""Settled rows remembered: days of the busiest mesh, a few hundred kilobytes."""


BEYOND_ALL: Final = 2**63 - 1


class Talker(NamedTuple):
    """A node, how many messages of it were to be answered, and when the newest was heard (Unix seconds)."""

    node: NodeNum
    messages: int
    heard_at: float


async def add(db: aiosqlite.Connection, message: IncomingMessage) -> int | None:
    """Note a message; returns its exchange number, or None when this packet was heard before."""
    async with db.execute(
        "INSERT INTO heard (node, packet_id, heard_at, message) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (message.sender, message.packet_id, message.heard_at, _to_json(message)),
    ) as cursor:
        return cursor.lastrowid if cursor.rowcount == 1 else None


async def settle(db: aiosqlite.Connection, exchange: int) -> None:
    """Nothing is owed for this message any more: an answer is queued, or silence was decided."""
    await db.execute("UPDATE heard SET message = NULL WHERE id = ?", (exchange,))
    await db.execute("DELETE FROM heard WHERE id <= ? AND message IS NULL", (exchange - KEPT,))


async def settle_all(db: aiosqlite.Connection) -> None:
    """Nothing is owed for anything heard so far; questions without an answer go."""
    await db.execute("DELETE FROM turns WHERE exchange IN (SELECT id FROM heard WHERE message IS NOT NULL)")
    await db.execute("UPDATE heard SET message = NULL WHERE message IS NOT NULL")


async def first_open(db: aiosqlite.Connection) -> int:
    """The first exchange that may still get an answer; a number beyond all exchanges when there is none."""
    async with db.execute("SELECT min(id) FROM heard WHERE message IS NOT NULL") as cursor:
        row = await cursor.fetchone()
    return int(row[0]) if row and row[0] is not None else BEYOND_ALL


async def unsettled(db: aiosqlite.Connection) -> Sequence[tuple[int, int, IncomingMessage]]:
    """(exchange, repeats so far, message) of what the last process left unanswered, in order of arrival."""
    rows = []
    async with db.execute("SELECT id, tries, message FROM heard WHERE message IS NOT NULL ORDER BY id") as cursor:
        for row in await cursor.fetchall():
            try:
                rows.append((int(row["id"]), int(row["tries"]), _from_json(row["message"])))
            except (ValueError, TypeError, KeyError) as error:
                # A failing card may change a letter; what cannot be read must not stop every start from here on.
                log.error("the question of exchange %s cannot be read, and stays unanswered: %s", row["id"], error)
                await settle(db, row["id"])
    return rows


async def note_repeats(db: aiosqlite.Connection, exchange: int, repeats: int) -> None:
    """How often this message was begun again after the end of a process that had it in hand."""
    await db.execute("UPDATE heard SET tries = ? WHERE id = ?", (repeats, exchange))


async def talkers(db: aiosqlite.Connection, *, since: float) -> Sequence[Talker]:
    """Who wrote to us after `since` (Unix seconds), whoever wrote most first; as far as `KEPT` reaches back."""
    query = (
        "SELECT node, count(*) AS messages, max(heard_at) AS newest FROM heard WHERE heard_at > ?"
        " GROUP BY node ORDER BY messages DESC, newest DESC"
    )
    async with db.execute(query, (since,)) as cursor:
        return [Talker(*row) for row in await cursor.fetchall()]


def _to_json(message: IncomingMessage) -> str:
    fields = asdict(message)
    fields["public_key"] = message.public_key.hex() if message.public_key is not None else None
    return json.dumps(fields)


def _from_json(text: str) -> IncomingMessage:
    fields = json.loads(text)
    fields["limits"] = TextLimits(**fields["limits"])
    key = fields["public_key"]
    fields["public_key"] = bytes.fromhex(key) if key is not None else None
    return IncomingMessage(**fields)
