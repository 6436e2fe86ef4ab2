"""Texts on their way from a radio to the one who answers them."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Final

from meshai.messages import IncomingMessage

MOST_WAITING: Final = 200


class Inbox:
    """Holds the newest texts until they are taken; when full, the oldest makes room."""

    def __init__(self, most: int = MOST_WAITING) -> None:
        self._texts: deque[IncomingMessage] = deque(maxlen=most)
        self._has_news = asyncio.Event()
        self._is_stopped = False
        self.dropped = 0

    def put(self, message: IncomingMessage) -> bool:
        """Add a text, unless stopped. False when an older one had to go for it."""
        if self._is_stopped:
            return True
        is_full = len(self._texts) == self._texts.maxlen
        self.dropped += is_full
        self._texts.append(message)
        self._has_news.set()
        return not is_full

    def stop(self) -> None:
        """Take no more; what is waiting is still handed out."""
        self._is_stopped = True
        self._has_news.set()

    async def texts(self) -> AsyncIterator[IncomingMessage]:
        """Every text in order, until stopped and empty. One consumer."""
        while self._texts or not self._is_stopped:
            if self._texts:
                yield self._texts.popleft()
            else:
                self._has_news.clear()
                await self._has_news.wait()
