import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshai.clock import ScaledClock
from meshai.config import ModelSettings
from meshai.errors import ModelTimeout, ModelUnavailable
from meshai.model.base import ChatMessage
from meshai.model.embedded import EmbeddedModel
from meshai.model.weights import QWEN_CODER, SMOLLM2

CONTENT = b"GGUF"
SMALL = replace(SMOLLM2, name="small", file="small.gguf", size_bytes=len(CONTENT))
GOOD = replace(QWEN_CODER, name="good", file="good.gguf", size_bytes=len(CONTENT))
ENGINE = Path(__file__).with_name("fake_engine.py")


def model_in(
    folder: Path, behaviour: str = "works", *, memory: int = 2_000_000_000, speed: float = 20, **settings: Any
) -> EmbeddedModel:
    program: Sequence[str] = (sys.executable, str(ENGINE), behaviour)
    return EmbeddedModel(
        ModelSettings.model_validate({"embedded": "small", "timeout_s": 200, **settings}),
        clock=ScaledClock(speed),
        folder=folder,
        catalogue=(GOOD, SMALL),
        memory=lambda: memory,
        program=program,
        engine_trouble=lambda: "",
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for weights in (SMALL, GOOD):
        (tmp_path / weights.file).write_bytes(CONTENT)
    return tmp_path


async def ask(model: EmbeddedModel, text: str = "hello") -> dict[str, Any]:
    answer: dict[str, Any] = json.loads((await model.complete([ChatMessage("user", text)], max_tokens=50)).text)
    return answer


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_process_answers_and_ends_with_the_block(folder: Path) -> None:
    model = model_in(folder)
    async with model:
        said = await ask(model)
        assert is_running(said["pid"])
        assert said["pid"] != os.getpid()
        assert (said["name"], said["context_tokens"], said["temperature"]) == ("small", 2048, 0)
        assert (await ask(model))["pid"] == said["pid"]
    assert not is_running(said["pid"])
    with pytest.raises(ModelUnavailable, match="small is stopped"):
        await ask(model)


async def test_a_missing_engine_is_told_before_missing_weights(tmp_path: Path) -> None:
    model = EmbeddedModel(
        ModelSettings(embedded="small"),
        clock=ScaledClock(20),
        folder=tmp_path,
        catalogue=(SMALL,),
        engine_trouble=lambda: "the engine is missing; install it",
    )
    async with model:
        with pytest.raises(ModelUnavailable, match="the engine is missing"):
            await model.complete([ChatMessage("user", "hello")], max_tokens=50)


async def test_nothing_secret_is_in_the_list_of_processes(folder: Path) -> None:
    async with model_in(folder) as model:
        pid = (await ask(model))["pid"]
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        assert command.split(b"\0")[:-1] == [os.fsencode(word) for word in (sys.executable, str(ENGINE), "works")]


async def test_entering_waits_for_nothing(folder: Path) -> None:
    async with asyncio.timeout(5), model_in(folder, "hangs") as model:
        assert model.name == "small"


async def test_auto_takes_what_fits_and_says_its_name(folder: Path) -> None:
    model = model_in(folder, embedded="auto")
    assert model.name == "good"
    async with model:
        assert (await ask(model))["name"] == "good"
        assert model.name == "good"


async def test_auto_with_too_little_memory_says_so(folder: Path) -> None:
    async with model_in(folder, embedded="auto", memory=900_000_000) as model:
        assert model.name == "no embedded model fits"
        with pytest.raises(ModelUnavailable, match=r"1\.6 GB of free memory are needed and 0\.9 GB are free"):
            await ask(model)


async def test_the_context_is_no_longer_than_the_model_was_trained_for(folder: Path) -> None:
    async with model_in(folder, context_tokens=100_000) as model:
        assert (await ask(model))["context_tokens"] == SMALL.context_tokens
        assert model.context_tokens == SMALL.context_tokens


async def test_missing_weights_are_told_and_found_when_they_come(tmp_path: Path) -> None:
    async with model_in(tmp_path) as model:
        with pytest.raises(
            ModelUnavailable, match=r"the weights of small are missing; run `meshai model fetch small --models /"
        ):
            await ask(model)
        assert model.trouble == "the weights of small are missing"
        (tmp_path / SMALL.file).write_bytes(CONTENT)
        async with asyncio.timeout(20):
            while True:
                try:
                    assert (await ask(model))["name"] == "small"
                    assert model.trouble == ""
                    break
                except ModelUnavailable:
                    await asyncio.sleep(0.01)


async def test_what_the_process_lacks_is_told_at_once(folder: Path) -> None:
    async with model_in(folder, "lacks") as model:
        with pytest.raises(ModelUnavailable, match="something is missing; install it"):
            await ask(model)


async def test_a_process_that_is_killed_is_started_again(folder: Path) -> None:
    async with model_in(folder) as model:
        pids = []
        for _ in range(3):
            pids.append((await ask(model))["pid"])
            os.kill(pids[-1], signal.SIGKILL)
        pids.append((await ask(model))["pid"])
        assert len(set(pids)) == 4
    assert not [pid for pid in pids if is_running(pid)]


async def test_a_question_survives_the_process_that_had_it(folder: Path) -> None:
    async with model_in(folder) as model:
        pid = (await ask(model))["pid"]
        question = asyncio.create_task(ask(model, "wait once"))
        while not (folder / "small.gguf.waited").exists():
            await asyncio.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        assert (await question)["pid"] != pid


async def test_a_question_that_ends_every_process_is_given_up(folder: Path) -> None:
    async with model_in(folder) as model:
        with pytest.raises(ModelUnavailable, match=r"small: its process ended twice during one question"):
            await ask(model, "die")
        assert (await ask(model))["name"] == "small"


async def test_one_bad_start_only_costs_time(folder: Path) -> None:
    async with model_in(folder, "dies once") as model:
        assert (await ask(model))["name"] == "small"


async def test_a_process_that_cannot_start_is_told_with_its_last_words(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with model_in(folder, "dies") as model:
        with pytest.raises(ModelUnavailable) as caught:
            await ask(model)
        assert model.trouble == "the process of small ended: exit code 3"
    told = "the process of small ended: exit code 3 (GGML_ASSERT(ctx) failed [0m)"
    assert str(caught.value) == told
    assert [record.getMessage() for record in caplog.records] == [f"no embedded model: {told}"]


@pytest.mark.parametrize(
    ("behaviour", "speed", "told"), [("babbles", 20, "exit code 0"), ("hangs", 2000, "it was killed")]
)
async def test_a_process_that_never_gets_ready_is_ended_and_told(
    folder: Path, behaviour: str, speed: float, told: str
) -> None:
    async with model_in(folder, behaviour, speed=speed, timeout_s=3600) as model:
        with pytest.raises(ModelUnavailable, match=told):
            await ask(model)


async def test_a_program_that_is_not_there_is_told(folder: Path) -> None:
    model = EmbeddedModel(
        ModelSettings(embedded="small"),
        clock=ScaledClock(20),
        folder=folder,
        catalogue=(SMALL,),
        program=("/nonexistent/python",),
        engine_trouble=lambda: "",
    )
    async with model:
        with pytest.raises(ModelUnavailable, match="no process could be started: No such file"):
            await model.complete([ChatMessage("user", "hello")], max_tokens=50)


async def test_a_question_waits_for_the_process_no_longer_than_for_an_answer(folder: Path) -> None:
    clock = ScaledClock(50)
    model = EmbeddedModel(
        ModelSettings(embedded="small", timeout_s=20),
        clock=clock,
        folder=folder,
        catalogue=(SMALL,),
        program=(sys.executable, str(ENGINE), "hangs"),
        engine_trouble=lambda: "",
    )
    async with model:
        start = clock.monotonic()
        with pytest.raises(ModelTimeout, match="small: no answer within 20 s; it is still starting"):
            await model.complete([ChatMessage("user", "hello")], max_tokens=50)
        assert clock.monotonic() - start >= 20


async def test_leaving_ends_a_process_that_is_still_loading(folder: Path) -> None:
    async with model_in(folder, "hangs") as model:
        question = asyncio.create_task(ask(model))
        await asyncio.sleep(0.2)
    with pytest.raises(ModelUnavailable, match="small is stopped"):
        await question


async def test_leaving_ends_a_question_in_progress(folder: Path) -> None:
    async with model_in(folder) as model:
        await ask(model)
        question = asyncio.create_task(ask(model, "wait"))
        await asyncio.sleep(0.1)
    with pytest.raises(ModelUnavailable, match="small is stopped"):
        await question


async def test_a_cancelled_question_is_cancelled(folder: Path) -> None:
    async with model_in(folder) as model:
        await ask(model)
        question = asyncio.create_task(ask(model, "wait"))
        await asyncio.sleep(0.1)
        question.cancel()
        with pytest.raises(asyncio.CancelledError):
            await question
        assert (await ask(model))["name"] == "small"


async def test_a_model_is_asked_inside_its_block_only(folder: Path) -> None:
    with pytest.raises(RuntimeError, match="outside its `async with` block"):
        await ask(model_in(folder))


async def test_nothing_is_left_behind(folder: Path) -> None:
    for behaviour in ("works", "dies", "hangs", "lacks"):
        async with model_in(folder, behaviour):
            await asyncio.sleep(0.2)
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
