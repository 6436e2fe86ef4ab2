"""What several parts must agree on about characters of any script."""

from collections.abc import Callable
from typing import Final

import regex

SPACELESS: Final = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}ー\p{Line_Break=SA}]"
"""Pattern of one character of a script that writes no spaces between words: Chinese, Japanese, Thai, Khmer, ..."""

_VISIBLE: Final = regex.compile(r"[^\s\p{Cc}\p{Cs}\p{Default_Ignorable_Code_Point}\u2800]")


def is_blank(text: str) -> bool:
    """Whether a reader would see nothing: white space, controls, zero-width and filler characters."""
    return _VISIBLE.search(text) is None


def beginning(text: str, most: int, *, size: Callable[[str], int] = len) -> str:
    """As many whole graphemes from the start of `text` as make up no more than `most` characters, or what `size` tells.

    Nothing when the first one is larger already. No character may be less than 1 to `size`.
    """
    head = text[: most + 1]
    ends = [0, *(grapheme.end() for grapheme in regex.finditer(r"\X", head))]
    return next(head[:end] for end in reversed(ends) if size(head[:end]) <= most)


def utf8_bytes(text: str) -> int:
    """What a text takes on the air."""
    return len(text.encode("utf-8", "replace"))
