"""Frames in a stream that may hold anything else too: log lines, noise, halves of frames, wrong lengths.

A frame is `94 C3`, a 16-bit big-endian length of at most 512, and a protobuf; nothing guards it against damage. The
library believes every length, so that one wrong header swallows the good frames behind it. Here what such a header
covers is searched again, when it turns out to hold no protobuf or when the rest of it does not come.

Somebody could put such a frame into a text, to have it believed when the frame around that text is damaged. So a
damaged frame that ends where another begins is dropped whole, and while we are lost, a frame counts only if another
one or a pause follows it.
"""

from collections.abc import Callable, Iterator
from typing import Final

START: Final = b"\x94\xc3"
HEADER_BYTES: Final = 4
MOST_BYTES: Final = 512


class FrameFinder:
    """Feed it what comes; call `pause` when nothing has come for a while. `is_protobuf` tells damage."""

    def __init__(self, is_protobuf: Callable[[bytes], bool]) -> None:
        self._is_protobuf = is_protobuf
        self._buffer = bytearray()
        self._is_lost = False
        self.broken = 0
        """Headers with nothing usable behind them."""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The protobufs that are complete with this chunk."""
        self._buffer += chunk
        while (payload := self._next(is_pause=False)) is not None:
            yield payload

    def pause(self) -> Iterator[bytes]:
        """The rest of the frame that has begun will not come; what is behind its header may be frames."""
        while self._buffer:
            payload = self._next(is_pause=True)
            if payload is not None:
                yield payload
            elif self._buffer.startswith(START):
                self._skip()
            else:
                return

    def _next(self, *, is_pause: bool) -> bytes | None:
        buffer = self._buffer
        while (start := buffer.find(START)) >= 0:
            del buffer[:start]
            if len(buffer) < HEADER_BYTES:
                return None
            end = HEADER_BYTES + int.from_bytes(buffer[2:HEADER_BYTES], "big")
            if end > HEADER_BYTES + MOST_BYTES:
                self._skip()
                continue
            if len(buffer) < end or (self._is_lost and len(buffer) < end + len(START) and not is_pause):
                return None
            payload = bytes(buffer[HEADER_BYTES:end])
            is_followed = len(buffer) == end or buffer[end:].startswith(START)
            if self._is_protobuf(payload) and (is_followed or not self._is_lost):
                self._is_lost = False
                del buffer[:end]
                return payload
            self._skip(end if is_followed and not self._is_lost else 0)
        del buffer[: -1 if buffer.endswith(START[:1]) else len(buffer)]
        return None

    def _skip(self, end: int = 0) -> None:
        """Go past a damaged frame up to its end, or past the start of what is none."""
        del self._buffer[: end or len(START)]
        self._is_lost = not end
        self.broken += 1
