"""The one connection to SQLite, and `transaction()`, the one way to it.

A shared asynchronous connection has a classic fault: statements of two tasks mix in one transaction. Here a lock
is held from BEGIN to COMMIT, and nothing but the database is awaited inside.
"""

import asyncio
import fcntl
import logging
import os
import sqlite3
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import aiosqlite

from meshai.errors import StoreError
from meshai.store import migrations

log = logging.getLogger(__name__)

T = TypeVar("T")

Connection: TypeAlias = aiosqlite.Connection
"""What a transaction gives, for the functions of `store`."""


class Database:
    """An open, migrated database. Made by `open_database`."""

    def __init__(self, connection: aiosqlite.Connection, path: Path) -> None:
        self._connection = connection
        self.path = path
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[aiosqlite.Connection]:
        """All or nothing: commits at the end of the block, rolls back if it raises or is cancelled.

        Raises StoreError when SQLite does.
        """
        async with self._lock:
            try:
                try:
                    await _to_the_end(self._connection.execute("BEGIN IMMEDIATE"))
                    yield self._connection
                    await _to_the_end(self._connection.commit())
                except BaseException:
                    await _to_the_end(self._roll_back())
                    raise
            except sqlite3.Error as error:
                raise StoreError(f"database {self.path}: {error}") from error

    async def _roll_back(self) -> None:
        # None is open when BEGIN failed, or when the cancellation came during a COMMIT that went through.
        if self._connection.in_transaction:
            await self._connection.rollback()


@asynccontextmanager
async def alone(path: Path) -> AsyncIterator[None]:
    """Hold the right to answer from this database: two programs would send each other's packets.

    The kernel gives it back however the process ends. Raises StoreError while another program has it.
    """
    lock = path.with_name(f"{path.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(
            f"cannot make {lock}: {error.strerror}; check its folder's rights or set storage.path"
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StoreError(f"another MeshAI is using {path}; stop it first, or set storage.path") from error
        yield
    finally:
        os.close(descriptor)


async def _to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Await `work` to its end even if this task is cancelled meanwhile; the cancellation comes after it."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancelled = error
        except Exception:  # noqa: S110 - raised by task.result() below
            pass
    if cancelled is not None:
        task.exception()
        raise cancelled
    return task.result()


@asynccontextmanager
async def open_database(path: Path) -> AsyncIterator[Database]:
    """Open (or make) the database file, readable by its owner only, and bring its schema up to date.

    Raises StoreError when the file cannot be used; it is left as it is.
    """
    try:
        _make_private(path)
    except OSError as error:
        raise StoreError(
            f"cannot use {path} as the database: {error.strerror}; check its folder's rights or set storage.path"
        ) from error
    try:
        # The default of Python's sqlite3, implicit transactions, would open them behind our back.
        connection = await aiosqlite.connect(path, isolation_level=None)
    except sqlite3.Error as error:
        raise StoreError(f"cannot open the database {path}: {error}") from error
    try:
        try:
            await _prepare(connection, str(path))
        except sqlite3.Error as error:
            raise StoreError(f"the database {path} cannot be used: {error}") from error
        yield Database(connection, path)
    finally:
        await _to_the_end(connection.close())


def _make_private(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # SQLite gives the -wal and -shm files the mode of the database file.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    if path.stat().st_mode & 0o077:
        path.chmod(0o600)


async def _prepare(connection: aiosqlite.Connection, name: str) -> None:
    connection.row_factory = sqlite3.Row
    for pragma in (
        "busy_timeout = 5000",
        "journal_mode = WAL",
        "synchronous = FULL",  # NORMAL loses the last commits at a power cut
        "foreign_keys = ON",
        "secure_delete = ON",  # a plain DELETE leaves the words in the file
    ):
        await connection.execute(f"PRAGMA {pragma}")
    await migrations.migrate(connection, name)
