"""What was seen of genuine firmware 2.7.26, row by row: here, or where `ELSEWHERE` says."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from meshtastic.protobuf import admin_pb2, config_pb2, mesh_pb2

from meshai.messages import BROADCAST
from meshai.sim.air import Cause
from meshai.sim.firmware import Firmware
from meshai.sim.link import Connection, LinkConditions, frame
from meshai.sim.mesh import SimulatedMesh
from meshai.sim.packets import ADMIN, ROUTING, RoutingError
from meshai.sim.phone import Phone
from meshai.testing import ManualClock
from tests.sim.clients import DeskClient, eventually, routings, statuses, text_packet, transmissions
from tests.sim.conftest import Dial

ELSEWHERE = {
    # Connecting
    "garbage, bogus lengths and broken protobufs are skipped": "test_client_api.test_noise_from_the_client_is_skipped",
    "the download has always the same order": "test_client_api.test_download_in_the_firmwares_order",
    "special ids ask for parts of it": "test_client_api.test_special_requests",
    "asked again it is sent again": "test_client_api.test_new_request_restarts_the_download",
    "a heartbeat is answered by a queue status": "test_client_api.test_heartbeat",
    "disconnect ends the connection": "test_client_api.test_disconnect_ends_the_connection",
    "a silent client is closed": "test_client_api.test_silent_client_is_closed_after_a_quarter_of_an_hour",
    # One client at a time
    "a bare second connection ends the first": "test_client_api.test_new_client_ends_the_old_ones_connection",
    "two clients fight for ever": "test_faults.test_rival_takes_the_place_again_and_again",
    # While no client is connected
    "packets are kept, acked, and come once": "test_client_api.test_packets_wait_for_the_next_client_and_come_once",
    "a full queue loses its oldest to a text": "test_client_api.test_full_queue_for_the_client",
    "a reboot loses it, and the time": "test_faults.test_reboot_loses_what_a_reboot_loses",
    # Time
    "no time until the client tells it": "test_client_api.test_time_is_told_by_the_client",
    # Direct messages
    "fields of one": "test_receiving.test_fields_of_a_direct_text",
    "unknown node or key: 39 at once": "test_acks.test_direct_message_without_the_others_key",
    "peer that forgot us: 35, healed by node info": "test_acks.test_peer_that_lost_our_key_learns_it_again",
    "not encrypted for us alone: NO_CHANNEL": "test_receiving.test_direct_text_with_the_channels_key_is_refused",
    "to ourselves": "test_acks.test_text_to_ourselves_is_acked_and_not_handed_back",
    # Acknowledgements on broadcasts
    "an ack from ourselves: relayed": "test_acks.test_broadcast_ack_is_implicit_and_from_ourselves",
    "MAX_RETRANSMIT though all got it": "test_acks.test_relays_that_are_not_heard_mean_a_nak_though_all_got_it",
    # Content
    "empty, invalid and emoji texts are carried as they are": "test_receiving.test_contents_of_every_kind",
    # Sending fast
    "of ten texts at once only the first": "test_sending.test_only_one_text_in_two_seconds",
    "transmit queue of 16": "test_sending.test_queue_of_sixteen",
    "other ports have longer intervals": "test_sending.test_other_ports_have_longer_intervals",
    "disabled channel": "test_acks.test_disabled_channel",
    "hop limit 0, id 0": "test_sending.test_node_fills_in_what_the_client_left_out",
    "a repeated id is not shown twice": "test_sending.test_repeated_id_is_swallowed",
    # Unasked traffic
    "own telemetry each minute": "test_client_api.test_node_tells_of_itself_each_minute",
    # Crash
    "the port is refused, then all is well": "test_faults.test_refuse",
    "the library comes back after a clean end": "test_library.test_library_reconnects_by_itself_after_a_close",
}


@pytest.mark.parametrize("place", ELSEWHERE.values(), ids=list(ELSEWHERE))
def test_row_is_tested_elsewhere(place: str) -> None:
    module, name = place.split(".")
    source = (Path(__file__).parent / f"{module}.py").read_text(encoding="utf-8")
    assert re.search(rf"^(async )?def {name}\(", source, re.MULTILINE)


# Text length


@pytest.mark.parametrize(
    ("is_direct", "reply_id", "longest"), [(False, 0, 232), (False, 9, 227), (True, 0, 220), (True, 9, 215)]
)
async def test_lengths_of_a_text(
    still: SimulatedMesh, clock: ManualClock, is_direct: bool, reply_id: int, longest: int
) -> None:
    node, ann = still.node(), still.peer("Ann")
    client = DeskClient(node.firmware)
    to = ann.number if is_direct else BROADCAST
    for size in sorted({longest, longest + 1, 232, 233, 234, 235, 236, 237, 240}):
        await clock.advance(10)
        client.take()
        said = client.send(text_packet("x" * size, to, packet_id=size, reply_id=reply_id))
        if size <= longest:
            assert (statuses(said), routings(said)) == ([(size, 0)], [])
        elif size <= 234:
            assert (statuses(said), routings(said)) == ([(size, 7)], [(node.number, size, RoutingError.TOO_LARGE)])
        else:
            assert said == [], "the whole ToRadio is discarded"
    await clock.advance(10)
    assert {len(heard.payload) for heard in ann.inbox} == {longest}


# Direct messages


async def test_sequence_for_the_sender(still: SimulatedMesh, clock: ManualClock) -> None:
    node, ann = still.node(), still.peer("Ann")
    client = DeskClient(node.firmware)
    client.send(text_packet("x", to=ann.number, packet_id=1, want_ack=True))
    for _ in range(40):
        await clock.advance(0.1)
        client.take()
    assert statuses(client.taken)[:2] == [(1, 0), (1, 0)], "queued, and left the queue"
    assert routings(client.taken) == [(ann.number, 1, RoutingError.NONE)]


async def test_without_want_ack_there_is_no_answer(still: SimulatedMesh, clock: ManualClock) -> None:
    node, ann = still.node(), still.peer("Ann")
    client = DeskClient(node.firmware)
    client.send(text_packet("x", to=ann.number, packet_id=1))
    await clock.advance(59)
    assert [heard.text for heard in ann.inbox] == ["x"]
    assert routings(client.take()) == []


async def test_peer_that_is_down(still: SimulatedMesh, clock: ManualClock) -> None:
    """Transmitted at 0, about 7 and 14 s, and given up after 21.4 s."""
    node, ann = still.node(), still.peer("Ann")
    ann.is_deaf = True
    client = DeskClient(node.firmware)
    start = clock.now()
    client.send(text_packet("hello there", to=ann.number, packet_id=1, want_ack=True))
    await clock.advance(21.0)
    assert routings(client.take()) == []
    await clock.advance(1.0)
    assert routings(client.take()) == [(node.number, 1, RoutingError.MAX_RETRANSMIT)]
    assert [round((entry.at - start) / 7.1) for entry in still.log] == [0, 1, 2]


async def test_peer_that_forgot_us_goes_on_so_until_node_info_is_exchanged(
    still: SimulatedMesh, clock: ManualClock
) -> None:
    node, ann = still.node(), still.peer("Ann")
    client = DeskClient(node.firmware)
    node.firmware.announce()  # so that it says nothing more of itself for a minute
    await clock.advance(5)
    ann.forget_key(node.number)
    for packet_id in (1, 2):
        client.send(text_packet("x", to=ann.number, packet_id=packet_id, want_ack=True))
        await clock.advance(4)
        assert (ann.number, packet_id, RoutingError.PKI_UNKNOWN_PUBKEY) in routings(client.take())
    assert len(ann.unreadable) == 2
    await clock.advance(60)
    node.firmware.announce()
    await clock.advance(5)
    client.send(text_packet("y", to=ann.number, packet_id=3, want_ack=True))
    await clock.advance(5)
    assert (ann.number, 3, RoutingError.NONE) in routings(client.take())


async def test_client_sees_acks_of_its_nodes_own_acks(still: SimulatedMesh, clock: ManualClock) -> None:
    node, ann = still.node(), still.peer("Ann")
    client = DeskClient(node.firmware)
    sending = asyncio.ensure_future(ann.send_direct("hi"))
    await clock.advance(20)
    text_id = await sending
    foreign = routings(client.take())
    assert [(sender, error) for sender, _, error in foreign] == [(ann.number, 0)]
    (ack,) = [entry for entry in still.log if entry.by == node.number and entry.port == ROUTING]
    assert foreign[0][1] == ack.packet_id != text_id


# Sending fast


async def test_text_sent_too_soon_costs_airtime_and_is_never_answered(still: SimulatedMesh, clock: ManualClock) -> None:
    node, ann = still.node(), still.peer("Ann", role="CLIENT_MUTE")
    client = DeskClient(node.firmware)
    client.send(text_packet("first", to=ann.number, packet_id=1))
    said = client.send(text_packet("second", to=ann.number, packet_id=2, want_ack=True))
    assert statuses(said) == [(2, 0)]
    await clock.advance(59)
    assert routings(client.take()) == []
    assert transmissions(still, 2) == []
    (nak,) = [entry for entry in still.log if entry.cause is Cause.RATE_LIMIT_NAK]
    assert 0.4 < nak.airtime_s < 0.6


@asynccontextmanager
async def quiet_line(firmware: Firmware) -> AsyncIterator[asyncio.StreamReader]:
    """A connection whose bytes arrive as they are fed, in time that stands still."""
    ours, theirs = socket.socketpair()
    _, writer = await asyncio.open_connection(sock=ours)
    reader = asyncio.StreamReader()
    air = firmware.air
    connection = Connection(
        lambda: Phone(firmware),
        firmware.client,
        reader,
        writer,
        conditions=LinkConditions,
        clock=air.clock,
        rng=air.rng,
        idle_limit_s=None,
        hangs_up=True,
    )
    serving = asyncio.create_task(connection.serve())
    try:
        yield reader
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        writer.close()
        theirs.close()


@pytest.mark.parametrize(
    ("gap_s", "least", "most"), [(1.9, 0, 0), (2.05, 1, 16), (2.15, 14, 34), (2.25, 40, 40), (2.35, 40, 40)]
)
async def test_gaps_between_two_texts(
    still: SimulatedMesh, clock: ManualClock, gap_s: float, least: int, most: int
) -> None:
    """The two seconds count when the node reads, and it reads a quiet connection up to 250 ms late; of 40 pairs."""
    node = still.node()
    async with quiet_line(node.firmware) as line:
        for _ in range(40):
            await clock.advance(10)
            for _ in range(2):
                line.feed_data(frame(mesh_pb2.ToRadio(packet=text_packet("x", hop_limit=0)).SerializeToString()))
                await clock.advance(gap_s)
    handed = node.handed_over
    assert len(handed) == 80
    assert not any(first.refusal for first in handed[::2])
    assert least <= sum(not second.refusal for second in handed[1::2]) <= most


# Connecting, reboot


async def test_received_traffic_does_not_keep_a_silent_client(mesh: SimulatedMesh, dial: Dial) -> None:
    node, ann = mesh.node(idle_limit_s=30), mesh.peer("Ann")
    async with dial(await node.listen_tcp()) as client:
        await client.configure()
        while client.ended is None:
            await ann.send_channel(0, "talk")
        assert client.ended == "closed"
        assert client.texts() != []


@pytest.mark.parametrize(
    ("request_fields", "after_s"),
    [({"reboot_seconds": 5}, 5), ({"set_config": config_pb2.Config(network={"wifi_enabled": True})}, 7)],
)
async def test_reboot_by_admin_message(
    mesh: SimulatedMesh, dial: Dial, request_fields: dict[str, Any], after_s: float
) -> None:
    """Acked at once; the connection ends at the second asked for, and the next is as good as any."""
    node = mesh.node()
    port = await node.listen_tcp()
    async with dial(port) as client:
        await client.configure()
        payload = admin_pb2.AdminMessage(**request_fields).SerializeToString()
        client.send(packet=text_packet(payload, node.number, packet_id=5, port=ADMIN))
        await client.until(lambda: client.of("packet"))
        assert routings(client.received) == [(node.number, 5, RoutingError.NONE)]
        start = mesh.clock.monotonic()
        await client.until(lambda: client.ended == "closed")
        assert mesh.clock.monotonic() - start > after_s - 2
        assert client.of("rebooted") == [], "never seen on TCP"
    assert await eventually(lambda: node.open_connections == 0)
    assert (node.firmware.boots, node.firmware.is_clock_set) == (2, False)
    async with dial(port) as client:
        await client.configure()
        client.send(packet=text_packet("at once", packet_id=6))
        await client.until(lambda: client.of("queueStatus"))
        assert statuses(client.received) == [(6, 0)]


@pytest.mark.parametrize("is_favourite", [False, True])
async def test_node_rebooted_soon_after_it_met_a_peer_forgets_it(
    still: SimulatedMesh, clock: ManualClock, is_favourite: bool
) -> None:
    """Learned within a minute of the last save it is not written; setting a favourite forces the save."""
    node = still.node()
    client = DeskClient(node.firmware)
    first, second = still.peer("First", is_known=False), still.peer("Second", is_known=False)
    for stranger in (first, second):
        telling = asyncio.ensure_future(stranger.send_node_info())
        await clock.advance(5)
        await telling
    if is_favourite:
        asked = admin_pb2.AdminMessage(set_favorite_node=second.number).SerializeToString()
        client.send(text_packet(asked, node.number, packet_id=5, port=ADMIN))
    node.firmware.reboot()
    assert [node.database.has_met(peer.number) for peer in (first, second)] == [True, is_favourite]
    said = DeskClient(node.firmware).send(text_packet("x", to=second.number, packet_id=6, want_ack=True))
    assert statuses(said) == [(6, 0 if is_favourite else 39)]


# Duplicates and order


async def test_same_packet_reaches_the_client_twice(still: SimulatedMesh, clock: ManualClock) -> None:
    node, ann = still.node(), still.peer("Ann")
    node.firmware.repeat_share = 1.0
    client = DeskClient(node.firmware)
    sending = asyncio.ensure_future(ann.send_channel(0, "twice"))
    await clock.advance(10)
    packet_id = await sending
    copies = [message.packet for message in client.take() if message.HasField("packet")]
    assert [(copy.id, copy.hop_limit) for copy in copies] == [(packet_id, 3), (packet_id, 2)]


async def test_texts_of_two_senders_change_places(still: SimulatedMesh, clock: ManualClock) -> None:
    """Far speaks first, but over three relays, and Ann is heard before."""
    node, ann, far = still.node(), still.peer("Ann"), still.peer("Far", distance=3)
    client = DeskClient(node.firmware)
    first = asyncio.ensure_future(far.send_channel(0, "first"))
    await clock.advance(0.1)
    second = asyncio.ensure_future(ann.send_channel(0, "second", hop_limit=0))
    await clock.advance(30)
    await asyncio.gather(first, second)
    texts = [message.packet.decoded.payload for message in client.take() if message.HasField("packet")]
    assert texts == [b"second", b"first"]
