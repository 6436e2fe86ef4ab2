"""What every language model promises, asked of each adapter."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshai.clock import ScaledClock
from meshai.config import ModelSettings
from meshai.errors import ModelError, ModelTimeout
from meshai.model.base import ChatMessage, Completion, LanguageModel
from meshai.model.embedded import EmbeddedModel
from meshai.model.openai import OpenAIModel
from meshai.model.weights import SMOLLM2
from tests.model.serving import Answer, Asked, HttpServer, completion

SPEED = 20
HELLO = [ChatMessage("user", "hello")]
Opening = Callable[[], Any]
"""Gives the model inside an `async with`; what it is asked as `wait` is never answered."""


@asynccontextmanager
async def openai_model(folder: Path) -> AsyncIterator[LanguageModel]:
    async def handler(asked: Asked, writer: asyncio.StreamWriter) -> Answer:
        if asked.json["messages"][-1]["content"] == "wait":
            await asyncio.sleep(3600)
        return Answer(completion())

    async with HttpServer(handler) as server:
        settings = ModelSettings(base_url=f"{server.url}/v1", name="fake", timeout_s=60)
        async with OpenAIModel(settings, clock=ScaledClock(SPEED)) as model:
            yield model


@asynccontextmanager
async def embedded_model(folder: Path) -> AsyncIterator[LanguageModel]:
    tiny = replace(SMOLLM2, size_bytes=4)
    (folder / tiny.file).write_bytes(b"GGUF")
    engine = str(Path(__file__).with_name("fake_engine.py"))
    async with EmbeddedModel(
        ModelSettings(embedded=tiny.name, timeout_s=60),
        clock=ScaledClock(SPEED),
        folder=folder,
        catalogue=(tiny,),
        program=(sys.executable, engine, "works"),
        engine_trouble=lambda: "",
    ) as model:
        yield model


@pytest.fixture(params=[openai_model, embedded_model], ids=["openai", "embedded"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opening:
    def opening() -> Any:
        return request.param(tmp_path)

    return opening


async def test_it_answers_with_text_and_says_who_it_is(opened: Opening) -> None:
    async with opened() as model:
        answer = await model.complete(HELLO, max_tokens=50)
        assert isinstance(answer, Completion)
        assert answer.text
        assert model.name
        assert model.trouble == ""
        assert model.context_tokens >= 512


async def test_it_refuses_roles_that_do_not_alternate(opened: Opening) -> None:
    async with opened() as model:
        with pytest.raises(ValueError, match="roles must alternate"):
            await model.complete([*HELLO, *HELLO], max_tokens=50)


async def test_it_answers_in_time_or_not_at_all(opened: Opening) -> None:
    async with opened() as model:
        with pytest.raises(ModelTimeout):
            await model.complete([ChatMessage("user", "wait")], max_tokens=50)
        assert (await model.complete(HELLO, max_tokens=50)).text


async def test_one_who_waits_does_not_keep_others_waiting(opened: Opening) -> None:
    async with opened() as model:
        waiting = asyncio.create_task(model.complete([ChatMessage("user", "wait")], max_tokens=50))
        await asyncio.sleep(0)
        assert (await model.complete(HELLO, max_tokens=50)).text
        assert not waiting.done()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_leaving_ends_what_it_started(opened: Opening) -> None:
    before = asyncio.all_tasks()
    async with opened() as model:
        await model.complete(HELLO, max_tokens=50)
    for _ in range(3):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_after_leaving_only_our_errors_come(tmp_path: Path) -> None:
    async with embedded_model(tmp_path) as model:
        pass
    with pytest.raises(ModelError):
        await model.complete(HELLO, max_tokens=50)
