"""The command line as a whole: what is listed, what is imported, and how errors end."""

import importlib
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from meshai.cli import COMMANDS, ConfigSource, main
from meshai.errors import ConfigError, StoreError


def meshai(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the program as people do."""
    return subprocess.run(
        [sys.executable, "-m", "meshai", *arguments],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "PYTHONPATH": str(Path(__file__).parents[2]), **environ},
        timeout=60,
        check=False,
    )


def test_help_lists_every_command_and_imports_none() -> None:
    code = (
        "import sys; from meshai.cli import main; main(['--help'], standalone_mode=False); print(sorted(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    for name, line in COMMANDS.items():
        assert f"  {name} " in result.stdout
        assert line.split(".")[0] in " ".join(result.stdout.split())
        assert f"'meshai.cli.{name}'" not in result.stdout
    for heavy in ("rich", "openai", "meshtastic", "aiosqlite", "pubsub"):
        assert f"'{heavy}'" not in result.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name: str) -> None:
    result = CliRunner().invoke(main, [name, "--help"])
    assert result.exit_code == 0, result.output
    assert "Example" in result.output
    assert f"meshai {name}" in result.output


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_where_it_is_looked_for(name: str) -> None:
    assert isinstance(getattr(importlib.import_module(f"meshai.cli.{name}"), name), click.Command)


def test_version() -> None:
    result = CliRunner().invoke(main, ["--version"])
    assert result.output.startswith("MeshAI ")


def test_a_misspelt_command_is_a_usage_error() -> None:
    result = CliRunner().invoke(main, ["chekc"])
    assert result.exit_code == 2
    assert "No such command 'chekc'; did you mean check?" in result.stderr
    assert CliRunner().invoke(main, ["xyzzy"]).exit_code == 2


def test_wrong_settings_are_told_line_by_line_with_exit_code_2(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("radio:\n  adress: x\nlog:\n  level: loud\n")
    result = meshai("--config", str(path), "config")
    assert result.returncode == 2
    assert result.stdout.startswith(f"# from {path}\n") or not result.stdout
    assert [line.split(": ")[:2] for line in result.stderr.splitlines()] == [
        [f"{path}:2", "radio.adress"],
        [f"{path}:4", "log.level"],
    ]


def test_a_file_that_is_not_there_is_told() -> None:
    result = meshai("config", MESHAI_CONFIG="/no/such/file.yaml")
    assert result.returncode == 2
    assert result.stderr == "/no/such/file.yaml: no such file; `meshai init` writes one\n"


def test_commands_that_need_no_settings_work_with_broken_ones(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("\tnonsense")
    assert meshai("--config", str(path), "config", "--example").returncode == 0
    assert meshai("--config", str(path), "completion", "bash").returncode == 0


@pytest.mark.parametrize(("error", "code"), [(ConfigError("a\nb"), 2), (StoreError("disk"), 1)])
def test_an_error_of_ours_is_its_own_line_and_an_exit_code(error: Exception, code: int) -> None:
    @click.command()
    def fails() -> None:
        raise error

    group = type(main)(commands={})
    group.get_command = lambda ctx, name: fails  # type: ignore[method-assign, assignment]
    result = CliRunner().invoke(group, ["fails"])
    assert (result.exit_code, result.stderr, result.stdout) == (code, f"{error}\n", "")


def test_the_log_level_option_is_stronger_than_the_file(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("log: {level: warning}")
    assert ConfigSource(path, "debug").config.log.level == "debug"
    assert ConfigSource(path).config.log.level == "warning"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_asks_us(shell: str) -> None:
    result = meshai("completion", shell)
    assert result.returncode == 0
    assert "_MESHAI_COMPLETE" in result.stdout


def test_commands_and_options_are_completed() -> None:
    def completed(words: str) -> list[str]:
        result = meshai(_MESHAI_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(words.count(" ")))
        return [line.split(",")[1] for line in result.stdout.splitlines()]

    assert completed("meshai c") == ["check", "chat", "config", "completion"]
    assert completed("meshai --l") == ["--log-level"]
    assert completed("meshai config --e") == ["--example"]
    assert completed("meshai completion f") == ["fish"]
