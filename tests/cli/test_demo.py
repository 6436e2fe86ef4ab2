"""`meshai demo` unattended, with the real small model, and what its view shows."""

import asyncio
import io
import os
import sys
from pathlib import Path

import pytest
from rich.console import Console

from meshai.cli.airview import AirView
from meshai.messages import BROADCAST
from meshai.sim.air import Cause, OnAir

BOT, ANNA = 1, 2


@pytest.mark.slow
async def test_everyone_is_answered_and_told_who_is_talking(real_models: Path, tmp_path: Path) -> None:
    home = tmp_path / "share"
    (home / "meshai").mkdir(parents=True)
    (home / "meshai" / "models").symlink_to(real_models)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "meshai", "demo", "--small", "--for", "60s", "--speed", "2"),
        *("--svg", str(tmp_path / "demo.svg")),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "XDG_DATA_HOME": str(home)},
    )
    out, err = (text.decode() for text in await asyncio.wait_for(process.communicate(), 100))
    assert process.returncode == 0, out + err
    assert "Talking: smollm2-135m" in out
    assert "for tests only" in out
    assert "remembers 2 lines of the talk with Anna Weber" in out
    assert "✓ delivered to Anna Weber" in out
    assert err == ""
    assert "What is my dog called?" in (tmp_path / "demo.svg").read_text().replace("&#160;", " ")


def on_air(by: int = ANNA, to: int = BOT, **changes: object) -> OnAir:
    fields: dict[str, object] = {
        "at": 0.0,
        "by": by,
        "sender": by,
        "to": to,
        "packet_id": 9,
        "channel": 0,
        "port": 1,
        "payload": b"hi [bold]there\x1b[2J\n",
        "frame_bytes": 40,
        "airtime_s": 0.5,
        "cause": Cause.CLIENT,
        "reply_id": 0,
        "request_id": 0,
        "error": None,
        "is_tapback": False,
        "hop_limit": 3,
        "want_ack": True,
        "pki": True,
    }
    return OnAir(**(fields | changes))  # type: ignore[arg-type]


def shown(*packets: OnAir) -> str:
    out = io.StringIO()
    names = {BOT: "MeshAI", ANNA: "Anna"}
    view = AirView(Console(file=out, width=200), lambda number: names[number], ("", "bots"))
    view.bot = BOT
    for packet in packets:
        view.on_air(packet)
    return out.getvalue()


def test_a_text_is_shown_as_it_is_and_can_do_nothing_to_the_terminal() -> None:
    line = shown(on_air())
    assert "Anna → MeshAI: hi [bold]there [2J" in line
    assert "\x1b[2J" not in line
    assert "[19 B, 0.50 s on air]" in line


def test_channels_tapbacks_and_repetitions_are_told() -> None:
    assert "Anna on #1 bots: (reacts) 👍" in shown(
        on_air(to=BROADCAST, channel=1, is_tapback=True, payload="👍".encode())
    )
    assert "on air, again]" in shown(on_air(cause=Cause.RESEND))
    assert shown(on_air(cause=Cause.RELAY)) == ""


def test_only_the_fate_of_the_bots_own_texts_is_told() -> None:
    said = on_air(by=BOT, to=ANNA, packet_id=7)
    ack = on_air(port=5, payload=b"", error=0, request_id=7)
    assert "✓ delivered to Anna" in shown(said, ack)
    assert "✓" not in shown(ack)
    assert "✗ not taken by Anna (routing error 35)" in shown(said, on_air(port=5, payload=b"", error=35, request_id=7))
