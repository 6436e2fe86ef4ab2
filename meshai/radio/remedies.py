"""Why there is no link to the node, in one line, with what to do about it."""

import errno
import shlex
import socket
import sys
from typing import Final

from meshai.entries import BleAddress, RadioAddress, SerialAddress, TcpAddress
from meshai.errors import RadioError
from meshai.radio.packets import clean_name

LINE_CHARACTERS: Final = 300
_NO_ANSWER: Final = frozenset({errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN})
_NO_DEVICE: Final = frozenset({errno.ENOENT, errno.ENODEV, errno.ENXIO, errno.EIO})


def explain(error: BaseException, endpoint: RadioAddress) -> str:
    """One line for people: what is wrong and what helps."""
    said = clean_name(str(error), most=LINE_CHARACTERS)
    if isinstance(error, RadioError):
        return said
    match endpoint:
        case SerialAddress():
            found = _serial_trouble(error, said)
        case TcpAddress():
            found = _network_trouble(error)
        case BleAddress():
            found = _bluetooth_trouble(error, said)
    return found or f"{type(error).__name__}: {said}"


def _serial_trouble(error: BaseException, said: str) -> str | None:
    number = error.errno if isinstance(error, OSError) else None
    if "exclusively lock" in said or number == errno.EBUSY:
        return "another program has the serial port open; stop it"
    if number in (errno.EACCES, errno.EPERM):
        return (
            "permission denied on the serial port; add the user to the group dialout "
            "(sudo usermod -aG dialout USER) and log in again"
        )
    if number in _NO_DEVICE:
        return "no such serial port; is the radio plugged in?"
    if type(error).__module__ == "termios":
        return "this is not a serial port; set radio.address to the radio's"
    return None


def _network_trouble(error: BaseException) -> str | None:
    if isinstance(error, socket.gaierror):
        return "the name of the radio cannot be resolved; use its IP address, or check the network"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused; is the address right and the radio's network turned on?"
    if isinstance(error, TimeoutError) or (isinstance(error, OSError) and error.errno in _NO_ANSWER):
        return "no answer; is the radio on and in the same network?"
    return None


def _bluetooth_trouble(error: BaseException, said: str) -> str | None:
    if isinstance(error, ImportError):
        return (
            f"Bluetooth support is not installed; install it with: {shlex.quote(sys.executable)} -m pip install bleak"
        )
    if type(error).__name__ in ("BLEError", "BleakError", "BleakDBusError", "BleakBluetoothNotAvailableError"):
        return f"{said}; is Bluetooth on, the radio near and paired, and no phone connected to it?"
    return None
