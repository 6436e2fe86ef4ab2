"""Handing packets to the node, and learning whether it took them and whether it still lives.

A packet counts as handed over when the node says so for its id. Only two queue statuses wait in a node for its
client, so ours may have been discarded: when none comes but the node answers a heartbeat, the packet is written once
more with its id, which costs nothing if the node has it, and then counts too. A heartbeat costs no airtime.

Receivers know a packet by its sender and id. A node that comes back under another number, as after an update of its
firmware or with new keys, is another sender: a packet written under the old number that may or may not have left is
sent again under the new one, and may be read twice. Not sending it again would be no better rule, for whatever still
waited in the node was lost as it restarted, and an answer read twice does less harm than one never read.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from meshai.airtime import Modem
from meshai.clock import Clock
from meshai.errors import NotDelivered, RadioDisconnected
from meshai.messages import Delivery, Fate, NodeNum, OutgoingPacket
from meshai.radio.base import OwnNode
from meshai.radio.link import Link, QueueStatus
from meshai.radio.packets import RoutingAnswer
from meshai.radio.sent import QUEUE_FULL, SentPacket, SentPackets, frame_bytes

log = logging.getLogger(__name__)

PROBE_ANSWER_S: Final = 10.0
PROBE_TRIES: Final = 2
WRITE_S: Final = 10.0
TAKEN_S: Final = 5.0
"""Longest wait for the queue status of a packet."""
NAK_S: Final = 1.0
"""How long after its queue status our own node's nak of a packet may come."""
ROOM_S: Final = 30.0
ROOM_POLL_S: Final = 2.0
LEAST_FREE: Final = 2
ACK_MARGIN_S: Final = 10.0
BUSY_FACTOR: Final = 2
ACK_WAIT_S: Final = 60.0
"""How long to wait for an ack when the modem is not known."""
NEAR_RELAYS: Final = 2
"""Relays whose transmissions can collide with ours, or with that of the one who hears ours."""
SILENT: Final = "the node no longer answers"


class HandOver:
    """What was handed over on all links of one radio, and the node's word on it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sent = SentPackets()
        self._links_lost = 0
        self._free: int | None = None
        self._answered_at: float | None = None
        self._next_answer: asyncio.Future[None] | None = None
        self._is_acked_at = clock.monotonic()
        """When our node's ack of the newest direct text should have passed."""

    def opened(self) -> None:
        """A new link: nothing is known of the node's queue, nor that it hears us."""
        self._free = self._answered_at = None

    def lost(self) -> None:
        """A link has ended: what the node was about to say on it is lost."""
        self._links_lost += 1

    @property
    def silent_s(self) -> float:
        """How long ago the node last answered us on this link; endless when it never did."""
        return float("inf") if self._answered_at is None else self._clock.monotonic() - self._answered_at

    def on_queue_status(self, status: QueueStatus) -> bool:
        """Note a status. True when it answers us: the node's own packets bring some too, and show nothing."""
        log.debug("%s", status)
        self._free = status.free
        sent = self._sent.get(status.packet_id)
        if sent is not None:
            sent.queue_status(status.res)
        elif status.packet_id != 0:
            return False
        self._answered_at = self._clock.monotonic()
        if self._next_answer is not None and not self._next_answer.done():
            self._next_answer.set_result(None)
        return True

    def on_routing_answer(self, answer: RoutingAnswer, own: NodeNum) -> None:
        log.debug("%s", answer)
        if (sent := self._sent.get(answer.request_id)) is not None:
            sent.answered(answer, own)

    def on_direct_text(self, modem: Modem, relays: int) -> None:
        """Our node acks a text that came over so many relays: what we hand over meanwhile would collide with that.

        Sender and first relays draw their moments from few, and those farther off do not hear each other.
        """
        self._is_acked_at = self._clock.monotonic() + modem.ack_passes_s(min(relays, NEAR_RELAYS))

    def close(self) -> None:
        """End every wait for a packet's fate."""
        self._sent.clear()

    async def is_answered(self, link: Link) -> bool:
        """Whether the node answers a heartbeat; the link is lost if not."""
        for _ in range(PROBE_TRIES):
            if self._next_answer is None or self._next_answer.done():
                self._next_answer = asyncio.get_running_loop().create_future()
            answer = self._next_answer
            with contextlib.suppress(TimeoutError, RadioDisconnected):
                async with self._clock.timeout(PROBE_ANSWER_S):
                    await link.call(lambda transport: transport.send_heartbeat())
                    await asyncio.wait((answer, link.lost), return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return True
            if link.lost.done():
                return False
        link.lose(SILENT)
        return False

    async def send(self, link: Link, packet: OutgoingPacket, me: OwnNode) -> None:
        """Hand one packet over; see `Radio.send`. One whose ack came after its link was lost needs no other."""
        known = self._sent.get(packet.packet_id)
        if known is not None and known.delivered.done():
            return
        await first(self._clock, self._is_acked_at - self._clock.monotonic(), link.lost)
        await self._wait_for_room(link)
        sent = self._sent.register(packet, self._clock.monotonic(), links_lost=self._links_lost)
        await self._write(link, packet, me, sent)
        if not await self._is_taken(link, sent):
            # Either the status was discarded or the frame was lost on its way; a node that has it ignores the repeat.
            await self._write(link, packet, me, sent)
            await self._is_taken(link, sent)

    async def _wait_for_room(self, link: Link) -> None:
        """Wait while the node's queue is nearly full, and ask for news: an unasked status comes but rarely."""
        until = self._clock.monotonic() + ROOM_S
        while self._free is not None and self._free < LEAST_FREE:
            if self._clock.monotonic() >= until:
                raise NotDelivered(QUEUE_FULL)
            await first(self._clock, ROOM_POLL_S, link.lost)
            if not await self.is_answered(link):
                raise RadioDisconnected(link.lost.result().reason)

    async def _write(self, link: Link, packet: OutgoingPacket, me: OwnNode, sent: SentPacket) -> None:
        sender, hop_limit = me.node.number, me.hop_limit_to(packet.address)
        try:
            async with self._clock.timeout(WRITE_S):
                await link.call(lambda transport: transport.send_text(packet, sender=sender, hop_limit=hop_limit))
        except TimeoutError as error:
            if sent.taken.done():  # the node has it; only the library's pause after each write is not over
                return
            link.lose("the node takes nothing in")
            raise RadioDisconnected("the node takes nothing in") from error
        except RadioDisconnected as error:
            link.lose(str(error), is_closed_by_node=True)
            raise

    async def _is_taken(self, link: Link, sent: SentPacket) -> bool:
        """Whether the node says that it holds a packet; False when it says nothing about it, but lives."""
        await first(self._clock, TAKEN_S, sent.taken, link.lost)
        if not sent.taken.done():
            if not link.lost.done() and await self.is_answered(link):
                return sent.taken.done()
            raise RadioDisconnected(link.lost.result().reason)
        refusal = sent.taken.result()
        if refusal:
            await first(self._clock, NAK_S, sent.fate, link.lost)
        if error := sent.nak or refusal:
            self._sent.drop(sent.packet_id)
            raise NotDelivered(error)
        return True

    async def delivery(
        self,
        packet: OutgoingPacket,
        modem: Modem | None,
        *,
        earlier: Sequence[OutgoingPacket] = (),
        within_s: float | None = None,
    ) -> Delivery:
        """What became of a packet. A lost link does not end the wait: the node keeps the ack for the next one.

        So it does for the next process, which asks about packets that were handed over before its time.
        """
        sent = self._sent.get(packet.packet_id) or self._sent.register(
            packet, self._clock.monotonic(), links_lost=self._links_lost
        )
        if sent.destination is None:
            # A text that came too soon is dropped, which shows only in a nak behind a queue status that is in order.
            await first(self._clock, NAK_S, sent.fate)
            sent.settle(Delivery(Fate.HANDED_OVER))
            return sent.fate.result()
        tries = [sent, *filter(None, (self._sent.get(one.packet_id) for one in earlier))]
        ends = [one.delivered for one in tries]
        over = [*ends, *(() if sent.fate.done() else (sent.fate,))]
        if within_s is not None:
            await first(self._clock, within_s, *over)
        else:
            longest_s = ACK_WAIT_S if modem is None else modem.ack_wait_s(frame_bytes(packet)) + ACK_MARGIN_S
            await first(self._clock, sent.at + longest_s - self._clock.monotonic(), *over)
            if not sent.relayed.done() and not any(end.done() for end in over):
                # The firmware counts neither what it hears nor what it sends for others as waiting time, so on a busy
                # channel its own word, an ack or a nak, comes much later; once a relay was heard no nak comes.
                await first(self._clock, BUSY_FACTOR * longest_s, *over, sent.relayed)
                if sent.relayed.done():
                    await first(self._clock, longest_s, *over)
        sent.give_up()
        if any(end.done() for end in ends):
            return Delivery(Fate.DELIVERED)
        return replace(sent.fate.result(), is_doubtful=sent.links_lost != self._links_lost)


async def first(clock: Clock, seconds: float, *futures: "asyncio.Future[Any]") -> None:
    """Wait until one of these is done, or so long."""
    with contextlib.suppress(TimeoutError):
        async with clock.timeout(max(0.0, seconds)):
            await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
