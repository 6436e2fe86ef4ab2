"""What the value of a statement may look like: how much of the words behind "my name is" are the name, if any.

Rather nothing than something wrong: what a person said is still in the conversation, a wrong fact stays for months.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Self

import regex

from meshai.memory.slots import MOST_CHARACTERS, normal, words


class Shape(StrEnum):
    """Kinds of values, by the names the pattern files call them."""

    NAME = "name"
    CAPITAL_NAME = "capital name"
    """Where the words before it are weak evidence: only with a capital, and nothing behind it."""
    PLACE = "place"
    CALL_SIGN = "call sign"
    DATE = "date"
    LIST = "list"
    GEAR = "gear"
    THING = "thing"
    """Of a key: anything for a key of the language's list, else only what looks like a name or a number."""
    LANGUAGE = "language"
    UNITS = "units"
    PHRASE = "phrase"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Language:
    """The words of one language that tell where a value begins and ends, and what is none."""

    name: str
    articles: frozenset[str]
    never: frozenset[str]
    no_name: frozenset[str]
    no_place: frozenset[str]
    radio_words: frozenset[str]
    place_starts: frozenset[str]
    particles: frozenset[str]
    gear: Any
    attributes: Any
    passing: frozenset[str]
    first_person: frozenset[str]
    marks: frozenset[str]
    slot_names: Mapping[str, Any]
    lookups: Mapping[Shape, Mapping[str, str]]
    nouns_are_capital: bool
    """All nouns are written with a capital, which makes it no sign of a name."""
    join: Any
    list_join: Any
    trailer: Any

    @classmethod
    def of(cls, name: str, table: Mapping[str, Any], common: Mapping[str, Any]) -> Self:
        """Made of the tables of its file and of what all languages share. Raises KeyError for what is missing."""
        trailers = "|".join(phrase.replace(" ", r"\s+") for phrase in sorted(table["trailers"], key=len, reverse=True))
        gear = "|".join(map(regex.escape, sorted([*common["gear"], *table["nouns"]["gear"]], key=len, reverse=True)))
        return cls(
            name,
            _set(table["articles"]),
            _set(table["never"]),
            _set(table["no_name"]),
            _set(table["no_place"]),
            _set(common["radio_words"]),
            _set(common["place_starts"]),
            _set(common["particles"]),
            regex.compile(rf"(?<![\p{{L}}\p{{N}}])(?:{gear})s?(?![\p{{L}}])", regex.IGNORECASE),
            regex.compile("|".join(phrase.replace(" ", r"\s+") for phrase in table["attributes"]), regex.IGNORECASE),
            _set(table["passing"]),
            _set(table["first_person"]),
            _set(table["marks"]),
            {slot: regex.compile("|".join(names), regex.IGNORECASE) for slot, names in table["slots"].items()},
            {
                Shape.LANGUAGE: {normal(word): value for word, value in table["languages"].items()},
                Shape.UNITS: {normal(word): value for word, value in table["units"].items()},
            },
            bool(table.get("nouns_are_capital", False)),
            _whole(table["joins"]),
            _whole(table["list_joins"]),
            regex.compile(rf"(?:^|[\s,]+)(?:{trailers})[\s.,]*$", regex.IGNORECASE),
        )

    @property
    def small(self) -> frozenset[str]:
        """Words that mean little by themselves."""
        return self.never | self.articles | self.marks | self.first_person

    def is_end(self, rest: str) -> bool:
        """Whether nothing of weight stands behind a value: the clause ends, or another begins."""
        rest = self.without_trailers(rest.strip(" ,'\"’”“.«»\t"))
        return not any(character.isalnum() for character in rest) or self.join.match(rest) is not None

    def goes_on(self, text: str) -> bool:
        """Whether another clause follows in the text, so that what is asked may be that one."""
        return self.join.search(text) is not None

    def without_trailers(self, text: str) -> str:
        """`text` without words at its end that are no part of a value."""
        while (found := self.trailer.search(text)) is not None:
            text = text[: found.start()]
        return text.rstrip(" ,")

    def bare(self, text: str) -> str:
        """`text` without articles at its beginning."""
        parts = text.split()
        while parts and _plain(parts[0]) in self.articles:
            parts.pop(0)
        return " ".join(parts)

    def is_nothing(self, text: str) -> bool:
        """Whether a text cannot be a value, by how it begins."""
        first, plain = text.split(maxsplit=1)[:1], normal(text)
        return not first or _plain(first[0]) in self.never or plain in self.never or not words(text)


def shaped(shape: Shape, raw: str, language: Language, *, key: str = "", is_shouted: bool = False) -> Sequence[str]:
    """The values at the beginning of the raw text behind a pattern: mostly one, none if it is not of that shape."""
    if shape is Shape.LIST:
        return _list(raw, language)
    if shape is Shape.NOTE:
        text = _trimmed(raw)
        return [text[:MOST_CHARACTERS]] if len(words(text)) > 1 and not language.is_nothing(text) else []
    join = language.join.search(raw)
    text = _trimmed(language.without_trailers(_trimmed(raw[: join.start()] if join else raw)))
    if shape is Shape.CALL_SIGN:
        # "I", "a" and the like are no start of one, but digits are.
        return _call_sign(text, language)
    if not text or language.is_nothing(text):
        return []
    if shape in language.lookups:
        found = language.lookups[shape].get(normal(language.bare(text)))
        return [found] if found else []
    if shape is Shape.THING:
        return _thing(text, language, key, is_shouted)
    return _ONE[shape](text, language, is_shouted)


def _name(text: str, language: Language, is_shouted: bool) -> Sequence[str]:
    run = _run(text.split(), language, language.no_name, _NAME_PART, most=6)
    if not run or _is_radio(run[0], language):
        return []
    if _is_capital(run[0]) and not is_shouted:
        return [_trimmed(" ".join(run))]
    # Without capitals only a clause of nothing but a short name is one.
    is_whole = len(run) == len(text.split()) and len(run) <= 2
    return [_trimmed(" ".join(run))] if is_whole and len(run[0]) > 1 else []


def _capital_name(text: str, language: Language, is_shouted: bool) -> Sequence[str]:
    run = _run(text.split(), language, language.no_name, _NAME_PART, most=3)
    if is_shouted or not run or len(run) < len(text.split()) or not _is_capital(run[0]) or language.nouns_are_capital:
        return []
    return _name(text, language, is_shouted)


def _place(text: str, language: Language, is_shouted: bool) -> Sequence[str]:
    parts = language.bare(text).split()
    had_article = len(parts) < len(text.split())
    run = _run(parts, language, language.no_place, _PLACE_PART, most=5)
    if not run or _is_radio(run[0], language) or _plain(run[-1]) in language.no_place:
        return []
    if _is_capital(run[0]) and not is_shouted:
        return [_trimmed(" ".join(run))]
    is_whole = len(run) == len(parts) and not had_article
    is_one = len(run) == 1 and len(run[0]) > 2
    is_two = len(run) == 2 and _plain(run[0]) in language.place_starts
    return [_trimmed(" ".join(run))] if is_whole and (is_one or is_two) else []


def _date(text: str, language: Language, is_shouted: bool) -> Sequence[str]:
    has_day = any(character.isdigit() for character in text)
    return _phrase(text, language, is_shouted) if has_day and len(text.split()) <= 5 else []


def _phrase(text: str, language: Language, is_shouted: bool) -> Sequence[str]:
    text = language.bare(text)
    return [text] if text and len(text.split()) <= 8 and not language.is_nothing(text) else []


def _gear(text: str, language: Language, is_shouted: bool) -> Sequence[str]:
    text = language.bare(text)
    is_some = len(text.split()) <= 7 and language.gear.search(text) is not None
    return _phrase(text, language, is_shouted) if is_some else []


def _call_sign(text: str, language: Language) -> Sequence[str]:
    first = text.split()[:1]
    if not first:
        return []
    sign = first[0].strip(_AROUND)
    if _CALL_SIGN.fullmatch(sign):
        return [sign.upper()]
    # Some services use words for it.
    return _capital_name(text, language, False) if not language.is_nothing(text) else []


def _thing(text: str, language: Language, key: str, is_shouted: bool) -> Sequence[str]:
    if (
        not key
        or len(key.split()) > 3
        or any(part in language.passing or part in language.never for part in key.split())
    ):
        return []
    if language.attributes.fullmatch(key):
        return _phrase(text, language, is_shouted)
    parts = language.bare(text).split()
    quoted = text[0] in _AROUND and text[-1] in _AROUND and len(text) > 2
    has_digit = any(character.isdigit() for character in text) and len(parts) <= 2
    is_proper = (
        not is_shouted
        and not language.nouns_are_capital
        and len(parts) <= 4
        and len(parts) == len(text.split())
        and all(_is_capital(part) for part in parts)
    )
    return _phrase(_trimmed(text), language, is_shouted) if quoted or has_digit or is_proper else []


def _list(raw: str, language: Language) -> Sequence[str]:
    """The items of "nuts, bees and wasps"; of "nuts, thanks" only the first."""
    parts = raw.split(",")
    items: list[str] = []
    pending: list[str] = []
    for number, part in enumerate(parts):
        join = language.list_join.search(part)
        pieces = [part] if join is None else [part[: join.start()], part[join.end() :]]
        if other := language.join.search(pieces[-1]):
            pieces[-1] = pieces[-1][: other.start()]
        pieces = [_trimmed(language.without_trailers(_trimmed(piece))) for piece in pieces]
        fits = [bool(piece) and len(piece.split()) <= 3 and not language.is_nothing(piece) for piece in pieces]
        if number == 0:
            if not pieces[0] or len(pieces[0].split()) > 4 or language.is_nothing(pieces[0]):
                return []
            items.append(pieces[0])
        elif fits[0] or (join is not None and not pieces[0]):
            pending += [piece for piece in pieces[:1] if piece]
        else:
            break
        if join is not None:
            # Only what is behind "and" proves that the commas before it were those of a list.
            items += pending if number and fits[-1] else []
            items += [pieces[-1]] if fits[-1] else []
            break
    return [item for item in (language.bare(item) for item in items) if item and not language.is_nothing(item)]


_ONE: Final[Mapping[Shape, Callable[[str, Language, bool], Sequence[str]]]] = {
    Shape.NAME: _name,
    Shape.CAPITAL_NAME: _capital_name,
    Shape.PLACE: _place,
    Shape.DATE: _date,
    Shape.GEAR: _gear,
    Shape.PHRASE: _phrase,
}


def _run(parts: Sequence[str], language: Language, not_one: frozenset[str], fits: Any, *, most: int) -> list[str]:
    """The words at the beginning that are those of one name: all with capitals, or all without."""
    run: list[str] = []
    for part in parts[:most]:
        bare = part.strip(_AROUND)
        plain = _plain(bare)
        if not fits.fullmatch(bare) or (not run and (plain in not_one or plain in language.never)):
            break
        is_particle = plain in language.particles
        if run and (
            (plain in language.never and not is_particle)
            or (_is_capital(run[0]) and not (_is_capital(bare) or is_particle))
        ):
            break
        run.append(bare)
        if part[-1] in ",\"'”’":
            break
    while len(run) > 1 and _plain(run[-1]) in language.particles and not _is_capital(run[-1]):
        run.pop()
    return run


def _is_radio(part: str, language: Language) -> bool:
    return _plain(part) in language.radio_words


def _is_capital(part: str) -> bool:
    """Whether it begins with a capital, or with a letter of a script that has none, or with a digit."""
    first = part.lstrip(_AROUND)[:1]
    return bool(first) and not first.islower()


def _plain(part: str) -> str:
    return part.strip(_AROUND).casefold().replace("’", "'")


def _trimmed(text: str) -> str:
    """`text` without spaces, quotes and punctuation around it."""
    return text.strip(_AROUND + " \t").rstrip(".")


def _set(entries: Sequence[str]) -> frozenset[str]:
    return frozenset(entry.casefold() for entry in entries)


def _whole(phrases: Sequence[str]) -> Any:
    each = "|".join(phrase.replace(" ", r"\s+") for phrase in sorted(phrases, key=len, reverse=True))
    return regex.compile(rf"(?<![\p{{L}}\p{{M}}\p{{N}}'’])(?:{each})(?![\p{{L}}\p{{M}}\p{{N}}'’])", regex.IGNORECASE)


_AROUND: Final = "\"'’‘`´“”„«»*_,:;~- "
_NAME_PART: Final = regex.compile(r"\p{L}[\p{L}\p{M}\p{N}]*(?:['’.-][\p{L}\p{M}\p{N}]+)*+\.?")
_PLACE_PART: Final = regex.compile(r"[\p{L}\p{N}][\p{L}\p{M}\p{N}]*(?:['’./-][\p{L}\p{M}\p{N}]+)*+\.?")
_CALL_SIGN: Final = regex.compile(
    r"(?:[A-Z0-9]{1,4}/)?(?:\d?[A-Z]{1,2}\d{1,4}[A-Z]{1,4}|[A-Z]{3,4}\d{3,4})(?:/[A-Z0-9]{1,4})?", regex.IGNORECASE
)
