"""Who hears whom on a mesh that is told by distances only: as if all lived along a street with relays at its corners.

A station's distance is the number of relays between it and our node. Stations at one distance hear each other. Relay
*d* stands between those at distance *d* - 1 and those at *d*, and hears both, and the relays before and behind it.
"""

from collections.abc import Callable
from typing import Final

from meshai.messages import NodeNum
from meshai.sim.links import Link, Links

OUR_LINK: Final = Link(snr=12.0)
"""How well our node and relays are heard, as far as it is up to them."""


class Street:
    """Links stations as they move in; `new_relay` makes the relay with an index from 1 and returns its number."""

    def __init__(self, links: Links, new_relay: Callable[[int], NodeNum]) -> None:
        self._links = links
        self._new_relay = new_relay
        self._placed: dict[NodeNum, tuple[int, Link]] = {}
        self._relays: list[NodeNum] = []

    def place(self, number: NodeNum, distance: int, link: Link) -> None:
        """Let a station hear those it can; `link` is its own part in how well."""
        while len(self._relays) < distance:
            self._add_relay()
        for other, (others_distance, others_link) in self._placed.items():
            if others_distance == distance:
                self._links.connect(number, other, _joint(link, others_link))
        for relay in self._relays[max(0, distance - 1) : distance + 1]:
            self._links.connect(number, relay, _joint(link, OUR_LINK))
        self._placed[number] = (distance, link)

    def _add_relay(self) -> None:
        """The next relay, heard by the one before it and by all who live on either side of it."""
        index = len(self._relays) + 1
        relay = self._new_relay(index)
        if self._relays:
            self._links.connect(relay, self._relays[-1], OUR_LINK)
        for other, (distance, link) in self._placed.items():
            if distance in (index - 1, index):
                self._links.connect(relay, other, _joint(link, OUR_LINK))
        self._relays.append(relay)


def _joint(one: Link, other: Link) -> Link:
    """A link between two stations, each with its own part in it."""
    return Link(1 - (1 - one.loss) * (1 - other.loss), min(one.snr, other.snr))
