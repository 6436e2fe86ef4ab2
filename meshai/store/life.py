"""SQL for when we last listened, which bounds the age of what waited in the radio meanwhile."""

import aiosqlite


async def listening(db: aiosqlite.Connection, now: float) -> None:
    await db.execute(
        "INSERT INTO life (one, listening_at) VALUES (1, ?)"
        " ON CONFLICT (one) DO UPDATE SET listening_at = excluded.listening_at",
        (now,),
    )


async def last_listened(db: aiosqlite.Connection) -> float | None:
    """Unix seconds of our clock, or None before the first time."""
    async with db.execute("SELECT listening_at FROM life") as cursor:
        row = await cursor.fetchone()
    return float(row[0]) if row else None
