"""The other nodes of the mesh, in the hands of tests and scripted people."""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Final

from meshtastic.protobuf import mesh_pb2

from meshai.errors import NotDelivered
from meshai.messages import BROADCAST, NodeNum
from meshai.sim.air import Air, Cause
from meshai.sim.identity import Identity, key_for
from meshai.sim.packets import (
    NODE_INFO,
    ROUTING,
    TEXT,
    RoutingError,
    hops_of,
    make_packet,
    routing_error,
    sender_of,
)
from meshai.sim.record import Record
from meshai.sim.station import RadioStation

ALL_CHANNELS: Final = frozenset(range(8))


@dataclass(frozen=True, slots=True)
class HeardText:
    """A text that reached a peer."""

    at: float
    """When it had been received, in Unix seconds of the mesh's clock."""
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
    """How a peer acks direct packets that want it."""

    copies: int = 1
    """0: acks are lost; 2: each is sent twice, as real nodes sometimes do."""
    delay_s: float = 0.0


class Peer(RadioStation):
    """A node of somebody else. Unless told otherwise it holds everyone's present key."""

    def __init__(
        self,
        air: Air,
        identity: Identity,
        *,
        distance: int,
        snr: float,
        hop_limit: int,
        channels: frozenset[int],
        battery_percent: int,
        position: tuple[float, float] | None,
    ) -> None:
        super().__init__(air, identity, hop_limit=hop_limit)
        self.distance = distance
        self.snr = snr
        """Relays between it and the client's node, and how well it is heard: what a node that met it remembers."""
        self.channels = channels
        self.battery_percent = battery_percent
        self.position = position
        self.acks = AckHabit()
        self.inbox: list[HeardText] = Record(air.keep_last)
        self.packets: list[mesh_pb2.MeshPacket] = Record(air.keep_last)
        """Everything received that was addressed to it or to all, texts included, repeats dropped."""
        self.unreadable: list[mesh_pb2.MeshPacket] = Record(air.keep_last)
        """Received but not decrypted."""
        self.relayed: list[int] = Record(air.keep_last)
        """Ids of its own packets that a relay was heard repeating."""
        self.undelivered: list[int] = Record(air.keep_last)
        """Ids of its own packets that nothing answered in three tries."""
        self._held_keys: dict[NodeNum, bytes] = {}
        self._refusals: deque[int] = deque()
        self._unread: deque[HeardText] = deque(maxlen=air.keep_last)
        self._arrival = asyncio.Event()

    def node_info(self) -> mesh_pb2.NodeInfo:
        """What a node that has met this peer remembers of it."""
        info = mesh_pb2.NodeInfo(
            num=self.number,
            user=self.identity.user,
            snr=self.snr,
            last_heard=int(self.air.clock.now()),
            hops_away=self.distance,
            device_metrics={"battery_level": self.battery_percent, "voltage": 3.7},
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
        want_response: bool = False,
        via_mqtt: bool = False,
    ) -> int:
        """Say something to everyone on a channel; returns the packet's id once it has been transmitted."""
        packet = self._text(BROADCAST, text, index, reply_id, emoji, packet_id, hop_limit)
        packet.want_ack = want_ack
        packet.decoded.want_response = want_response
        packet.via_mqtt = via_mqtt
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

    async def send_node_info(self, *, to: NodeNum = BROADCAST) -> int:
        """Tell name and key, as nodes do every few hours and when they are asked."""
        return await self.send_raw(self.node_info_packet(to), cause=Cause.NODE_INFO)

    async def send_raw(self, packet: mesh_pb2.MeshPacket, *, cause: Cause = Cause.PEER) -> int:
        """Transmit any packet as it is; returns its id when it has left the air."""
        await self.transmit_packet(packet, cause)
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

    async def heard(self, timeout_s: float | None = 120.0) -> HeardText:
        """The next text nobody has asked for yet, in order of arrival; TimeoutError when none comes."""
        async with self.air.clock.timeout(timeout_s):
            while not self._unread:
                self._arrival.clear()
                await self._arrival.wait()
        return self._unread.popleft()

    def answers_to(self, packet_id: int) -> list[int]:
        """The routing errors that came back for a packet of this peer; `[0]` is one ack."""
        return [
            routing_error(packet)
            for packet in self.packets
            if packet.decoded.portnum == ROUTING and packet.decoded.request_id == packet_id
        ]

    # Habits.

    def forget_key(self, number: NodeNum) -> None:
        """Lose a node's key until its node info comes: its direct messages are refused with PKI_UNKNOWN_PUBKEY."""
        self._held_keys[number] = b""

    def hold_stale_key(self, number: NodeNum) -> None:
        """Keep a key the node no longer uses: its direct messages are refused with NO_CHANNEL."""
        self._held_keys[number] = key_for(number, generation=-1)

    def refuse_next(self, error: int, count: int = 1) -> None:
        """Answer the next direct packets that want an ack with a nak."""
        self._refusals.extend([error] * count)

    # What the radio asks.

    def has_channel(self, index: int) -> bool:
        return index in self.channels

    def key_of(self, number: NodeNum) -> bytes:
        return self._held_keys.get(number, self.air.key_in_use(number))

    def introduce(self, to: NodeNum) -> None:
        self.send_packet(self.node_info_packet(to), Cause.NODE_INFO)

    def take(self, packet: mesh_pb2.MeshPacket) -> None:
        self.packets.append(packet)
        if packet.decoded.portnum == NODE_INFO:
            self._held_keys.pop(sender_of(packet), None)
        if packet.decoded.portnum == TEXT:
            self._keep_text(packet)

    def _keep_text(self, packet: mesh_pb2.MeshPacket) -> None:
        text = HeardText(
            at=self.air.clock.now(),
            sender=sender_of(packet),
            to=packet.to,
            channel=packet.channel,
            packet_id=packet.id,
            payload=packet.decoded.payload,
            reply_id=packet.decoded.reply_id,
            is_tapback=packet.decoded.emoji != 0,
            hops=hops_of(packet),
        )
        self.inbox.append(text)
        self._unread.append(text)
        self._arrival.set()

    def take_unreadable(self, packet: mesh_pb2.MeshPacket) -> None:
        self.unreadable.append(packet)

    def heard_relayed(self, packet: mesh_pb2.MeshPacket) -> None:
        self.relayed.append(packet.id)

    def gave_up(self, packet: mesh_pb2.MeshPacket) -> None:
        self.undelivered.append(packet.id)

    def left_queue(self, packet: mesh_pb2.MeshPacket, cause: Cause) -> None:
        """Nobody is told."""

    def acknowledge(self, packet: mesh_pb2.MeshPacket, error: int) -> None:
        if error == RoutingError.NONE and self._refusals and packet.decoded.portnum != ROUTING:
            error = self._refusals.popleft()
        for _ in range(self.acks.copies):
            if self.acks.delay_s:
                self.air.spawn(self._acknowledge_late(packet, error), f"late ack of {packet.id:08x}")
            else:
                super().acknowledge(packet, error)

    async def _acknowledge_late(self, packet: mesh_pb2.MeshPacket, error: int) -> None:
        await self.air.clock.sleep(self.acks.delay_s)
        super().acknowledge(packet, error)
