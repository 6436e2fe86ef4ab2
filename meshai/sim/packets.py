"""MeshPackets as the simulation makes, reads and measures them.

The protobuf itself flows through the simulation: its encoded size is what the air carries, so sizes are measured
and never estimated. `from` is a Python keyword, hence `sender_of` and the constructors.
"""

import hashlib
from typing import Final

from meshtastic.protobuf import mesh_pb2, portnums_pb2

from meshai.airtime import HEADER_BYTES, PKI_BYTES
from meshai.messages import BROADCAST, NodeNum

TEXT: Final[int] = portnums_pb2.PortNum.TEXT_MESSAGE_APP
ROUTING: Final[int] = portnums_pb2.PortNum.ROUTING_APP
NODE_INFO: Final[int] = portnums_pb2.PortNum.NODEINFO_APP
TELEMETRY: Final[int] = portnums_pb2.PortNum.TELEMETRY_APP
POSITION: Final[int] = portnums_pb2.PortNum.POSITION_APP
TRACEROUTE: Final[int] = portnums_pb2.PortNum.TRACEROUTE_APP
WAYPOINT: Final[int] = portnums_pb2.PortNum.WAYPOINT_APP
ALERT: Final[int] = portnums_pb2.PortNum.ALERT_APP
ADMIN: Final[int] = portnums_pb2.PortNum.ADMIN_APP

NOT_FOR_PKI: Final = frozenset({TRACEROUTE, NODE_INFO, ROUTING, POSITION})
"""Ports whose direct packets the firmware sends with the channel's key (firmware `Router.cpp`)."""

UNKNOWN_CHANNEL_HASH: Final = 0x5B
ROOM_BYTES: Final = 239
"""Most an encoded `Data` may take in a channel-encrypted frame; public-key encryption takes 12 of it."""
SIGNATURE_BYTES: Final = 66
"""What an XEdDSA signature adds (firmware 2.8 `Router.cpp`)."""
SIGNATURE_TAG: Final = b"\x52\x40"
"""Field 10, 64 bytes."""

RoutingError = mesh_pb2.Routing.Error
Priority = mesh_pb2.MeshPacket.Priority


def port_name(port: int) -> str:
    """What the field calls a port; its number when nobody has named it."""
    return str(portnums_pb2.PortNum.Name(port)) if port in portnums_pb2.PortNum.values() else f"port {port}"


def sender_of(packet: mesh_pb2.MeshPacket) -> NodeNum:
    return int(getattr(packet, "from"))


def set_sender(packet: mesh_pb2.MeshPacket, number: NodeNum) -> None:
    setattr(packet, "from", number)


def make_packet(
    sender: NodeNum,
    to: NodeNum,
    port: int,
    payload: bytes,
    *,
    packet_id: int,
    channel: int = 0,
    reply_id: int = 0,
    request_id: int = 0,
    emoji: int = 0,
    hop_limit: int = 3,
    want_ack: bool = False,
    want_response: bool = False,
    priority: int = Priority.UNSET,
    pki: bool = False,
) -> mesh_pb2.MeshPacket:
    """A packet as its originator's firmware puts it on air, `bitfield` and `hop_start` included."""
    data = mesh_pb2.Data(
        portnum=port,
        payload=payload,
        reply_id=reply_id,
        request_id=request_id,
        emoji=emoji,
        want_response=want_response,
        bitfield=0,
    )
    packet = mesh_pb2.MeshPacket(
        to=to,
        id=packet_id,
        channel=channel,
        decoded=data,
        hop_limit=hop_limit,
        hop_start=hop_limit,
        want_ack=want_ack,
        priority=priority,
        pki_encrypted=pki,
    )
    set_sender(packet, sender)
    return packet


def make_routing(
    sender: NodeNum,
    to: NodeNum,
    request_id: int,
    error: int,
    *,
    packet_id: int,
    channel: int = 0,
    hop_limit: int = 3,
    want_ack: bool = False,
) -> mesh_pb2.MeshPacket:
    """An ack (error NONE, which is encoded all the same) or a nak for the packet `request_id`."""
    return make_packet(
        sender,
        to,
        ROUTING,
        mesh_pb2.Routing(error_reason=error).SerializeToString(),
        packet_id=packet_id,
        channel=channel,
        request_id=request_id,
        hop_limit=hop_limit,
        want_ack=want_ack,
        priority=Priority.ACK,
    )


def routing_error(packet: mesh_pb2.MeshPacket) -> int:
    """The error an ack or nak carries; NONE is an ack."""
    return int(mesh_pb2.Routing.FromString(packet.decoded.payload).error_reason)


def frame_bytes(packet: mesh_pb2.MeshPacket) -> int:
    """The size of the whole frame on air."""
    if is_encrypted(packet):
        return HEADER_BYTES + len(packet.encrypted)
    return HEADER_BYTES + int(packet.decoded.ByteSize()) + (PKI_BYTES if packet.pki_encrypted else 0)


def fits(packet: mesh_pb2.MeshPacket) -> bool:
    """Whether the frame can carry it (firmware `perhapsEncode`)."""
    return int(packet.decoded.ByteSize()) <= ROOM_BYTES - (PKI_BYTES if packet.pki_encrypted else 0)


def sign(packet: mesh_pb2.MeshPacket) -> None:
    """Let a broadcast carry a signature if there is room, in a field of `Data` that today's clients do not know."""
    if is_broadcast(packet) and not is_encrypted(packet) and packet.decoded.ByteSize() + SIGNATURE_BYTES <= ROOM_BYTES:
        signature = hashlib.shake_128(packet.decoded.SerializeToString()).digest(SIGNATURE_BYTES - 2)
        packet.decoded.MergeFromString(SIGNATURE_TAG + signature)


def is_broadcast(packet: mesh_pb2.MeshPacket) -> bool:
    return bool(packet.to == BROADCAST)


def is_encrypted(packet: mesh_pb2.MeshPacket) -> bool:
    """Whether it is ciphertext that nobody here has the key of."""
    return bool(packet.WhichOneof("payload_variant") == "encrypted")


def relay_byte(number: NodeNum) -> int:
    """How a frame names a relay: by the last byte of its number, which 0 would leave unsaid."""
    return number & 0xFF or 0xFF


def hops_of(packet: mesh_pb2.MeshPacket) -> int:
    """The relays a packet passed; 0 when it does not say where it began."""
    return int(max(0, packet.hop_start - packet.hop_limit))


def make_unreadable(packet: mesh_pb2.MeshPacket) -> mesh_pb2.MeshPacket:
    """A packet as the client of a node without the right key sees it: no `decoded`, a hash for a channel."""
    unreadable = copy_of(packet)
    if is_encrypted(packet):
        return unreadable
    plain = packet.decoded.SerializeToString()
    unreadable.encrypted = hashlib.shake_128(plain).digest(frame_bytes(packet) - HEADER_BYTES)
    unreadable.channel = 0 if packet.pki_encrypted else UNKNOWN_CHANNEL_HASH
    unreadable.pki_encrypted = False
    unreadable.ClearField("public_key")
    return unreadable


def copy_of(packet: mesh_pb2.MeshPacket) -> mesh_pb2.MeshPacket:
    copy = mesh_pb2.MeshPacket()
    copy.CopyFrom(packet)
    return copy
