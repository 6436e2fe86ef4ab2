"""Finding model servers that run on this machine, for `meshai init`."""

import asyncio
import importlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from meshai.clock import Clock
from meshai.model.exchange import read_model_names

USUAL_PORTS: Final = (11434, 8080, 1234, 4000, 8000)
"""Ollama, llama.cpp, LM Studio, LiteLLM, vLLM."""
PROBE_S: Final = 2.0
MOST_NAMES: Final = 50
MOST_BYTES: Final = 1_000_000
"""What listens there may be anything, a camera's stream for one."""


class LocalServer(NamedTuple):
    base_url: str
    models: list[str]
    """Their names, untrusted but printable."""


async def local_servers(clock: Clock, ports: Sequence[int] = USUAL_PORTS) -> list[LocalServer]:
    """The OpenAI-compatible servers that list at least one model, in the order of `ports`. Never raises."""
    found = await asyncio.gather(*(_probe(clock, port) for port in ports))
    return [server for server in found if server is not None]


async def _probe(clock: Clock, port: int) -> LocalServer | None:
    base_url = f"http://127.0.0.1:{port}/v1"
    httpx2 = await asyncio.to_thread(importlib.import_module, "httpx2")
    body = b""
    try:
        async with (
            clock.timeout(PROBE_S),
            httpx2.AsyncClient(trust_env=False, timeout=None) as client,
            client.stream("GET", f"{base_url}/models") as response,
        ):
            async for piece in response.aiter_bytes():
                body += piece
                if response.status_code != 200 or len(body) > MOST_BYTES:
                    return None
    except (TimeoutError, httpx2.HTTPError):
        return None
    models = read_model_names(body.decode(errors="replace"))[:MOST_NAMES]
    return LocalServer(base_url, models) if models else None
