"""Who is taken for a bot: only somebody who answers faster than a person can, again and again."""

import pytest

from meshai.loops import MOST_NODES, MUTED_S, LoopGuard
from meshai.messages import IncomingMessage, TextLimits


def text(words: str = "a short question", sender: int = 1) -> IncomingMessage:
    return IncomingMessage(1, sender, 7, 0, words, 0.0, TextLimits(160, 200))


def test_a_bot_is_muted_after_three_answers_and_forgiven_later(caplog: pytest.LogCaptureFixture) -> None:
    guard, now, answers = LoopGuard(), 0.0, 0
    answered_at = None
    for _ in range(50):
        if not guard.is_loop(text("x" * 100), now=now, answered_at=answered_at):
            answers += 1
            answered_at = now + 3
        now += 8
    assert answers == 3
    assert caplog.text.count("taken for a bot") == 1
    assert guard.is_loop(text(), now=MUTED_S, answered_at=answered_at)
    assert not guard.is_loop(text(), now=now + MUTED_S, answered_at=answered_at)


def test_a_person_who_types_on_while_being_answered_is_never_muted() -> None:
    guard, now = LoopGuard(), 0.0
    for number in range(100):
        pause = 1.0 if number % 3 else 20.0
        assert not guard.is_loop(text(), now=now + pause, answered_at=now)
        now += 30


def test_long_texts_take_a_person_longer() -> None:
    guard = LoopGuard()
    for _ in range(9):
        assert not guard.is_loop(text("hi"), now=5, answered_at=0)
    assert [guard.is_loop(text("x" * 200), now=30, answered_at=0) for _ in range(3)] == [False, False, True]


def test_nodes_are_judged_apart_and_only_so_many_are_kept() -> None:
    guard = LoopGuard()
    for sender in (1, 1, 2, 2):
        assert not guard.is_loop(text(sender=sender), now=1, answered_at=0)
    assert guard.is_loop(text(sender=1), now=1, answered_at=0)
    assert guard.is_loop(text(sender=2), now=1, answered_at=0)
    for sender in range(3, MOST_NODES + 3):
        guard.is_loop(text(sender=sender), now=1, answered_at=0)
    assert not guard.is_loop(text(sender=1), now=1, answered_at=0), "the oldest make room"
