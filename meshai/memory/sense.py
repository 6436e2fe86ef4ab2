"""Whether what a model gave as a summary can be one."""

from collections import Counter
from typing import Final

import regex

from meshai.characters import is_blank
from meshai.model.tokens import text_tokens

_REFUSAL: Final = regex.compile(
    r"(?i)\A\W*(?:i(?:'|’)?m\s+sorry|i\s+am\s+sorry|sorry|i\s+(?:can(?:'|’)?t|cannot|can\s+not|won(?:'|’)?t|will\s+not"
    r"|am\s+(?:not\s+able|unable)|must\s+decline)|as\s+an?\s+(?:ai|language\s+model)|es\s+tut\s+mir\s+leid|ich\s+kann\s+"
    r"(?:das\s+|leider\s+|dabei\s+)*nicht|lo\s+siento|no\s+puedo|je\s+(?:suis\s+désolé|ne\s+peux\s+pas)|mi\s+dispiace)\b"
)
_SCRIPTS: Final = (
    "Latin",
    "Cyrillic",
    "Greek",
    "Arabic",
    "Hebrew",
    "Devanagari",
    "Thai",
    "Hangul",
    "Georgian",
    "Armenian",
)
_SCRIPT: Final = {
    **{name: regex.compile(rf"\p{{Script={name}}}") for name in _SCRIPTS},
    "Chinese or Japanese": regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}]"),
}
_WORD: Final = regex.compile(r"\p{L}{4}|\p{N}{2,}|[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}]")
"""The first letters of longer words, so that their endings do not matter."""
LEAST_SHARE: Final = 0.2
"""Part of the words of a summary that must be its input's, and of the input's letters that must be of its script."""


def nonsense(text: str, source: str) -> str:
    """Why `text` is no summary of `source`, in a few words; empty when it may be one."""
    if is_blank(text):
        return "it is empty"
    if text_tokens(text) > text_tokens(source):
        return "it is longer than what it was made of"
    if _REFUSAL.match(text):
        return "it is a refusal"
    scripts, source_scripts = _scripts(text), _scripts(source)
    if scripts and source_scripts:
        script = scripts.most_common(1)[0][0]
        if source_scripts[script] < LEAST_SHARE * source_scripts.total():
            return f"it is written in {script}, unlike what it was made of"
    words, source_words = _words(text), _words(source)
    if source_words and len(words & source_words) < LEAST_SHARE * len(words):
        return "it speaks of something else"
    return ""


def _scripts(text: str) -> Counter[str]:
    """How many letters of each script there are."""
    counts = Counter({name: len(letter.findall(text)) for name, letter in _SCRIPT.items()})
    return +counts


def _words(text: str) -> frozenset[str]:
    return frozenset(word for word in _WORD.findall(text.casefold()))
