"""The command line: `meshai` and its sub-commands, one module each, imported when it is used.

A sub-command NAME is the click command `NAME` in `meshai/cli/NAME.py`. It gets a `ConfigSource`, so that commands
which need no settings work with a broken file too.
"""

import difflib
import importlib
import sys
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from meshai import __version__
from meshai.config import Config, find, load
from meshai.errors import ConfigError, MeshAIError

COMMANDS: Final = {
    "demo": "Talk to the bot on a simulated mesh; needs no radio.",
    "init": "Write a settings file by answering a few questions.",
    "check": "Test radio, model, database and clock, with a remedy for each.",
    "run": "Answer on the radio, until stopped.",
    "status": "See how the running bot is: link, queue, deliveries, airtime.",
    "chat": "Talk to the bot in this terminal instead of by radio.",
    "config": "Show the settings in effect.",
    "model": "Fetch, list or add the local model's files.",
    "sim": "Serve a simulated node to any Meshtastic client.",
    "completion": "Print the completion script for a shell.",
}
"""The sub-commands in the order people need them, with their line in `meshai --help`."""
USAGE_ERROR: Final = 2
"""Exit code for wrong settings, as for wrong arguments: starting again cannot help, so the service does not."""


class ConfigSource:
    """Where the settings come from; the file is looked for and read when it is first asked for."""

    def __init__(self, chosen: Path | None = None, log_level: str | None = None) -> None:
        self.chosen = chosen
        self._log_level = log_level

    @cached_property
    def file(self) -> Path | None:
        """The settings file; None when there is none and the defaults hold."""
        return find(self.chosen)

    @cached_property
    def config(self) -> Config:
        """The settings. Raises ConfigError."""
        return self.checked(lambda config: {})

    def checked(self, check: Callable[[Config], Mapping[tuple[str | int, ...], str]]) -> Config:
        """The settings, when `check` too finds nothing wrong with any key. Raises ConfigError."""
        config = load(self.file, check=check)
        if self._log_level is None:
            return config
        return config.model_copy(update={"log": config.log.model_copy(update={"level": self._log_level})})


class _Failure(click.ClickException):
    """An error of ours on its way out: its own lines on standard error, nothing around them."""

    def show(self, file: Any = None) -> None:
        click.echo(self.message, file=file or sys.stderr)


class _WrongSettings(_Failure):
    exit_code = USAGE_ERROR


class _Commands(click.Group):
    """Sub-commands by name; listing and completing them imports none."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(f"{__name__}.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)  # noqa: S101 - what the head of this module says
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and (close := difflib.get_close_matches(args[0], COMMANDS)):
            ctx.fail(f"No such command {args[0]!r}; did you mean {' or '.join(close)}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[Any]]:
        names = [CompletionItem(name, help=line) for name, line in COMMANDS.items() if name.startswith(incomplete)]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            raise _WrongSettings(str(error)) from error
        except MeshAIError as error:
            raise _Failure(str(error)) from error


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Begin with `meshai demo`, or with a radio: `meshai init`, `meshai check`, `meshai run`.",
)
@click.version_option(__version__, prog_name="MeshAI", message="%(prog)s %(version)s")
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Settings file. Without it: $MESHAI_CONFIG, ./config.yaml, the user's, /etc/meshai/config.yaml.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="In place of log.level of the settings; debug also logs the texts of messages.",
)
@click.pass_context
def main(ctx: click.Context, file: Path | None, log_level: str | None) -> None:
    """Answers people on a Meshtastic mesh with a language model, and remembers them."""
    ctx.obj = ConfigSource(file, log_level)
