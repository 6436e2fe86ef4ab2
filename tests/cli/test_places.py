"""Whether a file can be made somewhere is tried, and leaves nothing behind."""

from pathlib import Path

import pytest

from meshai.cli.places import existing_folder, why_not_writable


def test_a_place_that_can_be_written_stays_as_it_was(tmp_path: Path) -> None:
    assert existing_folder(tmp_path / "a" / "b.db") == tmp_path
    assert why_not_writable(tmp_path / "a" / "b.db") == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["/proc/meshai/meshai.db", "/dev/null/meshai.db"])
def test_one_that_never_can_is_told(place: str) -> None:
    assert why_not_writable(Path(place))
