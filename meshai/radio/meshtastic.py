"""A Meshtastic node on a serial port, the network or Bluetooth, as a radio that is always being connected.

One task owns the link: it connects, listens and probes until the link is lost, backs off, and begins again. Where
the node has answered nothing for 20 s it is sent a heartbeat, and two unanswered ones end the link. So a mute,
half-open or junk-filled link is noticed within 40 s, without traffic.

The rest is told elsewhere: the thread that holds the library in `link.py`, what the library is kept from doing in
`interface.py`, how packets are handed over in `handover.py`, how old a text may be to get an answer in `backlog.py`.
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, Self

from meshai.clock import Clock
from meshai.config import RadioSettings
from meshai.entries import TcpAddress
from meshai.errors import RadioDisconnected, RadioError
from meshai.messages import (
    BROADCAST,
    Delivery,
    IncomingMessage,
    Node,
    NodeNum,
    OutgoingPacket,
    TextLimits,
    node_id,
)
from meshai.radio.backlog import Backlog
from meshai.radio.base import OwnNode
from meshai.radio.handover import HandOver, first
from meshai.radio.inbox import Inbox
from meshai.radio.link import Event, Link, Loss, Notice, Opened, QueueStatus
from meshai.radio.nodes import KnownNodes
from meshai.radio.packets import Heard, RoutingAnswer
from meshai.radio.reconnect import Backoff, Rarely, RivalWatch
from meshai.radio.sent import check_fits

log = logging.getLogger(__name__)

OPEN_S: Final = 30.0
"""Longest time to connect, and between two pieces of the configuration."""
OPEN_SLOWLY_S: Final = 600.0
"""Longest download of the configuration while pieces of it keep coming, as over a slow link with many nodes."""
PROBE_EVERY_S: Final = 20.0
STABLE_S: Final = 30.0
"""A link that lives so long is no longer fought for."""
MOST_STUCK: Final = 3
"""Threads that may hang in the library before no more are started."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What happened since the start."""

    connects: int = 0
    losses: int = 0
    bad_frames: int = 0
    stuck_threads: int = 0
    dropped_texts: int = 0


class MeshtasticRadio:
    """See `meshai.radio.base.Radio`.

    `away_since` is the wall-clock time at which the previous run last lived, None when unknown; `find_ports` lists
    the serial ports a radio may be on, None to ask the library.
    """

    def __init__(
        self,
        settings: RadioSettings,
        limits: TextLimits,
        *,
        clock: Clock,
        rng: random.Random,
        away_since: float | None = None,
        find_ports: Callable[[], Sequence[str]] | None = None,
    ) -> None:
        self._settings = settings
        self._limits = limits
        self._clock = clock
        self._find_ports = find_ports
        self._inbox = Inbox()
        self._hand_over = HandOver(clock)
        self._backlog = Backlog(settings.answer_within_s, away_since=away_since)
        self._backoff = Backoff(rng)
        self._rivals = RivalWatch()
        self._has_rival = False
        self._rarely = Rarely(clock)
        self._counts = Counts()
        self._nodes: dict[NodeNum, Node] = {}
        self._me: OwnNode | None = None
        self._link: Link | None = None
        self._stuck: list[Link] = []
        self._up = asyncio.Event()
        self._down = asyncio.Event()
        self._down.set()
        self._since = clock.monotonic()
        self._trouble = "connecting"
        self._is_closed = False
        self._task: asyncio.Task[None] | None = None

    @property
    def me(self) -> OwnNode | None:
        return self._me

    @property
    def is_connected(self) -> bool:
        return self._up.is_set()

    @property
    def state(self) -> str:
        if self._is_closed:
            return "closed"
        for_s = self._clock.monotonic() - self._since
        if self.is_connected and self._me is not None:
            return f"connected to {_title(self._me.node)} at {self._settings.address} for {_span(for_s)}"
        return f"waiting for a radio at {self._settings.address} for {_span(for_s)}: {self._trouble}"

    @property
    def counts(self) -> Counts:
        bad_frames = self._counts.bad_frames + (self._link.bad_frames if self._link is not None else 0)
        return replace(self._counts, bad_frames=bad_frames, dropped_texts=self._inbox.dropped)

    def nodes(self) -> Mapping[NodeNum, Node]:
        return self._known_nodes()

    def _known_nodes(self) -> KnownNodes:
        return KnownNodes(self._nodes, self._link.node_table() if self._link is not None else {})

    async def __aenter__(self) -> Self:
        self._since = self._clock.monotonic()
        self._task = asyncio.create_task(self._keep_connected(), name="radio")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        self._hand_over.close()
        self._is_closed = True

    def messages(self) -> AsyncIterator[IncomingMessage]:
        return self._inbox.texts()

    def stop(self) -> None:
        self._inbox.stop()

    async def ready(self) -> None:
        await self._up.wait()

    async def reconnect(self) -> None:
        if self._link is not None and self.is_connected:
            self._link.lose("a new link was asked for")
        await self._down.wait()
        await self._up.wait()

    async def send(self, packet: OutgoingPacket) -> None:
        check_fits(packet)
        if self._link is None or self._me is None or not self.is_connected:
            raise RadioDisconnected(self.state)
        await self._hand_over.send(self._link, packet, self._me)

    async def delivery(
        self, packet: OutgoingPacket, *, earlier: Sequence[OutgoingPacket] = (), within_s: float | None = None
    ) -> Delivery:
        modem = self._me.modem if self._me is not None else None
        return await self._hand_over.delivery(packet, modem, earlier=earlier, within_s=within_s)

    # Connecting, in the radio's task.

    async def _keep_connected(self) -> None:
        without_nodes = False
        while True:
            await self._no_stuck_threads()
            link = self._link = Link(
                self._settings.endpoint,
                self._limits,
                clock=self._clock,
                on_event=self._on_event,
                without_nodes=without_nodes,
                find_ports=self._find_ports,
            )
            link.start()
            try:
                # A node database too large for its link is left out after a try that took too long, and from then on
                # as long as that works.
                if not await self._open(link):
                    without_nodes = not without_nodes
                if self.is_connected:
                    await self._probe(link)
            except RadioError as error:
                self._went_wrong(str(error))
            finally:
                await self._close(link)
            await self._clock.sleep(self._backoff.next_pause_s())

    async def _no_stuck_threads(self) -> None:
        """Start no thread while several hang in the library."""
        while len(stuck := [link for link in self._stuck if link.is_running]) >= MOST_STUCK:
            self._went_wrong("the radio's port or network holds up every attempt; unplug and replug it")
            await self._clock.sleep(PROBE_EVERY_S)
        self._stuck = stuck

    async def _open(self, link: Link) -> bool:
        """Bring the link up. False when the node took the connection and did not tell its configuration in time."""
        await link.loaded.wait()
        until = self._clock.monotonic() + OPEN_SLOWLY_S
        described = -1
        while described < link.described and self._clock.monotonic() < until:
            described = link.described
            await first(self._clock, OPEN_S, link.opened)
            if link.opened.done():
                await link.opened
                return True
        link.lose("the node does not complete its configuration")
        self._went_wrong("the node does not complete its configuration; restart it if this goes on")
        return False

    async def _probe(self, link: Link) -> None:
        """Listen until the link is lost, and lose it when the node no longer answers."""
        while not link.lost.done():
            if self._has_rival and self._clock.monotonic() - self._since >= STABLE_S:
                self._has_rival = False
                log.info("radio: connected to %s again, and the link holds", self._settings.address)
            quiet_s = PROBE_EVERY_S - self._hand_over.silent_s
            if quiet_s > 0:
                await first(self._clock, quiet_s, link.lost)
            else:
                await self._hand_over.is_answered(link)

    async def _close(self, link: Link) -> None:
        lived_s = self._clock.monotonic() - self._since if self.is_connected else 0.0
        loss = link.lost.result() if link.lost.done() else None
        self._nodes = self._known_nodes().kept()
        was_up = self.is_connected
        self._up.clear()
        self._down.set()
        self._hand_over.lost()
        if not await _to_its_end(link.close()):
            self._counts = replace(self._counts, stuck_threads=self._counts.stuck_threads + 1)
            self._stuck.append(link)
            log.debug("a thread of the link to %s is stuck and was left behind", self._settings.address)
        self._counts = replace(self._counts, bad_frames=self._counts.bad_frames + link.bad_frames)
        self._link = None
        if loss is not None:
            self._lost(loss, lived_s, was_up=was_up)

    def _lost(self, loss: Loss, lived_s: float, *, was_up: bool) -> None:
        now = self._clock.monotonic()
        self._backoff.lived(lived_s)
        if was_up:
            self._counts = replace(self._counts, losses=self._counts.losses + 1)
            self._since, self._trouble = now, loss.reason
            level = self._level_of_change(logging.WARNING)
            log.log(level, "radio: lost the link to %s: %s", self._settings.address, loss.reason)
        if loss.is_closed_by_node and isinstance(self._settings.endpoint, TcpAddress):
            self._has_rival = self._rivals.closed_by_node(now, lived_s)
        if self._has_rival and self._rarely.is_due("rival"):
            log.warning(
                "radio: the node at %s closes each link soon after it is made; most likely another client (a phone "
                "app, a second bot) uses this node. Give the bot a node of its own",
                self._settings.address,
            )

    def _went_wrong(self, trouble: str) -> None:
        self._trouble = trouble
        log.log(logging.WARNING if self._rarely.is_due(trouble) else logging.DEBUG, "radio: %s", self.state)

    def _level_of_change(self, level: int) -> int:
        """Each change of the link is told, but not each round of a fight with a rival."""
        return level if not self._has_rival or self._rarely.is_due(f"change {level}") else logging.DEBUG

    # What the link tells, in the order of things.

    def _on_event(self, event: Event) -> None:
        match event:
            case Opened(own, at):
                self._came_up(own, at)
            case Heard():
                self._on_heard(event)
            case QueueStatus():
                if self._hand_over.on_queue_status(event):
                    self._backlog.listening(self._clock.monotonic())
            case Notice(text):
                level = logging.WARNING if self._rarely.is_due(text) else logging.DEBUG
                log.log(level, "radio: the node says: %s", text)

    def _came_up(self, own: OwnNode, at: float) -> None:
        self._backlog.opened(at, self._clock.now())
        self._hand_over.opened()
        self._me, self._since = own, self._clock.monotonic()
        self._counts = replace(self._counts, connects=self._counts.connects + 1)
        self._up.set()
        self._down.clear()
        log.log(
            self._level_of_change(logging.INFO),
            "radio: %s to %s at %s, region %s, preset %s, firmware %s",
            "connected" if self._counts.connects == 1 else "reconnected",
            _title(own.node),
            self._settings.address,
            own.region or "unknown",
            own.preset or "unknown",
            own.firmware or "unknown",
        )

    def _on_heard(self, heard: Heard) -> None:
        is_stale = self._backlog.is_stale(heard, self._clock.now())
        own = self._me.node.number if self._me is not None else BROADCAST
        match heard.content:
            case IncomingMessage() as message if message.to in (BROADCAST, own):
                if message.is_direct and not is_stale and self._me is not None and self._me.modem is not None:
                    self._hand_over.on_direct_text(self._me.modem, message.hops or 0)
                if not self._inbox.put(replace(message, is_stale=is_stale)) and self._rarely.is_due("full"):
                    log.warning("radio: texts come faster than they are handled; the oldest are dropped")
            case RoutingAnswer() as answer:
                self._hand_over.on_routing_answer(answer, own)


async def _to_its_end(step: Coroutine[Any, Any, bool]) -> bool:
    """Await something bounded that must not be left half done, when we are cancelled meanwhile either."""
    task = asyncio.ensure_future(step)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        raise


def _title(node: Node) -> str:
    return f"{node.name} ({node_id(node.number)})"


def _span(seconds: float) -> str:
    """How long, for people."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
