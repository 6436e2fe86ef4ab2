"""The terminal in place of a radio."""

import asyncio
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from meshai.errors import PacketTooLong
from meshai.messages import Delivery, Fate, IncomingMessage, OutgoingPacket, TextLimits
from meshai.radio.console import BOT, PERSON, ConsoleRadio, lines_of
from meshai.radio.inbox import Inbox
from meshai.testing import ManualClock

LIMITS = TextLimits(160, 200)


async def typed(*lines: str) -> AsyncIterator[str]:
    for line in lines:
        yield line


def text(number: int) -> IncomingMessage:
    return IncomingMessage(number, PERSON.number, BOT.number, 0, str(number), 0.0, LIMITS)


async def test_lines_are_direct_messages_and_answers_are_shown() -> None:
    shown: list[str] = []
    radio = ConsoleRadio(LIMITS, clock=ManualClock(), lines=typed("hello\n", "Привет"), show=shown.append)
    async with radio:
        heard = [message async for message in radio.messages()]
        packet = OutgoingPacket(heard[0].reply_address(), "hi there", packet_id=1)
        await radio.send(packet)
        assert await radio.delivery(packet) == Delivery(Fate.DELIVERED)
    assert [message.text for message in heard] == ["hello", "Привет"]
    assert all(message.is_direct and message.sender == PERSON.number for message in heard)
    assert heard[0].packet_id != heard[1].packet_id
    assert shown == ["hi there"]


async def test_ids_are_new_in_every_run() -> None:
    clock = ManualClock()
    first = ConsoleRadio(LIMITS, clock=clock, lines=typed("a"), show=print)
    await clock.advance(1)
    second = ConsoleRadio(LIMITS, clock=clock, lines=typed("a"), show=print)
    ids = []
    for radio in (first, second):
        async with radio:
            ids += [message.packet_id async for message in radio.messages()]
    assert ids[0] != ids[1]


async def test_limits_hold_at_the_terminal_too() -> None:
    async with ConsoleRadio(LIMITS, clock=ManualClock(), lines=typed("a"), show=print) as radio:
        message = await anext(aiter(radio.messages()))
        with pytest.raises(PacketTooLong):
            await radio.send(OutgoingPacket(message.reply_address(), "x" * 201, packet_id=1))


async def test_a_broken_input_ends_the_conversation() -> None:
    async def gone() -> AsyncIterator[str]:
        yield "one"
        raise OSError("the terminal is gone")

    async with ConsoleRadio(LIMITS, clock=ManualClock(), lines=gone(), show=print) as radio:
        assert [message.text async for message in radio.messages()] == ["one"]


@pytest.mark.parametrize("size", [1, 3, 4096])
async def test_lines_come_from_a_pipe_as_they_are_typed(size: int) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading) as file:
        lines = lines_of(file)
        wire = "one\nдва 👍\n\nlast".encode() + b"\xff"
        for start in range(0, len(wire), size):
            os.write(writing, wire[start : start + size])
        os.close(writing)
        assert [line async for line in lines] == ["one", "два 👍", "", "last\ufffd"]


async def test_lines_come_from_a_terminal() -> None:
    person, terminal = os.openpty()
    with os.fdopen(terminal) as file:
        lines = lines_of(file)
        waiting = asyncio.ensure_future(anext(lines))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        os.write(person, b"hello\n")
        assert await waiting == "hello"
        await lines.aclose()
    os.close(person)


async def test_lines_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("one\ntwo\n")
    with path.open() as file:
        assert [line async for line in lines_of(file)] == ["one", "two"]


async def test_a_full_inbox_drops_the_oldest_and_counts() -> None:
    inbox = Inbox(most=3)
    assert [inbox.put(text(number)) for number in range(5)] == [True, True, True, False, False]
    inbox.stop()
    inbox.put(text(9))
    assert [message.text async for message in inbox.texts()] == ["2", "3", "4"]
    assert inbox.dropped == 2


async def test_an_inbox_keeps_order_while_it_is_read() -> None:
    inbox, rng = Inbox(), random.Random(1)
    taken: list[str] = []

    async def take() -> None:
        taken.extend([message.text async for message in inbox.texts()])

    taking = asyncio.create_task(take())
    for number in range(50):
        inbox.put(text(number))
        if rng.random() < 0.3:
            await asyncio.sleep(0)
    inbox.stop()
    await taking
    assert taken == [str(number) for number in range(50)]
