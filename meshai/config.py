"""Every setting: its name, default, meaning and limits, and the only reader of YAML and the environment.

Each field's description is its line in `config.example.yaml`, which is written from here.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationInfo, field_validator

from meshai.configfile import commented, parse, shown
from meshai.entries import (
    Alias,
    Hours,
    NodeOrKey,
    PublicKey,
    RadioAddress,
    Switch,
    Word,
    check_server_url,
    parse_radio_address,
)
from meshai.errors import ConfigError

CHANNEL_BYTES_MAX: Final = 227
"""Longest channel text with a reply id that firmware 2.7 accepts (233-byte payload less overhead)."""
DIRECT_BYTES_MAX: Final = 215
"""Longest public-key direct message with a reply id that firmware 2.7 accepts."""
PROMPT_TOKENS_MIN: Final = 450
"""Room for the usual instructions and one question of any packet."""
NO_MODELS: Final = ("no", "none", "false", "on", "yes", "true")
"""Words that people write for `off` and `auto`, which no model's name may be."""
SYSTEM_FILE: Final = Path("/etc/meshai/config.yaml")
_ROOT: Final = 0
_MOST_BYTES: Final = 1_000_000
_HEAD: Final = """\
# Settings of MeshAI. A key that is left out has its default, which `meshai config --example` shows.
# Test them with `meshai check`. In any text, ${NAME} is replaced by the environment variable NAME; $${ is a plain ${.
# MeshAI reads the first of: --config FILE, $MESHAI_CONFIG, ./config.yaml, config.yaml in the user's settings folder
# for meshai (~/.config/meshai), /etc/meshai/config.yaml; without any, the defaults hold.
"""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class RadioSettings(Section):
    address: str = Field(
        "auto",
        description="auto (find a USB radio) | /dev/serial/by-id/NAME | tcp:HOST or tcp:HOST:PORT | ble:ADDRESS",
    )
    answer_within_s: Annotated[int, Field(ge=10, le=86_400)] = Field(
        600, description="texts that waited longer than this in the radio while nobody listened stay unanswered"
    )

    @field_validator("address")
    @classmethod
    def _is_an_address(cls, text: str) -> str:
        parse_radio_address(text)
        return text

    @property
    def endpoint(self) -> RadioAddress:
        """The address, read."""
        return parse_radio_address(self.address)


class BotSettings(Section):
    aliases: tuple[Alias, ...] = Field(
        (), description="more names the bot answers to on channels, in any script, e.g. [bot, бот]"
    )
    persona: str = Field(
        "You are MeshAI, a radio assistant on a LoRa mesh. Answer in one or two short sentences of plain text, "
        "in the language of the question. If you do not know, say that you do not know.",
        description="what the model is told about itself",
    )
    ignore_nodes: tuple[NodeOrKey, ...] = Field(
        (),
        description='nodes that never get an answer, by id, e.g. ["!a1b2c3d4"], or by public key as the apps show it; '
        "put other bots here",
    )
    answer_nodes: tuple[NodeOrKey, ...] = Field(
        (),
        description="the only nodes that get an answer, likewise; by key only their encrypted direct messages, which "
        "prove it; empty: everyone",
    )
    admin_keys: tuple[PublicKey, ...] = Field(
        (),
        description="public keys of those who may use !quiet, !ignore, !unignore, !stats and !restart-radio, in "
        "encrypted direct messages only; empty: nobody",
    )
    max_hops: Annotated[int, Field(ge=0, le=7)] = Field(
        7, description="questions that came over more relays than this are from too far away; with 7 none is"
    )
    beyond_max_hops: Literal["ignore", "direct"] = Field(
        "ignore", description="what to do about those: ignore them, or answer also on channels by direct message only"
    )
    answer_mqtt: Switch = Field(False, description="whether to answer texts that came over MQTT instead of radio")


class ChannelSettings(Section):
    answer_on: tuple[Annotated[int, Field(ge=0, le=7)], ...] = Field(
        (1, 2, 3, 4, 5, 6, 7),
        description="channel indexes where the bot answers when addressed; 0 is the public primary channel",
    )
    reply_by: Literal["channel", "direct"] = Field(
        "channel", description="answer channel questions on the channel, or to the asker by direct message"
    )


class CommandSettings(Section):
    aliases: dict[Word, Word] = Field(
        {}, description="more words for commands, in any script, e.g. {помощь: help}; typed as !помощь"
    )


class ReplySettings(Section):
    max_packets: Annotated[int, Field(ge=1, le=10)] = Field(
        3, description="most packets one answer may take; what does not fit is cut, and the text says so"
    )
    max_characters: Annotated[int, Field(ge=40, le=CHANNEL_BYTES_MAX)] = Field(
        150, description=f"most characters in one packet; the radio carries no more than {CHANNEL_BYTES_MAX} bytes"
    )
    channel_bytes: Annotated[int, Field(ge=60, le=CHANNEL_BYTES_MAX)] = Field(
        160,
        description="most UTF-8 bytes in one packet on a channel; the radio carries no more than "
        f"{CHANNEL_BYTES_MAX}, and above 161 newer firmware no longer signs it",
    )
    direct_bytes: Annotated[int, Field(ge=60, le=DIRECT_BYTES_MAX)] = Field(
        200,
        description="most UTF-8 bytes in one packet of a direct message; the radio carries no more than "
        f"{DIRECT_BYTES_MAX}, because encryption adds its own",
    )
    retries: Annotated[int, Field(ge=0, le=3)] = Field(
        2,
        description="how often a direct packet that was lost is sent again, beyond the radio's own three times; each "
        "relay on the way adds as many, up to 6",
    )
    working_after_s: Annotated[float, Field(ge=0, le=600)] = Field(
        0,
        description="when an answer takes longer than this, the question gets a small sign (tapback) first; 0: never",
    )
    gap_s: Annotated[float, Field(ge=2.5, le=600)] = Field(
        2.5, description="least pause between two texts; the radio silently drops texts closer than about 2.3 s"
    )


class AirtimeSettings(Section):
    transmit: Switch = Field(
        True, description="off: listen only; hears and logs, and sends nothing at all, not even what was waiting"
    )
    quiet_hours: tuple[Hours, ...] = Field(
        (), description='when nothing is answered, by the local time of this machine, e.g. ["22:00-07:00"]'
    )
    share_percent: Annotated[float, Field(ge=0.1, le=50)] = Field(
        2, description="most of any hour the bot's packets may occupy; never more than half the region's duty cycle"
    )
    answers_per_node_hour: Annotated[int, Field(ge=1, le=1000)] = Field(
        40, description="most answers to one node in an hour; an answer of several packets counts once"
    )
    answers_per_hour: Annotated[int, Field(ge=1, le=10_000)] = Field(
        120, description="most answers to all nodes together in an hour"
    )


class ModelSettings(Section):
    base_url: str = Field(
        "", description="any OpenAI-compatible server, e.g. http://127.0.0.1:11434/v1; empty: the embedded model"
    )
    name: str = Field("", description="model to ask that server for, e.g. llama3.2:3b")
    api_key: SecretStr = Field(
        SecretStr(""),
        # Strict JSON, which the file is read as, would refuse the default for not being a string.
        validate_default=False,
        description="key for that server, from the environment, e.g. ${MESHAI_API_KEY}",
    )
    timeout_s: Annotated[float, Field(gt=0, le=3600)] = Field(
        60, description="longest wait for an answer, retries included"
    )
    max_tokens: Annotated[int, Field(ge=16, le=4096)] = Field(
        200, description="longest answer to ask for; a thinking model needs 2000 or more"
    )
    context_tokens: Annotated[int, Field(ge=512, le=1_000_000)] = Field(
        2048, description="most tokens of prompt and answer together"
    )
    system_role: Switch = Field(
        True, description="false: put the instructions into the first user message, for models without a system role"
    )
    embedded: str = Field(
        "auto",
        description="local model when base_url is empty: auto (best that fits in memory) | off | a name from "
        "`meshai model list`",
        # Not to be told as the remedy for what YAML takes for a truth value.
        json_schema_extra={"pattern": f"^(?!({'|'.join(NO_MODELS)})$).", "examples": ["off"]},
    )

    @field_validator("embedded")
    @classmethod
    def _may_be_a_model(cls, name: str) -> str:
        if name.strip().lower() in ("", *NO_MODELS):
            raise ValueError(f"expected auto, off or the name of a model; `{command()} model list` shows them")
        return name

    @field_validator("base_url")
    @classmethod
    def _is_a_server(cls, text: str) -> str:
        if text:
            check_server_url(text)
        return text

    @field_validator("name")
    @classmethod
    def _goes_with_a_server(cls, name: str, others: ValidationInfo) -> str:
        if not name and others.data.get("base_url"):
            raise ValueError("expected the name of a model at base_url, e.g. llama3.2:3b; a server may offer many")
        return name

    @field_validator("context_tokens")
    @classmethod
    def _leaves_room_for_the_prompt(cls, tokens: int, others: ValidationInfo) -> int:
        least = others.data.get("max_tokens", 0) + PROMPT_TOKENS_MIN
        if tokens < least:
            raise ValueError(
                f"expected at least {least}: max_tokens for the answer, {PROMPT_TOKENS_MIN} for the instructions and "
                "a question"
            )
        return tokens


class MemorySettings(Section):
    window: Annotated[int, Field(ge=4, le=100)] = Field(
        8, description="how many of the latest turns (questions and answers) stay word for word beside the summary"
    )
    summarize_after: Annotated[int, Field(ge=6, le=200)] = Field(
        16, description="how many more turns there may be before they are folded into the summary, in the background"
    )
    level: Literal["off", "chat", "full"] = Field(
        "chat",
        description="what is kept of nodes that chose nothing: off | chat (what was said, and a summary) | full (facts "
        "and older talk too); each may choose by !memory",
    )
    channels: Literal["off", "chat"] = Field("chat", description="what is kept of channels: off | chat")
    tell: Switch = Field(
        True, description="whether the first answer to a node says that notes are kept, in 41 more characters"
    )
    need_key: Switch = Field(
        True,
        description="show, change and delete a node's memory only in encrypted direct messages, which prove the "
        "sender; false: on a mesh without public keys, where anybody may send with another's number",
    )
    keep_days: Annotated[int, Field(ge=1, le=3650)] = Field(
        30, description="at level chat and on channels, what is older than this is forgotten"
    )
    keep_turns: Annotated[int, Field(ge=20, le=1_000_000)] = Field(
        20_000, description="most lines kept of one node or channel, the newest; about 400 bytes each"
    )


class StorageSettings(Section):
    path: Path | None = Field(
        None, description="the SQLite file; empty: meshai.db in the data folder of the user or service"
    )

    @field_validator("path")
    @classmethod
    def _can_be_a_file(cls, path: Path | None) -> Path | None:
        return None if path is None else _database_path(path)


class LogSettings(Section):
    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="debug also logs the texts of messages"
    )


class Config(Section):
    """All settings. Each part gets its own section, never all of it."""

    radio: RadioSettings = Field(RadioSettings(), description="the Meshtastic node the bot speaks through")
    bot: BotSettings = Field(BotSettings(), description="who the bot is and whom it answers")
    channels: ChannelSettings = Field(ChannelSettings(), description="behaviour on channels")
    commands: CommandSettings = Field(CommandSettings(), description="commands such as !help")
    replies: ReplySettings = Field(ReplySettings(), description="how answers are cut and paced")
    airtime: AirtimeSettings = Field(
        AirtimeSettings(), description="when and how much the bot may use the shared channel"
    )
    model: ModelSettings = Field(ModelSettings(), description="the language model that writes the answers")
    memory: MemorySettings = Field(MemorySettings(), description="what is remembered, for whom, and how long")
    storage: StorageSettings = Field(StorageSettings(), description="where conversations are kept")
    log: LogSettings = Field(LogSettings(), description="what is logged")


def find(chosen: Path | None, environ: Mapping[str, str] = os.environ) -> Path | None:
    """The settings file to read: the chosen one, else the first that exists; None when there is none."""
    if chosen or (chosen := Path(environ.get("MESHAI_CONFIG", ""))) != Path():
        return chosen
    usual = (Path("config.yaml"), user_file(), SYSTEM_FILE)
    return next((path for path in usual if os.path.exists(path)), None)


def user_file() -> Path:
    """Where a person's own settings are, such as `~/.config/meshai/config.yaml`."""
    return platformdirs.user_config_path("meshai") / "config.yaml"


def load(
    path: Path | None,
    environ: Mapping[str, str] = os.environ,
    check: Callable[[Config], Mapping[tuple[str | int, ...], str]] = lambda config: {},
) -> Config:
    """The settings in the file `path`, or the defaults for None. Raises ConfigError with a line for each fault.

    `check` says by key what is wrong beyond what can be known here.
    """
    if path is None:
        return Config()
    text, owner, mode = _read(path)
    remedy = "" if is_private(owner, mode) else _to_hide_a_secret(path, owner, environ)
    return parse(text, Config, file=str(path), environ=environ, literal_secrets=remedy, check=check)


def example(changes: Mapping[str, object] | None = None) -> str:
    """A settings file with every key, its meaning and default; `changes`, by dotted key, are written instead."""
    return _HEAD + commented(Config, changes or {})


def effective(config: Config) -> str:
    """All settings as YAML, telling of secrets only whether they are set."""
    return shown(config)


def environment() -> Mapping[str, str]:
    """The process's environment, for what systemd tells its services there."""
    return os.environ


def command(environ: Mapping[str, str] = os.environ) -> str:
    """What people type to run this program as it runs now, such as `sudo meshai-service`."""
    return environ.get("MESHAI_COMMAND", "").strip() or "meshai"


def is_service(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is the installed service, or a command that runs as it does."""
    return command(environ).endswith("meshai-service")


def data_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the database and model files are kept: the service's state folder, else the user's data folder."""
    # systemd joins several StateDirectory= entries by colons; the first one is ours.
    service_state = environ.get("STATE_DIRECTORY", "").partition(":")[0]
    return Path(service_state) if service_state else platformdirs.user_data_path("meshai")


def database_path(config: Config) -> Path:
    """The SQLite file the settings mean."""
    return config.storage.path or data_dir() / "meshai.db"


def is_private(owner: int, mode: int) -> bool:
    """Whether a file may hold secrets: only its owner can read it, or the one group that root has let read its file.

    The latter is how the installed service reads settings that it must not change.
    """
    return not mode & 0o077 or (owner == _ROOT and not mode & 0o037)


def _to_hide_a_secret(path: Path, owner: int, environ: Mapping[str, str]) -> str:
    """What to do about a secret in a file that is not private, so that this process can still read it."""
    kept = " from /etc/meshai/environment" if is_service(environ) else ""
    expected = f"expected ${{MESHAI_API_KEY}} or another variable{kept}, or a file "
    if owner == _ROOT != os.geteuid():
        group = os.getegid()
        return f"{expected}of root's that only our group can read: sudo chgrp {group} {path}; sudo chmod 640 {path}"
    return f"{expected}only its owner can read: chmod 600 {path}"


def _read(path: Path) -> tuple[str, int, int]:
    """The file's text, its owner and its mode."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
            status = os.fstat(file.fileno())
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; `{command()} init` writes one") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: found a folder; expected a file such as {path / 'config.yaml'}") from None
    except PermissionError:
        raise ConfigError(
            f"{path}: not readable for this user; run as its owner (sudo -u meshai ...), or choose one by --config"
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: not readable: {error}") from None
    if len(raw) > _MOST_BYTES:
        raise ConfigError(f"{path}: found more than {_MOST_BYTES} bytes; expected a settings file")
    try:
        return raw.decode("utf-8-sig"), status.st_uid, status.st_mode
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: found bytes that are not UTF-8; save the file as UTF-8") from None


def _database_path(path: Path) -> Path:
    """The path without ~, when a file can be there; missing folders on the way to it are made later."""
    try:
        path = path.expanduser()
        if path.is_dir():
            raise ValueError("expected a file, and this is a folder")
        around = next((folder for folder in path.absolute().parents if folder.exists()), path)
        if not around.is_dir():
            raise ValueError(f"expected a file in a folder, and {around} is a file")
    except (OSError, RuntimeError):
        # Not ours to look at, as when the service's settings are shown to another user: opening it will tell.
        return path
    return path
