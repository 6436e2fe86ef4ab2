"""The whole program against a simulated node over TCP and a real HTTP model server, for tests that ask much of it.

`bots.py` has it alone in a process that a test may kill: the same parts on a shared time.
"""

import asyncio
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from meshai import app
from meshai.clock import Clock, ScaledClock
from meshai.config import (
    AirtimeSettings,
    Config,
    MemorySettings,
    ModelSettings,
    RadioSettings,
    ReplySettings,
    StorageSettings,
)
from meshai.loops import LoopGuard
from meshai.notify import Notifier
from meshai.radio.base import Radio
from tests.model.serving import Answer, Asked, HttpServer, completion


def config(
    *, node_port: int, model_url: str, folder: Path, timeout_s: float = 600, answer_within_s: int = 600
) -> Config:
    return Config(
        radio=RadioSettings(address=f"tcp:127.0.0.1:{node_port}", answer_within_s=answer_within_s),
        model=ModelSettings(base_url=model_url, name="echo", timeout_s=timeout_s),
        replies=ReplySettings(max_packets=3),
        memory=MemorySettings(tell=False),
        # Far more is asked here in an hour than people ask.
        airtime=AirtimeSettings(share_percent=50, answers_per_node_hour=1000, answers_per_hour=10_000),
        storage=StorageSettings(path=folder / "meshai.db"),
    )


def echoing() -> HttpServer:
    """A model server that repeats the newest question, long enough for two or three packets."""

    async def handler(asked: Asked, writer: asyncio.StreamWriter) -> Answer:
        question = asked.json["messages"][-1]["content"].split(": ", 1)[-1]
        return Answer(completion(f"You asked {question}. {question} {question} {question}. That was it."))

    return HttpServer(handler)


@asynccontextmanager
async def running(
    settings: Config,
    clock: Clock,
    *,
    rng: random.Random | None = None,
    radio: Radio | None = None,
    loop_guard: LoopGuard | None = None,
) -> AsyncIterator[app.Parts]:
    """The bot in this process; `rng`, `radio` and `loop_guard` take the place of the usual ones."""
    stop = asyncio.Event()
    built: asyncio.Future[app.Parts] = asyncio.get_running_loop().create_future()

    async def watch(parts: app.Parts) -> None:
        built.set_result(parts)
        await asyncio.Event().wait()

    task = asyncio.create_task(
        app.run(
            settings,
            clock=clock,
            rng=rng or random.Random(1003),
            stop=stop,
            notifier=Notifier({}),
            radio=radio,
            loop_guard=loop_guard,
            watch=watch,
        )
    )
    try:
        await asyncio.wait((built, task), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        yield await built
    finally:
        stop.set()
        await task


async def alone(told: dict[str, object]) -> None:
    """The bot as all there is in a process, until SIGTERM; `told` survives JSON: port, URL, folder and the time."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await app.run(
        config(
            node_port=int(str(told["node_port"])),
            model_url=str(told["model_url"]),
            folder=Path(str(told["folder"])),
            answer_within_s=86_400,  # a bot that is killed all the time is in arrears
        ),
        clock=ScaledClock(
            float(str(told["speed"])), start=float(str(told["start"])), origin=float(str(told["origin"]))
        ),
        rng=random.SystemRandom(),
        stop=stop,
        notifier=Notifier({}),
    )
