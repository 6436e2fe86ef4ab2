"""The other nodes of the mesh, in the hands of tests and scripted people."""

import asyncio
from dataclasses import dataclass
from typing import Final

from meshtastic.protobuf import mesh_pb2

from meshai.errors import NotDelivered
from meshai.messages import BROADCAST, NodeNum
from meshai.sim.air import Air, Cause
from meshai.sim.identity import Identity
from meshai.sim.packets import (
    NODE_INFO,
    TEXT,
    Priority,
    RoutingError,
    is_broadcast,
    make_packet,
    make_routing,
    sender_of,
)
from meshai.sim.transmitter import Transmitter

CHANNELS: Final = frozenset(range(8))


@dataclass(frozen=True, slots=True)
class HeardText:
    """A text that reached a peer."""

    at: float
    sender: NodeNum
    to: NodeNum
    channel: int
    packet_id: int
    payload: bytes
    reply_id: int
    is_tapback: bool
    hops: int

    @property
    def text(self) -> str:
        return self.payload.decode("utf-8", errors="replace")

    @property
    def is_direct(self) -> bool:
        return self.to != BROADCAST


@dataclass(slots=True)
class AckHabit:
    """How a peer acks direct messages that want it."""

    copies: int = 1
    """0: the ack is lost; 2: it is sent twice, as real nodes sometimes do."""
    delay_s: float = 0.0
    error: int = RoutingError.NONE
    """Anything else makes every ack a nak."""


class Peer:
    """A node of somebody else. Everyone holds everyone's key unless told otherwise."""

    def __init__(
        self,
        air: Air,
        identity: Identity,
        *,
        distance: int = 0,
        snr: float = 6.0,
        rssi: int = -80,
        loss: float = 0.0,
        channels: frozenset[int] = CHANNELS,
        is_relaying: bool = True,
        hop_limit: int = 3,
        battery_percent: int = 90,
        position: tuple[float, float] | None = None,
    ) -> None:
        self.air = air
        self.identity = identity
        self.distance = distance
        self.snr = snr
        self.rssi = rssi
        self.loss = loss
        self.channels = channels
        self.is_relaying = is_relaying
        self.hop_limit = hop_limit
        self.battery_percent = battery_percent
        self.position = position
        self.is_deaf = False
        """True: hears nothing at all, as a node that is switched off."""
        self.acks = AckHabit()
        self.held_keys: dict[NodeNum, bytes] = {}
        """Keys held that are not what their owner uses now: empty for a forgotten one, another for a stale one."""
        self.inbox: list[HeardText] = []
        self.packets: list[mesh_pb2.MeshPacket] = []
        """Everything received that was addressed to it or to all, texts included, repeats dropped."""
        self._unread = 0
        self._arrival = asyncio.Event()
        self._seen: set[tuple[NodeNum, int]] = set()
        self._transmitter = Transmitter(air, self)
        air.attach(self)
        air.spawn(self._transmitter.run(), f"transmitter of {identity.short_name}")

    @property
    def number(self) -> NodeNum:
        return self.identity.number

    def node_info(self) -> mesh_pb2.NodeInfo:
        """What a node that has met this peer remembers of it."""
        info = mesh_pb2.NodeInfo(
            num=self.number,
            user=self.identity.user,
            snr=self.snr,
            last_heard=int(self.air.clock.now()),
            hops_away=self.distance,
            device_metrics={"battery_level": self.battery_percent},
        )
        if self.position is not None:
            info.position.latitude_i, info.position.longitude_i = (round(degrees * 1e7) for degrees in self.position)
        return info

    # Speaking.

    async def send_channel(
        self,
        index: int,
        text: str | bytes,
        *,
        reply_id: int = 0,
        emoji: int = 0,
        packet_id: int = 0,
        hop_limit: int | None = None,
        want_ack: bool = False,
    ) -> int:
        """Say something to everyone on a channel; returns the packet's id once it has been transmitted."""
        packet = self._text(BROADCAST, text, index, reply_id, emoji, packet_id, hop_limit)
        packet.want_ack = want_ack
        return await self.send_raw(packet)

    async def send_direct(
        self,
        text: str | bytes,
        *,
        to: NodeNum | None = None,
        reply_id: int = 0,
        emoji: int = 0,
        packet_id: int = 0,
        hop_limit: int | None = None,
        want_ack: bool = True,
        pki: bool = True,
    ) -> int:
        """Say something to one node, by default the client's; raises NotDelivered without that node's key."""
        destination = self.air.center if to is None else to
        packet = self._text(destination, text, 0, reply_id, emoji, packet_id, hop_limit)
        packet.want_ack = want_ack
        if pki:
            packet.pki_encrypted = True
            packet.public_key = self.key_of(destination)
            if not packet.public_key:
                raise NotDelivered("PKI_SEND_FAIL_PUBLIC_KEY")
        return await self.send_raw(packet)

    async def send_node_info(self, *, to: NodeNum = BROADCAST, want_response: bool = False) -> int:
        """Tell name and key, as nodes do every few hours and when they meet a stranger."""
        packet = make_packet(
            self.number,
            to,
            NODE_INFO,
            self.identity.user.SerializeToString(),
            packet_id=self.air.new_packet_id(),
            hop_limit=self.hop_limit,
            want_response=want_response,
            priority=Priority.BACKGROUND,
        )
        return await self.send_raw(packet, cause=Cause.NODE_INFO)

    async def send_raw(self, packet: mesh_pb2.MeshPacket, *, cause: Cause = Cause.PEER) -> int:
        """Transmit any packet as it is; returns its id when it has left the air."""
        self._seen.add((sender_of(packet), packet.id))
        await self.air.transmit(packet, by=self, cause=cause)
        return int(packet.id)

    def _text(
        self,
        to: NodeNum,
        text: str | bytes,
        channel: int,
        reply_id: int,
        emoji: int,
        packet_id: int,
        hop_limit: int | None,
    ) -> mesh_pb2.MeshPacket:
        return make_packet(
            self.number,
            to,
            TEXT,
            text.encode() if isinstance(text, str) else text,
            packet_id=packet_id or self.air.new_packet_id(),
            channel=channel,
            reply_id=reply_id,
            emoji=emoji,
            hop_limit=self.hop_limit if hop_limit is None else hop_limit,
        )

    # Listening.

    async def heard(self, timeout_s: float = 120.0) -> HeardText:
        """The next text nobody has asked for yet, in order of arrival; TimeoutError when none comes."""
        async with self.air.clock.timeout(timeout_s):
            while self._unread >= len(self.inbox):
                self._arrival.clear()
                await self._arrival.wait()
        self._unread += 1
        return self.inbox[self._unread - 1]

    def hear(self, packet: mesh_pb2.MeshPacket) -> None:
        if self.is_deaf or sender_of(packet) == self.number:
            return
        if packet.to != self.number and not (is_broadcast(packet) and packet.channel in self.channels):
            return
        error = self._decryption_error(packet)
        key = (sender_of(packet), packet.id)
        if error == RoutingError.NONE and key not in self._seen:
            self._seen.add(key)
            self._take(packet)
        if packet.want_ack and packet.to == self.number:
            self.air.spawn(self._acknowledge(packet, error), f"ack of {packet.id:08x}")

    def key_of(self, number: NodeNum) -> bytes:
        """The key this peer holds for a node."""
        if number in self.held_keys:
            return self.held_keys[number]
        station = self.air.stations.get(number)
        return station.identity.public_key if station is not None else b""

    def _decryption_error(self, packet: mesh_pb2.MeshPacket) -> int:
        """What the firmware answers when a direct packet cannot be read."""
        if not packet.pki_encrypted:
            return int(RoutingError.NONE)
        held = self.key_of(sender_of(packet))
        if not held:
            return int(RoutingError.PKI_UNKNOWN_PUBKEY)
        true = self.air.stations[sender_of(packet)].identity.public_key
        is_readable = held == true and packet.public_key == self.identity.public_key
        return int(RoutingError.NONE if is_readable else RoutingError.NO_CHANNEL)

    def _take(self, packet: mesh_pb2.MeshPacket) -> None:
        self.packets.append(packet)
        data = packet.decoded
        if data.portnum == NODE_INFO:
            self.held_keys.pop(sender_of(packet), None)
        if data.portnum != TEXT:
            return
        self.inbox.append(
            HeardText(
                at=self.air.clock.now(),
                sender=sender_of(packet),
                to=packet.to,
                channel=packet.channel,
                packet_id=packet.id,
                payload=data.payload,
                reply_id=data.reply_id,
                is_tapback=data.emoji != 0,
                hops=packet.hop_start - packet.hop_limit,
            )
        )
        self._arrival.set()

    async def _acknowledge(self, packet: mesh_pb2.MeshPacket, error: int) -> None:
        error = error or self.acks.error
        if self.acks.delay_s:
            await self.air.clock.sleep(self.acks.delay_s)
        for _ in range(self.acks.copies):
            hops = packet.hop_start - packet.hop_limit
            routing = make_routing(
                self.number,
                sender_of(packet),
                packet.id,
                error,
                packet_id=self.air.new_packet_id(),
                hop_limit=min(self.hop_limit, hops + 2) if hops else 0,
            )
            self._transmitter.put(routing, Cause.ACK if error == RoutingError.NONE else Cause.NAK)
