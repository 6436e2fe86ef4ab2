"""A simulated mesh, and clients attached to it."""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from meshtastic.serial_interface import SerialInterface
from meshtastic.tcp_interface import TCPInterface

from meshai.clock import ScaledClock
from meshai.sim.mesh import SimulatedMesh
from meshai.testing import ManualClock
from tests.sim.clients import LibraryClient, SocketClient

SPEED = 50.0

Attach: TypeAlias = Callable[..., AbstractAsyncContextManager[LibraryClient]]
Dial: TypeAlias = Callable[..., AbstractAsyncContextManager[SocketClient]]


@pytest.fixture
def fast() -> ScaledClock:
    return ScaledClock(SPEED)


@pytest.fixture
async def mesh(fast: ScaledClock) -> AsyncIterator[SimulatedMesh]:
    """A mesh in fast time, for real sockets."""
    async with SimulatedMesh(clock=fast, rng=random.Random(7)) as simulated:
        yield simulated


@pytest.fixture
async def still(clock: ManualClock) -> AsyncIterator[SimulatedMesh]:
    """A mesh in time that stands still until it is advanced."""
    async with SimulatedMesh(clock=clock, rng=random.Random(7)) as simulated:
        yield simulated


@pytest.fixture
def attach(fast: ScaledClock) -> Attach:
    """`async with attach(port) as client` or `attach(path)`: the real library on TCP or on a serial port."""

    @asynccontextmanager
    async def attached(place: int | Path, **options: Any) -> AsyncIterator[LibraryClient]:
        client = LibraryClient(fast)
        try:
            if isinstance(place, Path):
                await client.connect(lambda: SerialInterface(str(place), **options))
            else:
                await client.connect(lambda: TCPInterface("127.0.0.1", portNumber=place, **options))
            yield client
        finally:
            await client.close()

    return attached


@pytest.fixture
def dial(fast: ScaledClock) -> Dial:
    """`async with dial(port) as client`: the hand-written client, connected but not configured."""

    @asynccontextmanager
    async def dialled(port: int) -> AsyncIterator[SocketClient]:
        client = await SocketClient.connect(fast, port)
        try:
            yield client
        finally:
            await client.close()

    return dialled
