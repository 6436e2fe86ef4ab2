"""A real HTTP server on a loopback port that answers as a test says, well or badly."""

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Answer:
    """What goes back; `cut` ends the connection after so many bytes of the body."""

    body: bytes | str | dict[str, Any] | list[Any] = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = "application/json"
    cut: int | None = None

    def encoded(self) -> bytes:
        if isinstance(self.body, bytes):
            return self.body
        return (self.body if isinstance(self.body, str) else json.dumps(self.body)).encode()


Handler = Callable[[Asked, asyncio.StreamWriter], Awaitable[Answer | None]]
"""Returns the answer, or None after it wrote to the socket (or did not) itself."""


def completion(text: object = "Hello there.", **more: object) -> dict[str, Any]:
    """The body of a chat completion."""
    message = {"role": "assistant", "content": text, **more}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "fake",
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        "usage": {"prompt_tokens": 21, "completion_tokens": 4, "total_tokens": 25},
    }


class HttpServer:
    """Serves `handler`; `asked` holds every request that came."""

    def __init__(self, handler: Handler, *, tls: ssl.SSLContext | None = None) -> None:
        self._handler = handler
        self._tls = tls
        self.port = 0
        self._connections: set[asyncio.Task[None]] = set()
        self.asked: list[Asked] = []

    @classmethod
    def answering(cls, *answers: Answer | dict[str, Any]) -> Self:
        """Give the answers in turn, and the last one from then on."""
        left = [answer if isinstance(answer, Answer) else Answer(answer) for answer in answers]

        async def handler(asked: Asked, writer: asyncio.StreamWriter) -> Answer:
            return left.pop(0) if len(left) > 1 else left[0]

        return cls(handler)

    def on(self, port: int) -> Self:
        """Listen on this port instead of a free one."""
        self.port = port
        return self

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._connections.add(task)
        try:
            while await self._serve_one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client left, or the test is over
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ", 2)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        asked = Asked(method, path, headers, body)
        self.asked.append(asked)
        answer = await self._handler(asked, writer)
        if answer is None:
            return False
        content = answer.encoded()
        fields = {"Content-Type": answer.content_type, "Content-Length": str(len(content)), **answer.headers}
        lines = [f"HTTP/1.1 {answer.status} Status", *(f"{name}: {value}" for name, value in fields.items())]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + content[: answer.cut])
        await writer.drain()
        return answer.cut is None
