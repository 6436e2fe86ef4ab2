"""The sign on a terminal that a model is writing: some take half a minute, and nothing else moves meanwhile."""

import asyncio
import sys
from collections.abc import Callable
from typing import Final, NoReturn

from prompt_toolkit import PromptSession
from rich.console import Console

SIGN: Final = "thinking…"
LOOK_EVERY_S: Final = 0.5


def prompt(is_thinking: Callable[[], bool]) -> PromptSession[str]:
    """A place to type at, with the sign at the end of its line."""
    is_seen = sys.stdout.isatty()
    return PromptSession(
        "You> ",
        rprompt=lambda: SIGN if is_seen and is_thinking() else "",
        refresh_interval=LOOK_EVERY_S if is_seen else 0,
    )


async def show(console: Console, is_thinking: Callable[[], bool]) -> NoReturn:
    """Show the sign where nobody types, below all else, until cancelled; on what is no terminal, nothing."""
    status = console.status(SIGN)
    try:
        while True:
            if is_thinking():
                status.start()
            else:
                status.stop()
            await asyncio.sleep(LOOK_EVERY_S)
    finally:
        status.stop()
