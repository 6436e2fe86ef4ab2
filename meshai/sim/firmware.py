"""What a node does by itself, whoever is attached: sends, resends, acks, and keeps packets for its client.

The rules are those of firmware 2.7.26. A packet from the client is checked, queued (16 places, by priority) and
transmitted one at a time; one that wants an ack is sent up to three times until a relay of it is heard (implicit
ack, from our own number) or the destination answers. What is heard is acked if it wants that, and kept for the client.
"""

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from typing import Final

from meshtastic.protobuf import mesh_pb2, telemetry_pb2

from meshai.airtime import TRANSMISSIONS
from meshai.messages import BROADCAST, NodeNum
from meshai.sim.air import DUTY_CYCLE_PERCENT, Air, Cause
from meshai.sim.identity import Identity, NodeDatabase
from meshai.sim.packets import (
    NODE_INFO,
    NOT_FOR_PKI,
    ROUTING,
    TELEMETRY,
    TEXT,
    Priority,
    RoutingError,
    fits,
    frame_bytes,
    is_broadcast,
    make_packet,
    make_routing,
    sender_of,
    set_sender,
)
from meshai.sim.transmitter import CAPACITY, HOUR_S, MINUTE_S, Transmitter

log = logging.getLogger(__name__)

QUEUE_FULL: Final = 32
"""`QueueStatus.res` when the queue is full; routing errors share the field with their own numbers."""
PASSKEY_RENEWED_S: Final = 150.0
SEEN: Final = 256
"""How many (sender, id) pairs a node remembers to drop repeats."""


class ClientQueue:
    """What waits for the client: packets in order, two queue statuses, two notifications."""

    def __init__(self, capacity: int = 32) -> None:
        self.capacity = capacity
        self.packets: deque[mesh_pb2.MeshPacket] = deque()
        self.statuses: deque[mesh_pb2.QueueStatus] = deque(maxlen=2)
        self.notifications: deque[mesh_pb2.ClientNotification] = deque(maxlen=2)
        self.changed = asyncio.Event()

    def put(self, packet: mesh_pb2.MeshPacket) -> None:
        """When full, a text pushes out the oldest packet and anything else is dropped (firmware `MeshService`)."""
        if len(self.packets) >= self.capacity:
            if packet.decoded.portnum != TEXT:
                return
            self.packets.popleft()
        self.packets.append(packet)
        self.changed.set()

    def put_status(self, status: mesh_pb2.QueueStatus) -> None:
        self.statuses.append(status)
        self.changed.set()

    def notify(self, notification: mesh_pb2.ClientNotification) -> None:
        self.notifications.append(notification)
        self.changed.set()

    def clear(self) -> None:
        self.packets.clear()
        self.statuses.clear()
        self.notifications.clear()


@dataclass(frozen=True, slots=True)
class PlannedRefusal:
    """What happens to the next packets of the client instead of the usual."""

    error: int
    sender: NodeNum | None
    """Who refuses: None is our own node, which then transmits nothing."""


class Firmware:
    """The node a client is attached to: a station of the mesh, at distance 0 from itself."""

    distance = 0
    is_relaying = False
    loss = 0.0
    snr = 0.0
    rssi = 0

    def __init__(self, air: Air, identity: Identity, *, channels: tuple[str, ...], hop_limit: int) -> None:
        self.air = air
        self.identity = identity
        self.channels = channels
        self.hop_limit = hop_limit
        self.database = NodeDatabase()
        self.client = ClientQueue()
        self.transmitter = Transmitter(air, self, self._sent)
        self.is_clock_set = True
        self.clock_error_s = 0.0
        """How wrong the node's clock is; shows in `rx_time`."""
        self.filters_repeats = True
        """False: a packet id may be used again, as in the firmware's own simulator."""
        self.tells_rate_limit = False
        """True: the nak for a text sent too soon reaches the client even if it left `from` unset."""
        self.reboots = 1
        self.booted_at = air.clock.monotonic()
        self.planned_refusals: deque[PlannedRefusal] = deque()
        self._pending: dict[int, asyncio.Event] = {}
        self._heard: deque[tuple[NodeNum, int]] = deque(maxlen=SEEN)
        self._heard_airtime: deque[tuple[float, float]] = deque()
        self._was_full = False
        self._announced_at: float | None = None
        self._passkey = b""
        self._passkey_at = 0.0

    @property
    def number(self) -> NodeNum:
        return self.identity.number

    # From the client.

    def send(self, packet: mesh_pb2.MeshPacket) -> int:
        """Take a packet the client API has accepted; returns the `res` of its queue status."""
        set_sender(packet, self.number)
        packet.id = packet.id or self.air.new_packet_id()
        packet.next_hop = 0
        packet.relay_node = self.number & 0xFF
        packet.decoded.bitfield |= 0
        res = self._admit(packet)
        self.report_queue(packet.id, res)
        return res

    def _admit(self, packet: mesh_pb2.MeshPacket) -> int:
        if packet.want_ack and packet.hop_limit == 0:
            packet.hop_limit = self.hop_limit
        packet.hop_start = packet.hop_limit
        if packet.to == self.number:
            if packet.want_ack:
                self.answer_client(packet, RoutingError.NONE)
            return 0
        refusal = self._refusal(packet)
        if refusal != RoutingError.NONE:
            self.answer_client(packet, refusal)
            return refusal
        reliable = packet.want_ack
        if is_broadcast(packet):
            packet.want_ack = False
        if reliable:
            self.air.spawn(self._resend(packet), f"resends of {packet.id:08x}")
        return 0 if self.transmitter.put(packet, Cause.CLIENT) else QUEUE_FULL

    def _refusal(self, packet: mesh_pb2.MeshPacket) -> int:
        if self.duty_cycle_left_s() <= 0:
            self._notify_duty_cycle(packet)
            return int(RoutingError.DUTY_CYCLE_LIMIT)
        if not self._has_channel(packet.channel):
            return int(RoutingError.NO_CHANNEL)
        if is_broadcast(packet):
            if packet.pki_encrypted:
                return int(RoutingError.PKI_FAILED)
        elif packet.decoded.portnum not in NOT_FOR_PKI:
            key = self.database.key_of(packet.to)
            if not key:
                return int(RoutingError.PKI_SEND_FAIL_PUBLIC_KEY)
            if packet.pki_encrypted and packet.public_key and packet.public_key != key:
                return int(RoutingError.PKI_FAILED)
            packet.pki_encrypted = True
            packet.public_key = key
        return int(RoutingError.NONE if fits(packet) else RoutingError.TOO_LARGE)

    def _has_channel(self, index: int) -> bool:
        return index < len(self.channels)

    def refuse_rate(self, packet: mesh_pb2.MeshPacket) -> None:
        """The nak for a text sent too soon goes to `from`: when the client left that unset, on air to nobody."""
        if self.tells_rate_limit or sender_of(packet) == self.number:
            self.answer_client(packet, RoutingError.RATE_LIMIT_EXCEEDED)
            return
        nak = make_routing(
            self.number,
            0,
            packet.id,
            RoutingError.RATE_LIMIT_EXCEEDED,
            packet_id=self.air.new_packet_id(),
            hop_limit=self.hop_limit,
        )
        self.transmitter.put(nak, Cause.RATE_LIMIT_NAK)

    def answer_client(self, packet: mesh_pb2.MeshPacket, error: int) -> None:
        """An ack or nak of our own node for the client's packet."""
        routing = make_routing(
            self.number,
            self.number,
            packet.id,
            error,
            packet_id=self.air.new_packet_id(),
            channel=0 if packet.pki_encrypted else packet.channel,
        )
        self.deliver(routing)

    def report_queue(self, packet_id: int, res: int = 0) -> None:
        """A queue status; id 0 answers a heartbeat or says that there is room again."""
        free = self.transmitter.free
        self._was_full = free == 0
        self.client.put_status(mesh_pb2.QueueStatus(res=res, free=free, maxlen=CAPACITY, mesh_packet_id=packet_id))

    def duty_cycle_left_s(self) -> float:
        return self._duty_cycle_s() - self.transmitter.spent_s(HOUR_S)

    def _duty_cycle_s(self) -> float:
        return HOUR_S * DUTY_CYCLE_PERCENT.get(self.air.region, 100.0) / 100

    def _notify_duty_cycle(self, packet: mesh_pb2.MeshPacket) -> None:
        minutes = self.transmitter.minutes_until_below(self._duty_cycle_s())
        self.client.notify(
            mesh_pb2.ClientNotification(
                reply_id=packet.id,
                level=30,
                message=f"Duty cycle limit exceeded. You can send again in {minutes} mins",
            )
        )

    def _sent(self, packet: mesh_pb2.MeshPacket, cause: Cause) -> None:
        if self._was_full and self.transmitter.free > 0:
            self.report_queue(0)
        elif cause is Cause.CLIENT:
            self.report_queue(packet.id)

    # On the air.

    async def _resend(self, packet: mesh_pb2.MeshPacket) -> None:
        """Send again until something answers, and give up after the third wait."""
        answered = self._pending[packet.id] = asyncio.Event()
        try:
            for attempt in range(TRANSMISSIONS):
                if attempt:
                    self.transmitter.put(packet, Cause.RESEND)
                if await self._is_answered(answered, packet):
                    return
            self.answer_client(packet, RoutingError.MAX_RETRANSMIT)
        finally:
            del self._pending[packet.id]

    async def _is_answered(self, answered: asyncio.Event, packet: mesh_pb2.MeshPacket) -> bool:
        """Wait as long as the firmware does: its own wait, and all that was on the air meanwhile."""
        wait_s = self.air.modem.resend_wait_s(frame_bytes(packet))
        try:
            async with self.air.clock.timeout(wait_s):
                await answered.wait()
        except TimeoutError:
            return False
        return True

    def hear(self, packet: mesh_pb2.MeshPacket) -> None:
        """A packet, or a relay's copy of our own, has been received."""
        now = self.air.clock.monotonic()
        self._heard_airtime.append((now, self.air.modem.airtime_s(frame_bytes(packet))))
        while self._heard_airtime[0][0] < now - MINUTE_S:
            self._heard_airtime.popleft()
        sender = sender_of(packet)
        if sender == self.number:
            self._hear_relay(packet)
            return
        is_repeat = (sender, packet.id) in self._heard
        self._heard.append((sender, packet.id))
        if packet.to == self.number:
            if not is_repeat:
                self._take(packet)
            if packet.want_ack:
                self._acknowledge(packet, RoutingError.NONE)
        elif is_broadcast(packet) and not is_repeat:
            self._take(packet)

    def _hear_relay(self, packet: mesh_pb2.MeshPacket) -> None:
        answered = self._pending.get(packet.id)
        if answered is not None and not answered.is_set():
            self.answer_client(packet, RoutingError.NONE)
            self._stop_resending(packet.id)

    def _stop_resending(self, packet_id: int) -> None:
        answered = self._pending.get(packet_id)
        if answered is not None:
            answered.set()
            self.transmitter.cancel(packet_id)

    def _take(self, packet: mesh_pb2.MeshPacket) -> None:
        if packet.decoded.portnum == ROUTING and packet.decoded.request_id:
            self._stop_resending(packet.decoded.request_id)
        if packet.pki_encrypted:
            packet.public_key = self.database.key_of(sender_of(packet))
        self.database.heard(packet, self.rx_time())
        self.deliver(packet)

    def _acknowledge(self, packet: mesh_pb2.MeshPacket, error: int) -> None:
        hops = packet.hop_start - packet.hop_limit
        ack = make_routing(
            self.number,
            sender_of(packet),
            packet.id,
            error,
            packet_id=self.air.new_packet_id(),
            hop_limit=min(self.hop_limit, hops + 2) if hops else 0,
        )
        self.transmitter.put(ack, Cause.ACK if error == RoutingError.NONE else Cause.NAK)

    def deliver(self, packet: mesh_pb2.MeshPacket) -> None:
        """Keep a packet for the client just as it is, stamped with the node's time if it has one."""
        packet.rx_time = self.rx_time()
        self.client.put(packet)

    def announce(self) -> None:
        """Broadcast our node info, unless that was done within the last minute."""
        now = self.air.clock.monotonic()
        if self._announced_at is not None and now - self._announced_at < MINUTE_S:
            return
        self._announced_at = now
        self._send_node_info(BROADCAST)

    def _send_node_info(self, to: NodeNum) -> None:
        packet = make_packet(
            self.number,
            to,
            NODE_INFO,
            self.identity.user.SerializeToString(),
            packet_id=self.air.new_packet_id(),
            hop_limit=self.hop_limit,
            priority=Priority.BACKGROUND,
        )
        self.transmitter.put(packet, Cause.NODE_INFO)

    def rx_time(self) -> int:
        """The node's own time in Unix seconds; 0 while nobody has told it."""
        return int(self.air.clock.now() + self.clock_error_s) if self.is_clock_set else 0

    def metrics(self) -> telemetry_pb2.DeviceMetrics:
        """What the node says of itself: how busy the channel is, and its own part in that."""
        now = self.air.clock.monotonic()
        heard_s = sum(airtime for at, airtime in self._heard_airtime if at > now - MINUTE_S)
        return telemetry_pb2.DeviceMetrics(
            battery_level=101,
            voltage=5.0,
            channel_utilization=100 * (heard_s + self.transmitter.spent_s(MINUTE_S)) / MINUTE_S,
            air_util_tx=100 * self.transmitter.spent_s(HOUR_S) / HOUR_S,
            uptime_seconds=int(now - self.booted_at),
        )

    def session_passkey(self) -> bytes:
        """Eight bytes a remote administrator must show; made anew after 150 s."""
        now = self.air.clock.monotonic()
        if not self._passkey or now - self._passkey_at > PASSKEY_RENEWED_S:
            self._passkey, self._passkey_at = self.air.rng.randbytes(8), now
        return self._passkey

    def set_time(self, unix_s: int) -> None:
        """Believe the client about the time."""
        self.is_clock_set = True
        self.clock_error_s = unix_s - self.air.clock.now()

    async def tell_metrics(self) -> None:
        """Give the client the node's telemetry about once a minute, without using the air."""
        while True:
            await self.air.clock.sleep(MINUTE_S)
            telemetry = telemetry_pb2.Telemetry(time=self.rx_time(), device_metrics=self.metrics())
            self.deliver(
                make_packet(
                    self.number,
                    BROADCAST,
                    TELEMETRY,
                    telemetry.SerializeToString(),
                    packet_id=self.air.new_packet_id(),
                    priority=Priority.BACKGROUND,
                )
            )
