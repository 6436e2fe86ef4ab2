"""A whole simulated mesh: the air, the residents, and the node a client attaches to."""

import random
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from meshai.clock import Clock
from meshai.messages import NodeNum
from meshai.sim.air import Air, OnAir
from meshai.sim.identity import Identity, key_for
from meshai.sim.links import Link, Links
from meshai.sim.node import IDLE_LIMIT_S, SimulatedNode
from meshai.sim.peers import ALL_CHANNELS, Peer

FIRST_NUMBER: Final[NodeNum] = 0x5E40_0000


class SimulatedMesh:
    """Enter it, add a node and peers, attach a client to the node, and read `log` for all that went on air."""

    def __init__(
        self,
        *,
        clock: Clock,
        rng: random.Random,
        preset: str = "LONG_FAST",
        region: str = "US",
        observer: Callable[[OnAir], None] | None = None,
        links: Links | None = None,
        capture_db: float | None = None,
        keep_last: int | None = None,
    ) -> None:
        """With `links` the air is a true channel, on which only stations that have one hear each other.

        `capture_db` lets the stronger of two overlapping packets survive when it is stronger by that much; `keep_last`
        bounds the log and all that nodes and peers remember for the eye of an observer.
        """
        self.clock = clock
        self.air = Air(
            clock=clock,
            rng=rng,
            preset=preset,
            region=region,
            observer=observer,
            links=links,
            capture_db=capture_db,
            keep_last=keep_last,
        )
        self.nodes: list[SimulatedNode] = []
        self.peers: dict[NodeNum, Peer] = {}

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
        rssi: int = -80,
        loss: float = 0.0,
        channels: frozenset[int] = ALL_CHANNELS,
        role: str = "CLIENT",
        hop_limit: int = 3,
        battery_percent: int = 90,
        position: tuple[float, float] | None = None,
        is_known: bool = True,
    ) -> Peer:
        """A node of somebody else, `distance` relays away; `is_known` says whether our node has met it before.

        On a mesh with links these decide who hears whom; distance, signal and loss are then only what a node that has
        met it remembers.
        """
        number = self.new_number(len(self.nodes) + len(self.peers)) if number is None else number
        peer = Peer(
            self.air,
            Identity(number, long_name, short_name or long_name, key_for(number), role),
            distance=distance,
            snr=snr,
            rssi=rssi,
            loss=loss,
            channels=channels,
            hop_limit=hop_limit,
            battery_percent=battery_percent,
            position=position,
        )
        self.peers[number] = peer
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
        """Let two stations of a true channel hear each other; `back` tells how `one` hears `other` when it differs."""
        if self.air.channel is None:
            raise ValueError("this mesh was made without links: there, everybody hears everybody by distance")
        self.air.channel.links.connect(one.number, other.number, Link(loss, snr), back=back)

    def new_number(self, index: int) -> NodeNum:
        """The number of the station that is made as the `index`th, the same for the same seed."""
        return FIRST_NUMBER + 0x1000 * index + self.air.rng.randrange(0x1000)


def _introduce(peer: Peer, node: SimulatedNode, *, is_known: bool) -> None:
    """Two nodes have met and hold each other's key, or have not."""
    if is_known:
        node.database.meet(peer.node_info())
    else:
        peer.forget_key(node.number)
