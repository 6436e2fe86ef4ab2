"""Administration of a node by its own client: enough for the official tools to look around and set the clock."""

import logging
from typing import Final

from google.protobuf.message import DecodeError
from meshtastic.protobuf import admin_pb2, mesh_pb2

from meshai.sim.firmware import Firmware
from meshai.sim.packets import ADMIN, Priority, RoutingError, make_packet
from meshai.sim.settings import CONFIGS, MODULES, channel, config, metadata, module_config

log = logging.getLogger(__name__)

CONFIG_REBOOT_S: Final = 7
"""How long after new settings a node boots anew, which some of them need."""


def answer_admin(firmware: Firmware, packet: mesh_pb2.MeshPacket) -> None:
    """Do what an admin packet to the node itself asks: a getter gets its answer, anything else an ack."""
    request = admin_pb2.AdminMessage()
    try:
        request.ParseFromString(packet.decoded.payload)
        response = _response(firmware, request)
    except (DecodeError, LookupError):
        firmware.answer_client(packet, RoutingError.BAD_REQUEST)
        return
    if response is None:
        _obey(firmware, request)
        firmware.answer_client(packet, RoutingError.NONE)
        return
    response.session_passkey = firmware.session_passkey()
    firmware.deliver(
        make_packet(
            firmware.number,
            firmware.number,
            ADMIN,
            response.SerializeToString(),
            packet_id=firmware.air.new_packet_id(),
            request_id=packet.id,
            priority=Priority.RELIABLE,
        )
    )


def _obey(firmware: Firmware, request: admin_pb2.AdminMessage) -> None:
    """Settings are not kept, but a node that is told new ones boots anew, as it does when it is told to."""
    match request.WhichOneof("payload_variant"):
        case "set_time_only":
            firmware.set_time(request.set_time_only)
        case "reboot_seconds":
            firmware.reboot_in(request.reboot_seconds)
        case "set_favorite_node" | "remove_favorite_node":
            firmware.database.save()
        case "set_config":
            firmware.reboot_in(CONFIG_REBOOT_S)


def _response(firmware: Firmware, request: admin_pb2.AdminMessage) -> admin_pb2.AdminMessage | None:
    match request.WhichOneof("payload_variant"):
        case "get_owner_request":
            return admin_pb2.AdminMessage(get_owner_response=firmware.identity.user)
        case "get_device_metadata_request":
            return admin_pb2.AdminMessage(get_device_metadata_response=metadata(firmware))
        case "get_channel_request":
            return admin_pb2.AdminMessage(get_channel_response=channel(firmware, request.get_channel_request - 1))
        case "get_config_request":
            name = CONFIGS[request.get_config_request]
            return admin_pb2.AdminMessage(get_config_response=config(firmware, name))
        case "get_module_config_request":
            name = MODULES[request.get_module_config_request]
            return admin_pb2.AdminMessage(get_module_config_response=module_config(name))
        case "get_ringtone_request":
            return admin_pb2.AdminMessage(get_ringtone_response="")
        case "get_canned_message_module_messages_request":
            return admin_pb2.AdminMessage(get_canned_message_module_messages_response="")
        case _:
            return None
