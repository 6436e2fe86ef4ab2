"""The nodes our node knows, over all links of one process.

The library keeps a dict for each, and changes it as packets come. Most callers want one node of hundreds, so a node
is read when it is asked for. What earlier links told stays: a later one may be without the node database.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from meshai.messages import BROADCAST, Node, NodeNum
from meshai.radio.packets import merged, node_from

MOST_NODES: Final = 4000


class KnownNodes(Mapping[NodeNum, Node]):
    """The library's table laid over the nodes known before. Both are copied, but not what the table holds."""

    def __init__(self, before: Mapping[NodeNum, Node], table: Mapping[int, object]) -> None:
        self._before = before
        self._table = {number: node for number, node in table.items() if 0 < number < BROADCAST}

    def __getitem__(self, number: NodeNum) -> Node:
        if (entry := self._table.get(number)) is None:
            return self._before[number]
        node = node_from(entry)
        return merged(self._before.get(number), node if node is not None else Node(number))

    def __iter__(self) -> Iterator[NodeNum]:
        return iter(self._before.keys() | self._table.keys())

    def __len__(self) -> int:
        return len(self._before.keys() | self._table.keys())

    def kept(self) -> dict[NodeNum, Node]:
        """All of them as they are now; of too many, those heard last."""
        nodes = sorted(self.values(), key=lambda node: node.last_heard or 0.0)[-MOST_NODES:]
        return {node.number: node for node in nodes}
