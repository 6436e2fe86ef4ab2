"""The unit file as systemd reads it, and the install script, run for real below a folder of its own."""

import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from meshai.config import SYSTEM_FILE, Config, load

ROOT = Path(__file__).parent.parent
UNIT = ROOT / "systemd" / "meshai.service"
SCRIPT = ROOT / "systemd" / "install.sh"
has_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with a program that exists, under its own name."""
    copy = tmp_path / "meshai.service"
    copy.write_text(UNIT.read_text().replace("/opt/meshai/bin/meshai", shutil.which("true") or "/bin/true"))
    return copy


@has_systemd
def test_systemd_finds_nothing_wrong(unit: Path) -> None:
    result = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, timeout=60, check=False
    )
    # Units of the machine itself may have faults, which are told too.
    assert [line for line in result.stderr.splitlines() if "meshai" in line] == []
    assert result.returncode == 0


@has_systemd
def test_it_is_hardened(unit: Path) -> None:
    result = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--threshold=20", "--no-pager", unit],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if "unrecognized option" in result.stderr:
        pytest.skip("this systemd-analyze judges no files")
    # In tenths: 2.0 of 10, where a service without any hardening has 9.6.
    assert result.returncode == 0, result.stdout[-2000:]


def settings_of(section: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    body = UNIT.read_text().partition(f"[{section}]\n")[2].partition("\n[")[0]
    for name, value in re.findall(r"^(\w+)=(.*)$", body, re.MULTILINE):
        found.setdefault(name, []).append(value)
    return found


def test_it_restarts_for_ever_but_not_with_wrong_settings() -> None:
    assert settings_of("Unit")["StartLimitIntervalSec"] == ["0"]
    service = settings_of("Service")
    assert service["Restart"] == ["always"]
    assert service["RestartPreventExitStatus"] == ["2"]
    assert service["Type"] == ["notify"]
    assert int(service["WatchdogSec"][0]) > 60


def test_it_reads_the_file_that_meshai_looks_for() -> None:
    assert str(SYSTEM_FILE) in settings_of("Service")["ExecStart"][0]


def test_the_bot_may_show_itself_to_its_own_user_beside_its_database() -> None:
    service = settings_of("Service")
    assert "AF_UNIX" in service["RestrictAddressFamilies"][0].split()
    # What `meshai-service status` runs as, and where the unit lets the service write.
    assert service["User"] == ["meshai"]
    assert service["StateDirectory"] == ["meshai"]
    command = (ROOT / "systemd" / "meshai-service").read_text()
    assert "STATE_DIRECTORY=/var/lib/meshai exec setpriv --reuid=meshai" in command


def install(destination: Path, *options: str) -> str:
    result = subprocess.run(
        ["sh", SCRIPT, "--python", sys.executable, *options],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "DESTDIR": str(destination), "PYTHONPATH": str(ROOT)},
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def tree(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every file and folder with mode, time of change and content."""
    return {
        str(path.relative_to(folder)): (
            stat.S_IMODE(path.stat().st_mode),
            path.stat().st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in sorted(folder.rglob("*"))
    }


class TestInstall:
    def test_all_is_in_its_place(self, tmp_path: Path) -> None:
        install(tmp_path)
        assert (tmp_path / "etc/systemd/system/meshai.service").read_bytes() == UNIT.read_bytes()
        config = tmp_path / "etc/meshai/config.yaml"
        assert load(config, {}) == Config()
        assert stat.S_IMODE(config.stat().st_mode) == 0o640
        assert stat.S_IMODE(config.parent.stat().st_mode) == 0o750
        assert os.access(tmp_path / "usr/local/bin/meshai-service", os.X_OK)
        program = subprocess.run(
            [tmp_path / "opt/meshai/bin/meshai", "--version"],
            capture_output=True,
            text=True,
            env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
            timeout=60,
            check=True,
        )
        assert program.stdout.startswith("MeshAI ")

    def test_a_second_run_changes_nothing_and_says_so(self, tmp_path: Path) -> None:
        assert "done." in install(tmp_path)
        before = tree(tmp_path)
        assert "nothing to do: everything is installed and up to date" in install(tmp_path)
        assert tree(tmp_path) == before

    def test_an_update_keeps_the_settings_and_renews_the_service(self, tmp_path: Path) -> None:
        install(tmp_path)
        config = tmp_path / "etc/meshai/config.yaml"
        config.write_text("radio:\n  address: tcp:host\n")
        unit = tmp_path / "etc/systemd/system/meshai.service"
        unit.write_text("[Service]\n")
        said = install(tmp_path)
        assert "settings kept" in said
        assert "service installed" in said
        assert config.read_text() == "radio:\n  address: tcp:host\n"
        assert unit.read_bytes() == UNIT.read_bytes()

    def test_an_interrupted_run_is_finished_by_the_next(self, tmp_path: Path) -> None:
        install(tmp_path)
        before = {name: content for name, (_, _, content) in tree(tmp_path).items()}
        (tmp_path / "opt/meshai/installed").write_text("")
        (tmp_path / "opt/meshai/bin/meshai").write_text("half")
        assert "done." in install(tmp_path)
        assert {name: content for name, (_, _, content) in tree(tmp_path).items()} == before

    def test_the_next_steps_are_commands_of_the_service(self, tmp_path: Path) -> None:
        assert install(tmp_path / "base").endswith("done. Next: sudo meshai-service check\n")
        said = install(tmp_path / "local", "--local")
        assert said.endswith("done. Next: sudo meshai-service model fetch, then sudo meshai-service check\n")

    def test_uninstall_keeps_settings(self, tmp_path: Path) -> None:
        install(tmp_path)
        said = install(tmp_path, "--uninstall")
        assert "program removed" in said
        assert f"kept: {tmp_path}/etc/meshai\n" in said
        assert "user" not in said
        assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()] == [
            "etc/meshai/config.yaml"
        ]
        assert "nothing to remove" in install(tmp_path, "--uninstall")

    def test_it_never_takes_the_place_of_something_else(self, tmp_path: Path) -> None:
        (tmp_path / "opt/meshai").mkdir(parents=True)
        (tmp_path / "opt/meshai/pyproject.toml").touch()
        result = subprocess.run(
            ["sh", SCRIPT, "--python", sys.executable],
            capture_output=True,
            text=True,
            env={"PATH": os.environ["PATH"], "DESTDIR": str(tmp_path), "PYTHONPATH": str(ROOT)},
            timeout=60,
            check=False,
        )
        assert result.returncode == 1
        assert "holds something else" in result.stderr
        install(tmp_path, "--uninstall")
        assert (tmp_path / "opt/meshai/pyproject.toml").exists()

    def test_a_failure_is_a_failure(self, tmp_path: Path) -> None:
        environ = {"PATH": os.environ["PATH"], "DESTDIR": str(tmp_path)}
        for options in (["--python", "/bin/false"], ["--nonsense"], ["--python"]):
            result = subprocess.run(
                ["sh", SCRIPT, *options], capture_output=True, text=True, env=environ, timeout=60, check=False
            )
            assert result.returncode != 0
            assert "install.sh: " in result.stderr
            assert list(tmp_path.iterdir()) == []


class TestCommand:
    """`meshai-service` with its folders below one of the test's, and programs that only note how they are called."""

    @pytest.fixture
    def service(self, tmp_path: Path) -> Callable[..., list[str]]:
        text = (ROOT / "systemd" / "meshai-service").read_text()
        script = tmp_path / "meshai-service"
        script.write_text(re.sub(r"/(opt|etc|var/lib)/meshai", rf"{tmp_path}/\1/meshai", text))
        for folder in ("opt/meshai/bin", "etc/meshai", "var/lib/meshai", "bin"):
            (tmp_path / folder).mkdir(parents=True)
        note = f'"$PWD" "$MESHAI_COMMAND" "$@" >>{tmp_path}/calls'
        for name, body in {
            "bin/id": "echo 0",
            "bin/chown": f"echo chown {note}",
            "bin/setpriv": f"echo setpriv {note}",
            "opt/meshai/bin/meshai": f"echo meshai {note}; touch {tmp_path}/etc/meshai/config.yaml",
        }.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
            (tmp_path / name).chmod(0o755)

        def service(*arguments: str) -> list[str]:
            environ = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
            subprocess.run(["sh", script, *arguments], env=environ, timeout=60, check=True)
            return (tmp_path / "calls").read_text().replace(str(tmp_path), "").splitlines()

        return service

    def test_init_writes_as_root_what_the_service_can_read(
        self, tmp_path: Path, service: Callable[..., list[str]]
    ) -> None:
        assert service("init", "--yes") == [
            "meshai / sudo meshai-service --config /etc/meshai/config.yaml init --yes",
            "chown / sudo meshai-service root:meshai /etc/meshai/config.yaml",
        ]
        assert stat.S_IMODE((tmp_path / "etc/meshai/config.yaml").stat().st_mode) == 0o640

    @pytest.mark.parametrize("words", ["check", "status --watch"])
    def test_all_else_runs_as_the_services_user(self, service: Callable[..., list[str]], words: str) -> None:
        (call,) = service(*words.split())
        assert call.startswith("setpriv /var/lib/meshai sudo meshai-service --reuid=meshai --regid=meshai")
        assert call.endswith(f"/opt/meshai/bin/meshai --config /etc/meshai/config.yaml {words}")
