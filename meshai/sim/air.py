"""The air between simulated nodes: the radio settings and the channel they share, and the log of everything sent.

Who hears whom, and what collisions and loss leave of it, is told in `channel.py`; what stations relay in `routing.py`.
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

from meshai.airtime import DUTY_CYCLE_PERCENT, PRESETS, WIDE_KHZ, Modem
from meshai.clock import Clock
from meshai.messages import NodeNum
from meshai.sim.channel import Channel, Listener
from meshai.sim.identity import Identity
from meshai.sim.ledger import HOUR_S
from meshai.sim.links import Links
from meshai.sim.packets import ROUTING, TEXT, copy_of, frame_bytes, routing_error, sender_of
from meshai.sim.record import Record

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


class Station(Listener, Protocol):
    """Whoever can transmit and hear."""

    @property
    def identity(self) -> Identity: ...

    @property
    def is_relaying(self) -> bool: ...


class Air:
    """One stretch of spectrum and the stations on it; leaving it ends all that goes on."""

    def __init__(
        self,
        *,
        clock: Clock,
        rng: random.Random,
        preset: str,
        region: str,
        modem: Modem | None = None,
        signs: bool = False,
        observer: Callable[[OnAir], None] | None,
        capture_db: float | None = None,
        interference: bool = True,
        keep_last: int | None = None,
    ) -> None:
        """`modem` takes the place of the preset's; with `signs`, broadcasts are signed where there is room, as by 2.8.

        `capture_db` and `interference` are the channel's; `keep_last` bounds the log and what stations keep.
        """
        self.clock = clock
        self.rng = rng
        self.preset_code: int = config_pb2.Config.LoRaConfig.ModemPreset.Value(preset)
        self.region_code: int = config_pb2.Config.LoRaConfig.RegionCode.Value(region)
        self.region = region
        self.is_preset = modem is None
        self.modem = _modem(preset, region) if modem is None else modem
        self.signs = signs
        self.keep_last = keep_last
        self.channel = Channel(
            Links(), clock=clock, rng=rng, modem=self.modem, capture_db=capture_db, interference=interference
        )
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
        self.channel.attach(station)

    def renumber(self, station: Station, former: NodeNum) -> None:
        """A station has become another number."""
        if station.number in self._stations:
            raise ValueError(f"two stations with number {station.number:#010x}")
        self._stations[station.number] = self._stations.pop(former)
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
        """Put a packet on air and return when it has ended.

        `began` is the moment that was meant, by the monotonic clock; the event loop may be a little late.
        """
        packet = copy_of(packet)
        entry = self._entry(packet, by.number, cause, self.clock.now() - (self.clock.monotonic() - began))
        self.log.append(entry)
        if self._observer is not None:
            self._observer(entry)
        await self.channel.carry(packet, by.number, entry.airtime_s, began)

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
    return replace(modem, bandwidth_khz=WIDE_KHZ[modem.bandwidth_khz], is_2_4_ghz=True)
