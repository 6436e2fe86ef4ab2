"""What came of one exchange with a model's server: its answer, or what went wrong and the remedy.

Pure: statuses, bodies and exceptions in; a `Completion` or a `Failure` out. The text of an error is one line that
names the server, the status and the remedy, and never holds the key, whatever the server echoes.
"""

import ipaddress
import json
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from meshai.errors import ContextTooLong, ModelError, ModelRefused, ModelUnavailable
from meshai.model.base import Completion
from meshai.plaintext import plain

PIECE_LENGTH: Final = 16
LEAST_PIECE: Final = 4
QUOTE_LENGTH: Final = 200
"""How many characters of a server's own words an error repeats."""
USUAL_PATH: Final = "check model.base_url, which usually ends in /v1"

_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}
_CONTEXT_EXCEEDED: Final = re.compile(
    r"exceed_context_size|context_length_exceeded|context (size|length|window)|maximum context|prompt is too long"
    r"|too many (input )?tokens",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Failure:
    """An exchange that brought no answer."""

    error: ModelError
    is_passing: bool = False
    """Whether the same question may succeed a little later."""
    retry_after_s: float | None = None
    """How long the server asked us to wait."""


@dataclass(frozen=True, slots=True)
class Server:
    """Whom we ask, as the texts of errors tell it."""

    base_url: str
    model: str
    key: str
    private: tuple[str, ...] = ()
    """What people wrote: a server that repeats it is not quoted, since logs hold no texts."""

    def __str__(self) -> str:
        return self.base_url

    def quote(self, words: str) -> str:
        """Words that are not ours, safe to print: one line, not long, without the key."""
        if self.key:
            words = words.replace(self.key, "***")
        words = " ".join("".join(c if c.isprintable() else " " for c in words).split())
        if any(piece in words for text in self.private for piece in _pieces(text)):
            return "what it says repeats what people wrote"
        return words if len(words) <= QUOTE_LENGTH else words[: QUOTE_LENGTH - 1] + "…"


def _pieces(text: str) -> Iterator[str]:
    """Parts of a text long enough to be known again."""
    words = " ".join(text.split())
    if len(words) <= PIECE_LENGTH:
        yield from (words,) if len(words) >= LEAST_PIECE else ()
    else:
        yield from (words[at : at + PIECE_LENGTH] for at in range(0, len(words) - PIECE_LENGTH + 1, PIECE_LENGTH // 2))


def read_completion(server: Server, body: str, max_tokens: int) -> Completion | Failure:
    """The answer in the body of a success, or why it holds none."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        # Not quoted: what is broken may be the answer itself, and logs hold no texts.
        said = "a web page, not JSON" if _is_page(body) else f"broken JSON ({len(body.encode(errors='replace'))} bytes)"
        remedy = USUAL_PATH if _is_page(body) else "look at the server's log"
        return Failure(ModelUnavailable(f"{server} answered 200 with {said}; {remedy}"))
    match answer:
        case {"error": error} if error:
            return _from_error(server, error, body)
        case {"choices": [{"message": {**message}} as choice, *_]}:
            text = _text_of(message.get("content"))
            if text.strip() and not is_only_thinking(text):
                return Completion(text, *_usage(answer))
            why = _why_no_text(server, message, choice.get("finish_reason"), max_tokens)
            return Failure(ModelRefused(f"{server}, model {server.model!r}: {why}"))
        case {"choices": [] | None}:
            return Failure(ModelRefused(f"{server} answered with an empty list of choices; look at the server's log"))
        case _:
            return Failure(ModelUnavailable(f"{server} answered 200, but not with a chat completion; {USUAL_PATH}"))


def read_model_names(body: str) -> list[str]:
    """The models a server lists, in its order; empty when it says nothing of the kind."""
    try:
        match json.loads(body):
            case {"data": [*models]}:
                return [model["id"] for model in models if isinstance(model, dict) and _is_name(model.get("id"))]
            case _:
                return []
    except (ValueError, RecursionError):
        return []


def is_loopback(base_url: str) -> bool:
    """Whether a server is on this machine, by its address."""
    host = urlsplit(base_url).hostname or ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


def from_status(server: Server, status: int, body: str, retry_after: str = "") -> Failure:
    """A refusal by HTTP status."""
    words = server.quote(_message_in(body))
    phrase = _PHRASES.get(status, "")
    told = f"{server} answered {status} {phrase}".rstrip() + (f" ({words})" if words else "")
    if status == 413 or (status in (400, 422, 500) and _CONTEXT_EXCEEDED.search(body)):
        return Failure(ContextTooLong(f"{told}; lower model.context_tokens or raise the server's context"))
    if status in (400, 422):
        remedy = "check model.name; set model.system_role: false if the model knows no system role"
        return Failure(ModelRefused(f"{told}; {remedy}"))
    return Failure(
        ModelUnavailable(f"{told}; {_remedy(server, status, words)}"),
        is_passing=status in (408, 409, 425, 429) or status >= 500,
        retry_after_s=float(retry_after) if re.fullmatch(r"\d{1,6}(\.\d{1,3})?", retry_after) else None,
    )


def from_connection(server: Server, error: BaseException) -> Failure:
    """No HTTP answer at all: the reason is somewhere in the chain of causes."""
    causes = list(_causes(error))
    for cause in causes:
        match cause:
            case ssl.SSLCertVerificationError():
                said = server.quote(cause.verify_message)
                remedy = "for a self-signed one set SSL_CERT_FILE to the server's CA file"
                return Failure(ModelUnavailable(f"{server}: its TLS certificate is not trusted ({said}); {remedy}"))
            case ssl.SSLError():
                said = server.quote(str(cause))
                remedy = "check whether model.base_url should begin with http://"
                return Failure(ModelUnavailable(f"{server}: no TLS connection ({said}); {remedy}"))
            case socket.gaierror():
                told = f"{server}: its name has no address now (DNS)"
                return Failure(ModelUnavailable(f"{told}; check model.base_url and the network"), is_passing=True)
            case ConnectionRefusedError():
                told = f"{server}: connection refused"
                return Failure(ModelUnavailable(f"{told}; is the server running, and on that port?"), is_passing=True)
    said = server.quote(next((str(cause) for cause in reversed(causes) if str(cause)), type(error).__name__))
    return Failure(ModelUnavailable(f"{server}: connection failed ({said}); is the server running?"), is_passing=True)


def is_only_thinking(text: str) -> bool:
    """Whether nothing is left of `text` without its think blocks: closed, nested, unopened or unclosed."""
    return not plain(text)


def _remedy(server: Server, status: int, words: str) -> str:
    match status:
        case 401:
            return "check model.api_key" if server.key else "set model.api_key"
        case 402:
            return "the account has no credit left"
        case 403:
            return f"the key may not use model {server.model!r}, or the server refuses this machine"
        case 404 if "model" in words.lower():
            return f"the server has no model {server.model!r}; check model.name (Ollama: ollama pull {server.model})"
        case _ if 300 <= status < 400:
            return "put the address it sends us to into model.base_url"
        case 429:
            return "too many questions at once or the quota is used up; wait, or raise the limit at the server"
        case _ if status >= 500:
            return "the server has a fault; look at its log"
        case _:
            return USUAL_PATH


def _why_no_text(server: Server, message: Mapping[object, object], finish_reason: object, max_tokens: int) -> str:
    content = message.get("content")
    has_thoughts = bool(message.get("reasoning_content") or message.get("reasoning") or _text_of(content).strip())
    if isinstance(refusal := message.get("refusal"), str) and refusal:
        why = "the model refused"
    elif message.get("tool_calls"):
        why = "the model called a tool instead of answering"
    elif content and not isinstance(content, str | list):
        why = "the answer is not text"
    elif finish_reason == "content_filter":
        why = "the server's filter held the answer back"
    elif finish_reason == "length" and has_thoughts:
        why = f"the model spent all {max_tokens} tokens on thinking; raise model.max_tokens or turn thinking off"
    elif has_thoughts:
        why = "the model thought, but gave no answer; turn thinking off"
    else:
        why = "the answer is empty"
    return f"{why} (finish reason {server.quote(str(finish_reason))})"


def _from_error(server: Server, error: object, body: str) -> Failure:
    """An error some servers tell with status 200."""
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(code, int) and 400 <= code < 600:
        return from_status(server, code, body)
    words = server.quote(_message_in(body))
    return Failure(ModelUnavailable(f"{server} answered 200 with an error ({words}); look at the server's log"))


def _text_of(content: object) -> str:
    """Text that came whole or, from some servers, as a list of parts."""
    match content:
        case str():
            return content
        case list():
            return "".join(
                part["text"]
                for part in content
                if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
            )
        case _:
            return ""


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= QUOTE_LENGTH and value.isprintable()


def _usage(answer: dict[str, object]) -> tuple[int | None, int | None]:
    usage = answer.get("usage")
    counts = usage if isinstance(usage, dict) else {}
    prompt, completion = counts.get("prompt_tokens"), counts.get("completion_tokens")
    return (prompt if isinstance(prompt, int) else None, completion if isinstance(completion, int) else None)


def _message_in(body: str) -> str:
    """The server's own words in the body of an error, whichever of the usual shapes it has."""
    if _is_page(body):
        return "a web page"
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return body
    match answer:
        case {"error": {"message": str(words)}} | {"error": str(words)} | {"message": str(words)}:
            return words
        case {"detail": str(words)}:
            return words
        case _:
            return body


def _is_page(body: str) -> bool:
    return body.lstrip()[:1] == "<"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An exception and all it came from, through chains and groups (a name may have several addresses)."""
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            for member in error.exceptions:
                yield from _causes(member)
        error = error.__cause__ or error.__context__
