"""Which serial ports a radio may be on, by names that are still right after it was plugged in again."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

BY_ID: Final = Path("/dev/serial/by-id")


def serial_ports() -> list[str]:
    """The ports of USB devices that may be radios; those of known makers only, where there are any."""
    from meshtastic.util import findPorts  # importing the library starts a thread

    return stable_names(findPorts(True))


def stable_names(ports: Iterable[str], by_id: Path = BY_ID) -> list[str]:
    """Each port by its link in `by_id`, which names the device, or as it is when it has none.

    `/dev/ttyUSB0` may be `/dev/ttyUSB1` the next time.
    """
    links = {str(link.resolve()): str(link) for link in sorted(by_id.glob("*"))}
    return [links.get(str(Path(port).resolve()), port) for port in ports]
