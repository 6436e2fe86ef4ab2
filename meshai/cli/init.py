"""`meshai init`: asks a few questions and writes the commented settings file."""

import asyncio
import errno
import itertools
import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import click

from meshai import app
from meshai.cli import ConfigSource, places
from meshai.clock import SystemClock
from meshai.config import (
    BotSettings,
    Config,
    command,
    environment,
    example,
    find,
    is_service,
    load,
    user_file,
)
from meshai.entries import check_server_url, parse_radio_address
from meshai.errors import ConfigError
from meshai.model import engine
from meshai.model.discovery import Listing, listing, local_servers
from meshai.radio.discovery import serial_ports

NO_TERMINAL: Final = """\
there is no terminal to answer questions at; give --yes, and options for what should differ from the defaults:
  meshai init --yes --address tcp:192.168.1.20 --model-url http://127.0.0.1:11434/v1 --model-name llama3.2:3b"""
MOST_OFFERS: Final = 20
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Offer:
    """A model that a server on this machine would answer with."""

    base_url: str
    name: str


def address(text: str) -> str:
    try:
        parse_radio_address(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return text.strip()


def server_url(text: str) -> str:
    try:
        check_server_url(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return text


def model_choice(text: str) -> str:
    return text if text in ("embedded", "off") else server_url(text)


def variable(text: str) -> str:
    if text and not re.fullmatch(r"[A-Z_][A-Z0-9_]*", text):
        # Not repeated, for it is probably the key itself.
        raise click.BadParameter(
            "give the name of an environment variable that holds the key, such as MESHAI_API_KEY, not the key"
        )
    return text


def channel_list(text: str) -> list[int]:
    words = [] if text.strip().lower() == "none" else text.replace(",", " ").split()
    if not all(re.fullmatch("[0-7]", word) for word in words):
        raise click.BadParameter(f"{text!r} is not a list of channels such as 1,2 (0 to 7), or none")
    return sorted({int(word) for word in words})


def name_list(text: str) -> list[str]:
    return [bot_name(part) for part in text.split(",") if part.strip()]


def bot_name(text: str) -> str:
    if app.unusable(Config(bot=BotSettings(aliases=(text.strip() or "!",)))):
        raise click.BadParameter(f"{text!r} is not a name; it needs a letter, a digit or an emoji")
    return text.strip()


@click.command(
    epilog="""\b
Examples:
  meshai init
  meshai init --yes --address tcp:192.168.1.20
  meshai init --model-url http://127.0.0.1:11434/v1 --model-name llama3.2:3b"""
)
@click.option(
    "--yes",
    "is_silent",
    is_flag=True,
    help="Ask nothing: what no option says is the default, and a file that is there is replaced.",
)
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="The file to write.")
@click.option(
    "--address",
    "radio_address",
    type=address,
    metavar="ADDRESS",
    help="The radio: a serial port, tcp:HOST, ble:ADDRESS or auto.",
)
@click.option("--model-url", type=server_url, metavar="URL", help="An OpenAI-compatible server.")
@click.option("--model-name", help="The model to ask it for.")
@click.option("--api-key-variable", type=variable, metavar="NAME", help="The environment variable that holds its key.")
@click.option(
    "--channels", type=channel_list, metavar="LIST", help="Where to answer when addressed, such as 1,2, or none."
)
@click.option(
    "--alias",
    "aliases",
    type=bot_name,
    multiple=True,
    metavar="NAME",
    help="Another name the bot answers to; may be repeated.",
)
@click.pass_obj
def init(
    source: ConfigSource,
    *,
    is_silent: bool,
    output: Path | None,
    radio_address: str | None,
    model_url: str | None,
    model_name: str | None,
    api_key_variable: str | None,
    channels: list[int] | None,
    aliases: tuple[str, ...],
) -> None:
    """Write a settings file by answering a few questions.

    Finds radios on USB ports and model servers on this machine. What an option says is not asked.
    """
    if not is_silent and not sys.stdin.isatty():
        raise click.UsageError(NO_TERMINAL)
    if bool(model_url) != bool(model_name):
        raise click.UsageError("--model-url and --model-name go together")
    path = output or source.chosen or user_file()
    # Before the questions, whose answers would be lost.
    if why := places.why_not_writable(path):
        raise unwritable(path, why)
    if path.exists() and not is_silent:
        click.confirm(f"{path} is there already. Replace it, and keep it beside the new one?", abort=True)
    given: dict[str, object] = {}
    if radio_address is not None:
        given["radio.address"] = radio_address
    if model_url and model_name:
        given |= server(model_url, model_name, api_key_variable or "")
    if channels is not None:
        given["channels.answer_on"] = channels
    if aliases:
        given["bot.aliases"] = list(aliases)
    if not is_silent:
        given = interview(
            given, ports=serial_ports, offers=local_offers, engine_trouble=engine.trouble, models_at=models_at
        )
    elif model_url and model_name:
        key = environment().get(api_key_variable or "", "")
        click.echo(judged(model_url, model_name, models_at(model_url, key)))
    kept = write(path, given)
    if kept is not None:
        click.echo(f"the old file is kept: {kept}")
    click.echo(f"written: {path}")
    if not given.get("model.base_url") and given.get("model.embedded") != "off" and (lacking := engine.trouble()):
        click.echo(f"without it only commands are answered: {lacking}")
    # The service's command knows its file.
    option = "" if is_service() or path == find(None) else f" --config {path}"
    click.echo(f"next: {command()}{option} check")


def interview(
    given: Mapping[str, object],
    *,
    ports: Callable[[], Sequence[str]],
    offers: Callable[[], Sequence[Offer]],
    engine_trouble: Callable[[], str],
    models_at: Callable[[str], Listing],
) -> dict[str, object]:
    """Ask for what is not `given`; the answers by dotted key.

    `engine_trouble` says why the model of our own cannot run here, or nothing; `models_at` asks a server what it has.
    """
    answers = dict(given)
    if "radio.address" not in answers:
        answers["radio.address"] = ask_address(ports())
    if "model.base_url" not in answers:
        answers |= ask_model(offers(), engine_trouble(), models_at)
    if "channels.answer_on" not in answers:
        usual = ",".join(map(str, Config().channels.answer_on))
        click.echo("\nOn channels the bot answers only when addressed; channel 0 is the public one.")
        answers["channels.answer_on"] = click.prompt("Answer on channels", usual, value_proc=channel_list)
    if "bot.aliases" not in answers:
        click.echo("\nIt answers to the name of its node. More names, in any script, separated by commas:")
        answers["bot.aliases"] = click.prompt("More names", "", show_default=False, value_proc=name_list)
    return answers


def local_offers() -> list[Offer]:
    servers = asyncio.run(local_servers(SystemClock()))
    return [Offer(server.base_url, name) for server in servers for name in server.models][:MOST_OFFERS]


def models_at(base_url: str, key: str = "") -> Listing:
    return asyncio.run(listing(SystemClock(), base_url, key=key))


def judged(base_url: str, name: str, found: Listing) -> str:
    """Whether a server has the model that it is to be asked for, in a line."""
    if found.trouble:
        return f"not tested: {found.trouble}"
    # Ollama's names are complete with a tag only.
    if name in found.models or f"{name}:latest" in found.models:
        return f"{base_url} answers and has {name}"
    return f"{base_url} answers, but does not list {name}; it has {', '.join(found.models[:MOST_OFFERS])}"


def ask_address(ports: Sequence[str]) -> str:
    click.echo("How is the radio attached?")
    _list(ports)
    click.echo("  Other answers: a serial port, tcp:HOST, ble:ADDRESS, or auto for the one radio on USB")
    chosen = click.prompt("Radio", "1" if len(ports) == 1 else "auto", value_proc=_numbered(ports, address))
    return str(chosen)


def ask_model(offers: Sequence[Offer], engine_trouble: str, models_at: Callable[[str], Listing]) -> dict[str, object]:
    click.echo("\nWhich language model answers?")
    _list([f"{offer.name} at {offer.base_url}" for offer in offers])
    click.echo(
        "  Other answers: the address of a server, embedded for a small model of our own, or off for commands only"
    )
    if engine_trouble:
        click.echo(f"  embedded does not work yet: {engine_trouble}")
    usual = "1" if offers else "off" if engine_trouble else "embedded"
    chosen = click.prompt("Model", usual, value_proc=_numbered(offers, model_choice))
    match chosen:
        case Offer(base_url, name):
            return server(base_url, name, "")
        case "embedded" | "off":
            return {"model.embedded": "off" if chosen == "off" else "auto"}
        case _:
            url = str(chosen)
            found = models_at(url)
            _list(found.models[:MOST_OFFERS])
            if found.trouble:
                click.echo(f"  its models cannot be listed: {found.trouble}")
            only = "1" if len(found.models) == 1 else None
            model_name = click.prompt("Name of the model there", only, value_proc=_numbered(found.models, str.strip))
            if found.models:
                click.echo(f"  {judged(url, model_name, found)}")
            key = click.prompt("Environment variable with its key", "", show_default=False, value_proc=variable)
            return server(url, model_name, key)


def server(base_url: str, name: str, key_variable: str) -> dict[str, object]:
    """The settings for a model server; its key stays in the environment."""
    key = {"model.api_key": f"${{{key_variable}}}"} if key_variable else {}
    return {"model.base_url": base_url, "model.name": name, **key}


def write(path: Path, changes: Mapping[str, object]) -> Path | None:
    """Write the settings, readable by this user only; returns where the file that was there is kept.

    Raises ConfigError, with nothing written, when they are not usable.
    """
    text = example(changes)
    # Keys are seldom set yet when the file is written.
    variables = dict.fromkeys(re.findall(r"\$\{(\w+)\}", text), "set later")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        new = Path(name)
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            load(new, {**variables, **environment()}, app.unusable)
            kept = _keep(path) if path.exists() else None
            new.replace(path)
        finally:
            new.unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(path, error.strerror or str(error)) from error
    return kept


def unwritable(path: Path, why: str) -> ConfigError:
    return ConfigError(f"{path}: cannot be written: {why}; choose another by --output")


def _keep(path: Path) -> Path:
    """Give the file a name that is free."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    names = (path.with_name(f"{path.name}.bak{number or ''}") for number in itertools.count())
    kept = next(name for name in names if not name.exists())
    path.rename(kept)
    return kept


def _list(items: Sequence[str]) -> None:
    for number, item in enumerate(items, 1):
        click.echo(f"  {number}  {item}")


def _numbered(items: Sequence[T], otherwise: Callable[[str], str]) -> Callable[[str], T | str]:
    """Read the number of an item, or what `otherwise` reads."""

    def read(text: str) -> T | str:
        text = text.strip()
        if text.isdecimal() and 1 <= int(text) <= len(items):
            return items[int(text) - 1]
        return otherwise(text)

    return read
