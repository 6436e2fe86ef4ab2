"""How many tokens a text costs, estimated without the model's own vocabulary.

Rather too many than too few: a context that is estimated too short is refused by the server. Measured on the
vocabularies of Qwen2.5 and SmolLM2: English letters take 4.8 bytes a token, digits and signs (node ids, SNR,
positions) one each, Cyrillic and Arabic 2 to 5.7 bytes, Greek 2.1, Chinese and Japanese 4 (SmolLM2: 1.5).
"""

from collections.abc import Iterable
from typing import Final

from meshai.characters import beginning
from meshai.model.base import ChatMessage

MESSAGE_TOKENS: Final = 8
"""What the chat template puts around each message: its role and the marks where it begins and ends."""

_LETTERS: Final = bytes(range(ord("a"), ord("z") + 1)) + bytes(range(ord("A"), ord("Z") + 1)) + b" "
_BEYOND_ASCII: Final = bytes(range(0x80, 0x100))


def estimate(messages: Iterable[ChatMessage]) -> int:
    """Tokens of a prompt as the model sees it; the sum of what its messages cost one by one."""
    return sum(MESSAGE_TOKENS + text_tokens(message.content) for message in messages)


def within(text: str, tokens: int) -> str:
    """As much of the beginning of a text as costs no more than so many tokens."""
    tokens = max(tokens, 0)
    while (cost := text_tokens(text)) > tokens:
        text = beginning(text, len(text) * tokens // cost)
    return text


def text_tokens(text: str) -> int:
    """A third of the English letters, half of the bytes beyond ASCII, and every digit and sign.

    Texts joined cost no more than they do one by one.
    """
    encoded = text.encode("utf-8", "replace")
    without_letters = encoded.translate(None, _LETTERS)
    singles = len(without_letters.translate(None, _BEYOND_ASCII))
    letters = len(encoded) - len(without_letters)
    beyond_ascii = len(without_letters) - singles
    return singles + -(-letters // 3) + -(-beyond_ascii // 2)
