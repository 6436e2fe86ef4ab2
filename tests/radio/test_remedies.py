"""What people read when there is no link."""

import errno
import socket
import termios

import pytest
import serial

from meshai.entries import BleAddress, RadioAddress, SerialAddress, TcpAddress
from meshai.errors import RadioError
from meshai.radio.remedies import explain

TCP, SERIAL, BLE = TcpAddress("radio.local"), SerialAddress("/dev/ttyUSB0"), BleAddress("AA:BB:CC:DD:EE:FF")


class BleakError(Exception):
    """Named as Bluetooth's own."""


@pytest.mark.parametrize(
    ("error", "endpoint", "part"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), TCP, "connection refused"),
        (socket.gaierror(-2, "Name or service not known"), TCP, "use its IP address"),
        (TimeoutError("timed out"), TCP, "same network"),
        (OSError(errno.EHOSTUNREACH, "No route to host"), TCP, "same network"),
        (PermissionError(errno.EACCES, "Permission denied"), SERIAL, "dialout"),
        (FileNotFoundError(errno.ENOENT, "No such file"), SERIAL, "plugged in"),
        (serial.SerialException(errno.ENOENT, "could not open port"), SERIAL, "plugged in"),
        (serial.SerialException("[Errno 11] Could not exclusively lock port"), SERIAL, "another program"),
        (OSError(errno.EBUSY, "busy"), SERIAL, "another program"),
        (termios.error(25, "Inappropriate ioctl for device"), SERIAL, "not a serial port"),
        (ModuleNotFoundError("No module named 'bleak'"), BLE, "-m pip install bleak"),
        (BleakError("No Bluetooth adapters found."), BLE, "is Bluetooth on"),
        (RadioError("several serial ports found"), SERIAL, "several serial ports found"),
        (SystemExit(1), SERIAL, "SystemExit"),
        (ValueError("odd\nlines\x07"), TCP, "ValueError: odd lines"),
    ],
)
def test_a_trouble_is_one_line_with_a_remedy(error: BaseException, endpoint: RadioAddress, part: str) -> None:
    line = explain(error, endpoint)
    assert part in line
    assert "\n" not in line
    assert len(line) < 400
