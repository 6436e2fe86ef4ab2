"""What all our interfaces of the library share: they report to a link, and do nothing by themselves.

Importing this module imports `meshtastic`, which starts a thread; a link does so on its own thread when it opens.
What the library does of its own accord is turned off here, because the radio does it better or must know of it:

- it reconnects silently and loses what is sent meanwhile: here its reader ends, and the link is rebuilt;
- it sends heartbeats from a thread that keeps the process alive: here the radio probes;
- it sends again what was not confirmed, and waits for ever when the node's queue is full: here frames are written
  directly and its queue stays empty;
- it waits for the configuration by the wall clock, and goes on waiting when the link has died: here the end of the
  link, or `interrupt`, ends the wait;
- it loses the frames behind a wrong length, prints tracebacks for corrupt ones, publishes device logs, and keeps
  every node and every port number ever heard: here frames are found again (`frames.py`), bad ones counted, logs
  dropped, and its tables bounded.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError
from meshtastic.mesh_interface import MeshInterface
from meshtastic.protobuf import mesh_pb2, portnums_pb2

from meshai.messages import BROADCAST, Direct, NodeNum, OutgoingPacket
from meshai.radio.base import OwnNode
from meshai.radio.frames import FrameFinder
from meshai.radio.packets import own_node_from

SILENCES: Final = 4
"""Reads without a byte until the rest of a frame is given up. Networks may hold back part of one for a second."""
NO_DESCRIPTION: Final = frozenset({None, "packet", "queueStatus", "log_record", "rebooted"})
MOST_NODES: Final = 2000
"""Nodes the library may hold. Forged senders would otherwise fill the memory, one packet at a time."""


class Reports(Protocol):
    """Whom an interface tells what happens. Called on the library's threads."""

    def attached(self, interface: "Interface") -> None: ...

    def configured(self, own: OwnNode) -> None: ...

    def queue_status(self, packet_id: int, res: int, free: int) -> None: ...

    def bad_frame(self, error: Exception) -> None: ...


class Interface:
    """What all our interfaces share; stands before a class of the library in the order of inheritance."""

    nodesByNum: dict[int, dict[str, Any]]
    isConnected: threading.Event
    close: Callable[[], None]

    def __init__(self, reports: Reports, *arguments: object, **options: object) -> None:
        self.reports = reports
        self.end_reason = ""
        self.is_interrupted = False
        self._settled = threading.Event()
        # Before the library's constructor, which returns only when packets may long have come.
        reports.attached(self)
        super().__init__(*arguments, **options)

    def send_text(self, packet: OutgoingPacket, *, sender: NodeNum, hop_limit: int) -> None:
        self._write(text_frame(packet, sender=sender, hop_limit=hop_limit))

    def send_heartbeat(self) -> None:
        """Ask the node for a sign of life; it answers with its queue status and uses no airtime."""
        self._write(mesh_pb2.ToRadio(heartbeat=mesh_pb2.Heartbeat()))

    def _write(self, frame: mesh_pb2.ToRadio) -> None:
        # The library drops without a word what is written to a link that is gone.
        if not self.isConnected.is_set():
            raise ConnectionError(self.end_reason or "the link is down")
        self._sendToRadioImpl(frame)  # type: ignore[attr-defined]

    def node_table(self) -> Mapping[int, object]:
        """What the library keeps of each node. A copy, for it adds some meanwhile; there is none before it connects."""
        return dict(getattr(self, "nodesByNum", None) or {})

    def interrupt(self) -> None:
        """Make whatever a thread is waiting for in this interface end. Called from another thread."""
        self.is_interrupted = True
        self._settled.set()

    def end(self, reason: str) -> None:
        """Remember why the link ended; the first reason is the true one."""
        self.end_reason = self.end_reason or reason

    def _own_node(self) -> OwnNode:
        me: Any = self
        number = int(me.myInfo.my_node_num)
        settings = me.localNode.localConfig
        lora = MessageToDict(settings.lora) if settings.HasField("lora") else None
        channels = [MessageToDict(channel) for channel in me.localNode.channels or ()]
        firmware = me.metadata.firmware_version if me.metadata is not None else ""
        return own_node_from(number, self.nodesByNum.get(number), lora, channels, firmware)

    described = 0
    """How many pieces of its configuration the node has told, which shows that a slow download goes on."""

    # Below: what the library calls, by its names.

    def _connected(self) -> None:
        if self.isConnected.is_set():
            return
        try:
            own = self._own_node()
        except AttributeError as error:
            self.end("the node did not describe itself")
            self.reports.bad_frame(error)
        else:
            # Reported on the reader's thread, so that no packet can be heard before it.
            self.reports.configured(own)
            super()._connected()  # type: ignore[misc]
        self._settled.set()

    def _disconnected(self) -> None:
        super()._disconnected()  # type: ignore[misc]
        self._settled.set()

    def _waitConnected(self, timeout: float = 0.0) -> None:
        self._settled.wait()
        if not self.isConnected.is_set():
            raise ConnectionError(self.end_reason or "the link ended before the configuration was complete")

    def waitForConfig(self) -> None:
        """Nothing: the configuration is complete, and what the node left out of it will not come."""

    def _startHeartbeat(self) -> None:
        """Nothing: the radio probes."""

    def _handleQueueStatusFromRadio(self, status: mesh_pb2.QueueStatus) -> None:
        self.reports.queue_status(status.mesh_packet_id, status.res, status.free)

    def _handleLogLine(self, line: str) -> None:
        """Nothing: the library would publish it from the wrong thread."""

    def _handleFromRadio(self, frame: bytes) -> None:
        try:
            said = mesh_pb2.FromRadio.FromString(frame)
            self.described += said.WhichOneof("payload_variant") not in NO_DESCRIPTION
            if said.rebooted:
                self.end("the node restarted")
                MeshInterface._disconnected(self)
            else:
                super()._handleFromRadio(frame)  # type: ignore[misc]
        except Exception as error:
            self.reports.bad_frame(error)

    def _handlePacketFromRadio(self, packet: mesh_pb2.MeshPacket, hack: bool = False) -> None:
        if not getattr(packet, "from"):
            self.reports.bad_frame(DecodeError("a packet from nobody"))
        elif packet.decoded.portnum in portnums_pb2.PortNum.values():
            super()._handlePacketFromRadio(packet, hack)  # type: ignore[misc]

    def _getOrCreateByNum(self, number: int) -> dict[str, Any]:
        me: Any = self
        if number not in self.nodesByNum and len(self.nodesByNum) >= MOST_NODES:
            oldest = min(
                (other for other in self.nodesByNum if other != me.myInfo.my_node_num),
                key=lambda other: self.nodesByNum[other].get("lastHeard") or 0,
            )
            del self.nodesByNum[oldest]
        if len(me.nodes) > MOST_NODES:
            me.nodes.clear()
        node: dict[str, Any] = super()._getOrCreateByNum(number)  # type: ignore[misc]
        return node


class StreamInterface(Interface, ABC):
    """One to which the node sends bytes, in which the frames have to be found."""

    def __init__(self, reports: Reports, *arguments: object, **options: object) -> None:
        self._finder = FrameFinder(is_from_radio)
        self._silences = 0
        super().__init__(reports, *arguments, **options)

    @abstractmethod
    def read_chunk(self) -> bytes:
        """What has come; nothing when none came for half a second. Raises ConnectionError when no more will come."""

    def _readBytes(self, length: int) -> None:
        """Called by the library's reader for each byte; we find the frames ourselves, and give it no bytes at all."""
        try:
            chunk = self.read_chunk()
        except Exception as error:
            self.end(str(error))
            # A wrong length may have kept back whole frames, and the node will not say again what is in them.
            self._take(self._finder.pause())
            raise
        self._silences = 0 if chunk else self._silences + 1
        self._take(self._finder.pause() if self._silences == SILENCES else self._finder.feed(chunk))

    def _take(self, frames: Iterator[bytes]) -> None:
        broken = self._finder.broken
        for frame in frames:
            self._handleFromRadio(frame)
        if self._finder.broken > broken:
            self.reports.bad_frame(DecodeError("bytes that are no frame"))


def is_from_radio(payload: bytes) -> bool:
    """Whether these bytes are something a node says."""
    try:
        mesh_pb2.FromRadio.FromString(payload)
    except DecodeError:
        return False
    return True


def text_frame(packet: OutgoingPacket, *, sender: NodeNum, hop_limit: int) -> mesh_pb2.ToRadio:
    """The frame that hands a text to the node."""
    address = packet.address
    frame = mesh_pb2.ToRadio()
    mesh_packet = frame.packet
    # The node overwrites the sender; but with none, it radios its rate-limit refusal to node 0 instead of telling us.
    setattr(mesh_packet, "from", sender)
    mesh_packet.id = packet.packet_id
    mesh_packet.channel = address.channel
    mesh_packet.hop_limit = hop_limit
    match address.destination:
        case Direct(number):
            mesh_packet.to = number
        case _:
            mesh_packet.to = BROADCAST
    mesh_packet.want_ack = packet.wants_ack
    mesh_packet.decoded.portnum = portnums_pb2.PortNum.TEXT_MESSAGE_APP
    mesh_packet.decoded.payload = packet.text.encode("utf-8", "replace")
    if address.reply_to is not None:
        mesh_packet.decoded.reply_id = address.reply_to
    if packet.is_tapback:
        mesh_packet.decoded.emoji = 1
    return frame
