"""The bytes between a node and its client: framing, and one connection over TCP or a pseudo-terminal."""

import asyncio
import random
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from meshai.clock import Clock
from meshai.sim.firmware import ClientQueue
from meshai.sim.phone import Phone

START: Final = b"\x94\xc3"
HEADER_BYTES: Final = 4
FRAME_BYTES: Final = 512
"""Longest protobuf in a frame; a longer length means that this was no frame."""
READ_BYTES: Final = 512
QUIET_AFTER_S: Final = 2.0
SLOW_POLL_S: Final = 0.25
"""How often a node looks at a client it has not heard for a while; else every 5 ms, which we round to at once."""


def frame(payload: bytes) -> bytes:
    """A protobuf as it goes over the wire."""
    return START + len(payload).to_bytes(2, "big") + payload


class Deframer:
    """Finds frames in a stream that may hold anything else too."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The protobufs that are complete with this chunk."""
        self._buffer += chunk
        while (payload := self._next()) is not None:
            yield payload

    def _next(self) -> bytes | None:
        while True:
            start = self._buffer.find(START)
            if start < 0:
                keep = 1 if self._buffer.endswith(START[:1]) else 0
                del self._buffer[: len(self._buffer) - keep]
                return None
            del self._buffer[:start]
            if len(self._buffer) < HEADER_BYTES:
                return None
            length = int.from_bytes(self._buffer[2:HEADER_BYTES], "big")
            if length > FRAME_BYTES:
                del self._buffer[: len(START)]
                continue
            end = HEADER_BYTES + length
            if len(self._buffer) < end:
                return None
            payload = bytes(self._buffer[HEADER_BYTES:end])
            del self._buffer[:end]
            return payload


@dataclass(slots=True)
class LinkConditions:
    """What is wrong with a node's links at the moment; shared by all its connections."""

    is_mute: bool = False
    """Reads and ignores everything, says nothing."""
    bytes_per_s: float | None = None
    noise: tuple[bytes, ...] = ()
    """Bytes put between frames, in turn."""
    config_delay_s: float = 0.0
    """Pause before each message of the download."""
    completes_config: bool = True


class Connection:
    """One client's link, from accept to the end."""

    def __init__(
        self,
        phone: Phone,
        waiting: ClientQueue,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        conditions: LinkConditions,
        clock: Clock,
        rng: random.Random,
        idle_limit_s: float | None,
    ) -> None:
        self.phone = phone
        self._waiting = waiting
        self._reader = reader
        self._writer = writer
        self._conditions = conditions
        self._clock = clock
        self._rng = rng
        self._idle_limit_s = idle_limit_s
        self._last_heard = clock.monotonic()
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._task: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        """Speak with the client until one side ends it."""
        self._task = asyncio.current_task()
        reading = asyncio.create_task(self._read(), name="reads from client")
        writing = asyncio.create_task(self._write(), name="writes to client")
        try:
            await asyncio.wait((reading, writing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (reading, writing):
                task.cancel()
            results = await asyncio.gather(reading, writing, return_exceptions=True)
            self._writer.close()
            for result in results:
                if isinstance(result, Exception) and not isinstance(result, OSError | TimeoutError):
                    raise result

    def reset(self) -> None:
        """End it with RST, as a crash does."""
        sock = self._writer.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def _read(self) -> None:
        deframer = Deframer()
        while not self.phone.is_closing:
            async with self._clock.timeout(self._idle_limit_s):
                chunk = await self._reader.read(READ_BYTES)
            if not chunk:
                return
            if self._is_quiet():
                await self._clock.sleep(self._rng.uniform(0, SLOW_POLL_S))
            self._last_heard = self._clock.monotonic()
            for payload in deframer.feed(chunk):
                self.phone.handle(payload)

    async def _write(self) -> None:
        changed = self._waiting.changed
        while True:
            changed.clear()
            while (message := self.phone.next()) is not None:
                await self._send(frame(message.SerializeToString()))
            await changed.wait()
            if self._is_quiet():
                await self._clock.sleep(self._rng.uniform(0, SLOW_POLL_S))

    async def _send(self, wire: bytes) -> None:
        self._writer.write(wire)
        await self._writer.drain()

    def _is_quiet(self) -> bool:
        return self._clock.monotonic() - self._last_heard > QUIET_AFTER_S
