"""`meshai sim` as a process, and the official command line as its client."""

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest

from meshai.cli.sim import line
from meshai.sim.air import Cause, OnAir

LIMIT_S = 60


class Simulator:
    """The process, where it listens and who lives there."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self.host = self.line_with(r"TCP:\s+(\S+)")[1]

    def line_with(self, pattern: str) -> re.Match[str]:
        """Read on until a line matches."""
        for text in self._output():
            self.lines.append(text)
            if match := re.search(pattern, text):
                return match
        raise AssertionError(f"ended without {pattern!r}: {self.lines}")

    def _output(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        self.lines += self.process.communicate(timeout=LIMIT_S)[0].splitlines(keepends=True)
        return self.process.returncode


@contextmanager
def simulating(*options: str) -> Iterator[Simulator]:
    command = [sys.executable, "-m", "meshai", "sim", "--port", "0", "--speed", "30", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield Simulator(process)
        finally:
            process.kill()


def meshtastic(simulator: Simulator, *arguments: str) -> str:
    """What the official command line prints; it must succeed."""
    command = [sys.executable, "-m", "meshtastic", "--host", simulator.host, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def simulator() -> Iterator[Simulator]:
    with simulating("--people", "4", "--verbose") as running:
        yield running
        assert running.stop() == 0


def test_info(simulator: Simulator) -> None:
    shown = meshtastic(simulator, "--info")
    assert "Owner: MeshAI (MAI)" in shown
    assert '"modemPreset": "LONG_FAST"' in shown
    assert "Anna Weber" in shown
    assert 'Index 1: SECONDARY psk=default { "psk": "AQ==", "name": "MeshAI"' in shown


def test_nodes(simulator: Simulator) -> None:
    shown = meshtastic(simulator, "--nodes")
    for name in ("MeshAI", "Anna Weber", "Ridge Repeater", "Ольга", "山田 太郎"):
        assert name in shown


def test_sendtext_to_all(simulator: Simulator) -> None:
    shown = meshtastic(simulator, "--sendtext", "hi", "--ack")
    assert "Received an implicit ACK" in shown
    assert simulator.line_with(r"client, 'hi'")


def test_sendtext_to_one(simulator: Simulator) -> None:
    anna = "!5e401204"
    shown = meshtastic(simulator, "--sendtext", "hi Anna", "--dest", anna, "--ack")
    assert "Received an ACK." in shown or "Received an implicit ACK" in shown
    assert simulator.line_with(rf"→ {anna} client, 'hi Anna'")
    assert simulator.line_with(rf"{anna} → !\w+ ack, for")


def test_sendtext_to_nobody_is_refused(simulator: Simulator) -> None:
    shown = meshtastic(simulator, "--sendtext", "hi", "--dest", "!12345678", "--ack")
    assert "NAK, error reason: PKI_SEND_FAIL_PUBLIC_KEY" in shown


def test_owner_can_be_asked_for(simulator: Simulator) -> None:
    assert "firmware_version: 2.7.26" in meshtastic(simulator, "--device-metadata")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ends_when_asked(number: signal.Signals) -> None:
    with simulating("--people", "20", "--pty", "--preset", "SHORT_FAST", "--region", "EU_868") as running:
        path = running.line_with(r"serial: (\S+)")[1]
        assert path.startswith("/dev/")
        running.line_with("and 12 more")
        assert running.stop(number) == 0
    assert running.lines[-1] == "Stopped.\n"


def test_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "meshai", "sim", "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    assert "--port" in done.stderr
    assert "Traceback" not in done.stderr


TEXT = OnAir(
    at=0.0,
    by=1,
    sender=1,
    to=0xFFFFFFFF,
    packet_id=255,
    channel=0,
    port=1,
    payload=b"\x1b[31mred\n",
    frame_bytes=30,
    airtime_s=0.477,
    cause=Cause.PEER,
    reply_id=0,
    request_id=0,
    error=None,
    is_tapback=False,
    hop_limit=3,
    want_ack=False,
    pki=False,
)


@pytest.mark.parametrize(
    ("packet", "shown"),
    [
        (TEXT, r"!00000001 → all peer, '\x1b[31mred\n'  [30 B, 0.477 s, id 000000ff]"),
        (replace(TEXT, to=2, port=5, cause=Cause.ACK, error=0, request_id=7), "→ !00000002 ack, for 00000007"),
        (replace(TEXT, to=2, port=5, cause=Cause.NAK, error=35, request_id=7), "nak, routing error 35"),
        (replace(TEXT, port=67), "peer, TELEMETRY_APP"),
        (replace(TEXT, port=499), "peer, port 499"),
    ],
)
def test_lines_of_the_log(packet: OnAir, shown: str) -> None:
    assert shown in line(packet).plain


def test_topology_by_name() -> None:
    with simulating("--topology", "line") as running:
        assert running.line_with(r"(!\w+) Anna Weber, direct neighbour")
        far = running.line_with(r"(!\w+) Ольга, 2 hops away")[1]
        shown = meshtastic(running, "--sendtext", "hi", "--dest", far, "--ack")
        assert "Received an implicit ACK" in shown
        assert running.stop() == 0


def test_topology_that_is_not_there() -> None:
    command = [sys.executable, "-m", "meshai", "sim", "--topology", "nowhere.toml"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 1
    assert "cannot read the topology 'nowhere.toml'" in done.stderr


def test_map_at_the_start_and_at_the_end(tmp_path: Path) -> None:
    picture = tmp_path / "map.svg"
    with simulating("--topology", "star", "--map", "--for", "5m", "--svg", str(picture)) as running:
        assert running.line_with(r"└── HILL Hill Router ROUTER  6.0 dB, 19 more in reach$")
        assert running.line_with("Stopped")
        assert running.process.wait(LIMIT_S) == 0
        assert running.line_with(r"HILL Hill Router .* ↑ \d+ of \d+")
    assert "Hill" in picture.read_text()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--svg", "/nowhere/map.svg"), "/nowhere/map.svg cannot be written"),
        (("--for", "soon"), "'soon' is no time such as 60s or 5m"),
    ],
)
def test_options_that_cannot_be(options: tuple[str, ...], complaint: str) -> None:
    command = [sys.executable, "-m", "meshai", "sim", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 2
    assert complaint in done.stderr
