"""The firmware of the node a client is attached to: what it sends for the client, and what it keeps for it.

The rules are those of firmware 2.7.26; acceptance of what the client hands over is `phone.py`, and what all nodes'
radios do alike is `station.py`.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from meshtastic.protobuf import mesh_pb2, telemetry_pb2

from meshai.messages import BROADCAST, NodeNum
from meshai.sim.air import Air, Cause
from meshai.sim.identity import Identity, NodeDatabase
from meshai.sim.ledger import MINUTE_S
from meshai.sim.packets import (
    NOT_FOR_PKI,
    TELEMETRY,
    TEXT,
    Priority,
    RoutingError,
    copy_of,
    fits,
    hops_of,
    is_broadcast,
    make_packet,
    make_routing,
    make_unreadable,
    sender_of,
    set_sender,
)
from meshai.sim.record import Record
from meshai.sim.station import EXTRA_HOPS, RadioStation
from meshai.sim.transmitter import CAPACITY
from meshai.sim.waiting import ClientQueue

QUEUE_FULL: Final = 32
"""`QueueStatus.res` for a full queue. The field mixes two number spaces (firmware `MeshTypes.h`)."""
NO_RADIO: Final = 33
POLITE_UTILISATION_PERCENT: Final = 25.0
ANNOUNCED_AGAIN_S: Final = 300.0
"""Node info is not sent more often than that, or than once a minute when there is a reason."""
LATEST_REPEAT_S: Final = 5.0
PASSKEY_RENEWED_S: Final = 150.0
RES_OF_NAK: Final = {
    RoutingError.NO_INTERFACE: NO_RADIO,
    RoutingError.NO_CHANNEL: RoutingError.NO_CHANNEL,
    RoutingError.TOO_LARGE: RoutingError.TOO_LARGE,
    RoutingError.DUTY_CYCLE_LIMIT: RoutingError.DUTY_CYCLE_LIMIT,
    RoutingError.PKI_FAILED: RoutingError.PKI_FAILED,
    RoutingError.PKI_SEND_FAIL_PUBLIC_KEY: RoutingError.PKI_SEND_FAIL_PUBLIC_KEY,
}
"""The queue status that goes with a nak of our own node; 0 with all others."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """A packet the client handed over, and what its node made of it."""

    at: float
    """When its bytes arrived, in Unix seconds of the mesh's clock."""
    packet_id: int
    to: NodeNum
    channel: int
    port: int
    payload: bytes
    refusal: str
    """Empty when it was accepted; else a routing error's name or one of the client API's reasons."""


@dataclass(frozen=True, slots=True)
class Given:
    """A packet the node gave to a client. It does so once, whether or not the client lives to read it."""

    at: float
    """When its bytes were written to the link, in Unix seconds of the mesh's clock."""
    sender: NodeNum
    packet_id: int
    port: int
    """-1 when the node could not decrypt it."""
    hops: int


class Firmware(RadioStation):
    """Our node, which talks to a client."""

    def __init__(self, air: Air, identity: Identity, *, channels: tuple[str, ...], hop_limit: int) -> None:
        super().__init__(air, identity, hop_limit=hop_limit)
        self.channels = channels
        self.database = NodeDatabase(air.clock)
        self.client = ClientQueue()
        self.is_clock_set = True
        self.clock_error_s = 0.0
        """How wrong the node's clock is; shows in `rx_time`."""
        self.filters_repeats = True
        """False: the client may use a packet id again, as in the firmware's own simulator."""
        self.tells_rate_limit = False
        """True: the nak for a text sent too soon reaches the client even if it left `from` unset."""
        self.handed_over: list[HandOver] = Record(air.keep_last)
        """Every packet the client ever handed over."""
        self.given: list[Given] = Record(air.keep_last)
        """Every packet ever given to a client."""
        self.boots = 1
        self.repeat_share = 0.0
        """Share of texts that reach the client twice, the second time as a relay sent it (fw#8149)."""
        self.on_reboot: Callable[[], None] = lambda: None
        """What becomes of the links when the node boots anew by itself."""
        self._booted_at = air.clock.monotonic()
        self._planned_naks: deque[int] = deque()
        self._was_full = False
        self._announced_at: float | None = None
        self._passkey = b""
        self._passkey_at = 0.0
        air.center = self.number
        air.spawn(self._tell_metrics(), "telemetry of the node")

    # For the client.

    @property
    def refusals(self) -> list[HandOver]:
        """What the client handed over in vain."""
        return [handed for handed in self.handed_over if handed.refusal]

    @property
    def text_times(self) -> list[float]:
        """When texts arrived from the client that were accepted."""
        return [handed.at for handed in self.handed_over if handed.port == TEXT and not handed.refusal]

    def note(self, packet: mesh_pb2.MeshPacket, at: float, refusal: str = "") -> None:
        """Remember that the client handed over a packet."""
        data = packet.decoded
        self.handed_over.append(HandOver(at, packet.id, packet.to, packet.channel, data.portnum, data.payload, refusal))

    def note_given(self, packet: mesh_pb2.MeshPacket) -> None:
        """Remember that a packet has left for the client."""
        port = packet.decoded.portnum if packet.HasField("decoded") else -1
        self.given.append(Given(self.air.clock.now(), sender_of(packet), packet.id, port, hops_of(packet)))

    def send(self, packet: mesh_pb2.MeshPacket, at: float) -> None:
        """Take a packet that arrived `at` and that the client API has accepted."""
        set_sender(packet, self.number)
        packet.id = packet.id or self.air.new_packet_id()
        packet.decoded.bitfield = packet.decoded.bitfield  # present from now on, so it takes its two bytes on air
        if packet.want_ack and packet.hop_limit == 0:
            packet.hop_limit = self.hop_limit
        packet.hop_start = packet.hop_limit
        res, nak = self._admit(packet)
        self.note(packet, at, _name_of_refusal(res, nak))
        self.report_queue(packet.id, res)
        if nak is not None:
            self.answer_client(packet, nak)

    def _admit(self, packet: mesh_pb2.MeshPacket) -> tuple[int, int | None]:
        """Queue a packet, or say why not: the `res`, and the ack or nak that is due at once."""
        if packet.to == self.number:
            return 0, RoutingError.NONE if packet.want_ack else None
        if self._planned_naks:
            nak = self._planned_naks.popleft()
            return int(RES_OF_NAK.get(nak, 0)), nak
        nak = self._refusal(packet)
        if nak != RoutingError.NONE:
            return int(RES_OF_NAK[nak]), nak
        is_queued = self.send_packet(packet, Cause.CLIENT)
        return 0 if is_queued else QUEUE_FULL, None

    def _refusal(self, packet: mesh_pb2.MeshPacket) -> int:
        if self.is_spent:
            self._tell_duty_cycle(packet)
            return int(RoutingError.DUTY_CYCLE_LIMIT)
        if is_broadcast(packet):
            if packet.pki_encrypted:
                return int(RoutingError.PKI_FAILED)
        elif packet.decoded.portnum not in NOT_FOR_PKI:
            key = self.key_of(packet.to)
            if not key:
                return int(RoutingError.PKI_SEND_FAIL_PUBLIC_KEY)
            if packet.pki_encrypted and packet.public_key and packet.public_key != key:
                return int(RoutingError.PKI_FAILED)
            packet.pki_encrypted = True
            packet.public_key = key
        elif packet.pki_encrypted:
            return int(RoutingError.PKI_FAILED)
        if not packet.pki_encrypted and not self.has_channel(packet.channel):
            return int(RoutingError.NO_CHANNEL)
        return int(RoutingError.NONE if fits(packet) else RoutingError.TOO_LARGE)

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
        self.send_packet(nak, Cause.RATE_LIMIT_NAK)

    def answer_client(self, packet: mesh_pb2.MeshPacket, error: int) -> None:
        """An ack or nak of our own node for the client's packet."""
        self.deliver(
            make_routing(
                self.number,
                self.number,
                packet.id,
                error,
                packet_id=self.air.new_packet_id(),
                channel=0 if packet.pki_encrypted else packet.channel,
            )
        )

    def report_queue(self, packet_id: int, res: int = 0) -> None:
        """A queue status; id 0 answers a heartbeat or says that there is room again."""
        free = self.transmitter.free
        self._was_full = free == 0
        self.client.put_status(mesh_pb2.QueueStatus(res=res, free=free, maxlen=CAPACITY, mesh_packet_id=packet_id))

    def deliver(self, packet: mesh_pb2.MeshPacket) -> None:
        """Keep a packet for the client just as it is, stamped with the node's time if it has one."""
        packet.rx_time = self.rx_time()
        self.client.put(packet)

    def rx_time(self) -> int:
        """The node's own time in Unix seconds; 0 while nobody has told it."""
        return int(self.air.clock.now() + self.clock_error_s) if self.is_clock_set else 0

    def set_time(self, unix_s: int) -> None:
        """Believe the client about the time."""
        self.is_clock_set = True
        self.clock_error_s = unix_s - self.air.clock.now()

    def session_passkey(self) -> bytes:
        """Eight bytes a remote administrator must show; made anew after 150 s."""
        now = self.air.clock.monotonic()
        if not self._passkey or now - self._passkey_at > PASSKEY_RENEWED_S:
            self._passkey, self._passkey_at = self.air.rng.randbytes(8), now
        return self._passkey

    def _tell_duty_cycle(self, packet: mesh_pb2.MeshPacket) -> None:
        minutes = self.ledger.minutes_until_below(self.air.duty_cycle_s)
        self.client.notify(
            mesh_pb2.ClientNotification(
                reply_id=packet.id,
                level=mesh_pb2.LogRecord.Level.WARNING,
                message=f"Duty cycle limit exceeded. You can send again in {minutes} mins",
            )
        )

    # About itself.

    def metrics(self) -> telemetry_pb2.DeviceMetrics:
        """How busy the channel is, and its own part in that."""
        return telemetry_pb2.DeviceMetrics(
            battery_level=101,
            voltage=5.0,
            channel_utilization=self.ledger.utilisation_percent,
            air_util_tx=self.ledger.own_percent,
            uptime_seconds=int(self.air.clock.monotonic() - self._booted_at),
        )

    async def _tell_metrics(self) -> None:
        """Tell the client about once a minute, without using the air, and only while nothing else waits for it."""
        while True:
            await self.air.clock.sleep(MINUTE_S)
            if len(self.client):
                continue
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

    def announce(self, to: NodeNum = BROADCAST, *, asks: bool = False, not_within_s: float = MINUTE_S) -> None:
        """Send our node info, and ask for the other's; silently skipped if it was sent a moment ago."""
        now = self.air.clock.monotonic()
        if self._announced_at is not None and now - self._announced_at < not_within_s:
            return
        self._announced_at = now
        packet = self.node_info_packet(to, asks=asks)
        self.send_packet(packet, Cause.NODE_INFO)
        self.report_queue(packet.id)

    def plan_nak(self, error: int, count: int = 1) -> None:
        """Refuse the client's next packets with a nak of our own, and transmit nothing."""
        self._planned_naks.extend([error] * count)

    def reboot(self) -> None:
        """Lose queues, ids, the time and nodes met too lately to have been saved; keep identity and the other nodes."""
        self.forget_traffic()
        self.database.reload()
        self.client.clear()
        self.is_clock_set = False
        self.boots += 1
        self._booted_at = self.air.clock.monotonic()
        self._was_full = False
        self._announced_at = None

    def reboot_in(self, seconds: float) -> None:
        """Boot anew by itself, which ends the client's connection."""
        self.air.spawn(self._reboot_later(seconds), "reboot of the node")

    async def _reboot_later(self, seconds: float) -> None:
        await self.air.clock.sleep(seconds)
        self.reboot()
        self.on_reboot()

    def renumber(self, number: NodeNum) -> None:
        """Become another number, as a node does whose keys were made anew."""
        former = self.number
        self.identity = replace(self.identity, number=number)
        self.air.renumber(self, former)

    # What the radio asks.

    def has_channel(self, index: int) -> bool:
        return index < len(self.channels)

    def key_of(self, number: NodeNum) -> bytes:
        return self.database.key_of(number)

    def introduce(self, to: NodeNum) -> None:
        self.announce(to)

    def take(self, packet: mesh_pb2.MeshPacket) -> None:
        sender = sender_of(packet)
        is_stranger = not self.database.has_met(sender)
        self.database.heard(packet, self.rx_time())
        if packet.pki_encrypted:
            packet.public_key = self.key_of(sender)
            packet.channel = 0
        if is_stranger and not self.database.has_met(sender):
            self._greet(packet)
        self.deliver(packet)
        if self._is_repeated(packet):
            self.air.spawn(self._deliver_again(copy_of(packet)), f"repeat of {packet.id:08x}")

    def _is_repeated(self, packet: mesh_pb2.MeshPacket) -> bool:
        if not self.repeat_share or packet.decoded.portnum != TEXT or not packet.hop_limit:
            return False
        return self.air.rng.random() < self.repeat_share

    async def _deliver_again(self, packet: mesh_pb2.MeshPacket) -> None:
        packet.hop_limit -= 1
        packet.relay_node = self.air.rng.randrange(1, 256)
        await self.air.clock.sleep(self.air.rng.uniform(0, LATEST_REPEAT_S))
        self.deliver(packet)

    def _greet(self, packet: mesh_pb2.MeshPacket) -> None:
        """Exchange node infos with a node first heard, if the channel is quiet and it is not too far."""
        is_near = hops_of(packet) <= self.hop_limit + EXTRA_HOPS
        if is_near and self.ledger.utilisation_percent < POLITE_UTILISATION_PERCENT:
            self.announce(sender_of(packet), asks=True, not_within_s=ANNOUNCED_AGAIN_S)

    def take_unreadable(self, packet: mesh_pb2.MeshPacket) -> None:
        self.deliver(make_unreadable(packet))

    def heard_relayed(self, packet: mesh_pb2.MeshPacket) -> None:
        self.answer_client(packet, RoutingError.NONE)

    def gave_up(self, packet: mesh_pb2.MeshPacket) -> None:
        self.answer_client(packet, RoutingError.MAX_RETRANSMIT)

    def left_queue(self, packet: mesh_pb2.MeshPacket, cause: Cause) -> None:
        if self._was_full and self.transmitter.free > 0:
            self.report_queue(0)
        elif cause is Cause.CLIENT:
            self.report_queue(packet.id)


def _name_of_refusal(res: int, nak: int | None) -> str:
    if nak:
        return str(RoutingError.Name(nak))
    return "QUEUE_FULL" if res == QUEUE_FULL else ""
