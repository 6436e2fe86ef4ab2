"""A simulated mesh, and the real library attached to it in a thread of its own."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from meshtastic.serial_interface import SerialInterface
from meshtastic.tcp_interface import TCPInterface
from pubsub import pub

from meshai.clock import ScaledClock
from meshai.sim.mesh import SimulatedMesh

SPEED = 50.0


class Client:
    """The `meshtastic` library as a program uses it: it connects, hears by pubsub and sends."""

    def __init__(self, clock: ScaledClock) -> None:
        self.packets: list[dict[str, Any]] = []
        self.notifications: list[Any] = []
        self.interface: Any = None
        self._clock = clock

    def on_packet(self, packet: dict[str, Any], interface: Any) -> None:
        if interface is self.interface or self.interface is None:
            self.packets.append(packet)

    def on_notification(self, notification: Any, interface: Any) -> None:
        self.notifications.append(notification)

    async def connect(self, build: Callable[[], Any]) -> None:
        pub.subscribe(self.on_packet, "meshtastic.receive")
        pub.subscribe(self.on_notification, "meshtastic.clientNotification")
        self.interface = await asyncio.to_thread(build)

    async def close(self) -> None:
        pub.unsubscribe(self.on_packet, "meshtastic.receive")
        pub.unsubscribe(self.on_notification, "meshtastic.clientNotification")
        if self.interface is not None:
            await asyncio.to_thread(self.interface.close)

    async def send(self, text: str, **options: Any) -> Any:
        return await asyncio.to_thread(self.interface.sendText, text, **options)

    def texts(self) -> list[str]:
        return [packet["decoded"]["text"] for packet in self.packets if "text" in packet.get("decoded", {})]

    def routings(self, packet_id: int) -> list[tuple[int, str]]:
        """Who answered a packet, and with which error, in order."""
        return [
            (packet["from"], packet["decoded"]["routing"]["errorReason"])
            for packet in self.packets
            if packet.get("decoded", {}).get("requestId") == packet_id and "routing" in packet["decoded"]
        ]

    async def until(self, condition: Callable[[], Any], seconds: float = 120.0) -> None:
        """Wait until something has become true; TimeoutError if it does not in `seconds` of the mesh's time."""
        async with self._clock.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.002)


@pytest.fixture
def clock() -> ScaledClock:
    return ScaledClock(SPEED)


@pytest.fixture
async def mesh(clock: ScaledClock) -> AsyncIterator[SimulatedMesh]:
    async with SimulatedMesh(clock=clock, rng=random.Random(7)) as simulated:
        yield simulated


@pytest.fixture
def attach(clock: ScaledClock) -> Callable[..., Any]:
    """`async with attach(port=...) as client` or `attach(path=...)`: the library on TCP or on a serial port."""

    @asynccontextmanager
    async def attached(*, port: int = 0, path: str = "", **options: Any) -> AsyncIterator[Client]:
        client = Client(clock)
        try:
            if path:
                await client.connect(lambda: SerialInterface(path, **options))
            else:
                await client.connect(lambda: TCPInterface("127.0.0.1", portNumber=port, **options))
            yield client
        finally:
            await client.close()

    return attached
