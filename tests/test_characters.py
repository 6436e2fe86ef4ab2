"""Where a text may be cut: between what readers take for characters."""

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from meshai.characters import beginning, utf8_bytes

ASTRONAUT = "👩\u200d🚀"
MIXED = st.sampled_from(["a", "é", "e\u0301", "я", "山", "🦊", ASTRONAUT, "🇩🇪", "👍🏽", " ", "\ud800"])


@pytest.mark.parametrize(
    ("text", "most", "kept"),
    [
        ("Anna", 4, "Anna"),
        ("Annas", 4, "Anna"),
        ("ОЛЯ", 4, "ОЛ"),
        ("山本", 4, "山"),
        ("🦊🦊", 4, "🦊"),
        (ASTRONAUT, 4, ""),
        (f"a{ASTRONAUT}", 4, "a"),
        ("ae\u0301", 2, "a"),
        ("", 4, ""),
    ],
)
def test_the_beginning_in_bytes_is_whole_graphemes(text: str, most: int, kept: str) -> None:
    assert beginning(text, most, size=utf8_bytes) == kept


def test_without_a_size_characters_are_counted() -> None:
    assert beginning("山本🦊x", 3) == "山本🦊"
    assert beginning(f"x{ASTRONAUT}", 3) == "x"


@given(parts=st.lists(MIXED, max_size=20), most=st.integers(min_value=0, max_value=40), in_bytes=st.booleans())
def test_the_beginning_fits_and_one_grapheme_more_would_not(parts: list[str], most: int, in_bytes: bool) -> None:
    text, size = "".join(parts), utf8_bytes if in_bytes else len
    graphemes = regex.findall(r"\X", text)
    kept = beginning(text, most, size=size)
    count = len(regex.findall(r"\X", kept))
    assert kept == "".join(graphemes[:count])
    assert size(kept) <= most
    assert count == len(graphemes) or size("".join(graphemes[: count + 1])) > most
