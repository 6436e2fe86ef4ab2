"""The thread side: what hangs, exits or is not installed, ports that come and go, and the library we stand on."""

import asyncio
import importlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from meshtastic.mesh_interface import MeshInterface
from meshtastic.serial_interface import SerialInterface
from meshtastic.stream_interface import StreamInterface as LibraryStream
from meshtastic.tcp_interface import TCPInterface

from meshai.clock import ScaledClock
from meshai.radio.interface import Interface, StreamInterface
from meshai.radio.library import SerialLink, TcpLink
from meshai.radio.meshtastic import MOST_STUCK
from tests.radio.conftest import Attach, until
from tests.radio.scripted import ScriptedNode, heard


@pytest.fixture
def held() -> Iterator[threading.Event]:
    """Holds up whoever waits for it until the end of the test."""
    event = threading.Event()
    yield event
    event.set()


async def test_a_thread_that_hangs_is_left_behind_and_few_are(
    attach: Attach, clock: ScaledClock, held: threading.Event
) -> None:
    calls = 0

    def hang() -> list[str]:
        nonlocal calls
        calls += 1
        held.wait()
        return []

    async with attach("auto", is_ready=False, find_ports=hang) as radio:
        await until(lambda: "holds up every attempt" in radio.state, seconds=20)
        assert calls == MOST_STUCK == radio.counts.stuck_threads
        held.set()
        await until(lambda: "no radio found" in radio.state)
        await until(lambda: sum(thread.name == "radio link" for thread in threading.enumerate()) <= 1)


async def test_leaving_does_not_wait_for_a_thread_that_hangs(attach: Attach, held: threading.Event) -> None:
    is_hanging = threading.Event()

    def hang() -> list[str]:
        is_hanging.set()
        held.wait()
        return []

    async with attach("auto", is_ready=False, find_ports=hang) as radio:
        await until(is_hanging.is_set)
        started = time.monotonic()
        await radio.__aexit__(None, None, None)
        assert time.monotonic() - started < 5
        held.set()
        await until(lambda: all(thread.name != "radio link" for thread in threading.enumerate()))


async def test_the_library_may_try_to_end_the_program(attach: Attach) -> None:
    attempts = 0

    def leave() -> list[str]:
        nonlocal attempts
        attempts += 1
        raise SystemExit(1)

    async with attach("auto", is_ready=False, find_ports=leave) as radio:
        await until(lambda: attempts == 3)
        assert "SystemExit" in radio.state


@pytest.mark.parametrize(
    ("ports", "said"),
    [([], "no radio found on any USB port"), (["/dev/ttyACM0", "/dev/ttyUSB1"], "set radio.address to one of them")],
)
async def test_without_one_clear_port_people_are_told_what_to_do(attach: Attach, ports: list[str], said: str) -> None:
    async with attach("auto", is_ready=False, find_ports=lambda: ports) as radio:
        await until(lambda: said in radio.state)
        assert all(port in radio.state for port in ports)


async def test_a_port_that_is_not_there_or_is_none(attach: Attach, tmp_path: Path) -> None:
    async with attach(str(tmp_path / "ttyUSB0"), is_ready=False) as radio:
        await until(lambda: "plugged in" in radio.state)
        assert not radio.is_connected
    (tmp_path / "file").touch()
    async with attach(str(tmp_path / "file"), is_ready=False) as radio:
        await until(lambda: "not a serial port" in radio.state)
        assert not radio.is_connected
        assert radio.counts.connects == radio.counts.stuck_threads == 0
    assert (tmp_path / "file").read_bytes() == b"", "nothing is written to what is no port"


async def test_bluetooth_that_is_not_there_is_waited_for(attach: Attach, clock: ScaledClock) -> None:
    pytest.importorskip("bleak")
    async with attach("ble:AA:BB:CC:DD:EE:FF", is_ready=False) as radio:
        await until(lambda: "connecting" not in radio.state, seconds=30)
        assert "waiting for a radio at ble:AA:BB:CC:DD:EE:FF" in radio.state


async def test_a_name_that_cannot_be_resolved(attach: Attach) -> None:
    async with attach("tcp:no-such-host.invalid", is_ready=False) as radio:
        await until(lambda: "use its IP address" in radio.state, seconds=30)
        assert "no-such-host.invalid" in radio.state
        assert radio.counts.connects == radio.counts.losses == 0


async def test_another_listener_that_raises_does_not_harm_us(
    node: ScriptedNode, attach: Attach, capfd: pytest.CaptureFixture[str]
) -> None:
    from pubsub import pub

    from meshai.radio.library import on_publishing_thread

    calls = 0

    def broken(packet: object, interface: object) -> None:
        nonlocal calls
        calls += 1
        raise RuntimeError("another program part")

    def subscribe() -> None:
        pub.subscribe(broken, "meshtastic.receive.text")

    async with attach(node) as radio:
        await asyncio.to_thread(on_publishing_thread, subscribe)
        texts = radio.messages()
        for number in (1, 2):
            node.say(heard(b"hi", id=number))
            async with asyncio.timeout(5):
                assert (await anext(texts)).packet_id == number
        await asyncio.to_thread(on_publishing_thread, lambda: pub.unsubscribe(broken, "meshtastic.receive.text"))
    assert calls == 2
    capfd.readouterr()


async def test_two_radios_in_one_process_hear_only_their_own_node(node: ScriptedNode, attach: Attach) -> None:
    other = ScriptedNode()
    await other.start()
    async with attach(node) as one, attach(other) as two:
        node.say(heard(b"for one"))
        other.say(heard(b"for two"))
        async with asyncio.timeout(5):
            assert (await anext(aiter(one.messages()))).text == "for one"
            assert (await anext(aiter(two.messages()))).text == "for two"
    await other.stop()


OVERRIDDEN = {
    MeshInterface: (
        "_connected",
        "_disconnected",
        "_waitConnected",
        "waitForConfig",
        "_startHeartbeat",
        "_handleQueueStatusFromRadio",
        "_handleLogLine",
        "_handleFromRadio",
        "_handlePacketFromRadio",
        "_getOrCreateByNum",
    ),
    TCPInterface: ("myConnect", "_readBytes", "_reconnect", "_socket_shutdown"),
    SerialInterface: ("connect",),
    LibraryStream: ("_readBytes", "_sendToRadioImpl"),
}


def test_the_library_still_has_what_we_override() -> None:
    """A renamed method would go back to what the library does by itself, without an error."""
    missing = [name for base, names in OVERRIDDEN.items() for name in names if name not in vars(base)]
    assert missing == []
    ours = {
        name
        for kind in (Interface, StreamInterface, TcpLink, SerialLink)
        for name in vars(kind)
        if not name.startswith("__")
    }
    inherited = {name for name in ours if any(hasattr(base, name) for base in OVERRIDDEN)}
    listed = {name for names in OVERRIDDEN.values() for name in names}
    assert inherited <= listed, "an override that this test does not watch"


def test_importing_our_modules_does_not_import_the_library() -> None:
    import subprocess
    import sys

    code = "import sys, meshai.radio.meshtastic, meshai.radio.console; print('meshtastic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_bluetooth_class_still_has_what_we_override() -> None:
    pytest.importorskip("bleak")
    from meshtastic.ble_interface import BLEInterface

    ble = importlib.import_module("meshai.radio.ble")
    assert issubclass(ble.BleLink, BLEInterface)
    assert "close" in vars(BLEInterface)
