"""What a person says of themselves in a message: found by patterns, without a model.

Each language is a file in `patterns/`, and every message is tried in all of them. A statement counts only at the
beginning of a clause, outside of quotation marks, and when it is not asked: "my name is Anna" is one, "she thinks my
name is Anna" and "is my name Anna?" are not. What a value may look like depends on its kind (`values`).

Texts come from the air: they are cut, patterns have no nested repeats, and each has a limit of time.
"""

import logging
import tomllib
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final, TypeAlias

import regex

from meshai.memory.slots import MOST_CHARACTERS, SLOTS, words
from meshai.memory.values import Language, Shape, shaped

log = logging.getLogger(__name__)

MOST_CLAUSES: Final = 12
MOST_READ: Final = 1000
"""Characters of a text that are looked at; a packet holds 233."""
PATIENCE_S: Final = 0.05
"""For one pattern on one clause; it takes microseconds."""


@dataclass(frozen=True, slots=True)
class States:
    """Something holds from now on."""

    slot: str
    value: str
    key: str = ""


@dataclass(frozen=True, slots=True)
class Ends:
    """Something holds no more: the values of a slot with these words, or all of them if there are none."""

    slot: str
    value: str = ""


@dataclass(frozen=True, slots=True)
class Forgets:
    """Something shall be forgotten: whole slots, and whatever has all of these words in it."""

    slots: frozenset[str]
    words: tuple[str, ...]


Statement: TypeAlias = States | Ends | Forgets


@dataclass(frozen=True, slots=True)
class _Pattern:
    """One way to say one thing in one language."""

    kind: str
    """`statement`, `ending` or `forgetting`."""
    slot: str
    shape: Shape
    prefix: str
    says: Any


class Reader:
    """The patterns of all languages, ready to read texts. Making one takes a moment: one is enough."""

    def __init__(self) -> None:
        folder = files("meshai.memory") / "patterns"
        common = tomllib.loads((folder / "common.toml").read_text(encoding="utf-8"))
        tables = {
            entry.name.removesuffix(".toml"): tomllib.loads(entry.read_text(encoding="utf-8"))
            for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)
            if entry.name.endswith(".toml") and entry.name != "common.toml"
        }
        self._abbreviations: Final = frozenset(common["abbreviations"])
        self.languages: Final[Mapping[str, Language]] = {
            name: Language.of(name, table, common) for name, table in tables.items()
        }
        self._patterns: Final = [
            (self.languages[name], list(_compiled(table, self.languages[name]))) for name, table in tables.items()
        ]
        self._starts: Final = _any_of([word for table in tables.values() for word in table["begins"]])
        self._past: Final = _any_of([phrase for table in tables.values() for phrase in table["past"]])

    def read(self, text: str) -> Sequence[Statement]:
        """All that a message states, ends or wants forgotten, in the order it is said."""
        found: list[Statement] = []
        text = unicodedata.normalize("NFC", text[:MOST_READ])
        quotes = [match.span() for match in _QUOTED.finditer(text)]
        for sentence in self._sentences(text):
            if sentence.text.lstrip().startswith(">"):
                continue
            found.extend(self._told(sentence, quotes))
        return found

    def _told(self, sentence: "_Sentence", quotes: Sequence[tuple[int, int]]) -> Sequence[Statement]:
        found: list[Statement] = []
        notes: Sequence[Statement] = ()
        taken = -1
        for start in self._clauses(sentence.text):
            if start <= taken or any(begin < sentence.start + start < end for begin, end in quotes):
                continue
            said, taken = self._at(sentence, start)
            if said and isinstance(said[0], States) and said[0].slot == "note":
                notes, taken = notes or said, start
            else:
                found.extend(said)
        # What was to be remembered is a note only when it is nothing more definite.
        return found or notes

    def asks_for_the_past(self, question: str) -> bool:
        """Whether a question wants to know what was before, beside or instead of what is."""
        return self._past.search(question[:MOST_READ]) is not None

    def _sentences(self, text: str) -> "Iterator[_Sentence]":
        begin = 0
        for end in _SENTENCE_END.finditer(text):
            before = text[begin : end.start()].split()
            if end[0].startswith(".") and before and before[-1].casefold() in self._abbreviations:
                continue
            yield _Sentence(text[begin : end.start()], begin, is_asked=not {"?", "？", "؟"}.isdisjoint(end[0]))
            begin = end.end()
        yield _Sentence(text[begin:], begin, is_asked=False)

    def _clauses(self, sentence: str) -> Sequence[int]:
        """Where a clause may begin: as often as in any sentence of a person's, for each is looked at to its end."""
        starts = {0, *(match.end() for match in _CLAUSE_END.finditer(sentence))}
        starts |= {match.end() for match in self._starts.finditer(sentence)}
        return sorted(starts)[:MOST_CLAUSES]

    def _at(self, sentence: "_Sentence", start: int) -> tuple[Sequence[Statement], int]:
        """What is said in the clause that begins there, and where its last word read stands (-1 for nowhere)."""
        comma = _CLAUSE_END.search(sentence.text, start + 1)
        for language, patterns in self._patterns:
            for pattern in patterns:
                # A list goes on behind commas; whatever else is said ends there.
                is_long = pattern.shape in (Shape.LIST, Shape.NOTE, Shape.CAPITAL_NAME)
                end = len(sentence.text) if is_long or comma is None else comma.start()
                try:
                    match = pattern.says.match(sentence.text, start, end, timeout=PATIENCE_S)
                except TimeoutError:
                    log.warning("a text took too long to be read for what it states")
                    continue
                if match is None:
                    continue
                said = _said(pattern, match, language, sentence, is_last=end == len(sentence.text))
                if said:
                    # Another statement may stand behind the value, or in a note.
                    groups = match.groupdict()
                    return said, int(match.start("value" if groups.get("value") else "rest"))
        return (), -1


@dataclass(frozen=True, slots=True)
class _Sentence:
    text: str
    start: int
    """Its place in the whole text."""
    is_asked: bool


def _said(
    pattern: _Pattern, match: Any, language: Language, sentence: _Sentence, *, is_last: bool
) -> Sequence[Statement]:
    """The statements of a match, or nothing when its value is none."""
    groups = match.groupdict()
    noun, raw = groups.get("noun") or "", groups.get("value")
    if (
        sentence.is_asked
        and is_last
        and pattern.kind == "statement"
        and not language.goes_on(match["rest"] or raw or "")
    ):
        return ()
    if pattern.kind == "forgetting":
        return _forgets(raw or "", language)
    key = " ".join(words(groups.get("key") or ""))
    if raw is None:
        if not language.is_end(match["rest"]):
            return ()
        values: Sequence[str] = (noun,)
    else:
        values = shaped(pattern.shape, raw, language, key=key, is_shouted=sentence.text.upper() == sentence.text)
        if match["rest"].strip() and not language.is_end(match["rest"]):
            return ()
        if not values:
            return ()
        values = [" ".join(filter(None, (pattern.prefix, noun.lower(), value))) for value in values]
    values = [value[:MOST_CHARACTERS].rstrip() for value in values]
    if pattern.kind == "ending":
        return [Ends(pattern.slot, value) for value in values]
    return [States(pattern.slot, value, key) for value in values if value]


def _forgets(what: str, language: Language) -> Sequence[Statement]:
    what = language.without_trailers(what.strip(" ,'\""))
    slots = frozenset(slot for slot, names in language.slot_names.items() if names.fullmatch(language.bare(what)))
    wanted = tuple(word for word in words(what) if word not in language.small)
    return [Forgets(slots, () if slots else wanted)] if slots or wanted else ()


def _compiled(table: Mapping[str, Any], language: Language) -> Iterator[_Pattern]:
    lead_ins = "|".join(map(_spaced, sorted(table["lead_ins"], key=len, reverse=True)))
    before = rf"(?:[\s,]*(?:{lead_ins})(?![\p{{L}}\p{{M}}'’])[\s,:-]*)*+[\s,]*"
    for kind in ("forgetting", "ending", "statement"):
        for entry in table.get(kind, ()):
            slot = entry.get("slot", "")
            if kind != "forgetting" and slot not in SLOTS:
                raise ValueError(f"patterns/{language.name}.toml fills {slot!r}, which is no slot")
            nouns = (
                "|".join(map(_spaced, sorted(table["nouns"][entry["noun"]], key=len, reverse=True)))
                if "noun" in entry
                else ""
            )
            # A lead-in such as "remember that" is all there is of a note.
            first = before if slot != "note" else before.replace(")*+[", ")*?[")
            if "after" in entry:
                first = rf"[\s]*(?:{'|'.join(map(_spaced, entry['after']))})(?![\p{{L}}\p{{M}}])[\s,]*[\s,]*"
            for says in entry["says"]:
                source = first + _spaced(says)
                source = source.replace("{noun}", rf"(?P<noun>{nouns})(?![\p{{L}}\p{{M}}])")
                source = source.replace("{key}", r"(?P<key>\p{L}[\p{L}\p{M}\p{N}' -]{0,40}?)").replace(
                    "{_}", r"\S.{0,60}?"
                )
                if says.endswith("{}"):
                    source = source.removesuffix("{}") + r"(?P<value>\S.*)(?P<rest>)"
                else:
                    source = source.replace("{}", r"(?P<value>\S.{0,80}?)") + r"(?![\p{L}\p{M}\p{N}])(?P<rest>.*)"
                shape = Shape(entry.get("value", "phrase") if kind != "forgetting" else "note")
                yield _Pattern(kind, slot, shape, entry.get("prefix", ""), regex.compile(source, _FLAGS))


def _spaced(pattern: str) -> str:
    """A pattern that takes any white space for a space, and any apostrophe for one."""
    return pattern.replace("'", "['’´`]").replace(" ?", r"\s*").replace(" ", r"\s+")


def _any_of(phrases: Sequence[str]) -> Any:
    each = "|".join(sorted({_spaced(phrase) for phrase in phrases}, key=len, reverse=True))
    return regex.compile(rf"(?<![\p{{L}}\p{{M}}])(?:{each})(?![\p{{L}}\p{{M}}'’])", _FLAGS)


_FLAGS: Final = regex.IGNORECASE | regex.DOTALL
_SENTENCE_END: Final = regex.compile(r"[!?？！؟;；\n\r()。…¿¡]+|\.+(?=\s|$)|\.+(?=[\"”'»)])|:(?=\s*[\"“„«])|\s[–—-]+\s")
_CLAUSE_END: Final = regex.compile(r",(?=\s|\p{L})|，|、|:(?=\s)")
_QUOTED: Final = regex.compile(r"\"[^\"]*\"|“[^”]*”|„[^“”]*[“”]|«[^»]*»|»[^«]*«")
