"""The bytes between a node and its client: framing, one connection, and what may be wrong with it."""

import asyncio
import random
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from meshtastic.protobuf import mesh_pb2

from meshai.clock import Clock
from meshai.sim.phone import Phone
from meshai.sim.waiting import ClientQueue

START: Final = b"\x94\xc3"
HEADER_BYTES: Final = 4
FRAME_BYTES: Final = 512
"""Longest protobuf in a frame; a longer length means that this was no frame."""
READ_BYTES: Final = 512
QUIET_AFTER_S: Final = 2.0
SLOW_POLL_S: Final = 0.25
"""How often a node looks at a client it has not heard for a while; else every 5 ms, here at once."""
RECHECK_S: Final = 0.5
HELD_STATES: Final = frozenset({1, 4, 5})
"""ESTABLISHED, FIN_WAIT1, FIN_WAIT2: the other end has not sent its FIN."""


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


@dataclass(frozen=True, slots=True)
class LinkConditions:
    """What is wrong with a node's links at a moment; by default nothing."""

    is_mute: bool = False
    """Reads and ignores everything, says nothing."""
    bytes_per_s: float | None = None
    noise: tuple[bytes, ...] = ()
    """What is put between frames, by chance."""
    config_delay_s: float = 0.0
    """Pause before each message of the download."""
    completes_config: bool = True


class Connection:
    """One client's link, from accept until the client, too, has closed it.

    One that `hangs_up` ends when the client says goodbye; a serial line stays and waits for the next client.
    """

    def __init__(
        self,
        answer: Callable[[], Phone],
        waiting: ClientQueue,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        conditions: Callable[[], LinkConditions],
        clock: Clock,
        rng: random.Random,
        idle_limit_s: float | None,
        hangs_up: bool,
    ) -> None:
        self._answer = answer
        self._phone = answer()
        self._waiting = waiting
        self._reader = reader
        self._writer = writer
        self._conditions = conditions
        self._clock = clock
        self._rng = rng
        self._idle_limit_s = idle_limit_s
        self._hangs_up = hangs_up
        self._last_heard = clock.monotonic()
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._over = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """The node has done with it, whether or not the client has noticed."""
        return self._over.is_set()

    @property
    def is_held(self) -> bool:
        """The client has not closed its end yet, as far as the kernel knows (where it can be asked)."""
        sock = self._writer.get_extra_info("socket")
        if sock is None or self._writer.transport.is_closing():
            return False
        if not hasattr(socket, "TCP_INFO"):
            return True
        return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in HELD_STATES

    async def serve(self) -> None:
        """Speak with the client until one side ends it, then wait for the client to close."""
        ending = asyncio.create_task(self._over.wait(), name="end of connection")
        tasks = [
            ending,
            asyncio.create_task(self._read(), name="reads from client"),
            asyncio.create_task(self._write(), name="writes to client"),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            self._over.set()
            await _finish(tasks)
            await self._await_client()
        finally:
            for task in tasks:
                task.cancel()
            self._abort()

    def end(self) -> None:
        """Close our side: the client reads the end of the stream. A frozen one is forgotten, as after a power cut."""
        if not self._thawed.is_set():
            self.reset()
        self._over.set()

    def reset(self) -> None:
        """End it with RST, as a crash does."""
        sock = self._writer.get_extra_info("socket")
        if sock is not None and not self._writer.transport.is_closing():
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._abort()
        self._over.set()

    def freeze(self) -> None:
        """Neither read nor write any more, and tell nobody: a link that is half open."""
        self._thawed.clear()

    def thaw(self) -> None:
        self._thawed.set()
        self._waiting.changed.set()

    def restart(self) -> None:
        """The node has booted anew while the line stayed; it says so and waits to be asked."""
        self._phone = self._answer()
        self.inject(frame(mesh_pb2.FromRadio(rebooted=True).SerializeToString()))

    def inject(self, wire: bytes) -> None:
        """Put bytes into the stream, between frames."""
        self._writer.write(wire)

    def _abort(self) -> None:
        if not self._writer.transport.is_closing():
            self._writer.transport.abort()

    async def _read(self) -> None:
        deframer = Deframer()
        while chunk := await self._next_chunk():
            arrived_at = self._clock.now()
            if self._is_quiet():
                await self._clock.sleep(self._rng.uniform(0, SLOW_POLL_S))
            self._last_heard = self._clock.monotonic()
            for payload in deframer.feed(chunk):
                if not self._conditions().is_mute:
                    self._phone.handle(payload, arrived_at)
            if self._phone.is_closing:
                if self._hangs_up:
                    return
                self._phone = self._answer()

    async def _next_chunk(self) -> bytes:
        """What the client sends next; nothing when it has closed, or been silent too long."""
        try:
            async with self._clock.timeout(self._idle_limit_s):
                chunk = await self._reader.read(READ_BYTES)
        except (OSError, TimeoutError):
            chunk = b""
        await self._thawed.wait()
        return chunk

    async def _write(self) -> None:
        while True:
            self._waiting.changed.clear()
            await self._write_all()
            await self._waiting.changed.wait()
            if self._is_quiet():
                await self._clock.sleep(self._rng.uniform(0, SLOW_POLL_S))

    async def _write_all(self) -> None:
        while not self._is_silent() and (message := self._phone.next()) is not None:
            if self._phone.is_downloading:
                await self._hold_back(message)
            await self._send(frame(message.SerializeToString()), message)
            if noise := self._conditions().noise:
                await self._send(self._rng.choice(noise))

    async def _hold_back(self, message: mesh_pb2.FromRadio) -> None:
        """A download may be slow, and its end may not come as long as that is so."""
        await self._clock.sleep(self._conditions().config_delay_s)
        while message.HasField("config_complete_id") and not self._conditions().completes_config:
            await self._clock.sleep(RECHECK_S)

    async def _send(self, wire: bytes, message: mesh_pb2.FromRadio | None = None) -> None:
        await self._thawed.wait()
        rate = self._conditions().bytes_per_s
        if rate is not None:
            await self._clock.sleep(len(wire) / rate)
        self._writer.write(wire)
        if message is not None:
            self._phone.given(message)
        await self._writer.drain()

    async def _await_client(self) -> None:
        """The node's side is closed; whatever the client still sends finds nobody."""
        sock = self._writer.get_extra_info("socket")
        if sock is None or self._writer.transport.is_closing():
            return
        with suppress(OSError):
            sock.shutdown(socket.SHUT_WR)
            if await self._reader.read(READ_BYTES):
                self.reset()

    def _is_silent(self) -> bool:
        return self._conditions().is_mute or not self._thawed.is_set() or self.is_over

    def _is_quiet(self) -> bool:
        return self._clock.monotonic() - self._last_heard > QUIET_AFTER_S


async def _finish(tasks: list[asyncio.Task[Any]]) -> None:
    """End tasks; a broken link is no error of theirs, anything else is."""
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception) and not isinstance(result, OSError):
            raise result
