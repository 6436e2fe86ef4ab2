"""What a station relays, and the way it has learned to others: managed flooding and next-hop routing.

A station relays a packet once, and not when it hears another do so before its turn has come, unless its role is to
relay always. A packet its originator sends again is relayed again. A direct packet may name its next hop, which alone
relays it; who that is shows in acks: whoever relayed both a packet and its ack lies on the way. When the next hop is
not heard relaying, the packet is sent once more for anybody to relay (firmware `NextHopRouter.cpp`).
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from meshtastic.protobuf import mesh_pb2

from meshai.messages import NodeNum
from meshai.sim.air import Air, Cause, Station
from meshai.sim.packets import copy_of, frame_bytes, hops_of, is_broadcast, relay_byte, sender_of
from meshai.sim.transmitter import Transmitter

REMEMBERED: Final = 256
"""How many packets a node knows the relays of."""
ANYBODY: Final = 0


@dataclass(slots=True)
class _Trace:
    """What has been heard of one packet."""

    next_hop: int = ANYBODY
    """Whom the last copy heard was for."""
    relays: set[int] = field(default_factory=set)
    """Who transmitted it, ourselves and its originator included."""
    passed_on: asyncio.Event = field(default_factory=asyncio.Event)
    """The next hop we named has relayed it, or its destination has acked it."""
    again_at: float = 0.0
    """When we relay it once more if that does not happen."""


class Routing:
    """For one station; it is told of every packet sent and heard."""

    def __init__(self, air: Air, station: Station, transmitter: Transmitter) -> None:
        self.next_hops: dict[NodeNum, int] = {}
        """Who is to relay packets for a destination, by the last byte of its number."""
        self._air = air
        self._station = station
        self._transmitter = transmitter
        self._traces: OrderedDict[tuple[NodeNum, int], _Trace] = OrderedDict()
        self._insisting: dict[asyncio.Task[None], tuple[int, _Trace]] = {}
        """Packets, by their id too, of which the next hop has not been heard yet."""

    @property
    def _me(self) -> int:
        return relay_byte(self._station.number)

    def depart(self, packet: mesh_pb2.MeshPacket) -> None:
        """Address a packet of our own that is about to be sent."""
        packet.next_hop = ANYBODY if is_broadcast(packet) else self.next_hops.get(packet.to, ANYBODY)
        self._trace(packet).relays.add(self._me)

    def flood(self, packet: mesh_pb2.MeshPacket) -> None:
        """The way to a packet's destination has proved wrong: forget it, and let anybody relay."""
        packet.next_hop = ANYBODY
        self.next_hops.pop(packet.to, None)

    def heard(self, packet: mesh_pb2.MeshPacket) -> None:
        """Learn from a packet, and relay it if that is ours to do."""
        key = (sender_of(packet), packet.id)
        is_new = key not in self._traces
        trace = self._trace(packet)
        is_fallback = not is_new and trace.next_hop not in (ANYBODY, self._me) and packet.next_hop == ANYBODY
        self._learn(packet)
        if packet.relay_node in (self.next_hops.get(packet.to), relay_byte(packet.to)):
            trace.passed_on.set()
        was_asked = trace.next_hop == self._me
        trace.next_hop = packet.next_hop
        trace.relays.add(packet.relay_node)
        if self._station.number in (key[0], packet.to):
            return
        if is_new:
            self._relay(packet, trace)
        elif hops_of(packet) == 0 or is_fallback:  # nobody has relayed it in our place
            if not self._transmitter.holds(*key):
                self._relay(packet, trace)
        elif not was_asked and not self._station.identity.relays_always:
            self._transmitter.cancel(*key)

    def postpone(self, packet_id: int, airtime_s: float) -> None:
        """The next hop of others cannot be heard while this packet is on air."""
        for other_id, trace in self._insisting.values():
            if other_id != packet_id:
                trace.again_at += airtime_s

    def forget(self) -> None:
        """Lose what a reboot loses."""
        for task in list(self._insisting):
            task.cancel()
        self._traces.clear()
        self.next_hops.clear()

    def _trace(self, packet: mesh_pb2.MeshPacket) -> _Trace:
        trace = self._traces.setdefault((sender_of(packet), packet.id), _Trace())
        if len(self._traces) > REMEMBERED:
            self._traces.popitem(last=False)
        return trace

    def _learn(self, packet: mesh_pb2.MeshPacket) -> None:
        """An ack or answer, if we can read it, tells about the way of the packet it is for."""
        data = packet.decoded
        answered = data.request_id or data.reply_id
        if not answered or is_broadcast(packet) or (packet.pki_encrypted and packet.to != self._station.number):
            return
        original = self._traces.get((packet.to, answered))
        if original is None:
            return
        original.passed_on.set()
        if packet.to != self._station.number:
            self._transmitter.cancel(packet.to, answered)
        is_on_the_way = {self._me, packet.relay_node} <= original.relays
        is_neighbour = hops_of(packet) == 0 and original.relays == {self._me}
        if is_on_the_way or is_neighbour:
            self.next_hops[sender_of(packet)] = packet.relay_node

    def _relay(self, packet: mesh_pb2.MeshPacket, trace: _Trace) -> None:
        is_ours_to_relay = self._station.is_relaying and packet.next_hop in (ANYBODY, self._me)
        if packet.hop_limit == 0 or not is_ours_to_relay or self._transmitter.is_spent:
            return
        relayed = copy_of(packet)
        relayed.hop_limit -= 1
        relayed.relay_node = self._me
        relayed.next_hop = ANYBODY if is_broadcast(packet) else self.next_hops.get(packet.to, ANYBODY)
        if relayed.next_hop == packet.relay_node:  # never back
            relayed.next_hop = ANYBODY
        for name in ("rx_snr", "rx_rssi", "rx_time", "priority"):  # not on air
            relayed.ClearField(name)
        if not self._transmitter.put(relayed, Cause.RELAY, heard_snr=packet.rx_snr):
            return
        trace.relays.add(self._me)
        if relayed.next_hop != ANYBODY and relayed.hop_limit > 0:
            task = self._air.spawn(self._insist(relayed, trace, packet.rx_snr), f"second relay of {packet.id:08x}")
            self._insisting[task] = packet.id, trace
            task.add_done_callback(self._insisting.pop)

    async def _insist(self, packet: mesh_pb2.MeshPacket, trace: _Trace, heard_snr: float) -> None:
        """Relay a packet once more, for anybody to carry on, if its next hop does not."""
        clock = self._air.clock
        trace.passed_on.clear()
        again = copy_of(packet)
        trace.again_at = clock.monotonic() + self._air.modem.resend_wait_s(frame_bytes(packet))
        while (left_s := trace.again_at - clock.monotonic()) > 0:
            try:
                async with clock.timeout(left_s):
                    await trace.passed_on.wait()
            except TimeoutError:
                continue
            return
        self.flood(again)
        self._transmitter.put(again, Cause.RELAY, heard_snr=heard_snr)
