"""Which database is in use now: the file or, while it cannot be used, a stand-in in memory.

Theory of operation. Everybody works with one `Database` and its `transaction()`, whatever lies behind it. A full or
read-only disk, a lock held by another program, a damaged or vanished file show when a transaction fails. Then a
stand-in of the same schema takes the file's place: empty of turns, but with the questions and packets that are owed, so
that everything under way goes on. Nothing else is remembered, and `is_stand_in` tells those who must be honest about
it. The transaction that failed is done again by `again_if_replaced`.

One task tries the file again and again. A damaged file is set aside first and a new one begun; one of a newer version
is never touched. What the stand-in holds by then, its turns too, goes into the file in the transaction after which the
file is in use again. What the file owes is known to the stand-in alone by then, unless it could not be read when
the process began; then it is left there for the next start.
"""

import asyncio
import logging
import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import aiosqlite

from meshai.clock import Clock
from meshai.errors import StoreError, StoreReplaced
from meshai.store import carrying, health
from meshai.store.aside import has_only_changes, set_aside
from meshai.store.database import BUSY_TIMEOUT_MS, Database, alone, connect, in_memory, to_the_end

log = logging.getLogger(__name__)

LOCK_LOOK_MS: Final = 100
"""How long SQLite waits for a lock at a time, while the file is in use."""
LAST_LOOK_MS: Final = 1000
"""How long a lock is waited for at the end: what is not in the file then is lost."""
LOOK_EVERY_S: Final = 30.0
SAY_EVERY_S: Final = 3600.0

Fault = sqlite3.Error | OSError | StoreError


class Damaged(StoreError):
    """The file opens, but is not sound."""


@asynccontextmanager
async def kept_database(path: Path, *, clock: Clock) -> AsyncIterator[Database]:
    """The database file, or a stand-in whenever the file cannot be used; nobody else answers from it meanwhile.

    Raises StoreError when another MeshAI uses the file, or a newer one wrote it.
    """
    keeper = await to_the_end(_started(path, clock))
    looking_after = asyncio.create_task(keeper.look_after(), name="database")
    try:
        yield keeper
    finally:
        looking_after.cancel()
        await asyncio.wait({looking_after})
        await to_the_end(keeper.close())
        if not looking_after.cancelled():
            looking_after.result()


async def _started(path: Path, clock: Clock) -> "_Keeper":
    stand_in = await in_memory()
    keeper = _Keeper(stand_in, path, clock)
    try:
        await keeper.begin()
    except BaseException:
        await keeper.close()
        raise
    return keeper


class _Keeper(Database):
    def __init__(self, stand_in: aiosqlite.Connection, path: Path, clock: Clock) -> None:
        super().__init__(stand_in, path)
        self.is_stand_in = True
        self._clock = clock
        self._knows_all = False
        """The stand-in has all that is owed."""
        self._is_damaged = False
        """SQLite said so while the file was in use."""
        self._file_id: tuple[int, int] | None = None
        """Device and inode of the file that was last in use, and found sound."""
        self._retired: aiosqlite.Connection | None = None
        """The connection to a file that failed, still to be closed."""
        self._look = asyncio.Event()
        self._said_at: float | None = None
        self._is_back_to_say = False
        self._lock_file = AsyncExitStack()
        self._has_lock_file = False

    async def begin(self) -> None:
        """Take the file into use, or else the stand-in with what can be read of the file."""
        try:
            await self._return(busy_timeout_ms=BUSY_TIMEOUT_MS)
        except StoreError as error:
            if isinstance(error, Damaged) or (isinstance(error.__cause__, OSError) and not _is_taken(error)):
                await self._begin_without(error)
            else:
                raise
        except (sqlite3.Error, OSError) as error:
            await self._begin_without(error)

    async def _begin_without(self, error: Fault) -> None:
        self._say(error)
        try:
            source = await carrying.read_only(self.path)
        except (sqlite3.Error, OSError):
            await self._number_beyond(self._connection)
            return
        try:
            await self._seed(source, self._connection)
        finally:
            await source.close()

    async def look_after(self) -> None:
        """Put the file back into use when that is possible, and notice when it is no longer there."""
        while True:
            with suppress(TimeoutError):
                async with self._clock.timeout(LOOK_EVERY_S):
                    await self._look.wait()
            self._look.clear()
            if not self.is_stand_in and await asyncio.to_thread(self._is_gone):
                async with self._lock:
                    await to_the_end(self._stand_in(StoreError("it was removed or replaced")))
                # What held the right to answer may be gone too, with its folder or its disk.
                await self._lock_file.aclose()
                self._has_lock_file = False
                self._file_id = None
            if self.is_stand_in:
                await to_the_end(self._try_again())

    async def close(self) -> None:
        if self.is_stand_in and self._said_at is not None:
            await self._try_again(LAST_LOOK_MS)
        await self._close_retired()
        await _close(self._connection)
        await self._lock_file.aclose()

    # What a transaction does

    async def _begin(self) -> None:
        try:
            await super()._begin()
        except sqlite3.Error as error:
            if self.is_stand_in:
                raise
            await self._stand_in(error)
            await super()._begin()

    async def _failed(self, error: sqlite3.Error) -> StoreError:
        if self.is_stand_in or not (health.is_trouble(error) or health.is_damage(error)):
            return await super()._failed(error)
        await to_the_end(self._stand_in(error))
        return StoreReplaced(f"database {self.path}: {error}")

    async def _stand_in(self, error: Fault) -> None:
        """Put a stand-in in the place of the file. The lock is held."""
        stand_in = await in_memory()
        await self._seed(self._connection, stand_in)
        self._retired, self._connection = self._connection, stand_in
        self.is_stand_in = True
        # Also when the old rows could not be read: this process has them in hand.
        self._knows_all = True
        self._is_damaged = isinstance(error, sqlite3.Error) and health.is_damage(error)
        self._say(error)
        if self._is_damaged:
            # Waiting mends nothing.
            self._look.set()

    async def _seed(self, source: aiosqlite.Connection, stand_in: aiosqlite.Connection) -> None:
        await stand_in.execute("BEGIN")
        try:
            await carrying.seed(source, stand_in)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            log.debug("what the database %s owes cannot be read: %s", self.path, error)
            await stand_in.rollback()
            await self._number_beyond(stand_in)
        else:
            await stand_in.commit()
            self._knows_all = True

    async def _number_beyond(self, stand_in: aiosqlite.Connection) -> None:
        # Microseconds: beyond what any counter has come to since, and exact also as a JSON number.
        await carrying.number_from(stand_in, int(self._clock.now() * 1_000_000))

    # The way back

    async def _try_again(self, busy_timeout_ms: int = 0) -> None:
        await self._close_retired()
        try:
            await self._return(busy_timeout_ms=busy_timeout_ms)
        except (sqlite3.Error, OSError, StoreError) as error:
            self._say(error)
            async with self._lock:
                await carrying.prune(self._connection)

    async def _return(self, *, busy_timeout_ms: int) -> None:
        file = await self._opened(busy_timeout_ms)
        try:
            file_id = await asyncio.to_thread(_file_id, self.path)
            await file.execute("BEGIN IMMEDIATE")
            async with self._lock:
                await carrying.bring_back(self._connection, file, knows_all=self._knows_all)
                await file.commit()
                stand_in, self._connection = self._connection, file
                self.is_stand_in = self._knows_all = False
                self._file_id = file_id
        except BaseException:
            await _close(file)
            raise
        await _close(stand_in)
        await file.execute(f"PRAGMA busy_timeout = {LOCK_LOOK_MS}")
        if self._is_back_to_say:
            self._is_back_to_say = False
            log.warning("the database %s is in use again", self.path)

    async def _opened(self, busy_timeout_ms: int) -> aiosqlite.Connection:
        """The sound file; a damaged one is set aside, once."""
        if not self._has_lock_file:
            await self._lock_file.enter_async_context(alone(self.path))
            self._has_lock_file = True
        if self._is_damaged:
            await self._set_aside("database disk image is malformed")
        elif await asyncio.to_thread(has_only_changes, self.path):
            await self._set_aside("the file is missing beside its newest changes")
        try:
            return await self._sound(busy_timeout_ms)
        except Damaged as error:
            await self._set_aside(str(error))
        return await self._sound(busy_timeout_ms)

    async def _sound(self, busy_timeout_ms: int) -> aiosqlite.Connection:
        try:
            file = await connect(self.path, busy_timeout_ms=busy_timeout_ms)
        except sqlite3.Error as error:
            if health.is_trouble(error):
                raise
            raise Damaged(str(error)) from error
        try:
            is_known = await asyncio.to_thread(_file_id, self.path) == self._file_id
            if not is_known and (found := await health.damage(file)):
                raise Damaged(found)
        except sqlite3.Error as error:
            await _close(file)
            if health.is_trouble(error):
                raise
            raise Damaged(str(error)) from error
        except BaseException:
            await _close(file)
            raise
        return file

    async def _set_aside(self, found: str) -> None:
        aside = await asyncio.to_thread(set_aside, self.path, self._clock.now())
        self._is_damaged = False
        log.error(
            "the database %s was damaged (%s) and is now %s; a new one is begun, what was remembered is in the old: "
            "sqlite3 %s .recover shows it; if this comes again, replace the card or disk",
            self.path,
            " ".join(found.split()),
            aside,
            aside,
        )

    def _is_gone(self) -> bool:
        try:
            return _file_id(self.path) != self._file_id
        except OSError:
            return True

    async def _close_retired(self) -> None:
        if self._retired is not None:
            retired, self._retired = self._retired, None
            await _close(retired)

    def _say(self, error: Fault) -> None:
        now = self._clock.monotonic()
        if self._said_at is not None and now - self._said_at < SAY_EVERY_S:
            log.debug("the database %s cannot be used: %s", self.path, error)
            return
        self._said_at = now
        self._is_back_to_say = True
        log.error(
            "the database %s cannot be used: %s; questions are answered without memory until it can; %s",
            self.path,
            # Without the remedy that stands behind it: ours fits better.
            str(error).partition("; ")[0],
            _remedy(error),
        )


def _is_taken(error: StoreError) -> bool:
    return isinstance(error.__cause__, BlockingIOError)


def _file_id(path: Path) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


async def _close(connection: aiosqlite.Connection) -> None:
    try:
        await connection.close()
    except sqlite3.Error as error:
        log.debug("closing a database: %s", error)


def _remedy(error: Fault) -> str:
    match health.code(error) if isinstance(error, sqlite3.Error) else None:
        case sqlite3.SQLITE_FULL:
            return "make room on the disk"
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return "end the other program that uses it"
        case _:
            return "check disk, folder and rights (a card that fails becomes read-only), or set storage.path"
