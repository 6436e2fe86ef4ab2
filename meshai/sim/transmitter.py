"""A node's transmit queue: sixteen packets by priority, sent one at a time as long as each takes on air.

Before each the node waits a random number of slots: few for its own on a quiet channel, more for a relay, and the more
the better it heard the packet, so that those far from the sender relay first. The wait begins anew after everything
that is heard meanwhile.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from meshtastic.protobuf import mesh_pb2

from meshai.messages import NodeNum
from meshai.sim.air import Air, Cause, Station
from meshai.sim.ledger import FULL_CONTENTION, IDLE_CONTENTION, AirtimeLedger
from meshai.sim.packets import ROUTING, TEXT, Priority, frame_bytes, sender_of

CAPACITY: Final = 16
RELAY_SLOTS: Final = 16
"""A relay lets those with something of their own go first (firmware `RadioInterface.cpp`)."""
WORST_SNR: Final = -20
BEST_SNR: Final = 10
"""Where a relay's contention window is narrowest and widest (firmware `RadioInterface.cpp`)."""
PRIORITIES: Final = {ROUTING: Priority.ACK, TEXT: Priority.HIGH}
"""Of packets that do not say; DEFAULT for all others."""


@dataclass(frozen=True, slots=True, eq=False)
class _Queued:
    packet: mesh_pb2.MeshPacket
    cause: Cause
    heard_snr: float
    """How well a packet to relay was heard."""
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it has been sent, or will never be."""


class Transmitter:
    """`left_queue` is called whenever a packet goes from the queue on air."""

    def __init__(
        self,
        air: Air,
        station: Station,
        ledger: AirtimeLedger,
        left_queue: Callable[[mesh_pb2.MeshPacket, Cause], None],
    ) -> None:
        self._air = air
        self._station = station
        self._ledger = ledger
        self._left_queue = left_queue
        self._queue: list[_Queued] = []
        self._wake = asyncio.Event()
        self._is_stalled = False

    @property
    def free(self) -> int:
        return CAPACITY - len(self._queue)

    @property
    def is_spent(self) -> bool:
        """Whether the node has used up what the region allows it in an hour."""
        return self._ledger.own_s >= self._air.duty_cycle_s

    def put(self, packet: mesh_pb2.MeshPacket, cause: Cause, *, heard_snr: float = 0.0) -> bool:
        """Queue a packet; when full it replaces the least urgent one if that is less urgent, else it is refused."""
        return self._enqueue(_Queued(packet, cause, heard_snr))

    def holds(self, sender: NodeNum, packet_id: int) -> bool:
        """Whether a packet still waits to be transmitted."""
        return any(queued.packet.id == packet_id and sender_of(queued.packet) == sender for queued in self._queue)

    async def send(self, packet: mesh_pb2.MeshPacket, cause: Cause) -> bool:
        """Queue a packet and wait until it has left the air, or was taken back; False if there was no room."""
        queued = _Queued(packet, cause, heard_snr=0.0)
        is_queued = self._enqueue(queued)
        if is_queued:
            await queued.left.wait()
        return is_queued

    def cancel(self, sender: NodeNum, packet_id: int) -> None:
        """Take back what has not been transmitted yet."""
        for queued in list(self._queue):
            if queued.packet.id == packet_id and sender_of(queued.packet) == sender:
                self._drop(queued)

    def clear(self) -> None:
        """Forget all that waits, as a reboot does."""
        for queued in list(self._queue):
            self._drop(queued)

    def stall(self) -> None:
        """Send nothing more, as on a channel that never falls silent, so that the queue fills."""
        self._is_stalled = True

    def resume(self) -> None:
        self._is_stalled = False
        self._wake.set()

    async def run(self) -> None:
        """Send what is queued, for ever."""
        while True:
            while not self._queue or self._is_stalled:
                self._wake.clear()
                await self._wake.wait()
            queued = self._first()
            began = await self._turn(queued)
            if began is None:
                continue
            self._queue.remove(queued)
            self._left_queue(queued.packet, queued.cause)
            self._ledger.sent(self._air.modem.airtime_s(frame_bytes(queued.packet)))
            await self._air.transmit(queued.packet, by=self._station, cause=queued.cause, began=began)
            queued.left.set()

    def _first(self) -> _Queued:
        return max(self._queue, key=lambda entry: _priority(entry.packet))

    async def _turn(self, queued: _Queued) -> float | None:
        """Wait for a packet's turn, and return its moment; None if something was heard or another is to go first."""
        channel = self._air.channel
        since = await channel.until_clear(self._station.number)
        at = since + self._slots(queued) * self._air.modem.slot_s
        await channel.turn(at)
        if self._is_stalled or not self._queue or self._first() is not queued:
            return None
        return None if channel.has_stirred(self._station.number, since, at) else at

    def _slots(self, queued: _Queued) -> int:
        rng = self._air.rng
        if queued.cause is not Cause.RELAY:
            return rng.randrange(2**self._ledger.contention)
        window = _relay_contention(queued.heard_snr)
        if self._station.identity.relays_first:
            return rng.randrange(2 * window)
        return RELAY_SLOTS + rng.randrange(2**window)

    def _enqueue(self, queued: _Queued) -> bool:
        if self.free == 0:
            last = min(reversed(self._queue), key=lambda entry: _priority(entry.packet))
            if _priority(last.packet) >= _priority(queued.packet):
                return False
            self._drop(last)
        self._queue.append(queued)
        self._wake.set()
        return True

    def _drop(self, queued: _Queued) -> None:
        self._queue.remove(queued)
        queued.left.set()


def _priority(packet: mesh_pb2.MeshPacket) -> int:
    """Unset, as in a packet to relay, it follows from the contents (firmware `MeshPacketQueue.cpp`)."""
    if packet.priority != Priority.UNSET:
        return int(packet.priority)
    if packet.pki_encrypted and packet.want_ack:  # a relay cannot see what is in it
        return int(Priority.RELIABLE)
    return int(PRIORITIES.get(packet.decoded.portnum, Priority.DEFAULT))


def _relay_contention(snr: float) -> int:
    share = (max(WORST_SNR, min(BEST_SNR, int(snr))) - WORST_SNR) / (BEST_SNR - WORST_SNR)
    return IDLE_CONTENTION + int(share * (FULL_CONTENTION - IDLE_CONTENTION))
