"""`meshai check`: against a simulated radio through the real library, a real HTTP server and real files."""

import json
import os
import random
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from meshai.cli import main
from meshai.cli.check import (
    LEAST_FREE,
    LITTLE_FREE,
    Finding,
    Verdict,
    check_clock,
    check_database,
    check_disk,
    check_model,
    check_radio,
    examine,
    is_synchronised,
    judge_node,
    show,
)
from meshai.clock import ScaledClock, SystemClock
from meshai.config import ChannelSettings, Config, ModelSettings, RadioSettings, StorageSettings
from meshai.messages import Node, TextLimits
from meshai.model.openai import OpenAIModel
from meshai.radio.base import OwnNode
from meshai.radio.meshtastic import MeshtasticRadio
from meshai.sim.mesh import SimulatedMesh
from meshai.store.database import alone, open_database
from tests.model.serving import Answer, HttpServer, completion

LIMITS = TextLimits(160, 200)
OWN = OwnNode(
    Node(0x5E40_0001, "MeshAI", "MAI", public_key=b"k" * 32),
    None,
    region="EU_868",
    preset="LONG_FAST",
    channel_names={0: "", 1: "Bots", 2: ""},
    firmware="2.7.26",
)


@pytest.fixture
def clock() -> ScaledClock:
    return ScaledClock(20)


@pytest.fixture
async def node_port(clock: ScaledClock) -> AsyncIterator[int]:
    async with SimulatedMesh(clock=clock, rng=random.Random(3), region="EU_868") as mesh:
        node = mesh.node("Base", "BS", channels=("", "Bots"))
        mesh.peer("Anna")
        yield await node.listen_tcp()


def radio(address: str, clock: ScaledClock) -> MeshtasticRadio:
    return MeshtasticRadio(RadioSettings(address=address), LIMITS, clock=clock, rng=random.Random(1))


def by_subject(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.subject: finding for finding in findings}


class TestRadio:
    async def test_a_sound_one(self, node_port: int, clock: ScaledClock) -> None:
        findings, heard_at = await check_radio(
            radio(f"tcp:127.0.0.1:{node_port}", clock), answer_on=(1, 2), wait_s=60, clock=clock
        )
        assert {finding.verdict for finding in findings} == {Verdict.OK}
        found = {finding.subject: finding.found for finding in findings}
        assert found["radio"].startswith("Base (!")
        assert "firmware 2.7" in found["radio"]
        assert found["region"].startswith("EU_868, LONG_FAST, 3 hops; 150 characters take 1.")
        assert found["channels"] == "answers on 1 (Bots) when addressed"
        assert heard_at is None or heard_at <= clock.now() + 1

    async def test_one_that_is_not_there_is_told_with_the_radios_own_remedy(self, clock: ScaledClock) -> None:
        (finding,), heard_at = await check_radio(
            radio("/dev/no-such-port", clock), answer_on=(1,), wait_s=5, clock=clock
        )
        assert finding.verdict is Verdict.FAIL
        assert "no such serial port" in finding.found
        assert finding.remedy
        assert heard_at is None

    @pytest.mark.parametrize(
        ("own", "answer_on", "subject", "verdict", "remedy"),
        [
            (OWN, (1,), "region", Verdict.OK, ""),
            (replace(OWN, region="UNSET"), (1,), "region", Verdict.FAIL, "meshtastic --set lora.region"),
            (replace(OWN, region=""), (1,), "region", Verdict.FAIL, "meshtastic --set lora.region"),
            (OWN, (1,), "key", Verdict.OK, ""),
            (replace(OWN, node=replace(OWN.node, public_key=None)), (1,), "key", Verdict.FAIL, "update its firmware"),
            (OWN, (1, 2), "channels", Verdict.OK, ""),
            (OWN, (3, 4), "channels", Verdict.WARN, "add a channel for the bot"),
            (OWN, (0, 1), "channels", Verdict.WARN, "take 0 out of channels.answer_on"),
            (replace(OWN, channel_names=None), (1,), "channels", Verdict.WARN, "add a channel for the bot"),
        ],
    )
    def test_each_setting_that_matters(
        self, own: OwnNode, answer_on: tuple[int, ...], subject: str, verdict: Verdict, remedy: str
    ) -> None:
        finding = by_subject(judge_node(own, answer_on))[subject]
        assert finding.verdict is verdict
        assert finding.remedy.startswith(remedy)


class TestModel:
    async def test_one_that_answers(self, clock: ScaledClock) -> None:
        async with HttpServer.answering(completion("Hello\n[red]there.")) as server:
            settings = ModelSettings(base_url=f"{server.url}/v1", name="fake")
            finding = await check_model(OpenAIModel(settings, clock=clock), max_tokens=200, clock=clock)
        assert finding.verdict is Verdict.OK
        assert finding.found.startswith('fake said "Hello [red]there." after ')

    async def test_one_that_refuses_the_key(self, clock: ScaledClock) -> None:
        async with HttpServer.answering(Answer({"error": {"message": "no"}}, status=401)) as server:
            settings = ModelSettings(base_url=f"{server.url}/v1", name="fake")
            finding = await check_model(OpenAIModel(settings, clock=clock), max_tokens=200, clock=clock)
        assert finding.verdict is Verdict.FAIL
        assert "401" in finding.found
        assert "api_key" in finding.remedy

    async def test_none(self, clock: ScaledClock) -> None:
        finding = await check_model(None, max_tokens=200, clock=clock)
        assert finding.verdict is Verdict.WARN
        assert "model.base_url" in finding.remedy


class TestDatabase:
    async def test_a_sound_one_stays_as_it_is(self, tmp_path: Path) -> None:
        path = tmp_path / "meshai.db"
        async with open_database(path):
            pass
        finding = await check_database(path)
        assert finding.verdict is Verdict.OK
        assert finding.found.startswith(f"{path}, sound, ")

    async def test_a_missing_one_is_not_made(self, tmp_path: Path) -> None:
        path = tmp_path / "new" / "meshai.db"
        assert (await check_database(path)).verdict is Verdict.OK
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("path", ["/proc/meshai/meshai.db", "/proc/meshai.db"])
    async def test_one_that_can_never_be_made(self, path: str) -> None:
        finding = await check_database(Path(path))
        assert finding.verdict is Verdict.FAIL
        assert f"{path} cannot be made: " in finding.found
        assert "set storage.path" in finding.remedy

    async def test_something_else_in_its_place(self, tmp_path: Path) -> None:
        path = tmp_path / "meshai.db"
        path.write_bytes(b"not a database at all " * 100)
        finding = await check_database(path)
        assert finding.verdict is Verdict.FAIL
        assert str(path) in finding.found
        assert finding.remedy

    async def test_a_damaged_one(self, tmp_path: Path) -> None:
        path = tmp_path / "meshai.db"
        async with open_database(path) as database, database.transaction() as db:
            await db.execute("CREATE TABLE t (a)")
            await db.executemany("INSERT INTO t VALUES (?)", [("x" * 500,) for _ in range(200)])
            await db.execute("CREATE INDEX i ON t (a)")
        raw = bytearray(path.read_bytes())
        raw[-3 * 4096 : -2 * 4096] = os.urandom(4096)
        path.write_bytes(raw)
        finding = await check_database(path)
        assert finding.verdict is Verdict.FAIL
        assert finding.remedy

    @pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
    async def test_a_folder_that_cannot_be_written(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o500)
        finding = await check_database(tmp_path / "meshai.db")
        tmp_path.chmod(0o700)
        assert finding.verdict is Verdict.FAIL
        assert "set storage.path" in finding.remedy

    @pytest.mark.parametrize(
        ("free", "verdict"),
        [(LEAST_FREE - 1, Verdict.FAIL), (LITTLE_FREE - 1, Verdict.WARN), (LITTLE_FREE, Verdict.OK)],
    )
    def test_room(self, tmp_path: Path, free: int, verdict: Verdict) -> None:
        assert check_disk(tmp_path / "a" / "b.db", free).verdict is verdict

    def test_the_room_there_is(self, tmp_path: Path) -> None:
        assert f" MB free at {tmp_path}" in check_disk(tmp_path / "a" / "b.db").found


class TestClock:
    NOW = 1_800_000_000.0

    @pytest.mark.parametrize(
        ("now", "is_set", "heard_at", "verdict", "told"),
        [
            (NOW, True, NOW - 5, Verdict.OK, "kept right by a time server"),
            (NOW, None, None, Verdict.OK, "2027-01-15 08:00 UTC"),
            (NOW, False, NOW, Verdict.WARN, "not kept right"),
            (NOW, True, NOW + 3600, Verdict.WARN, "the radio's is 60 min ahead"),
            (NOW, True, NOW - 10_000_000, Verdict.OK, ""),
            (86_400.0, True, None, Verdict.FAIL, "1970-01-02 00:00 UTC: never set"),
        ],
    )
    def test_verdicts(
        self, now: float, is_set: bool | None, heard_at: float | None, verdict: Verdict, told: str
    ) -> None:
        finding = check_clock(now, is_set, heard_at)
        assert finding.verdict is verdict
        assert told in finding.found
        assert bool(finding.remedy) is (verdict is not Verdict.OK)

    def test_the_kernel_is_asked(self) -> None:
        assert is_synchronised() in (True, False, None)


def config(folder: Path, *, address: str, base_url: str = "") -> Config:
    return Config(
        radio=RadioSettings(address=address),
        channels=ChannelSettings(answer_on=(1,)),
        model=ModelSettings(base_url=base_url, name="fake", embedded="off"),
        storage=StorageSettings(path=folder / "meshai.db"),
    )


async def test_all_together(node_port: int, clock: ScaledClock, tmp_path: Path) -> None:
    async with HttpServer.answering(completion()) as server:
        settings = config(tmp_path, address=f"tcp:127.0.0.1:{node_port}", base_url=f"{server.url}/v1")
        findings = await examine(settings, wait_s=60, clock=clock)
    assert [finding.subject for finding in findings] == [
        "radio",
        "region",
        "key",
        "channels",
        "model",
        "database",
        "disk",
        "clock",
    ]
    assert not [finding for finding in findings[:-2] if finding.verdict is not Verdict.OK]


async def test_the_radio_of_a_running_bot_is_left_alone(node_port: int, clock: ScaledClock, tmp_path: Path) -> None:
    settings = config(tmp_path, address=f"tcp:127.0.0.1:{node_port}")
    path = tmp_path / "meshai.db"
    async with alone(path), open_database(path):
        findings = by_subject(await examine(settings, wait_s=60, clock=SystemClock()))
    assert findings["radio"].verdict is Verdict.WARN
    assert "the bot is running" in findings["radio"].found
    assert findings["database"].verdict is Verdict.OK
    assert findings["model"].verdict is Verdict.WARN


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    path = folder / "config.yaml"
    path.write_text(
        f"radio: {{address: /dev/no-such-port}}\nmodel: {{embedded: off}}\nstorage: {{path: {folder}/meshai.db}}\n"
    )
    return subprocess.run(
        [sys.executable, "-m", "meshai", "--config", path, "check", "--wait", "1", *options],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[2]), "COLUMNS": "200"},
        timeout=60,
        check=False,
    )


def test_a_failure_is_the_exit_code_and_the_table_names_the_remedy(tmp_path: Path) -> None:
    result = run(tmp_path)
    assert result.returncode == 1, result.stderr
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in result.stdout.splitlines() if "│" in line]
    told = {row[1]: row for row in rows}
    assert told["settings"][0] == "ok"
    assert told["radio"][0] == "fail"
    assert "is the radio plugged in" in " ".join(told["radio"])
    assert told["model"][0] == "warn"


def test_in_a_narrow_terminal_nothing_is_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    path = "/var/lib/" + "a-folder-with-a-long-name/" * 6
    show([Finding("model", Verdict.FAIL, path, f"meshai model fetch --models {path}")], as_json=False)
    shown = capsys.readouterr().out
    assert "…" not in shown
    cells = [line.split("│")[1:-1] for line in shown.splitlines() if "│" in line]
    assert path in "".join(row[2].strip() for row in cells)


def test_wrong_settings_are_a_finding_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("radio:\n  adress: x\n")
    result = CliRunner().invoke(main, ["--config", str(tmp_path / "config.yaml"), "check", "--json"])
    assert result.exit_code == 2
    (finding,) = json.loads(result.output)
    assert (finding["subject"], finding["verdict"]) == ("settings", "fail")
    assert "config.yaml:2: radio.adress: unknown key" in finding["found"]


def test_json(tmp_path: Path) -> None:
    result = run(tmp_path, "--json")
    assert result.returncode == 1, result.stderr
    findings = {finding["subject"]: finding for finding in json.loads(result.stdout)}
    assert findings["radio"]["verdict"] == "fail"
    assert findings["database"]["verdict"] == "ok"
    assert set(findings["clock"]) == {"subject", "verdict", "found", "remedy"}
