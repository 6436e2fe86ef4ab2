"""Who comes first: people who wait for an answer, then work in the background."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from meshai.clock import Clock
from meshai.errors import StoreError

log = logging.getLogger(__name__)

T = TypeVar("T")

LULL_S: Final = 2.0
"""How long nobody must have waited: another question often follows."""
AFTER_FAULT_S: Final = 600.0


class Attention:
    """Counts who waits. A model at home works on one thing at a time, so a question ends what is under way."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting = 0
        self._asked = asyncio.Event()
        self._free = asyncio.Event()
        self._free.set()

    @contextmanager
    def answering(self) -> Iterator[None]:
        """A block in which somebody waits for an answer."""
        self._waiting += 1
        self._free.clear()
        self._asked.set()
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._asked.clear()
                self._free.set()

    async def when_free(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """Do `work` while nobody waits, beginning anew as often as somebody comes; None when it failed.

        The work must bear being cancelled anywhere.
        """
        while True:
            await self._free.wait()
            await self._clock.sleep(LULL_S)
            if self._waiting:
                continue
            working = asyncio.ensure_future(work())
            asked = asyncio.create_task(self._asked.wait())
            try:
                await asyncio.wait({working, asked}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                asked.cancel()
                working.cancel()
                await asyncio.gather(working, asked, return_exceptions=True)
            if not working.cancelled():
                return await self._result(working)

    async def _result(self, working: "asyncio.Future[T]") -> T | None:
        try:
            return working.result()
        except StoreError as error:
            log.warning("notes are not kept for now: %s", error)
        except Exception:
            log.exception("notes are not kept for now, by a fault of ours")
            await self._clock.sleep(AFTER_FAULT_S)
        return None
