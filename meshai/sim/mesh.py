"""A whole simulated mesh: the air, the residents, and the node a client attaches to."""

import random
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from meshai.airtime import Modem
from meshai.clock import Clock
from meshai.messages import NodeNum
from meshai.sim.air import Air, OnAir
from meshai.sim.identity import Identity, key_for
from meshai.sim.links import Link
from meshai.sim.node import IDLE_LIMIT_S, SimulatedNode
from meshai.sim.peers import ALL_CHANNELS, Peer
from meshai.sim.places import OUR_LINK, Street

FIRST_NUMBER: Final[NodeNum] = 0x5E40_0000
FIRST_RELAY: Final[NodeNum] = 0x0E1A_7000
MOST_HOPS: Final = 7


class SimulatedMesh:
    """Enter it, add a node and peers, attach a client to the node, and read `log` for all that went on air."""

    def __init__(
        self,
        *,
        clock: Clock,
        rng: random.Random,
        preset: str = "LONG_FAST",
        region: str = "US",
        modem: Modem | None = None,
        signs: bool = False,
        observer: Callable[[OnAir], None] | None = None,
        by_distance: bool = True,
        capture_db: float | None = None,
        interference: bool = True,
        keep_last: int | None = None,
    ) -> None:
        """`modem`: custom settings in place of a preset; `signs`: nodes sign broadcasts, as firmware 2.8 does.

        `by_distance`: who hears whom follows from the distances of peers (`places.py`); else from `link` alone.

        `capture_db` lets the stronger of two overlapping packets survive when it is stronger by that much, and without
        `interference` both do; where no link loses anything, all is heard then. `keep_last` bounds the log and all
        that nodes and peers remember for the eye of an observer.
        """
        self.clock = clock
        self.air = Air(
            clock=clock,
            rng=rng,
            preset=preset,
            region=region,
            modem=modem,
            signs=signs,
            observer=observer,
            capture_db=capture_db,
            interference=interference,
            keep_last=keep_last,
        )
        self.nodes: list[SimulatedNode] = []
        self.peers: dict[NodeNum, Peer] = {}
        self.relays: list[Peer] = []
        """Routers nobody owns, between stations at different distances; no node has met them."""
        self._street = Street(self.air.channel.links, self._new_relay) if by_distance else None

    @property
    def log(self) -> list[OnAir]:
        """Every transmission so far, in order of its start."""
        return self.air.log

    async def __aenter__(self) -> Self:
        await self.air.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.nodes:
            node.close()
        await self.air.__aexit__(kind, error, trace)

    def node(
        self,
        long_name: str = "MeshAI",
        short_name: str = "MAI",
        *,
        number: NodeNum | None = None,
        channels: tuple[str, ...] = ("",),
        hop_limit: int = 3,
        role: str = "CLIENT_MUTE",
        idle_limit_s: float | None = IDLE_LIMIT_S,
    ) -> SimulatedNode:
        """The node a client attaches to; it knows every peer, and every peer knows it."""
        number = self.new_number(len(self.nodes) + len(self.peers)) if number is None else number
        identity = Identity(number, long_name, short_name, key_for(number), role)
        node = SimulatedNode(self.air, identity, channels=channels, hop_limit=hop_limit, idle_limit_s=idle_limit_s)
        self.nodes.append(node)
        if self._street is not None:
            self._street.place(number, 0, OUR_LINK)
        for peer in self.peers.values():
            _introduce(peer, node, is_known=True)
        return node

    def peer(
        self,
        long_name: str,
        short_name: str = "",
        *,
        number: NodeNum | None = None,
        distance: int = 0,
        snr: float = 6.0,
        loss: float = 0.0,
        channels: frozenset[int] = ALL_CHANNELS,
        role: str = "CLIENT",
        hop_limit: int = 3,
        battery_percent: int = 90,
        position: tuple[float, float] | None = None,
        is_known: bool = True,
    ) -> Peer:
        """A node of somebody else, `distance` relays away; `is_known` says whether our node has met it before.

        On a mesh without distances only links decide who hears whom; distance and signal are then what a node that has
        met it remembers.
        """
        number = self.new_number(len(self.nodes) + len(self.peers)) if number is None else number
        peer = Peer(
            self.air,
            Identity(number, long_name, short_name or long_name, key_for(number), role),
            distance=distance,
            snr=snr,
            channels=channels,
            hop_limit=hop_limit,
            battery_percent=battery_percent,
            position=position,
        )
        self.peers[number] = peer
        if self._street is not None:
            self._street.place(number, distance, Link(loss, snr))
        for node in self.nodes:
            _introduce(peer, node, is_known=is_known)
        return peer

    def link(
        self,
        one: SimulatedNode | Peer,
        other: SimulatedNode | Peer,
        *,
        loss: float = 0.0,
        snr: float = 6.0,
        back: Link | None = None,
    ) -> None:
        """Let two stations hear each other; `back` tells how `one` hears `other` when it differs."""
        self.air.channel.links.connect(one.number, other.number, Link(loss, snr), back=back)

    def _new_relay(self, index: int) -> NodeNum:
        number = FIRST_RELAY + index
        identity = Identity(number, f"Relay {index}", f"R{index}", key_for(number), "ROUTER")
        relay = Peer(
            self.air,
            identity,
            distance=index - 1,
            snr=OUR_LINK.snr,
            channels=ALL_CHANNELS,
            hop_limit=MOST_HOPS,
            battery_percent=100,
            position=None,
        )
        self.relays.append(relay)
        return number

    def new_number(self, index: int) -> NodeNum:
        """The number of the station that is made as the `index`th, the same for the same seed."""
        return FIRST_NUMBER + 0x1000 * index + self.air.rng.randrange(0x1000)


def _introduce(peer: Peer, node: SimulatedNode, *, is_known: bool) -> None:
    """Two nodes have met and hold each other's key, or have not."""
    if is_known:
        node.database.meet(peer.node_info())
    else:
        peer.forget_key(node.number)
