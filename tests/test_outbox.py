"""The outbox: paced, in order per destination, never twice, and picked up again after a restart."""

import asyncio
import itertools
import logging
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest

from meshai.airtime import PRESETS
from meshai.clock import ScaledClock
from meshai.config import AirtimeSettings
from meshai.errors import NotDelivered, RadioDisconnected
from meshai.governor import Governor
from meshai.messages import (
    Address,
    Channel,
    Conversation,
    Delivery,
    Direct,
    Fate,
    Node,
    NodeNum,
    OutgoingPacket,
    Priority,
)
from meshai.outbox import Outbox
from meshai.radio.base import OwnNode
from meshai.store import outbox as rows
from meshai.store.database import Database
from meshai.testing import FakeRadio

ANNA, BEN = Direct(0xA11A), Direct(0xBE17)


class RecordingRadio(FakeRadio):
    """A radio that notes when each packet was handed over, and can break or refuse."""

    def __init__(self, clock: ScaledClock) -> None:
        super().__init__()
        self.clock = clock
        self.rng = random.Random(1)
        """Of all outboxes that send through it, one after the other."""
        self.tries: list[tuple[float, OutgoingPacket]] = []
        self.breaks = 0
        self.refused: dict[str, str] = {}
        self.too_large = 1000
        self.late: dict[str, Delivery] = {}
        """Word that comes, by text, when a packet has had its end already or was handed over by an earlier process."""
        self.known: dict[int, Node] = {}
        self.in_doubt: set[str] = set()
        """Texts whose ack may have been lost with the link."""
        self.fate_known = asyncio.Event()
        self.fate_known.set()

    async def send(self, packet: OutgoingPacket) -> None:
        self.tries.append((self.clock.monotonic(), packet))
        if self.breaks:
            self.breaks -= 1
            raise RadioDisconnected("the link broke")
        if len(packet.text) > self.too_large:
            raise NotDelivered("TOO_LARGE")
        if packet.text in self.refused:
            raise NotDelivered(self.refused[packet.text])
        await super().send(packet)

    async def delivery(
        self, packet: OutgoingPacket, *, earlier: Sequence[OutgoingPacket] = (), within_s: float | None = None
    ) -> Delivery:
        if within_s is not None:
            doubt = Delivery(Fate.UNCONFIRMED, is_doubtful=packet.text in self.in_doubt)
            return self.late.get(packet.text, doubt)
        if isinstance(packet.address.destination, Direct):
            await self.fate_known.wait()
        return self.fate(packet)

    def nodes(self) -> Mapping[NodeNum, Node]:
        return self.known

    @property
    def texts(self) -> list[str]:
        return [packet.text for packet in self.sent]


@pytest.fixture
def fast() -> ScaledClock:
    return ScaledClock(100)


@pytest.fixture
def radio(fast: ScaledClock) -> RecordingRadio:
    return RecordingRadio(fast)


def reply(destination: Conversation, *texts: str) -> list[OutgoingPacket]:
    return [
        OutgoingPacket(Address(destination, 200), text, number, len(texts))
        for number, text in enumerate(texts, start=1)
    ]


class Box:
    """An outbox that runs, and the way the responder feeds it."""

    def __init__(
        self, database: Database, radio: RecordingRadio, clock: ScaledClock, *, listens_only: bool = False
    ) -> None:
        self.database = database
        governor = Governor(database, radio, AirtimeSettings(), clock=clock, queued_s=lambda: self.outbox.waiting_s)
        self.outbox = Outbox(
            database,
            radio,
            governor,
            listens_only=listens_only,
            clock=clock,
            rng=radio.rng,
            gap_s=2.5,
            worth_saying_s=120,
            retries=1,
            lost=self._note_lost,
        )
        self.exchange = 0
        self.lost: list[tuple[int, list[str]]] = []

    async def _note_lost(self, exchange: int, packets: Sequence[OutgoingPacket]) -> None:
        self.lost.append((exchange, [packet.text for packet in packets]))

    async def put(self, packets: Sequence[OutgoingPacket], priority: Priority = Priority.DIRECT) -> None:
        self.exchange += 1
        async with self.database.transaction() as db:
            await self.outbox.add(db, self.exchange, packets, priority)
        self.outbox.wake()

    async def drained(self) -> None:
        async with asyncio.timeout(20):
            await self.outbox.drained()

    async def left(self) -> int:
        async with self.database.transaction() as db:
            return await rows.count(db)


@asynccontextmanager
async def running(database: Database, radio: RecordingRadio, clock: ScaledClock) -> AsyncIterator[Box]:
    box = Box(database, radio, clock)
    task = asyncio.create_task(box.outbox.run())
    try:
        yield box
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_texts_are_at_least_the_gap_apart_whoever_they_are_for(
    database: Database, radio: RecordingRadio, fast: ScaledClock
) -> None:
    started = fast.monotonic()
    async with running(database, radio, fast) as box:
        for destination in (ANNA, BEN, Channel(2)):
            await box.put(reply(destination, "1", "2", "3"))
        await box.drained()
        assert await box.left() == 0
    times = [at for at, _ in radio.tries]
    assert len(times) == 9
    assert times[0] - started >= 2.5, "the process before us may have sent a moment ago"
    assert all(later - earlier >= 2.5 for earlier, later in itertools.pairwise(times))


async def test_parts_keep_their_order_and_replies_to_one_place_do_not_mix(
    database: Database, radio: RecordingRadio, fast: ScaledClock
) -> None:
    async with running(database, radio, fast) as box:
        await box.put(reply(ANNA, "a1", "a2", "a3"))
        await box.put(reply(BEN, "b1", "b2"))
        await box.put(reply(ANNA, "x1", "x2"))
        await box.drained()
    to_anna = [packet.text for packet in radio.sent if packet.address.destination == ANNA]
    assert to_anna == ["a1", "a2", "a3", "x1", "x2"]
    assert [packet.text for packet in radio.sent if packet.address.destination == BEN] == ["b1", "b2"]


async def test_a_part_waits_for_the_fate_of_the_one_before_but_others_do_not(
    database: Database, radio: RecordingRadio, fast: ScaledClock
) -> None:
    radio.fate_known.clear()
    async with running(database, radio, fast) as box:
        await box.put(reply(ANNA, "a1", "a2"))
        await box.put(reply(Channel(1), "c1", "c2"))
        async with asyncio.timeout(20):
            while "c2" not in radio.texts:
                await fast.sleep(1)
        assert "a2" not in radio.texts
        radio.fate_known.set()
        await box.drained()
    assert radio.texts[-1] == "a2"


async def test_a_broken_link_repeats_the_packet_with_the_same_id(
    database: Database, radio: RecordingRadio, fast: ScaledClock
) -> None:
    radio.breaks = 2
    async with running(database, radio, fast) as box:
        await box.put(reply(ANNA, "a1", "a2"))
        await box.drained()
    assert [packet.text for _, packet in radio.tries] == ["a1", "a1", "a1", "a2"]
    ids = [packet.packet_id for _, packet in radio.tries]
    assert len(set(ids[:3])) == 1
    assert ids[3] != ids[0]


async def test_nothing_is_tried_while_there_is_no_link(
    database: Database, radio: RecordingRadio, fast: ScaledClock
) -> None:
    radio.unplug()
    async with running(database, radio, fast) as box:
        await box.put(reply(ANNA, "a1"))
        await fast.sleep(60)
        assert radio.tries == []
        radio.plug()
        await box.drained()
    assert radio.texts == ["a1"]


async def test_a_reply_kept_longer_than_it_is_worth_is_dropped_and_logged(
    database: Database, radio: RecordingRadio, fast: ScaledClock, caplog: pytest.LogCaptureFixture
) -> None:
    radio.unplug()
    async with running(database, radio, fast) as box:
        await box.put(reply(ANNA, "a1", "a2"))
        await fast.sleep(130)
        radio.plug()
        await box.drained()
        assert await box.left() == 0
    assert radio.tries == []
    assert "too old" in caplog.text


@pytest.mark.parametrize("reason", ["NO_CHANNEL", "PKI_FAILED", "ROUTING_ERROR_77"])
async def test_a_refused_part_ends_its_reply_only(
    database: Database, radio: RecordingRadio, fast: ScaledClock, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    radio.refused["a2"] = reason
    async with running(database, radio, fast) as box:
        await box.put(reply(ANNA, "a1", "a2", "a3"))
        await box.put(reply(ANNA, "x1"))
        await box.drained()
        assert await box.left() == 0
        assert (box.outbox.sent, box.outbox.failed) == (2, 1)
    assert radio.texts == ["a1", "x1"]
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert reason in warnings[0]
    assert "!0000a11a" in warnings[0]


class Fates:
    """What becomes of the packets with each text, try by try; delivered when nothing is said."""

    def __init__(self, **fates: list[Delivery]) -> None:
        self._fates = fates

    def __call__(self, packet: OutgoingPacket) -> Delivery:
        left = self._fates.get(packet.text, [])
        return left.pop(0) if left else Delivery(Fate.DELIVERED)


def failed(reason: str) -> Delivery:
    return Delivery(Fate.FAILED, reason)


LOST = failed("MAX_RETRANSMIT")


async def test_a_lost_direct_packet_is_sent_once_more_with_a_new_id_before_the_next_part(
    database: Database, radio: RecordingRadio, fast: ScaledClock
) -> None:
    radio.fate = Fates(a1=[LOST])
    async with running(database, radio, fast) as box:
        await box.put(reply(ANNA, "a1", "a2"))
        await box.drained()
        assert (box.outbox.sent, box.outbox.failed) == (2, 0)
    assert radio.texts == ["a1", "a1", "a2"]
    assert len({packet.packet_id for packet in radio.sent}) == 3


@pytest.mark.parametrize("end", [LOST, Delivery(Fate.UNCONFIRMED), Delivery(Fate.RELAYED)])
async def test_tries_are_bounded_and_the_next_person_does_not_wait(
    database: Database, radio: RecordingRadio, fast: ScaledClock, end: Delivery
) -> None:
    radio.fate = Fates(a1=[end] * 9)
    async with running(database, radio, fast) as box:
        await box.put(reply(ANNA, "a1", "a2"))
        await box.put(reply(BEN, "b1"))
        await box.drained()
        assert await box.left() == 0
    assert radio.texts[:3] == ["a1", "b1", "a1"]
    # Nobody refused it and a neighbour may have carried it: then the reply goes on.
    assert radio.texts[3:] == ([] if end is LOST else ["a2"])


async def test_a_late_ack_makes_the_next_try_needless(
    database: Database, radio: RecordingRadio, fast: ScaledClock
) -> None:
    radio.fate = Fates(a1=[Delivery(Fate.UNCONFIRMED)])
    radio.late["a1"] = Delivery(Fate.DELIVERED)
    async with running(database, radio, fast) as box:
        await box.put(reply(ANNA, "a1", "a2"))
        await box.drained()
    assert radio.texts == ["a1", "a2"]


@pytest.mark.parametrize("end", [LOST, Delivery(Fate.UNCONFIRMED), Delivery(Fate.RELAYED)])
async def test_a_packet_whose_ack_may_be_lost_with_the_link_is_first_repeated_with_its_id(
    database: Database, radio: RecordingRadio, fast: ScaledClock, end: Delivery
) -> None:
    radio.fate = Fates(a1=[end])
    radio.in_doubt.add("a1")
    async with running(database, radio, fast) as box:
        await box.put(reply(ANNA, "a1", "a2"))
        await box.drained()
        assert await box.left() == 0
        assert (box.outbox.sent, box.outbox.failed) == (2, 0)
    assert radio.texts == ["a1", "a1", "a2"]
    first, second, _ = radio.sent
    assert first == second, "a receiver that has it ignores it, and acks it again"


@pytest.mark.parametrize("breaks", [True, False], ids=["link lost before the node's word", "link lost before the ack"])
async def test_a_packet_counts_as_sent_when_it_first_may_have_been_read(
    database: Database, radio: RecordingRadio, fast: ScaledClock, breaks: bool
) -> None:
    """Else who answers the first copy as the second leaves would be taken for a bot, which answers at once."""
    if breaks:
        radio.breaks = 1
    else:
        radio.fate = Fates(a1=[Delivery(Fate.UNCONFIRMED)])
        radio.in_doubt.add("a1")
    async with running(database, radio, fast) as box:
        await box.put(reply(ANNA, "a1"))
        await box.drained()
        sent_at = box.outbox.sent_at(ANNA)
    (first_at, first), (second_at, second) = radio.tries
    assert first == second
    assert sent_at is not None
    assert first_at <= sent_at < second_at


async def test_a_repetition_is_no_retry_and_there_is_only_one(
    database: Database, radio: RecordingRadio, fast: ScaledClock
) -> None:
    radio.fate = Fates(a1=[Delivery(Fate.UNCONFIRMED)] * 9)
    radio.in_doubt.add("a1")
    async with running(database, radio, fast) as box:
        await box.put(reply(ANNA, "a1"))
        await box.drained()
    ids = [packet.packet_id for packet in radio.sent]
    assert ids == [ids[0], ids[0], ids[2]]
    assert ids[0] != ids[2]


async def test_a_refused_packet_is_tried_again_with_a_new_id_though_the_link_was_lost(
    database: Database, radio: RecordingRadio, fast: ScaledClock
) -> None:
    radio.fate = Fates(a1=[failed("RATE_LIMIT_EXCEEDED")])
    radio.in_doubt.add("a1")
    async with running(database, radio, fast) as box:
        await box.put(reply(ANNA, "a1"))
        await box.drained()
    assert len({packet.packet_id for packet in radio.sent}) == 2


async def test_channel_packets_are_never_repeated_for_want_of_an_ack(
    database: Database, radio: RecordingRadio, fast: ScaledClock
) -> None:
    radio.fate = Fates(c1=[Delivery(Fate.UNCONFIRMED)], c2=[LOST])
    async with running(database, radio, fast) as box:
        await box.put(reply(Channel(1), "c1", "c2", "c3"))
        await box.drained()
    assert radio.texts == ["c1", "c2"]


@pytest.mark.parametrize("has_key", [True, False])
async def test_a_missing_key_is_waited_for_once(
    database: Database, radio: RecordingRadio, fast: ScaledClock, has_key: bool
) -> None:
    radio.refused["a1"] = "PKI_SEND_FAIL_PUBLIC_KEY"
    async with running(database, radio, fast) as box:
        await box.put(reply(ANNA, "a1"))
        async with asyncio.timeout(20):
            while not radio.tries:
                await fast.sleep(1)
        await fast.sleep(20)
        assert len(radio.tries) == 1
        if has_key:
            radio.refused.clear()
            radio.known[ANNA.node] = Node(ANNA.node, public_key=b"k" * 32)
        await box.drained()
    assert radio.texts == (["a1"] if has_key else [])
    assert len(radio.tries) == (2 if has_key else 1)


async def test_too_large_parts_are_cut_smaller_once(
    database: Database, radio: RecordingRadio, fast: ScaledClock, caplog: pytest.LogCaptureFixture
) -> None:
    words = " ".join(f"word{number:02}" for number in range(25))
    radio.too_large = 150
    async with running(database, radio, fast) as box:
        await box.put(reply(ANNA, "first", words, "last"))
        await box.drained()
        assert await box.left() == 0
    assert radio.texts[0] == "first"
    assert " ".join(text.split(") ", 1)[1] for text in radio.texts[1:]).split() == [*words.split(), "last"]
    assert "cut smaller" in caplog.text


async def test_a_spent_duty_cycle_holds_packets_back_for_a_while(
    database: Database, radio: RecordingRadio, fast: ScaledClock, caplog: pytest.LogCaptureFixture
) -> None:
    radio.refused["a1"] = "DUTY_CYCLE_LIMIT"
    async with running(database, radio, fast) as box:
        await box.put(reply(ANNA, "a1"))
        await box.put(reply(BEN, "b1"))
        await box.drained()
    assert [packet.text for _, packet in radio.tries] == ["a1", "b1", "a1", "a1", "a1"]
    assert radio.tries[-1][0] - radio.tries[0][0] >= 900
    assert "DUTY_CYCLE_LIMIT" in caplog.text


async def test_a_long_queue_of_our_own_makes_nothing_too_old(
    database: Database, radio: RecordingRadio, fast: ScaledClock
) -> None:
    async with running(database, radio, fast) as box:
        for number in range(30):
            await box.put(reply(Direct(number + 1), "1", "2", "3"))
        await box.drained()
        assert (box.outbox.sent, box.outbox.failed) == (90, 0)


@pytest.mark.parametrize(
    ("word", "texts", "ids"),
    [
        (Delivery(Fate.DELIVERED), ["a1", "a2"], 1),
        (Delivery(Fate.RELAYED), ["a1", "a1", "a2"], 1),
        (Delivery(Fate.UNCONFIRMED), ["a1", "a1", "a2"], 1),
        (Delivery(Fate.FAILED, "MAX_RETRANSMIT"), ["a1", "a1", "a2"], 2),
        (Delivery(Fate.FAILED, "NO_CHANNEL"), ["a1"], 1),
    ],
)
async def test_a_restart_sees_what_was_handed_over_to_its_end(
    database: Database, radio: RecordingRadio, fast: ScaledClock, word: Delivery, texts: list[str], ids: int
) -> None:
    """Without a word it is sent again with its id, which every receiver knows; a lost one with a new id."""
    radio.fate_known.clear()
    async with running(database, radio, fast) as box:
        await box.put(reply(ANNA, "a1", "a2"))
        async with asyncio.timeout(20):
            while not radio.sent:
                await fast.sleep(1)
        await fast.sleep(5)  # handed over, its fate not known: here the process dies
    radio.fate_known.set()
    radio.late["a1"] = word
    async with running(database, radio, fast) as box:
        await fast.sleep(1)
        await box.drained()
        assert await box.left() == 0
    assert radio.texts == texts
    assert len({packet.packet_id for packet in radio.sent if packet.text == "a1"}) == ids


async def test_a_restart_leaves_what_was_handed_over_to_a_channel_at_that(
    database: Database, radio: RecordingRadio, fast: ScaledClock
) -> None:
    async with database.transaction() as db:
        await rows.add(db, 1, reply(Channel(1), "c1", "c2"), fast.now(), Priority.CHANNEL)
        (first, _) = await rows.waiting(db, after=0)
        await rows.hand_over(db, first.row, fast.now())
    async with running(database, radio, fast) as box:
        await fast.sleep(1)
        await box.drained()
        assert await box.left() == 0
    assert radio.texts == ["c2"]


async def test_a_restart_repeats_a_doubtful_packet_with_its_id(
    database: Database, radio: RecordingRadio, fast: ScaledClock
) -> None:
    radio.breaks = 10**6
    async with running(database, radio, fast) as box:
        await box.put(reply(ANNA, "a1"))
        async with asyncio.timeout(20):
            while not radio.tries:
                await fast.sleep(1)
    radio.breaks = 0
    async with running(database, radio, fast) as box:
        await fast.sleep(1)
        await box.drained()
    assert radio.texts == ["a1"]
    assert len({packet.packet_id for _, packet in radio.tries}) == 1


async def test_a_restart_drops_what_is_too_old_and_trusts_no_clock_that_went_back(
    database: Database, radio: RecordingRadio, fast: ScaledClock
) -> None:
    async with database.transaction() as db:
        await rows.add(db, 1, reply(ANNA, "stale"), fast.now() - 121, Priority.DIRECT)
        await rows.add(db, 2, reply(ANNA, "future"), fast.now() + 86_400, Priority.DIRECT)
        await rows.add(db, 3, reply(ANNA, "fresh"), fast.now() - 60, Priority.DIRECT)
    async with running(database, radio, fast) as box:
        await fast.sleep(1)
        await box.drained()
        assert await box.left() == 0
    assert radio.texts == ["future", "fresh"]


async def test_commands_and_direct_messages_go_before_channel_answers(
    database: Database, radio: RecordingRadio, fast: ScaledClock
) -> None:
    async with running(database, radio, fast) as box:
        await box.put(reply(Channel(1), "channel 1"), Priority.CHANNEL)
        await box.put(reply(Channel(2), "channel 2"), Priority.CHANNEL)
        await box.put(reply(Channel(3), "channel 3"), Priority.CHANNEL)
        await box.put(reply(BEN, "direct"), Priority.DIRECT)
        await box.put(reply(Channel(4), "command"), Priority.COMMAND)
        await box.drained()
    assert radio.texts[1:3] == ["command", "direct"], "what had its turn already is not called back"
    assert sorted(radio.texts) == ["channel 1", "channel 2", "channel 3", "command", "direct"]


class BusyRadio(RecordingRadio):
    """A node on LONG_FAST that finds the channel full."""

    utilisation_percent = 60.0

    @property
    def me(self) -> OwnNode:
        return OwnNode(Node(7, "MeshAI", "AI"), PRESETS["LONG_FAST"], "US", "LONG_FAST")

    def nodes(self) -> Mapping[NodeNum, Node]:
        self.utilisation_percent += 0.01
        return {7: Node(7, channel_utilisation_percent=self.utilisation_percent)}


async def test_a_full_channel_holds_channel_answers_until_they_expire_and_nobody_else(
    database: Database, fast: ScaledClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    radio = BusyRadio(fast)
    async with running(database, radio, fast) as box:
        await box.put(reply(Channel(2), "long ago"), Priority.CHANNEL)
        await fast.sleep(60)
        await box.put(reply(Channel(3), "just in time"), Priority.CHANNEL)
        await box.put(reply(ANNA, "waits for it"), Priority.DIRECT)
        await fast.sleep(90)
        assert radio.texts == ["waits for it"]
        radio.utilisation_percent = 10.0
        await box.drained()
        async with database.transaction() as db:
            ends = [(progress.state, progress.reason) for progress in await rows.newest_replies(db, 3)]
    assert radio.texts == ["waits for it", "just in time"]
    assert ends[0] == ("delivered", "")
    assert ends[1] == ("handed over", "")
    assert ends[2][0] == "expired"
    assert ends[2][1].endswith("% busy")
    assert any("not sent, too old to be worth saying" in record.getMessage() for record in caplog.records)


async def test_what_is_not_delivered_is_handed_back_unless_it_is_a_commands(
    database: Database, radio: RecordingRadio, fast: ScaledClock
) -> None:
    radio.refused = {"a2": "NO_CHANNEL", "pong": "NO_CHANNEL"}
    async with running(database, radio, fast) as box:
        await box.put(reply(ANNA, "a1", "a2", "a3"))
        await box.put(reply(ANNA, "b1"))
        await box.put(reply(BEN, "pong"), Priority.COMMAND)
        await box.drained()
        assert box.lost == [(1, ["a2", "a3"])]
    assert radio.texts == ["a1", "b1"]


async def test_a_tapback_wants_no_ack_and_gives_way_to_its_answer(
    database: Database, radio: RecordingRadio, fast: ScaledClock
) -> None:
    def sign(destination: Conversation) -> OutgoingPacket:
        return OutgoingPacket(Address(destination, 200, 5), "⏳", is_tapback=True)

    assert not sign(ANNA).wants_ack
    async with running(database, radio, fast) as box:
        await box.put([sign(ANNA)], Priority.COMMAND)
        box.exchange -= 1
        await box.put(reply(ANNA, "is here already"))
        await box.put([sign(BEN)], Priority.COMMAND)
        await box.drained()
        assert box.outbox.sent_at(BEN) is None, "a sign is nothing that is read and answered"
    assert {(packet.address.destination, packet.text) for packet in radio.sent} == {
        (ANNA, "is here already"),
        (BEN, "⏳"),
    }


async def test_a_tapback_is_not_put_after_a_restart(
    database: Database, radio: RecordingRadio, fast: ScaledClock
) -> None:
    async with database.transaction() as db:
        packet = OutgoingPacket(Address(ANNA, 200, 5), "⏳", is_tapback=True)
        await rows.add(db, 1, [packet], fast.now(), Priority.COMMAND)
        await rows.add(db, 1, reply(ANNA, "the answer"), fast.now(), Priority.DIRECT)
    async with running(database, radio, fast) as box:
        await fast.sleep(10)
        await box.drained()
        assert await box.left() == 0
    assert radio.texts == ["the answer"]


async def test_when_it_may_only_listen_nothing_leaves_whoever_queues_it(
    database: Database, radio: RecordingRadio, fast: ScaledClock
) -> None:
    box = Box(database, radio, fast, listens_only=True)
    await box.put(reply(ANNA, "left over"))
    task = asyncio.create_task(box.outbox.run())
    await box.put(reply(Channel(2), "new"))
    await fast.sleep(60)
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert radio.tries == []
    assert await box.left() == 2
