"""Finding model servers on this machine, and asking any server for its models, for `meshai init`."""

import asyncio
import importlib
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final, NamedTuple

from meshai.clock import Clock
from meshai.model.exchange import USUAL_PATH, Server, from_connection, from_status, is_loopback, read_model_names

USUAL_PORTS: Final = (11434, 8080, 1234, 4000, 8000)
"""Ollama, llama.cpp, LM Studio, LiteLLM, vLLM."""
PROBE_S: Final = 3.0
MOST_NAMES: Final = 50
MOST_BYTES: Final = 1_000_000
"""What listens there may be anything, a camera's stream for one."""


class LocalServer(NamedTuple):
    base_url: str
    models: list[str]
    """Their names, untrusted but printable."""


class Listing(NamedTuple):
    """What a server says when it is asked for its models."""

    models: list[str]
    """Their names, untrusted but printable."""
    trouble: str = ""
    """Why there are none, with the remedy."""


async def local_servers(clock: Clock, ports: Sequence[int] = USUAL_PORTS) -> list[LocalServer]:
    """The OpenAI-compatible servers that list at least one model, in the order of `ports`. Never raises."""
    urls = [f"http://127.0.0.1:{port}/v1" for port in ports]
    found = await asyncio.gather(*(listing(clock, url) for url in urls))
    return [LocalServer(url, models) for url, (models, _) in zip(urls, found, strict=True) if models]


async def listing(clock: Clock, base_url: str, *, key: str = "") -> Listing:
    """Ask a server which models it has, for a short time only. Never raises."""
    server = Server(base_url, model="", key=key)
    httpx2 = await asyncio.to_thread(importlib.import_module, "httpx2")
    body = b""
    try:
        async with (
            clock.timeout(PROBE_S),
            # A proxy of the environment cannot reach this machine's loopback.
            httpx2.AsyncClient(trust_env=not is_loopback(base_url), timeout=None) as client,
            client.stream("GET", f"{base_url.rstrip('/')}/models", headers=_authorization(key)) as response,
        ):
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > MOST_BYTES:
                    return Listing([], f"{server} answered with more than any list of models; {USUAL_PATH}")
            text = body.decode(errors="replace")
            if response.status_code != HTTPStatus.OK:
                said = response.headers.get("location") or text
                return Listing([], str(from_status(server, response.status_code, said).error))
    except TimeoutError:
        return Listing([], f"{server}: no answer within {PROBE_S:g} s; is the address right and the machine on?")
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        return Listing([], str(from_connection(server, error).error))
    models = read_model_names(text)[:MOST_NAMES]
    return Listing(models, "" if models else f"{server} answered, but lists no models; {USUAL_PATH}")


def _authorization(key: str) -> dict[str, str]:
    """What a key that can be one is sent as."""
    return {"Authorization": f"Bearer {key}"} if key.isascii() and key.isprintable() and key else {}
