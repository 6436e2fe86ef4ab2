"""`meshai chat` as a process, with its input from a pipe and in a terminal."""

import asyncio
import os
import pty
import sys
from pathlib import Path

from tests.model.serving import Asked, HttpServer, completion


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


async def test_a_terminal_shows_answers_and_ends_with_ctrl_d(tmp_path: Path) -> None:
    controller, terminal = pty.openpty()
    shown = b""
    async with HttpServer.answering(completion("Fine.")) as model:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "meshai", "--config", str(settings(tmp_path, model)), "chat"),
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm"},
        )
        os.close(terminal)

        async def see(text: bytes) -> None:
            nonlocal shown
            async with asyncio.timeout(30):
                while text not in shown:
                    shown += await asyncio.to_thread(os.read, controller, 4096)

        try:
            await see(b"You>")
            os.write(controller, b"hello\r")
            await see(b"Fine.")
            os.write(controller, b"\x04")
            draining = asyncio.create_task(asyncio.to_thread(drain, controller))
            assert await asyncio.wait_for(process.wait(), 10) == 0
            await draining
        finally:
            os.close(controller)


def drain(descriptor: int) -> None:
    """Read a terminal to its end, so that its program can write."""
    try:
        while os.read(descriptor, 4096):
            pass
    except OSError:
        return
