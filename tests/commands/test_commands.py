"""Commands: each example runs, each answer fits one packet, nothing of the air's text harms them."""

import asyncio
from dataclasses import replace

import pytest

from meshai import builtin
from meshai.commands.base import Request, duration
from meshai.commands.ping import signal
from meshai.commands.quiet import seconds
from meshai.config import AirtimeSettings
from meshai.errors import CommandError
from meshai.governor import Spending
from meshai.memory.memory import Memory
from meshai.messages import Direct, IncomingMessage, Node, TextLimits, Turn
from meshai.orders import Orders
from meshai.quiet import Quiet
from meshai.registry import Registry
from meshai.status import Place, Status
from meshai.store import turns
from meshai.store.database import Database
from meshai.testing import FakeRadio, ManualClock

ANNA = 0xA11A
STATUS = Status(
    version="1.2",
    uptime_s=93_784,
    is_connected=True,
    radio="connected",
    node=Place("!0000b0b0", "MeshAI"),
    region="EU_868",
    preset="LONG_FAST",
    firmware="2.7.26",
    model="qwen",
    model_trouble="",
    heard=30,
    answered=12,
    refused=2,
    apologies=1,
    sent=20,
    failed=1,
    waiting=3,
    airtime=Spending(12.4, 58.0, 72.0, None),
)


@pytest.fixture
def registry() -> Registry:
    made = Registry()
    builtin.register(made)
    return made


@pytest.fixture
def memory(database: Database, clock: ManualClock) -> Memory:
    return Memory(database, clock=clock, persona="", budget_tokens=lambda: 500)


@pytest.fixture
def orders(database: Database, clock: ManualClock) -> Orders:
    return Orders(database, Quiet(AirtimeSettings(), clock), clock)


def message(**fields: object) -> IncomingMessage:
    basis: dict[str, object] = {"hops": 2, "snr": 5.75, "rssi": -88}
    return IncomingMessage(1, ANNA, 7, 0, "", 0.0, TextLimits(160, 200), **(basis | fields))  # type: ignore[arg-type]


def request(
    registry: Registry, memory: Memory, orders: Orders, text: str, *, asker: Node | None = None, **fields: object
) -> Request:
    _, _, argument = text.partition(" ")
    return Request(
        message(**fields),
        argument,
        asker or Node(ANNA, "Anna"),
        memory,
        lambda: STATUS,
        orders,
        FakeRadio(nodes=[Node(ANNA)]),
        ManualClock(),
        registry.commands,
    )


async def run(registry: Registry, asked: Request, name: str) -> str:
    reply = await registry.commands[name].run(asked)
    assert not reply.remember
    return reply.text


async def test_every_example_runs_and_fits_one_packet(registry: Registry, memory: Memory, orders: Orders) -> None:
    assert set(registry.commands) - registry.admin_names == {
        "help",
        "more",
        "ping",
        "status",
        "whoami",
        "memory",
        "reset",
    }
    assert registry.admin_names == {"quiet", "ignore", "unignore", "stats", "restart-radio"}
    for name, command in registry.commands.items():
        assert command.examples
        for example in command.examples:
            assert example.startswith(f"!{name}")
            text = await run(registry, request(registry, memory, orders, example), name)
            assert 0 < len(text) <= 150, (example, text)
            assert text[0] not in "!/"


async def test_help_names_every_command_and_explains_one(registry: Registry, memory: Memory, orders: Orders) -> None:
    overview = await run(registry, request(registry, memory, orders, "!help"), "help")
    assert all(f"!{name}" in overview for name in registry.commands)
    assert "SNR" in await run(registry, request(registry, memory, orders, "!help !PING please"), "help")
    with pytest.raises(CommandError, match="no command !weather"):
        await registry.commands["help"].run(request(registry, memory, orders, "!help weather"))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "heard over 2 hops, SNR 5.8 dB, RSSI -88 dBm"),
        ({"hops": 0}, "heard directly, SNR 5.8 dB, RSSI -88 dBm"),
        ({"hops": 1, "snr": None}, "heard over 1 hop, RSSI -88 dBm"),
        ({"hops": None, "snr": None, "rssi": None}, "heard"),
        ({"via_mqtt": True, "snr": None, "rssi": None}, "came over MQTT"),
    ],
)
def test_ping_tells_only_what_the_packet_said(fields: dict[str, object], text: str) -> None:
    assert signal(message(**fields)) == text


async def test_status(registry: Registry, memory: Memory, orders: Orders) -> None:
    assert (
        await run(registry, request(registry, memory, orders, "!status"), "status")
        == "up 1 d 2 h, EU_868 LONG_FAST, model qwen, 12 answered, 3 packets waiting, "
        "airtime 12 s spent, 58 s left this hour"
    )


async def test_status_names_no_model_that_does_not_work(registry: Registry, memory: Memory, orders: Orders) -> None:
    asked = request(registry, memory, orders, "!status")
    status = replace(asked.status(), model_trouble="the weights of qwen are missing")
    text = await run(registry, replace(asked, status=lambda: status), "status")
    assert ", model out of order: the weights of qwen are missing, 12 answered" in text
    text = await run(registry, replace(asked, status=lambda: replace(status, model="", model_trouble="")), "status")
    assert ", no language model, 12 answered" in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.9, "59 s"), (60, "1 min 0 s"), (3600, "1 h"), (86_400 * 3 + 7200, "3 d 2 h"), (7322, "2 h 2 min")],
)
def test_durations_are_in_their_two_largest_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


async def test_whoami_tells_what_is_proved_and_kept(
    registry: Registry, memory: Memory, orders: Orders, database: Database
) -> None:
    async with database.transaction() as db:
        await turns.add_question(db, 1, Turn(Direct(ANNA), "hi", ANNA, False, 0.0), packet_id=1, public_key=None)
    proved = await run(registry, request(registry, memory, orders, "!whoami", public_key=b"k" * 32), "whoami")
    assert proved == "You are Anna !0000a11a, proved by your key. I keep 1 lines of our talk here."
    nameless = await run(registry, request(registry, memory, orders, "!whoami", asker=Node(ANNA)), "whoami")
    assert nameless.startswith("You are !0000a11a, not proved by a key.")


async def test_reset_forgets_and_says_so(
    registry: Registry, memory: Memory, orders: Orders, database: Database
) -> None:
    async with database.transaction() as db:
        await turns.add_question(db, 1, Turn(Direct(ANNA), "hi", ANNA, False, 0.0), packet_id=1, public_key=None)
    assert "1 lines" in await run(registry, request(registry, memory, orders, "!reset"), "reset")
    assert "nothing" in await run(registry, request(registry, memory, orders, "!reset"), "reset")


def test_a_name_is_registered_once(registry: Registry) -> None:
    with pytest.raises(ValueError, match="!ping"):
        registry.command(registry.commands["ping"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2h", 7200),
        ("2 h", 7200),
        ("90min", 5400),
        ("90m", 5400),
        ("1d 12h", 129_600),
        ("1h30min", 5400),
        *((text, 0) for text in ("", "2", "h", "2h later", "-2h", "2 hours", "0h", "٢h", "off", "1.5h", "123456h")),
    ],
)
def test_lengths_of_time(text: str, expected: int) -> None:
    assert seconds(text) == expected


async def test_quiet_begins_tells_and_ends(registry: Registry, memory: Memory, orders: Orders) -> None:
    async def said(text: str) -> str:
        return await run(registry, request(registry, memory, orders, text), "quiet")

    assert (await said("!quiet")).startswith("Not quiet.")
    assert (await said("!quiet 1D 2h")).startswith("Quiet for 1 d 2 h;")
    assert await said("!quiet") == "Quiet for 1 d 2 h more."
    for text in ("!quiet 8d", "!quiet 0m", "!quiet for ever"):
        with pytest.raises(CommandError, match="at most 7 d"):
            await said(text)
    assert await orders.quiet_left_s() == 93_600
    assert await said("!quiet OFF") == "No longer quiet."
    assert await orders.quiet_left_s() == 0


async def test_nodes_are_ignored_by_id_or_key_and_never_by_name(
    registry: Registry, memory: Memory, orders: Orders
) -> None:
    key = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="

    async def said(text: str) -> str:
        return await run(registry, request(registry, memory, orders, text), text[1:].split()[0])

    assert await said("!ignore") == "Nobody is ignored by command."
    for text in ("!ignore !A1B2C3D4 please", "!ignore a1b2c3d4", f"!ignore {key}"):
        assert (await said(text)).startswith("From now on I ignore ")
    assert await said("!ignore") == f"Ignored by command: !a1b2c3d4, {key}"
    for text in ("!ignore Anna", "!ignore !a1b2c3", f"!ignore {key[:-1]}", "!unignore", "!unignore Anna"):
        with pytest.raises(CommandError, match="by its id"):
            await said(text)
    assert await said("!unignore !a1b2c3d4") == "I no longer ignore !a1b2c3d4."
    assert "was not ignored" in await said("!unignore !a1b2c3d4")
    assert await orders.ignored() == [key]


async def test_stats_fit_one_packet_however_large(registry: Registry, memory: Memory, orders: Orders) -> None:
    text = await run(registry, request(registry, memory, orders, "!stats"), "stats")
    assert text.startswith(
        "up 1 d 2 h; heard 30, answered 12, refused 2; packets 20 sent, 1 failed; air 12/72 s; 2 nodes; "
    )
    assert 10 < int(text.split()[-2]) < 2000
    large = dict.fromkeys(("heard", "answered", "refused", "sent", "failed"), 999999)
    asked = replace(request(registry, memory, orders, "!stats"), status=lambda: replace(STATUS, **large))  # type: ignore[arg-type]
    assert len(await run(registry, asked, "stats")) <= 150


async def test_restart_radio_answers_when_the_link_is_back(
    registry: Registry, memory: Memory, orders: Orders, clock: ManualClock
) -> None:
    radio = FakeRadio()
    radio.unplug()
    asked = replace(request(registry, memory, orders, "!restart-radio"), radio=radio, clock=clock)
    answering = asyncio.create_task(run(registry, asked, "restart-radio"))
    await clock.advance(4)
    assert not answering.done()
    radio.plug()
    await clock.advance(0)
    assert await answering == "The link to my radio is a new one, up again after 4 s."
    assert radio.reconnects == 1
    radio.unplug()
    answering = asyncio.create_task(run(registry, asked, "restart-radio"))
    await clock.advance(61)
    assert "more than 60 s" in await answering
