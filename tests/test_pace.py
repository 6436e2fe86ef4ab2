"""Turns: one at a time, by priority, and a waiter that gives up takes nothing along."""

import asyncio

from meshai.messages import Priority
from meshai.pace import Turns
from meshai.testing import settle


async def test_the_most_urgent_goes_first_and_equals_in_order() -> None:
    turns, order = Turns(), []
    gate = asyncio.Event()

    async def take(name: str, priority: Priority) -> None:
        async with turns.turn(priority):
            order.append(name)
            await gate.wait()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(take("first", Priority.CHANNEL))
        await settle()
        for name, priority in (
            ("channel 1", Priority.CHANNEL),
            ("direct 1", Priority.DIRECT),
            ("channel 2", Priority.CHANNEL),
            ("command", Priority.COMMAND),
            ("direct 2", Priority.DIRECT),
        ):
            tasks.create_task(take(name, priority))
        await settle()
        assert order == ["first"]
        gate.set()
    assert order == ["first", "command", "direct 1", "direct 2", "channel 1", "channel 2"]


async def test_a_cancelled_waiter_is_passed_over_also_when_it_was_called_already() -> None:
    turns, order = Turns(), []
    leave = asyncio.Event()

    async def hold() -> None:
        async with turns.turn(Priority.DIRECT):
            await leave.wait()

    async def take(name: str) -> None:
        async with turns.turn(Priority.DIRECT):
            order.append(name)

    holding = asyncio.create_task(hold())
    await settle()
    waiting = [asyncio.create_task(take(name)) for name in ("gone", "called and gone", "stays")]
    await settle()
    waiting[0].cancel()
    leave.set()
    await asyncio.sleep(0)
    # It has been called, but has not run yet.
    waiting[1].cancel()
    await asyncio.gather(holding, *waiting, return_exceptions=True)
    assert order == ["stays"]
    async with asyncio.timeout(1), turns.turn(Priority.CHANNEL):
        pass
