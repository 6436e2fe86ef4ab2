"""Meshes from small files: who lives there, who hears whom, and what they do all day.

A file is TOML. `[[nodes]]` are stations by name, exactly one of which `is_ours`; `[[groups]]` are many alike;
`[[links]]` say who hears whom. With `[terrain]` stations that have a place (`at`, or `within_km` for a group) hear
each other by distance as well.
"""

import math
import random
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from itertools import combinations
from pathlib import Path
from typing import Final

from meshtastic.protobuf import config_pb2

from meshai.airtime import Modem
from meshai.clock import Clock
from meshai.errors import ConfigError
from meshai.messages import NodeNum
from meshai.sim.air import PRESET_NAMES, REGION_NAMES, OnAir
from meshai.sim.links import Link, Links
from meshai.sim.mesh import SimulatedMesh
from meshai.sim.node import SimulatedNode
from meshai.sim.peers import Peer
from meshai.sim.residents import chatter, echo, store_and_forward, tell_telemetry
from meshai.sim.tables import read

ROLES: Final = tuple(config_pb2.Config.DeviceConfig.Role.keys())
HOME: Final = (44.058, -121.315)
KM_PER_DEGREE: Final = (111.2, 79.9)
"""Of latitude, and of longitude at home."""
READABLE_DB: Final = 20.0
"""Above its limit by that much a signal does not fade."""
FADING_DB: Final = 1.5
MINUTE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A station of a topology."""

    short: str
    """Short name, by which links know it."""
    name: str = ""
    role: str = "CLIENT"
    hop_limit: int = 3
    battery_percent: int = 90
    is_ours: bool = False
    """The node a client attaches to."""
    is_known: bool = True
    """Whether it and ours have met."""
    at: tuple[float, float] | None = None
    """Kilometres east and north of home."""
    gain_db: float = 0.0
    """What its antenna and height add, both ways."""
    telemetry_minutes: float = 0.0
    chatter_minutes: float = 0.0
    """How often on average it tells its device metrics, or says something on the primary channel; 0 is never."""
    echoes: bool = False
    """It is another bot, which answers everything."""
    stores: bool = False
    """It is a store-and-forward server."""

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"no role {self.role!r}; there are {', '.join(ROLES)}")
        if self.telemetry_minutes < 0 or self.chatter_minutes < 0:
            raise ValueError("minutes cannot be negative")


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """Many stations alike: around one that all of them hear (`hub`), or scattered over the terrain (`within_km`)."""

    count: int
    short: str
    """Beginning of their short names; a number follows."""
    names: tuple[str, ...]
    roles: tuple[str, ...] = ("CLIENT",)
    """Names and roles begin again when there are more stations."""
    hop_limit: int = 3
    hub: str = ""
    loss: float = 0.0
    snr: float = 6.0
    within_km: float = 0.0
    telemetry_minutes: float = 0.0
    chatter_minutes: float = 0.0

    def __post_init__(self) -> None:
        if self.count < 1 or not self.names or not self.roles:
            raise ValueError("a group has members, names and roles")
        _ = self.link

    @property
    def link(self) -> Link:
        """Between each of them and their hub."""
        return Link(self.loss, self.snr)


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """Two stations, by short name, that hear each other."""

    between: tuple[str, str]
    loss: float = 0.0
    snr: float = 6.0
    back: Link | None = None
    """How the first hears the second, when it differs."""

    def __post_init__(self) -> None:
        _ = self.link

    @property
    def link(self) -> Link:
        return Link(self.loss, self.snr)


@dataclass(frozen=True, slots=True)
class Terrain:
    """How signals weaken with distance."""

    snr_at_1_km: float = 10.0
    decibels_per_decade: float = 35.0

    def link(self, distance_km: float, gain_db: float, spreading_factor: int) -> Link | None:
        """How well two stations hear each other; None when not at all. Packets fade near the limit of reception."""
        snr = self.snr_at_1_km + gain_db - self.decibels_per_decade * math.log10(max(0.05, distance_km))
        margin = snr + 2.5 * (spreading_factor - 4)
        if margin < -2 * FADING_DB:
            return None
        loss = 0.0 if margin > READABLE_DB else 1 / (1 + math.exp(margin / FADING_DB))
        return Link(round(loss, 4), round(4 * min(12.0, snr)) / 4)


@dataclass(frozen=True, slots=True)
class Topology:
    """A whole mesh as a file describes it."""

    nodes: tuple[NodeSpec, ...]
    preset: str = "LONG_FAST"
    region: str = "US"
    modem: Modem | None = None
    """Custom settings in place of the preset's."""
    capture_db: float | None = None
    """By how much a packet must be stronger than one it overlaps to survive; without it both are lost."""
    groups: tuple[GroupSpec, ...] = ()
    links: tuple[LinkSpec, ...] = ()
    terrain: Terrain | None = None

    def __post_init__(self) -> None:
        if self.preset not in PRESET_NAMES:
            raise ValueError(f"no preset {self.preset!r}")
        if self.region not in REGION_NAMES:
            raise ValueError(f"no region {self.region!r}")
        if sum(node.is_ours for node in self.nodes) != 1:
            raise ValueError("exactly one node is ours (is_ours = true)")
        names = [node.short for node in self.nodes] + [name for group in self.groups for name in _shorts(group)]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"short names must differ: {', '.join(sorted(twice))}")
        linked = {name for link in self.links for name in link.between} | {group.hub for group in self.groups} - {""}
        if unknown := linked - set(names):
            raise ValueError(f"links name stations that are not there: {', '.join(sorted(unknown))}")

    def mesh(
        self,
        *,
        clock: Clock,
        rng: random.Random,
        observer: Callable[[OnAir], None] | None = None,
        keep_last: int | None = None,
    ) -> SimulatedMesh:
        """A mesh with this radio and nobody in it yet: enter it, then `settle`."""
        return SimulatedMesh(
            clock=clock,
            rng=rng,
            preset=self.preset,
            region=self.region,
            observer=observer,
            modem=self.modem,
            by_distance=False,
            capture_db=self.capture_db,
            keep_last=keep_last,
        )

    def settle(self, mesh: SimulatedMesh, *, channels: tuple[str, ...] = ("",)) -> SimulatedNode:
        """Let everybody move in and begin their day; returns our node."""
        links = mesh.air.channel.links
        placed = [*self.nodes, *(node for group in self.groups for node in _members(group, mesh.air.rng))]
        numbers = {node.short: mesh.new_number(index) for index, node in enumerate(placed)}
        self._connect(links, placed, numbers, mesh.air.modem.spreading_factor)
        ours = next(node for node in self.nodes if node.is_ours)
        hops = links.hops_from(numbers[ours.short])
        heard_by_us = {number: links.of(number).get(numbers[ours.short], Link()) for number in hops}
        node = mesh.node(
            ours.name or ours.short,
            ours.short,
            number=numbers[ours.short],
            channels=channels,
            hop_limit=ours.hop_limit,
            role=ours.role,
        )
        for spec in placed:
            if not spec.is_ours:
                number = numbers[spec.short]
                _move_in(mesh, spec, number, hops.get(number, ours.hop_limit), heard_by_us.get(number, Link()))
        return node

    def _connect(
        self, links: Links, placed: list[NodeSpec], numbers: Mapping[str, NodeNum], spreading_factor: int
    ) -> None:
        if self.terrain is not None:
            located = [(node, node.at) for node in placed if node.at is not None]
            for (one, here), (other, there) in combinations(located, 2):
                link = self.terrain.link(math.dist(here, there), one.gain_db + other.gain_db, spreading_factor)
                if link is not None:
                    links.connect(numbers[one.short], numbers[other.short], link)
        for group in self.groups:
            for short in _shorts(group) if group.hub else ():
                links.connect(numbers[short], numbers[group.hub], group.link)
        for spec in self.links:
            first, second = (numbers[short] for short in spec.between)
            links.connect(first, second, spec.link, back=spec.back)


def _shorts(group: GroupSpec) -> list[str]:
    return [f"{group.short}{index}" for index in range(1, group.count + 1)]


def _members(group: GroupSpec, rng: random.Random) -> Iterator[NodeSpec]:
    """The stations of a group; those with a place are spread evenly over a disc around home."""
    for index, short in enumerate(_shorts(group)):
        angle, distance_km = rng.uniform(0, 2 * math.pi), group.within_km * math.sqrt(rng.random())
        place = (distance_km * math.cos(angle), distance_km * math.sin(angle))
        yield NodeSpec(
            short=short,
            name=f"{group.names[index % len(group.names)]} {index + 1}",
            role=group.roles[index % len(group.roles)],
            hop_limit=group.hop_limit,
            battery_percent=100 - 7 * index % 90,
            at=place if group.within_km else None,
            telemetry_minutes=group.telemetry_minutes,
            chatter_minutes=group.chatter_minutes,
        )


def _move_in(mesh: SimulatedMesh, spec: NodeSpec, number: NodeNum, hops: int, link: Link) -> None:
    peer = mesh.peer(
        spec.name or spec.short,
        spec.short,
        number=number,
        distance=hops,
        snr=link.snr,
        role=spec.role,
        hop_limit=spec.hop_limit,
        battery_percent=spec.battery_percent,
        position=None if spec.at is None else _degrees(spec.at),
        is_known=spec.is_known,
    )
    _begin_day(peer, spec)


def _begin_day(peer: Peer, spec: NodeSpec) -> None:
    name = peer.identity.short_name
    if spec.telemetry_minutes:
        peer.air.spawn(tell_telemetry(peer, spec.telemetry_minutes * MINUTE_S), f"telemetry of {name}")
    if spec.chatter_minutes:
        peer.air.spawn(chatter(peer, spec.chatter_minutes * MINUTE_S), f"chatter of {name}")
    if spec.echoes:
        peer.air.spawn(echo(peer), f"answers of {name}")
    if spec.stores:
        peer.air.spawn(store_and_forward(peer), f"store and forward of {name}")


def _degrees(at: tuple[float, float]) -> tuple[float, float]:
    return HOME[0] + at[1] / KM_PER_DEGREE[0], HOME[1] + at[0] / KM_PER_DEGREE[1]


# Reading.


def shipped() -> tuple[str, ...]:
    """Names of the topologies that come with MeshAI."""
    return tuple(sorted(entry.name.removesuffix(".toml") for entry in _FOLDER.iterdir()))


def load(source: str) -> Topology:
    """Read a topology by the name of one that comes with MeshAI, or from a file; ConfigError says what is wrong."""
    try:
        text = (_FOLDER / f"{source}.toml" if source in shipped() else Path(source)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read the topology {source!r} ({error}); with MeshAI come: {', '.join(shipped())}"
        ) from error
    return parse(text, source)


def parse(text: str, where: str) -> Topology:
    """A topology from TOML; `where` names the file in errors."""
    try:
        return read(Topology, tomllib.loads(text), where)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where}: {error}") from error


_FOLDER: Final = files("meshai.sim") / "topologies"
