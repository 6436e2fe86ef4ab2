"""Orders of admins outlive the process and any trouble with the database file."""

import asyncio
from pathlib import Path

import pytest

from meshai.clock import Clock
from meshai.config import AirtimeSettings
from meshai.messages import IncomingMessage, Node, TextLimits, key_text
from meshai.orders import Orders
from meshai.quiet import Quiet
from meshai.store.database import Database, open_database
from meshai.store.keeper import kept_database
from meshai.testing import ManualClock
from tests.store.trouble import locked

ANNA, KEY = 0xA11A, bytes(range(32))


def orders(database: Database, clock: Clock) -> Orders:
    return Orders(database, Quiet(AirtimeSettings(), clock), clock)


def message(*, sender: int = ANNA, public_key: bytes | None = None, packet_id: int = 1) -> IncomingMessage:
    return IncomingMessage(packet_id, sender, 7, 0, "hi", 0.0, TextLimits(160, 200), public_key=public_key)


async def is_new(database: Database, given: Orders, order: IncomingMessage) -> bool:
    async with database.transaction() as db:
        return await given.is_new(db, order)


async def test_a_silence_ends_by_itself(database: Database, clock: ManualClock) -> None:
    given = orders(database, clock)
    await given.be_quiet(3600)
    await clock.advance(3599)
    assert await given.silence(message(), Node(ANNA)) == "quiet by command"
    await given.be_quiet(7200)
    await clock.advance(7199)
    assert await given.silence(message(), Node(ANNA)) == "quiet by command"
    await clock.advance(1)
    assert await given.silence(message(), Node(ANNA)) == ""
    assert await given.quiet_left_s() == 0


@pytest.mark.parametrize(
    ("who", "sender", "proved", "known"),
    [
        ("!0000a11a", ANNA, None, None),
        (key_text(KEY), ANNA, KEY, None),
        (key_text(KEY), 0xBE17, None, KEY),
    ],
)
async def test_nodes_are_ignored_by_number_and_by_key(
    database: Database, clock: ManualClock, who: str, sender: int, proved: bytes | None, known: bytes | None
) -> None:
    given = orders(database, clock)
    heard, node = message(sender=sender, public_key=proved), Node(sender, public_key=known)
    assert await given.silence(heard, node) == ""
    await given.ignore(who)
    await given.ignore(who)
    assert await given.silence(heard, node) == "ignored by command"
    assert await given.silence(message(sender=0xC3), Node(0xC3)) == ""
    assert await given.unignore(who)
    assert not await given.unignore(who)
    assert await given.silence(heard, node) == ""


async def test_they_outlive_the_process(tmp_path: Path, clock: ManualClock) -> None:
    order = message(packet_id=9)
    async with open_database(tmp_path / "a.db") as database:
        await orders(database, clock).be_quiet(3600)
        await orders(database, clock).ignore("!0000a11a")
        assert await is_new(database, orders(database, clock), order)
    async with open_database(tmp_path / "a.db") as database:
        again = orders(database, clock)
        assert await again.quiet_left_s() == 3600
        assert await again.ignored() == ["!0000a11a"]
        assert not await is_new(database, again, order)
        assert await is_new(database, again, message(packet_id=9, sender=0xBE17))


async def test_they_are_followed_and_changed_also_while_the_file_cannot_be_used(
    tmp_path: Path, clock: ManualClock
) -> None:
    path = tmp_path / "meshai.db"
    async with kept_database(path, clock=clock) as database:
        given = orders(database, clock)
        await given.be_quiet(7200)
        await given.ignore("!0000a11a")
        await given.ignore("!0000be17")
        assert await is_new(database, given, message(packet_id=9))
        async with locked(path):
            assert await given.ignored() == ["!0000a11a", "!0000be17"]
            is_stand_in = database.is_stand_in
            assert await given.quiet_left_s() == 7200
            assert not await is_new(database, given, message(packet_id=9))
            await given.be_quiet(0)
            await given.unignore("!0000a11a")
            await given.ignore("!000000c3")
            assert await is_new(database, given, message(packet_id=10))
        async with asyncio.timeout(10):
            while database.is_stand_in:
                await clock.advance(31)
        assert is_stand_in
        assert await given.ignored() == ["!0000be17", "!000000c3"]
        assert await given.quiet_left_s() == 0
        assert not await is_new(database, given, message(packet_id=9))
        assert not await is_new(database, given, message(packet_id=10))
