"""Virtual time that jumps: an event loop that skips every wait in which nothing could happen.

A simulation in scaled time sleeps through its silences and, driven too fast, makes a bot look slow. This loop's time
stands still while anything works and goes to the next timer's moment once nothing does: no socket has something to
read, and every other thread of the process sleeps. So a program with real sockets and threads (the radio's library,
SQLite) runs as fast as the machine computes, and to it its own work takes no time at all.

The state of threads is read from Linux's `/proc`. A thread that waits for the interpreter's lock sleeps too. Hence the
lock is let go for a moment between two looks: who waits for it is woken then, and if no thread has run from one look
to the other, none waits for it. The switch interval is long, so that who takes the lock keeps it until it has to wait.
"""

import asyncio
import math
import os
import selectors
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

YIELD_S: Final = 0.00005
"""How long the interpreter's lock is let go, in the machine's time."""
SWITCH_S: Final = 5.0
TASKS: Final = "/proc/self/task"


class JumpingLoop(asyncio.SelectorEventLoop):
    """Its `time()` is virtual. Time passes at the machine's pace until `jump()` and within `walking()`."""

    def __init__(self) -> None:
        self._now = 0.0
        self._walkers = 1
        self._switch_s = sys.getswitchinterval()
        super().__init__(_Selector(self))
        # asyncio fires timers that early, and time that stands still meanwhile would never reach their moment.
        self._clock_resolution = 0.0

    def time(self) -> float:
        return self._now

    def pass_time(self, seconds: float) -> None:
        """Advance, and by the least there is beyond: asyncio fires a timer only when its moment is past."""
        self._now = math.nextafter(self._now + seconds, math.inf)

    def close(self) -> None:
        sys.setswitchinterval(self._switch_s)
        super().close()

    @property
    def is_jumping(self) -> bool:
        return self._walkers == 0

    def jump(self) -> None:
        """From now on, skip the waits."""
        sys.setswitchinterval(SWITCH_S)
        self._walkers -= 1

    @contextmanager
    def walking(self) -> Iterator[None]:
        """Skip no waits in here: somebody looks at the machine's own clock."""
        self._walkers += 1
        try:
            yield
        finally:
            self._walkers -= 1


class LoopClock:
    """A loop's time as a clock (see `meshai.clock.Clock`); other threads may read it too."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, start: float = 1_800_000_000.0) -> None:
        self._loop = loop
        self._start = start

    def now(self) -> float:
        return self._start + self.monotonic()

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))

    def timeout(self, seconds: float | None) -> asyncio.Timeout:
        return asyncio.timeout(seconds)


class _Selector(selectors.BaseSelector):
    """Waits for files as usual, and lets the loop's time pass instead of waiting in vain."""

    def __init__(self, loop: JumpingLoop) -> None:
        self._loop = loop
        self._files = selectors.DefaultSelector()
        self._asleep: dict[str, bytes] | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._files.select(0)
        if timeout is not None and timeout <= 0:
            self._loop.pass_time(0.0)
            return ready
        while not ready:
            if timeout is None or not self._loop.is_jumping:
                return self._walk(timeout)
            before = self._asleep
            time.sleep(YIELD_S)
            ready = self._files.select(0)
            self._asleep = _others_asleep()
            if not ready and self._asleep is not None and self._asleep == before:
                self._loop.pass_time(timeout)
                break
        return ready

    def _walk(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        began = time.monotonic()
        ready = self._files.select(timeout)
        waited_s = time.monotonic() - began
        self._loop.pass_time(waited_s if ready or timeout is None else timeout)
        return ready

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._files.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._files.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._files.modify(fileobj, events, data)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._files.get_map()

    def close(self) -> None:
        self._files.close()


def _others_asleep() -> dict[str, bytes] | None:
    """By thread, how often each other one has run, or None when one of them runs or wants to."""
    me = str(threading.get_native_id())
    runs: dict[str, bytes] = {}
    for task in os.listdir(TASKS):
        if task == me:
            continue
        try:
            stat = _contents(f"{TASKS}/{task}/stat")
            runs[task] = _contents(f"{TASKS}/{task}/schedstat")
        except OSError:  # it has just ended
            continue
        if stat[stat.rindex(b")") + 2 : stat.rindex(b")") + 3] not in (b"S", b"Z", b"X"):
            return None
    return runs


def _contents(path: str) -> bytes:
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, 1024)
    finally:
        os.close(file)
