"""Packets waiting to be sent, and their way to the radio.

Theory of operation. Every packet is a row of SQLite before it is tried and until its fate is known. One *lane* per
destination sends its packets strictly in order: part n+1 leaves when part n is settled, and no other reply to that
place gets in between. All lanes share one *pace*: one hand-over at a time, the most urgent first, `gap_s` apart,
because the node silently drops texts that come sooner (radio-wide, whoever they are for). The governor may hold a
packet back for the sake of the air; one that is held for too long expires.

The packet id is chosen when the packet is queued. A packet that may or may not have left, after a lost link or a crash,
is sent again with that id: our node and every receiver know it and ignore the repetition. So is one for a person that
the node took, if no word of it comes, when the last process handed it over, or once when the link is lost before its
ack: that may have died with process or link, and the destination acks the repetition. Any other packet the node
has confirmed to hold is never sent again with its id. Whether it is tried again with a new one, because it was lost or
refused, is decided in `retries.py`; an ack of an earlier try that comes late makes the next one needless.
"""

import asyncio
import logging
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from meshai.chunker import split, text_of
from meshai.clock import Clock
from meshai.errors import PacketTooLong, RadioDisconnected, RadioError, StoreError
from meshai.governor import RECHECK_S, Governor, note
from meshai.messages import Conversation, Delivery, Direct, Fate, OutgoingPacket, Priority
from meshai.pace import Turns
from meshai.radio.base import Radio
from meshai.retries import again, ended, lost
from meshai.store import outbox as rows
from meshai.store.database import Connection, Database, again_if_replaced
from meshai.store.outbox import Waiting

log = logging.getLogger(__name__)

STORE_RETRY_S: Final = 5.0
KEY_POLL_S: Final = 5.0
LEFT_OVER_S: Final = 30.0
"""How long word is awaited of a packet that the last process handed over: the node's own three tries on LONG_FAST."""
MOST_PLACES: Final = 1000
"""Destinations of which the time of the newest packet is known."""
LEAST_BYTES: Final = 60
"""Smallest packet worth its header; the settings allow none smaller either."""

REMEDIES: Final = {
    "PKI_UNKNOWN_PUBKEY": "its node lacks our key; ours now sends its node info, so its next question can be answered",
    "PKI_SEND_FAIL_PUBLIC_KEY": "we lack its key; it must exchange node info with our node first",
    "NO_CHANNEL": "it could not decrypt the text (changed key?); remove each other from the node lists and exchange "
    "node info again, or check the channel",
    "MAX_RETRANSMIT": "no node acknowledged it; the destination is out of reach or off",
    "DUTY_CYCLE_LIMIT": "the region's transmission time for this hour is used up",
    "TOO_LARGE": "set replies.direct_bytes or replies.channel_bytes lower",
}


class Outbox:
    """Sends what is stored, in order and at the radio's pace. `run()` is its one task."""

    def __init__(
        self,
        database: Database,
        radio: Radio,
        governor: Governor,
        *,
        listens_only: bool = False,
        clock: Clock,
        rng: random.Random,
        gap_s: float,
        worth_saying_s: float,
        retries: int,
        lost: Callable[[int, Sequence[OutgoingPacket]], Awaitable[None]],
    ) -> None:
        """`lost` is given the number of an exchange and the packets of its answer that will not arrive."""
        self._database = database
        self._radio = radio
        self._governor = governor
        self._listens_only = listens_only
        self._clock = clock
        self._rng = rng
        self._gap_s = gap_s
        self._worth_saying_s = worth_saying_s
        self._retries = retries
        self._lost = lost
        self._pace = Turns()
        self._next_at = clock.monotonic() + gap_s
        self._wake = asyncio.Event()
        self._is_looking = False
        """Newly queued packets are being read."""
        self._lanes: dict[Conversation, list[Waiting]] = {}
        self._away_s = 0.0
        """How long there was no radio while packets waited; waiting for its turn makes no packet too old."""
        self._away_until: dict[int, float] = {}
        """Per row, the value of `_away_s` at which its text is no longer worth saying."""
        self._under_way: set[int] = set()
        """Rows of packets that were handed over at least once."""
        self._newest_row = 0
        self._sent_at: OrderedDict[Conversation, float] = OrderedDict()
        self.sent = 0
        """Packets that ended well since the start, as far as can be told."""
        self.failed = 0
        """Packets given up since the start, each with what was left of its reply."""

    @property
    def queue(self) -> Mapping[Conversation, int]:
        """How many packets are known to wait or to be under way, by destination."""
        return {destination: len(lane) for destination, lane in self._lanes.items()}

    @property
    def waiting_s(self) -> float:
        """Seconds of air those will take that have not left."""
        return sum(
            self._governor.packet_s(item.packet)
            for lane in self._lanes.values()
            for item in lane
            if item.row not in self._under_way
        )

    def sent_at(self, destination: Conversation) -> float | None:
        """When the newest packet to this place first left, by the monotonic clock; None if not lately."""
        return self._sent_at.get(destination)

    async def add(self, db: Connection, exchange: int, packets: Iterable[OutgoingPacket], priority: Priority) -> int:
        """Queue a reply in the caller's transaction; returns the first packet's id. Call `wake()` after it."""
        numbered = [replace(packet, packet_id=self._new_id()) for packet in packets]
        await rows.add(db, exchange, numbered, self._clock.now(), priority)
        return numbered[0].packet_id if numbered else 0

    def wake(self) -> None:
        """Look for newly queued packets."""
        self._wake.set()

    async def run(self) -> None:
        """Send until cancelled."""
        if self._listens_only:
            # Whoever queues what: it goes no further.
            await asyncio.Event().wait()
        async with asyncio.TaskGroup() as lanes:
            self._wake.set()
            is_start = True
            while True:
                await self._wake.wait()
                self._is_looking = True
                self._wake.clear()
                try:
                    waiting = await (self._left_over() if is_start else self._new())
                except StoreError as error:
                    log.error("cannot read the packets to send: %s; trying again in %.0f s", error, STORE_RETRY_S)
                    await self._clock.sleep(STORE_RETRY_S)
                    self._wake.set()
                    continue
                is_start = False
                for item in waiting:
                    self._newest_row = item.row
                    destination = item.packet.address.destination
                    lane = self._lanes.get(destination)
                    if lane is None:
                        lane = self._lanes[destination] = []
                        lanes.create_task(self._send_lane(destination, lane), name=f"outbox to {destination}")
                    lane.append(item)
                self._is_looking = False

    async def drained(self) -> None:
        """Wait until nothing is queued or under way."""
        while self._lanes or self._is_looking or self._wake.is_set():
            await self._clock.sleep(0.05)

    @again_if_replaced
    async def _new(self) -> list[Waiting]:
        async with self._database.transaction() as db:
            new = list(await rows.waiting(db, after=self._newest_row))
        self._away_until.update((item.row, self._away_s + self._worth_saying_s) for item in new)
        return new

    @again_if_replaced
    async def _left_over(self) -> list[Waiting]:
        """What the last process left: what is still worth saying is seen to its end, the rest dropped.

        Its age is by the wall clock, the only one that outlives a process; one that has gone back counts as new.
        """
        async with self._database.transaction() as db:
            unknown = await rows.leave_handed_over(db, self._clock.now())
            kept: list[Waiting] = []
            old = 0
            for item in await rows.waiting(db, after=self._newest_row):
                if item.packet.is_tapback:
                    await rows.settle(db, item.row, Delivery(Fate.EXPIRED, "the program was away"), self._clock.now())
                    continue
                age_s = max(0.0, self._clock.now() - item.queued_at)
                if age_s > self._worth_saying_s:
                    await rows.settle(db, item.row, Delivery(Fate.EXPIRED, "the program was away"), self._clock.now())
                    old += 1
                else:
                    self._away_until[item.row] = self._away_s + self._worth_saying_s - age_s
                    if item.is_handed_over:
                        self._under_way.add(item.row)
                    kept.append(item)
        if kept or old or unknown:
            log.info(
                "from before the start: %d packets to send, %d handed over, %d too old, %d left at that",
                sum(not item.is_handed_over for item in kept),
                sum(item.is_handed_over for item in kept),
                old,
                unknown,
            )
        return kept

    async def _send_lane(self, destination: Conversation, lane: list[Waiting]) -> None:
        dropped: int | None = None
        try:
            while lane:
                item = lane[0]
                if item.exchange != dropped and not await self._send(item, lane):
                    dropped = item.exchange
                self._away_until.pop(item.row, None)
                self._under_way.discard(item.row)
                lane.pop(0)
        finally:
            del self._lanes[destination]

    async def _send(self, item: Waiting, lane: list[Waiting]) -> bool:
        """Send one packet to its end; returns False when the rest of its reply is not to be sent."""
        packet = item.packet
        is_direct = isinstance(packet.address.destination, Direct)
        earlier: list[OutgoingPacket] = []
        ends: list[Delivery] = []
        known = await self._since_the_start(packet) if item.is_handed_over else None
        doubtful: list[Delivery] = []
        is_repeat = False
        while True:
            delivery = known or await self._try(item, packet, earlier, is_repeat=is_repeat)
            known = None
            ends.append(delivery)
            plan = again(ends, is_direct=is_direct, retries=self._retries, relays=packet.address.hops or 0)
            if plan is None or (plan.wants_key and not await self._key_of(packet, plan.pause_s)):
                delivery = ended([*doubtful, *ends])
                break
            log.debug(
                "packet %08x: %s; again in %.0f s", packet.packet_id, delivery.reason or delivery.fate, plan.pause_s
            )
            if plan.in_smaller_parts:
                return await self._send_smaller(item, lane)
            if not plan.wants_key:
                late = await self._late(packet, earlier, plan.pause_s)
                if late.fate is Fate.DELIVERED:
                    delivery = late
                    break
                if late.is_doubtful and lost(delivery) and not is_repeat:
                    is_repeat = True
                    doubtful.append(ends.pop())
                    continue
            is_repeat = False
            earlier.append(packet)
            packet = replace(packet, packet_id=self._new_id())
            await self._stored(partial(rows.renew, row=item.row, packet_id=packet.packet_id, now=self._clock.now()))
        if packet.is_tapback:
            # Whatever becomes of it, the answer follows.
            await self._settle(item, delivery)
            return True
        if delivery.fate in (Fate.FAILED, Fate.EXPIRED):
            return await self._give_up(item, packet, delivery, lane)
        self.sent += 1
        _log_sent(packet, delivery, tries=len(doubtful) + len(ends))
        await self._settle(item, delivery)
        return True

    async def _since_the_start(self, packet: OutgoingPacket) -> Delivery | None:
        """The end of a packet that the last process handed over; None when no word of it comes any more."""
        delivery = await self._radio.delivery(packet, within_s=LEFT_OVER_S)
        return delivery if delivery.fate in (Fate.DELIVERED, Fate.FAILED) else None

    async def _try(
        self, item: Waiting, packet: OutgoingPacket, earlier: Sequence[OutgoingPacket], *, is_repeat: bool
    ) -> Delivery:
        """One try, from the pause before it to its end."""
        waited_for = ""
        destination = packet.address.destination
        left_at = self._sent_at.get(destination) if is_repeat else None
        while True:
            async with self._pace.turn(item.priority):
                began = self._clock.monotonic()
                await self._radio.ready()
                self._away_s += self._clock.monotonic() - began
                while (early_s := self._next_at - self._clock.monotonic()) > 0:
                    await self._clock.sleep(early_s)
                if self._away_s > self._away_until.get(item.row, float("inf")):
                    return Delivery(Fate.EXPIRED, waited_for or "the radio was away")
                if packet.is_tapback and self._is_answered(item):
                    return Delivery(Fate.EXPIRED, "the answer is here")
                waited_for = self._governor.hold(packet, item.priority)
                try:
                    if not waited_for:
                        await self._radio.send(packet)
                        break
                except RadioDisconnected as error:
                    # It may have left all the same, and who has read it may have answered by the time it is repeated.
                    left_at = left_at or self._clock.monotonic()
                    log.debug("packet %08x to %s waits: %s", packet.packet_id, destination, error)
                except PacketTooLong:
                    return Delivery(Fate.FAILED, "TOO_LARGE")
                except RadioError as error:
                    return Delivery(Fate.FAILED, str(error))
                finally:
                    if not waited_for:
                        self._next_at = self._clock.monotonic() + self._gap_s
            if waited_for:
                log.debug("packet %08x to %s waits: %s", packet.packet_id, destination, waited_for)
                await self._clock.sleep(RECHECK_S)
                self._away_until[item.row] = self._away_until.get(item.row, float("inf")) - RECHECK_S
        self._under_way.add(item.row)
        if not packet.is_tapback:
            self._sent_at[destination] = left_at or self._clock.monotonic()
            self._sent_at.move_to_end(destination)
        if len(self._sent_at) > MOST_PLACES:
            self._sent_at.popitem(last=False)
        await self._stored(partial(self._noted, row=item.row, cost_s=self._governor.sent(packet)))
        delivery = await self._radio.delivery(packet, earlier=earlier)
        if repeated_s := self._governor.ended(packet, delivery):
            await self._stored(partial(note, now=self._clock.now(), cost_s=repeated_s, packets=0))
        return delivery

    def _is_answered(self, item: Waiting) -> bool:
        """Whether the answer waits behind this sign that it will come."""
        lane = self._lanes[item.packet.address.destination]
        return any(other.exchange == item.exchange for other in lane if other is not item)

    async def _noted(self, db: Connection, row: int, cost_s: float) -> None:
        await rows.hand_over(db, row, self._clock.now())
        await note(db, self._clock.now(), cost_s, packets=1)

    async def _late(self, packet: OutgoingPacket, earlier: Sequence[OutgoingPacket], pause_s: float) -> Delivery:
        """Pause before the next try; an ack that comes meanwhile makes it needless."""
        until = self._clock.monotonic() + pause_s
        delivery = await self._radio.delivery(packet, earlier=earlier, within_s=pause_s)
        if delivery.fate is not Fate.DELIVERED:
            await self._clock.sleep(until - self._clock.monotonic())
        return delivery

    async def _key_of(self, packet: OutgoingPacket, within_s: float) -> bool:
        """Whether our node comes to hold the key of a direct packet's destination in this time."""
        destination = packet.address.destination
        until = self._clock.monotonic() + within_s
        while isinstance(destination, Direct):
            node = self._radio.nodes().get(destination.node)
            if node is not None and node.public_key:
                return True
            if self._clock.monotonic() >= until:
                break
            await self._clock.sleep(KEY_POLL_S)
        return False

    async def _send_smaller(self, item: Waiting, lane: list[Waiting]) -> bool:
        """Cut what is left of a reply anew, into smaller packets, and put them in its place."""
        left = [one for one in lane if one.exchange == item.exchange]
        address = replace(item.packet.address, limit_bytes=max(LEAST_BYTES, item.packet.address.limit_bytes * 3 // 4))
        packets = split(
            text_of([one.packet for one in left]),
            address,
            max_packets=len(left) + 1,
            max_characters=address.limit_bytes,
        )
        log.warning("packets to %s are refused as too large; cut smaller", address.destination)
        try:
            await self._replace(item, packets)
        except StoreError as error:
            return await self._give_up(item, item.packet, Delivery(Fate.FAILED, f"TOO_LARGE, and {error}"), lane)
        self.wake()
        return False

    @again_if_replaced
    async def _replace(self, item: Waiting, packets: Sequence[OutgoingPacket]) -> None:
        async with self._database.transaction() as db:
            await rows.remove_exchange(db, item.exchange)
            await self.add(db, item.exchange, packets, item.priority)

    def _new_id(self) -> int:
        return self._rng.randint(1, 0xFFFFFFFF)

    async def _settle(self, item: Waiting, delivery: Delivery) -> None:
        await self._stored(partial(rows.settle, row=item.row, delivery=delivery, now=self._clock.now()))

    async def _give_up(
        self, item: Waiting, packet: OutgoingPacket, delivery: Delivery, lane: Sequence[Waiting]
    ) -> bool:
        self.failed += 1
        if item.priority is Priority.DIRECT:
            try:
                await self._lost(item.exchange, [one.packet for one in lane if one.exchange == item.exchange])
            except StoreError as error:
                log.error("cannot keep what was not delivered: %s", error)
        end = partial(rows.settle_exchange, exchange=item.exchange, delivery=delivery, now=self._clock.now())
        left = await self._stored(end) or 1
        reason = delivery.reason
        log.warning(
            "packet %08x (%d/%d) to %s, in reply to %08x, %s: %s%s%s",
            packet.packet_id,
            packet.part,
            packet.parts,
            packet.address.destination,
            packet.address.reply_to or 0,
            "not delivered" if delivery.fate is Fate.FAILED else "not sent, too old to be worth saying",
            reason,
            f"; {REMEDIES[reason]}" if reason in REMEDIES else "",
            f"; {left - 1} further parts dropped" if left > 1 else "",
        )
        return False

    async def _stored(self, change: Callable[[Connection], Awaitable[int | None]]) -> int | None:
        """Note a change; a database that fails now must not stop the sending."""
        try:
            return await self._change(change)
        except StoreError as error:
            log.error("cannot note what became of a packet: %s", error)
            return None

    @again_if_replaced
    async def _change(self, change: Callable[[Connection], Awaitable[int | None]]) -> int | None:
        async with self._database.transaction() as db:
            return await change(db)


def _log_sent(packet: OutgoingPacket, delivery: Delivery, *, tries: int) -> None:
    log.info(
        "sent packet %08x (%d/%d) to %s, %d bytes: %s%s",
        packet.packet_id,
        packet.part,
        packet.parts,
        packet.address.destination,
        len(packet.text.encode()),
        delivery.fate.value,
        f" after {tries} tries" if tries > 1 else "",
    )
    log.debug("sent packet %08x says: %r", packet.packet_id, packet.text)
