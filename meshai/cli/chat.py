"""`meshai chat`: the bot in this terminal, as if you were a node writing to it directly."""

import asyncio
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext

import click
from prompt_toolkit.patch_stdout import patch_stdout
from rich.console import Console

from meshai import app
from meshai.cli import ConfigSource, logs, thinking
from meshai.clock import SystemClock
from meshai.config import AirtimeSettings, Config, database_path
from meshai.loops import NoGuard
from meshai.notify import Notifier
from meshai.responder import Responder


@click.command(
    epilog="""\b
Examples:
  meshai chat
  echo "What is a dipole?" | meshai chat"""
)
@click.pass_obj
def chat(source: ConfigSource) -> None:
    """Talk to the bot in this terminal instead of by radio.

    Same model, same commands, same packets as on the air; the talk is kept in chat.db, apart from the radio's.
    Ctrl-D ends.
    """
    config = source.checked(app.unusable)
    logs.set_up("warning", is_journal=False)
    is_terminal = sys.stdin.isatty()
    with patch_stdout(raw=True) if is_terminal else nullcontext():
        code = asyncio.run(_chat(config, is_terminal=is_terminal))
    sys.exit(code)


async def _chat(config: Config, *, is_terminal: bool) -> int:
    """Talk until the input ends; returns the exit code, 1 when a piped question got no answer."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    if is_terminal:
        click.echo("Write to MeshAI; !help lists its commands, Ctrl-D ends.")
    # A terminal needs no pause between packets and no limits nor rest at night, and a running service its own database.
    config = config.model_copy(
        update={
            "replies": config.replies.model_copy(update={"gap_s": 0.0}),
            "airtime": AirtimeSettings(answers_per_node_hour=1000, answers_per_hour=10_000),
            "bot": config.bot.model_copy(update={"answer_nodes": ()}),
            # Whoever sits at the terminal is who they are, and can read the file as well.
            "memory": config.memory.model_copy(update={"need_key": False, "tell": False}),
            "storage": config.storage.model_copy(update={"path": database_path(config).with_name("chat.db")}),
        }
    )
    clock = SystemClock()
    responder: Responder | None = None
    radio = app.terminal_radio(
        config,
        clock=clock,
        show=lambda text: click.echo(click.style("MeshAI> ", fg="green") + text),
        lines=_typed(stop, lambda: responder is not None and responder.asking > 0) if is_terminal else None,
    )

    async def watch(parts: app.Parts) -> None:
        nonlocal responder
        responder = parts.responder
        if not is_terminal:
            await thinking.show(Console(), lambda: parts.responder.asking > 0)

    await app.run(
        config,
        clock=clock,
        rng=random.SystemRandom(),
        stop=stop,
        notifier=Notifier({}),
        radio=radio,
        loop_guard=NoGuard(),
        starts_afresh=True,
        watch=watch,
    )
    return 1 if responder is not None and responder.apologies and not is_terminal else 0


async def _typed(stop: asyncio.Event, is_thinking: Callable[[], bool]) -> AsyncIterator[str]:
    """What is typed, line by line, until Ctrl-D; Ctrl-C stops the whole program, also while an answer is awaited."""
    prompt = thinking.prompt(is_thinking)
    while True:
        try:
            # With its own handler of SIGINT the prompt would take away ours when it ends.
            yield await prompt.prompt_async(handle_sigint=False)
        except EOFError:
            click.echo("Finishing what was asked; Ctrl-C ends at once.")
            return
        except KeyboardInterrupt:
            stop.set()
            return
