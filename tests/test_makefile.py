"""What `make` runs and says, with a Python that notes what it is asked for in place of the installed one."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make here")


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """An environment that seems installed; its Python prints its arguments and fails for those that hold `$FAIL`."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\necho "ran $*"\ncase "$*" in *"${FAIL:-nothing}"*) exit 1;; esac\n')
    python.chmod(0o755)
    for stamp in ("made", "demo-installed", "test-installed"):
        (tmp_path / stamp).touch()
    return tmp_path


def make(venv: Path, *arguments: str, fail: str = "nothing") -> subprocess.CompletedProcess[str]:
    # Without the flags and the level of the make that may run these tests.
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(
        ["make", "--no-print-directory", f"VENV={venv}", *arguments],
        cwd=ROOT,
        env={**environ, "FAIL": fail},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_demo_gets_its_arguments(venv: Path) -> None:
    assert make(venv, "demo").stdout == "ran -m meshai demo\n"
    assert make(venv, "demo", "SMALL=1", "ARGS=--for 60s").stdout == "ran -m meshai demo --small --for 60s\n"


def test_the_demo_fails_when_it_fails(venv: Path) -> None:
    assert make(venv, "demo", fail="demo").returncode != 0


def test_every_check_runs_though_one_fails_and_the_failed_is_named(venv: Path) -> None:
    result = make(venv, "test", fail="mypy")
    assert result.returncode != 0
    assert [line for line in result.stdout.splitlines() if line.startswith("ran ")] == [
        "ran -m ruff check",
        "ran -m ruff format --check",
        "ran -m mypy",
        "ran -m pytest -n 2 --cov",
    ]
    assert f"make test: failed:\n  {venv}/bin/python -m mypy\n" in result.stderr
    assert make(venv, "test").returncode == 0


def test_without_a_network_it_says_so(venv: Path) -> None:
    (venv / "demo-installed").unlink()
    result = make(venv, "demo", fail="install")
    assert result.returncode != 0
    assert "could not install: is there a network?" in result.stderr
    assert not (venv / "demo-installed").exists()


def test_a_missing_library_of_the_model_is_named(venv: Path) -> None:
    (venv / "demo-installed").unlink()
    (venv / "bin" / "python").write_text(
        '#!/bin/sh\ncase "$*" in *xllamacpp*) echo "libgomp.so.1: no such file" >&2; exit 1;; esac; echo ok\n'
    )
    result = make(venv, "demo")
    assert result.returncode != 0
    assert "apt install libgomp1" in result.stderr


def test_python_too_old_is_named(venv: Path, tmp_path: Path) -> None:
    old = tmp_path / "python-old"
    old.write_text('#!/bin/sh\ncase "$*" in *--version*) echo Python 3.9.2;; *) exit 1;; esac\n')
    old.chmod(0o755)
    (venv / "made").unlink()
    result = make(venv, "demo", f"PYTHON={old}")
    assert result.returncode != 0
    assert f"{old} is Python 3.9.2; MeshAI needs Python 3.11 or newer" in result.stderr


def test_help_names_the_targets(venv: Path) -> None:
    assert [line.split()[:2] for line in make(venv).stdout.splitlines()] == [
        ["make", "demo"],
        ["make", "test"],
        ["make", "clean"],
    ]
