"""SQL for what admins ordered: the end of a silence, the nodes to ignore, and which packets were such orders."""

from collections.abc import Sequence

import aiosqlite

from meshai.messages import NodeNum


async def quiet_until(db: aiosqlite.Connection) -> float | None:
    """When the ordered silence ends or ended, in Unix seconds; None when there is none."""
    async with db.execute("SELECT until FROM quiet") as cursor:
        row = await cursor.fetchone()
    return float(row["until"]) if row else None


async def be_quiet(db: aiosqlite.Connection, until: float) -> None:
    await db.execute(
        "INSERT INTO quiet (one, until) VALUES (1, ?) ON CONFLICT (one) DO UPDATE SET until = excluded.until", (until,)
    )


async def end_quiet(db: aiosqlite.Connection) -> None:
    await db.execute("DELETE FROM quiet")


async def ignore(db: aiosqlite.Connection, who: str) -> None:
    """`who` is a node id or a public key, as `messages` writes them."""
    await db.execute("INSERT INTO ignored (who) VALUES (?) ON CONFLICT DO NOTHING", (who,))


async def unignore(db: aiosqlite.Connection, who: str) -> bool:
    """False when it was not ignored."""
    async with db.execute("DELETE FROM ignored WHERE who = ?", (who,)) as cursor:
        return cursor.rowcount > 0


async def ignored(db: aiosqlite.Connection) -> Sequence[str]:
    """In the order they were first ignored."""
    async with db.execute("SELECT who FROM ignored ORDER BY rowid") as cursor:
        return [row["who"] for row in await cursor.fetchall()]


async def is_any_ignored(db: aiosqlite.Connection, names: Sequence[str]) -> bool:
    marks = ", ".join("?" * len(names))
    async with db.execute(f"SELECT 1 FROM ignored WHERE who IN ({marks})", tuple(names)) as cursor:  # noqa: S608
        return await cursor.fetchone() is not None


async def note_order(db: aiosqlite.Connection, node: NodeNum, packet_id: int) -> bool:
    """Keep for ever that this packet was an order; False when it is known already."""
    query = "INSERT INTO ordered (node, packet_id) VALUES (?, ?) ON CONFLICT DO NOTHING"
    async with db.execute(query, (node, packet_id)) as cursor:
        return cursor.rowcount == 1
