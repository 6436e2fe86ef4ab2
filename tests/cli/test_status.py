"""`meshai status`: the picture of a report, and the program beside a bot that comes and goes."""

import asyncio
import io
import json
import os
import pty
import random
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.cells import cell_len
from rich.console import Console

from meshai.cli import main
from meshai.cli.statusview import picture
from meshai.clock import ScaledClock
from meshai.messages import Fate
from meshai.sim.mesh import SimulatedMesh
from meshai.status import HOURS, Hour, Part, Place, Queued, Report, SentReply, Talker
from meshai.window import window_of
from tests.acceptance.bot import config, echoing, running
from tests.commands.test_commands import STATUS

ANNA, BOTS = Place("!0000a11a", "Anna"), Place("#1", "bots")
NOW = 3600.0 * 500_000
EMPTY = Report(
    at=NOW,
    status=replace(STATUS, waiting=0),
    is_stand_in=False,
    silence="",
    queue=(),
    hours=tuple(Hour(NOW + 3600 * (number - HOURS + 1), 0.0, 0) for number in range(HOURS)),
    replies=(),
    talkers=(),
    talkers_in_all=0,
)


def drawn(report: Report, *, color: bool = False) -> str:
    out = io.StringIO()
    Console(file=out, width=80, force_terminal=color, highlight=False, legacy_windows=False).print(picture(report))
    return out.getvalue()


def row(report: Report, start: str) -> str:
    return " ".join(next(line for line in drawn(report).splitlines() if line.startswith(start)).split())


def reply(*parts: tuple[str, str, int], to: Place = ANNA) -> SentReply:
    return SentReply(
        to,
        NOW - 75,
        tuple(
            Part(number, len(parts), state, reason, tries, NOW - 5)
            for number, (state, reason, tries) in enumerate(parts, start=1)
        ),
    )


class TestPicture:
    def test_what_is_at_hand_is_told_in_a_few_lines(self) -> None:
        lines = [" ".join(line.split()) for line in drawn(EMPTY).splitlines()]
        assert lines == [
            "MeshAI 1.2, up 1 d 2 h",
            "link connected",
            "radio EU_868 LONG_FAST, firmware 2.7.26",
            "model qwen",
            "airtime 12.4 s of 72 s spent in the last hour, 58.0 s left",
            "texts 30 heard, 12 answered, 2 refused to spare the air, 1 model failed",
            "packets 20 sent, 1 failed, 0 waiting",
            "",
            "airtime by hour, 0 s in all, 0 s at most",
        ]

    def test_before_the_first_connect_there_is_nothing_to_say_of_the_radio(self) -> None:
        unknown = replace(STATUS, node=None, region="", preset="", firmware="", radio="waiting for a radio", model="")
        shown = drawn(replace(EMPTY, status=unknown))
        assert "link     waiting for a radio" in shown
        assert "\nradio" not in shown
        assert "\nairtime  " not in shown
        assert "none: only commands are answered" in shown

    def test_trouble_is_told(self) -> None:
        status = replace(STATUS, model_trouble="the weights are missing")
        shown = drawn(replace(EMPTY, status=status, is_stand_in=True, silence="quiet hours 22:00-06:00"))
        assert "silent   quiet hours 22:00-06:00" in shown
        assert "model    out of order: the weights are missing" in shown
        assert "memory   the database cannot be used: nothing is kept" in shown

    def test_the_queue_is_told_by_place(self) -> None:
        status = replace(STATUS, waiting=9)
        queue = (Queued(ANNA, 4), Queued(BOTS, 2))
        assert row(replace(EMPTY, status=status, queue=queue), "queue") == "queue Anna 4, #1 bots 2, others 3"

    def test_the_highest_hour_fills_the_chart_and_the_least_is_seen(self) -> None:
        spent = {0: 48.0, 1: 24.0, 2: 0.1, HOURS - 1: 16.0}
        hours = tuple(replace(hour, spent_s=spent.get(number, 0.0)) for number, hour in enumerate(EMPTY.hours))
        title, *rows, names = drawn(replace(EMPTY, hours=hours)).splitlines()[-5:]
        assert title == "airtime by hour, 88 s in all, 48 s at most"
        assert [line[:9] for line in rows] == [" ██      ", " ██ ▄▄   ", " ██ ██ ▁▁"]
        assert [line[69:72] for line in rows] == ["   ", "   ", " ██"]
        assert len(names.split()) == HOURS
        assert cell_len(names) == 72

    @pytest.mark.parametrize(
        ("parts", "text"),
        [
            ([("waiting", "", 0)], "waiting"),
            ([("delivered", "", 1)], "delivered"),
            ([("delivered", "", 2)], "delivered after 2 tries"),
            ([("relayed", "", 1)], "relayed"),
            ([("unconfirmed", "", 3)], "unconfirmed after 3 tries"),
            ([("expired", "the radio was away", 0)], "expired: the radio was away"),
            ([("failed", "NO_CHANNEL_WHATEVER", 1)], "failed: NO_CHANNEL_WHATEVER"),
            (
                [("delivered", "", 1), ("delivered", "", 1), ("handed over", "", 1), ("waiting", "", 0)],
                "1-2/4 delivered; 3/4 handed over; 4/4 waiting",
            ),
        ],
    )
    def test_each_part_tells_its_state(self, parts: list[tuple[str, str, int]], text: str) -> None:
        assert row(replace(EMPTY, replies=(reply(*parts),)), "Anna") == f"Anna 1 min 15 s {text}"

    def test_a_failure_tells_why_in_words(self) -> None:
        shown = " ".join(drawn(replace(EMPTY, replies=(reply(("failed", "MAX_RETRANSMIT", 3)),))).split())
        assert "failed after 3 tries: no node acknowledged it; the destination is out of reach or off" in shown

    def test_every_fate_there_is_can_be_shown(self) -> None:
        for fate in Fate:
            assert fate.value in drawn(replace(EMPTY, replies=(reply((fate, "", 1)),)), color=True)

    def test_who_talks_is_told_with_how_many_are_not_shown(self) -> None:
        talkers = (Talker(ANNA, 7, NOW - 130), Talker(Place("!0000be17", ""), 1, NOW + 5))
        report = replace(EMPTY, talkers=talkers, talkers_in_all=40)
        assert row(report, "who") == "who talks to it, in the last 24 hours; 38 more are not shown"
        assert row(report, "Anna") == "Anna !0000a11a 7 2 min 10 s ago"
        assert "!0000be17  1         0 s ago" in drawn(report)

    def test_names_and_reasons_do_nothing_to_the_terminal_and_are_no_markup(self) -> None:
        evil = "[red]\x1b[2J\n\x9b31m" + "山" * 60
        report = replace(
            EMPTY,
            status=replace(STATUS, radio=evil, model=evil, version=evil, waiting=3),
            queue=(Queued(Place("!1", evil), 3),),
            replies=(reply(("failed", evil, 1), to=Place("!1", evil)),),
            talkers=(Talker(Place("!1", evil), 1, NOW),),
            talkers_in_all=1,
        )
        shown = drawn(report)
        assert not any(sign in shown for sign in "\x1b\x9b")
        assert shown.count("[red]") >= 5
        assert max(map(cell_len, shown.splitlines())) <= 80


def settings(folder: Path) -> Path:
    file = folder / "config.yaml"
    file.write_text(
        "radio: {address: 'tcp:127.0.0.1:1'}\nmodel: {embedded: 'off'}\n"
        f"storage: {{path: '{folder / 'meshai.db'}'}}\n"
    )
    return file


async def start(file: Path, *arguments: str, **streams: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "meshai", "--config", str(file), *arguments),
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "TERM": "xterm", "COLUMNS": "80"},
        **({"stdin": asyncio.subprocess.DEVNULL, "stderr": asyncio.subprocess.DEVNULL} | streams),  # type: ignore[arg-type]
    )


@asynccontextmanager
async def bot(file: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A bot that shows itself, without a radio."""
    process = await start(file, "run", stdout=asyncio.subprocess.DEVNULL)
    try:
        async with asyncio.timeout(30):
            while not window_of(file.with_name("meshai.db")).exists():
                await asyncio.sleep(0.05)
        yield process
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 10) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_packets_and_people_are_shown_as_text_and_as_json(tmp_path: Path) -> None:
    clock = ScaledClock(50)
    async with SimulatedMesh(clock=clock, rng=random.Random(3)) as mesh, echoing() as model:
        node = mesh.node("MeshAI", "MAI", channels=("", "bots"))
        anna = mesh.peer("Anna Weber")
        of_bot = config(node_port=await node.listen_tcp(), model_url=f"{model.url}/v1", folder=tmp_path)
        async with running(of_bot, clock) as parts:
            await parts.radio.ready()
            await anna.send_direct("secret words")
            await anna.heard(600)
            await parts.outbox.drained()
            process = await start(settings(tmp_path), "status", stdout=asyncio.subprocess.PIPE)
            shown = (await asyncio.wait_for(process.communicate(), 30))[0].decode()
            assert process.returncode == 0
            process = await start(settings(tmp_path), "status", "--json", stdout=asyncio.subprocess.PIPE)
            document = json.loads((await asyncio.wait_for(process.communicate(), 30))[0])
            assert process.returncode == 0
    assert re.search(r"link +connected to MeshAI", shown)
    assert re.search(r"\nAnna Weber  .*delivered", shown)
    assert re.search(r"\nAnna Weber  !\w{8}  1 ", shown)
    assert max(map(cell_len, shown.splitlines())) <= 80
    assert "secret" not in shown
    assert document["talkers"][0]["node"]["name"] == "Anna Weber"
    assert {part["state"] for part in document["replies"][0]["parts"]} == {"delivered"}


def test_without_a_bot_it_says_what_to_do(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["--config", str(settings(tmp_path)), "status"])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert f"not running with the database {tmp_path}/meshai.db; start it: meshai run\n" in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.yaml"]


def test_a_service_is_started_as_a_service(tmp_path: Path) -> None:
    environ = {"MESHAI_COMMAND": "sudo meshai-service"}
    result = CliRunner().invoke(main, ["--config", str(settings(tmp_path)), "status", "--json"], env=environ)
    assert result.exit_code == 1
    assert "start it: sudo systemctl start meshai" in result.stderr


def test_watching_wants_a_terminal(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["--config", str(settings(tmp_path)), "status", "--watch"])
    assert result.exit_code == 2
    assert "wants a terminal" in result.stderr


async def test_watching_prints_a_line_of_json_for_each_look(tmp_path: Path) -> None:
    file = settings(tmp_path)
    async with bot(file):
        process = await start(file, "status", "--watch", "--json", stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        async with asyncio.timeout(30):
            looks = [json.loads(await process.stdout.readline()) for _ in range(2)]
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), 10) == 0
        await process.stdout.read()
    assert looks[0]["at"] < looks[1]["at"]


class Screen:
    """What a program draws on a terminal."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._drawn = b""

    async def shows(self, text: bytes) -> None:
        """Wait until this is drawn, anew."""
        async with asyncio.timeout(30):
            while text not in self._drawn:
                self._drawn += await asyncio.to_thread(os.read, self._descriptor, 65_536)
        self._drawn = b""

    def drain(self) -> None:
        with suppress(OSError):
            while os.read(self._descriptor, 65_536):
                pass


async def test_a_terminal_shows_the_bot_go_and_come_back_until_ctrl_c(tmp_path: Path) -> None:
    file = settings(tmp_path)
    controller, terminal = pty.openpty()
    screen = Screen(controller)
    process = await start(file, "status", "--watch", stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    try:
        await screen.shows(b"Waiting for it; Ctrl-C ends.")
        for _ in range(2):
            async with bot(file):
                await screen.shows(b"waiting for a radio at tcp:127.0.0.1:1")
                await screen.shows(b"waiting for a radio at tcp:127.0.0.1:1")
            await screen.shows(b"the bot is not running")
        process.send_signal(signal.SIGINT)
        draining = asyncio.create_task(asyncio.to_thread(screen.drain))
        assert await asyncio.wait_for(process.wait(), 10) == 0
        await draining
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(controller)
