"""SQL for packets that wait to be sent. A row goes when its packet is settled, one way or the other."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import aiosqlite

from meshai.messages import Address, OutgoingPacket
from meshai.store.conversations import conversation, key


@dataclass(frozen=True, slots=True)
class Waiting:
    """A stored packet: its row, the exchange it belongs to, and when it was queued (Unix seconds)."""

    row: int
    exchange: int
    packet: OutgoingPacket
    queued_at: float


async def add(db: aiosqlite.Connection, exchange: int, packets: Iterable[OutgoingPacket], queued_at: float) -> None:
    for packet in packets:
        address = packet.address
        await db.execute(
            "INSERT INTO outbox (exchange, kind, number, channel, reply_to, limit_bytes, text, part, parts, packet_id,"
            " queued_at, hops) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
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
                queued_at,
                address.hops,
            ),
        )


async def waiting(db: aiosqlite.Connection, *, after: int) -> Sequence[Waiting]:
    """The packets not handed over in rows above `after`, in the order they were queued."""
    async with db.execute("SELECT * FROM outbox WHERE id > ? AND NOT handed_over ORDER BY id", (after,)) as cursor:
        return [_waiting(row) for row in await cursor.fetchall()]


async def hand_over(db: aiosqlite.Connection, row: int) -> None:
    """Note that the node has this packet: from here on it is never sent again."""
    await db.execute("UPDATE outbox SET handed_over = 1 WHERE id = ?", (row,))


async def remove_handed_over(db: aiosqlite.Connection) -> int:
    """Drop the packets whose fate the last process did not live to learn; returns how many."""
    async with db.execute("DELETE FROM outbox WHERE handed_over") as cursor:
        return cursor.rowcount


async def renew(db: aiosqlite.Connection, row: int, packet_id: int) -> None:
    """A new try of a packet: it waits again, with another id."""
    await db.execute("UPDATE outbox SET handed_over = 0, packet_id = ? WHERE id = ?", (packet_id, row))


async def remove(db: aiosqlite.Connection, row: int) -> None:
    await db.execute("DELETE FROM outbox WHERE id = ?", (row,))


async def remove_exchange(db: aiosqlite.Connection, exchange: int) -> int:
    """Drop what is left of a reply; returns how many packets."""
    async with db.execute("DELETE FROM outbox WHERE exchange = ?", (exchange,)) as cursor:
        return cursor.rowcount


async def clear(db: aiosqlite.Connection) -> None:
    """Drop every packet that waits."""
    await db.execute("DELETE FROM outbox")


async def count(db: aiosqlite.Connection) -> int:
    async with db.execute("SELECT count(*) FROM outbox") as cursor:
        row = await cursor.fetchone()
    return int(row[0]) if row else 0


def _waiting(row: aiosqlite.Row) -> Waiting:
    address = Address(
        conversation(row["kind"], row["number"]), row["limit_bytes"], row["reply_to"], row["channel"], row["hops"]
    )
    packet = OutgoingPacket(address, row["text"], row["part"], row["parts"], row["packet_id"])
    return Waiting(row["id"], row["exchange"], packet, row["queued_at"])
