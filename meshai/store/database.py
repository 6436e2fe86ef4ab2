"""The one connection to SQLite, and `transaction()`, the one way to it.

A shared asynchronous connection has a classic fault: statements of two tasks mix in one transaction. Here a lock
is held from BEGIN to COMMIT, and nothing but the database is awaited inside.
"""

import asyncio
import fcntl
import logging
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar

import aiosqlite

from meshai.errors import StoreError, StoreReplaced
from meshai.store import migrations

log = logging.getLogger(__name__)

T = TypeVar("T")
P = ParamSpec("P")

Connection: TypeAlias = aiosqlite.Connection
"""What a transaction gives, for the functions of `store`."""

BUSY_TIMEOUT_MS: Final = 2000
"""How long another program's lock is waited for."""


class Database:
    """An open, migrated database. Made by `open_database`, or by `store.keeper` for one that may fail."""

    is_stand_in = False
    """It is not the file: it began empty and will be gone. Only to be asked inside a transaction."""

    def __init__(self, connection: aiosqlite.Connection, path: Path) -> None:
        self._connection = connection
        self.path = path
        self._lock = asyncio.Lock()
        self._patience_s = BUSY_TIMEOUT_MS / 1000

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[aiosqlite.Connection]:
        """All or nothing: commits at the end of the block, rolls back if it raises or is cancelled.

        Raises StoreError when SQLite does; StoreReplaced when the block may be tried again at once, which
        `again_if_replaced` does.
        """
        async with self._lock:
            try:
                try:
                    await to_the_end(self._begin())
                    yield self._connection
                    await to_the_end(self._connection.commit())
                except BaseException:
                    await to_the_end(self._roll_back())
                    raise
            except sqlite3.Error as error:
                raise await self._failed(error) from error

    async def wipe(self) -> bool:
        """Let no byte of what was deleted stay in the files; False while another program reads them, or without a file.

        `secure_delete` overwrites rows in their table; the words stay in the segments of full-text indexes until these
        are merged, and in the log of changes, and in the file behind it, until the log is taken over.
        """
        async with self._lock:
            if self.is_stand_in:
                return False
            try:
                return await to_the_end(self._wipe())
            except sqlite3.Error as error:
                raise StoreError(f"database {self.path}: {error}") from error

    async def _wipe(self) -> bool:
        query = "SELECT name FROM sqlite_master WHERE sql LIKE 'CREATE VIRTUAL TABLE%USING fts5%'"
        async with self._connection.execute(query) as cursor:
            indexes = [str(row["name"]) for row in await cursor.fetchall()]
        for name in indexes:
            await self._connection.execute(f"INSERT INTO {name} ({name}) VALUES ('optimize')")  # noqa: S608 - our names
        async with self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)") as cursor:
            row = await cursor.fetchone()
        return row is not None and not row[0]

    def hurry(self) -> None:
        """Let nobody wait long for another program's lock from now on, for the process is to end."""
        self._patience_s = 0.0

    async def _begin(self) -> None:
        # SQLite waits a moment by itself, which nothing can shorten once it does.
        began = time.monotonic()
        while True:
            try:
                await self._connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                is_locked = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                if not is_locked or time.monotonic() - began >= self._patience_s:
                    raise
            else:
                return

    async def _failed(self, error: sqlite3.Error) -> StoreError:
        """What to raise for an error inside a transaction that was rolled back."""
        return StoreError(f"database {self.path}: {error}")

    async def _roll_back(self) -> None:
        # None is open when BEGIN failed, or when the cancellation came during a COMMIT that went through.
        if self._connection.in_transaction:
            await self._connection.rollback()


def again_if_replaced(work: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Do the work of one transaction once more when the database was replaced in the middle of it."""

    @wraps(work)
    async def done(*args: P.args, **kwargs: P.kwargs) -> T:
        while True:
            try:
                return await work(*args, **kwargs)
            except StoreReplaced as error:
                log.debug("once more: %s", error)

    return done


@asynccontextmanager
async def alone(path: Path) -> AsyncIterator[None]:
    """Hold the right to answer from this database: two programs would send each other's packets.

    The kernel gives it back however the process ends. Raises StoreError while another program has it.
    """
    lock = path.with_name(f"{path.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = _lock_file(lock)
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


def _lock_file(lock: Path) -> int:
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        if not lock.exists():
            raise
        # On a disk that has become read-only it can still be locked.
        return os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    # Whoever can open it can hold it, and keep us from starting. One of another user's is locked as it is.
    with suppress(PermissionError):
        _take_from_others(descriptor)
    return descriptor


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
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
        connection = await connect(path)
    except OSError as error:
        raise StoreError(
            f"cannot use {path} as the database: {error.strerror}; check its folder's rights or set storage.path"
        ) from error
    except sqlite3.Error as error:
        raise StoreError(f"the database {path} cannot be used: {error}") from error
    try:
        yield Database(connection, path)
    finally:
        await to_the_end(connection.close())


async def connect(path: Path, *, busy_timeout_ms: int = BUSY_TIMEOUT_MS) -> aiosqlite.Connection:
    """Open (or make) the database file and bring its schema up to date.

    Raises what the operating system and SQLite raise, and StoreError for a file of a newer version.
    """
    await asyncio.to_thread(_make_private, path)
    return await _prepared(path, busy_timeout_ms)


async def in_memory() -> aiosqlite.Connection:
    """A new empty database of the same schema that nobody else sees."""
    return await _prepared(Path(":memory:"), BUSY_TIMEOUT_MS)


async def _prepared(path: Path, busy_timeout_ms: int) -> aiosqlite.Connection:
    # The default of Python's sqlite3, implicit transactions, would open them behind our back.
    connection = await aiosqlite.connect(path, isolation_level=None)
    try:
        await _prepare(connection, str(path), busy_timeout_ms)
    except BaseException as error:
        await to_the_end(connection.close())
        if isinstance(error, UnicodeDecodeError):
            # Python cannot read what SQLite says of it, because words of the damaged schema are quoted in it.
            raise sqlite3.DatabaseError("malformed database schema") from error
        raise
    return connection


def _make_private(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # SQLite gives the -wal and -shm files that it makes the mode of the database file.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    for file in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        with suppress(FileNotFoundError):
            _take_from_others(file)


def _take_from_others(file: Path | int) -> None:
    if os.stat(file).st_mode & 0o077:
        os.chmod(file, 0o600)


async def _prepare(connection: aiosqlite.Connection, name: str, busy_timeout_ms: int) -> None:
    connection.row_factory = sqlite3.Row
    # A bit that has flipped in a text is no reason to have none.
    connection.text_factory = _text
    for pragma in (
        f"busy_timeout = {busy_timeout_ms}",
        "journal_mode = WAL",
        "synchronous = FULL",  # NORMAL loses the last commits at a power cut
        "foreign_keys = ON",
        "secure_delete = ON",  # a plain DELETE leaves the words in the file
        "recursive_triggers = ON",  # without it a row that REPLACE removes stays in the index
    ):
        await connection.execute(f"PRAGMA {pragma}")
    await migrations.migrate(connection, name)


def _text(read: bytes) -> str:
    return read.decode(errors="replace")
