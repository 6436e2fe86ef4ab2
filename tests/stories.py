"""A running bot on a fake radio, for whole stories: real store, router, responder and outbox."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from meshai.app import Parts, built, serve
from meshai.clock import ScaledClock
from meshai.config import Config
from meshai.loops import NoGuard
from meshai.messages import Channel, Direct, Node
from meshai.model.base import ChatMessage
from meshai.notify import Notifier
from meshai.store.keeper import kept_database
from meshai.testing import FakeRadio, ScriptedModel

ANNA: Final = 0xA11A
BEN: Final = 0xBE17
PACKET_IDS: Final = itertools.count(1000)
"""Never again, also after a restart."""


def echo(messages: Sequence[ChatMessage]) -> str:
    return f"You said {messages[-1].content}"


class Story:
    """A running bot on a fake radio."""

    def __init__(self, parts: Parts, radio: FakeRadio, model: ScriptedModel, clock: ScaledClock) -> None:
        self.parts, self.radio, self.model, self.clock = parts, radio, model, clock

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not holds():
                await self.clock.sleep(0.2)

    async def quiet(self, seconds: float = 8) -> None:
        """Let everything pending come to its end."""
        await self.clock.sleep(seconds)
        async with asyncio.timeout(20):
            await self.parts.outbox.drained()

    def said_to(self, destination: Direct | Channel) -> list[str]:
        return [packet.text for packet in self.radio.sent if packet.address.destination == destination]

    async def ask(self, text: str, *, packets: int = 1) -> list[str]:
        """Anna asks; returns the texts that were sent then."""
        before = len(self.radio.sent)
        self.radio.hear(text, sender=ANNA, heard_at=self.clock.now(), packet_id=next(PACKET_IDS))
        await self.until(lambda: len(self.radio.sent) >= before + packets)
        await self.parts.outbox.drained()
        return [packet.text for packet in self.radio.sent[before:]]

    async def until_file_is_used(self) -> None:
        await self.until(lambda: not self.parts.database.is_stand_in)

    @property
    def last_prompt(self) -> list[str]:
        return [message.content for message in self.model.requests[-1][1:]]


@asynccontextmanager
async def story(
    folder: Path,
    *,
    answer: Callable[[Sequence[ChatMessage]], str | Exception] = echo,
    config: Config | None = None,
    radio: FakeRadio | None = None,
    has_model: bool = True,
    clock: ScaledClock | None = None,
    tells: bool = False,
) -> AsyncIterator[Story]:
    """`tells` lets the first answer say that notes are kept, beside what a test is about."""
    config = config or Config()
    config = config.model_copy(update={"memory": config.memory.model_copy(update={"tell": tells})})
    clock = clock or ScaledClock(50, start=1_800_000_000)
    radio = radio or FakeRadio(nodes=[Node(ANNA, "Anna"), Node(BEN, "Ben")])
    model, stop = ScriptedModel(answer), asyncio.Event()
    model.context_tokens = config.model.context_tokens
    async with (
        kept_database(folder / "meshai.db", clock=clock) as database,
        built(
            config,
            database=database,
            radio=radio,
            model=model if has_model else None,
            clock=clock,
            rng=random.Random(7),
            loop_guard=NoGuard(),
        ) as parts,
    ):
        task = asyncio.create_task(serve(parts, stop=stop, clock=clock, notifier=Notifier({})))
        try:
            yield Story(parts, radio, model, clock)
        finally:
            stop.set()
            await task
