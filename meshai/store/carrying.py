"""Carrying rows between the database file and its stand-in in memory.

Numbers of exchanges and packets only ever grow, also across both: those who hold one never meet another row under it.
"""

import asyncio
import sqlite3
from collections.abc import Collection
from pathlib import Path
from typing import Final
from urllib.parse import quote

import aiosqlite

MOST_TURNS: Final = 2000
"""Turns a stand-in keeps, about a megabyte."""
BUSY_S: Final = 1.0
NUMBERED: Final = ("heard", "outbox")
ORDERS: Final = ("quiet", "ignored", "ordered")
CONSENT: Final = ("identities", "forgetting", "tombstones")


async def seed(source: aiosqlite.Connection, stand_in: aiosqlite.Connection) -> None:
    """Copy what is owed into an empty stand-in: questions without an answer, packets to send, what "more" would say.

    Beside it the airtime spent, which limits what may be sent, what admins ordered, and what people let us keep.
    """
    await _copy(source, stand_in, "heard", where="message IS NOT NULL")
    await _copy(source, stand_in, "outbox")
    await _copy(source, stand_in, "rests")
    await _copy(source, stand_in, "airtime")
    for table in (*ORDERS, *CONSENT):
        await _copy(source, stand_in, table)
    # An answer is only remembered beside its question.
    await _copy(source, stand_in, "turns", where="exchange IN (SELECT id FROM heard WHERE message IS NOT NULL)")
    await _raise_numbers(stand_in, await _numbers(source))


async def number_from(stand_in: aiosqlite.Connection, first: int) -> None:
    """Let a stand-in without a seed begin beyond the numbers of the file, which cannot be read."""
    await _raise_numbers(stand_in, dict.fromkeys(NUMBERED, first))


async def bring_back(stand_in: aiosqlite.Connection, file: aiosqlite.Connection, *, knows_all: bool) -> None:
    """Copy everything of a stand-in into the file, in a transaction of the caller.

    A stand-in that `knows_all` is right about what is owed, also about what the file holds besides.
    """
    if knows_all:
        await file.execute("DELETE FROM outbox")
        await file.execute("DELETE FROM rests")
        await file.execute("DELETE FROM quiet")
        await file.execute("DELETE FROM ignored")
        await file.execute("UPDATE heard SET message = NULL WHERE message IS NOT NULL")
        # What people chose, and whom they are told by their keys, changes in the file alone.
        await _copy(stand_in, file, "identities")
    await _copy(stand_in, file, "heard")
    await _copy(stand_in, file, "outbox")
    await _copy(stand_in, file, "rests")
    await _copy(stand_in, file, "airtime")
    for table in ORDERS:
        await _copy(stand_in, file, table)
    await _copy(stand_in, file, "turns", without={"id"})
    await file.execute(
        "DELETE FROM turns WHERE exchange IN (SELECT exchange FROM turns WHERE NOT is_ours"
        " AND node IN (SELECT number FROM identities WHERE level = 'off'))"
    )
    await _copy(stand_in, file, "jobs")
    await _raise_numbers(file, await _numbers(stand_in))


async def prune(stand_in: aiosqlite.Connection) -> None:
    """Keep a stand-in small, however long it is in use."""
    await stand_in.execute("DELETE FROM turns WHERE id <= (SELECT max(id) FROM turns) - ?", (MOST_TURNS,))


async def _copy(
    source: aiosqlite.Connection,
    target: aiosqlite.Connection,
    table: str,
    *,
    where: str = "TRUE",
    without: Collection[str] = (),
) -> None:
    """Copy rows of one table, as far as it is there in the source, which may be of an older schema."""
    async with source.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)) as cursor:
        if await cursor.fetchone() is None:
            return
    async with source.execute(f"SELECT * FROM {table} WHERE {where} ORDER BY rowid") as cursor:  # noqa: S608 - our names
        names = [column[0] for column in cursor.description if column[0] not in without]
        rows = [tuple(row[name] for name in names) for row in await cursor.fetchall()]
    await target.executemany(
        f"INSERT OR REPLACE INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})",  # noqa: S608
        rows,
    )


async def _numbers(db: aiosqlite.Connection) -> dict[str, int]:
    async with db.execute("SELECT name, seq FROM sqlite_sequence") as rows:
        return {row[0]: int(row[1]) async for row in rows if row[0] in NUMBERED}


async def _raise_numbers(db: aiosqlite.Connection, least: dict[str, int]) -> None:
    """Let the next rows be numbered above `least`, by table."""
    present = await _numbers(db)
    for table, number in least.items():
        if number > present.get(table, 0):
            await db.execute("DELETE FROM sqlite_sequence WHERE name = ?", (table,))
            await db.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (table, number))


async def read_only(path: Path) -> aiosqlite.Connection:
    """Open a file to read it where nothing can be written."""
    # Where SQLite may not make its index of changes, it reads only a file without changes beside it, and when told so.
    is_whole = await asyncio.to_thread(_is_empty, Path(f"{path}-wal"))
    where = f"file:{quote(str(path))}?mode=ro{'&immutable=1' if is_whole else ''}"
    connection = await aiosqlite.connect(where, uri=True, timeout=BUSY_S)
    connection.row_factory = sqlite3.Row
    return connection


def _is_empty(file: Path) -> bool:
    return not file.exists() or file.stat().st_size == 0
