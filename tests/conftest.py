"""What every test may ask for: a database on disk and a clock that stands still."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import settings

from meshai.store.database import Database, open_database
from meshai.testing import ManualClock

# The same examples in every run, and no limit on their wall time. `--hypothesis-profile default` looks for new ones.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    async with open_database(tmp_path / "meshai.db") as opened:
        yield opened
