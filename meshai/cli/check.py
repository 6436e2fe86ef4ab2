"""`meshai check`: tests radio, model, database and clock for real, and says what to do about each fault."""

import asyncio
import ctypes
import dataclasses
import json
import random
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from meshai import app, builtin
from meshai.airtime import text_frame_bytes
from meshai.characters import beginning
from meshai.cli import USAGE_ERROR, ConfigSource, logs, places
from meshai.clock import Clock, SystemClock
from meshai.config import Config, command, database_path
from meshai.errors import ConfigError, ModelError, StoreError
from meshai.messages import node_id
from meshai.model.base import ChatMessage, LanguageModel
from meshai.radio.base import OwnNode, Radio
from meshai.store import health
from meshai.store.database import alone, open_database

MB: Final = 1_000_000
LEAST_FREE: Final = 20 * MB
"""Below this SQLite soon cannot write."""
LITTLE_FREE: Final = 200 * MB
RELEASED: Final = 1_767_225_600
"""2026: a clock that says less was never set."""
CLOCKS_APART_S: Final = 600.0


class Verdict(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    subject: str
    verdict: Verdict
    found: str
    remedy: str = ""


@click.command(
    epilog="""\b
Examples:
  meshai check
  meshai check --json
  meshai --config /etc/meshai/config.yaml check --wait 60"""
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option(
    "--wait", "wait_s", type=click.FloatRange(1, 600), default=30.0, show_default=True, help="Seconds for the radio."
)
@click.pass_context
def check(ctx: click.Context, *, as_json: bool, wait_s: float) -> None:
    """Test radio, model, database and clock, and say what helps.

    Connects to the radio, asks the model one question, and writes to the database. A radio that the running bot
    holds is left alone. The exit code is 1 when something does not work, 2 for
    wrong settings.
    """
    source: ConfigSource = ctx.obj
    try:
        config = source.checked(app.unusable)
    except ConfigError as error:
        remedy = "correct the file; nothing else can be tested before"
        show([Finding("settings", Verdict.FAIL, str(error), remedy)], as_json=as_json)
        ctx.exit(USAGE_ERROR)
    # What goes wrong is told below, once.
    logs.set_up("critical", is_journal=False)
    findings = [Finding("settings", Verdict.OK, f"from {source.file}" if source.file else "no file: all defaults")]
    with Console(stderr=True).status("asking radio and model"):
        findings += asyncio.run(examine(config, wait_s=wait_s, clock=SystemClock()))
    show(findings, as_json=as_json)
    if any(finding.verdict is Verdict.FAIL for finding in findings):
        ctx.exit(1)


def show(findings: Sequence[Finding], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=2, ensure_ascii=False))
    else:
        Console().print(_table(findings))


async def examine(config: Config, *, wait_s: float, clock: Clock) -> list[Finding]:
    """Everything that can be tested of these settings."""
    path = database_path(config)
    asked = builtin.model(config.model, clock=clock)
    database, model, (radio, heard_at) = await asyncio.gather(
        check_database(path),
        check_model(asked, max_tokens=config.model.max_tokens, clock=clock),
        _radio_unless_running(config, path, wait_s=wait_s, clock=clock),
    )
    return [*radio, model, database, check_disk(path), check_clock(clock.now(), is_synchronised(), heard_at)]


async def _radio_unless_running(
    config: Config, path: Path, *, wait_s: float, clock: Clock
) -> tuple[list[Finding], float | None]:
    if await _is_running(path):
        # A node has one client: ours would push the bot's off.
        found = f"not tested: the bot is running with {path} and has the radio"
        return [
            Finding("radio", Verdict.WARN, found, f"see it with `{command()} status`; or stop it and check again")
        ], None
    radio = app.node_radio(config, clock=clock, rng=random.Random())
    return await check_radio(radio, answer_on=config.channels.answer_on, wait_s=wait_s, clock=clock)


async def _is_running(path: Path) -> bool:
    if _size(path) is None:
        # Nor may the lock be made, perhaps by root, where the bot's own user could not open it then.
        return False
    try:
        async with alone(path):
            return False
    except StoreError as error:
        return isinstance(error.__cause__, BlockingIOError)


async def check_radio(
    radio: Radio, *, answer_on: Sequence[int], wait_s: float, clock: Clock
) -> tuple[list[Finding], float | None]:
    """What the radio says of itself; and when, by its clock, it last heard anybody."""
    async with radio:
        try:
            async with clock.timeout(wait_s):
                await radio.ready()
        except TimeoutError:
            found, _, remedy = radio.state.partition("; ")
            return [
                Finding("radio", Verdict.FAIL, found, remedy or f"see radio.address; `{command()} init` finds radios")
            ], None
        me = radio.me
        assert me is not None  # noqa: S101 - what `ready` waits for
        heard = [node.last_heard for node in radio.nodes().values() if node.last_heard]
        return judge_node(me, answer_on), max(heard, default=None)


def judge_node(me: OwnNode, answer_on: Sequence[int]) -> list[Finding]:
    node = me.node
    firmware = f", firmware {me.firmware}" if me.firmware else ""
    findings = [Finding("radio", Verdict.OK, f"{node.name} ({node_id(node.number)}){firmware}")]
    if me.region in ("", "UNSET"):
        findings.append(
            Finding("region", Verdict.FAIL, "not set: the radio does not send", "meshtastic --set lora.region EU_868")
        )
    else:
        findings.append(Finding("region", Verdict.OK, _modem(me)))
    if node.public_key is None:
        findings.append(
            Finding(
                "key",
                Verdict.FAIL,
                "the node has no public key: nobody can write to it directly",
                "update its firmware to 2.5 or newer and set the region, which makes a key",
            )
        )
    else:
        findings.append(Finding("key", Verdict.OK, "the node has a public key for direct messages"))
    findings.append(_channels(me.channel_names or {}, answer_on))
    return findings


def _modem(me: OwnNode) -> str:
    airtime = ""
    if me.modem is not None:
        seconds = me.modem.airtime_s(text_frame_bytes(150, is_direct=False, has_reply_id=True))
        airtime = f"; 150 characters take {seconds:.1f} s on air"
    return f"{me.region}, {me.preset or 'unknown preset'}, {me.hop_limit} hops{airtime}"


def _channels(names: Mapping[int, str], answer_on: Sequence[int]) -> Finding:
    answered = [f"{index} ({names[index]})" if names[index] else str(index) for index in answer_on if index in names]
    if not answered:
        return Finding(
            "channels",
            Verdict.WARN,
            "answers direct messages only: no channel of the radio is in channels.answer_on",
            "add a channel for the bot: meshtastic --ch-add NAME",
        )
    if 0 in answer_on:
        return Finding(
            "channels",
            Verdict.WARN,
            f"answers on {', '.join(answered)}, so on the public channel",
            "take 0 out of channels.answer_on, unless everybody there wants a bot",
        )
    return Finding("channels", Verdict.OK, f"answers on {', '.join(answered)} when addressed")


async def check_model(model: LanguageModel | None, *, max_tokens: int, clock: Clock) -> Finding:
    """Ask one real question, as the bot would."""
    if model is None:
        return Finding(
            "model",
            Verdict.WARN,
            "none: only commands such as !help are answered",
            "set model.base_url to a model server, or model.embedded to auto",
        )
    began = clock.monotonic()
    try:
        async with model:
            answer = await model.complete([ChatMessage("user", "Say hello in one word.")], max_tokens=max_tokens)
    except ModelError as error:
        found, _, remedy = str(error).partition("; ")
        return Finding("model", Verdict.FAIL, found, remedy)
    words = " ".join(answer.text.split())
    return Finding(
        "model", Verdict.OK, f'{model.name} said "{beginning(words, 40)}" after {clock.monotonic() - began:.1f} s'
    )


async def check_database(path: Path) -> Finding:
    """Open the database, look through it and write to it; one that is not there yet is not made."""
    if _size(path) is None:
        if why := places.why_not_writable(path):
            remedy = f"give this user the right to write to {places.existing_folder(path)}, or set storage.path"
            return Finding("database", Verdict.FAIL, f"{path} cannot be made: {why}", remedy)
        return Finding("database", Verdict.OK, f"{path}, to be made at the first start")
    try:
        async with open_database(path) as database, database.transaction() as db:
            faults = await health.faults(db)
            await health.write(db)
    except StoreError as error:
        found, _, remedy = str(error).partition("; ")
        return Finding("database", Verdict.FAIL, found, remedy or "move the file away to begin anew, and keep it")
    if faults:
        return Finding("database", Verdict.FAIL, f"{path} is damaged: {faults[0]}", f"sqlite3 {path} .recover")
    return Finding("database", Verdict.OK, f"{path}, sound, {(_size(path) or 0) / MB:.1f} MB")


def check_disk(path: Path, free_bytes: int | None = None) -> Finding:
    """Whether there is room for the database; `free_bytes` takes the place of what the system says."""
    folder = places.existing_folder(path)
    free = shutil.disk_usage(folder).free if free_bytes is None else free_bytes
    if free < LEAST_FREE:
        return Finding("disk", Verdict.FAIL, f"{free // MB} MB free at {folder}", "make room, or set storage.path")
    if free < LITTLE_FREE:
        return Finding("disk", Verdict.WARN, f"only {free // MB} MB free at {folder}", "make room")
    return Finding("disk", Verdict.OK, f"{free // MB} MB free at {folder}")


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.exists() else None


def check_clock(now: float, is_set: bool | None, heard_at: float | None) -> Finding:
    """Judge our clock by itself and by what the radio last heard, which cannot be in the future."""
    date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(now))
    if now < RELEASED:
        remedy = "connect to a network once, or add a clock module; until then dates are wrong, answers are not"
        return Finding("clock", Verdict.FAIL, f"{date}: never set", remedy)
    if heard_at is not None and heard_at > now + CLOCKS_APART_S:
        found = f"{date}, but the radio's is {(heard_at - now) / 60:.0f} min ahead"
        return Finding("clock", Verdict.WARN, found, "set the radio's: meshtastic --set-time")
    if is_set is False:
        remedy = "sudo timedatectl set-ntp true; without a network, a clock module"
        return Finding("clock", Verdict.WARN, f"{date}, not kept right by a time server", remedy)
    return Finding("clock", Verdict.OK, f"{date}{', kept right by a time server' if is_set else ''}")


def is_synchronised() -> bool | None:
    """Whether the kernel holds its clock to be right, as every time service tells it; None when it does not say."""
    try:
        adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return None
    # `struct timex` with `modes` 0, which only asks; it is shorter than this on every system.
    state = adjtimex(ctypes.create_string_buffer(512))
    return None if state < 0 else state != _TIME_ERROR


_TIME_ERROR: Final = 5


def _table(findings: Sequence[Finding]) -> Table:
    table = Table(show_header=True, header_style="bold")
    for title in ("", "what", "found", "remedy"):
        # Folded, for a path or command that is cut helps nobody.
        table.add_column(title, overflow="fold")
    styles = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "bold red"}
    for finding in findings:
        # As text, since names of nodes and words of models may look like markup.
        table.add_row(
            Text(finding.verdict, styles[finding.verdict]),
            finding.subject,
            Text(finding.found),
            Text(finding.remedy),
        )
    return table
