"""What becomes of packets on a simulated mesh, through the real library and a node that keeps the firmware's rules."""

import random
from collections.abc import AsyncIterator

import pytest

from meshai.clock import ScaledClock
from meshai.errors import NotDelivered
from meshai.messages import Address, Channel, Conversation, Delivery, Direct, Fate, OutgoingPacket
from meshai.radio.meshtastic import MeshtasticRadio
from meshai.sim.air import Cause
from meshai.sim.mesh import SimulatedMesh
from meshai.sim.node import SimulatedNode
from tests.radio.conftest import Attach


@pytest.fixture
def clock() -> ScaledClock:
    """Slow enough for the 40 ms that TCP may hold back a small packet."""
    return ScaledClock(12.0)


@pytest.fixture
async def mesh(clock: ScaledClock) -> AsyncIterator[SimulatedMesh]:
    async with SimulatedMesh(clock=clock, rng=random.Random(7), preset="SHORT_FAST") as simulated:
        yield simulated


@pytest.fixture
async def sim_node(mesh: SimulatedMesh) -> SimulatedNode:
    return mesh.node(channels=("", "bots"))


@pytest.fixture
async def radio(sim_node: SimulatedNode, attach: Attach) -> AsyncIterator[MeshtasticRadio]:
    port = await sim_node.listen_tcp()
    async with attach(f"tcp:127.0.0.1:{port}") as radio:
        yield radio


def packet(to: Conversation, text: str = "hello", number: int = 9) -> OutgoingPacket:
    channel = to.index if isinstance(to, Channel) else 0
    return OutgoingPacket(Address(to, 227, reply_to=5, channel=channel), text, packet_id=number)


async def fate(radio: MeshtasticRadio, sent: OutgoingPacket) -> Delivery:
    """How it ended; a nak that overtakes the queue status counts as the same failure."""
    try:
        await radio.send(sent)
    except NotDelivered as error:
        return Delivery(Fate.FAILED, str(error))
    return await radio.delivery(sent)


@pytest.mark.parametrize("distance", [0, 2])
async def test_a_direct_message_is_acked_by_its_destination(
    mesh: SimulatedMesh, radio: MeshtasticRadio, distance: int
) -> None:
    anna = mesh.peer("Anna", distance=distance)
    assert await fate(radio, packet(Direct(anna.number), "x" * 215)) == Delivery(Fate.DELIVERED)
    assert (await anna.heard()).reply_id == 5


@pytest.mark.parametrize("distance", [0, 1])
async def test_an_answer_lets_the_ack_of_its_question_pass(clock: ScaledClock, attach: Attach, distance: int) -> None:
    async with SimulatedMesh(clock=clock, rng=random.Random(7), preset="LONG_MODERATE") as mesh:
        node = mesh.node()
        anna = mesh.peer("Anna", distance=distance)
        async with attach(f"tcp:127.0.0.1:{await node.listen_tcp()}") as radio:
            await anna.send_direct("hello")
            await anext(radio.messages())
            await radio.send(packet(Direct(anna.number)))
            await anna.heard()
    heard_at = max(
        entry.at + entry.airtime_s for entry in mesh.log if entry.text == "hello" and entry.sender == anna.number
    )
    answer = next(entry for entry in mesh.log if entry.cause is Cause.CLIENT)
    assert answer.at - heard_at >= mesh.air.modem.ack_passes_s(distance) - 0.5


async def test_a_direct_message_nobody_answers(mesh: SimulatedMesh, radio: MeshtasticRadio) -> None:
    anna = mesh.peer("Anna")
    anna.is_deaf = True
    assert await fate(radio, packet(Direct(anna.number))) == Delivery(Fate.FAILED, "MAX_RETRANSMIT")


async def test_a_direct_message_relayed_to_one_who_does_not_hear(mesh: SimulatedMesh, radio: MeshtasticRadio) -> None:
    mesh.peer("Relay")
    anna = mesh.peer("Anna", distance=1)
    anna.is_deaf = True
    assert await fate(radio, packet(Direct(anna.number))) == Delivery(Fate.RELAYED)


async def test_a_direct_message_to_a_stranger(mesh: SimulatedMesh, radio: MeshtasticRadio) -> None:
    stranger = mesh.peer("Stranger", is_known=False)
    assert await fate(radio, packet(Direct(stranger.number))) == Delivery(Fate.FAILED, "PKI_SEND_FAIL_PUBLIC_KEY")


async def test_a_direct_message_to_one_who_forgot_us(
    mesh: SimulatedMesh, sim_node: SimulatedNode, radio: MeshtasticRadio
) -> None:
    anna = mesh.peer("Anna")
    anna.forget_key(sim_node.number)
    assert await fate(radio, packet(Direct(anna.number))) == Delivery(Fate.FAILED, "PKI_UNKNOWN_PUBKEY")


async def test_a_text_too_soon_after_another_is_known_to_be_dropped(
    mesh: SimulatedMesh, radio: MeshtasticRadio
) -> None:
    anna = mesh.peer("Anna")
    await radio.send(packet(Direct(anna.number), "one", 1))
    assert await fate(radio, packet(Direct(anna.number), "two", 2)) == Delivery(Fate.FAILED, "RATE_LIMIT_EXCEEDED")


async def test_channel_texts(mesh: SimulatedMesh, radio: MeshtasticRadio, clock: ScaledClock) -> None:
    anna = mesh.peer("Anna")
    assert await fate(radio, packet(Channel(1), "x" * 227)) == Delivery(Fate.HANDED_OVER)
    assert (await anna.heard()).channel == 1
    await clock.sleep(2.5)
    assert await fate(radio, packet(Channel(3), number=10)) == Delivery(Fate.FAILED, "NO_CHANNEL")


async def test_a_channel_text_too_soon_after_another_is_known_to_be_dropped(
    mesh: SimulatedMesh, radio: MeshtasticRadio
) -> None:
    await radio.send(packet(Channel(1), "one", 1))
    assert await fate(radio, packet(Channel(1), "two", 2)) == Delivery(Fate.FAILED, "RATE_LIMIT_EXCEEDED")
