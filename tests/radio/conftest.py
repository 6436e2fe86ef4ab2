"""A scripted node, and the radio attached to it through the real library."""

import asyncio
import gc
import os
import random
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from meshai.clock import ScaledClock
from meshai.config import RadioSettings
from meshai.messages import TextLimits
from meshai.radio.meshtastic import MeshtasticRadio
from tests.radio.scripted import ScriptedNode

SPEED = 30.0
LIMITS = TextLimits(channel_bytes=160, direct_bytes=200)
Attach = Callable[..., AbstractAsyncContextManager[MeshtasticRadio]]
OURS = ("radio link", "stream reader", "BLEReceive", "BLEClient")


@pytest.fixture
def clock() -> ScaledClock:
    return ScaledClock(SPEED)


@pytest.fixture
async def node() -> AsyncIterator[ScriptedNode]:
    scripted = ScriptedNode()
    await scripted.start()
    yield scripted
    await scripted.stop()


@pytest.fixture
def attach(clock: ScaledClock) -> Attach:
    """`async with attach(node) as radio`, or with an address; leaves nothing behind, which is checked."""

    @asynccontextmanager
    async def attached(
        where: ScriptedNode | str, *, is_ready: bool = True, answer_within_s: int = 600, **options: Any
    ) -> AsyncIterator[MeshtasticRadio]:
        address = where if isinstance(where, str) else f"tcp:127.0.0.1:{where.port}"
        settings = RadioSettings(address=address, answer_within_s=answer_within_s)
        before = leftovers()
        async with MeshtasticRadio(settings, LIMITS, clock=clock, rng=random.Random(11), **options) as radio:
            if is_ready:
                async with asyncio.timeout(20):
                    await radio.ready()
            yield radio
        assert leftovers() == before

    return attached


def leftovers() -> dict[str, int]:
    """What a radio could leave behind: its threads, subscriptions, tasks."""
    from pubsub import pub

    threads = [thread.name for thread in threading.enumerate()]
    topics = ("meshtastic.receive", "meshtastic.connection.lost", "meshtastic.clientNotification")
    found: list[Any] = [pub.getDefaultTopicMgr().getTopic(name, okIfNone=True) for name in topics]
    return {
        "threads": sum(name in OURS for name in threads),
        "subscriptions": sum(len(topic.getListeners()) for topic in found if topic is not None),
        "tasks": sum(task.get_name() == "radio" for task in asyncio.all_tasks()),
    }


def open_sockets() -> int:
    gc.collect()
    links = (os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_open(fd))
    return sum(link.startswith("socket:") for link in links)


def _is_open(fd: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")


async def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    """Wait until something has become true, in the machine's seconds."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)
