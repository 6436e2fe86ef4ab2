"""Turns at one thing that only one may use at a time, the most urgent first."""

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from meshai.messages import Priority


class Turns:
    """A lock whose waiters are let in by priority, and among equals in the order they came."""

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: list[tuple[Priority, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    @asynccontextmanager
    async def turn(self, priority: Priority) -> AsyncIterator[None]:
        """Wait for a turn, and have it within the block."""
        if self._is_taken:
            called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (priority, next(self._order), called))
            try:
                await called
            except asyncio.CancelledError:
                if called.done() and not called.cancelled():
                    self._call_next()
                raise
        self._is_taken = True
        try:
            yield
        finally:
            self._call_next()

    def _call_next(self) -> None:
        """Hand the turn on; it is never free in between, so that nobody slips in."""
        while self._waiting:
            called = heapq.heappop(self._waiting)[2]
            if not called.done():
                called.set_result(None)
                return
        self._is_taken = False
