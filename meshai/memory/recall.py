"""Finding the older turns that bear on a question, without a model.

Theory of operation. The index says which turns hold a word of the question. A turn is ranked as a document of the ring
of turns around it, which count the less the farther they are and the longer: an answer is often worded without the
words of the question it answers. To this BM25 over rings come the session, words that stand side by side, and what kind
of turn it is: by whom, a question itself, about its speaker, with a time or a number where one is asked for. How much
each counts was chosen as a whole by the public halves of LoCoMo and LongMemEval together; not each weight alone helped
in both.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from itertools import pairwise
from typing import Final

from meshai.memory.context import Recalled
from meshai.memory.language import Language, language_of, words
from meshai.messages import Conversation, NodeNum
from meshai.model.tokens import text_tokens
from meshai.plaintext import one_line
from meshai.store import recall as index
from meshai.store.database import Connection
from meshai.store.recall import Place

SESSION_S: Final = 2 * 3600.0
"""A silence that ends a session."""
TURNS: Final = 20_000
"""Most turns of a conversation that are looked at, the newest."""
PER_WORD: Final = 3000
WORDS: Final = 40
RERANKED: Final = 300

_K1: Final = 0.9
_B: Final = 0.4
_RING: Final = (0.4, 0.28, 0.15)
_CLIP: Final = 100
"""Characters beyond which a turn says proportionally less about its neighbours."""
_IDF_POWER: Final = 0.8
_OTHER_FORM: Final = 0.6
_PAIR: Final = 0.5
_SESSION: Final = 0.2
_ASKER: Final = 0.8
_QUESTION: Final = 0.15
_FIRST_PERSON: Final = 0.2
_TIME: Final = 0.15
_TIME_ASKED: Final = 0.3
_NUMBER_ASKED: Final = 0.3
_DAY_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Question:
    """What is looked for, by whom and when; `asker` is the node whose words matter most, if any."""

    text: str
    asker: NodeNum | None
    now: float


async def find(
    db: Connection,
    conversation: Conversation,
    question: Question,
    *,
    before: int,
    tokens: int,
    speaker: Callable[[Place], str],
    known: Sequence[Language],
    zone: tzinfo | None = None,
    cost: Callable[[str], int] = text_tokens,
) -> list[Recalled]:
    """What was said in exchanges before `before` and bears on the question: a line a day, oldest first.

    The lines cost at most `tokens`. `speaker` names who said a turn; dates are those of `zone`, else of this machine.
    """
    places = await index.places(db, conversation, before=before, most=TURNS)
    asked = _Asked(question, known, {place.node: speaker(place) for place in places})
    if not places or not asked.terms:
        return []
    found = await index.postings(db, conversation, asked.phrases, most=PER_WORD)
    scores = _scores(places, asked.matches(places, found, zone))
    best = sorted(scores, key=lambda at: (-scores[at], -at))[:RERANKED]
    texts = await index.texts(db, (places[at].id for at in best))
    for at in best:
        scores[at] *= asked.suits(places[at], texts.get(places[at].id, ""))
    best.sort(key=lambda at: (-scores[at], -at))
    chosen = _Chosen(tokens, cost)
    for at in best:
        place = places[at]
        chosen.add(place, f"{speaker(place)} {_quoted(texts.get(place.id, ''))}", _short_date(place.at, zone))
    return chosen.lines()


class _Asked:
    """A question taken apart into what to look up and what to look for."""

    def __init__(self, question: Question, known: Sequence[Language], speakers: Mapping[NodeNum, str]) -> None:
        self.now = question.now
        said = words(question.text)[: 2 * WORDS]
        # Whom a question names is who matters, and a name that every turn of theirs bears finds nothing.
        named = {node: {*words(name)}.intersection(said) for node, name in speakers.items()}
        about = [node for node, name in named.items() if name]
        self.asker = about[0] if len(about) == 1 else question.asker
        said = [word for word in said if not any(word in name for name in named.values())]
        self.language = language = language_of(said, known)
        self.terms = [word for word in dict.fromkeys(said) if word not in language.stop][:WORDS]
        if not self.terms:
            self.terms = list(dict.fromkeys(said))[:WORDS]
        self._forms = [(word, form) for word in self.terms for form in sorted(language.forms.get(word, ()))]
        self._pairs = [pair for pair in dict.fromkeys(pairwise(said)) if not language.stop.intersection(pair)]
        self.phrases = [*self.terms, *(form for _, form in self._forms), *(" ".join(pair) for pair in self._pairs)]
        self._spans = [span for phrase, span in language.ago.items() if f" {phrase} " in f" {' '.join(said)} "]
        self._asks_when = bool(language.asks_when.intersection(said))
        self._asks_number = bool(language.asks_number.intersection(said))

    def matches(
        self, places: Sequence[Place], found: Sequence[Sequence[int]], zone: tzinfo | None
    ) -> list[tuple[float, dict[int, float]]]:
        """For each term, pair of words and time asked about: its weight, and the turns it is in, each with a count."""
        at = {place.id: position for position, place in enumerate(places)}
        ids = iter(found)
        by_term = {term: {at[turn]: 1.0 for turn in next(ids) if turn in at} for term in self.terms}
        for term, _ in self._forms:
            for turn in next(ids):
                if turn in at:
                    by_term[term].setdefault(at[turn], _OTHER_FORM)
        matches = [(_PAIR, rows) for _ in self._pairs if (rows := {at[turn]: 1.0 for turn in next(ids) if turn in at})]
        dates: list[datetime] = []
        for term, rows in by_term.items():
            month = self.language.months.get(term)
            year = int(term) if len(term) == 4 and term.isascii() and term.isdigit() else None
            if month is not None or year is not None:
                dates = dates or [datetime.fromtimestamp(place.at, zone) for place in places]
                for position, date in enumerate(dates):
                    if date.month == month or date.year == year:
                        rows.setdefault(position, 1.0)
        for first, last in self._spans:
            since, until = self.now - (last + 1) * _DAY_S, self.now - (first - 1) * _DAY_S
            matches.append((1.0, {i: 1.0 for i, place in enumerate(places) if since <= place.at < until}))
        return [*((1.0, rows) for rows in by_term.values()), *matches]

    def suits(self, place: Place, text: str) -> float:
        """How much more, or less, a turn of this kind says to such a question."""
        said = set(words(text))
        factor = 1.0
        if place.node == self.asker:
            factor *= 1 + _ASKER
        if place.asks:
            factor *= 1 - _QUESTION
        if said & self.language.first_person:
            factor *= 1 + _FIRST_PERSON
        has_number = any(word.isdigit() for word in said)
        if has_number or said & self.language.times:
            factor *= (1 + _TIME) * (1 + _TIME_ASKED * self._asks_when)
        if self._asks_number and (has_number or said & self.language.numbers):
            factor *= 1 + _NUMBER_ASKED
        return factor


def _scores(places: Sequence[Place], matches: Sequence[tuple[float, Mapping[int, float]]]) -> dict[int, float]:
    """BM25 of each turn with its ring, and of its session, by position."""
    count = len(places)
    average = sum(place.length for place in places) / count or 1.0
    sessions = _sessions(places)
    scores: defaultdict[int, float] = defaultdict(float)
    by_session: defaultdict[int, float] = defaultdict(float)
    for weight, rows in matches:
        near: defaultdict[int, float] = defaultdict(float)
        held: defaultdict[int, int] = defaultdict(int)
        for position, times in rows.items():
            near[position] += times
            session = sessions[position]
            held[session] += 1
            share = times * min(1.0, _CLIP / max(1, places[position].length))
            for distance, falls in enumerate(_RING, start=1):
                for other in (position - distance, position + distance):
                    if 0 <= other < count and sessions[other] == session:
                        near[other] += falls * share
        rarity = weight * _idf(count, len(near)) ** _IDF_POWER
        for position, times in near.items():
            length = 1 - _B + _B * places[position].length / average
            scores[position] += rarity * times * (_K1 + 1) / (times + _K1 * length)
        session_rarity = weight * _idf(sessions[-1] + 1, len(held))
        for session, times_held in held.items():
            by_session[session] += session_rarity * times_held / (times_held + 1)
    if scores and (most := max(by_session.values())) > 0:
        scale = _SESSION * max(scores.values()) / most
        for position in scores:
            scores[position] += scale * by_session[sessions[position]]
    return scores


def _idf(count: int, holding: int) -> float:
    return math.log(1 + (count - holding + 0.5) / (holding + 0.5))


def _sessions(places: Sequence[Place]) -> list[int]:
    """The number of the session each turn belongs to. A clock that jumped, either way, ends one too."""
    sessions = [0]
    for earlier, later in pairwise(places):
        sessions.append(sessions[-1] + (abs(later.at - earlier.at) >= SESSION_S))
    return sessions


class _Chosen:
    """The turns that are shown, as they fit, gathered in a line a day."""

    def __init__(self, tokens: int, cost: Callable[[str], int]) -> None:
        self._left = tokens
        self._cost = cost
        self._days: dict[str, list[tuple[int, bool, str]]] = {}

    def add(self, place: Place, text: str, day: str) -> None:
        needed = self._cost(f" {text}") + (0 if day in self._days else self._cost(f"{day}:\n"))
        if needed <= self._left:
            self._left -= needed
            self._days.setdefault(day, []).append((place.exchange, place.is_ours, text))

    def lines(self) -> list[Recalled]:
        made = []
        for day, said in self._days.items():
            said.sort()
            made.append(Recalled(said[-1][0], f"{day}: {' '.join(text for _, _, text in said)}"))
        return sorted(made, key=lambda line: line.exchange)


def _quoted(text: str) -> str:
    """Between marks that do not occur in it: nothing in a text can pose as another's."""
    return '"' + " ".join(one_line(line) for line in text.splitlines()).replace('"', "'") + '"'


def _short_date(at: float, zone: tzinfo | None) -> str:
    date = datetime.fromtimestamp(at, zone)
    return f"{date.day} {date:%b %Y}"
