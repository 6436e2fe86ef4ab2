"""A digest without a model: short, in order, of what is said seldom."""

from hypothesis import given
from hypothesis import strategies as st

from meshai.memory.extract import digest
from meshai.model.tokens import text_tokens

CHATTER = ["hello, anybody there?", "thanks, that works", "thanks, that works fine", "hello there again"] * 3


def test_what_only_one_message_says_is_kept_and_what_everybody_says_is_not() -> None:
    made = digest([*CHATTER, "The repeater on Hochkopf is down since Tuesday. Nobody knows why.", *CHATTER], tokens=18)
    assert made == "The repeater on Hochkopf is down since Tuesday"


def test_clauses_stand_in_the_order_they_were_said() -> None:
    made = digest(["Zebras graze near Windhoek.", "Anchors rust quickly offshore."], tokens=60)
    assert made == "Zebras graze near Windhoek; Anchors rust quickly offshore"


def test_a_long_message_without_a_full_stop_is_cut() -> None:
    assert len(digest(["wandering " * 30], tokens=500)) <= 60


@given(texts=st.lists(st.text(max_size=250), max_size=20), tokens=st.integers(-5, 130))
def test_it_stays_within_its_tokens_and_on_one_line(texts: list[str], tokens: int) -> None:
    made = digest(texts, tokens=tokens)
    assert text_tokens(made) <= max(tokens, 0)
    assert len(made.splitlines()) <= 1
