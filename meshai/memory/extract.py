"""A digest without a model: the first clauses of the messages that say most."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import regex

from meshai.characters import beginning
from meshai.memory.prompts import note
from meshai.model.tokens import text_tokens

CLAUSE_CHARACTERS: Final = 60
_CLAUSE: Final = regex.compile(r"\A.{12,}?(?=[.!?;:。！？；]+(?:\s|\Z)|\n)", regex.DOTALL)
_WORD: Final = regex.compile(r"\p{L}{4,}|\p{N}+|[\p{Han}\p{Hiragana}\p{Katakana}]")


def digest(texts: Sequence[str], *, tokens: int) -> str:
    """Clauses of `texts` in their order, the most distinctive ones, joined by "; " within `tokens`.

    Distinctive is what holds words that few of the others hold; what everybody says all the time says little.
    """
    words = [frozenset(word.casefold() for word in _WORD.findall(text)) for text in texts]
    spread = Counter(word for each in words for word in each)
    weight = [sum(1 / spread[word] for word in each) for each in words]
    chosen: dict[int, str] = {}
    for place in sorted(range(len(texts)), key=lambda place: (-weight[place], -place)):
        clause = _first_clause(texts[place])
        cost = text_tokens(f"{clause}; ")
        if clause and cost <= tokens and clause not in chosen.values():
            chosen[place] = clause
            tokens -= cost
    return "; ".join(chosen[place] for place in sorted(chosen))


def _first_clause(text: str) -> str:
    found = _CLAUSE.match(text)
    return beginning(note(found[0] if found else text), CLAUSE_CHARACTERS).rstrip(" ,;")
