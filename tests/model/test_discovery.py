import asyncio
from contextlib import AsyncExitStack

import pytest

from meshai.clock import ScaledClock
from meshai.model.discovery import Listing, LocalServer, listing, local_servers
from tests.model.serving import Answer, Asked, HttpServer


async def hang(asked: Asked, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(3600)


async def babble(asked: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(b"220 mail ready\r\n\r\n")
    await writer.drain()


async def flood(asked: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b"x" * 1000)
        await writer.drain()
        await asyncio.sleep(0)


async def endless(asked: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    await asyncio.sleep(3600)


def lists(*names: object) -> HttpServer:
    return HttpServer.answering({"object": "list", "data": [{"id": name} for name in names]})


async def test_servers_that_list_models_are_found_in_order_and_others_are_not() -> None:
    servers = [
        lists("llama3.2:3b", "gemma3:1b", "\x1b[31mred", 7),
        HttpServer(hang),
        HttpServer(babble),
        HttpServer(flood),
        HttpServer(endless),
        HttpServer.answering(Answer("<html>", content_type="text/html")),
        HttpServer.answering(Answer({"error": "no key"}, 401)),
        HttpServer.answering(Answer("", 302, {"Location": "/login"})),
        HttpServer.answering(Answer(b"\x1f\x8b no", headers={"Content-Encoding": "gzip"})),
        lists(),
        lists("local"),
    ]
    async with HttpServer(hang) as gone:
        pass
    async with AsyncExitStack() as stack:
        for server in servers:
            await stack.enter_async_context(server)
        ports = [server.port for server in servers]
        found = await local_servers(ScaledClock(4), [gone.port, *ports])
    first, last = f"http://127.0.0.1:{ports[0]}/v1", f"http://127.0.0.1:{ports[-1]}/v1"
    assert found == [LocalServer(first, ["llama3.2:3b", "gemma3:1b"]), LocalServer(last, ["local"])]
    assert [asked.path for asked in servers[0].asked] == ["/v1/models"]


async def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with lists("local") as server:
        assert [found.models for found in await local_servers(ScaledClock(1), [server.port])] == [["local"]]


async def test_the_usual_ports_can_be_probed() -> None:
    assert isinstance(await local_servers(ScaledClock(10)), list)


@pytest.mark.parametrize(
    ("server", "told"),
    [
        (HttpServer(hang), ": no answer within 3 s; is the address right and the machine on?"),
        (HttpServer(flood), "answered with more than any list of models"),
        (HttpServer.answering(Answer({"error": "no key"}, 401)), "401 Unauthorized (no key); set model.api_key"),
        (HttpServer.answering(Answer("", 302, {"Location": "/login"})), "302 Found (/login)"),
        (HttpServer.answering(Answer("<html>", content_type="text/html")), "lists no models; check model.base_url"),
        (HttpServer(babble), "connection failed"),
    ],
)
async def test_why_a_server_lists_no_models_is_told_with_a_remedy(server: HttpServer, told: str) -> None:
    async with server:
        models, trouble = await listing(ScaledClock(4), f"{server.url}/v1/")
    assert models == []
    assert trouble.startswith(server.url)
    assert told in trouble


async def test_a_server_that_is_not_there_and_a_key_that_is_none_raise_nothing() -> None:
    async with lists("big") as server:
        assert await listing(ScaledClock(4), f"{server.url}/v1", key="ключ\n") == Listing(["big"])
    assert "authorization" not in server.asked[0].headers
    _, trouble = await listing(ScaledClock(4), f"{server.url}/v1")
    assert "connection refused; is the server running" in trouble
