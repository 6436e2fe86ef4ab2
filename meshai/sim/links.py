"""Which station hears which, and how well: the graph of a simulated mesh."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from meshai.messages import NodeNum

NOISE_DBM: Final = -117
"""What a 250 kHz receiver hears when nobody speaks."""
NOBODY: Final[Mapping[NodeNum, "Link"]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Link:
    """How one station hears another."""

    loss: float = 0.0
    """Probability that a packet fades although nothing else was on air."""
    snr: float = 6.0

    def __post_init__(self) -> None:
        if not 0 <= self.loss <= 1:
            raise ValueError(f"loss is a probability, not {self.loss}")

    @property
    def rssi(self) -> int:
        return round(NOISE_DBM + self.snr)


class Links:
    """Directed links by node number; stations without one do not hear each other at all."""

    def __init__(self) -> None:
        self._from: dict[NodeNum, dict[NodeNum, Link]] = {}

    def connect(self, one: NodeNum, other: NodeNum, link: Link, *, back: Link | None = None) -> None:
        """Let two stations hear each other, alike in both directions unless `back` says how `one` hears `other`."""
        self._from.setdefault(one, {})[other] = link
        self._from.setdefault(other, {})[one] = link if back is None else back

    def cut(self, one: NodeNum, other: NodeNum) -> None:
        """Let two stations hear each other no more; packets under way still arrive."""
        self._from.get(one, {}).pop(other, None)
        self._from.get(other, {}).pop(one, None)

    def of(self, sender: NodeNum) -> Mapping[NodeNum, Link]:
        """Who hears a station, and how well."""
        return self._from.get(sender, NOBODY)

    def hops_from(self, start: NodeNum) -> dict[NodeNum, int]:
        """The fewest relays between a station and each one its packets can reach."""
        hops = {start: 0}
        reached = [start]
        for station in reached:  # grows while it is walked
            for neighbour in self.of(station):
                if neighbour not in hops:
                    hops[neighbour] = hops[station] + 1
                    reached.append(neighbour)
        del hops[start]
        return {station: steps - 1 for station, steps in hops.items()}

    def renumber(self, former: NodeNum, number: NodeNum) -> None:
        """A station has become another number."""
        self._from = {
            (number if sender == former else sender): {
                (number if receiver == former else receiver): link for receiver, link in links.items()
            }
            for sender, links in self._from.items()
        }
