"""SQL for packets on their way: waiting, handed over, and what became of the newest ones.

A packet's state is one of `messages.Fate`, or `WAITING`. Its text goes when it is settled: then only the fate is kept.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import aiosqlite

from meshai.messages import Address, Conversation, Delivery, Fate, OutgoingPacket, Priority
from meshai.store.conversations import conversation, key

WAITING: Final = "waiting"
MOST_SETTLED: Final = 200
"""Packets whose fate is kept for people to look at."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A stored packet that is not settled: its row, its exchange, when it was queued (Unix seconds), its priority."""

    row: int
    exchange: int
    packet: OutgoingPacket
    queued_at: float
    priority: Priority
    is_handed_over: bool
    """The node has it; what is left is to learn its fate."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where one packet is: its state, after how many tries, and when it was queued and last changed (Unix seconds)."""

    exchange: int
    destination: Conversation
    part: int
    parts: int
    state: str
    reason: str
    tries: int
    queued_at: float
    changed_at: float


async def add(
    db: aiosqlite.Connection, exchange: int, packets: Iterable[OutgoingPacket], now: float, priority: Priority
) -> None:
    for packet in packets:
        address = packet.address
        await db.execute(
            "INSERT INTO outbox (exchange, kind, number, channel, reply_to, limit_bytes, text, part, parts, packet_id,"
            " queued_at, changed_at, hops, priority, is_tapback) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                exchange,
                *key(address.destination),
                address.channel,
                address.reply_to,
                address.limit_bytes,
                packet.text,
                packet.part,
                packet.parts,
                packet.packet_id,
                now,
                now,
                address.hops,
                priority,
                packet.is_tapback,
            ),
        )


async def waiting(db: aiosqlite.Connection, *, after: int) -> Sequence[Waiting]:
    """The packets that are owed in rows above `after`, in the order they were queued."""
    async with db.execute("SELECT * FROM outbox WHERE id > ? AND NOT is_settled ORDER BY id", (after,)) as cursor:
        return [_waiting(row) for row in await cursor.fetchall()]


async def hand_over(db: aiosqlite.Connection, row: int, now: float) -> None:
    """Note that the node has this packet: in this process it is never sent again with its id."""
    await db.execute(
        "UPDATE outbox SET state = ?, tries = tries + 1, changed_at = ? WHERE id = ?", (Fate.HANDED_OVER, now, row)
    )


async def leave_handed_over(db: aiosqlite.Connection, now: float) -> int:
    """Leave at that the channel packets and tapbacks that the last process handed over; returns how many.

    Of the former no word will come, and nobody waits for the latter.
    """
    async with db.execute(
        "UPDATE outbox SET is_settled = 1, text = '', reason = 'the program ended', changed_at = ?"
        " WHERE NOT is_settled AND state <> ? AND (kind = 'channel' OR is_tapback)",
        (now, WAITING),
    ) as cursor:
        return cursor.rowcount


async def renew(db: aiosqlite.Connection, row: int, packet_id: int, now: float) -> None:
    """A new try of a packet: it waits again, with another id."""
    await db.execute(
        "UPDATE outbox SET state = ?, packet_id = ?, changed_at = ? WHERE id = ?", (WAITING, packet_id, now, row)
    )


async def settle(db: aiosqlite.Connection, row: int, delivery: Delivery, now: float) -> None:
    """Note how a packet ended, and forget the oldest ends."""
    await db.execute(
        "UPDATE outbox SET is_settled = 1, text = '', state = ?, reason = ?, changed_at = ? WHERE id = ?",
        (delivery.fate, delivery.reason, now, row),
    )
    await db.execute(
        "DELETE FROM outbox WHERE is_settled AND id <= (SELECT id FROM outbox WHERE is_settled"
        " ORDER BY id DESC LIMIT 1 OFFSET ?)",
        (MOST_SETTLED,),
    )


async def settle_exchange(db: aiosqlite.Connection, exchange: int, delivery: Delivery, now: float) -> int:
    """Leave what is left of a reply unsent; returns how many packets."""
    query = "SELECT id FROM outbox WHERE exchange = ? AND NOT is_settled"
    async with db.execute(query, (exchange,)) as cursor:
        left = [int(row["id"]) for row in await cursor.fetchall()]
    for row in left:
        await settle(db, row, delivery, now)
    return len(left)


async def remove_exchange(db: aiosqlite.Connection, exchange: int) -> None:
    """Forget what is left of a reply, which other packets replace."""
    await db.execute("DELETE FROM outbox WHERE exchange = ? AND NOT is_settled", (exchange,))


async def clear(db: aiosqlite.Connection) -> None:
    """Drop every packet that waits."""
    await db.execute("DELETE FROM outbox WHERE NOT is_settled")


async def count(db: aiosqlite.Connection) -> int:
    """Packets that are not settled."""
    async with db.execute("SELECT count(*) FROM outbox WHERE NOT is_settled") as cursor:
        row = await cursor.fetchone()
    return int(row[0]) if row else 0


async def newest_replies(db: aiosqlite.Connection, most: int) -> Sequence[Progress]:
    """The packets of the replies queued last, the newest reply first, the parts of each in order."""
    query = (
        "SELECT outbox.* FROM outbox JOIN (SELECT exchange, max(id) AS newest FROM outbox GROUP BY exchange"
        " ORDER BY newest DESC LIMIT ?) USING (exchange) ORDER BY newest DESC, id"
    )
    async with db.execute(query, (most,)) as cursor:
        return [
            Progress(
                row["exchange"],
                conversation(row["kind"], row["number"]),
                row["part"],
                row["parts"],
                row["state"],
                row["reason"],
                row["tries"],
                row["queued_at"],
                row["changed_at"],
            )
            for row in await cursor.fetchall()
        ]


def _waiting(row: aiosqlite.Row) -> Waiting:
    address = Address(
        conversation(row["kind"], row["number"]), row["limit_bytes"], row["reply_to"], row["channel"], row["hops"]
    )
    packet = OutgoingPacket(address, row["text"], row["part"], row["parts"], row["packet_id"], bool(row["is_tapback"]))
    # A bit that has flipped is no reason to send nothing.
    priority = Priority(row["priority"]) if row["priority"] in set(Priority) else Priority.CHANNEL
    is_handed_over = row["state"] != WAITING
    return Waiting(row["id"], row["exchange"], packet, row["queued_at"], priority, is_handed_over)
