"""What every radio promises, asked of each of them."""

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from meshai.clock import ScaledClock
from meshai.config import RadioSettings
from meshai.errors import PacketTooLong
from meshai.messages import Delivery, Fate, IncomingMessage, OutgoingPacket, TextLimits
from meshai.radio.base import Radio
from meshai.radio.console import ConsoleRadio
from meshai.radio.meshtastic import MeshtasticRadio
from meshai.sim.mesh import SimulatedMesh
from meshai.sim.peers import Peer
from meshai.testing import FakeRadio
from tests.radio.conftest import leftovers, until

LIMITS = TextLimits(channel_bytes=160, direct_bytes=200)


class Person(ABC):
    """Somebody who talks with the radio's owner by direct message."""

    radio: Radio

    @abstractmethod
    async def says(self, text: str) -> None: ...

    @abstractmethod
    def heard(self) -> list[str]: ...


class AtAKeyboard(Person):
    def __init__(self, clock: ScaledClock) -> None:
        self._lines: asyncio.Queue[str] = asyncio.Queue()
        self._shown: list[str] = []
        self.radio = ConsoleRadio(LIMITS, clock=clock, lines=self._typed(), show=self._shown.append)

    async def _typed(self) -> AsyncIterator[str]:
        while True:
            yield await self._lines.get()

    async def says(self, text: str) -> None:
        self._lines.put_nowait(text)

    def heard(self) -> list[str]:
        return self._shown


class InMemory(Person):
    def __init__(self) -> None:
        self.radio: FakeRadio = FakeRadio()

    async def says(self, text: str) -> None:
        self.radio.hear(text)

    def heard(self) -> list[str]:
        return [packet.text for packet in self.radio.sent]


class OnTheMesh(Person):
    def __init__(self, address: str, peer: Peer, clock: ScaledClock) -> None:
        self._peer = peer
        self.radio = MeshtasticRadio(RadioSettings(address=address), LIMITS, clock=clock, rng=random.Random(1))

    async def says(self, text: str) -> None:
        await self._peer.send_direct(text)

    def heard(self) -> list[str]:
        return [text.text for text in self._peer.inbox]


Meet = Callable[[], Awaitable[Person]]


@pytest.fixture(params=["tcp", "serial", "console", "fake"])
async def meet(request: pytest.FixtureRequest, clock: ScaledClock, tmp_path: Path) -> AsyncIterator[Meet]:
    async with AsyncExitStack() as stack:

        async def met() -> Person:
            if request.param == "console":
                return AtAKeyboard(clock)
            if request.param == "fake":
                return InMemory()
            mesh = await stack.enter_async_context(
                SimulatedMesh(clock=clock, rng=random.Random(2), preset="SHORT_FAST")
            )
            node, anna = mesh.node(), mesh.peer("Anna")
            if request.param == "tcp":
                address = f"tcp:127.0.0.1:{await node.listen_tcp()}"
            else:
                address = str(await node.open_pty(tmp_path / "radio"))
            return OnTheMesh(address, anna, clock)

        yield met


def answer(message: IncomingMessage, text: str) -> OutgoingPacket:
    return OutgoingPacket(message.reply_address(), text, packet_id=random.Random(text).getrandbits(31) + 1)


async def test_a_radio_keeps_its_promises(meet: Meet) -> None:
    person = await meet()
    before = leftovers()
    async with person.radio as radio:
        assert "\n" not in radio.state
        async with asyncio.timeout(20):
            await radio.ready()
        assert radio.is_connected
        assert radio.me is not None
        assert radio.me.node.number in radio.nodes()
        texts = aiter(radio.messages())

        await person.says("héllo 👍")
        async with asyncio.timeout(20):
            message = await anext(texts)
        assert (message.text, message.is_direct, message.is_stale, message.is_tapback) == (
            "héllo 👍",
            True,
            False,
            False,
        )
        assert message.limits == LIMITS
        assert message.sender != radio.me.node.number
        assert message.reply_address().limit_bytes == LIMITS.direct_bytes

        with pytest.raises(PacketTooLong):
            await radio.send(answer(message, "ж" * 101))
        packet = answer(message, "ж" * 100)
        await radio.send(packet)
        assert await radio.delivery(packet) == Delivery(Fate.DELIVERED)
        await until(lambda: person.heard() == ["ж" * 100])
    assert leftovers() == before
    await radio.__aexit__(None, None, None)
    assert leftovers() == before


async def test_after_stop_the_texts_end_and_sending_still_works(meet: Meet) -> None:
    person = await meet()
    async with person.radio as radio:
        async with asyncio.timeout(20):
            await radio.ready()
        texts = aiter(radio.messages())
        await person.says("question")
        async with asyncio.timeout(20):
            message = await anext(texts)
        radio.stop()
        async with asyncio.timeout(5):
            assert [text async for text in texts] == []
        await radio.send(answer(message, "goodbye"))
        await until(lambda: person.heard() == ["goodbye"])


async def test_a_new_link_carries_what_the_old_one_did(meet: Meet) -> None:
    person = await meet()
    async with person.radio as radio:
        async with asyncio.timeout(20):
            await radio.ready()
            await radio.reconnect()
        assert radio.is_connected
        texts = aiter(radio.messages())
        await person.says("question")
        async with asyncio.timeout(20):
            message = await anext(texts)
        await radio.send(answer(message, "over the new link"))
        await until(lambda: person.heard() == ["over the new link"])
