"""The seam to radios: what the program may ask of any of them."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Protocol, Self

from meshai.airtime import Modem
from meshai.messages import Address, Delivery, IncomingMessage, Node, NodeNum, OutgoingPacket

EXTRA_HOPS: Final = 2


@dataclass(frozen=True, slots=True)
class OwnNode:
    """Our node as it described itself at the last connect."""

    node: Node
    modem: Modem | None
    """None when the node did not tell its LoRa settings."""
    region: str = ""
    preset: str = ""
    """Name of the modem preset, or "custom"."""
    hop_limit: int = 3
    channel_names: Mapping[int, str] | None = None
    """Enabled channels by index; the primary one often has an empty name."""
    firmware: str = ""

    def hop_limit_to(self, address: Address) -> int:
        """Two hops more than the question needed, as the firmware answers (`RoutingModule.cpp`), at most its own."""
        return self.hop_limit if address.hops is None else min(address.hops + EXTRA_HOPS, self.hop_limit)


class Radio(Protocol):
    """A node we hear and speak through. Entering starts connecting and returns at once."""

    @property
    def me(self) -> OwnNode | None:
        """Our node, from the newest connect; None before the first."""
        ...

    @property
    def is_connected(self) -> bool: ...

    @property
    def state(self) -> str:
        """One line for people: connected to what, or what is being waited for since when."""
        ...

    def nodes(self) -> Mapping[NodeNum, Node]:
        """The nodes our node knows, by number."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    def messages(self) -> AsyncIterator[IncomingMessage]:
        """Every text heard, until `stop()`. One consumer."""
        ...

    def stop(self) -> None:
        """End `messages()`; sending still works until the radio is left."""
        ...

    async def ready(self) -> None:
        """Wait until the link is up."""
        ...

    async def reconnect(self) -> None:
        """Drop the link and wait until there is a new one."""
        ...

    async def send(self, packet: OutgoingPacket) -> None:
        """Hand one packet to the node and return when it has confirmed to hold it.

        Raises RadioDisconnected when the link broke before that was known, PacketTooLong before anything is
        sent, and NotDelivered with the routing error's name when the node refused it.
        """
        ...

    async def delivery(
        self, packet: OutgoingPacket, *, earlier: Sequence[OutgoingPacket] = (), within_s: float | None = None
    ) -> Delivery:
        """What became of a packet that `send` handed over, here or in the last process; returns when that is known
        or cannot be.

        Waits at most `within_s`, by default as long as the radio may need for all its tries. A late ack of an
        `earlier` try of the same text counts as well.
        """
        ...
