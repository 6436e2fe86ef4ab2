"""Time, as something the parts are given, so that tests and simulations own it.

Two readings: `now()` is the wall clock and may step (a Pi without a battery clock learns the date late);
`monotonic()` never goes back, and every pause, timeout and age inside the program is measured with it.
"""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Wall-clock time in Unix seconds."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed moment; never goes back."""
        ...

    async def sleep(self, seconds: float) -> None: ...

    def timeout(self, seconds: float | None) -> asyncio.Timeout:
        """An `async with` block that raises `TimeoutError` after `seconds` of this clock; None never does."""
        ...


class SystemClock:
    """The machine's own time."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))

    def timeout(self, seconds: float | None) -> asyncio.Timeout:
        return asyncio.timeout(seconds)


class ScaledClock:
    """Time that runs `speed` times as fast as the machine's, for simulations through real sockets.

    `start` is the wall-clock time to begin with, and `origin` the machine's monotonic time of that beginning; two
    processes that are given the same have one time.
    """

    def __init__(self, speed: float, *, start: float | None = None, origin: float | None = None) -> None:
        if speed <= 0:
            raise ValueError(f"speed must be above 0, not {speed}")
        self.speed = speed
        self.origin = time.monotonic() if origin is None else origin
        self.start = time.time() if start is None else start

    def now(self) -> float:
        return self.start + self.monotonic()

    def monotonic(self) -> float:
        return (time.monotonic() - self.origin) * self.speed

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds) / self.speed)

    def timeout(self, seconds: float | None) -> asyncio.Timeout:
        return asyncio.timeout(None if seconds is None else seconds / self.speed)
