"""What the radio of every node does with packets: sends and resends, hears and acks, drops repeats.

Ours and those of other people differ in what becomes of a packet afterwards; that is what the hooks are for.

A packet that wants an ack is sent up to three times until a relay of it is heard (an implicit ack) or its destination
answers. The wait before each resend is the firmware's, lengthened by everything else sent or heard meanwhile, because
no ack could have come in that time. An ack of a direct text wants an ack itself; the ack of an ack goes no further
than one hop. A direct packet is readable only if each side holds the other's present key.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from meshtastic.protobuf import mesh_pb2

from meshai.airtime import TRANSMISSIONS
from meshai.errors import NotDelivered
from meshai.messages import NodeNum
from meshai.sim.air import Air, Cause
from meshai.sim.identity import Identity
from meshai.sim.ledger import AirtimeLedger
from meshai.sim.packets import (
    NODE_INFO,
    ROUTING,
    TEXT,
    Priority,
    RoutingError,
    frame_bytes,
    hops_of,
    is_broadcast,
    is_encrypted,
    make_packet,
    make_routing,
    relay_byte,
    routing_error,
    sender_of,
    sign,
)
from meshai.sim.routing import Routing
from meshai.sim.transmitter import Transmitter

SEEN: Final = 256
"""How many (sender, id) pairs a node remembers to drop repeats."""
EXTRA_HOPS: Final = 2


@dataclass(slots=True)
class _Pending:
    """A packet that waits for an answer."""

    resend_at: float
    answered: asyncio.Event = field(default_factory=asyncio.Event)


class RadioStation(ABC):
    """A node of the mesh; the hooks at the end are for what ours and other people's do differently."""

    def __init__(self, air: Air, identity: Identity, *, hop_limit: int) -> None:
        self.air = air
        self.identity = identity
        self.hop_limit = hop_limit
        self.is_deaf = False
        """True: hears nothing, as a node that is switched off."""
        self.ledger = AirtimeLedger(air.clock)
        self.transmitter = Transmitter(air, self, self.ledger, self.left_queue)
        self.routing = Routing(air, self, self.transmitter)
        """What it relays and how it reaches others."""
        self._pending: dict[int, _Pending] = {}
        self._resends: set[asyncio.Task[None]] = set()
        self._seen: deque[tuple[NodeNum, int]] = deque(maxlen=SEEN)
        air.attach(self)
        air.spawn(self.transmitter.run(), f"transmitter of {identity.short_name}")

    @property
    def number(self) -> NodeNum:
        return self.identity.number

    @property
    def is_relaying(self) -> bool:
        return self.identity.is_relaying

    # Sending.

    def send_packet(self, packet: mesh_pb2.MeshPacket, cause: Cause) -> bool:
        """Queue a packet, and see to its resends if it wants an ack; False when there is no room or airtime left."""
        if self.is_spent:
            return False
        self._sign(packet)
        self._depart(packet)
        is_queued = self.transmitter.put(packet, cause)
        self._after_queueing(packet)
        return is_queued

    async def transmit_packet(self, packet: mesh_pb2.MeshPacket, cause: Cause) -> None:
        """As `send_packet`, returning when it has left the air the first time; NotDelivered when it is refused."""
        if self.is_spent:
            raise NotDelivered("DUTY_CYCLE_LIMIT")
        self._sign(packet)
        self._depart(packet)
        self._after_queueing(packet)
        if not await self.transmitter.send(packet, cause):
            raise NotDelivered("QUEUE_FULL")

    @property
    def is_spent(self) -> bool:
        """Whether it has used up what the region allows it in an hour, relays included."""
        return self.transmitter.is_spent

    def _sign(self, packet: mesh_pb2.MeshPacket) -> None:
        if self.air.signs:
            sign(packet)

    def _depart(self, packet: mesh_pb2.MeshPacket) -> None:
        packet.relay_node = relay_byte(self.number)
        self.routing.depart(packet)

    def _after_queueing(self, packet: mesh_pb2.MeshPacket) -> None:
        self._postpone_resends(packet)
        if packet.want_ack:
            self.await_answer(packet)

    def await_answer(self, packet: mesh_pb2.MeshPacket) -> None:
        """Resend a packet until something answers; on air a broadcast itself does not ask for an ack."""
        pending = _Pending(self.air.clock.monotonic())
        self._pending[packet.id] = pending
        if is_broadcast(packet):
            packet.want_ack = False
        task = self.air.spawn(self._resend(packet, pending), f"resends of {packet.id:08x}")
        self._resends.add(task)
        task.add_done_callback(self._resends.discard)

    async def _resend(self, packet: mesh_pb2.MeshPacket, pending: _Pending) -> None:
        try:
            for attempt in range(TRANSMISSIONS):
                if attempt:
                    self._resend_once(packet, is_last=attempt == TRANSMISSIONS - 1)
                if await self._is_answered(packet, pending):
                    return
        finally:
            if self._pending.get(packet.id) is pending:
                del self._pending[packet.id]
        self.gave_up(packet)

    def _resend_once(self, packet: mesh_pb2.MeshPacket, *, is_last: bool) -> None:
        if self.is_spent:
            return
        self._postpone_resends(packet)
        self._depart(packet)
        if is_last:
            self.routing.flood(packet)
        self.transmitter.put(packet, Cause.RESEND)

    async def _is_answered(self, packet: mesh_pb2.MeshPacket, pending: _Pending) -> bool:
        wait_s = self.air.modem.resend_wait_s(frame_bytes(packet), self.ledger.contention)
        pending.resend_at = self.air.clock.monotonic() + wait_s
        while (left_s := pending.resend_at - self.air.clock.monotonic()) > 0:
            try:
                async with self.air.clock.timeout(left_s):
                    await pending.answered.wait()
            except TimeoutError:
                continue
            return True
        return False

    def _postpone_resends(self, packet: mesh_pb2.MeshPacket) -> None:
        """No ack can be heard while something else is on air."""
        airtime_s = self.air.modem.airtime_s(frame_bytes(packet))
        for packet_id, pending in self._pending.items():
            if packet_id != packet.id:
                pending.resend_at += airtime_s
        if self.routing is not None:
            self.routing.postpone(packet.id, airtime_s)

    def _stop_resending(self, packet_id: int) -> bool:
        pending = self._pending.get(packet_id)
        if pending is None or pending.answered.is_set():
            return False
        pending.answered.set()
        self.transmitter.cancel(self.number, packet_id)
        return True

    def forget_traffic(self) -> None:
        """Lose what a reboot loses: everything queued, awaited or remembered."""
        for task in list(self._resends):
            task.cancel()
        self.transmitter.clear()
        self._seen.clear()
        self.routing.forget()

    # Hearing.

    def sensed(self, busy_s: float) -> None:
        """Others have occupied the channel for that long."""
        self.ledger.heard(busy_s)

    def hear(self, packet: mesh_pb2.MeshPacket) -> None:
        """A packet, or a relay's copy of one of our own, has been received."""
        self._postpone_resends(packet)
        self.routing.heard(packet)
        sender = sender_of(packet)
        if sender == self.number:
            if self._stop_resending(packet.id):
                self.heard_relayed(packet)
            return
        if packet.to != self.number and not is_broadcast(packet):
            return
        error = self._reading_error(packet)
        is_repeat = (sender, packet.id) in self._seen
        self._seen.append((sender, packet.id))
        if packet.want_ack and packet.to == self.number and not (is_repeat and hops_of(packet)):
            self.acknowledge(packet, error)
        if is_repeat:
            return
        if error != RoutingError.NONE:
            self.take_unreadable(packet)
            return
        if packet.decoded.portnum == ROUTING and packet.decoded.request_id:
            self._stop_resending(packet.decoded.request_id)
        self.take(packet)
        self._respond(packet)

    def _respond(self, packet: mesh_pb2.MeshPacket) -> None:
        """Introduce ourselves to who asks or lacks our key; nothing answers a text, and every receiver says so."""
        data = packet.decoded
        if data.portnum == ROUTING and routing_error(packet) == RoutingError.PKI_UNKNOWN_PUBKEY:
            self.introduce(sender_of(packet))
        if not data.want_response:
            return
        if data.portnum == NODE_INFO:
            self.introduce(sender_of(packet))
        elif data.portnum == TEXT:
            self.acknowledge(packet, RoutingError.NO_RESPONSE)

    def _reading_error(self, packet: mesh_pb2.MeshPacket) -> int:
        """What the firmware answers when it cannot read a packet."""
        if is_encrypted(packet):
            return int(RoutingError.NO_CHANNEL)
        if not packet.pki_encrypted:
            # A direct text that is not encrypted for us alone is refused since firmware 2.7.14.
            is_legacy = packet.to == self.number and packet.decoded.portnum == TEXT
            is_readable = self.has_channel(packet.channel) and not is_legacy
            return int(RoutingError.NONE if is_readable else RoutingError.NO_CHANNEL)
        sender = sender_of(packet)
        held = self.key_of(sender)
        if not held:
            return int(RoutingError.PKI_UNKNOWN_PUBKEY)
        is_readable = held == self.air.key_in_use(sender) and packet.public_key == self.identity.public_key
        return int(RoutingError.NONE if is_readable else RoutingError.NO_CHANNEL)

    def acknowledge(self, packet: mesh_pb2.MeshPacket, error: int) -> None:
        """Answer a packet that wants an ack."""
        routing = self.make_ack(packet, error)
        if routing is not None:
            self.send_packet(routing, Cause.ACK if error == RoutingError.NONE else Cause.NAK)

    def make_ack(self, packet: mesh_pb2.MeshPacket, error: int) -> mesh_pb2.MeshPacket | None:
        """The ack or nak due for a packet; None for an ack that came over a relay, which confirmed it already."""
        is_answer = packet.decoded.request_id != 0
        if is_answer and hops_of(packet):
            return None
        return make_routing(
            self.number,
            sender_of(packet),
            packet.id,
            error,
            packet_id=self.air.new_packet_id(),
            hop_limit=0 if is_answer else self.hop_limit_of_answer(packet),
            want_ack=error == RoutingError.NONE and packet.decoded.portnum == TEXT,
        )

    def hop_limit_of_answer(self, packet: mesh_pb2.MeshPacket) -> int:
        """The hops a packet took and two more, within our limit (firmware `RoutingModule.cpp`)."""
        hops = hops_of(packet)
        if hops > self.hop_limit:
            return hops
        return 0 if packet.hop_start == 0 else min(hops + EXTRA_HOPS, self.hop_limit)

    def node_info_packet(self, to: NodeNum, *, asks: bool = False) -> mesh_pb2.MeshPacket:
        """Who we are, with our key; `asks` for the same in return."""
        return make_packet(
            self.number,
            to,
            NODE_INFO,
            self.identity.user.SerializeToString(),
            packet_id=self.air.new_packet_id(),
            hop_limit=self.hop_limit,
            want_response=asks,
            priority=Priority.BACKGROUND,
        )

    # Hooks.

    @abstractmethod
    def has_channel(self, index: int) -> bool:
        """Whether this node has the key of a channel."""

    @abstractmethod
    def key_of(self, number: NodeNum) -> bytes:
        """The key this node holds for another; empty when it holds none."""

    @abstractmethod
    def introduce(self, to: NodeNum) -> None:
        """Send our node info to a node that asked for it or lacks our key."""

    @abstractmethod
    def take(self, packet: mesh_pb2.MeshPacket) -> None:
        """A packet for this node or for all, heard for the first time."""

    @abstractmethod
    def take_unreadable(self, packet: mesh_pb2.MeshPacket) -> None:
        """As `take`, but it could not be decrypted."""

    @abstractmethod
    def heard_relayed(self, packet: mesh_pb2.MeshPacket) -> None:
        """A packet of ours that waited for an answer was heard from a relay."""

    @abstractmethod
    def gave_up(self, packet: mesh_pb2.MeshPacket) -> None:
        """Nothing answered in three tries."""

    @abstractmethod
    def left_queue(self, packet: mesh_pb2.MeshPacket, cause: Cause) -> None:
        """A packet goes from the queue on air."""
