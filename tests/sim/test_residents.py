"""What other nodes do by themselves, with our node among them (time stands still)."""

import asyncio
from collections import Counter

from meshtastic.protobuf import storeforward_pb2, telemetry_pb2

from meshai.sim.mesh import SimulatedMesh
from meshai.sim.packets import TELEMETRY, TEXT, sender_of
from meshai.sim.residents import STORE_FORWARD, chatter, echo, replay, store_and_forward, tell_telemetry
from meshai.testing import ManualClock
from tests.sim.clients import DeskClient, text_packet


async def test_telemetry_about_as_often_as_said(still: SimulatedMesh, clock: ManualClock) -> None:
    node, ann = still.node(), still.peer("Ann", battery_percent=42)
    still.air.spawn(tell_telemetry(ann, 600), "telemetry")
    desk = DeskClient(node.firmware)
    told = []
    for _ in range(60):
        await clock.advance(60)
        told += [message.packet for message in desk.take() if sender_of(message.packet) == ann.number]
    assert 5 <= len(told) <= 7
    assert {packet.decoded.portnum for packet in told} == {TELEMETRY}
    metrics = telemetry_pb2.Telemetry.FromString(told[-1].decoded.payload).device_metrics
    assert metrics.battery_level == 42
    assert metrics.air_util_tx > 0


async def test_telemetry_is_polite(still: SimulatedMesh, clock: ManualClock) -> None:
    ann = still.peer("Ann")
    still.air.spawn(tell_telemetry(ann, 50), "telemetry")
    for _ in range(10):
        ann.sensed(16)
        await clock.advance(59)
    assert still.log == []


async def test_chatter_is_on_the_primary_channel(still: SimulatedMesh, clock: ManualClock) -> None:
    node, ann = still.node(), still.peer("Ann")
    still.air.spawn(chatter(ann, 300, ("one", "two")), "chatter")
    await clock.advance(4 * 3600)
    said = [entry for entry in still.log if entry.is_text]
    assert 30 <= len(said) <= 70
    assert {(entry.text, entry.channel) for entry in said} == {("one", 0), ("two", 0)}
    assert node.database.nodes[ann.number].last_heard > 0


async def test_bot_that_answers_everything(still: SimulatedMesh, clock: ManualClock) -> None:
    node, bot = still.node(channels=("", "bots")), still.peer("Bot")
    still.air.spawn(echo(bot), "echo")
    desk = DeskClient(node.firmware)
    for number, packet in enumerate(
        (
            text_packet("direct", to=bot.number, packet_id=1),
            text_packet("to all", packet_id=2, channel=1),
            text_packet("x" * 200, to=bot.number, packet_id=3),
        )
    ):
        desk.send(packet)
        await clock.advance(20 + number)
    desk.take()
    answers = [message.packet for message in desk.taken if message.packet.decoded.portnum == TEXT]
    assert [(answer.to, answer.channel, answer.decoded.reply_id) for answer in answers] == [
        (node.number, 0, 1),
        (0xFFFFFFFF, 1, 2),
        (node.number, 0, 3),
    ]
    assert [len(answer.decoded.payload) for answer in answers] == [16, 16, 180]


async def test_two_such_bots_never_stop(still: SimulatedMesh, clock: ManualClock) -> None:
    one, other = still.peer("One"), still.peer("Other")
    for bot in (one, other):
        still.air.spawn(echo(bot), "echo")
    task = asyncio.ensure_future(one.send_channel(0, "hi"))
    await clock.advance(120)
    await task
    spoken = Counter(entry.by for entry in still.log if entry.is_text and entry.by == entry.sender)
    assert min(spoken[one.number], spoken[other.number]) > 10


async def test_store_and_forward_repeats_what_was_said(still: SimulatedMesh, clock: ManualClock) -> None:
    node, ann, server = still.node(), still.peer("Ann", role="CLIENT_MUTE"), still.peer("Server", role="CLIENT_MUTE")
    still.air.spawn(store_and_forward(server), "server")
    node.firmware.is_deaf = True
    for text in ("one", "two"):
        task = asyncio.ensure_future(ann.send_channel(0, text))
        await clock.advance(5)
        await task
    node.firmware.is_deaf = False
    ids = [entry.packet_id for entry in still.log]
    desk = DeskClient(node.firmware)
    desk.send(text_packet("SF", to=server.number, packet_id=1))
    await clock.advance(20)
    replays = [message.packet for message in desk.take() if message.packet.decoded.portnum == STORE_FORWARD]
    assert [(sender_of(packet), packet.id, packet.to) for packet in replays] == [
        (ann.number, packet_id, node.number) for packet_id in ids[:2]
    ], "by their first sender and id, though another node sends them"
    texts = [storeforward_pb2.StoreAndForward.FromString(packet.decoded.payload) for packet in replays]
    assert [text.text for text in texts] == [b"one", b"two"]
    assert {text.rr for text in texts} == {storeforward_pb2.StoreAndForward.RequestResponse.ROUTER_TEXT_BROADCAST}


async def test_replay_of_what_was_heard_already_is_dropped(still: SimulatedMesh, clock: ManualClock) -> None:
    node, ann, server = still.node(), still.peer("Ann"), still.peer("Server")
    task = asyncio.ensure_future(ann.send_channel(0, "heard"))
    await clock.advance(10)
    await task
    desk = DeskClient(node.firmware)
    desk.take()
    replaying = asyncio.ensure_future(replay(server, node.number, server.inbox))
    await clock.advance(10)
    await replaying
    assert [message.packet.decoded.portnum for message in desk.take() if message.HasField("packet")] == []
