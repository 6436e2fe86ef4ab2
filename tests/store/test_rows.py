"""The rows of inbox, turns, outbox and life: what goes in comes out, once, in order."""

from dataclasses import replace

from meshai.messages import (
    Address,
    Channel,
    Delivery,
    Direct,
    Fate,
    IncomingMessage,
    OutgoingPacket,
    Priority,
    TextLimits,
    Turn,
)
from meshai.store import airtime, forgetting, heard, life, outbox, turns
from meshai.store.database import Database

ANNA, BEN = 0xA11A, 0xBE17


def message(
    packet_id: int, *, sender: int = ANNA, text: str = "hi 🙂", key: bytes | None = b"\x01\xff"
) -> IncomingMessage:
    return IncomingMessage(
        packet_id, sender, 7, 2, text, 1000.5, TextLimits(160, 200), hops=1, snr=-3.25, rssi=-90, public_key=key
    )


async def test_a_message_comes_back_as_it_was_heard(database: Database) -> None:
    first, second = message(1), message(2, key=None)
    async with database.transaction() as db:
        numbers = [await heard.add(db, first), await heard.add(db, second)]
    async with database.transaction() as db:
        assert await heard.unsettled(db) == [(numbers[0], 0, first), (numbers[1], 0, second)]
        await heard.note_repeats(db, 2, 3)
    async with database.transaction() as db:
        assert [repeats for _, repeats, _ in await heard.unsettled(db)] == [0, 3]


async def test_the_same_packet_is_noted_once_even_when_settled(database: Database) -> None:
    async with database.transaction() as db:
        number = await heard.add(db, message(9))
        assert number is not None
        assert await heard.add(db, message(9, text="other")) is None
        await heard.settle(db, number)
        assert await heard.add(db, message(9)) is None
        assert await heard.add(db, message(9, sender=BEN)) is not None


async def test_packets_without_an_id_are_all_new(database: Database) -> None:
    async with database.transaction() as db:
        assert {await heard.add(db, message(0)), await heard.add(db, message(0))} == {1, 2}


async def test_settled_rows_keep_no_text_and_are_bounded(database: Database) -> None:
    async with database.transaction() as db:
        for packet_id in range(1, heard.KEPT + 50):
            number = await heard.add(db, message(packet_id))
            assert number is not None
            await heard.settle(db, number)
        async with db.execute("SELECT count(*), count(message) FROM heard") as cursor:
            row = await cursor.fetchone()
    assert row is not None
    assert tuple(row) == (heard.KEPT, 0)


async def say(database: Database, exchange: int, text: str, answer: str | None, *, node: int = ANNA) -> None:
    async with database.transaction() as db:
        turn = Turn(Direct(node), text, node, False, 1.0)
        await turns.add_question(db, exchange, turn, packet_id=exchange, public_key=None)
        if answer is not None:
            await turns.add_answer(db, exchange, Turn(Direct(node), answer, 7, True, 2.0), packet_id=0)


async def newest(database: Database, node: int = ANNA, before: int = 99) -> list[str]:
    async with database.transaction() as db:
        return [turn.text async for _, turn in turns.newest(db, Direct(node), before=before, most=10)]


async def test_an_answer_stands_behind_its_question_whenever_it_comes(database: Database) -> None:
    await say(database, 1, "first?", None)
    await say(database, 2, "second?", None)
    async with database.transaction() as db:
        await turns.add_answer(db, 1, Turn(Direct(ANNA), "first!", 7, True, 5.0), packet_id=0)
    assert await newest(database) == ["second?", "first!", "first?"]
    assert await newest(database, before=2) == ["first!", "first?"]


async def test_order_is_by_arrival_whatever_the_clock_said(database: Database) -> None:
    async with database.transaction() as db:
        for exchange, at in ((1, 500.0), (2, 100.0), (3, 900.0)):
            turn = Turn(Channel(2), f"at {at:.0f}", ANNA, False, at)
            await turns.add_question(db, exchange, turn, packet_id=exchange, public_key=None)
        texts = [turn.text async for _, turn in turns.newest(db, Channel(2), before=9, most=9)]
    assert texts == ["at 900", "at 100", "at 500"]


async def test_forgetting_takes_what_one_node_began_and_no_late_answer_brings_it_back(database: Database) -> None:
    await say(database, 1, "mine", "yours")
    await say(database, 2, "ben's", "to ben", node=BEN)
    async with database.transaction() as db:
        assert await forgetting.forget_all(db, Direct(ANNA)) == 2
        await turns.add_answer(db, 1, Turn(Direct(ANNA), "late", 7, True, 5.0), packet_id=0)
        assert await turns.count(db, Direct(ANNA), ANNA) == 0
        assert await turns.count(db, Direct(BEN), BEN) == 2
    assert await newest(database) == []


async def test_packets_come_back_as_they_were_queued_until_settled(database: Database) -> None:
    packets = [
        OutgoingPacket(Address(Direct(ANNA), 200, 55, 1, 3), "(1/2) ä", 1, 2, 0xFFFFFFFF),
        OutgoingPacket(Address(Channel(3), 160, None, 3), "b", 2, 2, 12),
    ]
    async with database.transaction() as db:
        await outbox.add(db, 4, packets, 77.5, Priority.COMMAND)
        first, second = await outbox.waiting(db, after=0)
        assert [first.packet, second.packet] == packets
        assert (first.exchange, first.queued_at, first.priority) == (4, 77.5, Priority.COMMAND)
        assert await outbox.waiting(db, after=first.row) == [second]
        assert not first.is_handed_over
        await outbox.hand_over(db, first.row, 78.0)
        await outbox.hand_over(db, second.row, 78.0)
        assert [one.is_handed_over for one in await outbox.waiting(db, after=0)] == [True, True]
        assert await outbox.leave_handed_over(db, 79.0) == 1
        assert await outbox.waiting(db, after=0) == [replace(first, is_handed_over=True)]
        assert await outbox.settle_exchange(db, 4, Delivery(Fate.EXPIRED, "too old"), 80.0) == 1
        assert await outbox.waiting(db, after=0) == []
        assert await outbox.count(db) == 0


async def test_what_became_of_the_newest_packets_is_kept_without_their_texts(database: Database) -> None:
    async with database.transaction() as db:
        for number in range(1, outbox.MOST_SETTLED + 3):
            packet = OutgoingPacket(Address(Direct(ANNA), 200), f"text {number}", 1, 1, number)
            await outbox.add(db, number, [packet], float(number), Priority.DIRECT)
            (waiting,) = await outbox.waiting(db, after=0)
            await outbox.hand_over(db, waiting.row, number + 0.25)
            await outbox.renew(db, waiting.row, packet_id=1000 + number, now=number + 0.5)
            await outbox.hand_over(db, waiting.row, number + 0.75)
            await outbox.settle(db, waiting.row, Delivery(Fate.FAILED, "MAX_RETRANSMIT"), number + 1.0)
        newest = await outbox.newest_replies(db, 1000)
        async with db.execute("SELECT DISTINCT text FROM outbox") as cursor:
            assert [row["text"] for row in await cursor.fetchall()] == [""]
    assert [progress.exchange for progress in newest] == list(range(outbox.MOST_SETTLED + 2, 2, -1))
    last = outbox.MOST_SETTLED + 2
    assert newest[0] == outbox.Progress(
        last, Direct(ANNA), 1, 1, "failed", "MAX_RETRANSMIT", 2, queued_at=last, changed_at=last + 1
    )


async def test_the_newest_replies_are_whole_and_in_order(database: Database) -> None:
    async with database.transaction() as db:
        for exchange in (1, 2, 3):
            packets = [OutgoingPacket(Address(Direct(ANNA), 200), "text", part, 3, 1) for part in (1, 2, 3)]
            await outbox.add(db, exchange, packets, 1.0, Priority.DIRECT)
        # Cut smaller, so that its rows are the newest; what had arrived of it stays.
        await outbox.settle(db, 1, Delivery(Fate.DELIVERED), 2.0)
        await outbox.remove_exchange(db, 1)
        await outbox.add(db, 1, packets[:2], 3.0, Priority.DIRECT)
        newest = [(one.exchange, one.part, one.state) for one in await outbox.newest_replies(db, 2)]
    assert newest == [
        (1, 1, "delivered"),
        (1, 1, "waiting"),
        (1, 2, "waiting"),
        (3, 1, "waiting"),
        (3, 2, "waiting"),
        (3, 3, "waiting"),
    ]


async def test_airtime_is_added_up_by_the_minute_for_a_day(database: Database) -> None:
    day = 86_400 * 20_000
    async with database.transaction() as db:
        for at, spent_s in ((day, 1.5), (day + 59, 0.5), (day + 60, 2.0)):
            await airtime.add(db, at, spent_s)
        await airtime.add(db, day + 61, 4.0, packets=0)
        assert await airtime.since(db, day + 30) == [(day, 2.0, 2), (day + 60, 6.0, 1)]
        assert await airtime.since(db, day + 60) == [(day + 60, 6.0, 1)]
        await airtime.add(db, day + 26 * 3600, 1.0)
        assert await airtime.since(db, 0) == [(day + 26 * 3600, 1.0, 1)]
        await airtime.add(db, day, 1.0)
        assert await airtime.since(db, 0) == [(day, 1.0, 1)]


async def test_life_remembers_the_last_time(database: Database) -> None:
    async with database.transaction() as db:
        assert await life.last_listened(db) is None
        await life.listening(db, 5.5)
        await life.listening(db, 9.0)
        assert await life.last_listened(db) == 9.0
