"""A radio, a model and a clock for tests of our own and of plugins: real users of the seams, without hardware."""

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

from meshai.errors import PacketTooLong, RadioDisconnected
from meshai.messages import (
    BROADCAST,
    Delivery,
    Direct,
    Fate,
    IncomingMessage,
    Node,
    NodeNum,
    OutgoingPacket,
    TextLimits,
)
from meshai.model.base import ChatMessage, Completion
from meshai.radio.base import OwnNode


class ManualClock:
    """Time that stands still until `advance`d."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self._wall = now
        self._elapsed = 0.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._timeouts: list[tuple[float, int, asyncio.Timeout]] = []

    def now(self) -> float:
        return self._wall

    def monotonic(self) -> float:
        return self._elapsed

    def step(self, seconds: float) -> None:
        """Set the wall clock forward or back, as NTP does; no time passes."""
        self._wall += seconds

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed + seconds, next(self._order), future))
        await future

    def timeout(self, seconds: float | None) -> asyncio.Timeout:
        block = asyncio.timeout(None)
        if seconds is not None:
            heapq.heappush(self._timeouts, (self._elapsed + seconds, next(self._order), block))
        return block

    async def advance(self, seconds: float) -> None:
        """Let `seconds` pass, waking every sleeper and timeout at its moment."""
        end = self._elapsed + seconds
        await settle()
        while True:
            due = min((queue[0][0] for queue in (self._sleepers, self._timeouts) if queue), default=end)
            if due > end:
                due = end
            self._wall += due - self._elapsed
            self._elapsed = due
            while self._sleepers and self._sleepers[0][0] <= due:
                future = heapq.heappop(self._sleepers)[2]
                if not future.done():
                    future.set_result(None)
            while self._timeouts and self._timeouts[0][0] <= due:
                block = heapq.heappop(self._timeouts)[2]
                if block.when() is None and not block.expired():
                    _expire(block)
            await settle()
            if due >= end:
                return


def _expire(block: asyncio.Timeout) -> None:
    try:
        block.reschedule(asyncio.get_running_loop().time())
    except RuntimeError:  # not entered, or left already
        return


async def settle() -> None:
    """Let everything run that can, threads of SQLite included, until nothing is ready."""
    for _ in range(20):
        await asyncio.sleep(0)
    await asyncio.sleep(0.002)
    for _ in range(20):
        await asyncio.sleep(0)


class FakeRadio:
    """A radio in memory. Put texts in with `hear`, look at `sent`."""

    def __init__(self, me: OwnNode | None = None, nodes: Sequence[Node] = ()) -> None:
        self._me = me or OwnNode(Node(0xB0B0B0B0, "MeshAI", "AI"), modem=None, region="US", preset="LONG_FAST")
        self._nodes = {node.number: node for node in (self._me.node, *nodes)}
        self._heard: asyncio.Queue[IncomingMessage | None] = asyncio.Queue()
        self._linked = asyncio.Event()
        self._linked.set()
        self._ids = itertools.count(1)
        self.limits = TextLimits(channel_bytes=160, direct_bytes=200)
        self.sent: list[OutgoingPacket] = []
        self.reconnects = 0
        self.fate: Callable[[OutgoingPacket], Delivery] = lambda packet: Delivery(
            Fate.DELIVERED if isinstance(packet.address.destination, Direct) else Fate.HANDED_OVER
        )
        """What `delivery` answers; replace it to lose or refuse packets."""

    @property
    def me(self) -> OwnNode:
        return self._me

    @property
    def is_connected(self) -> bool:
        return self._linked.is_set()

    @property
    def state(self) -> str:
        return "connected to a fake radio" if self.is_connected else "waiting for a fake radio"

    def nodes(self) -> Mapping[NodeNum, Node]:
        return self._nodes

    def hear(
        self,
        text: str,
        *,
        sender: NodeNum = 0xA11CE,
        channel: int | None = None,
        packet_id: int | None = None,
        heard_at: float = 1_800_000_000.0,
        is_tapback: bool = False,
        is_stale: bool = False,
        via_mqtt: bool = False,
        hops: int | None = 0,
        public_key: bytes | None = None,
    ) -> IncomingMessage:
        """A text arrives: direct, or on `channel`."""
        message = IncomingMessage(
            packet_id=next(self._ids) if packet_id is None else packet_id,
            sender=sender,
            to=self._me.node.number if channel is None else BROADCAST,
            channel=channel or 0,
            text=text,
            heard_at=heard_at,
            limits=self.limits,
            is_tapback=is_tapback,
            is_stale=is_stale,
            via_mqtt=via_mqtt,
            hops=hops,
            snr=6.25,
            rssi=-60,
            public_key=public_key,
        )
        self._heard.put_nowait(message)
        return message

    def unplug(self) -> None:
        """The link goes down until `plug`."""
        self._linked.clear()

    def plug(self) -> None:
        self._linked.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.stop()

    async def messages(self) -> AsyncIterator[IncomingMessage]:
        while (message := await self._heard.get()) is not None:
            yield message

    def stop(self) -> None:
        self._heard.put_nowait(None)

    async def ready(self) -> None:
        await self._linked.wait()

    async def reconnect(self) -> None:
        self.reconnects += 1
        await self.ready()

    async def send(self, packet: OutgoingPacket) -> None:
        size = len(packet.text.encode())
        if size > packet.address.limit_bytes:
            raise PacketTooLong(f"{size} bytes for an address that takes {packet.address.limit_bytes}")
        if not self.is_connected:
            raise RadioDisconnected(self.state)
        self.sent.append(packet)

    async def delivery(
        self, packet: OutgoingPacket, *, earlier: Sequence[OutgoingPacket] = (), within_s: float | None = None
    ) -> Delivery:
        return self.fate(packet)


class ScriptedModel:
    """A model that answers by a function of the request, and keeps the requests."""

    name = "scripted"
    trouble = ""
    context_tokens = 2048
    at_once = 8
    can_summarize = False

    def __init__(self, answer: Callable[[Sequence[ChatMessage]], str | Exception]) -> None:
        self._answer = answer
        self.requests: list[tuple[ChatMessage, ...]] = []
        self.gate = asyncio.Event()
        """Clear it to keep every answer waiting."""
        self.gate.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        return None

    async def complete(self, messages: Sequence[ChatMessage], *, max_tokens: int) -> Completion:
        self.requests.append(tuple(messages))
        await self.gate.wait()
        answer = self._answer(messages)
        if isinstance(answer, Exception):
            raise answer
        return Completion(answer)
