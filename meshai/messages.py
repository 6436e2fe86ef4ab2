"""The values that flow: from the radio through the router, memory and model back to the radio.

Frozen and slotted. A unit is in the name where it is not obvious.
"""

import base64
import re
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Final, TypeAlias

NodeNum: TypeAlias = int
"""A node's 32-bit number. People write it as an id such as `!a1b2c3d4`."""

BROADCAST: Final[NodeNum] = 0xFFFFFFFF
KEY_BYTES: Final = 32
"""Length of a node's public key."""


def node_id(number: NodeNum) -> str:
    """The id people know a node by: `!` and eight hex digits."""
    return f"!{number & 0xFFFFFFFF:08x}"


def parse_node_id(text: str) -> NodeNum:
    """Read `!a1b2c3d4`. Raises ValueError for anything else."""
    if not re.fullmatch(r"![0-9a-fA-F]{8}", text):
        raise ValueError(f"{text!r} is not a node id such as !a1b2c3d4")
    return int(text[1:], 16)


def parse_key(text: str) -> bytes:
    """Read a node's public key as the apps show it: 32 bytes in base64. Raises ValueError for anything else."""
    try:
        key = base64.b64decode(text, validate=True)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ValueError(f"{text!r} is not a public key: 44 characters that end in =")
    return key


def key_text(key: bytes) -> str:
    """A public key as the apps show it."""
    return base64.b64encode(key).decode()


@dataclass(frozen=True, slots=True)
class Direct:
    """The conversation with one node by direct message."""

    node: NodeNum

    def __str__(self) -> str:
        return f"direct {node_id(self.node)}"


@dataclass(frozen=True, slots=True)
class Channel:
    """The conversation on one channel, by its index (0 is the primary channel)."""

    index: int

    def __str__(self) -> str:
        return f"channel {self.index}"


Conversation: TypeAlias = Direct | Channel


@dataclass(frozen=True, slots=True)
class TextLimits:
    """The most UTF-8 bytes of text one packet may carry, by kind of destination."""

    channel_bytes: int
    direct_bytes: int


@dataclass(frozen=True, slots=True)
class Address:
    """Where an answer goes, what it answers, and how much text fits in one packet there."""

    destination: Conversation
    limit_bytes: int
    reply_to: int | None = None
    channel: int = 0
    """Channel index the packet is sent with; for a direct message, the one the question came on."""
    hops: int | None = None
    """Relays the question took to reach us; None when its packet did not say."""


@dataclass(frozen=True, slots=True)
class Node:
    """What is known about a node. Names are untrusted text from the air and may be empty."""

    number: NodeNum
    long_name: str = ""
    short_name: str = ""
    snr: float | None = None
    hops_away: int | None = None
    last_heard: float | None = None
    """Unix seconds by the radio's clock."""
    battery_percent: int | None = None
    latitude: float | None = None
    longitude: float | None = None
    public_key: bytes | None = field(default=None, repr=False)
    channel_utilisation_percent: float | None = None
    """How busy the node found the channel in its last minute."""

    @property
    def name(self) -> str:
        """The best name for people: long, else short, else the id."""
        return self.long_name or self.short_name or node_id(self.number)


@dataclass(frozen=True, slots=True)
class IncomingMessage:
    """One text heard by our node."""

    packet_id: int
    sender: NodeNum
    to: NodeNum
    channel: int
    text: str
    heard_at: float
    """Unix seconds by our clock, when it reached us."""
    limits: TextLimits
    is_tapback: bool = False
    is_stale: bool = False
    """Too old to answer: it waited in the radio (or a store-and-forward node) while nobody listened."""
    via_mqtt: bool = False
    reply_to: int | None = None
    hops: int | None = None
    """Relays it took to reach us; None when the packet does not say."""
    snr: float | None = None
    rssi: int | None = None
    public_key: bytes | None = field(default=None, repr=False)
    """The sender's key when the packet was public-key encrypted, which alone proves who sent it."""

    @property
    def is_direct(self) -> bool:
        return self.to != BROADCAST

    @property
    def conversation(self) -> Conversation:
        return Direct(self.sender) if self.is_direct else Channel(self.channel)

    def reply_address(self, *, direct: bool = False) -> Address:
        """Where the answer goes: where the question came from, or to its sender when `direct`."""
        if self.is_direct or direct:
            return Address(Direct(self.sender), self.limits.direct_bytes, self.packet_id, self.channel, self.hops)
        return Address(Channel(self.channel), self.limits.channel_bytes, self.packet_id, self.channel, self.hops)


@dataclass(frozen=True, slots=True)
class Ignore:
    """The router's decision to stay silent, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Command:
    """The router's decision to run a command: its canonical name and the rest of the text."""

    name: str
    argument: str = ""


@dataclass(frozen=True, slots=True)
class Prompt:
    """The router's decision to ask the model: the text without the words that addressed us."""

    text: str


Decision: TypeAlias = Ignore | Command | Prompt


@dataclass(frozen=True, slots=True)
class Reply:
    """What a command or the model wants to say; `remember` says whether it becomes a turn."""

    text: str
    remember: bool = False
    is_failure: bool = False
    """There was no answer: the text says so, if any, and the question is not remembered either."""
    continues: bool = False
    """The text is what the last answer had to leave out, and is remembered as part of that."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One line of a conversation, in order of arrival."""

    conversation: Conversation
    text: str
    node: NodeNum
    """Who said it; our own number for what we said."""
    is_ours: bool
    at: float


@dataclass(frozen=True, slots=True)
class OutgoingPacket:
    """One text of at most `address.limit_bytes` bytes: part `part` of `parts` of a reply."""

    address: Address
    text: str
    part: int = 1
    parts: int = 1
    packet_id: int = 0
    """Chosen by the outbox before the first try, so that a repeated try is filtered by every receiver."""
    is_tapback: bool = False
    """A sign put to the message it replies to, in place of a text."""

    @property
    def wants_ack(self) -> bool:
        """Whether it matters so much that the firmware shall repeat it until it is acknowledged."""
        return isinstance(self.address.destination, Direct) and not self.is_tapback


class Priority(IntEnum):
    """Which packets go first, and which may use the last of the airtime: the lower, the sooner."""

    COMMAND = 0
    DIRECT = 1
    CHANNEL = 2


class Fate(StrEnum):
    """What became of a packet, as far as can be told."""

    HANDED_OVER = "handed over"
    """The node took it; nothing more can be known (a channel text)."""
    RELAYED = "relayed"
    """A neighbour was heard repeating it; nobody in particular read it."""
    DELIVERED = "delivered"
    """The destination's node acknowledged it."""
    UNCONFIRMED = "unconfirmed"
    """No word within the time the radio needs for all its tries."""
    FAILED = "failed"
    """Refused by our node or the mesh; `reason` is the routing error's name."""
    EXPIRED = "expired"
    """Not sent: by the time it could have been, it was no longer worth saying; `reason` says what it waited for."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """How sending one packet ended."""

    fate: Fate
    reason: str = ""
    is_doubtful: bool = False
    """The link to our node was lost since the hand-over, and an ack perhaps with it."""
