"""The three bots of `benchmarks.delivery`, each run for one cell: on a simulated air, in time that jumps."""

import asyncio
import random
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from benchmarks.conversation import Conversations, Least, Outcome, Setting
from benchmarks.jumping import JumpingLoop, LoopClock
from benchmarks.reference import PART_CHARACTERS, reference
from meshai.app import node_radio
from meshai.clock import Clock
from meshai.config import Config
from meshai.loops import NoGuard
from meshai.messages import Delivery, Fate, IncomingMessage, Node, NodeNum, OutgoingPacket
from meshai.radio.base import OwnNode, Radio
from tests.acceptance.bot import config, running
from tests.model.serving import Answer, Asked, HttpServer, completion

MEMORY: Final = Path("/dev/shm")
"""So that the time of a disk does not count as the bot's; elsewhere than on Linux the usual place."""
LOOK_S: Final = 10.0
"""How often it is looked whether a bot has done."""


class Bot(StrEnum):
    OURS = "this bot"
    FORGETFUL = "fire and forget"
    REFERENCE = "reference"


class ForgetfulRadio:
    """A radio that is satisfied when the node has taken a packet: nothing is waited for, so nothing is sent again.

    It does not tell how busy the channel is either, so that the governor spares nothing.
    """

    def __init__(self, radio: Radio) -> None:
        self._radio = radio

    @property
    def me(self) -> OwnNode | None:
        return self._radio.me

    @property
    def is_connected(self) -> bool:
        return self._radio.is_connected

    @property
    def state(self) -> str:
        return self._radio.state

    def nodes(self) -> Mapping[NodeNum, Node]:
        return {number: replace(node, channel_utilisation_percent=None) for number, node in self._radio.nodes().items()}

    async def __aenter__(self) -> Self:
        await self._radio.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self._radio.__aexit__(kind, error, trace)

    def messages(self) -> AsyncIterator[IncomingMessage]:
        return self._radio.messages()

    def stop(self) -> None:
        self._radio.stop()

    async def ready(self) -> None:
        await self._radio.ready()

    async def reconnect(self) -> None:
        await self._radio.reconnect()

    async def send(self, packet: OutgoingPacket) -> None:
        await self._radio.send(packet)

    async def delivery(
        self, packet: OutgoingPacket, *, earlier: Sequence[OutgoingPacket] = (), within_s: float | None = None
    ) -> Delivery:
        return Delivery(Fate.HANDED_OVER)


def run(bot: Bot, setting: Setting, questions: int, seed: int, advance: Callable[[], None] = lambda: None) -> Outcome:
    """One cell, from an empty mesh to what was read; the same for the same arguments, but for the threads' timing."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(_run(bot, setting, questions, seed, advance))


async def _run(bot: Bot, setting: Setting, questions: int, seed: int, advance: Callable[[], None]) -> Outcome:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, JumpingLoop)
    clock = LoopClock(loop)
    topology = setting.topology()
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        async with topology.mesh(clock=clock, rng=random.Random(seed)) as mesh:
            node = topology.settle(mesh)
            port = await node.listen_tcp()
            settings = config(node_port=port, model_url="", folder=Path(folder))
            if bot is Bot.REFERENCE:
                least = Least(mesh.air.modem, PART_CHARACTERS, number="")
            else:
                least = Least(mesh.air.modem, settings.replies.max_characters)
            talk = Conversations(mesh, node, setting, least)
            async with _attached(bot, settings, talk.answer, clock, seed) as finished:
                loop.jump()
                return await talk.ask(questions, finished, advance)


@asynccontextmanager
async def _attached(
    bot: Bot, settings: Config, answer: Callable[[str], str], clock: Clock, seed: int
) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """The bot, ready; gives what to await until it has nothing more to do."""
    if bot is Bot.REFERENCE:
        port = int(settings.radio.address.rpartition(":")[2])
        async with reference(port, answer, clock) as other:
            yield other.finished
        return

    async def handler(asked: Asked, writer: asyncio.StreamWriter) -> Answer:
        return Answer(completion(answer(asked.json["messages"][-1]["content"])))

    async with HttpServer(handler) as model:
        changes: dict[str, object] = {"model": settings.model.model_copy(update={"base_url": f"{model.url}/v1"})}
        radio: Radio | None = None
        ours = random.Random(f"bot {seed}")  # not the mesh's numbers: packet ids would be the same
        if bot is Bot.FORGETFUL:
            changes["replies"] = settings.replies.model_copy(update={"retries": 0})
            radio = ForgetfulRadio(node_radio(settings, clock=clock, rng=ours))
        settings = settings.model_copy(update=changes)
        async with running(settings, clock, rng=ours, radio=radio, loop_guard=NoGuard()) as parts:
            await parts.radio.ready()

            async def finished() -> None:
                while parts.outbox.queue:
                    await clock.sleep(LOOK_S)

            yield finished
