"""The benchmarks that need no network and no second process: their time, their measure, their rows."""

import asyncio
import json
import math
import random
from pathlib import Path

import pytest

from benchmarks.bots import Bot, run
from benchmarks.conversation import MOST_CHARACTERS, Least, Setting, answer_to
from benchmarks.delivery import COLUMNS, Cell, cells, rows, table
from benchmarks.jumping import JumpingLoop, LoopClock
from benchmarks.report import show
from meshai.airtime import PRESETS, text_frame_bytes
from meshai.chunker import split
from meshai.messages import Address, Direct

MODEM = PRESETS["LONG_FAST"]


def test_time_jumps_over_sleeps_and_not_over_work() -> None:
    async def story() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, JumpingLoop)
        loop.jump()
        clock = LoopClock(loop)
        began = clock.monotonic()
        working = loop.run_in_executor(None, sum, range(2_000_000))
        sleeping = asyncio.create_task(clock.sleep(86_400))
        await working
        worked_s = clock.monotonic() - began
        await sleeping
        with pytest.raises(TimeoutError):
            async with clock.timeout(3600):
                await asyncio.Event().wait()
        return worked_s, clock.monotonic() - began

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        worked_s, all_s = runner.run(story())
    assert worked_s < 1
    assert all_s == pytest.approx(90_000, abs=1)


def test_time_walks_until_it_may_jump() -> None:
    async def story() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.sleep(0.01)
        return loop.time() - began

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        assert 0.01 <= runner.run(story()) < 5


def test_answers_are_the_same_for_every_bot_and_of_one_to_three_parts() -> None:
    parts = [
        len(split(answer_to(f"question {number}"), Address(Direct(1), 200), max_packets=4, max_characters=150))
        for number in range(200)
    ]
    assert set(parts) == {1, 2, 3}
    assert all(len(answer_to(str(number))) <= MOST_CHARACTERS for number in range(200))
    assert answer_to("question 7") == answer_to("you asked 7")


def test_no_cutting_takes_less_airtime_than_the_least() -> None:
    least = Least(MODEM, 150)
    rng = random.Random(4)
    for number in range(200):
        text = answer_to(str(number))
        cut = split(text, Address(Direct(1), 200), max_packets=4, max_characters=150)
        taken_s = sum(MODEM.airtime_s(text_frame_bytes(len(packet.text), is_direct=True)) for packet in cut)
        assert least.airtime_s(text) <= taken_s + 1e-9
    for _ in range(50):
        first = rng.randint(100, 150)
        shared_s = sum(MODEM.airtime_s(text_frame_bytes(size, is_direct=True)) for size in (first, 250 - first))
        assert least.airtime_s("x" * 239) <= shared_s + 1e-9


@pytest.mark.parametrize("bot", list(Bot))
def test_a_tiny_instance_of_the_delivery_benchmark(bot: Bot, tmp_path: Path) -> None:
    cell = Cell(bot, Setting(1, 0.0, "LONG_FAST", False))
    asked: list[None] = []
    outcome = run(bot, cell.setting, 4, 1, lambda: asked.append(None))
    assert len(asked) == outcome.replies == 4
    assert outcome.whole == 4
    assert (outcome.repeated, outcome.refused) == (0, 0)
    assert outcome.parts >= 4
    assert outcome.characters == outcome.all_characters
    assert 0 < outcome.least_s <= outcome.own_texts_s <= outcome.on_air_s <= outcome.busy_s <= outcome.duration_s
    assert outcome.own_texts_s <= outcome.caused_s <= outcome.busy_s
    assert 0 < outcome.took(0.5) <= outcome.took(0.95) < 60
    show("Delivery", rows({cell: outcome}), tmp_path / "rows.json")
    written = json.loads((tmp_path / "rows.json").read_text())
    assert [row["name"].rpartition(": ")[2] for row in written[: len(COLUMNS)]] == list(COLUMNS)
    for row in written:
        assert {"name", "measured", "unit", "goal", "holds"} <= row.keys()
        assert math.isfinite(row["measured"])
        assert (row["goal"] is None) == (row["holds"] is None)
    assert table({cell: outcome}).row_count == 1


def test_a_lossy_way_loses_what_nobody_sends_again() -> None:
    outcome = run(Bot.REFERENCE, Setting(3, 0.4, "MEDIUM_FAST", True), 5, 1)
    assert outcome.replies == 5
    assert outcome.whole < 5
    assert outcome.busy_s > outcome.caused_s > outcome.own_texts_s


def test_the_cells_are_all_that_are_asked_for() -> None:
    every = cells(is_quick=False)
    assert len(set(every)) == len(every) == 3 * 2 * 5 * 2 * 2
    quick = cells(is_quick=True)
    assert set(quick) < set(every)
    assert [cell.setting.hops for cell in quick if cell.is_judged] == [1, 3]
