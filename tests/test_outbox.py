"""The outbox: paced, in order per destination, never twice, and picked up again after a restart."""

import asyncio
import itertools
import logging
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from meshai.clock import ScaledClock
from meshai.errors import NotDelivered, RadioDisconnected
from meshai.messages import Address, Channel, Conversation, Delivery, Direct, Fate, OutgoingPacket
from meshai.outbox import Outbox
from meshai.store import outbox as rows
from meshai.store.database import Database
from meshai.testing import FakeRadio

ANNA, BEN = Direct(0xA11A), Direct(0xBE17)


class RecordingRadio(FakeRadio):
    """A radio that notes when each packet was handed over, and can break or refuse."""

    def __init__(self, clock: ScaledClock) -> None:
        super().__init__()
        self.clock = clock
        self.tries: list[tuple[float, OutgoingPacket]] = []
        self.breaks = 0
        self.refused: dict[str, str] = {}
        self.fate_known = asyncio.Event()
        self.fate_known.set()

    async def send(self, packet: OutgoingPacket) -> None:
        self.tries.append((self.clock.monotonic(), packet))
        if self.breaks:
            self.breaks -= 1
            raise RadioDisconnected("the link broke")
        if packet.text in self.refused:
            raise NotDelivered(self.refused[packet.text])
        await super().send(packet)

    async def delivery(self, packet: OutgoingPacket) -> Delivery:
        if isinstance(packet.address.destination, Direct):
            await self.fate_known.wait()
        return self.fate(packet)

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

    def __init__(self, database: Database, radio: RecordingRadio, clock: ScaledClock) -> None:
        self.database = database
        self.outbox = Outbox(database, radio, clock=clock, rng=random.Random(1), gap_s=2.5, worth_saying_s=120)
        self.exchange = 0

    async def put(self, packets: Sequence[OutgoingPacket]) -> None:
        self.exchange += 1
        async with self.database.transaction() as db:
            await self.outbox.add(db, self.exchange, packets)
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


@pytest.mark.parametrize("reason", ["TOO_LARGE", "PKI_SEND_FAIL_PUBLIC_KEY", "ROUTING_ERROR_77"])
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


async def test_a_packet_that_nobody_acknowledged_ends_its_reply(
    database: Database, radio: RecordingRadio, fast: ScaledClock
) -> None:
    radio.fate = lambda packet: Delivery(Fate.FAILED, "MAX_RETRANSMIT")
    async with running(database, radio, fast) as box:
        await box.put(reply(ANNA, "a1", "a2"))
        await box.put(reply(BEN, "b1"))
        await box.drained()
    assert sorted(radio.texts) == ["a1", "b1"]


async def test_a_restart_sends_what_was_not_handed_over_and_nothing_else(
    database: Database, radio: RecordingRadio, fast: ScaledClock
) -> None:
    radio.fate_known.clear()
    async with running(database, radio, fast) as box:
        await box.put(reply(ANNA, "a1", "a2"))
        async with asyncio.timeout(20):
            while not radio.sent:
                await fast.sleep(1)
        await fast.sleep(5)  # handed over, its fate not known: here the process dies
    radio.fate_known.set()
    async with running(database, radio, fast) as box:
        await fast.sleep(1)
        await box.drained()
        assert await box.left() == 0
    assert radio.texts == ["a1", "a2"]


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
        await rows.add(db, 1, reply(ANNA, "stale"), fast.now() - 121)
        await rows.add(db, 2, reply(ANNA, "future"), fast.now() + 86_400)
        await rows.add(db, 3, reply(ANNA, "fresh"), fast.now() - 60)
    async with running(database, radio, fast) as box:
        await fast.sleep(1)
        await box.drained()
        assert await box.left() == 0
    assert radio.texts == ["future", "fresh"]
