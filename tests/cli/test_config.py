"""`meshai config`."""

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from meshai.cli import main
from meshai.config import Config, example


def test_it_shows_the_file_and_what_holds_without_secrets(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("model:\n  base_url: http://10.0.0.5/v1\n  name: m\n  api_key: ${KEY}\n")
    result = CliRunner(env={"KEY": "s3cret"}).invoke(main, ["--config", str(path), "config"])
    assert result.exit_code == 0
    assert result.output.startswith(f"# from {path}\n")
    shown = yaml.safe_load(result.output)
    assert shown["model"]["base_url"] == "http://10.0.0.5/v1"
    assert shown["model"]["api_key"] == "set"
    assert "s3cret" not in result.output
    assert set(shown) == set(Config.model_fields)


def test_it_shows_the_database_in_effect(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.touch()
    result = CliRunner(env={"XDG_DATA_HOME": str(tmp_path)}).invoke(main, ["--config", str(path), "config"])
    assert "# database: /" in result.output
    path.write_text(f"storage: {{path: {tmp_path}/x.db}}\n")
    result = CliRunner().invoke(main, ["--config", str(path), "config"])
    assert f"# database: {tmp_path}/x.db\n" in result.output


@pytest.mark.parametrize("command", ["config", "check", "run"])
def test_what_the_start_would_refuse_is_told_with_file_and_line(tmp_path: Path, command: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("bot:\n  aliases: ['!!!']\ncommands:\n  aliases:\n    hilfe: foo\n")
    result = CliRunner(env={"COLUMNS": "1000"}).invoke(main, ["--config", str(path), command])
    assert result.exit_code == 2
    assert f"{path}:2: bot.aliases.0: found '!!!'; expected a name" in result.output
    assert f"{path}:5: commands.aliases.hilfe: found 'foo'; expected one of the commands help, ignore," in result.output


def test_without_a_file_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner(env={"XDG_CONFIG_HOME": str(tmp_path), "MESHAI_CONFIG": ""}).invoke(main, ["config"])
    assert result.output.startswith(("# from no file: all settings are the defaults\n", "# from /etc/meshai"))


def test_the_example_is_the_one_in_the_repository() -> None:
    assert CliRunner().invoke(main, ["config", "--example"]).output == example()


def test_the_schema_knows_every_key() -> None:
    schema = json.loads(CliRunner().invoke(main, ["config", "--schema"]).output)
    assert set(schema["properties"]) == set(Config.model_fields)
