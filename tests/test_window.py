"""The socket the bot shows itself through: its rights, what may lie in its place, and clients that behave badly."""

import asyncio
import logging
import os
import random
import signal
import socket
import stat
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from meshai.clock import ScaledClock
from meshai.errors import StoreError, WindowError
from meshai.sim.mesh import SimulatedMesh
from meshai.status import Report
from meshai.window import MOST_CLIENTS, MOST_IN_LINE, MOST_PATH_BYTES, look, show, window_of
from tests.acceptance.bot import config, echoing, running

DOCUMENT = b'{"all": "is well"}'


async def well() -> bytes:
    return DOCUMENT


@asynccontextmanager
async def shown(path: Path, document: Callable[[], Awaitable[bytes]] = well) -> AsyncIterator[asyncio.Task[None]]:
    """A window at work."""
    task = asyncio.create_task(show(path, document))
    await asyncio.sleep(0)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def seen(path: Path) -> bytes:
    return await asyncio.to_thread(look, path, within_s=10)


def client(path: Path) -> socket.socket:
    """Somebody who connects and does nothing more."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.connect(str(path))
    return made


async def test_whoever_looks_sees_the_document_and_nothing_stays_of_it(tmp_path: Path) -> None:
    path = window_of(tmp_path / "meshai.db")
    assert path == tmp_path / "meshai.db.sock"
    async with shown(path):
        assert await seen(path) == DOCUMENT
        assert await asyncio.gather(*(seen(path) for _ in range(3 * MOST_CLIENTS))) == [DOCUMENT] * 3 * MOST_CLIENTS
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(WindowError, match="not running"):
        await seen(path)


async def test_only_the_owner_may_look_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        async with shown(tmp_path / "w.sock"):
            status = (tmp_path / "w.sock").stat()
            assert stat.S_ISSOCK(status.st_mode)
            assert stat.S_IMODE(status.st_mode) == 0o600
    finally:
        os.umask(before)


async def test_what_a_dead_process_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "w.sock"
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as dead:
        dead.bind(str(path))
    with pytest.raises(WindowError, match="not running"):
        await seen(path)
    async with shown(path):
        assert await seen(path) == DOCUMENT


async def test_a_window_in_use_is_not_taken_from_its_bot(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "w.sock"

    async def other() -> bytes:
        return b"other"

    async with shown(path):
        async with shown(path, other) as second:
            await second
        assert await seen(path) == DOCUMENT
    assert "another program shows itself there" in caplog.text


@pytest.mark.parametrize("kind", ["link", "dangling link", "file", "folder"])
async def test_what_is_no_socket_is_left_alone(tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    path, target = tmp_path / "w.sock", tmp_path / "target"
    match kind:
        case "link":
            target.write_text("precious")
            path.symlink_to(target)
        case "dangling link":
            path.symlink_to(target)
        case "file":
            path.write_text("precious")
        case "folder":
            path.mkdir()
    before = path.lstat()
    async with shown(path) as task:
        await task
    assert "something else is there; move it away" in caplog.text
    assert path.lstat() == before
    assert target.exists() == (kind == "link")
    assert not target.exists() or target.read_text() == "precious"


async def test_a_link_to_a_dead_socket_is_not_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as dead:
        dead.bind(str(tmp_path / "dead"))
    (tmp_path / "w.sock").symlink_to(tmp_path / "dead")
    async with shown(tmp_path / "w.sock") as task:
        await task
    assert "move it away" in caplog.text
    assert (tmp_path / "dead").exists()


async def test_a_path_that_is_too_long_is_told_with_a_remedy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fits = tmp_path / ("x" * (MOST_PATH_BYTES - len(os.fsencode(tmp_path)) - 1))
    async with shown(fits):
        assert await seen(fits) == DOCUMENT
    too_long = fits.with_name(f"{fits.name}x")
    async with shown(too_long) as task:
        await task
    assert "`meshai status` will see nothing" in caplog.text
    assert "set storage.path to a shorter one" in caplog.text
    with pytest.raises(WindowError, match="shows nothing"):
        await seen(too_long)


async def test_without_a_folder_there_is_a_warning_and_no_window(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with shown(tmp_path / "gone" / "w.sock") as task:
        await task
    assert "No such file or directory" in caplog.text


async def test_clients_that_say_nothing_or_talk_hold_up_nobody(tmp_path: Path) -> None:
    path = tmp_path / "w.sock"
    async with shown(path):
        with closing(client(path)), closing(client(path)) as talker:
            talker.sendall(b"GET / HTTP/1.1\r\n\r\n" * 1000)
            for _ in range(3):
                assert await seen(path) == DOCUMENT


async def test_clients_that_never_read_are_shown_out_in_time(tmp_path: Path) -> None:
    path = tmp_path / "w.sock"
    sizes = [50_000_000] * MOST_CLIENTS

    async def document() -> bytes:
        return b"x" * (sizes.pop() if sizes else 1)

    async with shown(path, document):
        deaf = [client(path) for _ in range(MOST_CLIENTS)]
        try:
            # The fifth waits for its turn, which comes when the time of the others is over.
            assert await seen(path) == b"x"
            assert sizes == []
        finally:
            for one in deaf:
                one.close()


async def test_a_client_that_goes_at_once_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "w.sock"
    async with shown(path):
        for _ in range(5 * MOST_CLIENTS):
            client(path).close()
        assert await seen(path) == DOCUMENT


async def test_more_clients_than_can_stand_in_line_are_told_so(tmp_path: Path) -> None:
    path = tmp_path / "w.sock"

    async def never() -> bytes:
        await asyncio.Event().wait()
        return b""

    async with shown(path, never):
        line: list[socket.socket] = []
        try:
            # In the loop's own thread, so that nobody is let in meanwhile.
            line += [client(path) for _ in range(MOST_IN_LINE + 1)]
            with pytest.raises(WindowError, match="too many"):
                look(path)
        finally:
            for one in line:
                one.close()


async def test_a_stop_does_not_wait_for_those_who_look(tmp_path: Path) -> None:
    path = tmp_path / "w.sock"
    entered = asyncio.Event()

    async def never() -> bytes:
        entered.set()
        await asyncio.Event().wait()
        return b""

    async with shown(path, never):
        looking = asyncio.create_task(seen(path))
        await entered.wait()
    with pytest.raises(WindowError, match="no answer"):
        await looking
    assert not path.exists()


@pytest.mark.parametrize("error", [StoreError("disk"), RuntimeError("a fault")])
async def test_a_fault_ends_one_look_and_only_ours_is_logged(
    tmp_path: Path, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "w.sock"
    faults = [error]

    async def document() -> bytes:
        if faults:
            raise faults.pop()
        return DOCUMENT

    async with shown(path, document):
        with pytest.raises(WindowError, match="no answer"):
            await seen(path)
        assert await seen(path) == DOCUMENT
    assert ("Traceback" in caplog.text) == isinstance(error, RuntimeError)


async def test_a_document_without_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    async def document() -> bytes:
        return b"x" * 5_000_000

    async with shown(tmp_path / "w.sock", document):
        assert len(await seen(tmp_path / "w.sock")) < 2_000_000


async def test_anothers_socket_in_its_place_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "w.sock"
    async with shown(path):
        path.unlink()
        with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as other:
            other.bind(str(path))
    assert path.exists()


async def test_after_a_kill_the_next_start_shows_itself_again(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("radio: {address: 'tcp:127.0.0.1:1'}\nmodel: {embedded: 'off'}\nstorage: {path: 'meshai.db'}\n")
    path = tmp_path / "meshai.db.sock"
    for number in (signal.SIGKILL, signal.SIGTERM):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "meshai", "--config", str(file), "run"),
            cwd=tmp_path,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        )
        try:
            async with asyncio.timeout(30):
                while True:
                    try:
                        report = Report.from_json(await seen(path))
                        break
                    except WindowError:
                        await asyncio.sleep(0.05)
            assert "waiting for a radio" in report.status.radio
            assert report.status.node is None
            process.send_signal(number)
            await asyncio.wait_for(process.wait(), 10)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert path.exists() == (number is signal.SIGKILL)


async def test_packets_are_seen_under_way(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    clock = ScaledClock(20)
    path = window_of(tmp_path / "meshai.db")
    async with SimulatedMesh(clock=clock, rng=random.Random(3)) as mesh, echoing() as model:
        node = mesh.node("MeshAI", "MAI", channels=("", "bots"))
        anna = mesh.peer("Anna [b]Weber")
        settings = config(node_port=await node.listen_tcp(), model_url=f"{model.url}/v1", folder=tmp_path)
        async with running(settings, clock) as parts:
            await parts.radio.ready()
            anna.acks.delay_s = 12
            await anna.send_direct("tell me of secret words " + "which are long " * 8)
            states: list[list[str]] = []
            queues: list[int] = []
            async with asyncio.timeout(60):
                while not states or set(states[-1]) != {"delivered"}:
                    report = Report.from_json(await seen(path))
                    queues.append(sum(entry.packets for entry in report.queue))
                    if report.replies:
                        states.append([part.state for part in report.replies[0].parts])
                    await clock.sleep(0.5)
            await parts.outbox.drained()
            document = await seen(path)
    last = Report.from_json(document)
    number = len(states[-1])
    assert number > 1
    assert any(state[0] == "handed over" and set(state[1:]) == {"waiting"} for state in states)
    assert any(state[0] == "delivered" and state[-1] != "delivered" for state in states)
    assert number in queues
    assert (last.status.heard, last.status.answered, last.status.sent, last.status.failed) == (1, 1, number, 0)
    assert last.status.waiting == 0
    assert last.status.is_connected
    assert last.status.node is not None
    assert last.status.node.name == "MeshAI"
    assert [(talker.node.name, talker.messages) for talker in last.talkers] == [("Anna (b)Weber", 1)]
    assert last.hours[-1].packets + last.hours[-2].packets >= number
    assert sum(hour.spent_s for hour in last.hours) == pytest.approx(last.status.airtime.spent_s)
    assert b"secret words" not in document
