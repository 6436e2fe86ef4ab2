"""`meshai status`: how the running bot is."""

import json
import time
from pathlib import Path
from typing import Final

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from meshai.cli import ConfigSource
from meshai.cli.statusview import picture
from meshai.config import command, database_path, is_service
from meshai.errors import NotRunning, WindowError
from meshai.status import Report
from meshai.window import look, window_of

WATCH_EVERY_S: Final = 2.0


@click.command(
    epilog="""\b
Examples:
  meshai status
  meshai status --watch
  meshai status --json"""
)
@click.option("--watch", is_flag=True, help="Look again every 2 s, until Ctrl-C; waits for a bot that is not running.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead; with --watch a line for each look.")
@click.pass_obj
def status(source: ConfigSource, *, watch: bool, as_json: bool) -> None:
    """See how the running bot is: link, queue, each reply's delivery, airtime, and who talks to it.

    Asks the bot that uses the database of these settings; only the user it runs as can. The exit code is 1 when none
    is running.
    """
    database = database_path(source.config)
    if not watch:
        document = _seen(database)
        if as_json:
            click.echo(json.dumps(json.loads(document), indent=2))
        else:
            Console(highlight=False).print(picture(Report.from_json(document)))
        return
    console = Console(highlight=False)
    if not as_json and not console.is_terminal:
        raise click.UsageError("--watch wants a terminal; with --json it prints a line for each look")
    try:
        if as_json:
            _print_lines(database)
        else:
            _watch(database, console)
    except KeyboardInterrupt:
        return


def _seen(database: Path) -> bytes:
    """What the bot shows, or a WindowError with what helps."""
    try:
        return look(window_of(database))
    except NotRunning as error:
        start = "sudo systemctl start meshai" if is_service() else f"{command()} run"
        raise NotRunning(
            f"{error} with the database {database}; start it: {start}\n"
            "(one that runs and still is not seen tells why in its log)"
        ) from error


def _watch(database: Path, console: Console) -> None:
    with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            live.update(_now(database), refresh=True)
            time.sleep(WATCH_EVERY_S)


def _now(database: Path) -> RenderableType:
    try:
        return picture(Report.from_json(_seen(database)))
    except WindowError as error:
        return Group(Text(str(error), "red"), Text("Waiting for it; Ctrl-C ends.", "dim"))


def _print_lines(database: Path) -> None:
    while True:
        try:
            click.echo(json.dumps(json.loads(_seen(database))))
        except WindowError as error:
            click.echo(error, err=True)
        time.sleep(WATCH_EVERY_S)
