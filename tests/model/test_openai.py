import asyncio
import logging
import socket
import ssl
import subprocess
import sys
import traceback
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any, Literal

import pytest

from meshai.clock import ScaledClock
from meshai.config import ModelSettings
from meshai.errors import ContextTooLong, ModelError, ModelRefused, ModelTimeout, ModelUnavailable
from meshai.model.base import ChatMessage, Completion
from meshai.model.openai import OpenAIModel, check_roles, fold_system
from tests.model.serving import Answer, Asked, HttpServer, completion

KEY = "sk-very-secret-1234567890"
CERTIFICATE = Path(__file__).with_name("selfsigned.pem")
QUESTION = [ChatMessage("system", "Be short."), ChatMessage("user", "Hello?")]


def settings(base_url: str, **more: Any) -> ModelSettings:
    given = {"base_url": base_url, "name": "fake", "api_key": KEY, "timeout_s": 20, **more}
    return ModelSettings.model_validate(given)


async def ask(base_url: str, *, speed: float = 20, **more: Any) -> Completion:
    async with OpenAIModel(settings(base_url, **more), clock=ScaledClock(speed)) as model:
        return await model.complete(QUESTION, max_tokens=50)


async def test_a_question_reaches_the_server_and_its_answer_comes_back() -> None:
    async with HttpServer.answering(completion("Hi.")) as server:
        assert await ask(f"{server.url}/v1") == Completion("Hi.", 21, 4)
    (asked,) = server.asked
    assert (asked.method, asked.path) == ("POST", "/v1/chat/completions")
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert asked.json == {
        "model": "fake",
        "messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hello?"}],
        "max_tokens": 50,
    }


async def test_arguments_go_before_settings() -> None:
    async with HttpServer.answering(completion()) as server:
        there = settings("http://127.0.0.1:1/v1")
        model = OpenAIModel(
            there, clock=ScaledClock(20), base_url=f"{server.url}/v1", api_key="k", name="other", temperature=0
        )
        async with model:
            await model.complete(QUESTION, max_tokens=50)
    assert model.name == "other"
    assert model.context_tokens == there.context_tokens
    assert server.asked[0].headers["authorization"] == "Bearer k"
    assert server.asked[0].json["model"] == "other"
    assert server.asked[0].json["temperature"] == 0


async def test_the_environment_adds_neither_key_nor_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-another-program")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    async with HttpServer.answering(completion()) as server:
        await ask(f"{server.url}/v1", api_key="")
        await ask(f"http://localhost:{server.port}/v1", api_key="")
    assert [asked.headers["authorization"] for asked in server.asked] == ["Bearer none"] * 2


async def test_a_proxy_of_the_environment_is_used_for_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    async with HttpServer.answering(completion("By proxy.")) as proxy:
        for name in ("HTTP_PROXY", "http_proxy"):
            monkeypatch.setenv(name, proxy.url)
        assert (await ask("http://model.example/v1")).text == "By proxy."
    assert proxy.asked[0].path == "http://model.example/v1/chat/completions"


async def test_instructions_move_into_the_first_question_for_models_without_a_system_role() -> None:
    async with HttpServer.answering(completion()) as server:
        await ask(f"{server.url}/v1", system_role=False)
    assert server.asked[0].json["messages"] == [{"role": "user", "content": "Be short.\n\nHello?"}]


def test_nothing_is_folded_without_instructions() -> None:
    only = [ChatMessage("user", "Hello?")]
    assert fold_system(only) == only


async def test_text_that_no_json_can_carry_is_asked_with_replacements() -> None:
    async with (
        HttpServer.answering(completion()) as server,
        OpenAIModel(settings(f"{server.url}/v1"), clock=ScaledClock(20)) as model,
    ):
        await model.complete([ChatMessage("user", "caf\udce9 ☕")], max_tokens=50)
    assert server.asked[0].json["messages"] == [{"role": "user", "content": "caf? ☕"}]


Role = Literal["system", "user", "assistant"]
ROLES: tuple[Role, ...] = ("system", "user", "assistant")


def strict(roles: list[str]) -> bool:
    """What the strictest chat templates accept."""
    turns = roles[1:] if roles[:1] == ["system"] else roles
    return turns[::2] == ["user"] * (len(turns) // 2 + 1) and turns[1::2] == ["assistant"] * (len(turns) // 2)


@pytest.mark.parametrize("roles", [roles for length in range(5) for roles in product(ROLES, repeat=length)])
def test_only_roles_that_a_strict_server_takes_are_sent(roles: tuple[Role, ...]) -> None:
    messages = [ChatMessage(role, "x") for role in roles]
    if strict(list(roles)):
        check_roles(messages)
        assert strict([message.role for message in fold_system(messages)])
    else:
        with pytest.raises(ValueError, match="roles must alternate"):
            check_roles(messages)


async def test_a_strict_server_refuses_none_of_a_long_conversation() -> None:
    async def handler(asked: Asked, writer: asyncio.StreamWriter) -> Answer:
        if not strict([message["role"] for message in asked.json["messages"]]):
            return Answer({"error": {"message": "Conversation roles must alternate"}}, 400)
        return Answer(completion(f"Answer {len(server.asked)}"))

    async with HttpServer(handler) as server:
        for system_role in (True, False):
            model = OpenAIModel(settings(f"{server.url}/v1", system_role=system_role), clock=ScaledClock(20))
            messages = list(QUESTION)
            async with model:
                for turn in range(10):
                    answer = await model.complete(messages, max_tokens=50)
                    messages += [ChatMessage("assistant", answer.text), ChatMessage("user", f"And {turn}?")]
    assert len(server.asked) == 20


async def test_a_model_that_wants_the_newer_name_of_the_limit_gets_it() -> None:
    refusal = {"error": {"message": "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."}}
    async with (
        HttpServer.answering(Answer(refusal, 400), completion()) as server,
        OpenAIModel(settings(f"{server.url}/v1"), clock=ScaledClock(20)) as model,
    ):
        await model.complete(QUESTION, max_tokens=50)
        await model.complete(QUESTION, max_tokens=60)
    limits = [{name: value for name, value in asked.json.items() if name.startswith("max")} for asked in server.asked]
    assert limits == [{"max_tokens": 50}, {"max_completion_tokens": 50}, {"max_completion_tokens": 60}]


@pytest.mark.parametrize(
    ("answer", "error", "told"),
    [
        (Answer({"error": f"Incorrect API key: {KEY}"}, 401), ModelUnavailable, "check model.api_key"),
        (Answer(f"<html>{KEY}</html>", 404, content_type="text/html"), ModelUnavailable, "usually ends in /v1"),
        (Answer("", 302, {"Location": "/login"}), ModelUnavailable, "302 Found (/login)"),
        (Answer("<html>Login</html>", content_type="text/html"), ModelUnavailable, "a web page, not JSON"),
        (Answer('{"choices": ['), ModelUnavailable, "broken JSON"),
        (Answer(b"\xff\xfe{}"), ModelUnavailable, "broken JSON"),
        (Answer(b"\x1f\x8b no", headers={"Content-Encoding": "gzip"}), ModelUnavailable, "connection failed"),
        (Answer({"error": {"type": "exceed_context_size_error"}}, 400), ContextTooLong, "lower model.context_tokens"),
        (Answer(completion(None)), ModelRefused, "the answer is empty"),
        (Answer({"choices": []}), ModelRefused, "an empty list of choices"),
    ],
)
async def test_a_bad_answer_is_one_of_our_errors_with_a_remedy(
    answer: Answer, error: type[ModelError], told: str
) -> None:
    async with HttpServer.answering(answer) as server:
        with pytest.raises(error) as caught:
            await ask(f"{server.url}/v1")
    assert told in str(caught.value)
    assert f"{server.url}/v1" in str(caught.value)


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_passing_fault_is_tried_again(status: int) -> None:
    async with HttpServer.answering(Answer("busy", status), Answer("busy", status), completion("Now.")) as server:
        assert (await ask(f"{server.url}/v1")).text == "Now."
    assert len(server.asked) == 3


async def test_it_says_of_itself_whether_it_answered_last_time() -> None:
    async with (
        HttpServer.answering(completion(), Answer("", 401), Answer(completion(None)), Answer("", 401)) as server,
        OpenAIModel(settings(f"{server.url}/v1", name="some"), clock=ScaledClock(20)) as model,
    ):
        said = [model.trouble]
        for _ in range(4):
            with suppress(ModelError):
                await model.complete(QUESTION, max_tokens=50)
            said.append(model.trouble)
    silent = "some gave no answer last time"
    assert said == ["", "", silent, "", silent]


async def test_silence_is_no_answer_either() -> None:
    async def handler(asked: Asked, writer: asyncio.StreamWriter) -> Answer:
        await asyncio.sleep(3600)
        return Answer("")

    async with (
        HttpServer(handler) as server,
        OpenAIModel(settings(f"{server.url}/v1", timeout_s=10), clock=ScaledClock(20)) as model,
    ):
        with pytest.raises(ModelTimeout):
            await model.complete(QUESTION, max_tokens=50)
        assert model.trouble.endswith("gave no answer last time")


async def test_tries_are_bounded() -> None:
    async with HttpServer.answering(Answer("busy", 503)) as server:
        with pytest.raises(ModelUnavailable, match="503 Service Unavailable"):
            await ask(f"{server.url}/v1")
    assert len(server.asked) == 3


async def test_what_will_not_pass_is_asked_once() -> None:
    async with HttpServer.answering(Answer("", 401)) as server:
        with pytest.raises(ModelUnavailable):
            await ask(f"{server.url}/v1")
    assert len(server.asked) == 1


async def test_the_wait_a_server_asks_for_is_kept() -> None:
    clock = ScaledClock(20)
    async with (
        HttpServer.answering(Answer("", 429, {"Retry-After": "7"}), completion()) as server,
        OpenAIModel(settings(f"{server.url}/v1"), clock=clock) as model,
    ):
        start = clock.monotonic()
        await model.complete(QUESTION, max_tokens=50)
    assert clock.monotonic() - start >= 7


async def test_a_wait_beyond_the_timeout_ends_the_question_at_once() -> None:
    async with HttpServer.answering(Answer("", 429, {"Retry-After": "21"})) as server:
        with pytest.raises(ModelUnavailable, match="429 Too Many Requests"):
            await ask(f"{server.url}/v1")
    assert len(server.asked) == 1


async def hang(asked: Asked, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(3600)


async def trickle(asked: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.05)


async def reset(asked: Asked, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def babble(asked: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(b"this is not HTTP\r\n\r\n")
    await writer.drain()


async def leave(asked: Asked, writer: asyncio.StreamWriter) -> None:
    pass


async def cut(asked: Asked, writer: asyncio.StreamWriter) -> Answer:
    return Answer(completion(), cut=20)


@pytest.mark.parametrize("handler", [hang, trickle])
async def test_the_timeout_is_the_whole_wait_within_a_tenth(handler: Any) -> None:
    clock = ScaledClock(10)
    async with HttpServer(handler) as server, OpenAIModel(settings(f"{server.url}/v1"), clock=clock) as model:
        start = clock.monotonic()
        with pytest.raises(ModelTimeout, match=r"no answer within 20 s; raise model\.timeout_s"):
            await model.complete(QUESTION, max_tokens=50)
        assert 20 <= clock.monotonic() - start <= 22


async def test_the_timeout_holds_over_retries_and_tells_what_came_before() -> None:
    async def handler(asked: Asked, writer: asyncio.StreamWriter) -> Answer | None:
        if len(server.asked) == 1:
            return Answer("Loading model", 503)
        await hang(asked, writer)
        return None

    clock = ScaledClock(10)
    async with HttpServer(handler) as server, OpenAIModel(settings(f"{server.url}/v1"), clock=clock) as model:
        start = clock.monotonic()
        with pytest.raises(ModelTimeout, match=r"within 20 s; before that: .* 503 Service Unavailable"):
            await model.complete(QUESTION, max_tokens=50)
        assert 20 <= clock.monotonic() - start <= 22


@pytest.mark.parametrize("handler", [reset, babble, leave, cut])
async def test_a_connection_that_breaks_is_tried_again_and_then_told(handler: Any) -> None:
    async with HttpServer(handler) as server:
        with pytest.raises(ModelUnavailable, match="connection failed"):
            await ask(f"{server.url}/v1")
    assert len(server.asked) == 3


@pytest.mark.parametrize("handler", [reset, cut])
async def test_an_answer_after_a_broken_connection_counts(handler: Any) -> None:
    async def once_bad(asked: Asked, writer: asyncio.StreamWriter) -> Answer | None:
        return await handler(asked, writer) if len(server.asked) == 1 else Answer(completion("Still here."))

    async with HttpServer(once_bad) as server:
        assert (await ask(f"{server.url}/v1")).text == "Still here."


async def test_a_slow_answer_within_the_timeout_counts() -> None:
    async def slow(asked: Asked, writer: asyncio.StreamWriter) -> None:
        body = Answer(completion("Slowly.")).encoded()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body))
        for place in range(len(body)):
            writer.write(body[place : place + 1])
            await writer.drain()
            await asyncio.sleep(0)

    async with HttpServer(slow) as server:
        assert (await ask(f"{server.url}/v1")).text == "Slowly."


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
async def test_nobody_listening_is_told(host: str) -> None:
    async with HttpServer(leave) as server:
        port = server.port
    with pytest.raises(ModelUnavailable, match=r"is the server running"):
        await ask(f"http://{host}:{port}/v1")


@pytest.mark.slow
async def test_a_machine_that_is_off_is_told_from_a_slow_model() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        port = full.getsockname()[1]
        # A full queue: the kernel drops what more comes, as a network does for a machine that is off.
        waiting = [socket.socket() for _ in range(4)]
        for client in waiting:
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", port))
        with pytest.raises(
            ModelUnavailable, match=r"no connection within 5 s; is the address right and the machine on"
        ):
            await ask(f"http://127.0.0.1:{port}/v1", speed=1)
        for client in waiting:
            client.close()


async def test_a_name_without_address_is_told() -> None:
    with pytest.raises(ModelUnavailable, match=r"http://nowhere\.invalid/v1: its name has no address now \(DNS\)"):
        await ask("http://nowhere.invalid/v1", speed=1)


async def test_a_name_that_cannot_be_is_told() -> None:
    with pytest.raises(ModelUnavailable, match=r"model\.base_url http://é<x/v1: Invalid IDNA"):
        await ask("http://é<x/v1")


async def test_questions_are_answered_again_when_the_server_returns() -> None:
    async with HttpServer(leave) as server:
        port = server.port
    clock = ScaledClock(20)
    async with OpenAIModel(settings(f"http://127.0.0.1:{port}/v1"), clock=clock) as model:
        with pytest.raises(ModelUnavailable):
            await model.complete(QUESTION, max_tokens=50)
        async with HttpServer.answering(completion("Back.")).on(port):
            assert (await model.complete(QUESTION, max_tokens=50)).text == "Back."


def tls() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    return context


async def test_a_self_signed_certificate_is_refused_with_the_remedy() -> None:
    async with HttpServer(leave, tls=tls()) as server:
        with pytest.raises(ModelUnavailable, match=r"certificate is not trusted .*SSL_CERT_FILE"):
            await ask(f"{server.url}/v1")
    assert server.asked == []


async def test_the_remedy_for_a_self_signed_certificate_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))

    async def handler(asked: Asked, writer: asyncio.StreamWriter) -> Answer:
        return Answer(completion("Trusted."))

    async with HttpServer(handler, tls=tls()) as server:
        assert (await ask(f"{server.url}/v1")).text == "Trusted."


@pytest.mark.parametrize("key", [f"{KEY}\n", f" {KEY}", "“quoted”", f"{KEY}\x00"])
async def test_a_key_that_cannot_be_sent_is_told_without_it(key: str) -> None:
    with pytest.raises(ModelUnavailable, match=r"model\.api_key holds") as caught:
        await ask("http://127.0.0.1:1/v1", api_key=key)
    assert key not in str(caught.value)


async def test_the_key_is_in_no_log_and_no_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    echo = {"error": {"message": f"bad key {KEY}", "headers": {"authorization": f"Bearer {KEY}"}}}
    told = []
    for answer in (Answer(echo, 401), Answer(echo, 503), Answer(echo), Answer(f"not JSON {KEY}")):
        async with HttpServer.answering(answer) as server:
            with pytest.raises(ModelError) as caught:
                await ask(f"{server.url}/v1")
        told.append("".join(traceback.format_exception(caught.value)))
    told += [record.getMessage() + str(record.args) + (record.exc_text or "") for record in caplog.records]
    assert len(told) > 10
    assert not [text for text in told if KEY in text]
    assert KEY not in repr(settings("http://h/v1"))


async def test_questions_are_asked_side_by_side() -> None:
    both = asyncio.Barrier(2)

    async def handler(asked: Asked, writer: asyncio.StreamWriter) -> Answer:
        await both.wait()
        return Answer(completion(asked.json["messages"][-1]["content"].upper()))

    async with HttpServer(handler) as server, OpenAIModel(settings(f"{server.url}/v1"), clock=ScaledClock(20)) as model:
        answers = await asyncio.gather(
            *(model.complete([ChatMessage("user", text)], max_tokens=50) for text in ("one", "two"))
        )
    assert [answer.text for answer in answers] == ["ONE", "TWO"]


async def test_giving_up_on_a_question_closes_its_connection() -> None:
    closed = asyncio.Event()

    async def handler(asked: Asked, writer: asyncio.StreamWriter) -> None:
        arrived.set()
        try:
            await trickle(asked, writer)
        except ConnectionError:
            closed.set()

    arrived = asyncio.Event()
    async with HttpServer(handler) as server, OpenAIModel(settings(f"{server.url}/v1"), clock=ScaledClock(20)) as model:
        question = asyncio.create_task(model.complete(QUESTION, max_tokens=50))
        await arrived.wait()
        question.cancel()
        with pytest.raises(asyncio.CancelledError):
            await question
        async with asyncio.timeout(5):
            await closed.wait()


async def test_a_model_is_asked_inside_its_block_only() -> None:
    model = OpenAIModel(settings("http://127.0.0.1:1/v1"), clock=ScaledClock(20))
    with pytest.raises(RuntimeError, match="outside its `async with` block"):
        await model.complete(QUESTION, max_tokens=50)


async def test_entering_and_leaving_leaves_nothing_behind() -> None:
    async with HttpServer.answering(completion()) as server:
        for number in range(5):
            async with OpenAIModel(settings(f"{server.url}/v1"), clock=ScaledClock(20)) as model:
                if number % 2:
                    await model.complete(QUESTION, max_tokens=50)
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


def test_importing_the_adapter_does_not_import_the_package() -> None:
    program = (
        "import sys, meshai.model.openai as adapter; "
        "print([name for name in ('openai', 'httpx2') if name in sys.modules], adapter.OpenAIModel.__name__)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "[] OpenAIModel\n"
