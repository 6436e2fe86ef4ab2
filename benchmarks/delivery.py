"""How whole, how often twice and at what cost in airtime answers arrive, beside bots that send and forget.

    python -m benchmarks.delivery [--quick] [--json FILE]

The same 200 questions of five people through the simulated air, for three bots: this one, as it runs; the same one
that waits for no ack and retries nothing; and a minimal one as most are (`benchmarks.reference`). One hop is one link:
the people hear our node directly. Three hops are three links with two relays between. Each link loses the same share
of packets in each direction; collisions come on top. With chatter, eight more nodes talk and tell their telemetry.

A question is asked again until the bot has it, so that 200 replies are owed in every cell, and times count from there.
A reply is whole when the person has read all of it in order, or all of what the bot cut it to on a busy channel, with
its mark. The limits on answers and airtime per hour are far above the defaults, for nobody asks so much; that the
governor spares a busy channel is on. Airtime per character is of our node's own texts, resends included. Time is
virtual; `--quick` takes half a minute, all of it about twenty on two cores.
"""

import itertools
import logging
import multiprocessing
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from benchmarks.bots import Bot, run
from benchmarks.conversation import Outcome, Setting
from benchmarks.report import Row, options, show

QUESTIONS: Final = 200
QUICK_QUESTIONS: Final = 40
SEED: Final = 1
LOSSES: Final = (0.0, 0.1, 0.2, 0.3, 0.4)
JUDGED: Final = 0.3
"""The loss per link at which the goals are set."""
COLUMNS: Final[Mapping[str, str]] = {
    "complete, in order": "%",
    "shortened": "%",
    "parts read twice": "%",
    "airtime per character": "ms",
    "last part, p50": "s",
    "last part, p95": "s",
    "on air": "%",
    "refused": "packets",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One line of the table."""

    bot: Bot
    setting: Setting

    @property
    def name(self) -> str:
        air = self.setting
        hops = "1 hop" if air.hops == 1 else f"{air.hops} hops"
        chatter = "chatter" if air.is_chattering else "quiet"
        return f"{self.bot}, {hops}, {air.loss:.0%} loss, {air.preset}, {chatter}"

    @property
    def is_judged(self) -> bool:
        return self.bot is Bot.OURS and self.setting.loss == JUDGED


def cells(*, is_quick: bool) -> list[Cell]:
    """All of them, or those that decide: the default preset, quiet, without loss and at the judged one."""
    if is_quick:
        airs = [Setting(hops, loss, "LONG_FAST", False) for hops in (1, 3) for loss in (0.0, JUDGED)]
    else:
        airs = [
            Setting(hops, loss, preset, is_chattering)
            for preset, is_chattering, hops, loss in itertools.product(
                ("LONG_FAST", "MEDIUM_FAST"), (False, True), (1, 3), LOSSES
            )
        ]
    return [Cell(bot, air) for air in airs for bot in Bot]


def measure(wanted: Sequence[Cell], questions: int) -> dict[Cell, Outcome]:
    """Run the cells, as many at once as there are processors; the longest first."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    outcomes: dict[Cell, Outcome] = {}
    # A fresh process for each: the radio's library keeps threads and listeners for as long as its process lives.
    with (
        Progress(*columns, TimeRemainingColumn()) as progress,
        ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool,
    ):
        task = progress.add_task(f"{questions} questions in each cell", total=len(wanted))
        first = sorted(wanted, key=lambda cell: (cell.setting.hops, cell.setting.loss), reverse=True)
        running = {pool.submit(_measure, cell, questions): cell for cell in first}
        for done in as_completed(running):
            outcomes[running[done]] = done.result()
            progress.advance(task)
    return {cell: outcomes[cell] for cell in wanted}


def _measure(cell: Cell, questions: int) -> Outcome:
    logging.disable(logging.CRITICAL)
    return run(cell.bot, cell.setting, questions, SEED)


def values(outcome: Outcome) -> list[float]:
    """What stands in `COLUMNS`."""
    return [
        outcome.whole_percent,
        100 * outcome.shortened / outcome.replies,
        outcome.repeated_percent,
        outcome.ms_per_character,
        outcome.took(0.5),
        outcome.took(0.95),
        outcome.on_air_percent,
        outcome.refused,
    ]


def rows(outcomes: Mapping[Cell, Outcome]) -> Iterator[Row]:
    """Every number of every cell, with the goals where they apply."""
    for cell, outcome in outcomes.items():
        for (column, unit), value in zip(COLUMNS.items(), values(outcome), strict=True):
            goal, is_floor = _goal(cell, column)
            yield Row(f"{cell.name}: {column}", value, unit, goal, is_floor)
        if cell.setting.loss == 0:
            goal = 5.0 if cell.bot is Bot.OURS and not cell.setting.is_chattering else None
            yield Row(f"{cell.name}: airtime beyond the least possible", outcome.over_least_percent, "%", goal)


def _goal(cell: Cell, column: str) -> tuple[float | None, bool]:
    match column:
        case "complete, in order" if cell.is_judged:
            return (99.5 if cell.setting.hops == 1 else 97.0), True
        case "parts read twice" if cell.is_judged:
            return 2.0, False
        case "refused" if cell.bot is Bot.OURS:
            return 0.0, False
        case _:
            return None, False


def table(outcomes: Mapping[Cell, Outcome]) -> Table:
    """One line per cell."""
    result = Table(title="Delivery")
    result.add_column("bot, hops, loss per link, preset, mesh")
    for column, unit in COLUMNS.items():
        result.add_column(f"{column}\n[{unit}]".replace("[", r"\["), justify="right")
    for cell, outcome in outcomes.items():
        result.add_row(cell.name, *(f"{value:.4g}" for value in values(outcome)), end_section=cell.bot is [*Bot][-1])
    return result


if __name__ == "__main__":
    chosen = options(__doc__ or "")
    measured = measure(cells(is_quick=chosen.quick), QUICK_QUESTIONS if chosen.quick else QUESTIONS)
    Console().print(table(measured))
    all_rows = list(rows(measured))
    show("Goals", [row for row in all_rows if row.goal is not None], chosen.json, all_rows)
