"""The air between simulated nodes: who hears what and when, and the log of everything sent.

Given links, it is a true channel (`channel.py`), and stations relay by themselves (`routing.py`). Without them it is
quiet: every station has a distance: the relays between it and the node a client is attached to, as if all stood along a
line. A packet spreads in waves. Wave 0 is its sender's own transmission, heard at distance 0 from it; wave *w* is a
relay's, heard at distance *w*. As in a real flood each relay waits for some slots first, a relay that hears another
one keeps silent, and the hop limit ends it. The sender hears wave 1 too, which is what an implicit ack is made of.
Relays that no resident stands for are anonymous. There are no collisions: overlapping packets are both heard.
"""

import asyncio
import math
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from enum import StrEnum
from types import TracebackType
from typing import Any, Final, Protocol, Self

from meshtastic.protobuf import config_pb2, mesh_pb2

from meshai.airtime import DUTY_CYCLE_PERCENT, PRESETS, Modem
from meshai.clock import Clock
from meshai.messages import NodeNum
from meshai.sim.channel import Channel
from meshai.sim.identity import Identity
from meshai.sim.ledger import HOUR_S
from meshai.sim.links import Links
from meshai.sim.packets import ROUTING, TEXT, copy_of, frame_bytes, relay_byte, routing_error, sender_of
from meshai.sim.record import Record

ANONYMOUS_RELAY: Final[NodeNum] = 0x0E1A_7000
RELAY_SLOTS: Final = 16
"""A relay lets those with something of their own go first (firmware `RadioInterface.cpp`)."""
RELAY_CONTENTION: Final = 5
"""Exponent of the contention window of a relay that heard the packet neither very well nor very badly."""
WIDE_KHZ: Final = {125: 406.25, 250: 812.5, 500: 1625.0}
"""What the presets' bandwidths become in region LORA_24 (firmware `MeshRadio.h`)."""


PRESET_NAMES: Final = tuple(name for name, _ in config_pb2.Config.LoRaConfig.ModemPreset.items() if name in PRESETS)
"""Presets that a client, too, has a name for."""
REGION_NAMES: Final = tuple(name for name, code in config_pb2.Config.LoRaConfig.RegionCode.items() if code)


class Cause(StrEnum):
    """Why something was transmitted."""

    CLIENT = "client"
    RESEND = "resend"
    ACK = "ack"
    NAK = "nak"
    RATE_LIMIT_NAK = "rate-limit nak"
    NODE_INFO = "node info"
    PEER = "peer"
    RELAY = "relay"


@dataclass(frozen=True, slots=True)
class OnAir:
    """One transmission."""

    at: float
    """Its start, in Unix seconds of the mesh's clock."""
    by: NodeNum
    """Who transmitted: the sender, or a relay."""
    sender: NodeNum
    to: NodeNum
    packet_id: int
    channel: int
    port: int
    """0 for ciphertext nobody can read."""
    payload: bytes
    frame_bytes: int
    airtime_s: float
    cause: Cause
    reply_id: int
    request_id: int
    error: int | None
    """The routing error of an ack (0) or nak; None for every other packet."""
    is_tapback: bool
    hop_limit: int
    want_ack: bool
    pki: bool
    hop_start: int = 0
    relay_node: int = 0
    """Last byte of who transmitted, as the frame says."""
    next_hop: int = 0
    """Last byte of who alone is to relay it; 0 is anybody."""

    @property
    def is_text(self) -> bool:
        return self.port == TEXT

    @property
    def text(self) -> str:
        """The text as a tolerant reader shows it; empty for other ports."""
        return self.payload.decode("utf-8", errors="replace") if self.is_text else ""

    @property
    def text_bytes(self) -> int:
        return len(self.payload) if self.is_text else 0


class Station(Protocol):
    """Whoever can transmit and hear."""

    @property
    def identity(self) -> Identity: ...

    @property
    def number(self) -> NodeNum: ...

    @property
    def distance(self) -> int:
        """Relays between it and the node the client is attached to."""
        ...

    @property
    def is_relaying(self) -> bool: ...

    @property
    def is_deaf(self) -> bool: ...

    @property
    def loss(self) -> float:
        """Probability that a packet from or to it is lost."""
        ...

    @property
    def snr(self) -> float: ...

    @property
    def rssi(self) -> int: ...

    def sensed(self, busy_s: float) -> None:
        """Note that others have occupied the channel for that long."""
        ...

    def hear(self, packet: mesh_pb2.MeshPacket) -> None:
        """Take in a packet that has just ended; the copy is its own."""
        ...


class Air:
    """One stretch of spectrum and the stations on it; leaving it ends all that goes on."""

    def __init__(
        self,
        *,
        clock: Clock,
        rng: random.Random,
        preset: str,
        region: str,
        observer: Callable[[OnAir], None] | None,
        links: Links | None = None,
        capture_db: float | None = None,
        keep_last: int | None = None,
    ) -> None:
        """`links` make it a true channel; `keep_last` bounds the log here and what the stations keep."""
        self.clock = clock
        self.rng = rng
        self.preset_code: int = config_pb2.Config.LoRaConfig.ModemPreset.Value(preset)
        self.region_code: int = config_pb2.Config.LoRaConfig.RegionCode.Value(region)
        self.region = region
        self.modem = _modem(preset, region)
        self.keep_last = keep_last
        self.channel = (
            None if links is None else Channel(links, clock=clock, rng=rng, modem=self.modem, capture_db=capture_db)
        )
        self.has_relays = True
        """False: nobody relays, so nothing goes beyond direct neighbours and no implicit ack comes."""
        self.log: list[OnAir] = Record(keep_last)
        self.center: NodeNum = 0
        """The node the client is attached to, to which peers speak unless told otherwise."""
        self._stations: dict[NodeNum, Station] = {}
        self._observer = observer
        self._tasks = asyncio.TaskGroup()
        self._running: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._running:
            task.cancel()
        # An error of the body is its own affair and goes on as it is; a task group would wrap it.
        is_cancelled = kind is not None and issubclass(kind, asyncio.CancelledError)
        await self._tasks.__aexit__(*((kind, error, trace) if is_cancelled else (None, None, None)))

    def spawn(self, activity: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run something for as long as it takes or the air exists; an error in it ends everything loudly."""
        task = self._tasks.create_task(activity, name=name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def attach(self, station: Station) -> None:
        if station.number in self._stations:
            raise ValueError(f"two stations with number {station.number:#010x}")
        self._stations[station.number] = station
        if self.channel is not None:
            self.channel.attach(station)

    def renumber(self, station: Station, former: NodeNum) -> None:
        """A station has become another number."""
        if station.number in self._stations:
            raise ValueError(f"two stations with number {station.number:#010x}")
        self._stations[station.number] = self._stations.pop(former)
        if self.channel is not None:
            self.channel.renumber(former, station.number)
        if self.center == former:
            self.center = station.number

    def key_in_use(self, number: NodeNum) -> bytes:
        """The public key a node really has now; empty for a node that is not here."""
        station = self._stations.get(number)
        return station.identity.public_key if station is not None else b""

    @property
    def duty_cycle_s(self) -> float:
        """Seconds of an hour the region allows a node to transmit."""
        percent = DUTY_CYCLE_PERCENT.get(self.region)
        return math.inf if percent is None else HOUR_S * percent / 100

    def new_packet_id(self) -> int:
        return self.rng.randrange(1, 2**32)

    async def transmit(self, packet: mesh_pb2.MeshPacket, *, by: Station, cause: Cause, began: float) -> None:
        """Put a packet on air and return when its sender's own transmission ends; relays follow by themselves.

        `began` is the moment that was meant, by the monotonic clock; the event loop may be a little late.
        """
        packet = copy_of(packet)
        if self.channel is not None:
            entry = self._record(packet, by.number, cause, began)
            await self.channel.carry(packet, by.number, entry.airtime_s, began)
            return
        await self._occupy(packet, by.number, cause)
        reached = self._deliver(packet, by, wave=0)
        if packet.hop_limit > 0 and self.has_relays:
            self.spawn(self._relay(packet, by, reached), f"relays of {packet.id:08x}")

    async def _relay(self, packet: mesh_pb2.MeshPacket, origin: Station, reached: set[NodeNum]) -> None:
        for wave in range(1, packet.hop_limit + 1):
            relay = self._choose_relay(wave, packet, origin, reached)
            if relay is None:
                return
            slots = RELAY_SLOTS + self.rng.randrange(2**RELAY_CONTENTION)
            await self.clock.sleep(slots * self.modem.slot_s)
            relayed = copy_of(packet)
            relayed.hop_limit = packet.hop_limit - wave
            relayed.relay_node = relay_byte(relay)
            await self._occupy(relayed, relay, Cause.RELAY)
            if wave == 1 and not origin.is_deaf and not self._is_lost(origin.loss):
                self._hand(copy_of(relayed), origin)
            reached |= self._deliver(relayed, origin, wave)

    def _choose_relay(
        self, wave: int, packet: mesh_pb2.MeshPacket, origin: Station, reached: set[NodeNum]
    ) -> NodeNum | None:
        """Who repeats the packet in this wave: a resident that heard it, or nobody's node if some are farther out."""
        others = [station for station in self._stations.values() if station is not origin]
        residents = [
            station.number
            for station in others
            if station.is_relaying
            and station.number in reached
            and station.number != packet.to
            and _distance(origin, station) == wave - 1
        ]
        if residents:
            return self.rng.choice(residents)
        is_farther = any(_distance(origin, station) >= wave for station in others)
        return ANONYMOUS_RELAY + wave if is_farther else None

    async def _occupy(self, packet: mesh_pb2.MeshPacket, by: NodeNum, cause: Cause) -> None:
        await self.clock.sleep(self._record(packet, by, cause).airtime_s)

    def _record(self, packet: mesh_pb2.MeshPacket, by: NodeNum, cause: Cause, began: float | None = None) -> OnAir:
        late_s = 0.0 if began is None else self.clock.monotonic() - began
        entry = self._entry(packet, by, cause, self.clock.now() - late_s)
        self.log.append(entry)
        if self._observer is not None:
            self._observer(entry)
        return entry

    def _deliver(self, packet: mesh_pb2.MeshPacket, origin: Station, wave: int) -> set[NodeNum]:
        """Let every station at this wave's distance hear the packet; returns who did."""
        reached = set()
        for station in list(self._stations.values()):
            if station is origin or station.is_deaf or _distance(origin, station) != wave:
                continue
            if self._is_lost(origin.loss) or self._is_lost(station.loss):
                continue
            heard = copy_of(packet)
            if not heard.via_mqtt:
                heard.rx_snr = min(origin.snr, station.snr)
                heard.rx_rssi = min(origin.rssi, station.rssi)
                heard.transport_mechanism = mesh_pb2.MeshPacket.TransportMechanism.TRANSPORT_LORA
            self._hand(heard, station)
            reached.add(station.number)
        return reached

    def _hand(self, packet: mesh_pb2.MeshPacket, station: Station) -> None:
        station.sensed(self.modem.airtime_s(frame_bytes(packet)))
        station.hear(packet)

    def _is_lost(self, probability: float) -> bool:
        return probability > 0 and self.rng.random() < probability

    def _entry(self, packet: mesh_pb2.MeshPacket, by: NodeNum, cause: Cause, at: float) -> OnAir:
        size = frame_bytes(packet)
        data = packet.decoded
        return OnAir(
            at=at,
            by=by,
            sender=sender_of(packet),
            to=packet.to,
            packet_id=packet.id,
            channel=packet.channel,
            port=data.portnum,
            payload=data.payload,
            frame_bytes=size,
            airtime_s=self.modem.airtime_s(size),
            cause=cause,
            reply_id=data.reply_id,
            request_id=data.request_id,
            error=routing_error(packet) if data.portnum == ROUTING else None,
            is_tapback=data.emoji != 0,
            hop_limit=packet.hop_limit,
            want_ack=packet.want_ack,
            pki=packet.pki_encrypted,
            hop_start=packet.hop_start,
            relay_node=packet.relay_node,
            next_hop=packet.next_hop,
        )


def _modem(preset: str, region: str) -> Modem:
    modem = PRESETS[preset]
    if region != "LORA_24":
        return modem
    return replace(modem, bandwidth_khz=WIDE_KHZ[int(modem.bandwidth_khz)], is_2_4_ghz=True)


def _distance(one: Station, other: Station) -> int:
    return abs(one.distance - other.distance)
