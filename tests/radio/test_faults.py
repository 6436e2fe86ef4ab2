"""Every way a link fails, over TCP and a serial port, against a simulated node: afterwards the bot is reachable."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from meshai.clock import ScaledClock
from meshai.errors import RadioDisconnected
from meshai.messages import Delivery, Fate, IncomingMessage, OutgoingPacket
from meshai.radio.meshtastic import MeshtasticRadio
from meshai.sim.faults import SERIAL_FAULTS, TCP_FAULTS, LinkFault
from meshai.sim.mesh import SimulatedMesh
from meshai.sim.node import SimulatedNode
from meshai.sim.peers import Peer
from tests.radio.conftest import Attach, leftovers, open_sockets, until

PATIENCE_S = 20.0
"""In the machine's seconds, far above what any recovery takes."""


@pytest.fixture
async def mesh(clock: ScaledClock) -> AsyncIterator[SimulatedMesh]:
    async with SimulatedMesh(clock=clock, rng=random.Random(7), preset="SHORT_FAST") as simulated:
        yield simulated


class Asker:
    """Asks the bot things by direct message, and answers for it."""

    def __init__(self, mesh: SimulatedMesh, radio: MeshtasticRadio, peer: Peer) -> None:
        self.mesh = mesh
        self.radio = radio
        self.peer = peer
        self.heard = radio.messages()
        self.ids = random.Random(5)

    async def asks_and_is_answered(self, text: str) -> Delivery:
        """The question may have to wait in the node until the link is back."""
        async with asyncio.timeout(PATIENCE_S):
            await self.mesh.clock.sleep(2.5)  # a node drops a text that follows another within 2 s
            await self.peer.send_direct(text)
            while (message := await anext(self.heard)).text != text:
                pass
            delivery = await self._answer(message)
            while (await self.peer.heard(timeout_s=3600)).text != f"answer to {text}":
                pass
        return delivery

    async def _answer(self, message: IncomingMessage) -> Delivery:
        while True:
            packet_id = self.ids.getrandbits(32) or 1
            packet = OutgoingPacket(message.reply_address(), f"answer to {message.text}", packet_id=packet_id)
            try:
                await self.radio.send(packet)
            except RadioDisconnected:  # as the outbox does: wait for the link and try again
                await self.radio.ready()
                await self.mesh.clock.sleep(2.5)
            else:
                return await self.radio.delivery(packet)


async def came_back(node: SimulatedNode, radio: MeshtasticRadio, fault: LinkFault, seconds: float) -> None:
    await node.fault(fault, seconds=seconds)
    async with asyncio.timeout(PATIENCE_S):
        await radio.ready()


@pytest.mark.parametrize("fault", sorted(TCP_FAULTS))
async def test_after_any_fault_of_a_network_link(
    mesh: SimulatedMesh, attach: Attach, clock: ScaledClock, fault: LinkFault
) -> None:
    node, anna = mesh.node(), mesh.peer("Anna")
    port = await node.listen_tcp()
    async with attach(f"tcp:127.0.0.1:{port}") as radio:
        asker = Asker(mesh, radio, anna)
        await came_back(node, radio, fault, 6.0)
        assert (await asker.asks_and_is_answered("still there?")).fate in (Fate.DELIVERED, Fate.RELAYED)
        assert radio.me is not None
        assert radio.me.node.number == node.number
    assert node.peak_connections == 1


@pytest.mark.parametrize("fault", sorted(SERIAL_FAULTS))
async def test_after_any_fault_of_a_serial_link(
    mesh: SimulatedMesh, attach: Attach, clock: ScaledClock, fault: LinkFault, tmp_path: Path
) -> None:
    node, anna = mesh.node(), mesh.peer("Anna")
    path = await node.open_pty(tmp_path / "usb-radio")
    async with attach(str(path)) as radio:
        asker = Asker(mesh, radio, anna)
        await came_back(node, radio, fault, 6.0)
        assert (await asker.asks_and_is_answered("still there?")).fate in (Fate.DELIVERED, Fate.RELAYED)


async def test_many_faults_in_a_row_leave_nothing_behind(
    mesh: SimulatedMesh, attach: Attach, clock: ScaledClock
) -> None:
    node, anna = mesh.node(), mesh.peer("Anna")
    port = await node.listen_tcp()
    rng = random.Random(3)
    async with attach(f"tcp:127.0.0.1:{port}") as radio:
        asker = Asker(mesh, radio, anna)
        await asker.asks_and_is_answered("at first")
        before, sockets = leftovers(), open_sockets()
        for number, fault in enumerate([*sorted(TCP_FAULTS)] * 2):
            await came_back(node, radio, fault, rng.uniform(0.5, 2.0))
            if number % 4 == 0:
                await asker.asks_and_is_answered(f"question {number}")
        await asker.asks_and_is_answered("at last")
        assert leftovers() == before
        assert open_sockets() == sockets
        assert radio.counts.stuck_threads == 0
    assert node.peak_connections == 1


async def test_a_serial_radio_that_falls_silent_is_noticed_and_opened_again(
    mesh: SimulatedMesh, attach: Attach, clock: ScaledClock, tmp_path: Path
) -> None:
    node, anna = mesh.node(), mesh.peer("Anna")
    path = await node.open_pty(tmp_path / "usb-radio")
    async with attach(str(path)) as radio:
        asker = Asker(mesh, radio, anna)
        silence = asyncio.create_task(node.fault(LinkFault.MUTE, seconds=80))
        started = clock.monotonic()
        await until(lambda: not radio.is_connected)
        assert clock.monotonic() - started < 60
        await silence
        await radio.ready()
        assert radio.counts.losses == 1
        assert (await asker.asks_and_is_answered("still there?")).fate is Fate.DELIVERED


async def test_a_serial_radio_that_is_plugged_in_late(mesh: SimulatedMesh, attach: Attach, tmp_path: Path) -> None:
    node, anna = mesh.node(), mesh.peer("Anna")
    path = tmp_path / "usb-radio"
    ports: list[str] = []
    async with attach("auto", is_ready=False, find_ports=lambda: ports) as radio:
        await until(lambda: "plug it in" in radio.state)
        ports.append(str(await node.open_pty(path)))
        await radio.ready()
        assert str(path) not in radio.state, "the setting is named, not the port found"
        assert (await Asker(mesh, radio, anna).asks_and_is_answered("there now?")).fate is Fate.DELIVERED
    assert [text.text for text in anna.inbox] == ["answer to there now?"]
