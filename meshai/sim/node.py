"""A simulated node with the ports a client attaches to."""

import asyncio
import socket
from typing import Final

from meshai.messages import NodeNum
from meshai.sim.air import Air
from meshai.sim.firmware import Firmware
from meshai.sim.identity import Identity
from meshai.sim.link import Connection, LinkConditions
from meshai.sim.phone import Phone

IDLE_LIMIT_S: Final = 900.0
RECEIVE_BUFFER: Final = 4096
"""Small, so that a client's writes stall soon when the node stops reading."""


class SimulatedNode:
    """The node a bot or an app is attached to. One client at a time: a new one ends the old one's connection."""

    def __init__(
        self,
        air: Air,
        identity: Identity,
        *,
        channels: tuple[str, ...] = ("",),
        hop_limit: int = 3,
        idle_limit_s: float | None = IDLE_LIMIT_S,
    ) -> None:
        self.air = air
        self.firmware = Firmware(air, identity, channels=channels, hop_limit=hop_limit)
        self.conditions = LinkConditions()
        self.connects: list[float] = []
        """When a client attached, in Unix seconds of the mesh's clock."""
        self._idle_limit_s = idle_limit_s
        self._server: asyncio.Server | None = None
        self._connections: set[Connection] = set()
        self._current: asyncio.Task[None] | None = None
        air.attach(self.firmware)
        air.center = self.number
        air.spawn(self.firmware.transmitter.run(), "transmitter of the node")
        air.spawn(self.firmware.tell_metrics(), "telemetry of the node")

    @property
    def number(self) -> NodeNum:
        return self.firmware.number

    @property
    def open_connections(self) -> int:
        """Connections a client has open now."""
        return len(self._connections)

    async def close(self) -> None:
        """Stop accepting clients and end the connections there are."""
        if self._server is not None:
            self._server.close()
        if self._current is not None:
            self._current.cancel()

    async def listen_tcp(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Accept clients over TCP; returns the port."""
        sock = socket.create_server((host, port))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        self._server = await asyncio.start_server(self._accept, sock=sock, limit=RECEIVE_BUFFER)
        return int(sock.getsockname()[1])

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._current is not None:
            self._current.cancel()
        self.connects.append(self.air.clock.now())
        self._current = self.air.spawn(self._serve(reader, writer), "client over TCP")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(
            Phone(self.firmware),
            self.firmware.client,
            reader,
            writer,
            conditions=self.conditions,
            clock=self.air.clock,
            rng=self.air.rng,
            idle_limit_s=self._idle_limit_s,
        )
        self._connections.add(connection)
        try:
            await connection.serve()
        finally:
            self._connections.discard(connection)
