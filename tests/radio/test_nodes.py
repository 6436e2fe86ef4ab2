"""The nodes known over several links."""

import pytest

from meshai.messages import BROADCAST, Node
from meshai.radio.nodes import MOST_NODES, KnownNodes

ANNA = {"num": 7, "user": {"longName": "Anna"}, "lastHeard": 50}


def test_nodes_of_this_link_lie_over_those_of_earlier_ones() -> None:
    before = {7: Node(7, "Anna Old", "AO", battery_percent=80), 9: Node(9, "Ben")}
    nodes = KnownNodes(before, {7: ANNA, 8: {"num": 8}, 0: {"num": 0}, BROADCAST: {}, 10: {"num": "odd"}})
    assert nodes[7] == Node(7, "Anna", "AO", last_heard=50.0, battery_percent=80)
    assert nodes[8].name == "!00000008"
    assert nodes[9] == Node(9, "Ben")
    assert nodes[10] == Node(10)
    assert sorted(nodes) == [7, 8, 9, 10]
    assert len(nodes) == 4
    assert nodes.get(11) is None
    with pytest.raises(KeyError):
        nodes[11]


def test_a_table_that_grows_does_not_disturb_a_reader() -> None:
    table: dict[int, object] = {7: ANNA}
    nodes = KnownNodes({}, table)
    for number in nodes:
        table[number + 1] = {"num": number + 1}
    assert list(nodes) == [7]


def test_those_heard_last_are_kept() -> None:
    table = {number: {"num": number, "lastHeard": number} for number in range(1, MOST_NODES + 100)}
    kept = KnownNodes({}, table).kept()
    assert len(kept) == MOST_NODES
    assert min(kept) == 100
