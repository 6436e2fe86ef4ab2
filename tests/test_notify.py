"""Speaks systemd's notify protocol with a real socket."""

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshai.notify import Notifier


@pytest.fixture(params=["in the file system", "abstract"])
def supervisor(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A supervisor's socket and what it puts into NOTIFY_SOCKET."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        name = (
            f"@meshai-test-{os.getpid()}-{id(listening)}" if request.param == "abstract" else str(tmp_path / "notify")
        )
        listening.bind(name.replace("@", "\0", 1))
        listening.settimeout(5)
        yield listening, name


def test_a_service_from_start_to_stop(supervisor: tuple[socket.socket, str]) -> None:
    listening, name = supervisor
    notifier = Notifier({"NOTIFY_SOCKET": name})
    notifier.ready("waiting for radio")
    notifier.status("connected to tcp:host")
    notifier.watchdog()
    notifier.stopping()
    assert [listening.recv(4096) for _ in range(4)] == [
        b"READY=1\nSTATUS=waiting for radio",
        b"STATUS=connected to tcp:host",
        b"WATCHDOG=1",
        b"STOPPING=1",
    ]


def test_ready_without_status(supervisor: tuple[socket.socket, str]) -> None:
    listening, name = supervisor
    Notifier({"NOTIFY_SOCKET": name}).ready()
    assert listening.recv(4096) == b"READY=1"


def test_a_name_from_the_air_cannot_add_a_variable(supervisor: tuple[socket.socket, str]) -> None:
    listening, name = supervisor
    Notifier({"NOTIFY_SOCKET": name}).status("node Ann\nMAINPID=1\r\nFDSTORE=1 \ud800")
    assert listening.recv(4096) == b"STATUS=node Ann MAINPID=1 FDSTORE=1 ?"


def test_a_supervisor_that_does_not_read_holds_up_nobody(supervisor: tuple[socket.socket, str]) -> None:
    listening, name = supervisor
    notifier = Notifier({"NOTIFY_SOCKET": name})
    for _ in range(2000):
        notifier.watchdog()
    told = 0
    listening.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while listening.recv(4096) == b"WATCHDOG=1":
            told += 1
    assert 0 < told < 2000


@pytest.mark.parametrize("name", ["", "/no/such/socket", "@nobody-listens-here", "x" * 500, "vsock:2:1234", "a\0b"])
def test_without_a_supervisor_nothing_happens(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "meshai.notify")
    notifier = Notifier({"NOTIFY_SOCKET": name})
    notifier.ready("text")
    notifier.status("text")
    notifier.watchdog()
    notifier.stopping()
    assert len(caplog.records) == (4 if name else 0)


@pytest.mark.parametrize(
    ("environ", "interval_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_PID": str(os.getpid())}, None),
    ],
)
def test_how_long_the_watchdog_waits(environ: dict[str, str], interval_s: float | None) -> None:
    assert Notifier(environ).watchdog_interval_s == interval_s
