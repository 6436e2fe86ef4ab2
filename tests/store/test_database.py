"""The database: one transaction at a time, all or nothing, owner-only, never mixed by cancellation."""

import asyncio
import shutil
import sqlite3
import stat
from pathlib import Path

import pytest

from meshai.errors import StoreError
from meshai.store import migrations
from meshai.store.database import Database, alone, open_database


async def count(database: Database) -> int:
    async with database.transaction() as db, db.execute("SELECT count(*) FROM heard") as cursor:
        row = await cursor.fetchone()
    assert row is not None
    return int(row[0])


async def put(database: Database, number: int, *, pause: float = 0, fail: bool = False) -> None:
    async with database.transaction() as db:
        await db.execute("INSERT INTO heard (node, packet_id, heard_at) VALUES (1, ?, 0)", (number,))
        await asyncio.sleep(pause)
        if fail:
            raise ValueError("changed my mind")


async def test_a_transaction_commits_whole_or_not_at_all(database: Database) -> None:
    await put(database, 1)
    with pytest.raises(ValueError, match="changed my mind"):
        await put(database, 2, fail=True)
    assert await count(database) == 1


async def test_tasks_never_mix_in_one_transaction(database: Database) -> None:
    results = await asyncio.gather(
        *(put(database, number, pause=0.001, fail=number % 2 == 0) for number in range(1, 21)), return_exceptions=True
    )
    assert sum(isinstance(result, ValueError) for result in results) == 10
    assert await count(database) == 10


async def test_a_cancelled_transaction_leaves_no_trace_and_no_lock(database: Database) -> None:
    for delay in (0, 0.0005, 0.001, 0.002, 0.005):
        task = asyncio.create_task(put(database, 7, pause=0.003))
        await asyncio.sleep(delay)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        async with database.transaction() as db:
            await db.execute("DELETE FROM heard")
    await put(database, 8)
    assert await count(database) == 1


async def test_a_fault_of_sqlite_is_a_store_error_and_the_next_transaction_works(database: Database) -> None:
    with pytest.raises(StoreError, match="no such table"):
        async with database.transaction() as db:
            await db.execute("SELECT * FROM nowhere")
    await put(database, 1)
    assert await count(database) == 1


async def test_the_files_are_for_their_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "meshai.db"
    async with open_database(path) as database:
        await put(database, 1)
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == {"meshai.db": 0o600, "meshai.db-wal": 0o600, "meshai.db-shm": 0o600}
    path.chmod(0o644)
    async with open_database(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_files_that_others_could_open_are_taken_from_them(tmp_path: Path) -> None:
    crashed, path = tmp_path / "crashed", tmp_path / "found" / "meshai.db"
    async with open_database(crashed / "meshai.db") as database:
        await put(database, 1)
        # With the newest changes in their file, as a kill leaves them.
        shutil.copytree(crashed, path.parent)
    lock = Path(f"{path}.lock")
    lock.touch()
    files = [lock, path, Path(f"{path}-wal"), Path(f"{path}-shm")]
    for file in files:
        file.chmod(0o666)
    async with alone(path), open_database(path) as database:
        assert await count(database) == 1
        assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600] * 4


async def test_the_connection_is_set_up_for_power_cuts_and_forgetting(database: Database) -> None:
    found = {}
    async with database.transaction() as db:
        for pragma in ("journal_mode", "synchronous", "secure_delete", "busy_timeout", "foreign_keys"):
            async with db.execute(f"PRAGMA {pragma}") as cursor:
                row = await cursor.fetchone()
                assert row is not None
                found[pragma] = row[0]
    assert found == {
        "journal_mode": "wal",
        "synchronous": 2,
        "secure_delete": 1,
        "busy_timeout": 2000,
        "foreign_keys": 1,
    }


async def test_a_file_that_is_no_database_is_named_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "meshai.db"
    path.write_bytes(b"not a database, but somebody's file" * 100)
    with pytest.raises(StoreError, match=r"meshai\.db.*not a database"):
        async with open_database(path):
            pass
    assert path.read_bytes().startswith(b"not a database")


async def test_a_folder_that_cannot_be_made_is_named_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"storage\.path"):
        async with open_database(tmp_path / "file" / "meshai.db"):
            pass


async def test_a_database_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "meshai.db"
    async with open_database(path):
        pass
    with sqlite3.connect(path) as raw:
        raw.execute(f"PRAGMA user_version = {len(migrations.STEPS) + 1}")
    raw.close()
    with pytest.raises(StoreError, match="newer MeshAI"):
        async with open_database(path):
            pass
