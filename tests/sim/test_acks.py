"""What becomes of the client's packets: acks, naks, keys and resends (time stands still)."""

import random
from typing import Any

import pytest

from meshai.sim.air import Cause
from meshai.sim.mesh import SimulatedMesh
from meshai.sim.packets import ADMIN, TRACEROUTE, RoutingError, frame_bytes
from meshai.testing import ManualClock
from tests.sim.clients import DeskClient, routings, statuses, text_packet, transmissions


async def test_disabled_channel(still: SimulatedMesh) -> None:
    node = still.node(channels=("", "bots"))
    client = DeskClient(node.firmware)
    said = client.send(text_packet("x", packet_id=1, channel=2))
    assert statuses(said) == [(1, RoutingError.NO_CHANNEL)]
    assert routings(said) == [(node.number, 1, RoutingError.NO_CHANNEL)]


@pytest.mark.parametrize("is_met", [True, False])
async def test_direct_message_without_the_others_key(still: SimulatedMesh, clock: ManualClock, is_met: bool) -> None:
    node = still.node()
    stranger = still.peer("Stranger", is_known=is_met)
    if is_met:
        node.database.set_key(stranger.number, b"")
    client = DeskClient(node.firmware)
    said = client.send(text_packet("x", to=stranger.number, packet_id=1, want_ack=True))
    assert statuses(said) == [(1, 39)]
    assert routings(said) == [(node.number, 1, RoutingError.PKI_SEND_FAIL_PUBLIC_KEY)]
    await clock.advance(60)
    assert transmissions(still, 1) == []
    assert routings(client.take()) == []


async def test_pki_demanded_where_it_cannot_be(still: SimulatedMesh) -> None:
    node, ann = still.node(), still.peer("Ann")
    client = DeskClient(node.firmware)
    broadcast = text_packet("x", packet_id=1, pki=True)
    assert routings(client.send(broadcast)) == [(node.number, 1, RoutingError.PKI_FAILED)]
    wrong = text_packet("x", to=ann.number, packet_id=2, pki=True)
    wrong.public_key = bytes(32)
    said = DeskClient(node.firmware).send(wrong)
    assert (statuses(said), routings(said)) == ([(2, 34)], [(node.number, 2, RoutingError.PKI_FAILED)])
    excluded = text_packet(b"", to=ann.number, packet_id=3, port=TRACEROUTE, pki=True)
    assert routings(client.send(excluded)) == [(node.number, 3, RoutingError.PKI_FAILED)]


async def test_peer_that_lost_our_key_learns_it_again(still: SimulatedMesh, clock: ManualClock) -> None:
    node, ann = still.node(), still.peer("Ann")
    ann.forget_key(node.number)
    client = DeskClient(node.firmware)
    client.send(text_packet("first", to=ann.number, packet_id=1, want_ack=True))
    await clock.advance(10)
    assert routings(client.take()) == [(ann.number, 1, RoutingError.PKI_UNKNOWN_PUBKEY)]
    assert ann.inbox == []
    assert len(ann.unreadable) == 1
    assert Cause.NODE_INFO in {entry.cause for entry in still.log if entry.by == node.number}
    client.send(text_packet("second", to=ann.number, packet_id=2, want_ack=True))
    await clock.advance(10)
    assert (ann.number, 2, 0) in routings(client.take())
    assert [heard.text for heard in ann.inbox] == ["second"]


async def test_stale_keys_are_refused_with_no_channel(still: SimulatedMesh, clock: ManualClock) -> None:
    node, ann, bob = still.node(), still.peer("Ann"), still.peer("Bob")
    ann.hold_stale_key(node.number)
    node.database.set_key(bob.number, b"k" * 32)
    client = DeskClient(node.firmware)
    for packet_id, peer in ((1, ann), (2, bob)):
        client.send(text_packet("x", to=peer.number, packet_id=packet_id, want_ack=True))
        await clock.advance(20)
        assert (peer.number, packet_id, RoutingError.NO_CHANNEL) in routings(client.take())
        assert peer.inbox == []


async def test_duty_cycle(clock: ManualClock) -> None:
    async with SimulatedMesh(clock=clock, rng=random.Random(1), region="EU_868") as mesh:
        node = mesh.node()
        mesh.peer("Ann")
        client = DeskClient(node.firmware)
        node.firmware.ledger.sent(200)
        await clock.advance(600)
        node.firmware.ledger.sent(159.9)
        assert statuses(client.send(text_packet("last", packet_id=1))) == [(1, 0)]
        await clock.advance(3)
        client.take()
        said = client.send(text_packet("over", packet_id=2))
        assert statuses(said) == [(2, RoutingError.DUTY_CYCLE_LIMIT)]
        assert routings(said) == [(node.number, 2, RoutingError.DUTY_CYCLE_LIMIT)]
        (notification,) = [message.clientNotification for message in said if message.HasField("clientNotification")]
        assert (notification.reply_id, notification.message) == (
            2,
            "Duty cycle limit exceeded. You can send again in 50 mins",
        )
        await clock.advance(50 * 60)
        assert statuses(client.send(text_packet("again", packet_id=3)))[-1] == (3, 0)


@pytest.mark.parametrize(
    ("region", "allowed_s"),
    [("EU_433", 360), ("EU_868", 360), ("TH", 360), ("UA_433", 360), ("UA_868", 36), ("US", None), ("ANZ", None)],
)
async def test_duty_cycle_of_each_region(clock: ManualClock, region: str, allowed_s: float | None) -> None:
    """Seconds of an hour; None is no limit."""
    async with SimulatedMesh(clock=clock, rng=random.Random(1), region=region) as mesh:
        node = mesh.node()
        client = DeskClient(node.firmware)
        node.firmware.ledger.sent(3599 if allowed_s is None else allowed_s - 0.01)
        assert statuses(client.send(text_packet("last", packet_id=1)))[0] == (1, 0)
        await clock.advance(5)
        client.take()
        refusal = 0 if allowed_s is None else int(RoutingError.DUTY_CYCLE_LIMIT)
        assert statuses(client.send(text_packet("one more", packet_id=2)))[0] == (2, refusal)


OWN_NAKS = [
    (RoutingError.NO_INTERFACE, 33),
    (RoutingError.MAX_RETRANSMIT, 0),
    (RoutingError.NO_CHANNEL, 6),
    (RoutingError.TOO_LARGE, 7),
    (RoutingError.DUTY_CYCLE_LIMIT, 9),
    (RoutingError.PKI_FAILED, 34),
    (RoutingError.RATE_LIMIT_EXCEEDED, 0),
    (RoutingError.PKI_SEND_FAIL_PUBLIC_KEY, 39),
]


@pytest.mark.parametrize(("error", "res"), OWN_NAKS)
async def test_planned_nak_of_our_own_node(still: SimulatedMesh, clock: ManualClock, error: int, res: int) -> None:
    node, ann = still.node(), still.peer("Ann")
    client = DeskClient(node.firmware)
    node.firmware.plan_nak(error)
    said = client.send(text_packet("x", to=ann.number, packet_id=1, want_ack=True))
    assert (statuses(said), routings(said)) == ([(1, res)], [(node.number, 1, error)])
    await clock.advance(60)
    assert transmissions(still, 1) == []
    client.send(text_packet("y", to=ann.number, packet_id=2, want_ack=True))
    await clock.advance(60)
    assert [heard.text for heard in ann.inbox] == ["y"]


@pytest.mark.parametrize(
    "error",
    [
        RoutingError.NO_CHANNEL,
        RoutingError.NO_RESPONSE,
        RoutingError.BAD_REQUEST,
        RoutingError.NOT_AUTHORIZED,
        RoutingError.PKI_UNKNOWN_PUBKEY,
        RoutingError.ADMIN_BAD_SESSION_KEY,
        RoutingError.ADMIN_PUBLIC_KEY_UNAUTHORIZED,
        101,  # of a newer firmware
    ],
)
async def test_planned_nak_of_the_destination(still: SimulatedMesh, clock: ManualClock, error: int) -> None:
    node, ann = still.node(), still.peer("Ann")
    client = DeskClient(node.firmware)
    ann.refuse_next(error)
    client.send(text_packet("x", to=ann.number, packet_id=1, want_ack=True))
    await clock.advance(60)
    assert routings(client.take()) == [(ann.number, 1, error)]
    client.send(text_packet("y", to=ann.number, packet_id=2, want_ack=True))
    await clock.advance(60)
    assert (ann.number, 2, 0) in routings(client.take())


async def test_text_to_ourselves_is_acked_and_not_handed_back(still: SimulatedMesh, clock: ManualClock) -> None:
    node = still.node()
    client = DeskClient(node.firmware)
    said = client.send(text_packet("x", to=node.number, packet_id=1, want_ack=True))
    assert (statuses(said), routings(said)) == ([(1, 0)], [(node.number, 1, 0)])
    await clock.advance(30)
    assert client.take() == []
    assert still.log == []


async def test_broadcast_ack_is_implicit_and_from_ourselves(still: SimulatedMesh, clock: ManualClock) -> None:
    node = still.node()
    still.peer("Ann")
    client = DeskClient(node.firmware)
    client.send(text_packet("with", packet_id=1, want_ack=True))
    await clock.advance(30)
    client.send(text_packet("without", packet_id=2))
    await clock.advance(30)
    client.take()
    assert routings(client.taken) == [(node.number, 1, 0)]
    assert [entry.want_ack for entry in still.log if entry.is_text] == [False] * 4


async def test_direct_message_to_a_lone_neighbour_gets_the_real_ack_only(
    still: SimulatedMesh, clock: ManualClock
) -> None:
    node, ann = still.node(), still.peer("Ann")
    client = DeskClient(node.firmware)
    client.send(text_packet("x", to=ann.number, packet_id=1, want_ack=True))
    await clock.advance(30)
    assert routings(client.take()) == [(ann.number, 1, 0)]
    assert [(entry.cause, entry.by) for entry in still.log if entry.cause is not Cause.RELAY] == [
        (Cause.CLIENT, node.number),
        (Cause.ACK, ann.number),
        (Cause.ACK, node.number),  # the ack of a direct text wants an ack itself
    ]
    ack = next(entry for entry in still.log if entry.cause is Cause.ACK)
    assert (ack.frame_bytes, ack.airtime_s) == (29, 0.477)


async def test_direct_message_over_a_relay_gets_both_acks(still: SimulatedMesh, clock: ManualClock) -> None:
    node, far = still.node(), still.peer("Far", distance=2)
    client = DeskClient(node.firmware)
    client.send(text_packet("x", to=far.number, packet_id=1, want_ack=True))
    await clock.advance(60)
    assert routings(client.take()) == [(node.number, 1, 0), (far.number, 1, 0)]
    assert far.inbox[0].hops == 2


async def test_direct_message_relayed_but_never_confirmed(still: SimulatedMesh, clock: ManualClock) -> None:
    node, far = still.node(), still.peer("Far", distance=1)
    far.acks.copies = 0
    client = DeskClient(node.firmware)
    client.send(text_packet("x", to=far.number, packet_id=1, want_ack=True))
    await clock.advance(300)
    assert routings(client.take()) == [(node.number, 1, 0)], "resends stopped at the relay, so no nak comes either"
    assert [heard.text for heard in far.inbox] == ["x"]


async def test_acks_late_and_double(still: SimulatedMesh, clock: ManualClock) -> None:
    node, ann = still.node(), still.peer("Ann")
    ann.acks.copies, ann.acks.delay_s = 2, 5.0
    client = DeskClient(node.firmware)
    client.send(text_packet("x", to=ann.number, packet_id=1, want_ack=True))
    await clock.advance(4.9)
    assert routings(client.take()) == []
    await clock.advance(30)
    assert routings(client.take()) == [(ann.number, 1, 0)] * 2


async def test_nak_after_three_tries_at_the_firmwares_times(still: SimulatedMesh, clock: ManualClock) -> None:
    node, ann = still.node(), still.peer("Ann")
    ann.is_deaf = True
    client = DeskClient(node.firmware)
    start = clock.now()
    client.send(text_packet("x" * 150, packet_id=1, want_ack=True))
    wait = still.air.modem.resend_wait_s(16 + 157)
    assert round(wait, 1) == 9.2, "the table's resend time for LONG_FAST"
    await clock.advance(3 * wait - 0.1)
    assert routings(client.take()) == []
    await clock.advance(0.2)
    assert routings(client.take()) == [(node.number, 1, RoutingError.MAX_RETRANSMIT)]
    tries = [(entry.cause, entry.at - start) for entry in still.log]
    assert [cause for cause, _ in tries] == [Cause.CLIENT, Cause.RESEND, Cause.RESEND]
    for number, (_, at) in enumerate(tries):
        assert number * wait - 1e-6 <= at <= number * wait + 8 * still.air.modem.slot_s


async def test_a_busy_channel_makes_resends_wait(still: SimulatedMesh, clock: ManualClock) -> None:
    node, ann, bob = still.node(), still.peer("Ann"), still.peer("Bob", role="CLIENT_MUTE")
    ann.is_deaf = True
    client = DeskClient(node.firmware)
    client.send(text_packet("x", to=ann.number, packet_id=1, want_ack=True))
    wait = still.air.modem.resend_wait_s(frame_bytes(text_packet("x", pki=True)) + 2)
    still.air.spawn(talk(bob, 3), "talk")
    await clock.advance(wait + 1)
    assert transmissions(still, 1) == [Cause.CLIENT], "three long texts were heard meanwhile"
    await clock.advance(3 * 2.2)
    assert transmissions(still, 1) == [Cause.CLIENT, Cause.RESEND]


async def talk(peer: Any, times: int) -> None:
    for _ in range(times):
        await peer.send_channel(0, "x" * 230)


async def test_relays_that_are_not_heard_mean_a_nak_though_all_got_it(still: SimulatedMesh, clock: ManualClock) -> None:
    node, ann = still.node(), still.peer("Ann", role="CLIENT_MUTE")
    client = DeskClient(node.firmware)
    client.send(text_packet("x", packet_id=1, want_ack=True))
    await clock.advance(60)
    assert routings(client.take()) == [(node.number, 1, RoutingError.MAX_RETRANSMIT)]
    assert [heard.text for heard in ann.inbox] == ["x"], "once, since repeats are dropped"


async def test_never_ask_for_a_response_to_a_text(still: SimulatedMesh, clock: ManualClock) -> None:
    node, ann, bob = still.node(), still.peer("Ann"), still.peer("Bob")
    client = DeskClient(node.firmware)
    client.send(text_packet("x", packet_id=1, want_response=True))
    await clock.advance(60)
    assert sorted(routings(client.take())) == sorted(
        (peer.number, 1, int(RoutingError.NO_RESPONSE)) for peer in (ann, bob)
    )


async def test_admin_to_ourselves_uses_no_air(still: SimulatedMesh, clock: ManualClock) -> None:
    node = still.node()
    client = DeskClient(node.firmware)
    said = client.send(text_packet(b"", to=node.number, packet_id=1, port=ADMIN, want_ack=True))
    assert statuses(said) == [(1, 0)]
    await clock.advance(30)
    assert still.log == []


async def test_lossy_link_is_made_up_for_by_resends(still: SimulatedMesh, clock: ManualClock) -> None:
    node, ann = still.node(), still.peer("Ann", loss=0.4)
    client = DeskClient(node.firmware)
    answered = 0
    for packet_id in range(1, 31):
        client.send(text_packet(f"text {packet_id}", to=ann.number, packet_id=packet_id, want_ack=True))
        await clock.advance(120)
        answered += (ann.number, packet_id, 0) in routings(client.take())
    assert len(ann.inbox) == len({heard.packet_id for heard in ann.inbox})
    assert 20 <= answered <= len(ann.inbox) <= 30
    assert Cause.RESEND in {entry.cause for entry in still.log}


async def test_reboot_forgets_what_was_to_be_sent(still: SimulatedMesh, clock: ManualClock) -> None:
    node, ann = still.node(), still.peer("Ann")
    ann.is_deaf = True
    client = DeskClient(node.firmware)
    client.send(text_packet("sent once", to=ann.number, packet_id=1, want_ack=True))
    await clock.advance(3)
    node.firmware.transmitter.stall()
    client.send(text_packet("never sent", packet_id=2))
    node.firmware.reboot()
    node.firmware.transmitter.resume()
    await clock.advance(60)
    assert [entry.packet_id for entry in still.log] == [1]
    assert routings(client.take()) == [], "so no nak comes for the first either"


async def test_ack_takes_a_waiting_resend_back(still: SimulatedMesh, clock: ManualClock) -> None:
    node, ann = still.node(), still.peer("Ann")
    ann.acks.delay_s = 12.0
    client = DeskClient(node.firmware)
    client.send(text_packet("x", to=ann.number, packet_id=1, want_ack=True))
    await clock.advance(3)
    node.firmware.transmitter.stall()
    await clock.advance(20)
    node.firmware.transmitter.resume()
    await clock.advance(60)
    assert transmissions(still, 1) == [Cause.CLIENT]
    assert node.firmware.transmitter.free == 16
