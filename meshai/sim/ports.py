"""What a client attaches to: a TCP port that serves one client at a time, and a pseudo-terminal like a USB port."""

import asyncio
import os
import socket
import tty
from pathlib import Path
from typing import Final

from meshai.sim.firmware import Firmware
from meshai.sim.link import READ_BYTES, Connection, LinkConditions
from meshai.sim.phone import Phone
from meshai.sim.record import Record

RECEIVE_BUFFER: Final = 4096
"""Small, so that a client's writes stall soon when the node stops reading."""


class Ports:
    """The links of one node, and how they can fail."""

    def __init__(self, firmware: Firmware, *, idle_limit_s: float | None) -> None:
        self.firmware = firmware
        self.conditions = LinkConditions()
        self.connects: list[float] = Record(firmware.air.keep_last)
        """When a client attached over TCP, in Unix seconds of the mesh's clock; rivals are not counted."""
        self.peak_connections = 0
        """The most connections a client has had open at once."""
        self.tcp: Connection | None = None
        self.serial: Connection | None = None
        self._rivals: set[tuple[str, int]] = set()
        self.address: tuple[str, int] | None = None
        self._idle_limit_s = idle_limit_s
        self._server: asyncio.Server | None = None
        self._open: set[Connection] = set()
        self._pty: _Pty | None = None
        firmware.on_reboot = self._restart

    @property
    def open_connections(self) -> int:
        """TCP connections that a client has not closed yet, whatever the node thinks of them."""
        return sum(connection.is_held for connection in self._open)

    # TCP.

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Accept clients; returns the address, which stays the same when the port is closed and opened again."""
        # Named as TCP, which tells asyncio to send each frame at once instead of waiting for the last one's ack.
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        try:
            sock.bind((host, port))
            self._server = await asyncio.start_server(self._accept, sock=sock, limit=RECEIVE_BUFFER)
        except BaseException:
            sock.close()
            raise
        self.address = sock.getsockname()[:2]
        return self.address

    def stop_listening(self) -> None:
        """Refuse connections."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def listen_again(self) -> None:
        if self.address is not None and self._server is None:
            await self.listen(*self.address)

    def end_client(self) -> None:
        """Close the connection of the client there is."""
        if self.tcp is not None:
            self.tcp.end()

    def _restart(self) -> None:
        """The node boots anew: over TCP that ends the connection, on a serial line it is told."""
        self.end_client()
        if self.serial is not None:
            self.serial.restart()

    def reset_client(self) -> None:
        if self.tcp is not None:
            self.tcp.reset()

    def inject(self, wire: bytes) -> None:
        """Put bytes into the stream to the client, between frames."""
        for connection in (self.tcp, self.serial):
            if connection is not None and not connection.is_over:
                connection.inject(wire)

    async def visit(self, request: bytes) -> None:
        """Attach as another client would, taking the place, and stay until thrown out."""
        if self.address is None:
            return
        with socket.socket(socket.AF_INET6 if ":" in self.address[0] else socket.AF_INET) as sock:
            sock.setblocking(False)
            sock.bind((self.address[0], 0))
            self._rivals.add(sock.getsockname()[:2])
            loop = asyncio.get_running_loop()
            await loop.sock_connect(sock, self.address)
            await loop.sock_sendall(sock, request)
            while await loop.sock_recv(sock, READ_BYTES):
                pass

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None:  # closed while this one was being accepted
            writer.transport.abort()
            return
        self.end_client()
        is_rival = writer.get_extra_info("peername")[:2] in self._rivals
        self.tcp = self._connection(reader, writer, hangs_up=True)
        self.firmware.air.spawn(self._serve(self.tcp, is_rival=is_rival), "client over TCP")

    async def _serve(self, connection: Connection, *, is_rival: bool) -> None:
        if is_rival:
            await connection.serve()
            return
        self.connects.append(self.firmware.air.clock.now())
        self._open.add(connection)
        self.peak_connections = max(self.peak_connections, self.open_connections)
        try:
            await connection.serve()
        finally:
            self._open.discard(connection)

    def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, hangs_up: bool) -> Connection:
        return Connection(
            lambda: Phone(self.firmware),
            self.firmware.client,
            reader,
            writer,
            conditions=lambda: self.conditions,
            clock=self.firmware.air.clock,
            rng=self.firmware.air.rng,
            idle_limit_s=self._idle_limit_s if hangs_up else None,
            hangs_up=hangs_up,
        )

    # Serial.

    @property
    def serial_path(self) -> Path | None:
        """The terminal's own name at present; it may be another after a replug."""
        return self._pty.path if self._pty is not None else None

    async def plug_in(self, link: Path | None = None) -> Path:
        """Open a pseudo-terminal, reachable also by `link` if one is given; returns the path to use."""
        pty = await _Pty.open(link)
        self._pty = pty
        self.serial = self._connection(pty.reader, pty.writer, hangs_up=False)
        self.firmware.air.spawn(self._serve_serial(pty, self.serial), "client over serial")
        return link if link is not None else pty.path

    def unplug(self) -> Path | None:
        """Make the terminal vanish; returns its link, to plug in again at."""
        link = self._pty.link if self._pty is not None else None
        if self.serial is not None and self._pty is not None:
            self._pty.close()
            self.serial.end()
        self._pty = self.serial = None
        return link

    async def _serve_serial(self, pty: "_Pty", connection: Connection) -> None:
        try:
            await connection.serve()
        finally:
            pty.close()

    def close(self) -> None:
        """Stop for good."""
        self.stop_listening()
        self.end_client()
        self.unplug()


class _Pty:
    """A pseudo-terminal as a USB serial port. We keep its far end open, as a port has no notion of being opened."""

    def __init__(
        self,
        slave: int,
        link: Path | None,
        reading: asyncio.ReadTransport,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.path = Path(os.ttyname(slave))
        self.link = link
        self.reader = reader
        self.writer = writer
        self._reading = reading
        self._slave: int | None = slave

    @classmethod
    async def open(cls, link: Path | None) -> "_Pty":
        loop = asyncio.get_running_loop()
        master, slave = os.openpty()
        tty.setraw(slave)
        reader = asyncio.StreamReader(limit=READ_BYTES)
        reading, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.dup(master), "rb", buffering=0)
        )
        writing, flow = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(master, "wb", buffering=0)
        )
        pty = cls(slave, link, reading, reader, asyncio.StreamWriter(writing, flow, reader, loop))
        if link is not None:
            _point(link, pty.path)
        return pty

    def close(self) -> None:
        if self._slave is None:
            return
        if not self.writer.transport.is_closing():
            self.writer.transport.abort()
        self._reading.close()
        os.close(self._slave)
        self._slave = None
        if self.link is not None and self.link.is_symlink() and self.link.readlink() == self.path:
            self.link.unlink()


def _point(link: Path, target: Path) -> None:
    """Make a symbolic link, replacing an older one at once."""
    fresh = link.with_name(link.name + ".new")
    fresh.symlink_to(target)
    fresh.replace(link)
