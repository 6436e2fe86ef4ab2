"""Commands: each example runs, each answer fits one packet, nothing of the air's text harms them."""

from dataclasses import replace

import pytest

from meshai import builtin
from meshai.commands.base import Request
from meshai.commands.ping import signal
from meshai.commands.status import duration
from meshai.errors import CommandError
from meshai.governor import Spending
from meshai.memory.memory import Memory
from meshai.messages import Direct, IncomingMessage, Node, TextLimits, Turn
from meshai.registry import Registry
from meshai.status import Place, Status
from meshai.store import turns
from meshai.store.database import Database
from meshai.testing import ManualClock

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


def message(**fields: object) -> IncomingMessage:
    basis: dict[str, object] = {"hops": 2, "snr": 5.75, "rssi": -88}
    return IncomingMessage(1, ANNA, 7, 0, "", 0.0, TextLimits(160, 200), **(basis | fields))  # type: ignore[arg-type]


def request(registry: Registry, memory: Memory, text: str, *, asker: Node | None = None, **fields: object) -> Request:
    _, _, argument = text.partition(" ")
    return Request(message(**fields), argument, asker or Node(ANNA, "Anna"), memory, lambda: STATUS, registry.commands)


async def run(registry: Registry, asked: Request, name: str) -> str:
    reply = await registry.commands[name].run(asked)
    assert not reply.remember
    return reply.text


async def test_every_example_runs_and_fits_one_packet(registry: Registry, memory: Memory) -> None:
    assert set(registry.commands) == {"help", "more", "ping", "status", "whoami", "reset"}
    for name, command in registry.commands.items():
        assert command.examples
        for example in command.examples:
            assert example.startswith(f"!{name}")
            text = await run(registry, request(registry, memory, example), name)
            assert 0 < len(text) <= 150, (example, text)
            assert text[0] not in "!/"


async def test_help_names_every_command_and_explains_one(registry: Registry, memory: Memory) -> None:
    overview = await run(registry, request(registry, memory, "!help"), "help")
    assert all(f"!{name}" in overview for name in registry.commands)
    assert "SNR" in await run(registry, request(registry, memory, "!help !PING please"), "help")
    with pytest.raises(CommandError, match="no command !weather"):
        await registry.commands["help"].run(request(registry, memory, "!help weather"))


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


async def test_status(registry: Registry, memory: Memory) -> None:
    assert (
        await run(registry, request(registry, memory, "!status"), "status")
        == "up 1 d 2 h, EU_868 LONG_FAST, model qwen, 12 answered, 3 packets waiting, "
        "airtime 12 s spent, 58 s left this hour"
    )


async def test_status_names_no_model_that_does_not_work(registry: Registry, memory: Memory) -> None:
    asked = request(registry, memory, "!status")
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


async def test_whoami_tells_what_is_proved_and_kept(registry: Registry, memory: Memory, database: Database) -> None:
    async with database.transaction() as db:
        await turns.add_question(db, 1, Turn(Direct(ANNA), "hi", ANNA, False, 0.0), packet_id=1, public_key=None)
    proved = await run(registry, request(registry, memory, "!whoami", public_key=b"k" * 32), "whoami")
    assert proved == "You are Anna !0000a11a, proved by your key. I keep 1 lines of our talk here."
    nameless = await run(registry, request(registry, memory, "!whoami", asker=Node(ANNA)), "whoami")
    assert nameless.startswith("You are !0000a11a, not proved by a key.")


async def test_reset_forgets_and_says_so(registry: Registry, memory: Memory, database: Database) -> None:
    async with database.transaction() as db:
        await turns.add_question(db, 1, Turn(Direct(ANNA), "hi", ANNA, False, 0.0), packet_id=1, public_key=None)
    assert "1 lines" in await run(registry, request(registry, memory, "!reset"), "reset")
    assert "nothing" in await run(registry, request(registry, memory, "!reset"), "reset")


def test_a_name_is_registered_once(registry: Registry) -> None:
    with pytest.raises(ValueError, match="!ping"):
        registry.command(registry.commands["ping"])
