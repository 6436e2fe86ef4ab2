"""The client API of a node, for one connection: which packets it accepts, and what it says next.

The name is the firmware's (`PhoneAPI`). It knows nothing of bytes on a wire: frames come in decoded, messages go out
one at a time whenever the link can take one.
"""

import logging
from collections import deque
from collections.abc import Iterator
from typing import Final

from google.protobuf.message import DecodeError
from meshtastic.protobuf import mesh_pb2

from meshai.messages import KEY_BYTES
from meshai.sim.admin import answer_admin
from meshai.sim.firmware import Firmware
from meshai.sim.packets import (
    ADMIN,
    ALERT,
    POSITION,
    TELEMETRY,
    TEXT,
    TRACEROUTE,
    WAYPOINT,
)
from meshai.sim.settings import download

log = logging.getLogger(__name__)

PAYLOAD_BYTES: Final = 234
"""What a genuine node was seen to decode, though the protocol allows 233; it then refuses both as too large."""
REMEMBERED_IDS: Final = 20
TEXT_INTERVAL_S: Final = 2.0
TRACEROUTE_INTERVAL_S: Final = 30.0
INTERVALS_S: Final = {
    TEXT: TEXT_INTERVAL_S,
    TRACEROUTE: TRACEROUTE_INTERVAL_S,
    POSITION: 10.0,
    WAYPOINT: 10.0,
    ALERT: 10.0,
    TELEMETRY: 10.0,
}


class Phone:
    """One client's session with the node."""

    def __init__(self, firmware: Firmware) -> None:
        self._firmware = firmware
        self._config: Iterator[mesh_pb2.FromRadio] | None = None
        self._is_configured = False
        self._last_accepted: dict[int, float] = {}
        self._recent_ids: deque[int] = deque(maxlen=REMEMBERED_IDS)
        self.is_closing = False
        """The client has said goodbye."""

    def handle(self, frame: bytes, at: float) -> None:
        """Take one `ToRadio` that arrived `at`; what cannot be decoded is dropped without a word."""
        message = mesh_pb2.ToRadio()
        try:
            message.ParseFromString(frame)
        except DecodeError:
            log.debug("undecodable ToRadio of %d bytes", len(frame))
            return
        match message.WhichOneof("payload_variant"):
            case "want_config_id":
                self._config = download(self._firmware, message.want_config_id)
                self._is_configured = False
                self._firmware.client.changed.set()
            case "packet":
                self._handle_packet(message.packet, at)
            case "heartbeat":
                if message.heartbeat.nonce == 1:
                    self._firmware.announce()
                else:
                    self._firmware.report_queue(0)
            case "disconnect":
                self.is_closing = True

    @property
    def is_downloading(self) -> bool:
        """The last message was part of the answer to `want_config_id`."""
        return self._config is not None

    def next(self) -> mesh_pb2.FromRadio | None:
        """The next message for the client: the running download first, then queue status before packets."""
        if self._config is not None:
            message = next(self._config, None)
            if message is not None:
                return message
            self._config = None
            self._is_configured = True
        if not self._is_configured:
            return None
        return self._firmware.client.take()

    def given(self, message: mesh_pb2.FromRadio) -> None:
        """The link has written a message of `next`."""
        if message.HasField("packet"):
            self._firmware.note_given(message.packet)

    def _handle_packet(self, packet: mesh_pb2.MeshPacket, at: float) -> None:
        firmware = self._firmware
        if not _is_decodable(packet):
            log.debug("a packet with a field too long for the firmware's decoder was dropped")
            firmware.note(packet, at, "UNDECODABLE")
            return
        if packet.id and firmware.filters_repeats:
            if packet.id in self._recent_ids:
                firmware.note(packet, at, "REPEATED_ID")
                return
            self._recent_ids.append(packet.id)
        port = packet.decoded.portnum
        if self._is_too_soon(port):
            firmware.note(packet, at, "TOO_SOON")
            self._refuse(packet)
            return
        self._last_accepted[port] = firmware.air.clock.monotonic()
        if packet.to == firmware.number and port == ADMIN:
            firmware.note(packet, at)
            firmware.report_queue(packet.id)
            answer_admin(firmware, packet)
        else:
            firmware.send(packet, at)

    def _refuse(self, packet: mesh_pb2.MeshPacket) -> None:
        """Drop a packet that came too soon; its queue status looks like that of an accepted one."""
        firmware = self._firmware
        firmware.report_queue(packet.id)
        if packet.decoded.portnum == TEXT:
            firmware.refuse_rate(packet)
        elif packet.decoded.portnum == TRACEROUTE:
            firmware.client.notify(
                mesh_pb2.ClientNotification(
                    reply_id=packet.id,
                    level=mesh_pb2.LogRecord.Level.WARNING,
                    message="TraceRoute can only be sent once every 30 seconds",
                )
            )

    def _is_too_soon(self, port: int) -> bool:
        last = self._last_accepted.get(port)
        interval = INTERVALS_S.get(port)
        if last is None or interval is None:
            return False
        return self._firmware.air.clock.monotonic() - last < interval


def _is_decodable(packet: mesh_pb2.MeshPacket) -> bool:
    """The firmware's decoder has fixed sizes; a longer field loses the whole message without a word."""
    return (
        packet.HasField("decoded")
        and len(packet.decoded.payload) <= PAYLOAD_BYTES
        and len(packet.public_key) <= KEY_BYTES
    )
