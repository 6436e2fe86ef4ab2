"""Airtime as a budget: what is counted, who is refused, how long answers may be, and when packets are held."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pytest

from meshai.airtime import PRESETS
from meshai.config import AirtimeSettings
from meshai.governor import BUSY_GAP_S, MEASURED_S, Governor, note
from meshai.messages import Address, Channel, Delivery, Direct, Fate, Node, NodeNum, OutgoingPacket, Priority
from meshai.radio.base import OwnNode
from meshai.store.database import Database, open_database
from meshai.testing import FakeRadio, ManualClock

ANNA, BEN = 0xA11A, 0xBE17
ME = Node(0xB0B, "MeshAI", "AI")
TEXT = "x" * 150
DIRECT_S = 1.673
"""LONG_FAST, 150 bytes with a reply id, public-key encrypted: 17 bytes more than what takes 1542 ms."""
CHANNEL_S = 1.591


class MeasuringRadio(FakeRadio):
    """A node that tells how busy it finds the channel."""

    def __init__(self, *, region: str = "US", preset: str = "LONG_FAST") -> None:
        super().__init__(OwnNode(ME, PRESETS[preset], region, preset, hop_limit=3))
        self.utilisation_percent: float | None = None

    def nodes(self) -> Mapping[NodeNum, Node]:
        return {ME.number: dataclasses.replace(ME, channel_utilisation_percent=self.utilisation_percent)}


@pytest.fixture
def radio() -> MeasuringRadio:
    return MeasuringRadio()


class Queue:
    seconds = 0.0


@pytest.fixture
def queue() -> Queue:
    return Queue()


@pytest.fixture
def governor(database: Database, radio: MeasuringRadio, clock: ManualClock, queue: Queue) -> Governor:
    return Governor(database, radio, AirtimeSettings(), clock=clock, queued_s=lambda: queue.seconds)


def direct(number: int = 1, *, node: NodeNum = ANNA, hops: int | None = 0) -> OutgoingPacket:
    return OutgoingPacket(Address(Direct(node), 200, 5, 0, hops), TEXT, packet_id=number)


def channel(number: int = 1, *, hops: int | None = 0) -> OutgoingPacket:
    return OutgoingPacket(Address(Channel(2), 160, 5, 2, hops), TEXT, packet_id=number)


def test_a_packet_costs_its_airtime_and_on_a_channel_its_relays(governor: Governor) -> None:
    assert governor.cost_s(direct().address, 150) == pytest.approx(DIRECT_S, abs=0.05)
    one_s = governor.cost_s(channel(hops=None).address, 150) / 4
    assert one_s == pytest.approx(CHANNEL_S, abs=0.05)
    assert governor.cost_s(channel(hops=0).address, 150) == pytest.approx(3 * one_s), "two hops more than the question"
    assert governor.cost_s(channel(hops=7).address, 150) == pytest.approx(4 * one_s), "never above the node's own limit"


def test_where_there_is_no_air_nothing_costs_or_holds(database: Database, clock: ManualClock) -> None:
    governor = Governor(database, FakeRadio(), AirtimeSettings(), clock=clock, queued_s=lambda: 0.0)
    for number in range(1000):
        assert governor.hold(direct(number), Priority.DIRECT) == ""
        assert governor.sent(direct(number)) == 0.0
    assert governor.spending.spent_s == 0.0


@pytest.mark.parametrize(
    ("region", "share_percent", "budget_s"),
    [
        ("US", 2, 72),
        ("EU_868", 2, 72),
        ("EU_868", 20, 180),
        ("UA_868", 2, 18),
        ("US", 50, 1800),
    ],
)
def test_the_budget_is_the_share_and_never_above_half_the_duty_cycle(
    database: Database, clock: ManualClock, region: str, share_percent: float, budget_s: float
) -> None:
    settings = AirtimeSettings(share_percent=share_percent)
    governor = Governor(database, MeasuringRadio(region=region), settings, clock=clock, queued_s=lambda: 0.0)
    assert governor.spending.budget_s == pytest.approx(budget_s)


async def test_no_rolling_hour_ever_holds_more_than_the_budget(governor: Governor, clock: ManualClock) -> None:
    """Whatever is sent as soon as it may be, and repeated by the firmware whenever it can be."""
    spent: list[tuple[float, float]] = []
    for number in range(600):
        packet, priority = (channel(number), Priority.CHANNEL) if number % 3 else (direct(number), Priority.DIRECT)
        if not governor.hold(packet, priority):
            cost_s = governor.sent(packet)
            fate = Fate.HANDED_OVER if number % 3 else Fate.UNCONFIRMED
            spent.append((clock.monotonic(), cost_s + governor.ended(packet, Delivery(fate))))
        await clock.advance(20)
    for began, _ in spent:
        assert sum(cost_s for at, cost_s in spent if began <= at < began + 3600) <= 72
    assert sum(cost_s for _, cost_s in spent) > 72 * 3, "but it is used"


def test_the_last_of_the_budget_is_for_commands_and_before_that_for_direct_messages(governor: Governor) -> None:
    def fill(packet: OutgoingPacket, priority: Priority) -> float:
        while not governor.hold(packet, priority):
            governor.sent(packet)
            governor.ended(packet, Delivery(Fate.DELIVERED))
        return governor.spending.spent_s

    assert 45 < fill(channel(), Priority.CHANNEL) <= 54
    assert 54 < fill(direct(), Priority.DIRECT) <= 64.8
    assert 64.8 < fill(direct(), Priority.COMMAND) <= 72


def test_room_for_the_firmwares_repeats_is_kept_until_the_fate_is_known(governor: Governor) -> None:
    assert governor.sent(direct(1)) == pytest.approx(DIRECT_S, abs=0.05)
    assert governor.ended(direct(1), Delivery(Fate.FAILED, "MAX_RETRANSMIT")) == pytest.approx(2 * DIRECT_S, abs=0.1)
    governor.sent(direct(2))
    assert governor.ended(direct(2), Delivery(Fate.DELIVERED)) == 0
    assert governor.spending.spent_s == pytest.approx(4 * DIRECT_S, abs=0.2)
    under_way = 0
    while not governor.hold(direct(100 + under_way), Priority.DIRECT):
        governor.sent(direct(100 + under_way))
        under_way += 1
    assert under_way * 3 * DIRECT_S < 64.8


async def test_what_was_spent_before_a_restart_counts(tmp_path: Path, radio: MeasuringRadio) -> None:
    clock = ManualClock()
    async with open_database(tmp_path / "a.db") as database:
        async with database.transaction() as db:
            await note(db, clock.now() - 3700, 30.0, 1)
            await note(db, clock.now() - 1800, 20.0, 1)
            await note(db, clock.now(), 10.0, 1)
            await note(db, clock.now(), 0.0, 1)
        governor = Governor(database, radio, AirtimeSettings(), clock=clock, queued_s=lambda: 0.0)
        await governor.load()
    assert governor.spending.spent_s == 30.0
    await clock.advance(1801)
    assert governor.spending.spent_s == 10.0
    await clock.advance(1801)
    assert governor.spending.spent_s == 0.0


async def test_a_clock_that_went_back_does_not_give_the_hour_anew(tmp_path: Path, radio: MeasuringRadio) -> None:
    clock = ManualClock()
    async with open_database(tmp_path / "a.db") as database:
        async with database.transaction() as db:
            await note(db, clock.now(), 60.0, 9)
        clock.step(-7200)
        governor = Governor(database, radio, AirtimeSettings(), clock=clock, queued_s=lambda: 0.0)
        await governor.load()
    assert governor.spending.spent_s == 60.0
    await clock.advance(3601)
    assert governor.spending.spent_s == 0.0


def ask(governor: Governor, packet: OutgoingPacket, priority: Priority, node: NodeNum = ANNA) -> str | None:
    """What is told, empty for silence, None for an answer."""
    refusal = governor.refusal(node, packet.address, priority, packet_bytes=150)
    return None if refusal is None else refusal.text


async def test_who_asks_too_often_is_told_once_an_hour(governor: Governor, clock: ManualClock) -> None:
    answered = [ask(governor, direct(), Priority.DIRECT) for _ in range(40)]
    assert answered == [None] * 40
    assert ask(governor, direct(), Priority.DIRECT) == (
        "To keep the channel free I pause my answers to you. Ask again in 2 min."
    )
    assert ask(governor, direct(), Priority.DIRECT) == ""
    assert ask(governor, direct(node=BEN), Priority.DIRECT, BEN) is None
    await clock.advance(91)
    assert ask(governor, direct(), Priority.DIRECT) is None
    assert ask(governor, direct(), Priority.DIRECT) == ""
    for _ in range(36):
        await clock.advance(60)
        ask(governor, direct(), Priority.DIRECT)
    while (told := ask(governor, direct(), Priority.DIRECT)) is None:
        pass
    assert told == ""
    await clock.advance(1400)
    while (told := ask(governor, direct(), Priority.DIRECT)) is None:
        pass
    assert "Ask again in " in told


def test_on_a_channel_nobody_is_told(governor: Governor) -> None:
    while (told := ask(governor, channel(), Priority.CHANNEL)) is None:
        pass
    assert told == ""


async def test_without_airtime_for_one_packet_nothing_is_asked_of_the_model(
    governor: Governor, clock: ManualClock, queue: Queue
) -> None:
    queue.seconds = 52.0
    assert ask(governor, channel(), Priority.CHANNEL) == ""
    assert ask(governor, direct(), Priority.DIRECT) is None
    queue.seconds = 0.0
    number = 0
    while governor.spending.spent_s < 62:
        number += 1
        governor.sent(direct(number))
        governor.ended(direct(number), Delivery(Fate.DELIVERED))
        await clock.advance(10)
    told = ask(governor, direct(), Priority.DIRECT)
    assert told is not None
    assert "Ask again in 54 min" in told
    assert ask(governor, direct(), Priority.COMMAND) is None, "the last tenth is for commands"
    await clock.advance(54 * 60)
    assert ask(governor, direct(), Priority.DIRECT) is None


def test_an_answer_is_as_long_as_the_budget_allows(governor: Governor, queue: Queue) -> None:
    def most(packet: OutgoingPacket, priority: Priority) -> int:
        return governor.most_packets(packet.address, priority, packet_bytes=150, most=3)

    assert most(direct(), Priority.DIRECT) == 3
    queue.seconds = 64.8 - 2.5 * DIRECT_S
    assert most(direct(), Priority.DIRECT) == 2
    queue.seconds = 64.8
    assert most(direct(), Priority.DIRECT) == 1, "an answer that was begun is at least said in brief"


async def test_a_busy_channel_shortens_and_delays_and_a_full_one_leaves_only_direct_messages(
    governor: Governor, radio: MeasuringRadio, clock: ManualClock
) -> None:
    radio.utilisation_percent = 25.0
    governor.sent(channel(1))
    assert governor.hold(channel(2), Priority.CHANNEL) == ""
    assert governor.most_packets(direct().address, Priority.DIRECT, packet_bytes=150, most=3) == 3
    radio.utilisation_percent = 31.4
    assert governor.most_packets(direct().address, Priority.DIRECT, packet_bytes=150, most=3) == 1
    assert governor.hold(channel(2), Priority.CHANNEL) == "a pause, as the channel is 31 % busy"
    assert governor.hold(direct(2), Priority.COMMAND) == "a pause, as the channel is 31 % busy"
    await clock.advance(BUSY_GAP_S)
    assert governor.hold(channel(2), Priority.CHANNEL) == ""
    radio.utilisation_percent = 40.5
    assert governor.hold(channel(2), Priority.CHANNEL) == "the channel is 40 % busy"
    assert governor.hold(channel(2), Priority.COMMAND) == "the channel is 40 % busy"
    assert governor.hold(direct(2), Priority.DIRECT) == ""
    radio.utilisation_percent = 12.0
    assert governor.hold(channel(2), Priority.CHANNEL) == ""
    assert governor.spending.utilisation_percent == 12.0


async def test_a_node_that_no_longer_measures_silences_nobody_for_ever(
    governor: Governor, radio: MeasuringRadio, clock: ManualClock
) -> None:
    radio.utilisation_percent = 80.0
    assert governor.hold(channel(), Priority.CHANNEL)
    await clock.advance(MEASURED_S + 1)
    assert governor.hold(channel(), Priority.CHANNEL) == ""
    assert governor.spending.utilisation_percent is None
    radio.utilisation_percent = 80.1
    assert governor.hold(channel(), Priority.CHANNEL)


@pytest.mark.parametrize(("after_s", "resends"), [(3, 0), (12, 1), (25, 2), (90, 2)])
async def test_an_ack_that_comes_late_is_of_a_resend(
    governor: Governor, clock: ManualClock, after_s: float, resends: int
) -> None:
    """The firmware waits some 9.4 s before each on an idle LONG_FAST channel."""
    cost_s = governor.sent(direct())
    await clock.advance(after_s)
    assert governor.ended(direct(), Delivery(Fate.DELIVERED)) == pytest.approx(resends * cost_s)
    assert governor.spending.spent_s == pytest.approx((1 + resends) * cost_s)


def test_of_a_packet_that_was_only_heard_relayed_all_resends_are_counted(governor: Governor) -> None:
    cost_s = governor.sent(direct())
    assert governor.ended(direct(), Delivery(Fate.RELAYED)) == pytest.approx(2 * cost_s)
