import json
import socket
import ssl
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshai.errors import ContextTooLong, ModelError, ModelRefused, ModelUnavailable
from meshai.model.base import Completion
from meshai.model.exchange import (
    QUOTE_LENGTH,
    Failure,
    Server,
    from_connection,
    from_status,
    is_only_thinking,
    read_completion,
    read_model_names,
)
from tests.model.serving import completion

KEY = "sk-very-secret"
SERVER = Server("http://10.0.0.5:8080/v1", "llama3.2:3b", KEY)


def finished(reason: str, content: object, **more: object) -> dict[str, Any]:
    body = completion(content, **more)
    body["choices"][0]["finish_reason"] = reason
    return body


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (completion("Hello there."), "Hello there."),
        (completion("<think>hm</think>Yes."), "<think>hm</think>Yes."),
        (
            completion(
                [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Ye"}, {"type": "text", "text": "s."}]
            ),
            "Yes.",
        ),
        (finished("length", "cut off in the mid"), "cut off in the mid"),
    ],
)
def test_an_answer_is_read_as_it_came(body: dict[str, Any], text: str) -> None:
    assert read_completion(SERVER, json.dumps(body), 200) == Completion(text, 21, 4)


@pytest.mark.parametrize("usage", [None, {}, [], {"prompt_tokens": "many", "completion_tokens": None}])
def test_tokens_that_are_not_reported_are_none(usage: object) -> None:
    assert read_completion(SERVER, json.dumps(completion() | {"usage": usage}), 200) == Completion("Hello there.")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (completion(None), "the answer is empty"),
        (completion(""), "the answer is empty"),
        (completion(" \n\t"), "the answer is empty"),
        (finished("length", ""), "the answer is empty (finish reason length)"),
        (completion("<think>only this</think>\n"), "the model thought, but gave no answer"),
        (finished("length", "<think>never clo"), "spent all 200 tokens on thinking; raise model.max_tokens"),
        (finished("length", None, reasoning_content="hm"), "spent all 200 tokens on thinking; raise model.max_tokens"),
        (finished("length", "", reasoning="hm"), "spent all 200 tokens on thinking; raise model.max_tokens"),
        (finished("content_filter", None), "the server's filter held the answer back"),
        (completion(None, refusal="I will not."), "the model refused"),
        (completion(None, tool_calls=[{"id": "1"}]), "the model called a tool"),
        (completion({"text": "hi"}), "the answer is not text"),
        (completion(42), "the answer is not text"),
        (completion([{"type": "image"}]), "the answer is empty"),
        ({"choices": []}, "an empty list of choices"),
        ({"choices": None}, "an empty list of choices"),
    ],
)
def test_a_completion_without_text_is_refused_with_its_cause(body: dict[str, Any], why: str) -> None:
    failure = read_completion(SERVER, json.dumps(body), 200)
    assert isinstance(failure, Failure)
    assert isinstance(failure.error, ModelRefused)
    assert why in str(failure.error)
    assert SERVER.base_url in str(failure.error)
    assert not failure.is_passing


@pytest.mark.parametrize(
    ("body", "error", "told"),
    [
        ("<!doctype html><html>Login</html>", ModelUnavailable, "a web page, not JSON; check model.base_url, which"),
        ('{"choices": [', ModelUnavailable, "broken JSON (13 bytes)"),
        ("", ModelUnavailable, "broken JSON (0 bytes)"),
        ("[" * 100_000, ModelUnavailable, "broken JSON"),
        ("[]", ModelUnavailable, "not with a chat completion"),
        ('{"object": "list", "data": []}', ModelUnavailable, "not with a chat completion"),
        ('{"choices": [{"text": "old style"}]}', ModelUnavailable, "not with a chat completion"),
        ('{"choices": ["hi"]}', ModelUnavailable, "not with a chat completion"),
        ('{"error": "model crashed"}', ModelUnavailable, "with an error (model crashed)"),
        ('{"error": {"message": "busy", "code": 429}}', ModelUnavailable, "429 Too Many Requests (busy)"),
    ],
)
def test_a_success_that_is_no_completion_names_the_remedy(body: str, error: type[ModelError], told: str) -> None:
    failure = read_completion(SERVER, body, 200)
    assert isinstance(failure, Failure)
    assert isinstance(failure.error, error)
    assert told in str(failure.error)


FIELDS = ["choices", "message", "content", "error", "usage", "finish_reason", "refusal", "type", "text", "code"]
BODIES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(FIELDS), inner),
)


@given(BODIES)
def test_no_body_is_too_strange_to_read(answer: object) -> None:
    outcome = read_completion(SERVER, json.dumps(answer), 200)
    assert isinstance(outcome, Completion | Failure)
    if isinstance(outcome, Completion):
        assert outcome.text.strip()


@pytest.mark.parametrize(
    ("status", "body", "error", "told"),
    [
        (
            401,
            '{"error": {"message": "Incorrect API key provided"}}',
            ModelUnavailable,
            "provided); check model.api_key",
        ),
        (402, "{}", ModelUnavailable, "no credit"),
        (
            403,
            '{"detail": "not for you"}',
            ModelUnavailable,
            "403 Forbidden (not for you); the key may not use model 'llama3.2:3b'",
        ),
        (
            404,
            '{"error": {"message": "model \\"llama3.2:3b\\" not found, try pulling it first"}}',
            ModelUnavailable,
            "check model.name (Ollama: ollama pull llama3.2:3b)",
        ),
        (
            404,
            "404 page not found",
            ModelUnavailable,
            "404 Not Found (404 page not found); check model.base_url, which usually ends in /v1",
        ),
        (404, "<html>nginx</html>", ModelUnavailable, "404 Not Found (a web page); check model.base_url"),
        (405, "", ModelUnavailable, "405 Method Not Allowed; check model.base_url"),
        (308, "https://10.0.0.5/v1", ModelUnavailable, "308 Permanent Redirect (https://10.0.0.5/v1); put the address"),
        (429, '{"error": "slow down"}', ModelUnavailable, "429 Too Many Requests (slow down); too many questions"),
        (500, '{"message": "boom"}', ModelUnavailable, "500 Internal Server Error (boom); the server has a fault"),
        (503, '{"error": {"message": "Loading model"}}', ModelUnavailable, "503 Service Unavailable (Loading model)"),
        (529, "", ModelUnavailable, "answered 529; the server has a fault"),
        (
            400,
            '{"error": {"type": "exceed_context_size_error", "message": "3031 tokens"}}',
            ContextTooLong,
            "lower model.context_tokens",
        ),
        (
            400,
            '{"error": {"code": "context_length_exceeded", "message": "too long"}}',
            ContextTooLong,
            "400 Bad Request",
        ),
        (400, "This model's maximum context length is 8192 tokens", ContextTooLong, "8192"),
        (413, "", ContextTooLong, "413"),
        (400, '{"error": {"message": "System role not supported"}}', ModelRefused, "set model.system_role: false"),
        (422, '{"detail": [{"loc": ["body"]}]}', ModelRefused, "422"),
    ],
)
def test_a_refusal_names_url_status_and_remedy(status: int, body: str, error: type[ModelError], told: str) -> None:
    failure = from_status(SERVER, status, body)
    assert type(failure.error) is error
    assert told in str(failure.error)
    assert f"{SERVER.base_url} answered {status}" in str(failure.error)


def test_a_server_that_wants_a_key_is_told_from_one_that_dislikes_ours() -> None:
    assert "set model.api_key" in str(from_status(Server("http://h/v1", "m", ""), 401, "").error)


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504])
def test_what_may_pass_is_told_from_what_will_not(status: int) -> None:
    assert from_status(SERVER, status, "").is_passing
    assert not from_status(SERVER, 401, "").is_passing


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("3", 3.0), ("0.5", 0.5), ("", None), ("soon", None), ("-1", None), ("nan", None), ("9" * 30, None)],
)
def test_the_wait_a_server_asks_for_is_a_plain_number(header: str, seconds: float | None) -> None:
    assert from_status(SERVER, 429, "", header).retry_after_s == seconds


def chained(*errors: BaseException) -> BaseException:
    for outer, inner in pairwise(errors):
        outer.__cause__ = inner
    return errors[0]


def untrusted() -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message = "self-signed certificate"
    return error


@pytest.mark.parametrize(
    ("error", "told", "is_passing"),
    [
        (
            chained(
                RuntimeError("Connection error."),
                OSError("All failed"),
                ExceptionGroup("", [OSError("x"), ConnectionRefusedError(111, "refused")]),
            ),
            "connection refused; is the server running",
            True,
        ),
        (
            chained(RuntimeError("Connection error."), socket.gaierror(-2, "Name or service not known")),
            "no address now (DNS)",
            True,
        ),
        (
            chained(RuntimeError("Connection error."), untrusted()),
            "not trusted (self-signed certificate); for a self-signed one set SSL_CERT_FILE",
            False,
        ),
        (
            chained(RuntimeError("Connection error."), ssl.SSLError(1, "wrong version number")),
            "model.base_url should begin with http://",
            False,
        ),
        (
            chained(RuntimeError("Connection error."), ConnectionResetError(104, "Connection reset by peer")),
            "reset by peer",
            True,
        ),
        (RuntimeError(), "connection failed (RuntimeError)", True),
    ],
)
def test_the_reason_for_no_connection_is_found_in_its_causes(error: BaseException, told: str, is_passing: bool) -> None:
    failure = from_connection(SERVER, error)
    assert isinstance(failure.error, ModelUnavailable)
    assert told in str(failure.error)
    assert str(failure.error).startswith(SERVER.base_url)
    assert failure.is_passing == is_passing


@given(st.text(max_size=400), st.text(max_size=400), st.integers(300, 599))
def test_an_error_is_one_line_without_the_key(before: str, after: str, status: int) -> None:
    body = f"{before}{KEY}{after}"
    for error in (
        from_status(SERVER, status, body).error,
        from_status(SERVER, status, json.dumps({"error": {"message": body}})).error,
        from_connection(SERVER, OSError(body)).error,
    ):
        assert KEY not in str(error)
        assert str(error).isprintable()
        assert len(str(error)) < 2 * QUOTE_LENGTH + len(SERVER.base_url)


@pytest.mark.parametrize(
    ("text", "is_only"),
    [
        ("<think>a</think>", True),
        ("<think>a</think> b", False),
        ("b <think>a</think>", False),
        ("<think>a", True),
        ("b <think>a", False),
        ("a</think>", True),
        ("a</think>b", False),
        ("<THINK>a <Think>b</think> c</THINK>\n", True),
        ("<think>a</think>b<think>c</think>", False),
        ("<thinking>a</thinking>", True),
        ("a < b and b > c", False),
        ("   ", True),
    ],
)
def test_nothing_but_thinking_is_recognised(text: str, is_only: bool) -> None:
    assert is_only_thinking(text) == is_only


def test_model_names_of_a_server_are_text_a_terminal_can_show() -> None:
    listed = {"data": [{"id": "a"}, {"id": 3}, "b", {"id": ""}, {"id": "\x1b[2J"}, {"id": "x" * 999}, {"id": "b"}]}
    assert read_model_names(json.dumps(listed)) == ["a", "b"]
    assert read_model_names("<html>") == read_model_names("[1]") == read_model_names("[" * 100_000) == []


def test_a_server_that_repeats_what_people_wrote_is_not_quoted() -> None:
    question = "my secret code is 4711 and my dog is called Rex"
    private = replace(SERVER, private=(question,))
    body = json.dumps({"error": {"message": f"blocked: '{question[:30]}' is not allowed"}})
    for server, is_quoted in ((SERVER, True), (private, False)):
        assert ("4711" in str(from_status(server, 400, body, "").error)) == is_quoted
    assert "too long" in str(from_status(private, 400, json.dumps({"error": {"message": "text too long"}}), "").error)
