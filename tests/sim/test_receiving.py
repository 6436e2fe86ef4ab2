"""What the people of a mesh send, as the real library presents it, and what their nodes do by themselves."""

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest
from meshtastic.protobuf import mesh_pb2

from meshai.errors import NotDelivered
from meshai.messages import BROADCAST
from meshai.sim.air import Cause
from meshai.sim.mesh import SimulatedMesh
from meshai.sim.packets import NODE_INFO, TELEMETRY, TEXT, RoutingError, make_packet
from meshai.testing import ManualClock
from tests.sim.clients import DeskClient, routings, statuses, text_packet
from tests.sim.conftest import Attach


async def done(clock: ManualClock, action: Coroutine[Any, Any, int], seconds: float = 5) -> int:
    """Let a peer do something, and time pass."""
    task = asyncio.ensure_future(action)
    await clock.advance(seconds)
    return await task


async def test_fields_of_a_channel_text(mesh: SimulatedMesh, attach: Attach) -> None:
    node = mesh.node(channels=("", "bots"))
    ann, far = mesh.peer("Ann", snr=-3.5), mesh.peer("Far", distance=2)
    async with attach(await node.listen_tcp()) as client:
        first = await ann.send_channel(1, "hello")
        await mesh.clock.sleep(10)
        second = await far.send_channel(0, "from afar", reply_id=first)
        await client.until(lambda: len(client.texts()) == 2)
        near, distant = [packet for packet in client.packets if "text" in packet["decoded"]]
    assert (near["id"], near["from"], near["to"], near["fromId"], near["toId"]) == (
        first,
        ann.number,
        BROADCAST,
        f"!{ann.number:08x}",
        "^all",
    )
    assert (near["channel"], near["rxSnr"], near["rxRssi"], near["hopStart"], near["hopLimit"]) == (1, -3.5, -120, 3, 3)
    assert abs(near["rxTime"] - mesh.clock.now()) < 60
    assert "pkiEncrypted" not in near
    assert (distant["id"], distant["decoded"]["replyId"]) == (second, first)
    assert distant["hopStart"] - distant["hopLimit"] == 2
    assert distant["relayNode"] != 0


async def test_fields_of_a_direct_text(mesh: SimulatedMesh, attach: Attach) -> None:
    node, ann = mesh.node(), mesh.peer("Ann")
    async with attach(await node.listen_tcp()) as client:
        packet_id = await ann.send_direct("psst")
        await client.until(lambda: client.texts() == ["psst"])
        packet = next(packet for packet in client.packets if "text" in packet["decoded"])
        await client.until(lambda: ann.answers_to(packet_id) == [0])
    assert (packet["to"], packet["pkiEncrypted"], packet["wantAck"]) == (node.number, True, True)
    assert packet["raw"].public_key == ann.identity.public_key
    assert packet.get("channel", 0) == 0


async def test_contents_of_every_kind(mesh: SimulatedMesh, attach: Attach) -> None:
    """Every content that must reach a client as it is; the telemetry nobody can read is lost in the library."""
    node = mesh.node()
    ann = mesh.peer("Ann")
    stranger = mesh.peer("Stranger", is_known=False)
    texts: list[str | bytes] = ["", "x" * 232, "👩‍🚀🇩🇪", "مرحبا", b"\x00\x01zero\x00", b"\xff\xfe broken", "\n \t"]
    async with attach(await node.listen_tcp()) as client:
        for text in texts:
            await ann.send_channel(0, text)
        await ann.send_channel(0, "👍", reply_id=0xDEAD, emoji=1)
        await ann.send_raw(make_packet(ann.number, BROADCAST, TELEMETRY, b"\xff\xff\xff", packet_id=1))
        await ann.send_raw(make_packet(ann.number, BROADCAST, 287, b"private", packet_id=2))
        await ann.send_raw(make_packet(ann.number, BROADCAST, 500, b"unheard of", packet_id=3))
        await ann.send_raw(make_packet(ann.number, BROADCAST, TEXT, b"other channel", packet_id=4, channel=3))
        await stranger.send_channel(0, "who am I?")
        await client.until(lambda: client.texts()[-1:] == ["who am I?"])
        packets = [packet for packet in client.packets if packet["from"] != node.number]
    by_payload = {packet["decoded"]["payload"]: packet for packet in packets if "decoded" in packet}
    for text in texts:
        assert (text if isinstance(text, bytes) else text.encode()) in by_payload
    assert "text" not in by_payload[b"\xff\xfe broken"]["decoded"]
    tapback = by_payload["👍".encode()]["decoded"]
    assert (tapback["emoji"], tapback["replyId"]) == (1, 0xDEAD)
    assert b"\xff\xff\xff" not in by_payload
    assert by_payload[b"private"]["decoded"]["portnum"] not in ("TEXT_MESSAGE_APP", "")
    assert b"unheard of" in by_payload
    (undecoded,) = [packet for packet in packets if "decoded" not in packet]
    assert len(undecoded["raw"].encrypted) == len(b"other channel") + 6
    assert by_payload[b"who am I?"]["fromId"] is None


async def test_node_without_a_clock_tells_no_time(mesh: SimulatedMesh, attach: Attach) -> None:
    node, ann = mesh.node(), mesh.peer("Ann")
    node.firmware.is_clock_set = False
    async with attach(await node.listen_tcp()) as client:
        await ann.send_channel(0, "when?")
        await client.until(lambda: client.texts() == ["when?"])
        assert "rxTime" not in client.packets[-1]
        await asyncio.to_thread(client.interface.localNode.setTime, 1_900_000_000)
        await ann.send_channel(0, "now?")
        await client.until(lambda: client.texts() == ["when?", "now?"])
        assert client.packets[-1]["rxTime"] >= 1_900_000_000


async def test_packet_by_mqtt_has_no_signal_report(still: SimulatedMesh, clock: ManualClock) -> None:
    node, ann = still.node(), still.peer("Ann")
    desk = DeskClient(node.firmware)
    await done(clock, ann.send_channel(0, "from the net", via_mqtt=True))
    (packet,) = [message.packet for message in desk.take()]
    assert (packet.via_mqtt, packet.rx_snr, packet.rx_rssi) == (True, 0, 0)


async def test_repeats_are_dropped_and_acked_again(still: SimulatedMesh, clock: ManualClock) -> None:
    node, ann = still.node(), still.peer("Ann")
    desk = DeskClient(node.firmware)
    for _ in range(2):
        await done(clock, ann.send_direct("once", packet_id=9))
    assert [message.packet.decoded.payload for message in desk.take() if message.packet.decoded.portnum == TEXT] == [
        b"once"
    ]
    assert len(ann.answers_to(9)) == 2


async def test_packet_put_before_the_client_twice(still: SimulatedMesh, clock: ManualClock) -> None:
    node, ann = still.node(), still.peer("Ann")
    desk = DeskClient(node.firmware)
    for hop_limit in (3, 2):
        node.firmware.deliver(make_packet(ann.number, BROADCAST, TEXT, b"x", packet_id=7, hop_limit=hop_limit))
    packets = [message.packet for message in desk.take()]
    assert [(packet.id, packet.hop_limit) for packet in packets] == [(7, 3), (7, 2)]


async def test_node_that_lacks_the_senders_key(still: SimulatedMesh, clock: ManualClock) -> None:
    node, ann = still.node(), still.peer("Ann")
    node.database.set_key(ann.number, b"")
    desk = DeskClient(node.firmware)
    packet_id = await done(clock, ann.send_direct("secret"))
    assert ann.answers_to(packet_id) == [RoutingError.PKI_UNKNOWN_PUBKEY]
    unreadable, info = [message.packet for message in desk.take() if message.HasField("packet")]
    assert (unreadable.HasField("decoded"), unreadable.channel) == (False, 0)
    assert info.decoded.portnum == NODE_INFO, "the sender's node tells its key by itself"
    packet_id = await done(clock, ann.send_direct("secret again"))
    assert ann.answers_to(packet_id) == [0]
    assert [message.packet.decoded.payload for message in desk.take()][:1] == [b"secret again"]


async def test_node_with_a_stale_key_of_the_sender(still: SimulatedMesh, clock: ManualClock) -> None:
    node, ann = still.node(), still.peer("Ann")
    node.database.set_key(ann.number, b"k" * 32)
    packet_id = await done(clock, ann.send_direct("secret"))
    assert ann.answers_to(packet_id) == [RoutingError.NO_CHANNEL]


async def test_sender_with_a_stale_key_of_the_node(still: SimulatedMesh, clock: ManualClock) -> None:
    node, ann = still.node(), still.peer("Ann")
    ann.hold_stale_key(node.number)
    packet_id = await done(clock, ann.send_direct("secret"))
    assert ann.answers_to(packet_id) == [RoutingError.NO_CHANNEL]
    ann.forget_key(node.number)
    with pytest.raises(NotDelivered, match="PKI_SEND_FAIL_PUBLIC_KEY"):
        await ann.send_direct("secret")


async def test_direct_text_with_the_channels_key_is_refused(still: SimulatedMesh, clock: ManualClock) -> None:
    node, ann = still.node(), still.peer("Ann")
    desk = DeskClient(node.firmware)
    packet_id = await done(clock, ann.send_direct("old style", pki=False))
    assert ann.answers_to(packet_id) == [RoutingError.NO_CHANNEL]
    assert [message.packet.HasField("decoded") for message in desk.take()][:1] == [False]


async def test_stranger_becomes_known(still: SimulatedMesh, clock: ManualClock) -> None:
    """A node first heard is asked for its node info; then both hold each other's key."""
    node, stranger = still.node(), still.peer("Stranger", "STR", is_known=False)
    desk = DeskClient(node.firmware)
    await done(clock, stranger.send_channel(0, "hello?"), seconds=0.6)
    assert not node.database.has_met(stranger.number)
    assert statuses(desk.send(text_packet("hi", stranger.number)))[-1][1] == 39
    await clock.advance(10)
    infos = [message.packet for message in desk.take() if message.packet.decoded.portnum == NODE_INFO]
    assert [mesh_pb2.User.FromString(info.decoded.payload).long_name for info in infos] == ["Stranger"]
    assert [entry.by for entry in still.log if entry.cause is Cause.NODE_INFO] == [node.number, stranger.number]
    desk.send(text_packet("hi again", stranger.number, packet_id=2, want_ack=True))
    await clock.advance(10)
    desk.take()
    assert (stranger.number, 2, 0) in routings(desk.taken)
    await done(clock, stranger.send_direct("hi yourself"))
    assert [message.packet.pki_encrypted for message in desk.take()][:1] == [True]


async def test_strangers_are_not_greeted_on_a_busy_channel(still: SimulatedMesh, clock: ManualClock) -> None:
    node, stranger = still.node(), still.peer("Stranger", is_known=False)
    node.firmware.ledger.heard(20)
    await done(clock, stranger.send_channel(0, "hello?"), seconds=10)
    assert Cause.NODE_INFO not in {entry.cause for entry in still.log}


async def test_people_hear_each_other(still: SimulatedMesh, clock: ManualClock) -> None:
    still.node()
    ann, bob = still.peer("Ann", distance=1), still.peer("Bob", channels=frozenset({0}))
    await done(clock, ann.send_channel(0, "hello Bob"))
    await done(clock, ann.send_channel(1, "not for Bob"))
    packet_id = await done(clock, ann.send_direct("just you", to=bob.number), seconds=20)
    assert [(heard.text, heard.is_direct) for heard in bob.inbox] == [("hello Bob", False), ("just you", True)]
    assert ann.answers_to(packet_id) == [0]
    assert ann.relayed == [packet_id]
    assert len(bob.unreadable) == 1


async def test_peer_resends_until_acked(still: SimulatedMesh, clock: ManualClock) -> None:
    node, ann = still.node(), still.peer("Ann")
    node.firmware.is_deaf = True
    packet_id = await done(clock, ann.send_direct("anyone?"), seconds=60)
    assert [entry.cause for entry in still.log] == [Cause.PEER, Cause.RESEND, Cause.RESEND]
    assert ann.undelivered == [packet_id]


async def test_hop_limit_ends_the_flood(still: SimulatedMesh, clock: ManualClock) -> None:
    still.node()
    ann, far = still.peer("Ann"), still.peer("Far", distance=3)
    await done(clock, ann.send_channel(0, "near", hop_limit=2), seconds=30)
    await done(clock, ann.send_channel(0, "far", hop_limit=3), seconds=30)
    assert [(heard.text, heard.hops) for heard in far.inbox] == [("far", 3)]


async def test_same_seed_same_story() -> None:
    async def story() -> list[tuple[float, int, str]]:
        clock = ManualClock()
        async with SimulatedMesh(clock=clock, rng=random.Random(5)) as mesh:
            node, ann = mesh.node(), mesh.peer("Ann", loss=0.3)
            desk = DeskClient(node.firmware)
            for number in range(10):
                desk.send(text_packet(f"text {number}", to=ann.number, want_ack=True))
                await done(clock, ann.send_channel(0, f"noise {number}"), 30)
            return [(entry.at, entry.by, entry.cause) for entry in mesh.log]

    first = await story()
    assert len(first) > 20
    assert await story() == first


async def test_observer_sees_what_the_log_holds(clock: ManualClock) -> None:
    seen: list[object] = []
    async with SimulatedMesh(clock=clock, rng=random.Random(5), observer=seen.append) as mesh:
        mesh.node()
        await done(clock, mesh.peer("Ann").send_channel(0, "hi"))
        assert seen == mesh.log
        assert len(seen) == 1


async def test_ciphertext_of_others(still: SimulatedMesh, clock: ManualClock) -> None:
    node, ann = still.node(), still.peer("Ann")
    desk = DeskClient(node.firmware)
    secret = mesh_pb2.MeshPacket(to=BROADCAST, id=5, channel=0x77, encrypted=bytes(40), hop_limit=0)
    setattr(secret, "from", ann.number)
    await done(clock, ann.send_raw(secret))
    (packet,) = [message.packet for message in desk.take()]
    assert (packet.HasField("decoded"), packet.encrypted) == (False, bytes(40))
    assert [(entry.frame_bytes, entry.port, entry.text) for entry in still.log] == [(56, 0, "")]


async def test_ack_to_somebody_very_far_has_hops_enough(still: SimulatedMesh, clock: ManualClock) -> None:
    still.node(hop_limit=3)
    far = still.peer("Far", distance=5, hop_limit=7)
    packet_id = await done(clock, far.send_direct("hello"), seconds=90)
    assert far.answers_to(packet_id) == [0]
    acks = [entry.hop_limit for entry in still.log if entry.cause is Cause.ACK and entry.by == still.air.center]
    assert acks[0] == 5


async def test_node_added_after_the_people_knows_them(still: SimulatedMesh, clock: ManualClock) -> None:
    ann = still.peer("Ann")
    node = still.node()
    assert node.database.key_of(ann.number) == ann.identity.public_key
    assert ann.number != node.number


async def test_peer_with_a_full_queue(still: SimulatedMesh, clock: ManualClock) -> None:
    still.node()
    ann = still.peer("Ann")
    ann.transmitter.stall()
    waiting = [asyncio.ensure_future(ann.send_channel(0, f"text {number}")) for number in range(16)]
    await clock.advance(1)
    with pytest.raises(NotDelivered, match="QUEUE_FULL"):
        await ann.send_channel(0, "one too many")
    ann.transmitter.resume()
    await clock.advance(60)
    assert len(await asyncio.gather(*waiting)) == 16
