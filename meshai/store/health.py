"""Whether a database file is sound and can be written."""

import asyncio
import re
import sqlite3
from collections.abc import Mapping
from typing import Final

import aiosqlite

from meshai.store import database

CHECK_S: Final = 3.0
"""Time for looking through a file at the start, while nobody is answered."""
CHECK_BYTES: Final = 64_000_000
"""Larger files are not looked through at the start: SQLite before 3.41 cannot be interrupted in it."""

_NOT_DAMAGE: Final = frozenset(
    {
        sqlite3.SQLITE_AUTH,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_READONLY,
    }
)


_PLAIN: Final = re.compile(r"""[\s"'`\[\]]+""")
"""What an ALTER TABLE may write otherwise than the next version of SQLite does."""


def code(error: sqlite3.Error) -> int | None:
    """SQLite's primary result code; None for what Python's own module raised."""
    extended: int | None = getattr(error, "sqlite_errorcode", None)
    return None if extended is None else extended & 0xFF


def is_trouble(error: sqlite3.Error) -> bool:
    """The disk, the rights or another program are in the way; the file may be sound."""
    return code(error) in _NOT_DAMAGE


def is_damage(error: sqlite3.Error) -> bool:
    """The file is not what it should be."""
    return code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


async def faults(db: aiosqlite.Connection) -> list[str]:
    """What SQLite finds wrong with the file; empty when it is sound."""
    async with db.execute("PRAGMA integrity_check(3)") as rows:
        return [str(row[0]) async for row in rows if row[0] != "ok"]


async def write(db: aiosqlite.Connection) -> None:
    """Write something that leaves nothing behind. Fails like any write would."""
    await db.execute("CREATE TABLE written_by_check (x)")
    await db.execute("DROP TABLE written_by_check")


async def damage(db: aiosqlite.Connection) -> str:
    """What is wrong with the open, migrated file, as far as a short look can tell; empty when nothing is.

    Raises what SQLite raises.
    """
    found, made = await _schema(db), await _schema_as_made()
    if not made.items() <= found.items():
        return "its tables are not as they were made"
    async with db.execute("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size") as rows:
        row = await rows.fetchone()
    if row is None or int(row[0]) > CHECK_BYTES:
        return ""
    looking = asyncio.ensure_future(_quick_check(db))
    await asyncio.wait({looking}, timeout=CHECK_S)
    if not looking.done():
        await db.interrupt()
    try:
        return await looking
    except sqlite3.OperationalError as error:
        if code(error) == sqlite3.SQLITE_INTERRUPT:
            return ""
        raise


async def _quick_check(db: aiosqlite.Connection) -> str:
    async with db.execute("PRAGMA quick_check(1)") as rows:
        row = await rows.fetchone()
    found = str(row[0]) if row else "nothing found where a database should be"
    return "" if found == "ok" else found


async def _schema_as_made() -> Mapping[str, str]:
    fresh = await database.in_memory()
    try:
        return await _schema(fresh)
    finally:
        await database.to_the_end(fresh.close())


async def _schema(db: aiosqlite.Connection) -> Mapping[str, str]:
    """Every table, index and trigger by its name, with its text as it may be compared.

    SQLite makes the tables inside a virtual one by itself, in other words from version to version.
    """
    async with db.execute("SELECT name, coalesce(sql, '') FROM sqlite_master") as rows:
        texts = {str(name): _PLAIN.sub("", str(sql)).lower() async for name, sql in rows}
    virtual = tuple(f"{name}_" for name, text in texts.items() if text.startswith("createvirtualtable"))
    return {name: "" if name.startswith(virtual) else text for name, text in texts.items()}
