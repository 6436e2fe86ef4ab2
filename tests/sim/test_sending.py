"""What the node makes of the client's packets: sizes, pace, repeats and the queue (time stands still)."""

import itertools
from typing import Any

import pytest
from meshtastic.protobuf import mesh_pb2

from meshai.messages import BROADCAST
from meshai.sim.air import Cause
from meshai.sim.mesh import SimulatedMesh
from meshai.sim.packets import POSITION, TELEMETRY, TRACEROUTE, Priority, RoutingError
from meshai.testing import ManualClock
from tests.sim.clients import DeskClient, routings, statuses, text_packet, transmissions

PRIVATE = 256


@pytest.mark.parametrize(
    ("is_direct", "fields", "longest"),
    [
        (False, {}, 232),
        (False, {"reply_id": 9}, 227),
        (False, {"reply_id": 9, "emoji": 1}, 222),
        (True, {}, 220),
        (True, {"reply_id": 9}, 215),
        (True, {"reply_id": 9, "emoji": 1}, 210),
    ],
)
async def test_longest_text(
    still: SimulatedMesh, clock: ManualClock, is_direct: bool, fields: dict[str, Any], longest: int
) -> None:
    node, ann = still.node(), still.peer("Ann")
    client = DeskClient(node.firmware)
    to = ann.number if is_direct else BROADCAST

    refused = client.send(text_packet("x" * (longest + 1), to, packet_id=1, **fields))
    assert statuses(refused) == [(1, 7)]
    assert routings(refused) == [(node.number, 1, RoutingError.TOO_LARGE)]

    await clock.advance(3)
    accepted = client.send(text_packet("x" * longest, to, packet_id=2, **fields))
    assert statuses(accepted) == [(2, 0)]
    await clock.advance(10)
    assert [heard.text for heard in ann.inbox] == ["x" * longest]
    assert transmissions(still, 1) == []
    assert still.log[0].frame_bytes == 255
    assert [handed.refusal for handed in node.handed_over] == ["TOO_LARGE", ""]


@pytest.mark.parametrize("size", [235, 236, 237, 240])
async def test_undecodable_packet_gets_no_answer_at_all(still: SimulatedMesh, clock: ManualClock, size: int) -> None:
    node = still.node()
    client = DeskClient(node.firmware)
    assert client.send(text_packet("x" * size, packet_id=1)) == []
    await clock.advance(10)
    assert client.take() == []
    assert still.log == []
    assert [handed.refusal for handed in node.handed_over] == ["UNDECODABLE"]


async def test_only_one_text_in_two_seconds(still: SimulatedMesh, clock: ManualClock) -> None:
    node, ann = still.node(), still.peer("Ann")
    client = DeskClient(node.firmware)
    for packet_id in range(1, 11):
        client.hand_over(mesh_pb2.ToRadio(packet=text_packet(f"text {packet_id}", packet_id=packet_id)))
    said = client.take()
    assert statuses(said) == [(9, 0), (10, 0)], "accepted and dropped look alike, and only two wait"
    assert routings(said) == [], "the nak does not reach a client that leaves `from` unset"
    await clock.advance(60)
    assert [heard.text for heard in ann.inbox] == ["text 1"]
    naks = [entry for entry in still.log if entry.cause is Cause.RATE_LIMIT_NAK]
    assert [(nak.to, nak.error) for nak in naks] == [(0, RoutingError.RATE_LIMIT_EXCEEDED)] * 9
    assert [handed.refusal for handed in node.firmware.refusals] == ["TOO_SOON"] * 9


async def test_two_second_rule_counts_from_the_last_accepted_text(still: SimulatedMesh, clock: ManualClock) -> None:
    node, ann = still.node(), still.peer("Ann")
    client = DeskClient(node.firmware)
    for _ in range(5):
        client.send(text_packet("a", to=ann.number))
        await clock.advance(0.9)
    assert [round(at - node.firmware.text_times[0], 1) for at in node.firmware.text_times] == [0.0, 2.7]


async def test_tapback_is_a_text_to_the_rule(still: SimulatedMesh, clock: ManualClock) -> None:
    node = still.node()
    still.peer("Ann")
    client = DeskClient(node.firmware)
    client.send(text_packet("👍", packet_id=1, reply_id=5, emoji=1))
    client.send(text_packet("answer", packet_id=2))
    await clock.advance(5)
    assert [entry.text for entry in still.log if entry.is_text and entry.by == node.number] == ["👍"]


async def test_new_connection_forgets_the_timers(still: SimulatedMesh) -> None:
    node = still.node()
    assert statuses(DeskClient(node.firmware).send(text_packet("a"))) != []
    DeskClient(node.firmware).send(text_packet("b"))
    assert node.firmware.refusals == []


@pytest.mark.parametrize("is_fixed", [False, True])
async def test_rate_limit_nak_reaches_whom_it_is_addressed_to(still: SimulatedMesh, is_fixed: bool) -> None:
    node = still.node()
    node.firmware.tells_rate_limit = is_fixed
    client = DeskClient(node.firmware)
    client.send(text_packet("a", packet_id=1))
    second = text_packet("b", packet_id=2)
    if not is_fixed:
        setattr(second, "from", node.number)
    said = client.send(second)
    assert statuses(said) == [(2, 0)]
    assert routings(said) == [(node.number, 2, RoutingError.RATE_LIMIT_EXCEEDED)]


@pytest.mark.parametrize(("port", "interval"), [(POSITION, 10), (TELEMETRY, 10), (TRACEROUTE, 30)])
async def test_other_ports_have_longer_intervals(
    still: SimulatedMesh, clock: ManualClock, port: int, interval: int
) -> None:
    node, ann = still.node(), still.peer("Ann")
    client = DeskClient(node.firmware)
    client.send(text_packet(b"", ann.number, packet_id=1, port=port))
    await clock.advance(interval - 1)
    client.take()
    said = client.send(text_packet(b"", ann.number, packet_id=2, port=port))
    assert statuses(said) == [(2, 0)]
    told = [message.clientNotification for message in said if message.HasField("clientNotification")]
    assert [(notification.reply_id, notification.message) for notification in told] == (
        [(2, "TraceRoute can only be sent once every 30 seconds")] if port == TRACEROUTE else []
    )
    await clock.advance(1)
    client.send(text_packet(b"", ann.number, packet_id=3, port=port))
    await clock.advance(5)
    assert transmissions(still, 2) == []
    assert transmissions(still, 3) == [Cause.CLIENT]


async def test_repeated_id_is_swallowed(still: SimulatedMesh, clock: ManualClock) -> None:
    node, ann = still.node(), still.peer("Ann")
    client = DeskClient(node.firmware)
    client.send(text_packet("first", packet_id=5))
    await clock.advance(5)
    client.take()
    assert client.send(text_packet("again", packet_id=5)) == []
    for packet_id in range(100, 120):  # twenty others push it out of memory
        client.send(text_packet("x", packet_id=packet_id, port=PRIVATE))
        await clock.advance(1)
        client.take()
    assert statuses(client.send(text_packet("again", packet_id=5))) == [(5, 0)]
    await clock.advance(60)
    assert [heard.text for heard in ann.inbox] == ["first"], "and other nodes drop a repeated id as well"


async def test_repeated_id_is_sent_where_the_filter_is_off(still: SimulatedMesh, clock: ManualClock) -> None:
    node = still.node()
    still.peer("Ann")
    node.firmware.filters_repeats = False
    client = DeskClient(node.firmware)
    client.send(text_packet("first", packet_id=5))
    await clock.advance(5)
    client.send(text_packet("again", packet_id=5))
    await clock.advance(5)
    assert transmissions(still, 5) == [Cause.CLIENT, Cause.CLIENT]


async def test_node_fills_in_what_the_client_left_out(still: SimulatedMesh, clock: ManualClock) -> None:
    node, ann = still.node(), still.peer("Ann")
    client = DeskClient(node.firmware)
    forged = text_packet("who am I", to=ann.number, hop_limit=0, want_ack=True)
    setattr(forged, "from", 0x1234)
    ((packet_id, _),) = statuses(client.send(forged))
    assert packet_id != 0
    await clock.advance(3)
    client.send(text_packet("near only", to=ann.number, hop_limit=0))
    await clock.advance(3)
    (first, second) = ann.inbox
    assert (first.sender, first.packet_id) == (node.number, packet_id)
    texts = [entry for entry in still.log if entry.is_text and entry.by == node.number]
    assert [(entry.text, entry.hop_limit) for entry in texts] == [("who am I", 3), ("near only", 0)]
    assert second.hops == 0


async def test_queue_of_sixteen(still: SimulatedMesh, clock: ManualClock) -> None:
    node, ann = still.node(), still.peer("Ann")
    client = DeskClient(node.firmware)
    free = []
    for packet_id in range(1, 25):
        said = client.send(text_packet(b"x", packet_id=packet_id, port=PRIVATE))
        free += [(message.queueStatus.free, message.queueStatus.res) for message in said]
    assert free == [(left, 0) for left in range(15, -1, -1)] + [(0, 32)] * 8
    await clock.advance(0.5)
    said = client.take()
    assert (0, 0) in statuses(said), "told unasked that there is room again"
    await clock.advance(60)
    assert len(ann.packets) == 16
    assert [handed.refusal for handed in node.firmware.refusals] == ["QUEUE_FULL"] * 8


async def test_urgent_packet_takes_the_place_of_another(still: SimulatedMesh, clock: ManualClock) -> None:
    node, ann = still.node(), still.peer("Ann")
    client = DeskClient(node.firmware)
    for packet_id in range(1, 17):
        client.send(text_packet(b"x", packet_id=packet_id, port=PRIVATE, priority=Priority.BACKGROUND))
    said = client.send(text_packet("urgent", packet_id=17, priority=Priority.HIGH))
    assert statuses(said) == [(17, 0)]
    await clock.advance(60)
    ours = [entry.packet_id for entry in still.log if entry.by == node.number]
    assert ours[0] == 17
    assert len(ours) == 16
    assert len(ann.packets) == 16


async def test_full_queue_is_not_final_for_a_packet_that_wants_an_ack(still: SimulatedMesh, clock: ManualClock) -> None:
    node, ann = still.node(), still.peer("Ann")
    client = DeskClient(node.firmware)
    node.firmware.transmitter.stall()
    for packet_id in range(1, 17):
        client.send(text_packet(b"x", packet_id=packet_id, port=PRIVATE))
    assert statuses(client.send(text_packet("late", to=ann.number, packet_id=17, want_ack=True))) == [(17, 32)]
    node.firmware.transmitter.resume()
    await clock.advance(60)
    assert transmissions(still, 17) == [Cause.RESEND]
    assert [heard.text for heard in ann.inbox] == ["late"]


async def test_transmissions_of_a_node_do_not_overlap(still: SimulatedMesh, clock: ManualClock) -> None:
    node = still.node()
    still.peer("Ann")
    client = DeskClient(node.firmware)
    for packet_id in range(1, 9):
        client.send(text_packet(b"x" * 100, packet_id=packet_id, port=PRIVATE, hop_limit=0))
    await clock.advance(60)
    ours = [entry for entry in still.log if entry.by == node.number]
    assert len(ours) == 8
    assert all(later.at >= earlier.at + earlier.airtime_s for earlier, later in itertools.pairwise(ours))
