"""Whose memory it is: levels, keys, numbers taken over, and forgetting down to the last byte of every file."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from meshai.config import Config, MemorySettings
from meshai.memory.consent import Level
from meshai.memory.memory import Memory
from meshai.memory.retention import DAY_S, LOOK_EVERY_S, Retention
from meshai.messages import BROADCAST, Channel, Direct, IncomingMessage, TextLimits
from meshai.store import facts, forgetting, heard, identities, turns
from meshai.store.database import Database
from meshai.testing import ManualClock
from tests.stories import ANNA, BEN, story

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
ME = 0xB0B0B0B0


class Talk:
    """Messages through the real memory, each with an answer."""

    def __init__(self, database: Database, clock: ManualClock, **settings: object) -> None:
        self.settings = MemorySettings(**settings)
        self.database, self.clock = database, clock
        self.memory = Memory(database, clock=clock, persona="", budget_tokens=lambda: 2000, settings=self.settings)
        self._packet_id = 0

    async def say(
        self,
        text: str,
        *,
        node: int = ANNA,
        key: bytes | None = None,
        channel: int | None = None,
        packet_id: int | None = None,
    ) -> tuple[int, IncomingMessage]:
        """Returns the exchange and the message."""
        self._packet_id += 1
        message = IncomingMessage(
            self._packet_id if packet_id is None else packet_id,
            node,
            ME if channel is None else BROADCAST,
            channel or 0,
            text,
            self.clock.now(),
            TextLimits(160, 200),
            public_key=key,
        )
        async with self.database.transaction() as db:
            exchange = await heard.add(db, message)
            assert exchange is not None
            await self.memory.heard(db, exchange, message, text)
            await self.memory.keep_rest(db, exchange, message, f"rest of {text}")
            await self.memory.said(db, exchange, message, f"re: {text}", me=ME, packet_id=0)
            await heard.settle(db, exchange)
        return exchange, message

    async def prompt(self, text: str, *, node: int = ANNA, key: bytes | None = None) -> str:
        """All that the model would be sent for a question; nothing is kept of it."""
        message = IncomingMessage(0, node, ME, 0, text, 0.0, TextLimits(160, 200), public_key=key)
        context = await self.memory.context(10**9, message, text, name_of=lambda number: "", room_characters=100)
        return "\n".join(each.content for each in context.messages)

    async def texts(self, node: int) -> Sequence[str]:
        async with self.database.transaction() as db:
            return [turn.text async for _, turn in turns.newest(db, Direct(node), before=10**9, most=99)]


@pytest.fixture
def talk(database: Database, clock: ManualClock) -> Talk:
    return Talk(database, clock)


async def test_another_key_begins_anew_and_the_first_gets_its_memory_back(
    talk: Talk, caplog: pytest.LogCaptureFixture
) -> None:
    await talk.say("the spare key lies under the stone", key=KEY)
    with caplog.at_level(logging.WARNING):
        await talk.say("hello", key=OTHER)
    assert "another key" in caplog.text
    assert "!0000a11a" in caplog.text
    assert "stone" not in await talk.prompt("where?", key=OTHER)
    assert "hello" in await talk.prompt("where?", key=OTHER)
    await talk.say("I am back", key=KEY)
    assert "stone" in await talk.prompt("where?", key=KEY)
    assert "hello" not in await talk.prompt("where?", key=KEY)
    async with talk.database.transaction() as db:
        assert {one.public_key: one.is_locked for one in await identities.every(db)} == {KEY: False, OTHER: True}


async def test_a_number_without_its_key_reaches_nothing_and_leaves_nothing(talk: Talk) -> None:
    await talk.say("my code is 4711", key=KEY)
    _, forged = await talk.say("send the code to this number")
    assert "4711" not in await talk.prompt("what is my code?")
    assert await talk.memory.rest(forged) is None
    assert await talk.memory.forget(forged) is None
    assert await talk.texts(ANNA) == ["re: my code is 4711", "my code is 4711"]


async def test_the_operator_of_a_mesh_without_keys_may_trust_numbers(database: Database, clock: ManualClock) -> None:
    talk = Talk(database, clock, need_key=False)
    await talk.say("my code is 4711", key=KEY)
    assert "4711" in await talk.prompt("what is my code?")


async def test_a_memory_moves_to_the_number_that_proves_its_key(talk: Talk) -> None:
    await talk.say("I said this at home", key=KEY)
    await talk.say("not by the owner of the key", node=BEN)
    _, message = await talk.say("new number", node=BEN, key=KEY)
    prompt = await talk.prompt("what?", node=BEN, key=KEY)
    assert "at home" in prompt
    assert "not by the owner" not in prompt
    assert await talk.texts(ANNA) == []
    async with talk.database.transaction() as db:
        assert (found := await identities.of_key(db, KEY)) is not None
        assert (found.number, found.node) == (BEN, BEN)
    assert await talk.memory.count(message.conversation, BEN) == 4
    assert await talk.memory.forget(message) == 4
    assert await talk.texts(BEN) == []


async def test_off_keeps_nothing_and_each_question_stands_alone(talk: Talk) -> None:
    _, message = await talk.say("hello", key=KEY)
    async with talk.database.transaction() as db:
        await forgetting.forget_all(db, Direct(ANNA))
        await identities.set_level(db, ANNA, Level.OFF)
    await talk.say("unkept", key=KEY)
    await talk.say("unkept on a channel", channel=1)
    assert await talk.texts(ANNA) == []
    assert "unkept" not in await talk.prompt("again?", key=KEY)
    assert await talk.memory.rest(message) is None
    async with talk.database.transaction() as db:
        assert await forgetting.is_empty(db, Channel(1))


async def test_channels_may_be_off(database: Database, clock: ManualClock) -> None:
    talk = Talk(database, clock, channels="off")
    await talk.say("on the channel", channel=1)
    await talk.say("in private")
    async with database.transaction() as db:
        assert await forgetting.is_empty(db, Channel(1))
        assert not await forgetting.is_empty(db, Direct(ANNA))


def files_with(folder: Path, needle: str) -> list[str]:
    return [file.name for file in folder.rglob("*") if file.is_file() and needle.encode() in file.read_bytes()]


async def test_no_byte_of_what_was_forgotten_is_left_and_nothing_late_brings_it_back(
    talk: Talk, tmp_path: Path
) -> None:
    for number in range(40):
        await talk.say(f"filler {number} of anna " + "x" * 100)
    exchange, message = await talk.say("zanzibarneedle")
    await talk.say("ben's own words", node=BEN)
    before = await talk.texts(BEN)
    assert files_with(tmp_path, "zanzibarneedle")
    assert await talk.memory.forget(message) == 82
    assert files_with(tmp_path, "zanzibarneedle") == []
    async with talk.database.transaction() as db:
        # The answer comes late, and its rest with it.
        await talk.memory.said(db, exchange, message, "zanzibarneedle", me=ME, packet_id=0)
        await talk.memory.keep_rest(db, exchange, message, "zanzibarneedle")
        assert await forgetting.is_forgotten(db, exchange)
        # The same packet comes again when the inbox has long forgotten it.
        await db.execute("DELETE FROM heard")
    await talk.say("zanzibarneedle", packet_id=message.packet_id)
    assert await talk.texts(ANNA) == []
    assert await talk.memory.rest(message) is None
    assert await talk.texts(BEN) == before


async def test_what_is_too_old_goes_by_a_clock_that_runs_evenly_alone(talk: Talk, clock: ManualClock) -> None:
    retention = Retention(talk.database, talk.memory.consent, talk.settings, clock)
    await talk.say("old words")
    await talk.say("old words of a full node", node=BEN)
    async with talk.database.transaction() as db:
        await identities.set_level(db, BEN, Level.FULL)
    await retention.look()
    clock.step(31 * DAY_S)
    await retention.look()
    assert len(await talk.texts(ANNA)) == 2, "the clock has jumped"
    await clock.advance(LOOK_EVERY_S)
    await talk.say("new words")
    await retention.look()
    assert await talk.texts(ANNA) == ["re: new words", "new words"]
    assert len(await talk.texts(BEN)) == 2


async def test_the_newest_turns_are_kept_by_count(database: Database, clock: ManualClock) -> None:
    talk = Talk(database, clock, keep_turns=20)
    for number in range(30):
        await talk.say(f"line {number}")
    await Retention(database, talk.memory.consent, talk.settings, clock).look()
    texts = await talk.texts(ANNA)
    assert len(texts) == 20
    assert texts[-1] == "line 20"


async def test_no_prompt_holds_words_of_another_node(database: Database, clock: ManualClock) -> None:
    talk = Talk(database, clock)
    # Numbers that begin alike, as text and as bytes, and one key each for half of them.
    nodes = [0xABC, *(0xABC0 + number for number in range(16)), *(0x0ABC0000 + number for number in range(16))]
    keys = {node: node.to_bytes(32, "big") if node % 2 else None for node in nodes}
    for round_number in range(3):
        for node in nodes:
            await talk.say(f"needle-{node}-{round_number}.", node=node, key=keys[node])
    for node in nodes:
        prompt = await talk.prompt("what did I say?", node=node, key=keys[node])
        assert prompt.count("needle-") == 6
        assert prompt.count(f"needle-{node}-") == 6


async def test_the_first_answer_says_once_that_notes_are_kept(tmp_path: Path) -> None:
    note = "(I keep notes; see, extend, stop: !memory)"
    async with story(tmp_path, tells=True, config=Config()) as told:
        assert await told.ask("hello") == [f"You said hello\n{note}"]
        assert await told.ask("and now?") == ["You said and now?"]
        assert told.last_prompt == ["hello", "You said hello", "and now?"]


async def test_a_first_answer_that_fills_its_packets_says_it_first(tmp_path: Path) -> None:
    async with story(tmp_path, tells=True, answer=lambda messages: "many words " * 100) as told:
        first, *_ = await told.ask("hello", packets=3)
        assert "(I keep notes; see, extend, stop: !memory)" in first


async def test_a_person_chooses_how_much_is_kept_by_encrypted_direct_message_alone(tmp_path: Path) -> None:
    async def asked(words: str, **how: Any) -> str:
        told.radio.hear(words, sender=ANNA, **how)
        seen = len(told.radio.sent)
        await told.until(lambda: len(told.radio.sent) > seen)
        return told.radio.sent[-1].text

    async def facts_known() -> int:
        async with told.parts.database.transaction() as db:
            return len(await facts.known(db, Direct(ANNA), ANNA, with_closed=True))

    async with story(tmp_path) as told:
        assert "level chat" in (await asked("!memory", public_key=KEY)).casefold()
        assert "facts about you" in await asked("!memory full", public_key=KEY)
        await asked("my name is Anna", public_key=KEY)
        assert await facts_known() == 1
        assert "encrypted" in await asked("!memory off")
        assert "direct message" in await asked("@MeshAI !memory", channel=2)
        assert "There are the levels" in await asked("!memory everything", public_key=KEY)
        assert await facts_known() == 1
        assert "a summary, for a while. The rest" in await asked("!memory chat", public_key=KEY)
        assert await facts_known() == 0
        assert await told.parts.memory.count(Direct(ANNA), ANNA) > 0
        assert "nothing of what you say" in await asked("!memory off", public_key=KEY)
        assert await told.parts.memory.count(Direct(ANNA), ANNA) == 0
        await asked("a secret", public_key=KEY)
        assert await told.parts.memory.count(Direct(ANNA), ANNA) == 0
        assert "level off" in (await asked("!memory", public_key=KEY)).casefold()
    assert all(b"a secret" not in file.read_bytes() for file in tmp_path.iterdir() if file.is_file())
