"""`meshai run` as a process: it waits for a radio, tells systemd, and ends in time whatever is happening."""

import asyncio
import random
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from meshai.clock import ScaledClock
from meshai.sim.mesh import SimulatedMesh
from meshai.sim.peers import Peer
from tests.model.serving import Answer, Asked, HttpServer, completion
from tests.store.trouble import locked

END_S = 10


def settings(folder: Path, *, address: str, model: str = "embedded: 'off'") -> Path:
    file = folder / "config.yaml"
    file.write_text(
        f"radio: {{address: '{address}'}}\nmodel: {{{model}}}\nstorage: {{path: '{folder / 'meshai.db'}'}}\n"
        "memory: {tell: false}\n"
    )
    return file


class Running:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.log = ""

    async def until(self, pattern: str) -> None:
        """Read the log until a line matches."""
        assert self.process.stderr is not None
        async with asyncio.timeout(30):
            while line := (await self.process.stderr.readline()).decode():
                self.log += line
                if re.search(pattern, line):
                    return
        raise AssertionError(f"the log ended without {pattern!r}:\n{self.log}")

    async def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Stop it as systemd does, and expect it gone in time."""
        assert self.process.stderr is not None
        self.process.send_signal(number)
        self.log += (await asyncio.wait_for(self.process.stderr.read(), END_S)).decode()
        return await asyncio.wait_for(self.process.wait(), END_S)


@asynccontextmanager
async def running(file: Path, **environ: str) -> AsyncIterator[Running]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "meshai", "--config", str(file), "run"),
        stderr=asyncio.subprocess.PIPE,
        env={"PATH": "", "HOME": str(file.parent), **environ},
    )
    try:
        yield Running(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_without_a_radio_it_waits_and_ends_when_told(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with notify:
        notify.bind(str(tmp_path / "notify"))
        notify.settimeout(10)
        file = settings(tmp_path, address=f"tcp:127.0.0.1:{port}")
        async with running(file, NOTIFY_SOCKET=str(tmp_path / "notify"), JOURNAL_STREAM="8:1") as bot:
            await bot.until("MeshAI")
            told = await asyncio.to_thread(lambda: [notify.recv(500).decode() for _ in range(3)])
            assert await bot.end() == 0
            told += await asyncio.to_thread(lambda: [notify.recv(500).decode()])
    assert any("READY=1" in text for text in told)
    assert any("STATUS=waiting for a radio" in text for text in told)
    assert "STOPPING=1" in told[-1]
    assert all(line.startswith("<") for line in bot.log.splitlines()), "levels for the journal"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_ends_in_time_while_a_model_hangs_and_answers_after_the_next_start(
    tmp_path: Path, number: signal.Signals
) -> None:
    answers: list[str] = []

    async def handler(asked: Asked, writer: asyncio.StreamWriter) -> Answer:
        if not answers:
            await asyncio.Event().wait()
        return Answer(completion(answers[0]))

    clock = ScaledClock(20)
    async with (
        SimulatedMesh(clock=clock, rng=random.Random(1)) as mesh,
        HttpServer(handler) as model,
    ):
        node = mesh.node()
        anna = mesh.peer("Anna")
        port = await node.listen_tcp()
        file = settings(tmp_path, address=f"tcp:127.0.0.1:{port}", model=f"base_url: '{model.url}/v1', name: m")
        async with running(file) as bot:
            await bot.until("radio: connected")
            await clock.sleep(20)
            question = await anna.send_direct("are you there?")
            await bot.until(r"heard packet .* a question")
            async with asyncio.timeout(10):
                while not model.asked:
                    await asyncio.sleep(0.01)
            assert await bot.end(number) == 0
        assert anna.inbox == []
        answers.append("I am.")
        async with running(file) as bot:
            heard = await anna.heard(600)
            assert (heard.text, heard.reply_id) == ("I am.", question)
            assert await bot.end(number) == 0
    assert "are you there" not in bot.log


async def test_a_second_bot_on_the_same_database_is_refused(tmp_path: Path) -> None:
    file = settings(tmp_path, address="tcp:127.0.0.1:1")
    async with running(file) as first:
        await first.until("MeshAI")
        async with running(file) as second:
            await second.until("another MeshAI is using")
            assert await asyncio.wait_for(second.process.wait(), END_S) == 1
        assert await first.end() == 0


async def test_wrong_settings_end_it_with_the_code_that_is_not_restarted(tmp_path: Path) -> None:
    file = settings(tmp_path, address="carrier pigeon")
    async with running(file) as bot:
        assert await asyncio.wait_for(bot.process.wait(), END_S) == 2
        assert bot.process.stderr is not None
        told = (await bot.process.stderr.read()).decode()
    assert "config.yaml:1: radio.address" in told
    assert "Traceback" not in told


@asynccontextmanager
async def answering(clock: ScaledClock) -> AsyncIterator[tuple[str, str, Peer]]:
    """Settings of a bot's radio and model, which echoes, and somebody to ask it."""

    async def handler(asked: Asked, writer: asyncio.StreamWriter) -> Answer:
        return Answer(completion(f"You said {asked.json['messages'][-1]['content']}"))

    async with SimulatedMesh(clock=clock, rng=random.Random(1)) as mesh, HttpServer(handler) as model:
        node, anna = mesh.node(), mesh.peer("Anna")
        yield f"tcp:127.0.0.1:{await node.listen_tcp()}", f"base_url: '{model.url}/v1', name: m", anna


async def test_a_locked_database_silences_it_not_and_it_ends_in_time(tmp_path: Path) -> None:
    clock = ScaledClock(20)
    async with answering(clock) as (address, model, anna):
        file = settings(tmp_path, address=address, model=model)
        async with running(file) as bot:
            await bot.until("radio: connected")
            await clock.sleep(20)
            async with locked(tmp_path / "meshai.db"):
                await anna.send_direct("during")
                assert (await anna.heard(600)).text == "You said during"
                await anna.send_direct("at the end")
                await bot.until(r"heard packet .* a question")
                began = asyncio.get_running_loop().time()
                assert await bot.end() == 0
                assert asyncio.get_running_loop().time() - began < END_S
    assert bot.log.count("cannot be used") == 1


async def test_a_stop_in_the_wait_for_a_lock_is_in_time(tmp_path: Path) -> None:
    clock = ScaledClock(20)
    async with (
        answering(clock) as (address, model, anna),
        running(settings(tmp_path, address=address, model=model)) as bot,
    ):
        await bot.until("radio: connected")
        await clock.sleep(20)
        async with locked(tmp_path / "meshai.db"):
            await anna.send_direct("during")
            await clock.sleep(10)
            assert await bot.end() == 0


async def test_a_damaged_database_does_not_keep_it_from_answering(tmp_path: Path) -> None:
    clock = ScaledClock(20)
    (tmp_path / "meshai.db").write_bytes(b"what a dying card left " * 1000)
    async with (
        answering(clock) as (address, model, anna),
        running(settings(tmp_path, address=address, model=model)) as bot,
    ):
        await bot.until("was damaged")
        await bot.until("radio: connected")
        await clock.sleep(20)
        await anna.send_direct("hello")
        assert (await anna.heard(600)).text == "You said hello"
        assert await bot.end() == 0
    assert len(list(tmp_path.glob("meshai.db.damaged-*"))) == 1
    assert "Traceback" not in bot.log
