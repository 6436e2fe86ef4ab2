"""A terminal in place of a radio: the person at the keyboard is a node, and every line a direct message to the bot.

Lines are read without a thread and without making the terminal non-blocking, which would make printing fail: the
event loop says when there is something to read.
"""

import asyncio
import codecs
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from types import TracebackType
from typing import IO, Final, Self

from meshai.clock import Clock
from meshai.messages import (
    Delivery,
    Direct,
    Fate,
    IncomingMessage,
    Node,
    NodeNum,
    OutgoingPacket,
    TextLimits,
)
from meshai.radio.base import OwnNode
from meshai.radio.inbox import Inbox
from meshai.radio.sent import check_fits

log = logging.getLogger(__name__)

BOT: Final = Node(0x4D455348, "MeshAI", "MAI")
PERSON: Final = Node(0x594F5500, "You", "YOU", hops_away=0)
READ_BYTES: Final = 4096


class ConsoleRadio:
    """See `meshai.radio.base.Radio`. `lines` is what the person types, `show` prints what the bot sends."""

    def __init__(
        self, limits: TextLimits, *, clock: Clock, lines: AsyncIterator[str], show: Callable[[str], None]
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._lines = lines
        self._show = show
        self._inbox = Inbox()
        # Not from 1 again in every run: a text with an id that was seen before counts as a repeat.
        self._packet_id = int(clock.now() * 1000) & 0xFFFFFFFF
        self._task: asyncio.Task[None] | None = None

    @property
    def me(self) -> OwnNode:
        return OwnNode(BOT, modem=None, channel_names={0: ""})

    @property
    def is_connected(self) -> bool:
        return self._task is not None

    @property
    def state(self) -> str:
        return "at this terminal" if self.is_connected else "closed"

    def nodes(self) -> Mapping[NodeNum, Node]:
        return {BOT.number: BOT, PERSON.number: PERSON}

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._listen(), name="console")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
            self._task = None

    def messages(self) -> AsyncIterator[IncomingMessage]:
        """Ends by itself when the person's input ends."""
        return self._inbox.texts()

    def stop(self) -> None:
        self._inbox.stop()

    async def ready(self) -> None:
        """Return at once: a terminal is always there."""

    async def reconnect(self) -> None:
        """Return at once, likewise."""

    async def send(self, packet: OutgoingPacket) -> None:
        check_fits(packet)
        self._show(packet.text)

    async def delivery(
        self, packet: OutgoingPacket, *, earlier: Sequence[OutgoingPacket] = (), within_s: float | None = None
    ) -> Delivery:
        is_direct = isinstance(packet.address.destination, Direct)
        return Delivery(Fate.DELIVERED if is_direct else Fate.HANDED_OVER)

    async def _listen(self) -> None:
        try:
            async for line in self._lines:
                self._packet_id = self._packet_id % 0xFFFFFFFF + 1
                self._inbox.put(
                    IncomingMessage(
                        packet_id=self._packet_id,
                        sender=PERSON.number,
                        to=BOT.number,
                        channel=0,
                        text=line.rstrip("\r\n"),
                        heard_at=self._clock.now(),
                        limits=self._limits,
                        hops=0,
                    )
                )
        except OSError as error:
            log.warning("console: the input is gone: %s", error)
        finally:
            self._inbox.stop()


async def lines_of(file: IO[str]) -> AsyncGenerator[str, None]:
    """The lines of a terminal, pipe or file as they come; bytes that are not UTF-8 are replaced."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    pending = ""
    while chunk := await _read(file.fileno()):
        *lines, pending = (pending + decoder.decode(chunk)).split("\n")
        for line in lines:
            yield line
    if pending := pending + decoder.decode(b"", final=True):
        yield pending


async def _read(descriptor: int) -> bytes:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    try:
        loop.add_reader(descriptor, readable.set)
    except PermissionError:  # an ordinary file, which is always readable
        return os.read(descriptor, READ_BYTES)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(descriptor)
    return os.read(descriptor, READ_BYTES)
