"""Tells systemd how the service is: ready, alive, stopping, and one line of status.

The protocol is one datagram of `NAME=value` lines to the socket named in `$NOTIFY_SOCKET`, from a service of
`Type=notify`; without that variable nothing is told. Telling never fails: a service that cannot speak to its
supervisor should go on doing its work.
"""

import logging
import os
import socket
from collections.abc import Mapping

log = logging.getLogger(__name__)


class Notifier:
    """The way to the supervisor that started this process, if any."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        path = environ.get("NOTIFY_SOCKET", "")
        # A leading @ stands for the zero byte of a name that is not in the file system.
        self._address = "\0" + path[1:] if path.startswith("@") else path
        self.watchdog_interval_s = _watchdog_interval_s(environ)
        """Longest silence between two `watchdog()` that systemd allows; None when it expects none."""

    def ready(self, status: str = "") -> None:
        """Started; units that wait for this one may start."""
        self._tell("READY=1", *([f"STATUS={_one_line(status)}"] if status else []))

    def status(self, text: str) -> None:
        """One line for `systemctl status`."""
        self._tell(f"STATUS={_one_line(text)}")

    def watchdog(self) -> None:
        """Still alive; without it in time systemd kills and restarts the service."""
        self._tell("WATCHDOG=1")

    def stopping(self) -> None:
        self._tell("STOPPING=1")

    def _tell(self, *lines: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as link:
                # A supervisor that does not read must not hold up the event loop.
                link.setblocking(False)
                link.sendto("\n".join(lines).encode("utf-8", "replace"), self._address)
        except (OSError, ValueError) as error:
            log.debug("systemd was not told %s: %s", lines[0], error)


def _watchdog_interval_s(environ: Mapping[str, str]) -> float | None:
    allowed, process = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not allowed.isdecimal() or int(allowed) == 0 or process not in ("", str(os.getpid())):
        return None
    return int(allowed) / 1_000_000


def _one_line(text: str) -> str:
    # A line break would begin another variable of the protocol, and the text may hold a node's name.
    return " ".join(text.split())
