"""Setting a damaged database file aside, under a name that says when."""

import os
import time
from pathlib import Path
from typing import Final

KEPT: Final = 5
"""Damaged files kept, the newest: a dying card must not fill itself up with them."""
_SUFFIXES: Final = ("", "-wal", "-shm")


def set_aside(path: Path, now: float) -> Path:
    """Rename the file and what SQLite keeps beside it; returns the new name. Raises OSError.

    The file itself goes first: a process that dies in between leaves only what belongs to no file, and never a file
    without its newest changes, from which something might be answered twice.
    """
    name = f"{path.name}.damaged-{time.strftime('%Y-%m-%dT%H%M%S', time.localtime(now))}"
    aside = path.with_name(name)
    number = 1
    while any(os.path.lexists(f"{aside}{suffix}") for suffix in _SUFFIXES):
        number += 1
        aside = path.with_name(f"{name}-{number}")
    for suffix in _SUFFIXES:
        if os.path.lexists(f"{path}{suffix}"):
            Path(f"{path}{suffix}").rename(f"{aside}{suffix}")
    for old in _damaged(path)[:-KEPT]:
        for suffix in _SUFFIXES:
            Path(f"{old}{suffix}").unlink(missing_ok=True)
    return aside


def has_only_changes(path: Path) -> bool:
    """Whether changes lie beside the place of a file that is not there: they belong to no new one."""
    return not path.exists() and Path(f"{path}-wal").exists()


def _damaged(path: Path) -> list[Path]:
    """The files set aside, oldest first."""
    found = [
        file
        for file in path.parent.glob(f"{path.name}.damaged-*")
        if not file.name.endswith(("-wal", "-shm")) and file.is_file()
    ]
    return sorted(found, key=lambda file: (file.stat().st_ctime_ns, file.name))
