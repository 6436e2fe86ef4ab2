"""`meshai init`: the questions, and the file that comes of the answers."""

import asyncio
import os
import pty
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from meshai.cli import main
from meshai.cli.init import Offer, interview, write
from meshai.config import Config, example, load
from meshai.errors import ConfigError
from meshai.model.discovery import Listing
from tests.model.serving import HttpServer

ROOT = Path(__file__).parents[2]
PORTS = ("/dev/serial/by-id/usb-Heltec", "/dev/ttyACM0")
OFFERS = (Offer("http://127.0.0.1:11434/v1", "llama3.2:3b"), Offer("http://127.0.0.1:8080/v1", "qwen"))

NOBODY = Listing([], "nobody answers; is it on?")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "settings" / "config.yaml"


def init(path: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["init", "--output", str(path), *options])


def ask(
    *lines: str,
    given: dict[str, object] | None = None,
    ports: Sequence[str] = (),
    offers: Sequence[Offer] = (),
    engine_trouble: str = "",
    there: Listing = NOBODY,
) -> tuple[dict[str, object], str]:
    """The answers that come of these lines typed, and what was shown."""
    found: dict[str, object] = {}

    @click.command()
    def asks() -> None:
        found.update(
            interview(
                given or {},
                ports=lambda: ports,
                offers=lambda: offers,
                engine_trouble=lambda: engine_trouble,
                models_at=lambda url: there,
            )
        )

    result = CliRunner().invoke(asks, input="".join(f"{line}\n" for line in lines), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return found, result.output


def changed(answers: dict[str, object], tmp_path: Path) -> Config:
    write(tmp_path / "config.yaml", answers)
    return load(tmp_path / "config.yaml", {"KEY": "k"})


class TestInterview:
    def test_enter_all_the_way_is_the_defaults(self, tmp_path: Path) -> None:
        answers, _ = ask("", "", "", "")
        assert changed(answers, tmp_path) == Config()

    def test_what_was_found_is_chosen_by_number(self, tmp_path: Path) -> None:
        answers, shown = ask("2", "2", "none", "бот, bot", ports=PORTS, offers=OFFERS)
        config = changed(answers, tmp_path)
        assert config.radio.address == "/dev/ttyACM0"
        assert (config.model.base_url, config.model.name) == ("http://127.0.0.1:8080/v1", "qwen")
        assert config.channels.answer_on == ()
        assert config.bot.aliases == ("бот", "bot")
        for offered in (*PORTS, "llama3.2:3b at http://127.0.0.1:11434/v1"):
            assert offered in shown

    def test_the_only_port_and_the_first_model_are_proposed(self, tmp_path: Path) -> None:
        answers, _ = ask("", "", "", "", ports=PORTS[:1], offers=OFFERS)
        config = changed(answers, tmp_path)
        assert config.radio.address == PORTS[0]
        assert config.model.name == "llama3.2:3b"

    def test_a_server_of_ones_own_with_a_key_in_the_environment(self, tmp_path: Path) -> None:
        answers, shown = ask("tcp:10.0.0.7", "https://llm.example/v1", "big", "KEY", "0 1", "")
        config = changed(answers, tmp_path)
        assert config.radio.address == "tcp:10.0.0.7"
        assert (config.model.base_url, config.model.name) == ("https://llm.example/v1", "big")
        assert config.model.api_key.get_secret_value() == "k"
        assert config.channels.answer_on == (0, 1)
        assert "api_key: ${KEY}" in (tmp_path / "config.yaml").read_text()
        assert "its models cannot be listed: nobody answers; is it on?" in shown

    def test_a_server_is_asked_which_models_it_has(self) -> None:
        many = Listing(["llama3.2:latest", "qwen"])
        url = "http://10.0.0.5/v1"
        for typed, name, told in (
            ("2", "qwen", f"{url} answers and has qwen"),
            ("llama3.2", "llama3.2", f"{url} answers and has llama3.2"),
            ("gemma", "gemma", f"{url} answers, but does not list gemma; it has llama3.2:latest, qwen"),
        ):
            answers, shown = ask("auto", url, typed, "", "", "", there=many)
            assert answers["model.name"] == name
            assert "  2  qwen" in shown
            assert told in shown
        answers, _ = ask("auto", url, "", "", "", "", there=Listing(["only"]))
        assert answers["model.name"] == "only"

    def test_wrong_answers_are_asked_again(self) -> None:
        answers, shown = ask(
            "usb", "3", "auto", "ftp://x", "http://10.0.0.5/v1", "m", "sk-secret", "", "9", "1,2", "", ports=PORTS
        )
        assert "is not a radio address" in shown
        assert "expected an address such as" in shown
        assert "not the key" in shown
        assert "is not a list of channels" in shown
        assert answers == {
            "radio.address": "auto",
            "model.base_url": "http://10.0.0.5/v1",
            "model.name": "m",
            "channels.answer_on": [1, 2],
            "bot.aliases": [],
        }

    def test_what_is_given_is_not_asked(self) -> None:
        given: dict[str, object] = {
            "radio.address": "auto",
            "model.base_url": "http://x/v1",
            "channels.answer_on": [1],
            "bot.aliases": ["b"],
        }
        assert ask(given=given) == (given, "")

    def test_an_embedded_model_that_cannot_run_is_not_offered_as_if_it_could(self) -> None:
        answers, shown = ask("", "", "", "", engine_trouble="the engine is missing; install it: pip x")
        assert "embedded does not work yet: the engine is missing; install it: pip x" in shown
        assert answers["model.embedded"] == "off"
        answers, _ = ask("", "embedded", "", "", engine_trouble="the engine is missing")
        assert answers["model.embedded"] == "auto"

    def test_a_name_that_nobody_can_type_is_asked_again(self) -> None:
        answers, shown = ask("", "off", "", "bot, !!!", "bot")
        assert "is not a name" in shown
        assert answers["bot.aliases"] == ["bot"]

    def test_no_model(self, tmp_path: Path) -> None:
        answers, _ = ask("", "off", "", "")
        assert changed(answers, tmp_path).model.embedded == "off"


class TestFile:
    def test_it_is_the_commented_example_and_private(self, path: Path) -> None:
        result = init(path, "--yes")
        assert result.exit_code == 0, result.output
        assert f"written: {path}" in result.output
        assert f"next: meshai --config {path} check" in result.output
        assert path.read_text() == example()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert [file.name for file in path.parent.iterdir()] == ["config.yaml"]

    def test_options_are_its_values(self, path: Path) -> None:
        result = init(
            path,
            "--yes",
            *("--address", "tcp:10.0.0.7:4404"),
            *("--model-url", "http://127.0.0.1:1/v1", "--model-name", "m", "--api-key-variable", "KEY"),
            *("--channels", "2,1,1", "--alias", "bot", "--alias", " ! Bot"),
        )
        assert result.exit_code == 0, result.output
        config = load(path, {"KEY": "k"})
        assert config.radio.address == "tcp:10.0.0.7:4404"
        assert config.model.name == "m"
        assert config.model.api_key.get_secret_value() == "k"
        assert config.channels.answer_on == (1, 2)
        assert config.bot.aliases == ("bot", "! Bot")
        assert "not tested: http://127.0.0.1:1/v1: connection refused; is the server running" in result.output

    async def test_a_given_server_is_asked_with_its_key(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KEY", "sk-1")
        async with HttpServer.answering({"data": [{"id": "big"}]}) as model:
            options = ("--model-url", f"{model.url}/v1", "--model-name", "big", "--api-key-variable", "KEY")
            result = await asyncio.to_thread(init, path, "--yes", *options)
        assert result.exit_code == 0, result.output
        assert f"{model.url}/v1 answers and has big" in result.output
        assert model.asked[0].headers["authorization"] == "Bearer sk-1"

    def test_what_was_there_is_kept_each_time(self, path: Path) -> None:
        path.parent.mkdir()
        path.write_text("first")
        assert "the old file is kept: " in init(path, "--yes").output
        init(path, "--yes", "--alias", "second")
        init(path, "--yes")
        kept = {file.name: file.read_text() for file in path.parent.iterdir()}
        assert kept["config.yaml.bak"] == "first"
        assert kept["config.yaml.bak1"] == example()
        assert "second" in kept["config.yaml.bak2"]
        assert kept["config.yaml"] == example()

    def test_unusable_settings_leave_everything_as_it_was(self, path: Path) -> None:
        path.parent.mkdir()
        path.write_text("first")
        with pytest.raises(ConfigError, match=r"bot\.aliases\.0"):
            write(path, {"bot.aliases": [""]})
        assert [(file.name, file.read_text()) for file in path.parent.iterdir()] == [("config.yaml", "first")]

    @pytest.mark.parametrize("place", ["/dev/null/config.yaml", "/proc/config.yaml", "/"])
    def test_a_place_that_cannot_be_written_is_told(self, place: str) -> None:
        result = CliRunner().invoke(main, ["--config", place, "init", "--yes"])
        assert result.exit_code == 2
        assert "cannot be written" in result.stderr

    def test_a_folder_stays_a_folder(self, path: Path) -> None:
        path.mkdir(parents=True)
        assert CliRunner().invoke(main, ["--config", str(path), "init", "--yes"]).exit_code == 2
        assert [file.name for file in path.parent.iterdir()] == [path.name]

    @pytest.mark.parametrize(
        "options",
        [
            ("--address", "usb"),
            ("--model-url", "localhost"),
            ("--model-url", "http://x/v1"),
            ("--model-name", "x"),
            ("--api-key-variable", "sk-secret"),
            ("--api-key-variable", "sksecret1"),
            ("--alias", "!!!"),
            ("--channels", "8"),
        ],
    )
    def test_wrong_options_are_told(self, path: Path, options: tuple[str, ...]) -> None:
        result = init(path, "--yes", *options)
        assert result.exit_code == 2
        assert "Error: " in result.output
        assert "sk-secret" not in result.output
        assert not path.exists()

    def test_without_a_terminal_it_says_what_to_do(self, path: Path) -> None:
        result = init(path)
        assert result.exit_code == 2
        assert "give --yes" in result.output
        assert not path.exists()


@pytest.fixture
def typed(path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the program with these lines typed at a terminal; `file` instead of `path` is to be written."""

    def typed(*lines: str, file: Path = path) -> subprocess.CompletedProcess[str]:
        keyboard, terminal = pty.openpty()
        try:
            os.write(keyboard, "".join(f"{line}\n" for line in lines).encode())
            return subprocess.run(
                [sys.executable, "-m", "meshai", "--config", file, "init"],
                stdin=terminal,
                capture_output=True,
                text=True,
                env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
                timeout=60,
                check=False,
            )
        finally:
            os.close(terminal)
            os.close(keyboard)

    return typed


def test_at_a_terminal(path: Path, typed: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    result = typed("tcp:mesh.local", "off", "1", "bot")
    assert result.returncode == 0, result.stderr
    config = load(path, {})
    assert (config.radio.address, config.model.embedded) == ("tcp:mesh.local", "off")
    assert (config.channels.answer_on, config.bot.aliases) == ((1,), ("bot",))


def test_a_place_that_cannot_be_written_is_told_before_any_question(
    typed: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    result = typed(file=Path("/proc/config.yaml"))
    assert result.returncode == 2
    assert "/proc/config.yaml: cannot be written" in result.stderr
    assert result.stdout == ""


def test_a_file_that_is_there_is_not_touched_without_consent(
    path: Path, typed: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    path.parent.mkdir()
    path.write_text("mine")
    assert typed("n").returncode == 1
    assert path.read_text() == "mine"
    assert typed("y", "auto", "off", "1", "").returncode == 0
    assert (path.parent / "config.yaml.bak").read_text() == "mine"
