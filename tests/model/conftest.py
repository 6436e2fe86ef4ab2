import time
from pathlib import Path

import pytest

from meshai.errors import WeightsError
from meshai.model.download import fetch
from meshai.model.weights import SMOLLM2


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
