"""What to install when the engine is missing: never by our own name, which may be another's on the index."""

import shlex
import sys

import pytest

from meshai.config import command, is_service
from meshai.model import engine

STATED = ["meshtastic<3,>=2.7.11", "xllamacpp-extras==1", "xllamacpp==2026.10.11549 ; extra == 'local'"]


def test_the_version_is_the_one_we_ask_for() -> None:
    assert engine.requirement(stated=STATED) == "xllamacpp==2026.10.11549"
    assert engine.requirement(stated=["something-else"]) == "xllamacpp"
    assert engine.requirement().startswith("xllamacpp")


def test_the_command_installs_into_this_python_or_the_services() -> None:
    words = shlex.split(engine.install_command(of_service=False))
    assert words[:4] == [sys.executable, "-m", "pip", "install"]
    assert words[4].startswith("xllamacpp")
    assert engine.install_command(of_service=True) == "sudo sh systemd/install.sh --local"
    assert engine.install_command(anew=True, of_service=True).startswith("sudo ")


def test_a_missing_engine_is_told_and_one_that_is_there_is_not() -> None:
    assert "install" in engine.trouble("no_such_engine") or "32-bit" in engine.trouble("no_such_engine")
    assert "meshai[" not in engine.trouble("no_such_engine")
    assert engine.trouble("json") == ""


@pytest.mark.parametrize(
    ("environ", "called", "of_service"),
    [
        ({}, "meshai", False),
        ({"MESHAI_COMMAND": "sudo meshai-service"}, "sudo meshai-service", True),
    ],
)
def test_the_program_is_named_as_it_was_called(environ: dict[str, str], called: str, of_service: bool) -> None:
    assert (command(environ), is_service(environ)) == (called, of_service)
