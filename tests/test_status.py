"""What a report says: from SQLite and the radio into values, and through JSON."""

from datetime import UTC

import pytest

from meshai.config import AirtimeSettings
from meshai.errors import WindowError
from meshai.messages import (
    Address,
    Channel,
    Conversation,
    Delivery,
    Direct,
    Fate,
    IncomingMessage,
    Node,
    OutgoingPacket,
    Priority,
)
from meshai.quiet import Quiet
from meshai.radio.base import OwnNode
from meshai.status import HOURS, MOST_PLACES, MOST_REPLIES, MOST_TALKERS, Hour, Place, Report, node_place, report
from meshai.store import airtime, heard, orders, outbox
from meshai.store.database import Database
from meshai.testing import FakeRadio, ManualClock
from tests.commands.test_commands import STATUS

ANNA, BEN = 0xA11A, 0xBE17
NOW = 3600.0 * 500_000 + 1800
AWAKE = Quiet(AirtimeSettings(), ManualClock(NOW))
RADIO = FakeRadio(
    OwnNode(Node(0xB0B0, "MeshAI"), None, channel_names={0: "", 1: "bots\u202e[red]"}),
    [Node(ANNA, "Anna\x1b[2J\n<Weber>", "AN"), Node(BEN, "", "Ben")],
)


async def hear(database: Database, sender: int, packet_id: int, heard_at: float) -> None:
    async with database.transaction() as db:
        message = IncomingMessage(packet_id, sender, 7, 0, "secret words", heard_at, RADIO.limits)
        exchange = await heard.add(db, message)
        assert exchange is not None
        await heard.settle(db, exchange)


async def queue(database: Database, exchange: int, to: Direct | Channel, parts: int, at: float = NOW) -> None:
    packets = [OutgoingPacket(Address(to, 200), "secret words", part, parts, part) for part in range(1, parts + 1)]
    async with database.transaction() as db:
        await outbox.add(db, exchange, packets, at, Priority.DIRECT)


async def test_an_empty_database_gives_a_report_of_a_day_without_airtime(database: Database) -> None:
    made = await report(database, RADIO, STATUS, quiet=AWAKE, queue={}, now=NOW)
    assert (made.queue, made.replies, made.talkers, made.talkers_in_all) == ((), (), (), 0)
    assert [hour.spent_s for hour in made.hours] == [0] * HOURS
    assert made.hours[-1].began_at <= NOW < made.hours[-1].began_at + 3600
    assert not made.is_stand_in


async def test_airtime_is_added_up_by_hours_and_only_of_the_last_day(database: Database) -> None:
    async with database.transaction() as db:
        for ago_s, spent_s in ((0, 1.5), (60, 0.25), (3600, 2.0), (23 * 3600, 4.0), (24 * 3600, 8.0), (-3600, 16.0)):
            await airtime.add(db, NOW - ago_s, spent_s)
    hours = (await report(database, RADIO, STATUS, quiet=AWAKE, queue={}, now=NOW)).hours
    assert hours[-1] == Hour(NOW - 1800, 1.75, 2)
    assert hours[-2] == Hour(NOW - 5400, 2.0, 1)
    assert hours[0] == Hour(NOW - 1800 - 23 * 3600, 4.0, 1)
    assert sum(hour.spent_s for hour in hours) == 7.75


async def test_why_nobody_is_answered_is_told(database: Database) -> None:
    async def silence(quiet: Quiet) -> str:
        return (await report(database, RADIO, STATUS, quiet=quiet, queue={}, now=NOW)).silence

    clock = ManualClock(NOW)
    mute = Quiet(AirtimeSettings(transmit=False), clock)
    at_night = Quiet(AirtimeSettings(quiet_hours=("00:00-12:00", "12:00-00:00")), clock, zone=UTC)
    assert await silence(AWAKE) == ""
    assert await silence(mute) == "airtime.transmit is off: it only listens"
    assert (await silence(at_night)).startswith("quiet hours ")
    async with database.transaction() as db:
        await orders.be_quiet(db, NOW + 600)
    assert await silence(AWAKE) == "quiet by command"


async def test_each_reply_tells_the_state_of_its_parts(database: Database) -> None:
    await queue(database, 1, Channel(1), 1, NOW - 90)
    await queue(database, 2, Direct(ANNA), 3)
    async with database.transaction() as db:
        await outbox.hand_over(db, 1, NOW - 80)
        await outbox.settle(db, 1, Delivery(Fate.RELAYED), NOW - 70)
        await outbox.hand_over(db, 2, NOW + 1)
        await outbox.settle(db, 2, Delivery(Fate.DELIVERED), NOW + 2)
        await outbox.hand_over(db, 3, NOW + 3)
        await outbox.renew(db, 3, 9, NOW + 4)
        await outbox.hand_over(db, 3, NOW + 5)
        await outbox.settle(db, 4, Delivery(Fate.FAILED, "MAX_RETRANSMIT"), NOW + 6)
    to_anna, on_channel = (await report(database, RADIO, STATUS, quiet=AWAKE, queue={}, now=NOW + 10)).replies
    assert (to_anna.to.id, to_anna.queued_at) == ("!0000a11a", NOW)
    assert [(part.part, part.parts, part.state, part.reason, part.tries) for part in to_anna.parts] == [
        (1, 3, "delivered", "", 1),
        (2, 3, "handed over", "", 2),
        (3, 3, "failed", "MAX_RETRANSMIT", 0),
    ]
    assert [part.changed_at - NOW for part in to_anna.parts] == [2, 5, 6]
    assert on_channel.to.id == "#1"
    assert [part.state for part in on_channel.parts] == ["relayed"]


async def test_who_talks_to_it_is_counted_for_a_day(database: Database) -> None:
    for packet_id, (sender, ago_s) in enumerate(((ANNA, 90_000), (ANNA, 300), (BEN, 200), (BEN, 100)), start=1):
        await hear(database, sender, packet_id, NOW - ago_s)
    talkers = (await report(database, RADIO, STATUS, quiet=AWAKE, queue={}, now=NOW)).talkers
    assert [(talker.node.id, talker.node.name, talker.messages, NOW - talker.heard_at) for talker in talkers] == [
        ("!0000be17", "Ben", 2, 100),
        ("!0000a11a", "Anna(2J (Weber)", 1, 300),
    ]


async def test_it_is_bounded_whatever_goes_on(database: Database) -> None:
    for number in range(1, 60):
        await hear(database, number, number, NOW)
        await queue(database, number, Direct(number), 2)
    waiting: dict[Conversation, int] = {Direct(number): number for number in range(1, 60)}
    made = await report(database, RADIO, STATUS, quiet=AWAKE, queue=waiting, now=NOW)
    assert (len(made.talkers), made.talkers_in_all) == (MOST_TALKERS, 59)
    assert len(made.replies) == MOST_REPLIES
    assert [entry.packets for entry in made.queue] == list(range(59, 59 - MOST_PLACES, -1))
    assert len(made.to_json()) < 20_000


async def test_names_are_one_harmless_line_and_no_text_is_in_it(database: Database) -> None:
    await hear(database, ANNA, 1, NOW)
    await queue(database, 1, Channel(1), 1)
    made = await report(database, RADIO, STATUS, quiet=AWAKE, queue={Direct(ANNA): 1}, now=NOW)
    document = made.to_json()
    assert made.replies[0].to == Place("#1", "bots(red)")
    assert made.queue[0].to == made.talkers[0].node == node_place(Node(ANNA, "Anna(2J (Weber)"))
    assert b"secret words" not in document
    assert b"\\u001b" not in document


async def test_it_is_the_same_behind_json(database: Database) -> None:
    await hear(database, ANNA, 1, NOW)
    await queue(database, 1, Direct(ANNA), 2)
    made = await report(database, RADIO, STATUS, quiet=AWAKE, queue={Direct(ANNA): 2}, now=NOW)
    assert Report.from_json(made.to_json()) == made


@pytest.mark.parametrize("document", [b"", b"{}", b"[1]", b'{"at": 1, "status": {"version": "0.0"}}', b"\xff\x00"])
def test_what_another_version_wrote_is_refused_with_the_remedy(document: bytes) -> None:
    with pytest.raises(WindowError, match="restart it"):
        Report.from_json(document)
