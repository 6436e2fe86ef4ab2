"""What every benchmark shares: its options, its table, and the rows it writes for machines."""

import argparse
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Row:
    """One measured quantity beside its goal, None where none is set."""

    name: str
    measured: float
    unit: str
    goal: float | None = None
    is_floor: bool = False
    """The goal is the least that is good enough, not the most."""

    @property
    def holds(self) -> bool | None:
        if self.goal is None:
            return None
        return self.measured >= self.goal if self.is_floor else self.measured <= self.goal


def options(description: str) -> argparse.Namespace:
    """Parse `--quick` and `--json FILE`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="fewer samples, under 60 s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows there")
    return parser.parse_args()


def show(title: str, rows: Iterable[Row], json_file: Path | None, all_rows: Iterable[Row] | None = None) -> None:
    """Print the table, and write the rows where asked to: `all_rows` when there are more than the table shows."""
    rows = list(rows)
    table = Table(title=title)
    for heading in ("what", "measured", "unit", "goal", "holds"):
        table.add_column(heading, justify="right" if heading in ("measured", "goal") else "left")
    for row in rows:
        goal = "" if row.goal is None else f"{'≥' if row.is_floor else '≤'} {row.goal:g}"
        holds = {None: "", True: "yes", False: "[red]no[/red]"}[row.holds]
        table.add_row(escape(row.name), f"{row.measured:.4g}", row.unit, goal, holds)
    Console().print(table)
    if json_file is not None:
        written = [asdict(row) | {"holds": row.holds} for row in (rows if all_rows is None else all_rows)]
        json_file.write_text(json.dumps(written, indent=1) + "\n")
