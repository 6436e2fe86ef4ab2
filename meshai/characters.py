"""What several parts must agree on about characters of any script."""

from typing import Final

import regex

SPACELESS: Final = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}ー\p{Line_Break=SA}]"
"""Pattern of one character of a script that writes no spaces between words: Chinese, Japanese, Thai, Khmer, ..."""

_VISIBLE: Final = regex.compile(r"[^\s\p{Cc}\p{Cs}\p{Default_Ignorable_Code_Point}\u2800]")


def is_blank(text: str) -> bool:
    """Whether a reader would see nothing: white space, controls, zero-width and filler characters."""
    return _VISIBLE.search(text) is None
