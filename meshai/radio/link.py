"""One connection to the node, from dialling to its end, on a daemon thread of its own.

The library blocks, sleeps, and raises what it likes, `SystemExit` included; all of that stays on this thread. The
event loop asks for things with `call` and hears of things through futures and one callback, all in the loop.
What happens is posted with `call_soon_threadsafe`; nothing here waits for the loop.

A thread that does not end when it is asked to, nor when its interface is interrupted, is abandoned: its link is deaf
from then on, and the thread closes the interface and ends when whatever holds it lets go.
"""

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from meshai.clock import Clock
from meshai.entries import RadioAddress
from meshai.errors import RadioDisconnected, RadioError
from meshai.messages import NodeNum, OutgoingPacket, TextLimits
from meshai.radio.base import OwnNode
from meshai.radio.packets import Heard, clean_name, heard_from
from meshai.radio.remedies import explain

log = logging.getLogger(__name__)

CLOSE_S: Final = 2.5
"""Grace for an orderly close. Both in the machine's seconds: what is waited for is a thread, not the mesh."""
INTERRUPTED_CLOSE_S: Final = 1.0
NOTICE_CHARACTERS: Final = 200


class Transport(Protocol):
    """What a link asks of an interface of the library."""

    @property
    def end_reason(self) -> str: ...

    @property
    def described(self) -> int: ...

    def send_text(self, packet: OutgoingPacket, *, sender: NodeNum, hop_limit: int) -> None: ...

    def send_heartbeat(self) -> None: ...

    def node_table(self) -> Mapping[int, object]: ...

    def interrupt(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Opened:
    """The node has told its configuration; `at` is monotonic."""

    own: OwnNode
    at: float


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """The node's word on a packet (0: on none), and how many more it can queue."""

    packet_id: int
    res: int
    free: int


@dataclass(frozen=True, slots=True)
class Notice:
    """What the node wants its user to know, such as how long the duty cycle limit will last."""

    text: str


@dataclass(frozen=True, slots=True)
class Loss:
    """Why a link ended, and whether the other side or the machine ended it rather than we."""

    reason: str
    is_closed_by_node: bool


Event: TypeAlias = Opened | Heard | QueueStatus | Notice
Job: TypeAlias = tuple[Callable[[Transport], None], "asyncio.Future[None]"]


class Link:
    """Create, `start`, wait for `opened`, use until `lost`, and always `close`."""

    def __init__(
        self,
        endpoint: RadioAddress,
        limits: TextLimits,
        *,
        clock: Clock,
        on_event: Callable[[Event], None],
        without_nodes: bool = False,
        find_ports: Callable[[], Sequence[str]] | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._limits = limits
        self._clock = clock
        self._on_event = on_event
        self._without_nodes = without_nodes
        self._find_ports = find_ports
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._transport: Transport | None = None
        self._is_deaf = False
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="radio link", daemon=True)
        self.loaded = asyncio.Event()
        """The library is imported, which can take longer than connecting."""
        self.opened: asyncio.Future[None] = self._loop.create_future()
        """Done when the configuration is complete; fails with a RadioError when it cannot be had."""
        self.lost: asyncio.Future[Loss] = self._loop.create_future()
        self.bad_frames = 0

    # In the event loop.

    def start(self) -> None:
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether its thread lives, if only because something holds it."""
        return self._thread.is_alive()

    @property
    def _is_up(self) -> bool:
        has_opened = self.opened.done() and not self.opened.cancelled() and self.opened.exception() is None
        return has_opened and not self.lost.done()

    @property
    def described(self) -> int:
        """How many pieces of its configuration the node has told so far."""
        return self._transport.described if self._transport is not None else 0

    async def call(self, action: Callable[[Transport], None]) -> None:
        """Have the link's thread do this. Raises RadioDisconnected when it cannot or the link is lost meanwhile."""
        done: asyncio.Future[None] = self._loop.create_future()
        self._jobs.put((action, done))
        try:
            await asyncio.wait((done, self.lost), return_when=asyncio.FIRST_COMPLETED)
            if not done.done():
                raise RadioDisconnected(self.lost.result().reason)
            done.result()
        finally:
            done.cancel()

    def node_table(self) -> Mapping[int, object]:
        """The library's own entries, which it goes on changing, by node number."""
        return self._transport.node_table() if self._transport is not None else {}

    def lose(self, reason: str, *, is_closed_by_node: bool = False) -> None:
        """Give the link up. The first reason stays."""
        if not self.lost.done():
            self.lost.set_result(Loss(reason, is_closed_by_node))

    async def close(self) -> bool:
        """End it. False when its thread is stuck and had to be abandoned."""
        is_orderly = self._is_up
        self.lose("closed")
        self.opened.cancel()
        self._jobs.put(None)
        if not (is_orderly and await self._has_ended(CLOSE_S)):
            self._interrupt()
            if not await self._has_ended(INTERRUPTED_CLOSE_S):
                self._is_deaf = True
                return False
        self._thread.join()
        return True

    async def _has_ended(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        return self._ended.is_set()

    def _interrupt(self) -> None:
        if self._transport is not None:
            self._transport.interrupt()

    def _deliver(self, event: Event) -> None:
        is_late = isinstance(event, Opened) and self.lost.done()
        if self._is_deaf or is_late:
            return
        self._on_event(event)
        if isinstance(event, Opened) and not self.opened.done():
            self.opened.set_result(None)

    def _fail(self, error: BaseException) -> None:
        reason = explain(error, self._endpoint)
        if not self.opened.done():
            self.opened.set_exception(RadioError(reason))
        # A reason of the library's reader means that there was a connection, which a refused one never was.
        self.lose(reason, is_closed_by_node=self._transport is not None and bool(self._transport.end_reason))

    # On the link's thread.

    def _run(self) -> None:
        try:
            from meshai.radio import library  # late: importing it starts the library's thread

            self._post(self.loaded.set)
            library.on_publishing_thread(self._subscribe)
            try:
                transport = library.open_interface(
                    self._endpoint, self, without_nodes=self._without_nodes, find_ports=self._find_ports
                )
                self._serve(transport)
            finally:
                self._close_transport()
                library.on_publishing_thread(self._unsubscribe)
        except BaseException as error:
            log.debug("link to %s failed", self._endpoint, exc_info=True)
            self._post(self._fail, error)
        finally:
            self._post(self.loaded.set)
            self._post(self._ended.set)

    def _serve(self, transport: Transport) -> None:
        while (job := self._jobs.get()) is not None:
            action, done = job
            try:
                action(transport)
            except BaseException as error:
                self._post(_settle, done, RadioDisconnected(explain(error, self._endpoint)))
            else:
                self._post(_settle, done, None)

    def _close_transport(self) -> None:
        if self._transport is not None:
            try:
                self._transport.close()
            except BaseException:
                log.debug("closing the link to %s failed", self._endpoint, exc_info=True)

    # On the library's threads. None of these may raise or wait.

    def attached(self, interface: Transport) -> None:
        self._transport = interface

    def configured(self, own: OwnNode) -> None:
        self._post(self._deliver, Opened(own, self._clock.monotonic()))

    def queue_status(self, packet_id: int, res: int, free: int) -> None:
        self._post(self._deliver, QueueStatus(packet_id, res, free))

    def bad_frame(self, error: Exception) -> None:
        self.bad_frames += 1
        log.debug("unusable frame from the node: %r", error)

    def _on_receive(self, packet: object, interface: object) -> None:
        if interface is self._transport:
            heard = heard_from(packet, self._limits, at=self._clock.monotonic(), now=self._clock.now())
            self._post(self._deliver, heard)

    def _on_lost(self, interface: object) -> None:
        if interface is self._transport and self._transport is not None:
            self._post(self._lost_by_node, self._transport.end_reason)

    def _on_notification(self, notification: Any, interface: object) -> None:
        if interface is self._transport:
            self._post(self._deliver, Notice(clean_name(notification.message, most=NOTICE_CHARACTERS)))

    def _lost_by_node(self, reason: str) -> None:
        self.lose(reason or "the connection ended", is_closed_by_node=True)

    def _subscribe(self) -> None:
        from pubsub import pub  # late, as above

        pub.subscribe(self._on_receive, "meshtastic.receive")
        pub.subscribe(self._on_lost, "meshtastic.connection.lost")
        pub.subscribe(self._on_notification, "meshtastic.clientNotification")

    def _unsubscribe(self) -> None:
        from pubsub import pub

        pub.unsubscribe(self._on_receive, "meshtastic.receive")
        pub.unsubscribe(self._on_lost, "meshtastic.connection.lost")
        pub.unsubscribe(self._on_notification, "meshtastic.clientNotification")

    def _post(self, callback: Callable[..., None], *arguments: object) -> None:
        # A closed loop means that the program is ending; nobody is left to tell.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *arguments)


def _settle(done: "asyncio.Future[None]", error: RadioDisconnected | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
