"""Migrations: from nothing, twice, and interrupted in the middle of a step."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiosqlite
import pytest

from meshai.store import migrations
from meshai.store.database import open_database


@asynccontextmanager
async def connected(path: Path) -> AsyncIterator[aiosqlite.Connection]:
    connection = await aiosqlite.connect(path, isolation_level=None)
    try:
        yield connection
    finally:
        await connection.close()


def schema(path: Path) -> list[tuple[str, str]]:
    raw = sqlite3.connect(path)
    try:
        return raw.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name").fetchall()
    finally:
        raw.close()


async def test_running_twice_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with open_database(path):
        pass
    first = schema(path)
    async with open_database(path):
        pass
    assert schema(path) == first
    assert {"heard", "turns", "outbox", "life"} <= {name for name, _ in first}


async def test_an_interrupted_step_leaves_nothing_and_is_done_again(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with connected(path) as connection:
        # The second statement of the step fails, as if the process had died there.
        await connection.execute("CREATE TABLE heard_once (x)")
        with pytest.raises(sqlite3.OperationalError):
            await migrations.migrate(connection, "a.db")
        assert [name for name, _ in schema(path)] == ["heard_once"]
        await connection.execute("DROP TABLE heard_once")
        await migrations.migrate(connection, "a.db")
    async with open_database(tmp_path / "fresh.db"):
        pass
    assert schema(path) == schema(tmp_path / "fresh.db")
