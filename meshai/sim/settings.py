"""What a node tells a client that attaches: itself, its settings and the nodes it knows, in the firmware's order."""

from collections.abc import Iterator
from typing import Final

from meshtastic.protobuf import channel_pb2, config_pb2, mesh_pb2, module_config_pb2

from meshai.airtime import BANDWIDTH_KHZ
from meshai.sim.air import Air
from meshai.sim.firmware import Firmware

ONLY_CONFIG: Final = 69420
"""A `want_config_id` that leaves out the other nodes."""
ONLY_NODES: Final = 69421
"""A `want_config_id` that asks for nothing but nodes."""
CHANNELS: Final = 8
FIRMWARE_VERSION: Final = "2.7.26.54e0d8d"
SIGNING_VERSION: Final = "2.8.0.7754068"
MODULES: Final = (
    "mqtt",
    "serial",
    "external_notification",
    "store_forward",
    "range_test",
    "telemetry",
    "canned_message",
    "audio",
    "remote_hardware",
    "neighbor_info",
    "ambient_lighting",
    "detection_sensor",
    "paxcounter",
)
EMPTY_MODULES: Final = 3
"""Module settings newer than the firmware are sent as messages without a variant."""
CONFIGS: Final = (
    "device",
    "position",
    "power",
    "network",
    "display",
    "lora",
    "bluetooth",
    "security",
    "sessionkey",
    "device_ui",
)


def download(firmware: Firmware, nonce: int) -> Iterator[mesh_pb2.FromRadio]:
    """The answer to `want_config_id`, message by message."""
    if nonce != ONLY_NODES:
        yield mesh_pb2.FromRadio(my_info=my_info(firmware))
        yield mesh_pb2.FromRadio(deviceuiConfig={})
    yield mesh_pb2.FromRadio(node_info=own_node_info(firmware))
    if nonce != ONLY_NODES:
        yield mesh_pb2.FromRadio(metadata=metadata(firmware))
        for index in range(CHANNELS):
            yield mesh_pb2.FromRadio(channel=channel(firmware, index))
        for name in CONFIGS:
            yield mesh_pb2.FromRadio(config=config(firmware, name))
        for name in MODULES:
            yield mesh_pb2.FromRadio(moduleConfig=module_config(name))
        for _ in range(EMPTY_MODULES):
            yield mesh_pb2.FromRadio(moduleConfig=module_config_pb2.ModuleConfig())
    if nonce != ONLY_CONFIG:
        for node in list(firmware.database.nodes.values()):
            yield mesh_pb2.FromRadio(node_info=node)
    if nonce != ONLY_NODES:
        yield mesh_pb2.FromRadio(fileInfo={"file_name": "/prefs/config.proto", "size_bytes": 200})
    yield mesh_pb2.FromRadio(config_complete_id=nonce)


def my_info(firmware: Firmware) -> mesh_pb2.MyNodeInfo:
    return mesh_pb2.MyNodeInfo(
        my_node_num=firmware.number,
        min_app_version=30200,
        pio_env="native",
        nodedb_count=len(firmware.database.nodes) + 1,
        reboot_count=firmware.boots,
    )


def own_node_info(firmware: Firmware) -> mesh_pb2.NodeInfo:
    return mesh_pb2.NodeInfo(
        num=firmware.number,
        user=firmware.identity.user,
        last_heard=firmware.rx_time(),
        device_metrics=firmware.metrics(),
    )


def metadata(firmware: Firmware) -> mesh_pb2.DeviceMetadata:
    return mesh_pb2.DeviceMetadata(
        firmware_version=SIGNING_VERSION if firmware.air.signs else FIRMWARE_VERSION,
        device_state_version=24,
        hasWifi=True,
        role=firmware.identity.user.role,
        hw_model=firmware.identity.user.hw_model,
        hasPKC=True,
    )


def channel(firmware: Firmware, index: int) -> channel_pb2.Channel:
    """Channel 0 is the primary one and often nameless; those beyond the node's own are disabled."""
    if not 0 <= index < CHANNELS:
        raise IndexError(f"no channel {index}")
    if index >= len(firmware.channels):
        return channel_pb2.Channel(index=index, role=channel_pb2.Channel.Role.DISABLED)
    role = channel_pb2.Channel.Role.SECONDARY if index else channel_pb2.Channel.Role.PRIMARY
    settings = channel_pb2.ChannelSettings(name=firmware.channels[index], psk=b"\x01")
    return channel_pb2.Channel(index=index, role=role, settings=settings)


def config(firmware: Firmware, name: str) -> config_pb2.Config:
    """One section of the node's settings; those the simulation does not use are at their defaults, but present."""
    result = config_pb2.Config()
    section = getattr(result, name)
    section.SetInParent()
    match name:
        case "device":
            section.role = firmware.identity.user.role
            section.node_info_broadcast_secs = 10800
        case "lora":
            _describe_modem(section, firmware.air)
            section.region = firmware.air.region_code
            section.hop_limit = firmware.hop_limit
            section.tx_enabled = True
            section.tx_power = 30
        case "security":
            section.public_key = firmware.identity.public_key
            section.serial_enabled = True
    return result


def _describe_modem(lora: config_pb2.Config.LoRaConfig, air: Air) -> None:
    lora.use_preset = air.is_preset
    lora.modem_preset = air.preset_code
    if not air.is_preset:
        codes = {khz: code for code, khz in BANDWIDTH_KHZ.items()}
        lora.bandwidth = codes.get(air.modem.bandwidth_khz, int(air.modem.bandwidth_khz))
        lora.spread_factor = air.modem.spreading_factor
        lora.coding_rate = air.modem.coding_rate


def module_config(name: str) -> module_config_pb2.ModuleConfig:
    result = module_config_pb2.ModuleConfig()
    getattr(result, name).SetInParent()
    return result
