"""What every test may ask for: a database on disk and a clock that stands still."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import settings

from meshai.errors import WeightsError
from meshai.model.download import fetch
from meshai.model.weights import SMOLLM2
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


@pytest.fixture(scope="session")
def real_models(pytestconfig: pytest.Config) -> Path:
    """A models folder with the small test model in it, fetched once and kept between runs."""
    folder = Path(pytestconfig.cache.mkdir("models"))
    for _ in range(120):
        try:
            fetch(SMOLLM2, folder)
        except WeightsError as error:
            if "by another process" in str(error):  # a parallel worker
                time.sleep(1)
                continue
            if "is not the one that is pinned" in str(error):
                raise
            pytest.skip(f"the test model cannot be fetched here: {error}")
        return folder
    raise TimeoutError("another process fetches the test model and does not end")
