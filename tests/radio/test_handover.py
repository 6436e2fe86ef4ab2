"""Handing over while the library is slower than the node."""

import asyncio
from collections.abc import Callable

import pytest

from meshai.clock import ScaledClock
from meshai.entries import TcpAddress
from meshai.errors import RadioDisconnected
from meshai.messages import Address, Delivery, Direct, Fate, Node, OutgoingPacket
from meshai.radio.base import OwnNode
from meshai.radio.handover import WRITE_S, HandOver
from meshai.radio.link import Event, Link, QueueStatus, Transport
from tests.radio.conftest import LIMITS

ME = OwnNode(Node(0x5E400001), None)
PACKET = OutgoingPacket(Address(Direct(0xA1B2C3D4), 200), "hi", packet_id=9)


class SlowLink(Link):
    """A link whose thread does not come back from what it was asked to do."""

    def __init__(self, clock: ScaledClock) -> None:
        self.events: list[Event] = []
        super().__init__(TcpAddress("127.0.0.1", 9), LIMITS, clock=clock, on_event=self.events.append)
        self.calls = 0

    async def call(self, action: Callable[[Transport], None]) -> None:
        self.calls += 1
        await asyncio.Event().wait()


async def test_a_write_that_does_not_return_is_no_lost_link_when_the_node_says_it_has_the_packet() -> None:
    clock = ScaledClock(100)
    hand_over, link = HandOver(clock), SlowLink(clock)
    began = clock.monotonic()
    sending = asyncio.create_task(hand_over.send(link, PACKET, ME))
    async with asyncio.timeout(5):
        while not link.calls:
            await asyncio.sleep(0)
    hand_over.on_queue_status(QueueStatus(PACKET.packet_id, 0, 15))
    await sending
    assert clock.monotonic() - began >= WRITE_S
    assert not link.lost.done()
    assert link.calls == 1


async def test_only_a_link_lost_since_the_packet_was_asked_about_casts_doubt_on_it() -> None:
    hand_over = HandOver(ScaledClock(100))
    hand_over.lost()
    assert await hand_over.delivery(PACKET, None, within_s=1) == Delivery(Fate.UNCONFIRMED)
    hand_over.lost()
    assert await hand_over.delivery(PACKET, None, within_s=1) == Delivery(Fate.UNCONFIRMED, is_doubtful=True)


async def test_a_write_that_does_not_return_and_of_which_the_node_says_nothing_is_a_lost_link() -> None:
    clock = ScaledClock(100)
    hand_over, link = HandOver(clock), SlowLink(clock)
    with pytest.raises(RadioDisconnected, match="takes nothing in"):
        await hand_over.send(link, PACKET, ME)
    assert link.lost.result().reason == "the node takes nothing in"
