"""Who a simulated node is, and what a node knows of others."""

import hashlib
from dataclasses import dataclass, field
from typing import Final

from meshtastic.protobuf import config_pb2, mesh_pb2

from meshai.characters import beginning, utf8_bytes
from meshai.clock import Clock
from meshai.messages import NodeNum, node_id
from meshai.sim.packets import NODE_INFO, hops_of, sender_of

MUTE_ROLES: Final = frozenset({"CLIENT_MUTE", "CLIENT_HIDDEN", "SENSOR", "TRACKER", "TAK_TRACKER"})
"""Roles that relay nothing."""
RELAY_FIRST_ROLES: Final = frozenset({"ROUTER", "REPEATER"})
"""Roles that relay before all others."""
RELAY_ALWAYS_ROLES: Final = RELAY_FIRST_ROLES | {"ROUTER_LATE"}
"""Roles that relay even what they have heard another relay."""

LONG_NAME_BYTES: Final = 39
SHORT_NAME_BYTES: Final = 4
"""What the firmware has room for, in UTF-8."""
SAVE_INTERVAL_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Identity:
    """What a node says about itself in its node info, which holds the beginning of a longer name only."""

    number: NodeNum
    long_name: str
    short_name: str
    public_key: bytes = field(repr=False)
    role: str = "CLIENT"

    @property
    def is_relaying(self) -> bool:
        return self.role not in MUTE_ROLES

    @property
    def relays_first(self) -> bool:
        return self.role in RELAY_FIRST_ROLES

    @property
    def relays_always(self) -> bool:
        return self.role in RELAY_ALWAYS_ROLES

    @property
    def user(self) -> mesh_pb2.User:
        return mesh_pb2.User(
            id=node_id(self.number),
            long_name=beginning(self.long_name, LONG_NAME_BYTES, size=utf8_bytes),
            # With none, the firmware makes one of the number.
            short_name=beginning(self.short_name, SHORT_NAME_BYTES, size=utf8_bytes) or f"{self.number:08x}"[-4:],
            macaddr=b"\x02\x00" + self.number.to_bytes(4, "big"),
            hw_model=mesh_pb2.HardwareModel.PORTDUINO,
            role=config_pb2.Config.DeviceConfig.Role.Value(self.role),
            public_key=self.public_key,
        )


def key_for(number: NodeNum, *, generation: int = 0) -> bytes:
    """A node's public key: 32 bytes that differ by node and, after a factory reset, by generation."""
    return hashlib.sha256(f"public key {number} {generation}".encode()).digest()


class NodeDatabase:
    """The nodes a node knows: what its client downloads, and whose keys it can encrypt for.

    What it learns within a minute of the last save is not saved, then or later, and a reboot loses it.
    """

    def __init__(self, clock: Clock) -> None:
        self.nodes: dict[NodeNum, mesh_pb2.NodeInfo] = {}
        self._clock = clock
        self._saved_at: float | None = None
        self._unsaved: set[NodeNum] = set()

    def key_of(self, number: NodeNum) -> bytes:
        """The key held for a node; empty when there is none."""
        node = self.nodes.get(number)
        return node.user.public_key if node is not None else b""

    def set_key(self, number: NodeNum, key: bytes) -> None:
        """Hold another key than the node's own: an old one, or, when empty, none."""
        self.nodes[number].user.public_key = key

    def has_met(self, number: NodeNum) -> bool:
        """Whether it has a node's names, not just its number."""
        node = self.nodes.get(number)
        return node is not None and node.HasField("user")

    def meet(self, node: mesh_pb2.NodeInfo) -> None:
        """Take in all that is known of a node."""
        self.nodes[node.num] = node

    def heard(self, packet: mesh_pb2.MeshPacket, rx_time: int) -> None:
        """Note what a packet shows of its sender."""
        number = sender_of(packet)
        node = self.nodes.setdefault(number, mesh_pb2.NodeInfo(num=number))
        node.snr = packet.rx_snr
        node.last_heard = rx_time
        node.hops_away = hops_of(packet)
        node.channel = packet.channel
        node.via_mqtt = packet.via_mqtt
        if packet.decoded.portnum == NODE_INFO:
            self._learn(node, mesh_pb2.User.FromString(packet.decoded.payload))

    def _learn(self, node: mesh_pb2.NodeInfo, user: mesh_pb2.User) -> None:
        if node.user == user:
            return
        node.user.CopyFrom(user)
        self._unsaved.add(node.num)
        if self._saved_at is None or self._clock.monotonic() - self._saved_at >= SAVE_INTERVAL_S:
            self.save()

    def save(self) -> None:
        """Write all that is known, as setting or clearing a favourite makes a node do."""
        self._saved_at = self._clock.monotonic()
        self._unsaved.clear()

    def reload(self) -> None:
        """Know only what was saved, as after a reboot."""
        for number in self._unsaved:
            del self.nodes[number]
        self._unsaved.clear()
        self._saved_at = None
