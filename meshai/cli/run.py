"""`meshai run`: the bot, on the radio, until stopped."""

import asyncio
import random
import signal

import click

from meshai import app
from meshai.cli import ConfigSource, logs
from meshai.clock import SystemClock
from meshai.config import Config, environment
from meshai.notify import Notifier

LAST_RESORT_S = 9
"""Stopping has its own, shorter time limits; should one of them fail, the kernel ends the process."""


@click.command(
    epilog="""\b
Examples:
  meshai run
  meshai --config /etc/meshai/config.yaml --log-level debug run"""
)
@click.pass_obj
def run(source: ConfigSource) -> None:
    """Answer people on the radio until stopped by Ctrl-C or SIGTERM.

    Starts without a radio too, and waits for it. Wants no terminal; logs to standard error.
    """
    config = source.checked(app.unusable)
    logs.set_up(config.log.level, is_journal="JOURNAL_STREAM" in environment())
    asyncio.run(_serve(config))


async def _serve(config: Config) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop_soon() -> None:
        signal.alarm(LAST_RESORT_S)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_soon)
    await app.run(config, clock=SystemClock(), rng=random.SystemRandom(), stop=stop, notifier=Notifier(environment()))
    signal.alarm(0)
