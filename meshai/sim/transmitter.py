"""A node's transmit queue: sixteen packets by priority, sent one at a time as long as each takes on air."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from meshtastic.protobuf import mesh_pb2

from meshai.sim.air import IDLE_CONTENTION, Air, Cause, Station
from meshai.sim.ledger import AirtimeLedger
from meshai.sim.packets import TEXT, Priority, frame_bytes

CAPACITY: Final = 16


@dataclass(frozen=True, slots=True, eq=False)
class _Queued:
    packet: mesh_pb2.MeshPacket
    cause: Cause
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

    def put(self, packet: mesh_pb2.MeshPacket, cause: Cause) -> bool:
        """Queue a packet; when full it replaces the least urgent one if that is less urgent, else it is refused."""
        return self._enqueue(_Queued(packet, cause))

    async def send(self, packet: mesh_pb2.MeshPacket, cause: Cause) -> bool:
        """Queue a packet and wait until it has left the air, or was taken back; False if there was no room."""
        queued = _Queued(packet, cause)
        is_queued = self._enqueue(queued)
        if is_queued:
            await queued.left.wait()
        return is_queued

    def cancel(self, packet_id: int) -> None:
        """Take back what has not been transmitted yet."""
        for queued in [queued for queued in self._queue if queued.packet.id == packet_id]:
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
            await self._air.clock.sleep(self._air.rng.randrange(2**IDLE_CONTENTION) * self._air.modem.slot_s)
            if not self._queue or self._is_stalled:
                continue
            queued = max(self._queue, key=lambda entry: _priority(entry.packet))
            self._queue.remove(queued)
            self._left_queue(queued.packet, queued.cause)
            self._ledger.sent(self._air.modem.airtime_s(frame_bytes(queued.packet)))
            await self._air.transmit(queued.packet, by=self._station, cause=queued.cause)
            queued.left.set()

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
    """Unset means HIGH for a text and DEFAULT for the rest (firmware `MeshPacketQueue.cpp`)."""
    if packet.priority != Priority.UNSET:
        return int(packet.priority)
    return int(Priority.HIGH if packet.decoded.portnum == TEXT else Priority.DEFAULT)
