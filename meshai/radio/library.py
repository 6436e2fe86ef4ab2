"""The library's ways to a node, and its thread.

Importing this module imports `meshtastic`, which starts a thread; a link does so on its own thread when it opens.
"""

import logging
import selectors
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Final

from meshtastic import publishingThread
from meshtastic.serial_interface import SerialInterface
from meshtastic.tcp_interface import TCPInterface

from meshai.entries import BleAddress, RadioAddress, SerialAddress, TcpAddress
from meshai.errors import RadioError
from meshai.radio.discovery import serial_ports
from meshai.radio.interface import Interface, Reports, StreamInterface

log = logging.getLogger(__name__)

CONNECT_S: Final = 10.0
"""Longest wait for a TCP connection, in the machine's seconds."""
PUBLISHING_S: Final = 2.0
"""Longest wait for the library's publishing thread."""
CHUNK_BYTES: Final = 4096
SILENCE_S: Final = 0.5
"""How long one read waits; the library opens serial ports with the same."""


class TcpLink(StreamInterface, TCPInterface):  # type: ignore[misc]
    """A node on the network."""

    def interrupt(self) -> None:
        super().interrupt()
        try:
            self._socket_shutdown()
        except OSError:
            log.debug("the socket was down already")

    def myConnect(self) -> None:
        """Connect with a limit, with the socket known from the start so that `interrupt` can reach it."""
        problem: OSError = ConnectionError("interrupted")
        for family, kind, protocol, _, where in socket.getaddrinfo(
            self.hostname, self.portNumber, type=socket.SOCK_STREAM
        ):
            connection = socket.socket(family, kind, protocol)
            self.socket: socket.socket | None = connection
            try:
                if self.is_interrupted:
                    break
                connection.settimeout(CONNECT_S)
                connection.connect(where)
                connection.settimeout(None)
                notice_silence(connection)
            except OSError as error:
                problem = error
            else:
                return
            connection.close()
        self.socket = None
        raise problem

    def read_chunk(self) -> bytes:
        connection = self.socket
        if connection is not None:
            with selectors.DefaultSelector() as selector:
                selector.register(connection, selectors.EVENT_READ)
                if not selector.select(SILENCE_S):
                    return b""
        # Without a socket the library ends its reader; at the end of the stream it calls `_reconnect`.
        return TCPInterface._readBytes(self, CHUNK_BYTES) or b""

    def _reconnect(self) -> None:
        raise ConnectionError("the node closed the connection")


def notice_silence(connection: socket.socket) -> None:
    """Have the system give up on a peer that acknowledges nothing, and send small frames at once."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 30),
        ("TCP_KEEPINTVL", 10),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 30_000),
    ):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class SerialLink(StreamInterface, SerialInterface):  # type: ignore[misc]
    """A node on a serial port."""

    def interrupt(self) -> None:
        super().interrupt()
        if (stream := self.stream) is not None:
            try:
                stream.cancel_read()
                stream.cancel_write()
            except (OSError, AttributeError, TypeError):
                log.debug("the port was closed already")

    def read_chunk(self) -> bytes:
        stream = self.stream
        if stream is None:
            raise ConnectionError("the serial port is closed")
        try:
            first: bytes = stream.read(1)
            return first + stream.read(stream.in_waiting) if first else b""
        except Exception as error:
            raise ConnectionError(f"the serial port is gone ({error})") from error


def open_interface(
    endpoint: RadioAddress, reports: Reports, *, without_nodes: bool, find_ports: Callable[[], Sequence[str]] | None
) -> Interface:
    """Connect and download the node's configuration. Blocks; `interrupt` of the attached interface ends it."""
    if (library_log := logging.getLogger("meshtastic")).level == logging.NOTSET:
        # What it logs as errors (corrupt frames, lost links, texts that are not UTF-8) the radio counts and reports;
        # at its debug level it logs all it receives, the node's private key included.
        library_log.setLevel(logging.CRITICAL)
    match endpoint:
        case TcpAddress(host, port):
            return TcpLink(reports, host, portNumber=port, noNodes=without_nodes)
        case SerialAddress(path):
            return SerialLink(reports, path or the_only(find_ports or serial_ports), noNodes=without_nodes)
        case BleAddress(device):
            from meshai.radio.ble import BleLink  # needs the `ble` extra

            return BleLink(reports, device, noNodes=without_nodes)


def the_only(find_ports: Callable[[], Sequence[str]]) -> str:
    """The one port a radio is on; which is asked anew at each attempt, for its name changes when it is replugged."""
    match list(find_ports()):
        case []:
            raise RadioError("no radio found on any USB port; plug it in, or set radio.address to its port")
        case [port]:
            return port
        case ports:
            raise RadioError(f"several serial ports found ({', '.join(ports)}); set radio.address to one of them")


def on_publishing_thread(action: Callable[[], None]) -> None:
    """Run this where the library runs all listeners: subscribing is not safe anywhere else.

    Returns when it is done, and thereby after everything published before it.
    """
    done = threading.Event()
    failures: list[Exception] = []

    def run() -> None:
        try:
            action()
        except Exception as error:
            failures.append(error)
        finally:
            done.set()

    publishingThread.queueWork(run)
    if not done.wait(PUBLISHING_S):
        raise RadioError("the library's publishing thread does not answer; another listener holds it up")
    if failures:
        raise failures[0]
