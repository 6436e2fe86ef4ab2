"""Relays on a true channel: managed flooding, contention, next hops, and what acks come of them (time stands still)."""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable

import pytest

from meshai.clock import ScaledClock
from meshai.messages import NodeNum
from meshai.sim.air import Cause, OnAir
from meshai.sim.channel import Outcome
from meshai.sim.links import Link
from meshai.sim.mesh import SimulatedMesh
from meshai.sim.node import SimulatedNode
from meshai.sim.packets import RoutingError, relay_byte
from meshai.sim.peers import Peer
from meshai.testing import ManualClock
from tests.sim.clients import DeskClient, routings, text_packet, transmissions

SLOT_S = 0.028


@pytest.fixture
async def mesh(clock: ManualClock) -> AsyncIterator[SimulatedMesh]:
    async with SimulatedMesh(clock=clock, rng=random.Random(11), by_distance=False) as linked:
        yield linked


def chain(mesh: SimulatedMesh, *stations: SimulatedNode | Peer, loss: float = 0.0) -> None:
    """Stations in a row, each of which hears only those beside it."""
    for one, other in itertools.pairwise(stations):
        mesh.link(one, other, loss=loss)


async def say(clock: ManualClock, peer: Peer, text: str, *, to: NodeNum | None = None, seconds: float = 60) -> int:
    """Let a peer say something, to all or to one, and time pass until all is over."""
    action = peer.send_channel(0, text) if to is None else peer.send_direct(text, to=to)
    task = asyncio.ensure_future(action)
    await clock.advance(seconds)
    return await task


def relays(mesh: SimulatedMesh, packet_id: int) -> list[OnAir]:
    return [entry for entry in mesh.log if entry.packet_id == packet_id and entry.cause is Cause.RELAY]


async def test_packet_hops_along_a_line(mesh: SimulatedMesh, clock: ManualClock) -> None:
    line = [mesh.peer(name) for name in ("Ann", "Bob", "Cem", "Dan", "Eve", "Fay")]
    chain(mesh, *line)
    packet_id = await say(clock, line[0], "hello")
    on_air = [entry for entry in mesh.log if entry.packet_id == packet_id]
    assert [(entry.by, entry.relay_node, entry.hop_limit, entry.hop_start) for entry in on_air] == [
        (peer.number, relay_byte(peer.number), 3 - hop, 3) for hop, peer in enumerate(line[:4])
    ]
    assert [[heard.hops for heard in peer.inbox] for peer in line[1:]] == [[0], [1], [2], [3], []]
    for earlier, later in itertools.pairwise(on_air):
        slots = (later.at - earlier.at - earlier.airtime_s) / SLOT_S
        assert 16 <= round(slots, 6) < 16 + 2**7, "a relay that heard it at 6 dB has a window of 2^7 slots"


async def test_mute_station_relays_nothing(mesh: SimulatedMesh, clock: ManualClock) -> None:
    ann, mute, far = mesh.peer("Ann"), mesh.peer("Mute", role="CLIENT_MUTE"), mesh.peer("Far")
    chain(mesh, ann, mute, far)
    await say(clock, ann, "hello")
    assert ([heard.text for heard in mute.inbox], far.inbox, len(mesh.log)) == (["hello"], [], 1)


def diamond(mesh: SimulatedMesh, *, role: str = "CLIENT", weak: float = -15.0) -> tuple[Peer, Peer, Peer, Peer]:
    """Ann hears Near well and Weak badly; those two hear each other, and Far hears both."""
    ann, near, far_off, far = (
        mesh.peer("Ann"),
        mesh.peer("Near", role=role),
        mesh.peer("Weak"),
        mesh.peer("Far", role="CLIENT_MUTE"),
    )
    mesh.link(ann, near, snr=10.0)
    mesh.link(ann, far_off, snr=weak)
    mesh.link(near, far_off)
    mesh.link(near, far)
    mesh.link(far_off, far)
    return ann, near, far_off, far


async def test_relay_that_hears_another_keeps_silent_and_the_weakest_is_first(
    mesh: SimulatedMesh, clock: ManualClock
) -> None:
    ann, near, weak, far = diamond(mesh)
    first: Counter[NodeNum] = Counter()
    for number in range(20):
        repeats = relays(mesh, await say(clock, ann, f"text {number}", seconds=30))
        first[repeats[0].by] += 1
        is_same_slot = len(repeats) == 2 and repeats[1].at - repeats[0].at < SLOT_S
        assert len(repeats) == 1 or is_same_slot
    assert first[weak.number] >= 17, "3 of 16+8 slots against 16+256"
    assert first[weak.number] + first[near.number] == 20
    assert len(far.inbox) >= 19


async def test_router_relays_first_and_always(mesh: SimulatedMesh, clock: ManualClock) -> None:
    ann, router, client, _ = diamond(mesh, role="ROUTER")
    for number in range(5):
        repeats = relays(mesh, await say(clock, ann, f"text {number}", seconds=30))
        assert repeats[0].by == router.number
        own = repeats[0].at - mesh.log[mesh.log.index(repeats[0]) - 1].at - mesh.log[0].airtime_s
        assert 0 <= round(own / SLOT_S, 6) < 16
        assert client.number not in {entry.by for entry in repeats}


async def test_router_late_relays_what_others_have_relayed(mesh: SimulatedMesh, clock: ManualClock) -> None:
    ann, late, client, _ = diamond(mesh, role="ROUTER_LATE", weak=-20.0)
    repeats = relays(mesh, await say(clock, ann, "text", seconds=60))
    assert [entry.by for entry in repeats] == [client.number, late.number]


async def test_stations_in_reach_take_turns(mesh: SimulatedMesh, clock: ManualClock) -> None:
    """Eight that hear each other all speak at once: they overlap only within the time it takes to sense a carrier."""
    people = [mesh.peer(f"P{number}", role="CLIENT_MUTE") for number in range(8)]
    for one, other in itertools.combinations(people, 2):
        mesh.link(one, other)
    for peer in people:
        mesh.air.spawn(talk(peer, 5), "talk")
    await clock.advance(300)
    assert len(mesh.log) == 40
    for earlier, later in itertools.pairwise(sorted(mesh.log, key=lambda entry: entry.at)):
        gap_s = later.at - earlier.at
        assert gap_s >= earlier.airtime_s - 1e-6 or gap_s < 2.5 * mesh.air.modem.symbol_ms / 1000
    channel = mesh.air.channel
    assert channel is not None
    assert sum(tally[Outcome.HEARD] for tally in channel.tally.values()) > 100


@pytest.mark.parametrize("make_clock", [ManualClock, lambda: ScaledClock(200)], ids=["still", "fast"])
async def test_fast_time_makes_no_more_collisions(make_clock: Callable[[], ManualClock | ScaledClock]) -> None:
    """At that speed a millisecond of the event loop is seven slots, and yet nobody is misled by it."""
    clock = make_clock()
    overlaps = 0
    async with SimulatedMesh(clock=clock, rng=random.Random(2), by_distance=False) as mesh:
        people = [mesh.peer(f"P{number}", role="CLIENT_MUTE") for number in range(4)]
        for one, other in itertools.combinations(people, 2):
            mesh.link(one, other)
        for peer in people:
            mesh.air.spawn(talk(peer, 25), "talk")
        if isinstance(clock, ManualClock):
            await clock.advance(250)
        else:
            await clock.sleep(250)
    assert len(mesh.log) == 100
    for earlier, later in itertools.pairwise(sorted(mesh.log, key=lambda entry: entry.at)):
        overlaps += later.at - earlier.at < earlier.airtime_s - 0.002
    assert overlaps < 35, "16 on average, three times as many if each began when the event loop woke up"


async def talk(peer: Peer, times: int) -> None:
    for number in range(times):
        await peer.send_channel(0, f"{peer.identity.long_name} says {number}")


async def test_hidden_stations_collide(mesh: SimulatedMesh, clock: ManualClock) -> None:
    ann, bob = mesh.peer("Ann", role="CLIENT_MUTE"), mesh.peer("Bob", role="CLIENT_MUTE")
    between = mesh.peer("Between", role="CLIENT_MUTE")
    chain(mesh, ann, between, bob)
    for peer in (ann, bob):
        mesh.air.spawn(talk(peer, 1), "talk")
    await clock.advance(10)
    assert len(mesh.log) == 2
    assert between.inbox == [], "of half a second each, begun within 8 slots of 28 ms"


async def test_broadcast_over_relays_brings_one_implicit_ack(mesh: SimulatedMesh, clock: ManualClock) -> None:
    node, ann, far = mesh.node(), mesh.peer("Ann"), mesh.peer("Far")
    chain(mesh, node, ann, far)
    client = DeskClient(node.firmware)
    client.send(text_packet("x", packet_id=1, want_ack=True))
    await clock.advance(90)
    client.take()
    assert routings(client.taken) == [(node.number, 1, RoutingError.NONE)]
    assert transmissions(mesh, 1) == [Cause.CLIENT]
    assert [heard.hops for heard in far.inbox] == [1]


async def test_direct_message_over_relays_brings_both_acks(mesh: SimulatedMesh, clock: ManualClock) -> None:
    node, ann, bob, far = mesh.node(), mesh.peer("Ann"), mesh.peer("Bob"), mesh.peer("Far")
    chain(mesh, node, ann, bob, far)
    client = DeskClient(node.firmware)
    client.send(text_packet("x", to=far.number, packet_id=1, want_ack=True))
    await clock.advance(90)
    client.take()
    assert routings(client.taken) == [(node.number, 1, 0), (far.number, 1, 0)]
    assert [heard.hops for heard in far.inbox] == [2]
    assert ann.inbox == bob.inbox == []


async def test_nak_when_no_relay_and_no_destination_is_heard(mesh: SimulatedMesh, clock: ManualClock) -> None:
    node, ann = mesh.node(), mesh.peer("Ann")
    client = DeskClient(node.firmware)
    client.send(text_packet("x", to=ann.number, packet_id=1, want_ack=True))
    await clock.advance(60)
    client.take()
    assert routings(client.taken) == [(node.number, 1, RoutingError.MAX_RETRANSMIT)]
    assert transmissions(mesh, 1) == [Cause.CLIENT, Cause.RESEND, Cause.RESEND]


async def test_resend_of_the_originator_is_relayed_again(mesh: SimulatedMesh, clock: ManualClock) -> None:
    """The first relay fades on its way on; nobody acks, because the originator cannot hear its relay either."""
    node, ann, far = mesh.node(), mesh.peer("Ann"), mesh.peer("Far")
    mesh.link(node, ann, back=Link(loss=1.0))
    mesh.link(ann, far, loss=1.0)
    client = DeskClient(node.firmware)
    client.send(text_packet("x", to=far.number, packet_id=1, want_ack=True))
    await clock.advance(90)
    assert transmissions(mesh, 1) == [Cause.CLIENT, Cause.RESEND, Cause.RESEND]
    assert len(relays(mesh, 1)) == 3


async def test_repeat_that_came_over_a_relay_is_not_acked_again(mesh: SimulatedMesh, clock: ManualClock) -> None:
    """Far hears the packet from Ann directly and then over the relay: one text, one ack."""
    ann, bob, far = mesh.peer("Ann"), mesh.peer("Bob"), mesh.peer("Far", role="CLIENT_MUTE")
    mesh.link(ann, bob)
    mesh.link(bob, far)
    mesh.link(ann, far)
    far.acks.copies = 0
    packet_id = await say(clock, ann, "once", to=far.number)
    assert len(relays(mesh, packet_id)) == 1
    far.acks.copies = 1
    packet_id = await say(clock, ann, "twice", to=far.number)
    assert [heard.text for heard in far.inbox] == ["once", "twice"]
    acks = [entry for entry in mesh.log if entry.request_id == packet_id and entry.cause is Cause.ACK]
    assert len(acks) == 1


async def test_direct_messages_follow_the_way_their_acks_came(mesh: SimulatedMesh, clock: ManualClock) -> None:
    """Two ways lead to Far; once an ack has shown one of them, nobody on the other relays any more."""
    ann, bob, cem, far = mesh.peer("Ann"), mesh.peer("Bob"), mesh.peer("Cem"), mesh.peer("Far", role="CLIENT_MUTE")
    for relay in (bob, cem):
        mesh.link(ann, relay)
        mesh.link(relay, far)
    assert ann.routing is not None
    for number in range(6):
        packet_id = await say(clock, ann, f"text {number}", to=far.number, seconds=120)
        if number and far.number in ann.routing.next_hops:
            last = packet_id
    way = ann.routing.next_hops[far.number]
    assert way in (relay_byte(bob.number), relay_byte(cem.number))
    assert [(entry.relay_node, entry.by & 0xFF) for entry in relays(mesh, last)] == [(way, way)]
    first_of_last = next(entry for entry in mesh.log if entry.packet_id == last)
    assert first_of_last.next_hop == way


async def test_message_to_a_neighbour_is_soon_relayed_by_nobody(mesh: SimulatedMesh, clock: ManualClock) -> None:
    ann, bob, other = mesh.peer("Ann"), mesh.peer("Bob", role="CLIENT_MUTE"), mesh.peer("Other")
    for one, another in itertools.combinations((ann, bob, other), 2):
        mesh.link(one, another)
    for _ in range(4):
        packet_id = await say(clock, ann, "psst", to=bob.number)
    assert ann.routing is not None
    assert ann.routing.next_hops == {bob.number: relay_byte(bob.number)}
    assert relays(mesh, packet_id) == []
    assert ann.answers_to(packet_id) == [0]


async def test_last_attempt_falls_back_to_flooding(mesh: SimulatedMesh, clock: ManualClock) -> None:
    ann, bob, cem, far = mesh.peer("Ann"), mesh.peer("Bob"), mesh.peer("Cem"), mesh.peer("Far", role="CLIENT_MUTE")
    for relay in (bob, cem):
        mesh.link(ann, relay)
        mesh.link(relay, far)
    assert ann.routing is not None
    ann.routing.next_hops[far.number] = relay_byte(bob.number)
    bob.is_deaf = True
    packet_id = await say(clock, ann, "still there?", to=far.number, seconds=120)
    tries = [entry for entry in mesh.log if entry.packet_id == packet_id and entry.by == ann.number]
    assert [(entry.cause, entry.next_hop) for entry in tries] == [
        (Cause.PEER, relay_byte(bob.number)),
        (Cause.RESEND, relay_byte(bob.number)),
        (Cause.RESEND, 0),
    ]
    assert {entry.by for entry in relays(mesh, packet_id)} == {cem.number}
    assert [heard.text for heard in far.inbox] == ["still there?"]
    assert ann.answers_to(packet_id) == [0]
    assert ann.routing.next_hops.get(far.number) in (None, relay_byte(cem.number))


async def test_relay_whose_next_hop_is_silent_lets_anybody_carry_on(mesh: SimulatedMesh, clock: ManualClock) -> None:
    """Ann - Bob - (Cem or Dan) - Far; Bob believes in Cem, who is gone."""
    ann, bob, cem, dan = mesh.peer("Ann"), mesh.peer("Bob"), mesh.peer("Cem"), mesh.peer("Dan")
    far = mesh.peer("Far", role="CLIENT_MUTE")
    chain(mesh, ann, bob, cem, far)
    chain(mesh, bob, dan, far)
    assert bob.routing is not None
    bob.routing.next_hops[far.number] = relay_byte(cem.number)
    cem.is_deaf = True
    packet_id = await say(clock, ann, "hello", to=far.number, seconds=120)
    assert [(entry.by, entry.next_hop) for entry in relays(mesh, packet_id)][:3] == [
        (bob.number, relay_byte(cem.number)),
        (bob.number, 0),
        (dan.number, 0),
    ]
    assert [heard.text for heard in far.inbox] == ["hello"]


async def test_resend_of_the_originator_does_not_take_back_a_relay_that_waits(
    mesh: SimulatedMesh, clock: ManualClock
) -> None:
    """Ann - Bob - Far; Dan talks so long that Ann sends again before Bob could relay."""
    ann, bob, far = (mesh.peer(name) for name in ("Ann", "Bob", "Far"))
    dan = mesh.peer("Dan", role="CLIENT_MUTE")
    chain(mesh, ann, bob, far)
    mesh.link(bob, dan)
    packet_id = await say(clock, ann, "hello", to=far.number, seconds=1)
    talk = [asyncio.ensure_future(dan.send_channel(0, "x" * 200, hop_limit=0)) for _ in range(3)]
    await clock.advance(120)
    await asyncio.gather(*talk)
    sent = [entry for entry in mesh.log if entry.packet_id == packet_id and entry.cause is not Cause.RELAY]
    assert sent[1].at < relays(mesh, packet_id)[0].at
    assert [heard.text for heard in far.inbox] == ["hello"]
    assert len(sent) == 2


async def test_relay_waits_for_its_next_hop_longer_while_others_are_on_air(
    mesh: SimulatedMesh, clock: ManualClock
) -> None:
    """Ann - Bob - Cem - Far; Cem is gone, and Dan, whom Bob hears too, talks meanwhile."""
    ann, bob, cem, far = (mesh.peer(name) for name in ("Ann", "Bob", "Cem", "Far"))
    dan = mesh.peer("Dan", role="CLIENT_MUTE")
    chain(mesh, ann, bob, cem, far)
    mesh.link(bob, dan)
    assert bob.routing is not None
    bob.routing.next_hops[far.number] = relay_byte(cem.number)
    cem.is_deaf = True
    packet_id = await say(clock, ann, "hello", to=far.number, seconds=1)
    question = mesh.log[-1]
    talk = [asyncio.ensure_future(dan.send_channel(0, "x" * 200, hop_limit=0)) for _ in range(3)]
    await clock.advance(120)
    await asyncio.gather(*talk)
    first, second, *_ = relays(mesh, packet_id)
    assert (first.by, second.by) == (bob.number, bob.number)
    heard_at = question.at + question.airtime_s
    assert mesh.air.channel is not None
    texts = mesh.air.channel.tally[dan.number, bob.number][Outcome.HEARD]
    others_s = texts * next(entry.airtime_s for entry in mesh.log if entry.by == dan.number)
    assert others_s > 5
    assert second.at - heard_at > mesh.air.modem.resend_wait_s(question.frame_bytes) + others_s


async def test_reboot_forgets_the_ways(mesh: SimulatedMesh, clock: ManualClock) -> None:
    node, ann = mesh.node(role="CLIENT"), mesh.peer("Ann")
    chain(mesh, node, ann)
    client = DeskClient(node.firmware)
    client.send(text_packet("x", to=ann.number, packet_id=1, want_ack=True))
    await clock.advance(30)
    assert node.firmware.routing is not None
    assert node.firmware.routing.next_hops == {ann.number: relay_byte(ann.number)}
    node.firmware.reboot()
    assert node.firmware.routing.next_hops == {}


async def test_acks_over_four_lossy_relays_are_made_up_for_by_resends(mesh: SimulatedMesh, clock: ManualClock) -> None:
    line = [mesh.peer(name) for name in ("Ann", "Bob", "Cem", "Dan")]
    chain(mesh, *line, loss=0.2)
    told = [await say(clock, line[0], f"text {number}", to=line[-1].number, seconds=150) for number in range(20)]
    assert 10 <= len(line[-1].inbox) < 20, "an implicit ack ends the resends, so some are lost behind the first relay"
    assert len({heard.packet_id for heard in line[-1].inbox}) == len(line[-1].inbox)
    assert Cause.RESEND in {entry.cause for entry in mesh.log}
    acked = [packet_id for packet_id in told if 0 in line[0].answers_to(packet_id)]
    assert set(acked) <= {heard.packet_id for heard in line[-1].inbox}


async def test_thirty_percent_loss_over_one_hop(mesh: SimulatedMesh, clock: ManualClock) -> None:
    """Three tries bring 1 - 0.3^3 = 97.3 % of the texts over, each once; of 250 that is 243, give or take 8."""
    node, ann = mesh.node(), mesh.peer("Ann")
    mesh.link(node, ann, loss=0.3)
    client = DeskClient(node.firmware)
    for number in range(1, 251):
        client.send(text_packet(f"text {number}", to=ann.number, packet_id=number, want_ack=True))
        await clock.advance(60)
        client.take()
    assert abs(len(ann.inbox) - 243) <= 8
    assert len({heard.packet_id for heard in ann.inbox}) == len(ann.inbox)
    told = {packet_id: error for _, packet_id, error in routings(client.taken)}
    refused = {number for number in range(1, 251) if told.get(number) == RoutingError.MAX_RETRANSMIT}
    unheard = set(range(1, 251)) - {heard.packet_id for heard in ann.inbox}
    assert unheard <= refused, "what did not come over is told"
    assert {number for number in range(1, 251) if told.get(number) == 0} | refused == set(range(1, 251))


async def test_duty_cycle_counts_relays(clock: ManualClock) -> None:
    async with SimulatedMesh(clock=clock, rng=random.Random(1), region="EU_868", by_distance=False) as mesh:
        node, ann = mesh.node(role="CLIENT"), mesh.peer("Ann")
        mesh.link(node, ann)
        client = DeskClient(node.firmware)
        node.firmware.ledger.sent(359.0)
        await say(clock, ann, "x" * 200)
        assert node.firmware.ledger.own_s == pytest.approx(359.0 + 1.910), "what it relayed is its own airtime"
        said = client.send(text_packet("over", packet_id=2))
        assert routings(said) == [(node.number, 2, RoutingError.DUTY_CYCLE_LIMIT)]
        before = len(mesh.log)
        await say(clock, ann, "y")
        assert [entry.by for entry in mesh.log[before:]] == [ann.number], "and over the limit it relays no more"


async def test_without_interference_all_is_heard(clock: ManualClock) -> None:
    async with SimulatedMesh(clock=clock, rng=random.Random(1), interference=False) as mesh:
        _, near, far = mesh.node(), mesh.peer("Near"), mesh.peer("Far", distance=2)
        for number in range(5):  # who does not hear the other speaks at the same time
            both = [asyncio.ensure_future(peer.send_channel(0, f"{number}")) for peer in (near, far)]
            await clock.advance(60)
            await asyncio.gather(*both)
    assert [len(peer.inbox) for peer in (near, far)] == [5, 5]
