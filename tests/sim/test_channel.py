"""The true channel by hand-computed cases: collisions, capture, half-duplex, carrier sense and occupancy."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meshtastic.protobuf import mesh_pb2

from meshai.airtime import PRESETS
from meshai.messages import BROADCAST, NodeNum
from meshai.sim.channel import Channel, Outcome
from meshai.sim.links import Link, Links
from meshai.sim.packets import TEXT, make_packet
from meshai.testing import ManualClock

A, B, C, D = 0xA, 0xB, 0xC, 0xD
MODEM = PRESETS["LONG_FAST"]


class Ear:
    """A station that only listens and takes notes."""

    def __init__(self, number: NodeNum) -> None:
        self.number = number
        self.is_deaf = False
        self.heard: list[mesh_pb2.MeshPacket] = []
        self.busy: list[float] = []

    def sensed(self, busy_s: float) -> None:
        self.busy.append(round(busy_s, 6))

    def hear(self, packet: mesh_pb2.MeshPacket) -> None:
        self.heard.append(packet)


class Spectrum:
    """Four stations; C hears everybody, A and B do not hear each other, D hears A alone."""

    def __init__(self, clock: ManualClock, *, capture_db: float | None, a_snr: float = 6.0, b_snr: float = 6.0) -> None:
        self.clock = clock
        self.links = Links()
        self.links.connect(A, C, Link(snr=a_snr))
        self.links.connect(B, C, Link(snr=b_snr))
        self.links.connect(A, D, Link(snr=-3.0))
        self.channel = Channel(self.links, clock=clock, rng=random.Random(3), modem=MODEM, capture_db=capture_db)
        self.ears = {number: Ear(number) for number in (A, B, C, D)}
        for ear in self.ears.values():
            self.channel.attach(ear)
        self.running: list[asyncio.Task[None]] = []

    def send(self, by: NodeNum, at: float, airtime_s: float) -> None:
        """Let a station transmit after `at` seconds; its packet's id is its number."""
        self.running.append(asyncio.create_task(self._send(by, at, airtime_s)))

    async def _send(self, by: NodeNum, at: float, airtime_s: float) -> None:
        await self.clock.sleep(at)
        await self.channel.carry(
            make_packet(by, BROADCAST, TEXT, b"x", packet_id=by), by, airtime_s, self.clock.monotonic()
        )

    def heard(self, number: NodeNum) -> list[int]:
        return [packet.id for packet in self.ears[number].heard]

    def outcomes(self, sender: NodeNum, receiver: NodeNum) -> list[Outcome]:
        return list(self.channel.tally.get((sender, receiver), {}).elements())  # type: ignore[union-attr]


@pytest.fixture
async def spectrum(clock: ManualClock) -> AsyncIterator[Spectrum]:
    made = Spectrum(clock, capture_db=None)
    yield made
    await clock.advance(10)
    await asyncio.gather(*made.running)


async def test_overlapping_packets_are_both_lost_where_both_are_heard(spectrum: Spectrum, clock: ManualClock) -> None:
    spectrum.send(A, 0.0, 1.0)
    spectrum.send(B, 0.999, 1.0)
    await clock.advance(5)
    assert spectrum.heard(C) == []
    assert spectrum.outcomes(A, C) == spectrum.outcomes(B, C) == [Outcome.COLLIDED]
    assert spectrum.heard(D) == [A], "who does not hear the other hears the first one well"
    assert (spectrum.heard(A), spectrum.heard(B)) == ([], []), "and those two are hidden from each other"


async def test_packet_that_begins_as_another_ends_does_not_overlap_it(spectrum: Spectrum, clock: ManualClock) -> None:
    spectrum.send(A, 0.0, 1.0)
    spectrum.send(B, 1.0, 1.0)
    spectrum.send(A, 2.0, 0.5)
    await clock.advance(5)
    assert spectrum.heard(C) == [A, B, A]


async def test_a_third_packet_spoils_only_what_it_overlaps(spectrum: Spectrum, clock: ManualClock) -> None:
    spectrum.send(A, 0.0, 1.0)
    spectrum.send(A, 1.5, 1.0)
    spectrum.send(B, 2.0, 1.0)
    spectrum.send(B, 3.5, 1.0)
    await clock.advance(5)
    assert spectrum.heard(C) == [A, B]


@pytest.mark.parametrize("is_stronger_first", [True, False])
@pytest.mark.parametrize(
    ("capture_db", "difference", "survivors"), [(6.0, 6.0, 1), (6.0, 5.75, 0), (6.0, 20.0, 1), (None, 20.0, 0)]
)
async def test_capture(
    clock: ManualClock, is_stronger_first: bool, capture_db: float | None, difference: float, survivors: int
) -> None:
    spectrum = Spectrum(clock, capture_db=capture_db, a_snr=-10.0 + difference, b_snr=-10.0)
    first, second = (A, B) if is_stronger_first else (B, A)
    spectrum.send(first, 0.0, 1.0)
    spectrum.send(second, 0.5, 1.0)
    await clock.advance(5)
    assert spectrum.heard(C) == [A] * survivors
    await asyncio.gather(*spectrum.running)


@pytest.mark.parametrize(
    ("c_at", "c_airtime", "expected"),
    [
        (0.5, 0.1, [Outcome.DEAFENED]),  # begins and ends while the other is on air
        (0.0, 0.2, [Outcome.DEAFENED]),  # misses only the beginning
        (0.9, 5.0, [Outcome.DEAFENED]),  # misses only the end
        (1.0, 1.0, [Outcome.HEARD]),
    ],
)
async def test_station_that_sends_hears_nothing(
    spectrum: Spectrum, clock: ManualClock, c_at: float, c_airtime: float, expected: list[Outcome]
) -> None:
    spectrum.send(C, c_at, c_airtime)
    spectrum.send(A, 0.0, 1.0)
    await clock.advance(10)
    assert spectrum.outcomes(A, C) == expected


async def test_both_ends_of_a_link_that_send_at_once_hear_neither(spectrum: Spectrum, clock: ManualClock) -> None:
    spectrum.send(A, 0.0, 1.0)
    spectrum.send(C, 0.0, 1.0)
    await clock.advance(5)
    assert spectrum.outcomes(A, C) == spectrum.outcomes(C, A) == [Outcome.DEAFENED]
    assert spectrum.heard(B) == [C]


async def test_occupancy_counts_time_once_and_without_ones_own(spectrum: Spectrum, clock: ManualClock) -> None:
    spectrum.send(A, 0.0, 1.0)
    spectrum.send(B, 0.5, 1.0)  # 1.5 s in all at C, though neither can be read
    spectrum.send(A, 3.0, 1.0)
    spectrum.send(C, 3.25, 0.5)  # of this second, half is C's own
    spectrum.send(C, 5.0, 2.0)
    await clock.advance(10)
    assert spectrum.ears[C].busy == [1.5, 0.5]
    assert spectrum.ears[D].busy == [1.0, 1.0]
    assert spectrum.ears[B].busy == [0.5, 2.0]


async def test_two_that_end_at_once_are_counted_once(spectrum: Spectrum, clock: ManualClock) -> None:
    spectrum.send(A, 0.0, 2.0)
    spectrum.send(B, 1.0, 1.0)
    spectrum.send(C, 1.5, 0.5)
    await clock.advance(5)
    assert spectrum.ears[C].busy == [1.5]


async def test_carrier_is_sensed_after_two_and_a_half_symbols(spectrum: Spectrum, clock: ManualClock) -> None:
    sensed_s = 2.5 * MODEM.symbol_ms / 1000
    assert round(sensed_s, 5) == 0.02048
    start = clock.monotonic()
    spectrum.send(A, 0.0, 1.0)
    await clock.advance(sensed_s - 0.001)
    assert not spectrum.channel.has_stirred(C, start, clock.monotonic())
    await clock.advance(0.002)
    assert spectrum.channel.has_stirred(C, start, clock.monotonic())
    assert not spectrum.channel.has_stirred(B, start, clock.monotonic()), "a hidden station senses nothing"
    clear = asyncio.create_task(spectrum.channel.until_clear(C))
    await clock.advance(0.9)
    assert not clear.done()
    await clock.advance(0.1)
    assert clear.done()
    assert spectrum.channel.has_stirred(C, start, clock.monotonic()), "it has ended, but since then"
    assert not spectrum.channel.has_stirred(C, clock.monotonic(), clock.monotonic())


async def test_loss_is_of_the_link_and_direction(clock: ManualClock) -> None:
    spectrum = Spectrum(clock, capture_db=None)
    spectrum.links.connect(A, C, Link(loss=0.3, snr=2.0), back=Link(loss=0.0, snr=9.0))
    for number in range(400):
        spectrum.send(A, 2.0 * number, 0.5)
        spectrum.send(C, 2.0 * number + 1, 0.5)
    await clock.advance(1000)
    tally = spectrum.channel.tally
    assert set(tally[A, C]) == {Outcome.HEARD, Outcome.FADED}
    assert 95 <= tally[A, C][Outcome.FADED] <= 145, "0.3 of 400, give or take"
    assert tally[C, A] == {Outcome.HEARD: 400}
    assert {(packet.rx_snr, packet.rx_rssi) for packet in spectrum.ears[C].heard} == {(2.0, -115)}
    assert {packet.rx_snr for packet in spectrum.ears[A].heard} == {9.0}
    await asyncio.gather(*spectrum.running)


async def test_station_that_is_off(spectrum: Spectrum, clock: ManualClock) -> None:
    spectrum.ears[C].is_deaf = True
    spectrum.send(A, 0.0, 1.0)
    await clock.advance(5)
    assert (spectrum.outcomes(A, C), spectrum.ears[C].busy) == ([Outcome.OFF], [])


async def test_link_that_is_cut(spectrum: Spectrum, clock: ManualClock) -> None:
    spectrum.links.cut(A, C)
    spectrum.send(A, 0.0, 1.0)
    spectrum.send(C, 2.0, 1.0)
    await clock.advance(5)
    assert (spectrum.heard(C), spectrum.heard(A), spectrum.heard(D), spectrum.heard(B)) == ([], [], [A], [C])


async def test_packet_by_mqtt_has_no_signal_report(spectrum: Spectrum, clock: ManualClock) -> None:
    packet = make_packet(A, BROADCAST, TEXT, b"x", packet_id=1)
    packet.via_mqtt = True
    spectrum.running.append(asyncio.create_task(spectrum.channel.carry(packet, A, 1.0, clock.monotonic())))
    await clock.advance(2)
    (received,) = spectrum.ears[C].heard
    assert (received.rx_snr, received.rx_rssi) == (0, 0)


def test_fewest_relays() -> None:
    links = Links()
    for one, other in ((1, 2), (2, 3), (3, 4), (1, 5), (5, 4), (6, 7)):
        links.connect(one, other, Link())
    assert links.hops_from(1) == {2: 0, 5: 0, 3: 1, 4: 1}


def test_renumbered_station_keeps_its_links() -> None:
    links = Links()
    links.connect(1, 2, Link(snr=1.0), back=Link(snr=2.0))
    links.renumber(2, 9)
    assert dict(links.of(1)) == {9: Link(snr=1.0)}
    assert dict(links.of(9)) == {1: Link(snr=2.0)}
    assert dict(links.of(2)) == {}


TRANSMISSION = st.tuples(st.sampled_from([A, B, C, D]), st.integers(0, 60), st.integers(1, 12))


@settings(max_examples=80, deadline=None)
@given(schedule=st.lists(TRANSMISSION, max_size=12), capture_db=st.sampled_from([None, 6.0]), data=st.data())
def test_any_schedule_ends_as_its_definition_says(
    schedule: list[tuple[NodeNum, int, int]], capture_db: float | None, data: st.DataObject
) -> None:
    """Against the plain definition: every pair of transmissions compared, in tenths of a second."""
    links = Links()
    for one, other in itertools.combinations((A, B, C, D), 2):
        if data.draw(st.booleans()):
            links.connect(one, other, Link(snr=data.draw(st.sampled_from([-10.0, -5.0, 2.0]))))
    schedule = [
        (by, start, length)
        for index, (by, start, length) in enumerate(schedule)
        # A station finishes one packet before it begins another.
        if not any(
            by == other and start < end and begin < start + length for other, begin, end in spans(schedule[:index])
        )
    ]
    heard, busy = asyncio.run(simulate(links, schedule, capture_db))
    assert heard == expected(links, schedule, capture_db)
    assert busy == occupied(links, schedule)


def spans(schedule: list[tuple[NodeNum, int, int]]) -> list[tuple[NodeNum, int, int]]:
    return [(by, start, start + length) for by, start, length in schedule]


async def simulate(
    links: Links, schedule: list[tuple[NodeNum, int, int]], capture_db: float | None
) -> tuple[set[tuple[NodeNum, int]], dict[NodeNum, int]]:
    """(receiver, index of what it heard), and tenths of a second for which each station found the channel busy."""
    clock = ManualClock()
    channel = Channel(links, clock=clock, rng=random.Random(1), modem=MODEM, capture_db=capture_db)
    ears = {number: Ear(number) for number in (A, B, C, D)}
    for ear in ears.values():
        channel.attach(ear)

    async def send(index: int, by: NodeNum, start: int, length: int) -> None:
        await clock.sleep(start / 10)
        await channel.carry(
            make_packet(by, BROADCAST, TEXT, b"x", packet_id=index + 1), by, length / 10, clock.monotonic()
        )

    running = [asyncio.create_task(send(index, *entry)) for index, entry in enumerate(schedule)]
    await clock.advance(10)
    await asyncio.gather(*running)
    heard = {(number, packet.id - 1) for number, ear in ears.items() for packet in ear.heard}
    return heard, {number: round(10 * sum(ear.busy)) for number, ear in ears.items()}


def expected(
    links: Links, schedule: list[tuple[NodeNum, int, int]], capture_db: float | None
) -> set[tuple[NodeNum, int]]:
    heard = set()
    for index, (by, start, end) in enumerate(spans(schedule)):
        for receiver, link in links.of(by).items():
            overlapping = [
                other
                for rival, (other, begin, finish) in enumerate(spans(schedule))
                if rival != index and begin < end and start < finish
            ]
            rivals = [links.of(other)[receiver] for other in overlapping if receiver in links.of(other)]
            survives = capture_db is not None and all(link.snr - rival.snr >= capture_db for rival in rivals)
            if receiver not in overlapping and (not rivals or survives):
                heard.add((receiver, index))
    return heard


def occupied(links: Links, schedule: list[tuple[NodeNum, int, int]]) -> dict[NodeNum, int]:
    busy = {}
    for number in (A, B, C, D):
        heard = {t for by, start, end in spans(schedule) if number in links.of(by) for t in range(start, end)}
        own = {t for by, start, end in spans(schedule) if by == number for t in range(start, end)}
        busy[number] = len(heard - own)
    return busy
