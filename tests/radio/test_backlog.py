"""Which packets waited in the node too long to be answered."""

import pytest

from meshai.radio.backlog import Backlog
from meshai.radio.packets import Heard

NOW = 1_800_000_000
LIMIT_S = 600


class Node:
    """A node's packets as the backlog sees them, by one monotonic clock that starts with the process."""

    def __init__(self, *, away_since: float | None = None) -> None:
        self.backlog = Backlog(LIMIT_S, away_since=away_since)
        self.wall_s = float(NOW)

    def opened(self, at: float) -> None:
        self.backlog.opened(at, self.wall_s + at)

    def text(self, at: float, rx_time: float | None) -> bool:
        return self._hear(at, rx_time, is_text=True)

    def telemetry(self, at: float, rx_time: float | None) -> bool:
        return self._hear(at, rx_time, is_text=False)

    def _hear(self, at: float, rx_time: float | None, *, is_text: bool) -> bool:
        heard = Heard(at, None if rx_time is None else int(rx_time), is_text, None)
        return self.backlog.is_stale(heard, self.wall_s + at)


def test_the_backlog_of_a_first_connect_is_judged_by_reception_time() -> None:
    node = Node()
    node.opened(10)
    assert not node.text(10.1, NOW - 300)
    assert node.text(10.2, NOW - 3600)
    assert not node.text(10.3, NOW + 10)


@pytest.mark.parametrize("rx_time", [None, 0, 86_400, 1_500_000_000, NOW + 86_400])
def test_without_a_usable_time_a_first_backlog_is_stale(rx_time: float | None) -> None:
    node = Node()
    node.opened(10)
    assert node.text(10.1, rx_time)


@pytest.mark.parametrize(("away_s", "is_stale"), [(20, False), (3600, True), (-50, True)])
def test_the_previous_run_tells_how_long_nobody_listened(away_s: float, is_stale: bool) -> None:
    node = Node(away_since=NOW - away_s)
    node.opened(1)
    assert node.text(1.1, None) is is_stale


def test_a_packet_did_not_wait_longer_than_we_were_away() -> None:
    """The node's clock is three hours slow, but we listened until 20 s ago."""
    node = Node(away_since=NOW - 20)
    node.opened(1)
    assert not node.text(1.1, NOW - 3 * 3600)


def test_after_a_lost_link_a_backlog_without_time_is_as_old_as_the_gap() -> None:
    node = Node()
    node.opened(0)
    node.backlog.listening(100)
    node.opened(130)
    assert not node.text(130.1, None)
    node.backlog.listening(140)
    node.opened(140 + LIMIT_S + 10)
    assert node.text(140 + LIMIT_S + 10.1, None)


def test_a_link_lost_in_its_backlog_does_not_count_as_listening() -> None:
    """A rival kicks us before the node has handed everything over: what is left waited since the link before."""
    node = Node()
    node.opened(0)
    node.backlog.listening(10)
    node.opened(1000)
    assert node.text(1000.1, None)
    node.backlog.listening(1000.2)
    node.opened(1003)
    assert node.text(1003.1, None)


def test_the_wrong_clock_of_a_node_is_measured_on_live_packets() -> None:
    node = Node()
    slow_s = 5 * 3600
    node.opened(0)
    node.telemetry(60, NOW + 60 - slow_s)
    node.backlog.listening(100)
    node.opened(2000)
    assert node.text(2000.1, NOW + 200 - slow_s), "waited half an hour"
    assert not node.text(2000.2, NOW + 1990 - slow_s), "waited ten seconds"


def test_a_step_of_our_own_clock_changes_nothing() -> None:
    node = Node()
    node.opened(0)
    node.telemetry(60, NOW + 60)
    node.wall_s += 365 * 86_400
    node.backlog.listening(100)
    node.opened(130)
    assert not node.text(130.1, NOW + 120)


@pytest.mark.parametrize("rx_time", [None, 0, NOW - 86_400, NOW + 86_400])
def test_after_the_backlog_everything_is_live_whatever_an_unproven_clock_says(rx_time: float | None) -> None:
    node = Node()
    node.opened(0)
    assert not node.text(5, rx_time)


def test_a_clock_that_is_wrong_but_steady_does_not_silence_the_bot() -> None:
    node = Node()
    node.opened(0)
    for minute in range(1, 5):
        node.telemetry(60 * minute, NOW + 60 * minute - 86_400)
        assert not node.text(60 * minute + 20, NOW + 60 * minute + 20 - 86_400)


def test_a_replayed_text_is_stale() -> None:
    node = Node()
    node.opened(0)
    node.telemetry(60, NOW + 60)
    assert node.text(70, NOW - 7200)
    assert not node.text(71, NOW + 71)


def test_the_burst_ends_with_a_pause() -> None:
    node = Node()
    node.opened(0)
    assert node.text(0.4, None)
    assert node.text(0.8, None)
    assert not node.text(1.4, None)
    assert not node.text(1.5, None)


def test_the_burst_ends_after_ten_seconds_of_packets_without_pause() -> None:
    node = Node()
    node.opened(0)
    assert all(node.text(at / 4, None) for at in range(40))
    assert not node.text(10.1, None)
