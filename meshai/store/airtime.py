"""SQL for the airtime our packets took, minute by minute: what limits sending also after a restart."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import aiosqlite

MINUTE_S: Final = 60
KEPT_MINUTES: Final = 25 * 60
"""A day to look back on, and the hour that has begun."""


class Spent(NamedTuple):
    """What was spent in one minute, which began `began_at` (Unix seconds)."""

    began_at: float
    spent_s: float
    packets: int


async def add(db: aiosqlite.Connection, now: float, spent_s: float, packets: int = 1) -> None:
    """Add to the minute of `now`, and forget what is more than a day from it, as a clock may have been wrong."""
    minute = int(now // MINUTE_S)
    await db.execute(
        "INSERT INTO airtime (minute, spent_s, packets) VALUES (?, ?, ?) ON CONFLICT (minute)"
        " DO UPDATE SET spent_s = spent_s + excluded.spent_s, packets = packets + excluded.packets",
        (minute, spent_s, packets),
    )
    await db.execute("DELETE FROM airtime WHERE abs(minute - ?) > ?", (minute, KEPT_MINUTES))


async def since(db: aiosqlite.Connection, at: float) -> Sequence[Spent]:
    """The minutes that ended after `at` (Unix seconds), the oldest first."""
    query = "SELECT minute, spent_s, packets FROM airtime WHERE (minute + 1) * ? > ? ORDER BY minute"
    async with db.execute(query, (MINUTE_S, at)) as cursor:
        return [Spent(float(row[0] * MINUTE_S), row[1], row[2]) for row in await cursor.fetchall()]
