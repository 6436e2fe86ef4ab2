"""The index of turns: kept in step with them whoever changes them, and closed between conversations."""

import sqlite3
from pathlib import Path

from meshai.messages import Channel, Conversation, Direct, Turn
from meshai.store import recall, turns
from meshai.store.database import Database, open_database
from meshai.store.migrations import STEPS

ANNA = Direct(0x7ABCED01)
FAR = 2**62


async def keep(database: Database, said: dict[int, str], conversation: Conversation = ANNA) -> None:
    async with database.transaction() as db:
        for exchange, text in said.items():
            turn = Turn(conversation, text, 1, is_ours=False, at=float(exchange))
            await turns.add_question(db, exchange, turn, packet_id=exchange, public_key=None)


async def exchanges(database: Database, word: str, conversation: Conversation = ANNA) -> list[int]:
    """Where a word is found, by the rows that say so too."""
    async with database.transaction() as db:
        places = {place.id: place for place in await recall.places(db, conversation, before=FAR, most=100)}
        (found,) = await recall.postings(db, conversation, [word], most=100)
    return sorted(places[turn].exchange for turn in found)


async def is_sound(database: Database) -> bool:
    """Whether the index holds exactly what the turns say: SQLite raises otherwise."""
    async with database.transaction() as db:
        await db.execute("INSERT INTO recall (recall, rank) VALUES ('integrity-check', 1)")
    return True


async def test_forms_of_a_word_are_found_and_the_newest_come_first(tmp_path: Path) -> None:
    async with open_database(tmp_path / "a.db") as database:
        await keep(database, {1: "I run a REPEATER", 2: "my repeaters are down", 3: "nothing"})
        assert await exchanges(database, "repeater") == [1, 2]
        async with database.transaction() as db:
            assert len((await recall.postings(db, ANNA, ["repeater"], most=1))[0]) == 1
            assert await recall.postings(db, ANNA, [], most=1) == []


async def test_changed_replaced_and_deleted_turns_leave_nothing(tmp_path: Path) -> None:
    async with open_database(tmp_path / "a.db") as database:
        await keep(database, {1: "an old oak", 2: "a tall birch", 3: "some willow"})
        async with database.transaction() as db:
            await db.execute("UPDATE turns SET text = 'a young fir' WHERE exchange = 1")
            await db.execute(
                "INSERT OR REPLACE INTO turns (kind, number, exchange, is_ours, node, packet_id, at, text)"
                " SELECT kind, number, exchange, is_ours, node, packet_id, at, 'a low hazel' FROM turns"
                " WHERE exchange = 2"
            )
            await turns.remove(db, 3)
        found = {word: await exchanges(database, word) for word in ("oak", "fir", "birch", "hazel", "willow")}
        assert found == {"oak": [], "fir": [1], "birch": [], "hazel": [2], "willow": []}
        assert await is_sound(database)


async def test_ids_with_common_beginnings_and_kinds_are_told_apart(tmp_path: Path) -> None:
    others: list[Conversation] = [Direct(0x7ABCED01), Direct(0x7ABCED0), Direct(0x7ABC), Channel(1), Direct(1)]
    async with open_database(tmp_path / "a.db") as database:
        for number, conversation in enumerate(others, start=1):
            await keep(database, {number: f"the secret is 1{0x7ABCED01:010d}"}, conversation)
        for number, conversation in enumerate(others, start=1):
            assert await exchanges(database, "secret", conversation) == [number]


async def test_a_turn_that_moves_to_another_node_is_found_there_alone(tmp_path: Path) -> None:
    async with open_database(tmp_path / "a.db") as database:
        await keep(database, {1: "a tower"})
        async with database.transaction() as db:
            await db.execute("UPDATE turns SET number = 5")
        assert await exchanges(database, "tower") == []
        assert await exchanges(database, "tower", Direct(5)) == [1]


async def test_turns_from_before_the_index_are_in_it(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with open_database(path) as database:
        await keep(database, {1: "an antenna"})
        async with database.transaction() as db:
            for name in ("added", "removed", "changed"):
                await db.execute(f"DROP TRIGGER recall_{name}")
            await db.execute("DROP TABLE recall")
            await db.execute("DROP VIEW recall_source")
            await db.execute("PRAGMA user_version = 0")
    raw = sqlite3.connect(path)
    step = _step_of_the_index()
    for statement in step:
        raw.execute(statement)
    assert raw.execute("SELECT count(*) FROM recall WHERE recall MATCH 'antenna'").fetchone() == (1,)
    raw.close()


def _step_of_the_index() -> tuple[str, ...]:
    (step,) = [step for step in STEPS if any("recall_source AS" in statement for statement in step)]
    return step
