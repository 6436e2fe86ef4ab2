"""A Meshtastic node on a serial port, the network or Bluetooth, as a radio that is always being connected.

One task owns the link: it connects, listens and probes until the link is lost, backs off, and begins again. A link
is alive while the node answers; where nothing was heard from it for 20 s it is sent a heartbeat, which costs no
airtime, and two unanswered ones end the link. So a mute, half-open or junk-filled link is noticed within 40 s.

A packet counts as handed over when the node says so for its id. Only two queue statuses wait in a node for its
client, so ours may have been discarded: when none comes but the node answers a heartbeat, the packet counts too.
How old a text may be to get an answer is told in `backlog.py`; what becomes of sent packets in `sent.py`.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, Self

from meshai.clock import Clock
from meshai.config import RadioSettings
from meshai.errors import NotDelivered, RadioDisconnected, RadioError
from meshai.messages import (
    BROADCAST,
    Delivery,
    Fate,
    IncomingMessage,
    Node,
    NodeNum,
    OutgoingPacket,
    TextLimits,
    node_id,
)
from meshai.radio.backlog import Backlog
from meshai.radio.base import OwnNode
from meshai.radio.inbox import Inbox
from meshai.radio.link import Event, Link, Notice, Opened, QueueStatus
from meshai.radio.packets import Heard, RoutingAnswer, merged
from meshai.radio.reconnect import Backoff, Rarely, RivalWatch
from meshai.radio.sent import QUEUE_FULL, SentPacket, SentPackets, check_fits, frame_bytes

log = logging.getLogger(__name__)

OPEN_S: Final = 30.0
"""Longest time to connect and download the configuration."""
PROBE_EVERY_S: Final = 20.0
PROBE_ANSWER_S: Final = 10.0
PROBE_TRIES: Final = 2
WRITE_S: Final = 10.0
HAND_OVER_S: Final = 5.0
REFUSAL_REASON_S: Final = 1.0
"""How long the routing error that explains a refusal may follow it."""
ROOM_S: Final = 30.0
ROOM_POLL_S: Final = 2.0
LEAST_FREE: Final = 2
ACK_MARGIN_S: Final = 10.0
ACK_WAIT_S: Final = 60.0
"""How long to wait for an ack when the modem is not known."""
MOST_STUCK: Final = 3
"""Threads that may hang in the library before no more are started."""


@dataclass(slots=True)
class Counts:
    """What happened since the start, for status lines and tests."""

    connects: int = 0
    losses: int = 0
    bad_frames: int = 0
    stuck_threads: int = 0


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
        self.counts = Counts()
        self._settings = settings
        self._limits = limits
        self._clock = clock
        self._rng = rng
        self._find_ports = find_ports
        self._backlog = Backlog(settings.answer_within_s, away_since=away_since)
        self._sent = SentPackets()
        self._rarely = Rarely(clock)
        self._rivals = RivalWatch()
        self._stuck: list[Link] = []
        self._link: Link | None = None
        self._me: OwnNode | None = None
        self._nodes: dict[NodeNum, Node] = {}
        self._free: int | None = None
        self._status_at = 0.0
        self._next_status: asyncio.Future[None] | None = None
        self._up = asyncio.Event()
        self._since = clock.monotonic()
        self._trouble = "connecting"
        self._inbox = Inbox()
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

    def nodes(self) -> Mapping[NodeNum, Node]:
        if self._link is not None:
            for number, node in self._link.nodes().items():
                self._nodes[number] = merged(self._nodes.get(number), node)
        return dict(self._nodes)

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
        self._sent.clear()
        self._is_closed = True

    def messages(self) -> AsyncIterator[IncomingMessage]:
        return self._inbox.texts()

    def stop(self) -> None:
        self._inbox.stop()

    async def ready(self) -> None:
        await self._up.wait()

    # Connecting.

    async def _keep_connected(self) -> None:
        backoff = Backoff(self._rng)
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
                # A node database too large for its link is skipped in every other try after one that took too long.
                without_nodes = not await self._open(link) and not without_nodes
                if self.is_connected:
                    await self._probe(link)
            except RadioError as error:
                self._went_wrong(str(error))
            finally:
                lived_s = await self._close(link)
            backoff.lived(lived_s)
            await self._clock.sleep(backoff.next_pause_s())

    async def _no_stuck_threads(self) -> None:
        """Start no thread while several hang in the library."""
        while len(stuck := [link for link in self._stuck if link.is_running]) >= MOST_STUCK:
            self._went_wrong("the radio's port or network holds up every attempt; unplug and replug it")
            await self._clock.sleep(PROBE_EVERY_S)
        self._stuck = stuck

    async def _open(self, link: Link) -> bool:
        """Bring the link up. False when the node took the connection and did not tell its configuration in time."""
        await link.loaded.wait()
        try:
            async with self._clock.timeout(OPEN_S):
                await link.opened
        except TimeoutError:
            link.lose("the node does not complete its configuration")
            self._went_wrong("the node does not complete its configuration; restart it if this goes on")
            return False
        return True

    async def _probe(self, link: Link) -> None:
        """Listen until the link is lost, and lose it when the node no longer answers."""
        while not link.lost.done():
            quiet_s = self._clock.monotonic() - self._status_at
            if quiet_s < PROBE_EVERY_S:
                await self._first(PROBE_EVERY_S - quiet_s, link.lost)
            elif not await self._answers(link):
                link.lose("the node no longer answers")

    async def _answers(self, link: Link) -> bool:
        """Whether the node answers a heartbeat."""
        for _ in range(PROBE_TRIES):
            status = self._awaited_status()
            with contextlib.suppress(TimeoutError, RadioDisconnected):
                async with self._clock.timeout(PROBE_ANSWER_S):
                    await link.call(lambda transport: transport.send_heartbeat())
                    await asyncio.wait((status, link.lost), return_when=asyncio.FIRST_COMPLETED)
            if status.done() or link.lost.done():
                break
        return status.done()

    async def _close(self, link: Link) -> float:
        """End the link; returns how long it was up."""
        was_up, since, now = self.is_connected, self._since, self._clock.monotonic()
        loss = link.lost.result() if link.lost.done() else None
        self.nodes()
        self._up.clear()
        if not await _to_its_end(link.close()):
            self.counts.stuck_threads += 1
            self._stuck.append(link)
            log.debug("a thread of the link to %s is stuck and was left behind", self._settings.address)
        self._link = None
        self.counts.bad_frames += link.bad_frames
        if loss is None:
            return 0.0
        lived_s = now - since if was_up else 0.0
        if was_up:
            self.counts.losses += 1
            self._since, self._trouble = now, loss.reason
            log.warning("radio: lost the link to %s: %s", self._settings.address, loss.reason)
        if loss.is_closed_by_node and self._rivals.closed_by_node(now, lived_s) and self._rarely.is_due("rival"):
            log.warning(
                "radio: the node at %s closes each link soon after it is made; most likely another client (a phone "
                "app, a second bot) uses this node. Give the bot a node of its own",
                self._settings.address,
            )
        return lived_s

    def _went_wrong(self, trouble: str) -> None:
        self._trouble = trouble
        level = logging.WARNING if self._rarely.is_due(trouble) else logging.DEBUG
        log.log(level, "radio: %s", self.state)

    # What the link tells. In the event loop, in the order of things.

    def _on_event(self, event: Event) -> None:
        match event:
            case Opened(own, at):
                self._came_up(own, at)
            case Heard():
                self._on_heard(event)
            case QueueStatus(packet_id, res, free):
                self._on_queue_status(packet_id, res, free)
            case Notice(text):
                level = logging.WARNING if self._rarely.is_due(text) else logging.DEBUG
                log.log(level, "radio: the node says: %s", text)

    def _came_up(self, own: OwnNode, at: float) -> None:
        self._backlog.opened(at, self._clock.now())
        # Not heard from in this link: the first probe follows at once and tells how much room the node's queue has.
        self._status_at, self._free = at - PROBE_EVERY_S, None
        self._me, self._since = own, self._clock.monotonic()
        self.counts.connects += 1
        self._up.set()
        log.info(
            "radio: %s to %s at %s, region %s, preset %s, firmware %s",
            "connected" if self.counts.connects == 1 else "reconnected",
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
                if not self._inbox.put(replace(message, is_stale=is_stale)) and self._rarely.is_due("full"):
                    log.warning("radio: texts come faster than they are handled; the oldest are dropped")
            case RoutingAnswer() as answer:
                log.debug("routing answer %s", answer)
                if (sent := self._sent.get(answer.request_id)) is not None:
                    sent.answered(answer, own)

    def _on_queue_status(self, packet_id: int, res: int, free: int) -> None:
        log.debug("queue status: packet %08x, res %d, %d free", packet_id, res, free)
        self._free = free
        sent = self._sent.get(packet_id)
        if sent is not None:
            sent.queue_status(res)
        if sent is not None or packet_id == 0:
            # The node's own packets bring statuses too, but those do not show that it hears us.
            at = self._clock.monotonic()
            self._status_at = at
            self._backlog.listening(at)
            if self._next_status is not None and not self._next_status.done():
                self._next_status.set_result(None)

    def _awaited_status(self) -> "asyncio.Future[None]":
        if self._next_status is None or self._next_status.done():
            self._next_status = asyncio.get_running_loop().create_future()
        return self._next_status

    # Sending.

    async def send(self, packet: OutgoingPacket) -> None:
        check_fits(packet)
        link, me = self._link, self._me
        if link is None or me is None or not self.is_connected:
            raise RadioDisconnected(self.state)
        await self._wait_for_room(link)
        sent = self._sent.register(packet, self._clock.monotonic())
        await self._write(link, packet, me)
        await self._wait_until_taken(link, sent)

    async def _wait_for_room(self, link: Link) -> None:
        """Wait while the node's queue is nearly full. Heartbeats ask for news: an unasked status comes but rarely."""
        until = self._clock.monotonic() + ROOM_S
        while self._free is not None and self._free < LEAST_FREE:
            if self._clock.monotonic() >= until:
                raise NotDelivered(QUEUE_FULL)
            await self._first(ROOM_POLL_S, link.lost)
            if not await self._answers(link):
                link.lose("the node no longer answers")
                raise RadioDisconnected(self.state)

    async def _write(self, link: Link, packet: OutgoingPacket, me: OwnNode) -> None:
        sender, hop_limit = me.node.number, me.hop_limit
        try:
            async with self._clock.timeout(WRITE_S):
                await link.call(lambda transport: transport.send_text(packet, sender=sender, hop_limit=hop_limit))
        except TimeoutError as error:
            link.lose("the node takes nothing in")
            raise RadioDisconnected("the node takes nothing in") from error
        except RadioDisconnected as error:
            link.lose(str(error), is_closed_by_node=True)
            raise

    async def _wait_until_taken(self, link: Link, sent: SentPacket) -> None:
        await self._first(HAND_OVER_S, sent.taken, link.lost)
        if not sent.taken.done():
            if not link.lost.done() and await self._answers(link):
                return
            link.lose("the node no longer answers")
            raise RadioDisconnected(link.lost.result().reason)
        refusal = sent.taken.result()
        if refusal:
            await self._first(REFUSAL_REASON_S, sent.fate, link.lost)
        if sent.nak or refusal:
            self._sent.drop(packet_id := sent.packet_id)
            log.debug("packet %08x was refused: %s", packet_id, sent.nak or refusal)
            raise NotDelivered(sent.nak or refusal)

    async def delivery(self, packet: OutgoingPacket) -> Delivery:
        """A lost link does not end the wait: the node keeps the ack for the next one, if it comes in time."""
        sent = self._sent.get(packet.packet_id)
        if sent is None:
            return Delivery(Fate.UNCONFIRMED)
        if sent.destination is None:
            sent.settle(Delivery(Fate.HANDED_OVER))
        else:
            await self._first(sent.at + self._ack_wait_s(packet) - self._clock.monotonic(), sent.fate)
            sent.give_up()
        self._sent.drop(packet.packet_id)
        return sent.fate.result()

    def _ack_wait_s(self, packet: OutgoingPacket) -> float:
        modem = self._me.modem if self._me is not None else None
        return ACK_WAIT_S if modem is None else modem.ack_wait_s(frame_bytes(packet)) + ACK_MARGIN_S

    async def _first(self, seconds: float, *futures: "asyncio.Future[Any]") -> None:
        """Wait for any of these, or so long."""
        with contextlib.suppress(TimeoutError):
            async with self._clock.timeout(max(0.0, seconds)):
                await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


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
