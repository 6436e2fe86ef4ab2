"""The real engine with real (small) weights, in its process and through the whole adapter."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from meshai.clock import ScaledClock, SystemClock
from meshai.config import ModelSettings
from meshai.errors import ContextTooLong, ModelUnavailable
from meshai.model import server
from meshai.model.base import ChatMessage
from meshai.model.embedded import EmbeddedModel
from meshai.model.openai import OpenAIModel
from meshai.model.weights import SMOLLM2

QUESTION = [ChatMessage("system", "Answer in one word."), ChatMessage("user", "What is the capital of France?")]


@pytest.mark.parametrize(
    ("error", "machine", "is_64_bit", "told"),
    [
        (
            ModuleNotFoundError("No module named 'xllamacpp'"),
            "x86_64",
            True,
            "not installed; install it: pip install x",
        ),
        (ImportError("libgomp.so.1: cannot open shared object file"), "aarch64", True, "sudo apt install libgomp1"),
        (ModuleNotFoundError("No module named 'xllamacpp'"), "armv7l", False, "this is a 32-bit one (armv7l)"),
        (
            ImportError("undefined symbol: x"),
            "x86_64",
            True,
            "cannot be started (undefined symbol: x); install it anew: pip again",
        ),
    ],
)
def test_a_missing_engine_is_told_with_the_remedy(error: ImportError, machine: str, is_64_bit: bool, told: str) -> None:
    assert told in server.why_not_importable(
        error, machine=machine, is_64_bit=is_64_bit, install="pip install x", reinstall="pip again"
    )


def test_some_processor_is_left_to_us() -> None:
    assert 1 <= server.processors() <= (os.cpu_count() or 1)


@contextmanager
def started(
    folder: Path, *python: str, file: str = SMOLLM2.file
) -> Iterator[tuple["subprocess.Popen[str]", dict[str, Any]]]:
    orders = {"path": str(folder / file), "name": "tiny", "key": "right-key", "context_tokens": 512}
    orders |= {"install": "pip install x", "reinstall": "pip again", "repair": "fetch it anew"}
    command = [sys.executable, *python, "-P", server.__file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        stdin, stdout = process.stdin, process.stdout
        assert stdin
        assert stdout
        try:
            stdin.write(json.dumps(orders) + "\n")
            stdin.flush()
            yield process, json.loads(stdout.readline())
        finally:
            process.kill()


def end_input(process: "subprocess.Popen[str]") -> None:
    stdin: IO[str] | None = process.stdin
    assert stdin
    stdin.close()


def test_a_python_without_the_engine_says_how_to_install_it(tmp_path: Path) -> None:
    with started(tmp_path, "-S") as (process, answer):
        assert answer == {"error": "the engine of the embedded model is not installed; install it: pip install x"}
        end_input(process)
        assert process.wait(10) == 0


@pytest.mark.slow
def test_a_broken_file_is_told(tmp_path: Path) -> None:
    (tmp_path / SMOLLM2.file).write_bytes(b"GGUF" + bytes(1000))
    with started(tmp_path) as (_, answer):
        assert re.fullmatch(r".*SmolLM2.* cannot be loaded \(.+\); fetch it anew", answer["error"])


@pytest.mark.slow
async def test_only_the_right_key_is_let_in(real_models: Path) -> None:
    with started(real_models) as (process, answer):
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", answer["url"])
        for key in ("wrong-key", ""):
            model = OpenAIModel(
                ModelSettings(), clock=SystemClock(), base_url=f"{answer['url']}/v1", api_key=key, name="tiny"
            )
            async with model:
                with pytest.raises(ModelUnavailable, match="401 Unauthorized"):
                    await model.complete(QUESTION, max_tokens=20)
        assert os.getpriority(os.PRIO_PROCESS, process.pid) > os.getpriority(os.PRIO_PROCESS, 0)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["input ends", "SIGTERM"])
def test_the_process_ends_with_its_input_and_by_a_signal(real_models: Path, end: str) -> None:
    with started(real_models) as (process, _):
        if end == "SIGTERM":
            process.terminate()
            assert process.wait(10) == -signal.SIGTERM
        else:
            end_input(process)
            assert process.wait(10) == 0


def embedded(folder: Path, **settings: Any) -> EmbeddedModel:
    given = {"embedded": SMOLLM2.name, "timeout_s": 60, "context_tokens": 700, **settings}
    return EmbeddedModel(ModelSettings.model_validate(given), clock=SystemClock(), folder=folder)


@pytest.mark.slow
async def test_a_real_model_answers(real_models: Path) -> None:
    async with embedded(real_models) as model:
        answer = await model.complete(QUESTION, max_tokens=30)
        again = await model.complete(QUESTION, max_tokens=30)
    assert "Paris" in answer.text
    assert again.text == answer.text
    assert answer.prompt_tokens
    assert answer.prompt_tokens > 20
    assert answer.completion_tokens
    assert 0 < answer.completion_tokens <= 30


@pytest.mark.slow
async def test_a_prompt_that_does_not_fit_is_told_and_does_no_harm(real_models: Path) -> None:
    async with embedded(real_models) as model:
        with pytest.raises(ContextTooLong, match=r"400 Bad Request .*lower model\.context_tokens"):
            await model.complete([ChatMessage("user", "word " * 1000)], max_tokens=10)
        assert (await model.complete(QUESTION, max_tokens=30)).text


@pytest.mark.slow
async def test_people_ask_at_the_same_time(real_models: Path) -> None:
    async with embedded(real_models) as model:
        answers = await asyncio.gather(*(model.complete(QUESTION, max_tokens=30) for _ in range(4)))
    assert len({answer.text for answer in answers}) == 1


@pytest.mark.slow
async def test_the_bot_goes_on_while_the_model_thinks(real_models: Path) -> None:
    turns = 0
    async with embedded(real_models) as model:
        question = asyncio.create_task(model.complete(QUESTION, max_tokens=60))
        while not question.done():
            await asyncio.sleep(0.005)
            turns += 1
    assert turns > 20


@pytest.mark.slow
async def test_a_killed_engine_comes_back(real_models: Path) -> None:
    model = EmbeddedModel(
        ModelSettings(embedded=SMOLLM2.name, timeout_s=600, context_tokens=700),
        clock=ScaledClock(10),
        folder=real_models,
    )
    async with model:
        await model.complete(QUESTION, max_tokens=30)
        (engine,) = children(os.getpid())
        os.kill(engine, signal.SIGKILL)
        assert "Paris" in (await model.complete(QUESTION, max_tokens=30)).text
        assert children(os.getpid()) != [engine]
    assert children(os.getpid()) == []


def children(parent: int) -> list[int]:
    """Engines among the child processes."""
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if is_engine(pid) and status(pid)[1:2] == [str(parent)]]


def is_engine(pid: int) -> bool:
    try:
        is_ours = os.fsencode(server.__file__) in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return is_ours and status(pid)[:1] != ["Z"]


def status(pid: int) -> list[str]:
    """The state and the parent of a process; nothing when it is gone."""
    try:
        # What comes before is a name in parentheses, which may hold anything.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return []


BOT = """
import asyncio, sys
from pathlib import Path
from meshai.clock import SystemClock
from meshai.config import ModelSettings
from meshai.model.base import ChatMessage
from meshai.model.embedded import EmbeddedModel

async def main():
    settings = ModelSettings(embedded="smollm2-135m", context_tokens=700)
    async with EmbeddedModel(settings, clock=SystemClock(), folder=Path(sys.argv[1])) as model:
        print("entered", flush=True)
        await model.complete([ChatMessage("user", "Hello")], max_tokens=5)
        print("answered", flush=True)
        await model.complete([ChatMessage("user", "Count to a thousand")], max_tokens=450)
        await asyncio.sleep(3600)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["entered", "answered"])
async def test_the_engine_does_not_outlive_a_killed_bot(real_models: Path, moment: str) -> None:
    bot = await asyncio.create_subprocess_exec(
        sys.executable, "-c", BOT, str(real_models), stdout=asyncio.subprocess.PIPE
    )
    stdout = bot.stdout
    assert stdout
    async with asyncio.timeout(30):
        while (await stdout.readline()).strip().decode() != moment:
            pass
        while not (engines := children(bot.pid)):
            await asyncio.sleep(0.01)
        bot.kill()
        await bot.wait()
        while any(is_engine(engine) for engine in engines):
            await asyncio.sleep(0.01)
