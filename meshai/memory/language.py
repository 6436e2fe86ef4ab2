"""What recall knows of languages: one file each in `words/`, read once by whoever needs them."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

_WORD: Final = re.compile(r"[^\W_]+")


def words(text: str) -> list[str]:
    """The words of a text in lower case, letters and digits alone, as the index of turns cuts them."""
    return _WORD.findall(text.lower())


@dataclass(frozen=True, slots=True)
class Language:
    """One language, in words of lower case."""

    stop: frozenset[str]
    first_person: frozenset[str]
    asks_when: frozenset[str]
    asks_number: frozenset[str]
    numbers: frozenset[str]
    times: frozenset[str]
    months: Mapping[str, int]
    forms: Mapping[str, frozenset[str]]
    """The other forms of a word."""
    ago: Mapping[str, tuple[int, int]]
    """Expressions of time, and the first and last day they mean, counted back from today."""


def languages() -> tuple[Language, ...]:
    """All that there is a file for, English first."""
    found = sorted(
        (file for file in files(__package__).joinpath("words").iterdir() if file.name.endswith(".toml")),
        key=lambda file: (file.name != "en.toml", file.name),
    )
    return tuple(_read(tomllib.loads(file.read_text(encoding="utf-8"))) for file in found)


def language_of(asked: Sequence[str], known: Sequence[Language]) -> Language:
    """The language that most words of a question are common words of; the first where none or several fit best."""
    return max(known, key=lambda language: sum(word in language.stop for word in asked))


def _read(data: Mapping[str, Any]) -> Language:
    forms: dict[str, frozenset[str]] = {}
    for line in data["forms"]:
        group = frozenset(line.split())
        for word in group:
            forms[word] = forms.get(word, frozenset()) | group - {word}
    lists = {
        name: frozenset(data[name].split())
        for name in ("stop", "first_person", "asks_when", "asks_number", "numbers", "times")
    }
    months = {name: number for number, name in enumerate(data["months"].split(), start=1)}
    ago = {expression: (first, last) for expression, (first, last) in data["ago"].items()}
    return Language(**lists, months=months, forms=forms, ago=ago)
