"""Whole stories about a database in trouble: people are answered all the time, and remembered again afterwards."""

import logging
import random
import sqlite3
from pathlib import Path

import pytest

from meshai.clock import ScaledClock
from meshai.config import Config, ReplySettings
from tests.store.trouble import locked, read_only, small_disk
from tests.stories import ANNA, BEN, story


def rows(path: Path, query: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def nothing_owed(path: Path) -> bool:
    return (
        rows(path, "SELECT count(*) FROM heard WHERE message IS NOT NULL")
        == [(0,)]
        == rows(path, "SELECT count(*) FROM outbox WHERE NOT is_settled")
    )


def said(caplog: pytest.LogCaptureFixture, *words: str) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.WARNING and all(word in record.getMessage() for word in words)
    ]


async def test_a_disk_that_fills_up_and_is_freed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with small_disk(tmp_path / "disk") as disk:
        path = disk.folder / "meshai.db"
        async with story(path.parent) as told:
            assert await told.ask("before") == ["You said before"]
            disk.fill()
            for number in range(8):
                text = f"{number} {'during ' * 25}".strip()
                assert len(await told.ask(text, packets=2)) == 2
            assert told.parts.database.is_stand_in
            assert told.last_prompt[-3].startswith("6 during"), "what was said meanwhile is known"
            assert "cannot be reached" in (await told.ask("!reset"))[0], "what is in the file would come back"
            disk.free()
            await told.until_file_is_used()
            assert await told.ask("after") == ["You said after"]
            assert "before" in told.last_prompt
            assert told.last_prompt[-3].startswith("7 during")
        assert nothing_owed(path)
        async with story(path.parent, clock=told.clock) as again:
            await again.clock.sleep(10)
            assert again.radio.sent == []
    assert len(said(caplog, "cannot be used", "make room")) == 1
    assert len(said(caplog, "in use again")) == 1
    assert len({packet.packet_id for packet in told.radio.sent}) == len(told.radio.sent)


async def test_a_full_disk_at_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with small_disk(tmp_path / "disk") as disk:
        path = disk.folder / "meshai.db"
        disk.fill()
        async with story(path.parent) as told:
            assert await told.ask("hello") == ["You said hello"]
            assert await told.ask("again") == ["You said again"]
            assert told.last_prompt == ["hello", "You said hello", "again"]
            disk.free()
            await told.until_file_is_used()
            await told.ask("after")
            assert told.last_prompt[:2] == ["hello", "You said hello"]
        assert nothing_owed(path)
    assert len(said(caplog, "cannot be used")) == 1


async def test_an_answer_under_way_when_the_disk_fills_up_is_sent_whole_and_once(tmp_path: Path) -> None:
    config = Config(replies=ReplySettings(max_packets=3))
    words = " ".join(f"word{number}" for number in range(70))
    with small_disk(tmp_path / "disk") as disk:
        path = disk.folder / "meshai.db"
        async with story(path.parent, answer=lambda _: words, config=config) as told:
            told.radio.hear("tell me", sender=ANNA, heard_at=told.clock.now())
            await told.until(lambda: len(told.radio.sent) == 1)
            told.model.gate.clear()
            told.radio.hear("and me", sender=BEN, heard_at=told.clock.now())
            await told.until(lambda: len(told.model.requests) == 2)
            disk.fill()
            told.radio.hear("!ping", sender=ANNA, heard_at=told.clock.now())
            await told.until(lambda: len(told.radio.sent) == 4)
            told.model.gate.set()
            await told.until(lambda: len(told.radio.sent) == 7)
            assert told.parts.database.is_stand_in
            disk.free()
            await told.until_file_is_used()
            await told.clock.sleep(20)
        assert [packet.part for packet in told.radio.sent] == [1, 2, 3, 1, 1, 2, 3]
        assert nothing_owed(path)
        assert rows(path, "SELECT node FROM turns WHERE NOT is_ours ORDER BY exchange") == [(ANNA,), (BEN,)]
        assert len(rows(path, "SELECT 1 FROM turns WHERE is_ours")) == 2, "the answer given meanwhile is remembered"


async def test_a_read_only_disk_at_the_start_with_a_question_owed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    path = folder / "meshai.db"
    async with story(path.parent) as told:
        told.model.gate.clear()
        told.radio.hear("are you there?", sender=ANNA, heard_at=told.clock.now())
        await told.until(lambda: bool(told.model.requests))
    with read_only(folder):
        async with story(path.parent, clock=told.clock) as again:
            await again.until(lambda: len(again.radio.sent) == 1)
            assert again.parts.database.is_stand_in
            assert await again.ask("hello") == ["You said hello"]
            assert again.last_prompt[0] == "are you there?"
    assert len(said(caplog, "cannot be used", "rights")) == 1


async def test_a_folder_that_cannot_be_made_until_it_can(tmp_path: Path) -> None:
    (tmp_path / "place").write_text("a file where the folder should be")
    path = tmp_path / "place" / "meshai.db"
    async with story(path.parent) as told:
        assert await told.ask("hello") == ["You said hello"]
        (tmp_path / "place").unlink()
        await told.until_file_is_used()
        await told.ask("again")
        assert told.last_prompt == ["hello", "You said hello", "again"]
    assert len(rows(path, "SELECT 1 FROM turns")) == 4


@pytest.mark.parametrize("when", ["at the start", "while running"])
async def test_another_program_holds_the_lock(tmp_path: Path, when: str, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "meshai.db"
    async with story(path.parent) as told:
        await told.ask("my dog is Rex")
    lock = locked(path)
    if when == "at the start":
        await lock.__aenter__()
    async with story(path.parent) as told:
        if when == "while running":
            await told.ask("hello")
            await lock.__aenter__()
        assert await told.ask("during") == ["You said during"]
        assert await told.ask("still") == ["You said still"]
        assert told.parts.database.is_stand_in
        assert "Rex" not in str(told.last_prompt)
        await lock.__aexit__(None, None, None)
        await told.until_file_is_used()
        await told.ask("what is my dog called?")
        assert told.last_prompt[0] == "my dog is Rex"
        assert "still" in told.last_prompt
    assert nothing_owed(path)
    assert len(said(caplog, "cannot be used", "other program")) == 1


async def test_the_log_speaks_of_it_once_an_hour(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "place").write_text("")
    async with story(tmp_path / "place", clock=ScaledClock(2000, start=1_800_000_000)) as told:
        began = told.clock.monotonic()
        while told.clock.monotonic() - began < 3 * 3600 - 1800:
            await told.ask("hello")
            await told.clock.sleep(120)
    assert len(said(caplog, "cannot be used")) == 3


async def test_the_file_is_deleted_under_us(tmp_path: Path) -> None:
    path = tmp_path / "meshai.db"
    async with story(path.parent) as told:
        await told.ask("forget this")
        for file in tmp_path.iterdir():
            file.unlink()
        assert await told.ask("at once") == ["You said at once"]
        await told.until(path.exists)
        await told.until_file_is_used()
        assert await told.ask("later") == ["You said later"]
        assert told.last_prompt == ["later"], "who deletes the file wants it forgotten"
    assert rows(path, "SELECT text FROM turns ORDER BY exchange, is_ours") == [("later",), ("You said later",)]
    assert nothing_owed(path)


async def test_the_file_is_overwritten_under_us(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "meshai.db"
    async with story(path.parent) as told:
        await told.ask("hello")
        with path.open("r+b") as file:
            file.write(random.Random(3).randbytes(path.stat().st_size))
        (tmp_path / "meshai.db-wal").write_bytes(b"")
        for number in range(4):
            assert await told.ask(f"{number}") == [f"You said {number}"]
            await told.clock.sleep(40)
        assert not told.parts.database.is_stand_in
    async with story(path.parent) as told:
        assert await told.ask("and now") == ["You said and now"]
    assert len(said(caplog, "was damaged")) == 1
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]


@pytest.mark.parametrize("rest", [0, 100, 5000, -5000])
async def test_a_truncated_file_at_the_start(tmp_path: Path, rest: int, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "meshai.db"
    async with story(path.parent) as told:
        await told.ask("hello " * 30, packets=2)
    whole = path.read_bytes()
    path.write_bytes(whole[: rest % len(whole)] if rest else b"")
    async with story(path.parent) as told:
        assert await told.ask("still there?") == ["You said still there?"]
        assert not told.parts.database.is_stand_in
    # An empty file is a new database to SQLite, and holds nothing that could be kept.
    assert len(said(caplog, "was damaged")) == (rest != 0)
    assert len(list(tmp_path.glob("meshai.db.damaged-*"))) == (rest != 0)


@pytest.mark.parametrize("rest", [0, 4096, 9000])
async def test_the_file_is_truncated_under_us(tmp_path: Path, rest: int) -> None:
    path = tmp_path / "meshai.db"
    async with story(path.parent) as told:
        pass
    async with story(path.parent, clock=told.clock) as told:
        await told.ask("hello")
        with path.open("r+b") as file:
            file.truncate(rest)
        for number in range(4):
            assert await told.ask(f"{number}") == [f"You said {number}"]
            await told.clock.sleep(40)
    async with story(path.parent, clock=told.clock) as again:
        assert await again.ask("and now?") == ["You said and now?"]
        await again.clock.sleep(40)
        assert await again.ask("sure?") == ["You said sure?"]
        assert again.last_prompt[-3:] == ["and now?", "You said and now?", "sure?"]
    assert rows(path, "PRAGMA quick_check") == [("ok",)]


async def test_a_packet_heard_again_during_trouble_is_answered_once(tmp_path: Path) -> None:
    path = tmp_path / "meshai.db"
    async with story(path.parent) as told:
        told.radio.hear("hello", sender=ANNA, packet_id=5, heard_at=told.clock.now())
        await told.until(lambda: bool(told.radio.sent))
        async with locked(path):
            told.radio.hear("hello", sender=ANNA, packet_id=5, heard_at=told.clock.now())
            told.radio.hear("other", sender=ANNA, packet_id=6, heard_at=told.clock.now())
            told.radio.hear("other", sender=ANNA, packet_id=6, heard_at=told.clock.now())
            await told.until(lambda: len(told.radio.sent) == 2)
            assert told.parts.database.is_stand_in
        await told.until_file_is_used()
        told.radio.hear("other", sender=ANNA, packet_id=6, heard_at=told.clock.now())
        await told.clock.sleep(20)
    async with story(path.parent, clock=told.clock) as again:
        for packet_id in (5, 6):
            again.radio.hear("again", sender=ANNA, packet_id=packet_id, heard_at=told.clock.now())
        await again.clock.sleep(20)
    assert [packet.text for packet in told.radio.sent] == ["You said hello", "You said other"]
    assert again.radio.sent == []


async def test_more_of_an_answer_comes_also_during_trouble_and_is_not_said_again(tmp_path: Path) -> None:
    path = tmp_path / "meshai.db"
    words = " ".join(f"word{number}" for number in range(100))
    config = Config(replies=ReplySettings(max_packets=2))
    async with story(path.parent, answer=lambda _: words, config=config) as told:
        first = await told.ask("tell me", packets=2)
        async with locked(path):
            second = await told.ask("!more", packets=2)
            assert told.parts.database.is_stand_in
        await told.until_file_is_used()
        third = await told.ask("!more")
    said_words = [word for text in (*first, *second, *third) for word in text.split() if word.startswith("word")]
    assert [word.rstrip("…") for word in said_words] == words.split()[: len(said_words)]
    assert len(told.model.requests) == 1
