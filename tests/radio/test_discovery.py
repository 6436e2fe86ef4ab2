"""Serial ports by lasting names."""

from pathlib import Path

from meshai.radio.discovery import serial_ports, stable_names


def test_a_port_goes_by_its_device_where_that_is_known(tmp_path: Path) -> None:
    by_id = tmp_path / "by-id"
    by_id.mkdir()
    port = tmp_path / "ttyUSB0"
    port.touch()
    (by_id / "usb-Silicon_Labs_CP2102-if00-port0").symlink_to(port)
    (by_id / "usb-gone").symlink_to(tmp_path / "ttyUSB9")
    other = str(tmp_path / "ttyACM0")
    assert stable_names([str(port), other], by_id) == [str(by_id / "usb-Silicon_Labs_CP2102-if00-port0"), other]


def test_without_the_folder_ports_keep_their_names(tmp_path: Path) -> None:
    assert stable_names(["/dev/ttyUSB0"], tmp_path / "none") == ["/dev/ttyUSB0"]


def test_looking_at_this_machine_finds_paths_or_nothing() -> None:
    assert all(port.startswith("/") for port in serial_ports())
