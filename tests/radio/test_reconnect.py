"""Back-off, rivals, and saying things rarely."""

import random

from meshai.radio.reconnect import LONGEST_PAUSE_S, Backoff, Rarely, RivalWatch
from meshai.testing import ManualClock


def test_pauses_grow_to_a_cap_and_differ() -> None:
    backoff = Backoff(random.Random(3))
    pauses = [backoff.next_pause_s() for _ in range(40)]
    assert 0.7 <= pauses[0] <= 1.3
    assert all(0.7 <= pause <= LONGEST_PAUSE_S for pause in pauses)
    assert min(pauses[10:]) >= 0.7 * LONGEST_PAUSE_S
    assert len(set(pauses)) > 20


def test_two_clients_do_not_march_in_step() -> None:
    one, other = Backoff(random.Random(1)), Backoff(random.Random(2))
    assert [one.next_pause_s() for _ in range(5)] != [other.next_pause_s() for _ in range(5)]


def test_only_a_link_that_lived_ends_the_back_off() -> None:
    backoff = Backoff(random.Random(3))
    for _ in range(10):
        backoff.next_pause_s()
    backoff.lived(29)
    assert backoff.next_pause_s() > 5
    backoff.lived(30)
    assert backoff.next_pause_s() <= 1.3


def test_at_its_worst_there_are_few_tries_a_minute() -> None:
    backoff = Backoff(random.Random(5))
    elapsed_s, tries = 0.0, 0
    while elapsed_s < 60:
        elapsed_s += backoff.next_pause_s()
        tries += 1
    assert tries <= 12


def test_three_short_links_in_a_minute_are_a_rival() -> None:
    rivals = RivalWatch()
    assert [rivals.closed_by_node(at, 1.0) for at in (0, 2, 5)] == [False, False, True]


def test_short_links_far_apart_are_none() -> None:
    rivals = RivalWatch()
    assert not any(rivals.closed_by_node(at, 1.0) for at in range(0, 400, 40))


def test_a_link_that_lived_clears_the_suspicion() -> None:
    rivals = RivalWatch()
    ends = ((0, 1.0), (2, 1.0), (40, 38.0), (42, 1.0), (44, 1.0))
    assert not any(rivals.closed_by_node(at, lived_s) for at, lived_s in ends)


async def test_the_same_is_said_once_in_ten_minutes() -> None:
    clock = ManualClock()
    rarely = Rarely(clock)
    assert rarely.is_due("refused")
    assert not rarely.is_due("refused")
    assert rarely.is_due("no such port")
    await clock.advance(599)
    assert not rarely.is_due("refused")
    await clock.advance(2)
    assert rarely.is_due("refused")


def test_what_was_said_does_not_pile_up() -> None:
    rarely = Rarely(ManualClock())
    assert all(rarely.is_due(str(number)) for number in range(1000))
