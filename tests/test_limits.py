"""Answers per hour: bursts up to an hour's worth, then evenly."""

from hypothesis import given
from hypothesis import strategies as st

from meshai.limits import HOUR_S, MOST_NODES, AnswerLimits

ANNA, BEN = 0xA11A, 0xBE17


def test_a_node_may_have_an_hours_worth_at_once_and_then_one_by_one() -> None:
    limits = AnswerLimits(per_node_hour=4, per_hour=100)
    assert [limits.wait_s(ANNA, 50.0) for _ in range(4)] == [0.0] * 4
    assert abs(limits.wait_s(ANNA, 50.0) - 900) < 0.001
    assert abs(limits.wait_s(ANNA, 350.0) - 600) < 0.001, "a refusal costs nothing"
    assert limits.wait_s(BEN, 350.0) == 0.0
    assert limits.wait_s(ANNA, 950.0) == 0.0
    assert limits.wait_s(ANNA, 951.0) > 0


def test_all_nodes_together_have_a_limit_too() -> None:
    limits = AnswerLimits(per_node_hour=4, per_hour=6)
    assert [limits.wait_s(node, 0.0) for node in range(1, 7)] == [0.0] * 6
    assert abs(limits.wait_s(7, 0.0) - 600) < 0.001


def test_nodes_that_ask_once_take_no_room_for_ever() -> None:
    limits = AnswerLimits(per_node_hour=1, per_hour=10**9)
    for node in range(1, MOST_NODES + 1):
        assert limits.wait_s(node, 0.0) == 0
    assert limits.wait_s(MOST_NODES, 0.0) > 0
    assert limits.wait_s(MOST_NODES + 1, 0.0) == 0
    assert limits.wait_s(1, 0.0) == 0, "forgotten, as the one that asked longest ago"


@given(st.lists(st.tuples(st.sampled_from([ANNA, BEN]), st.floats(0, 600)), max_size=200))
def test_no_hour_holds_more_than_twice_the_limit_and_no_wait_is_a_lie(asked: list[tuple[int, float]]) -> None:
    limits = AnswerLimits(per_node_hour=5, per_hour=7)
    now, answered = 0.0, []
    for node, pause_s in asked:
        now += pause_s
        wait_s = limits.wait_s(node, now)
        assert 0 <= wait_s <= HOUR_S
        if not wait_s:
            answered.append((node, now))
    for _, began in answered:
        hour = [node for node, at in answered if began <= at <= began + HOUR_S]
        assert len(hour) <= 14
        assert max(hour.count(ANNA), hour.count(BEN)) <= 10
    if asked and (wait_s := limits.wait_s(ANNA, now)):
        assert limits.wait_s(ANNA, now + wait_s + 0.01) == 0
