"""Any OpenAI-compatible server as a `LanguageModel`.

The `openai` package takes most of a second to import (several on a Pi), so a thread imports it after the model is
entered, while the radio already listens; the first question waits for it. Retries are ours and not the client's:
they run on our clock, end with the time a person is made to wait, and leave the last status for the error's text.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from meshai.clock import Clock
from meshai.config import ModelSettings
from meshai.errors import ModelTimeout, ModelUnavailable
from meshai.model.base import ChatMessage, Completion
from meshai.model.exchange import Failure, Server, from_connection, from_status, is_loopback, read_completion

if TYPE_CHECKING:
    from openai import AsyncOpenAI

log = logging.getLogger(__name__)

RETRIES: Final = 2
AT_ONCE: Final = 8
"""Questions before a server at one time: a hung one holds up nobody else before there are so many."""
FIRST_PAUSE_S: Final = 0.5
_NEWER_LIMIT: Final = "max_completion_tokens"
"""What hosted thinking models want `max_tokens` to be called; they say so in their refusal."""
CONNECT_S: Final = 5.0
"""Longest wait for a TCP connection, so that a machine that is off is told from a model that is slow."""


class OpenAIModel:
    """The model `settings` names, or another one at `base_url`.

    Without a `temperature` the server's own applies: its operator tunes it there, and hosted thinking models
    refuse any other.
    """

    def __init__(
        self,
        settings: ModelSettings,
        *,
        clock: Clock,
        base_url: str | None = None,
        api_key: str | None = None,
        name: str | None = None,
        temperature: float | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._server = Server(
            base_url=settings.base_url if base_url is None else base_url,
            model=settings.name if name is None else name,
            key=settings.api_key.get_secret_value() if api_key is None else api_key,
        )
        self._temperature = temperature
        self._limit_name = "max_tokens"
        self._opening: asyncio.Task[AsyncOpenAI] | None = None
        self._is_silent = False
        """It gave no answer to the last question."""

    @property
    def name(self) -> str:
        return self._server.model

    @property
    def trouble(self) -> str:
        return f"{self.name} gave no answer last time" if self._is_silent else ""

    @property
    def at_once(self) -> int:
        return AT_ONCE

    @property
    def can_summarize(self) -> bool:
        return True

    @property
    def context_tokens(self) -> int:
        return self._settings.context_tokens

    async def __aenter__(self) -> Self:
        self._opening = asyncio.create_task(asyncio.to_thread(self._open), name="import openai")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if self._opening is None:
            return
        # Not cancelled: a thread cannot be, and a client that it makes must be closed.
        await asyncio.wait([self._opening])
        if self._opening.exception() is None:
            await self._opening.result().close()
        self._opening = None

    async def complete(self, messages: Sequence[ChatMessage], *, max_tokens: int) -> Completion:
        check_roles(messages)
        timeout_s = self._settings.timeout_s
        deadline = self._clock.monotonic() + timeout_s
        failure: Failure | None = None
        retries_left = RETRIES
        pause_s = FIRST_PAUSE_S
        try:
            async with self._clock.timeout(timeout_s):
                while True:
                    outcome = await self._ask(messages, max_tokens)
                    if isinstance(outcome, Completion):
                        self._is_silent = False
                        return outcome
                    failure = outcome
                    wait_s = pause_s if failure.retry_after_s is None else failure.retry_after_s
                    is_in_time = self._clock.monotonic() + wait_s < deadline
                    if not (failure.is_passing and retries_left and is_in_time):
                        self._is_silent = isinstance(failure.error, ModelUnavailable)
                        raise failure.error
                    log.debug("asking again in %.1f s: %s", wait_s, failure.error)
                    await self._clock.sleep(wait_s)
                    retries_left -= 1
                    pause_s *= 2
        except TimeoutError:
            self._is_silent = True
            late = f"{self._server}, model {self._server.model!r}: no answer within {timeout_s:g} s"
            before = f"before that: {failure.error}" if failure else "raise model.timeout_s or choose a smaller model"
            raise ModelTimeout(f"{late}; {before}") from None

    async def _ask(self, messages: Sequence[ChatMessage], max_tokens: int) -> Completion | Failure:
        client = await self._client()
        server = replace(
            self._server, private=tuple(message.content for message in messages if message.role != "system")
        )
        import httpx2  # a look into sys.modules: the client is made after these imports
        import openai

        try:
            # The typed method walks every message by its schema first, 10 ms for a long history on a fast PC.
            request = self._request(messages, max_tokens)
            response = await client.post("/chat/completions", body=request, cast_to=httpx2.Response)
        except openai.APIStatusError as error:
            # A redirected question would arrive without its body; say where it should go instead.
            body = error.response.headers.get("location") or error.response.text
            if error.status_code == 400 and self._limit_name != _NEWER_LIMIT and _NEWER_LIMIT in body:
                self._limit_name = _NEWER_LIMIT
                return await self._ask(messages, max_tokens)
            retry_after = error.response.headers.get("retry-after", "")
            return from_status(server, error.status_code, body, retry_after)
        except openai.APITimeoutError:
            told = f"{self._server}: no connection within {CONNECT_S:g} s; is the address right and the machine on?"
            return Failure(ModelUnavailable(told))
        except openai.APIConnectionError as error:
            return from_connection(server, error)
        return read_completion(server, response.text, max_tokens)

    def _request(self, messages: Sequence[ChatMessage], max_tokens: int) -> dict[str, Any]:
        if not self._settings.system_role:
            messages = fold_system(messages)
        request: dict[str, Any] = {
            "model": self._server.model,
            "messages": [{"role": message.role, "content": _encodable(message.content)} for message in messages],
            self._limit_name: max_tokens,
        }
        if self._temperature is not None:
            request["temperature"] = self._temperature
        return request

    async def _client(self) -> "AsyncOpenAI":
        if self._opening is None:
            raise RuntimeError("the model is asked outside its `async with` block")
        return await asyncio.shield(self._opening)

    def _open(self) -> "AsyncOpenAI":
        """Import the package and make a client, in a thread."""
        import httpx2
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient

        server = self._server
        if not (server.key.isascii() and server.key.isprintable() and " " not in server.key):
            told = "model.api_key holds a space, line break or letter that no key has; copy it again"
            raise ModelUnavailable(f"{server}: {told}")
        # A proxy cannot reach this machine's loopback; an explicit transport takes none from the environment.
        transport = httpx2.AsyncHTTPTransport() if is_loopback(server.base_url) else None
        try:
            return AsyncOpenAI(
                base_url=server.base_url,
                # Never None or empty, or the client would send a key it finds in the environment.
                api_key=server.key or "none",
                timeout=httpx2.Timeout(None, connect=CONNECT_S),
                max_retries=0,
                http_client=DefaultAsyncHttpxClient(transport=transport, follow_redirects=False),
            )
        except httpx2.InvalidURL as error:
            raise ModelUnavailable(f"model.base_url {server}: {server.quote(str(error))}; check it") from None


def check_roles(messages: Sequence[ChatMessage]) -> None:
    """Raise ValueError unless the roles are (system,) user, assistant, ..., user: strict servers refuse the rest."""
    roles = [message.role for message in messages]
    turns = roles[1:] if roles[:1] == ["system"] else roles
    if len(turns) % 2 == 0 or any(role != ("user", "assistant")[place % 2] for place, role in enumerate(turns)):
        raise ValueError(f"roles must alternate from user to user, not {', '.join(roles) or 'none at all'}")


def fold_system(messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
    """Move the system message into the first user message."""
    match messages:
        case [ChatMessage("system", instructions), first, *rest]:
            return [ChatMessage("user", f"{instructions}\n\n{first.content}"), *rest]
        case _:
            return messages


def _encodable(text: str) -> str:
    """Text without the lone surrogates that a terminal or a file name may bring, and JSON cannot carry."""
    return text.encode("utf-8", "replace").decode()
