"""A minimal bot as most are: 150 characters to a part, `sendText` without an ack, 2.3 s, the next part.

It stands for the bots people run today in `benchmarks.delivery`; nothing here is ours but the asyncio around the
library's threads.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

from meshtastic.tcp_interface import TCPInterface
from pubsub import pub

from benchmarks.jumping import JumpingLoop
from meshai.clock import Clock

PART_CHARACTERS: Final = 150
PAUSE_S: Final = 2.3
HEARTBEAT_S: Final = 300.0


class ReferenceBot:
    """Answers every direct message with `answer` of its text, one after the other."""

    def __init__(self, interface: TCPInterface, answer: Callable[[str], str], clock: Clock) -> None:
        self._interface = interface
        self._answer = answer
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._heard: asyncio.Queue[tuple[int, str]] = asyncio.Queue()

    def on_text(self, packet: dict[str, Any], interface: Any) -> None:
        """Called by the library, on a thread of its own."""
        if interface is self._interface and packet["to"] == interface.myInfo.my_node_num:
            self._loop.call_soon_threadsafe(self._heard.put_nowait, (packet["from"], packet["decoded"]["text"]))

    async def run(self) -> None:
        while True:
            sender, text = await self._heard.get()
            answer = self._answer(text)
            for start in range(0, len(answer), PART_CHARACTERS):
                await self._send(answer[start : start + PART_CHARACTERS], sender)
                await self._clock.sleep(PAUSE_S)
            self._heard.task_done()

    async def beat(self) -> None:
        """What the library does every five minutes by the machine's clock, for the node ends silent connections."""
        while True:
            await self._clock.sleep(HEARTBEAT_S)
            await asyncio.to_thread(self._interface.sendHeartbeat)

    async def finished(self) -> None:
        """Wait until every question heard is answered."""
        await self._heard.join()

    async def _send(self, part: str, to: int) -> None:
        assert isinstance(self._loop, JumpingLoop)
        with self._loop.walking():  # the library may wait for room in the node's queue, by the machine's clock
            await asyncio.to_thread(partial(self._interface.sendText, part, destinationId=to))


@asynccontextmanager
async def reference(port: int, answer: Callable[[str], str], clock: Clock) -> AsyncIterator[ReferenceBot]:
    """The bot attached to the node on a port of this machine."""
    interface = await asyncio.to_thread(TCPInterface, "127.0.0.1", portNumber=port)
    bot = ReferenceBot(interface, answer, clock)
    pub.subscribe(bot.on_text, "meshtastic.receive.text")
    running = [asyncio.create_task(bot.run()), asyncio.create_task(bot.beat())]
    try:
        yield bot
    finally:
        for task in running:
            task.cancel()
        pub.unsubscribe(bot.on_text, "meshtastic.receive.text")
        await asyncio.to_thread(interface.close)
