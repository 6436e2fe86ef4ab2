"""A picture of a simulated mesh: who hears whom and how well, and what has become of the packets on each link.

The tree grows from our node; each station hangs below the neighbour through which our packets reach it with the fewest
transmissions. Small meshes are shown as a table of all links too, one row for each who speaks.
"""

import heapq
import io
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from meshai.messages import NodeNum
from meshai.sim.channel import Outcome
from meshai.sim.links import Link
from meshai.sim.mesh import SimulatedMesh
from meshai.sim.station import RadioStation

MAP_COLUMNS: Final = 118
"""Where no terminal says how wide it is."""
MOST_IN_TABLE: Final = 10
"""Stations whose links still make a table that fits a terminal."""
LEAST_LOSS: Final = 0.005
GOOD_LOSS: Final = 0.05
FAIR_LOSS: Final = 0.2


class MeshMap:
    """Draws a mesh as it is at the moment."""

    def __init__(self, mesh: SimulatedMesh) -> None:
        self._channel = mesh.air.channel
        self._start = mesh.nodes[0].number
        stations = (*(node.firmware for node in mesh.nodes), *mesh.peers.values(), *mesh.relays)
        self._stations: dict[NodeNum, RadioStation] = {station.number: station for station in stations}
        self._parents = self._ways()

    def show(self, console: Console) -> None:
        """Print it; long lines break at the console's width."""
        console.print(self.picture(), soft_wrap=False)

    def save(self, file: Path) -> None:
        """Save it as an SVG picture."""
        paper = Console(record=True, width=MAP_COLUMNS, file=io.StringIO())
        self.show(paper)
        paper.save_svg(str(file), title="meshai sim --map")

    def picture(self) -> RenderableType:
        """Tree and, for a small mesh, table; with counts as soon as something was on air."""
        parts: list[RenderableType] = [self._tree()]
        if len(self._stations) <= MOST_IN_TABLE:
            parts += ["", *self._table()]
        return Group(*parts)

    def _ways(self) -> dict[NodeNum, NodeNum]:
        """For each station that can be reached the one before it on the way, in the order of the ways' lengths."""
        reached: dict[NodeNum, NodeNum] = {}
        waiting = [(0.0, self._start, self._start)]
        while waiting:
            transmissions, number, before = heapq.heappop(waiting)
            if number in reached:
                continue
            reached[number] = before
            for neighbour, link in self._channel.links.of(number).items():
                if neighbour not in reached and link.loss < 1:
                    heapq.heappush(waiting, (transmissions + 1 / (1 - link.loss), neighbour, number))
        del reached[self._start]
        return reached

    def _tree(self) -> Tree:
        root = Tree(self._title(self._start), guide_style="dim")
        branches = {self._start: root}
        for number, before in self._parents.items():
            branches[number] = branches[before].add(self._described(number, before))
        for number in self._stations.keys() - branches.keys():
            root.add(self._title(number).append("  no way to it", style="red"))
        return root

    def _described(self, number: NodeNum, parent: NodeNum) -> Text:
        down, up = self._link(parent, number), self._link(number, parent)
        line = self._title(number).append("  ")
        if down == up:
            _append_link(line, down)
        else:
            _append_link(line.append("hears "), down)
            _append_link(line.append(", is heard "), up)
        others = sum(self._link(number, other) is not None for other in self._stations) - (up is not None)
        if others:
            line.append(f", {others} more in reach", style="dim")
        for arrow, outcomes in (("↓", self._outcomes(parent, number)), ("↑", self._outcomes(number, parent))):
            if outcomes:
                line.append(f"  {arrow} {_counted(outcomes)}", style="cyan")
        return line

    def _title(self, number: NodeNum) -> Text:
        identity = self._stations[number].identity
        title = Text().append(f"{identity.short_name} ", style="bold green" if number == self._start else "bold")
        if identity.long_name != identity.short_name:
            title.append(f"{identity.long_name} ")
        return title.append(identity.role, style="dim")

    def _table(self) -> tuple[Text, Table]:
        is_run = bool(self._channel.tally)
        what = "packets heard of those sent" if is_run else "SNR in dB, and loss"
        table = Table(box=None, header_style="bold")
        table.add_column("speaks")
        for station in self._stations.values():
            table.add_column(station.identity.short_name, justify="right")
        for speaker in self._stations:
            cells = [self._cell(speaker, hearer, is_run=is_run) for hearer in self._stations]
            table.add_row(Text(self._stations[speaker].identity.short_name, style="bold"), *cells)
        return Text(f"Who hears whom: {what}"), table

    def _cell(self, speaker: NodeNum, hearer: NodeNum, *, is_run: bool) -> Text:
        link = self._link(speaker, hearer)
        if link is None:
            return Text("" if speaker == hearer else "·", style="dim")
        if is_run:
            outcomes = self._outcomes(speaker, hearer)
            return Text(f"{outcomes[Outcome.HEARD]}/{outcomes.total()}", style=_style(link))
        return Text(f"{link.snr:.1f}" + (f" {link.loss:.0%}" if link.loss >= LEAST_LOSS else ""), style=_style(link))

    def _link(self, speaker: NodeNum, hearer: NodeNum) -> Link | None:
        return self._channel.links.of(speaker).get(hearer)

    def _outcomes(self, speaker: NodeNum, hearer: NodeNum) -> Counter[Outcome]:
        tally: Mapping[tuple[NodeNum, NodeNum], Counter[Outcome]] = self._channel.tally
        return tally.get((speaker, hearer), Counter())


def _counted(outcomes: Counter[Outcome]) -> str:
    """How many of the transmissions were heard, and what spoiled the others."""
    spoiled = [f"{count} {outcome}" for outcome, count in sorted(outcomes.items()) if outcome is not Outcome.HEARD]
    return f"{outcomes[Outcome.HEARD]} of {outcomes.total()}" + (f" ({', '.join(spoiled)})" if spoiled else "")


def _append_link(line: Text, link: Link | None) -> None:
    if link is None:
        line.append("not at all", style="red")
    else:
        lost = f", {link.loss:.0%} lost" if link.loss >= LEAST_LOSS else ""
        line.append(f"{link.snr:.1f} dB{lost}", style=_style(link))


def _style(link: Link) -> str:
    if link.loss <= GOOD_LOSS:
        return "green"
    return "yellow" if link.loss <= FAIR_LOSS else "red"
