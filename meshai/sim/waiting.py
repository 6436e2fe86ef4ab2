"""What waits in a node until its client takes it."""

import asyncio
from collections import deque
from typing import Final

from meshtastic.protobuf import mesh_pb2

from meshai.sim.packets import TEXT

PACKETS: Final = 32
"""On small boards; 100 on Linux, 8 on the oldest ones."""
STATUSES: Final = 2


class ClientQueue:
    """Packets in order, and the two newest each of queue statuses and notifications. All is lost in a reboot."""

    def __init__(self, capacity: int = PACKETS) -> None:
        self.capacity = capacity
        self.changed = asyncio.Event()
        self._packets: deque[mesh_pb2.MeshPacket] = deque()
        self._statuses: deque[mesh_pb2.QueueStatus] = deque(maxlen=STATUSES)
        self._notifications: deque[mesh_pb2.ClientNotification] = deque(maxlen=STATUSES)

    def __len__(self) -> int:
        return len(self._packets)

    def put(self, packet: mesh_pb2.MeshPacket) -> None:
        """When full, a text pushes out the oldest packet and anything else is dropped (firmware `MeshService`)."""
        if len(self._packets) >= self.capacity:
            if packet.decoded.portnum != TEXT:
                return
            self._packets.popleft()
        self._packets.append(packet)
        self.changed.set()

    def put_status(self, status: mesh_pb2.QueueStatus) -> None:
        self._statuses.append(status)
        self.changed.set()

    def notify(self, notification: mesh_pb2.ClientNotification) -> None:
        self._notifications.append(notification)
        self.changed.set()

    def take(self) -> mesh_pb2.FromRadio | None:
        """The next thing to say: queue statuses first, packets last."""
        if self._statuses:
            return mesh_pb2.FromRadio(queueStatus=self._statuses.popleft())
        if self._notifications:
            return mesh_pb2.FromRadio(clientNotification=self._notifications.popleft())
        if self._packets:
            return mesh_pb2.FromRadio(packet=self._packets.popleft())
        return None

    def clear(self) -> None:
        self._packets.clear()
        self._statuses.clear()
        self._notifications.clear()
