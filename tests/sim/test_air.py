"""The air itself: presets, regions, and how it ends."""

import asyncio
import random

import pytest
from google.protobuf.json_format import MessageToDict

from meshai.airtime import PRESETS, Modem
from meshai.radio.packets import modem_from
from meshai.sim.air import PRESET_NAMES, Cause
from meshai.sim.mesh import SimulatedMesh
from meshai.sim.packets import make_routing
from meshai.sim.peers import Peer
from meshai.sim.settings import config, metadata
from meshai.testing import ManualClock
from tests.sim.clients import DeskClient, text_packet
from tests.test_airtime import TABLE


@pytest.mark.parametrize("preset", ["SHORT_TURBO", "LONG_FAST", "LONG_SLOW", "NARROW_SLOW"])
async def test_airtime_is_the_presets(clock: ManualClock, preset: str) -> None:
    async with SimulatedMesh(clock=clock, rng=random.Random(1), preset=preset) as mesh:
        mesh.node()
        ann = mesh.peer("Ann")
        sending = asyncio.ensure_future(ann.send_channel(0, "x" * 150))
        await clock.advance(30)
        await sending
        assert mesh.log[0].airtime_s == PRESETS[preset].airtime_s(16 + 157)


async def test_2_4_ghz(clock: ManualClock) -> None:
    async with SimulatedMesh(clock=clock, rng=random.Random(1), region="LORA_24") as mesh:
        assert (mesh.air.modem.bandwidth_khz, mesh.air.modem.is_2_4_ghz) == (812.5, True)


def test_unknown_preset_is_refused(clock: ManualClock) -> None:
    with pytest.raises(ValueError, match="TINY_FAST"):
        SimulatedMesh(clock=clock, rng=random.Random(1), preset="TINY_FAST")


async def test_two_nodes_with_one_number(still: SimulatedMesh) -> None:
    ann = still.peer("Ann")
    with pytest.raises(ValueError, match=f"{ann.number:#010x}"):
        still.peer("Impostor", number=ann.number)


async def test_error_of_the_user_is_passed_on_as_it_is(clock: ManualClock) -> None:
    async def use() -> None:
        async with SimulatedMesh(clock=clock, rng=random.Random(1)) as mesh:
            mesh.node()
            raise LookupError

    with pytest.raises(LookupError):
        await use()


async def test_error_within_ends_the_mesh_loudly(clock: ManualClock) -> None:
    async def break_down() -> None:
        raise LookupError

    async def use() -> None:
        async with SimulatedMesh(clock=clock, rng=random.Random(1)) as mesh:
            mesh.air.spawn(break_down(), "break down")
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as caught:
        await use()
    assert caught.group_contains(LookupError)


async def test_cancelling_the_user_ends_the_mesh(clock: ManualClock) -> None:
    async def use() -> None:
        async with SimulatedMesh(clock=clock, rng=random.Random(1)) as mesh:
            await mesh.node().listen_tcp()
            await asyncio.Event().wait()

    task = asyncio.create_task(use())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_leaving_leaves_nothing(clock: ManualClock) -> None:
    async with SimulatedMesh(clock=clock, rng=random.Random(1)) as mesh:
        node, ann = mesh.node(), mesh.peer("Ann")
        await node.listen_tcp()
        await node.open_pty()
        mesh.air.spawn(talk(ann), "talk")
        await clock.advance(1)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def talk(peer: Peer) -> None:
    await peer.send_channel(0, "x" * 200)


@pytest.mark.parametrize("preset", PRESET_NAMES)
async def test_airtime_on_air_is_the_tables_to_the_millisecond(clock: ManualClock, preset: str) -> None:
    *_, ack, b50, b150, b200, b230, _, _ = TABLE.get(preset, TABLE["LONG_FAST"])
    async with SimulatedMesh(clock=clock, rng=random.Random(1), preset=preset, by_distance=False) as mesh:
        ann = mesh.peer("Ann")
        for size in (50, 150, 200, 230):
            sending = asyncio.ensure_future(ann.send_channel(0, "x" * size))
            await clock.advance(40)
            await sending
        ann.send_packet(make_routing(ann.number, 9, 7, 0, packet_id=8), Cause.ACK)
        await clock.advance(60)
    on_air = [round(entry.airtime_s * 1000) for entry in mesh.log]
    assert on_air == [b50, b150, b200, b230, ack]


async def test_long_run_keeps_only_the_newest(clock: ManualClock) -> None:
    async with SimulatedMesh(clock=clock, rng=random.Random(1), keep_last=3) as mesh:
        node, ann = mesh.node(), mesh.peer("Ann")
        desk = DeskClient(node.firmware)
        for number in range(5):
            desk.send(text_packet(f"text {number}", packet_id=number + 1, hop_limit=0))
            await clock.advance(3)
        assert [entry.text for entry in mesh.log] == ["text 2", "text 3", "text 4"]
        assert [handed.payload for handed in node.handed_over] == [b"text 2", b"text 3", b"text 4"]
        assert [heard.text for heard in ann.inbox] == ["text 2", "text 3", "text 4"]
        assert len(ann.packets) == 3
        assert [(await ann.heard()).text for _ in range(3)] == ["text 2", "text 3", "text 4"]


@pytest.mark.parametrize(
    ("modem", "code"),
    [(Modem(9, 125.0, 7), 125), (Modem(12, 62.5, 8), 62), (Modem(7, 31.25, 5), 31), (Modem(8, 500.0, 6), 500)],
)
async def test_custom_modem_is_told_and_decides_airtime(clock: ManualClock, modem: Modem, code: int) -> None:
    async with SimulatedMesh(clock=clock, rng=random.Random(1), modem=modem) as mesh:
        node, ann = mesh.node(), mesh.peer("Ann")
        lora = config(node.firmware, "lora").lora
        assert (lora.use_preset, lora.bandwidth, lora.spread_factor, lora.coding_rate) == (
            False,
            code,
            modem.spreading_factor,
            modem.coding_rate,
        )
        assert modem_from(MessageToDict(lora)) == modem, "and the bot reads it as what it is"
        sending = asyncio.ensure_future(ann.send_channel(0, "x" * 150))
        await clock.advance(120)
        await sending
        assert mesh.log[0].airtime_s == modem.airtime_s(16 + 157)


@pytest.mark.parametrize(("text_bytes", "frame_bytes"), [(50, 138), (166, 255), (167, 190)])
async def test_signed_broadcast(clock: ManualClock, text_bytes: int, frame_bytes: int) -> None:
    """Firmware 2.8 signs what leaves room for it; resends and relays carry the same signature."""
    async with SimulatedMesh(clock=clock, rng=random.Random(1), signs=True) as mesh:
        node, ann, _ = mesh.node(), mesh.peer("Ann"), mesh.peer("Far", distance=1)
        client = DeskClient(node.firmware)
        client.send(text_packet("x" * text_bytes, packet_id=7, want_ack=True))
        await clock.advance(60)
        carried = {entry.frame_bytes for entry in mesh.log if entry.packet_id == 7}
        assert {entry.cause for entry in mesh.log if entry.packet_id == 7} >= {Cause.CLIENT, Cause.RELAY}
        assert carried == {frame_bytes}
        assert [heard.text for heard in ann.inbox] == ["x" * text_bytes]


async def test_direct_messages_are_not_signed(clock: ManualClock) -> None:
    async with SimulatedMesh(clock=clock, rng=random.Random(1), signs=True) as mesh:
        node, ann = mesh.node(), mesh.peer("Ann")
        DeskClient(node.firmware).send(text_packet("x" * 50, to=ann.number, packet_id=7))
        await clock.advance(10)
        assert [entry.frame_bytes for entry in mesh.log if entry.packet_id == 7] == [72 + 12]
        assert metadata(node.firmware).firmware_version.startswith("2.8")
