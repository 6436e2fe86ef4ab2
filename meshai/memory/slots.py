"""The closed list of what can be known about a node, and how two values are found to be the same."""

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import regex


@dataclass(frozen=True, slots=True)
class Slot:
    """One kind of fact. The order of `SLOTS` is the order in which facts enter a prompt."""

    name: str
    meaning: str
    """For the model, which is asked to fill slots."""
    is_many: bool = False
    """It holds several values at once; a slot that holds one is replaced by the next."""
    has_key: bool = False
    """It holds one value for each key: the colour of the boat beside the length of the boat."""
    refines: bool = False
    """A value that says more takes the place of the one that said less: `dog Rex` of `dog`."""
    is_vital: bool = False
    """It enters a prompt before all others, whatever was asked."""


SLOTS: Final[Mapping[str, Slot]] = {
    slot.name: slot
    for slot in (
        Slot("name", "the person's name", is_vital=True),
        Slot("nickname", "what the person wants to be called", is_vital=True),
        Slot("call sign", "radio call sign", is_vital=True),
        Slot("allergy", "what the person is allergic to", is_many=True, is_vital=True),
        Slot("language", "language the person wants answers in", is_vital=True),
        Slot("units", "metric or imperial", is_vital=True),
        Slot("home", "where the person lives"),
        Slot("origin", "where the person comes from"),
        Slot("job", "the person's work"),
        Slot("birthday", "date of birth or birthday"),
        Slot("diet", "what the person does not eat or drink", is_many=True),
        Slot("own", "one thing of the person, named by key: key `boat`, value `Blue Pearl`", has_key=True),
        Slot("family", "a relative or partner, with the name", is_many=True, refines=True),
        Slot("pet", "an animal of the person, with its name", is_many=True, refines=True),
        Slot("gear", "radio or equipment of the person", is_many=True, refines=True),
        Slot("likes", "what the person likes or does for pleasure", is_many=True),
        Slot("plan", "what the person is going to do, with its date", is_many=True),
        Slot("note", "anything else the person asked to remember", is_many=True),
    )
}

MOST_WORDS: Final = 30
MOST_CHARACTERS: Final = 160
"""Of one value: about what a packet holds."""

_WORD: Final = regex.compile(r"[\p{L}\p{M}\p{N}]+(?:['’.-][\p{L}\p{M}\p{N}]+)*+")


def words(text: str) -> tuple[str, ...]:
    """The words of a text as they are compared: without case, accents, and punctuation around them."""
    plain = unicodedata.normalize("NFKD", text).replace("’", "'")
    plain = "".join(character for character in plain if not unicodedata.combining(character))
    return tuple(_WORD.findall(plain.casefold()))


def normal(text: str) -> str:
    """One text for all spellings of a value that differ in case, accents, spaces or punctuation only."""
    return " ".join(words(text)) or text.strip().casefold()
