"""Real trouble for a database: a full disk, a read-only one, another program's lock."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest


def _mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"file systems cannot be mounted here: {done.stderr.strip()}")


@contextmanager
def small_disk(folder: Path) -> Iterator["SmallDisk"]:
    """A disk of one megabyte at `folder`. The test is skipped where only root may mount one, and we are not."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    folder.mkdir()
    _mount("-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder))
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


class SmallDisk:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        """Leave no byte free."""
        with contextlib.suppress(OSError), self._ballast.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def free(self) -> None:
        self._ballast.unlink()


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """The folder cannot be written, by root neither."""
    if os.geteuid() != 0:
        folder.chmod(0o500)
        try:
            yield
        finally:
            folder.chmod(0o700)
        return
    _mount("--bind", str(folder), str(folder))
    try:
        _mount("-o", "remount,bind,ro", str(folder))
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


LOCKING = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.read()
"""


@asynccontextmanager
async def locked(path: Path) -> AsyncIterator[None]:
    """Another process holds the database's lock."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", LOCKING, str(path), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"locked\n"
        yield
    finally:
        process.kill()
        await process.communicate()
