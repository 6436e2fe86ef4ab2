"""A node's transmit queue: sixteen packets by priority, sent one at a time as long as each takes on air."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from meshtastic.protobuf import mesh_pb2

from meshai.sim.air import IDLE_CONTENTION, Air, Cause, Station
from meshai.sim.packets import TEXT, Priority, frame_bytes

CAPACITY: Final = 16
HOUR_S: Final = 3600.0
MINUTE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class _Queued:
    packet: mesh_pb2.MeshPacket
    cause: Cause


class Transmitter:
    """`on_sent` is called when a packet has left the air."""

    def __init__(
        self,
        air: Air,
        station: Station,
        on_sent: Callable[[mesh_pb2.MeshPacket, Cause], None] = lambda packet, cause: None,
    ) -> None:
        self._air = air
        self._station = station
        self._on_sent = on_sent
        self._queue: list[_Queued] = []
        self._wake = asyncio.Event()
        self._spent: list[tuple[float, float]] = []
        self.is_stalled = False
        """True: queued packets stay queued, as on a channel that never falls silent."""

    @property
    def free(self) -> int:
        return CAPACITY - len(self._queue)

    def spent_s(self, window_s: float) -> float:
        """Airtime used in the last `window_s` seconds."""
        since = self._air.clock.monotonic() - window_s
        return sum(airtime for at, airtime in self._spent if at > since)

    def minutes_until_below(self, limit_s: float) -> int:
        """Whole minutes until the airtime of the last hour has fallen below `limit_s`."""
        now = self._air.clock.monotonic()
        for minutes in range(1, 60):
            since = now + 60 * minutes - HOUR_S
            if sum(airtime for at, airtime in self._spent if at > since) < limit_s:
                return minutes
        return 60

    def spend(self, airtime_s: float) -> None:
        """Account for airtime, also for some that was used before the simulation began."""
        now = self._air.clock.monotonic()
        self._spent = [entry for entry in self._spent if entry[0] > now - HOUR_S]
        self._spent.append((now, airtime_s))

    def put(self, packet: mesh_pb2.MeshPacket, cause: Cause) -> bool:
        """Queue a packet; when full it replaces the least urgent one if that is less urgent, else it is refused."""
        if self.free == 0:
            last = min(reversed(self._queue), key=lambda queued: _priority(queued.packet))
            if _priority(last.packet) >= _priority(packet):
                return False
            self._queue.remove(last)
        self._queue.append(_Queued(packet, cause))
        self._wake.set()
        return True

    def cancel(self, packet_id: int) -> None:
        """Take back what has not been transmitted yet."""
        self._queue = [queued for queued in self._queue if queued.packet.id != packet_id]

    def clear(self) -> None:
        self._queue.clear()

    def stall(self, *, is_stalled: bool) -> None:
        self.is_stalled = is_stalled
        self._wake.set()

    async def run(self) -> None:
        """Send what is queued, for ever."""
        while True:
            while not self._queue or self.is_stalled:
                self._wake.clear()
                await self._wake.wait()
            slots = self._air.rng.randrange(2**IDLE_CONTENTION)
            await self._air.clock.sleep(slots * self._air.modem.slot_s)
            if not self._queue or self.is_stalled:
                continue
            queued = max(self._queue, key=lambda entry: _priority(entry.packet))
            self._queue.remove(queued)
            self.spend(self._air.modem.airtime_s(frame_bytes(queued.packet)))
            await self._air.transmit(queued.packet, by=self._station, cause=queued.cause)
            self._on_sent(queued.packet, queued.cause)


def _priority(packet: mesh_pb2.MeshPacket) -> int:
    """Unset means HIGH for a text, ACK stays ACK, DEFAULT for the rest (firmware `MeshPacketQueue.cpp`)."""
    if packet.priority != Priority.UNSET:
        return int(packet.priority)
    return int(Priority.HIGH if packet.decoded.portnum == TEXT else Priority.DEFAULT)
