"""Real processes of the bot, one after the other, that a test may kill; each starts in a tenth of a second.

Run as a module it is their parent: one thread that has imported all it can without starting another, and that forks a
bot for each line it reads. It says each bot's process id and, once that has ended, how.
"""

import asyncio
import ctypes
import gc
import importlib
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NoReturn, Self

from tests.acceptance.bot import alone

PRELOADED: Final = ("openai", "google.protobuf.json_format", "serial", "pubsub.pub", "requests", "yaml", "aiosqlite")
"""What a bot imports late. Not `meshtastic`, which starts a thread; that is quick once these are there."""
PR_SET_PDEATHSIG: Final = 1


class Bots:
    """The parent of the bots, as the test sees it."""

    def __init__(self, parent: asyncio.subprocess.Process, log: Path) -> None:
        self._parent = parent
        self._log = log
        self._number: int | None = None

    @classmethod
    @asynccontextmanager
    async def of(cls, told: dict[str, object], log: Path) -> AsyncIterator[Self]:
        """`told` is what `bot.alone` takes; what the bots say goes to `log`."""
        with log.open("ab") as file:
            parent = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tests.acceptance.bots",
                json.dumps(told),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=file,
            )
        bots = cls(parent, log)
        try:
            yield bots
        finally:
            if bots._number is not None:
                await bots.end(signal.SIGKILL)
            assert parent.stdin is not None
            parent.stdin.close()
            assert await asyncio.wait_for(parent.wait(), 10) == 0, bots.said

    async def start(self) -> None:
        """Start the next one, when the last one has ended."""
        assert self._number is None
        assert self._parent.stdin is not None
        self._parent.stdin.write(b"\n")
        self._number = await self._read()

    async def end(self, number: signal.Signals) -> int:
        """Send the bot a signal and return its exit status: that signal, negative, when it was killed by it."""
        assert self._number is not None
        os.kill(self._number, number)
        status = await self._read()
        self._number = None
        return status

    async def _read(self) -> int:
        assert self._parent.stdout is not None
        line = await asyncio.wait_for(self._parent.stdout.readline(), 20)
        assert line, self.said
        return int(line)

    @property
    def said(self) -> str:
        return self._log.read_text()


def _parent(told: dict[str, object]) -> None:
    _end_with_parent()
    for name in PRELOADED:
        importlib.import_module(name)
    assert threading.active_count() == 1, "a fork takes one thread along"
    gc.freeze()
    for _ in sys.stdin:
        if (child := os.fork()) == 0:
            _child(told)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _child(told: dict[str, object]) -> NoReturn:
    status = 1
    try:
        _end_with_parent()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        asyncio.run(alone(told))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        # Not the parent's way out, whose loop this is still in.
        os._exit(status)


def _end_with_parent() -> None:
    """Linux kills this process when its parent ends in whatever way, so that no test leaves any behind."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    _parent(json.loads(sys.argv[1]))
