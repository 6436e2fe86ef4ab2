"""The seam to language models: what a model is asked, what it answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Protocol, Self


@dataclass(frozen=True, slots=True)
class ChatMessage:
    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class Completion:
    """A model's answer as it came: untrusted text, and what it cost in tokens (None when not reported)."""

    text: str
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class LanguageModel(Protocol):
    """Something that continues a conversation. Entering it may load weights; leaving it frees them."""

    @property
    def name(self) -> str:
        """What people know it by, for `!status` and the log."""
        ...

    @property
    def trouble(self) -> str:
        """Why it cannot answer now, as far as it knows, in a few words for anybody; empty when it can."""
        ...

    @property
    def at_once(self) -> int:
        """How many questions it works on at one time; more would only wait in it, and run out of time there."""
        ...

    @property
    def can_summarize(self) -> bool:
        """Whether a summary that it writes can be relied on; small models leave out and invent."""
        ...

    @property
    def context_tokens(self) -> int:
        """Room for prompt and answer together."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    async def complete(self, messages: Sequence[ChatMessage], *, max_tokens: int) -> Completion:
        """Answer `messages` (roles alternate, the last is the user's). Raises a ModelError."""
        ...
