"""What every test may ask for: a database on disk and a clock that stands still."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from meshai.store.database import Database, open_database
from meshai.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    async with open_database(tmp_path / "meshai.db") as opened:
        yield opened
