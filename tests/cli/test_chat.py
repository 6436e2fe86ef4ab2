"""`meshai chat` as a process, with its input from a pipe and in a terminal."""

import asyncio
import os
import pty
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from meshai.cli import thinking
from tests.model.serving import Answer, Asked, HttpServer, completion

SIGN = thinking.SIGN.rstrip("…")
"""A prompt may draw the rest apart."""


def settings(folder: Path, model: HttpServer) -> Path:
    file = folder / "config.yaml"
    file.write_text(f"model: {{base_url: '{model.url}/v1', name: m}}\nstorage: {{path: '{folder / 'meshai.db'}'}}\n")
    return file


async def test_every_piped_line_is_answered_before_it_ends(tmp_path: Path) -> None:
    async with HttpServer.answering(completion("Fine.")) as model:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "meshai", "--config", str(settings(tmp_path, model)), "chat"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate("how are you? ä\n!ping\n".encode()), 30)
    assert process.returncode == 0, err
    assert sorted(out.decode().splitlines()) == ["MeshAI> Fine.", "MeshAI> pong: heard directly"]
    assert model.asked[0].json["messages"][-1]["content"] == "how are you? ä"
    assert (tmp_path / "chat.db").exists()
    assert not (tmp_path / "meshai.db").exists()


async def test_what_an_earlier_run_left_is_not_answered_and_no_answer_is_a_failure(tmp_path: Path) -> None:
    async def chat(file: Path, line: str) -> tuple[int | None, str]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "meshai", "--config", str(file), "chat"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert process.stdin is not None
        process.stdin.write(line.encode())
        await process.stdin.drain()
        if "old" in line:
            async with asyncio.timeout(30):
                while not silent.asked:
                    await asyncio.sleep(0.02)
            process.kill()
        process.stdin.close()
        out, _ = await asyncio.wait_for(process.communicate(), 30)
        return process.returncode, out.decode()

    async def hang(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with HttpServer(hang) as silent:
        await chat(settings(tmp_path, silent), "old question\n")
    async with HttpServer.answering(completion("Fine.")) as model:
        assert await chat(settings(tmp_path, model), "new question\n") == (0, "MeshAI> Fine.\n")
        assert [asked.json["messages"][-1]["content"] for asked in model.asked] == ["new question"]
    async with HttpServer.answering(completion("")) as empty:
        code, out = await chat(settings(tmp_path, empty), "hm?\n")
    assert code == 1
    assert "no usable answer" in out


class Terminal:
    """What a person sees and types."""

    def __init__(self, controller: int) -> None:
        self.controller = controller
        self.shown = b""

    async def see(self, text: str) -> str:
        """Read until this is shown; returns all before it that was not asked for yet."""
        async with asyncio.timeout(30):
            while text.encode() not in self.shown:
                self.shown += await asyncio.to_thread(os.read, self.controller, 4096)
        before, _, self.shown = self.shown.partition(text.encode())
        return before.decode(errors="replace")

    def type(self, keys: str) -> None:
        os.write(self.controller, keys.encode())


@asynccontextmanager
async def chatting(
    file: Path, *, stdin: int | None = None
) -> AsyncIterator[tuple[Terminal, asyncio.subprocess.Process]]:
    """`meshai chat` in a terminal, and whatever its input is; it ends with code 0."""
    controller, terminal = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "meshai", "--config", str(file), "chat"),
        stdin=terminal if stdin is None else stdin,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(terminal)
    try:
        yield Terminal(controller), process
        draining = asyncio.create_task(asyncio.to_thread(drain, controller))
        assert await asyncio.wait_for(process.wait(), 10) == 0
        await draining
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(controller)


class Slow:
    """A model that writes as long as it is let."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()

    async def __call__(self, asked: Asked, writer: asyncio.StreamWriter) -> Answer:
        await self.may_end.wait()
        return Answer(completion("Fine."))


async def test_a_terminal_shows_answers_and_ends_with_ctrl_d(tmp_path: Path) -> None:
    slow = Slow()
    async with HttpServer(slow) as model, chatting(settings(tmp_path, model)) as (terminal, _):
        assert SIGN not in await terminal.see("You>")
        terminal.type("hello\r")
        await terminal.see(SIGN)
        slow.may_end.set()
        await terminal.see("Fine.")
        assert SIGN not in await terminal.see("You>")
        terminal.type("!ping\r")
        assert SIGN not in await terminal.see("pong")
        # Keys that are typed while the prompt is away are the terminal's own.
        await terminal.see("You>")
        terminal.type("\x04")


async def test_a_piped_question_is_seen_to_be_thought_about_on_a_terminal(tmp_path: Path) -> None:
    slow = Slow()
    async with (
        HttpServer(slow) as model,
        chatting(settings(tmp_path, model), stdin=asyncio.subprocess.PIPE) as (terminal, process),
    ):
        assert process.stdin is not None
        process.stdin.write(b"hello\n")
        process.stdin.close()
        await terminal.see(SIGN)
        slow.may_end.set()
        await terminal.see("Fine.")


def drain(descriptor: int) -> None:
    """Read a terminal to its end, so that its program can write."""
    try:
        while os.read(descriptor, 4096):
            pass
    except OSError:
        return
