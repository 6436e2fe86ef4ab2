"""Whether the database file is sound and can be written."""

import aiosqlite


async def faults(db: aiosqlite.Connection) -> list[str]:
    """What SQLite finds wrong with the file; empty when it is sound."""
    async with db.execute("PRAGMA integrity_check(3)") as rows:
        return [str(row[0]) async for row in rows if row[0] != "ok"]


async def write(db: aiosqlite.Connection) -> None:
    """Write something that leaves nothing behind. Fails like any write would."""
    await db.execute("CREATE TABLE written_by_check (x)")
    await db.execute("DROP TABLE written_by_check")
