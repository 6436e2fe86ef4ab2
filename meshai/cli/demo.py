"""`meshai demo`: the bot at work on a simulated mesh, with a few people on it and you among them."""

import asyncio
import random
import re
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click
from prompt_toolkit.patch_stdout import patch_stdout
from rich.console import Console

from meshai import app
from meshai.cli import logs, thinking
from meshai.cli.airview import AirView
from meshai.cli.model import fetch_shown
from meshai.cli.params import picture, seconds
from meshai.clock import Clock, ScaledClock, SystemClock
from meshai.config import Config, ModelSettings, RadioSettings, StorageSettings
from meshai.errors import ModelUnavailable
from meshai.loops import NoGuard
from meshai.messages import Channel, Direct, NodeNum, node_id
from meshai.model import engine, weights
from meshai.model.machine import free_memory
from meshai.notify import Notifier
from meshai.sim.air import OnAir
from meshai.sim.mesh import SimulatedMesh
from meshai.sim.peers import Peer
from meshai.sim.people import BOT_CHANNEL, VILLAGE_TALK, Line, say, villagers

CHANNELS: Final = ("", "MeshAI")
SVG_COLUMNS: Final = 118
LEAST_S: Final = 35.0
MOST_BYTES: Final = {True: 220, False: 232}
"""The longest text a node sends directly (True) and on a channel."""
KEPT: Final = 1000
"""Packets and texts the simulation remembers; a demo may run for days."""
PATIENCE_S: Final = 25.0
"""How long before the end of a timed demo the last line is spoken."""


def _long_enough(ctx: click.Context, option: click.Parameter, value: str | None) -> float | None:
    duration_s = seconds(ctx, option, value)
    if duration_s is not None and duration_s < LEAST_S:
        raise click.BadParameter(f"{value} is too short for anyone to be answered; {LEAST_S:.0f}s at least")
    return duration_s


@click.command(
    epilog="""\b
Examples:
  meshai demo
  meshai demo --small --for 60s"""
)
@click.option("--small", is_flag=True, help="Take the 98 MB test model, also where a better one fits.")
@click.option(
    "--for",
    "duration_s",
    callback=_long_enough,
    metavar="TIME",
    help="End after this time (60s, 5m); the exit code is 0 only if everyone was answered.",
)
@click.option(
    "--svg",
    callback=picture,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Save what the terminal showed as a picture.",
)
@click.option("--speed", type=click.FloatRange(0.1, 100), default=1.0, help="How much faster than life time runs.")
@click.option("--seed", type=int, default=1, show_default=True, help="Another seed, other chances of the radio.")
def demo(*, small: bool, duration_s: float | None, svg: Path | None, speed: float, seed: int) -> None:
    """Watch the bot answer people on a simulated mesh, and talk to it yourself.

    Needs no radio. The first time, a language model is fetched (98 MB or 1.1 GB).
    """
    logs.set_up("error", is_journal=False)
    # A picture wants colours and a width also where no terminal shows them.
    console = Console(highlight=False) if svg is None else Console(highlight=False, record=True, width=SVG_COLUMNS)
    model = _model(console, small=small)
    clock = SystemClock() if speed == 1 else ScaledClock(speed)
    stage = _Stage(console, clock=clock, rng=random.Random(seed), model=model, duration_s=duration_s)
    code = asyncio.run(stage.run())
    if svg is not None:
        console.save_svg(str(svg), title="meshai demo")
    sys.exit(code)


def _model(console: Console, *, small: bool) -> str:
    """The name of the model that will talk, fetched if need be, and how good it is in plain words."""
    if trouble := engine.trouble():
        raise ModelUnavailable(trouble)
    wanted = (None if small else weights.choose(free_memory())) or weights.SMOLLM2
    folder = weights.models_dir()
    if not any(model.is_present for model in weights.local_models(folder) if model.name == wanted.name):
        fetch_shown(wanted, folder, console)
    console.print(f"Talking: [bold]{wanted.name}[/bold]. How good it is: {wanted.verdict}.")
    return wanted.name


class _Stage:
    """One performance: a mesh, its people, the bot, and whoever sits at the keyboard."""

    def __init__(
        self, console: Console, *, clock: Clock, rng: random.Random, model: str, duration_s: float | None
    ) -> None:
        self._console = console
        self._clock = clock
        self._rng = rng
        self._model = model
        self._duration_s = duration_s
        self._stop = asyncio.Event()
        self._names: dict[NodeNum, str] = {}
        self._view = AirView(
            console, lambda number: self._names.get(number, node_id(number)), CHANNELS, wraps=console.record
        )
        self._spoken: asyncio.Queue[OnAir] = asyncio.Queue()
        self._asked: list[tuple[Peer, int]] = []
        """Who of the scripted people asked, with the question's packet id."""
        self._speakers: dict[int, Peer] = {}
        """Whoever said something, by its packet id."""
        self._apologies = 0

    async def run(self) -> int:
        """Play until the time is over or somebody ends it; returns the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)
        mesh = SimulatedMesh(clock=self._clock, rng=self._rng, observer=self._on_air, keep_last=KEPT)
        with tempfile.TemporaryDirectory(prefix="meshai-demo-") as folder:
            async with mesh:
                node = mesh.node("MeshAI", "MAI", channels=CHANNELS)
                people, you = villagers(mesh), mesh.peer("You", "YOU", snr=9.0)
                self._names = {peer.number: peer.identity.long_name for peer in (*people, you)}
                self._names[node.number] = "MeshAI"
                self._view.bot = node.number
                config = Config(
                    radio=RadioSettings(address=f"tcp:127.0.0.1:{await node.listen_tcp()}"),
                    model=ModelSettings(embedded=self._model),
                    storage=StorageSettings(path=Path(folder) / "demo.db"),
                )

                async def watch(parts: app.Parts) -> None:
                    try:
                        await self._play(parts, people, you)
                    finally:
                        self._apologies = parts.responder.apologies
                        self._stop.set()

                await app.run(
                    config,
                    clock=self._clock,
                    rng=self._rng,
                    stop=self._stop,
                    notifier=Notifier({}),
                    loop_guard=NoGuard(),
                    watch=watch,
                )
        return self._verdict()

    def _on_air(self, packet: OnAir) -> None:
        self._view.on_air(packet)
        if packet.is_text and packet.by == self._view.bot:
            self._spoken.put_nowait(packet)

    async def _play(self, parts: app.Parts, people: list[Peer], you: Peer) -> None:
        await parts.radio.ready()
        self._view.note(f"The bot is attached to a node by TCP; it listens on #{BOT_CHANNEL} and to direct messages.")

        def is_thinking() -> bool:
            return parts.responder.asking > 0

        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._note_memory(parts), name="memory"),
                group.create_task(self._talk(people), name="talk"),
            ]
            is_typed = self._duration_s is None and sys.stdin.isatty()
            if not is_typed and not self._console.record:
                tasks.append(group.create_task(thinking.show(self._console, is_thinking), name="thinking"))
            if self._duration_s is not None:
                await self._clock.sleep(self._duration_s)
            elif is_typed:
                await self._keyboard(you, is_thinking)
            else:
                await self._stop.wait()
            for task in tasks:
                task.cancel()

    async def _talk(self, people: list[Peer]) -> None:
        """The people say their lines; in a timed demo the last one early enough for an answer."""
        end = None if self._duration_s is None else self._clock.monotonic() + self._duration_s - PATIENCE_S
        for line in VILLAGE_TALK:
            await self._clock.sleep(line.after_s)
            if end is not None and self._clock.monotonic() > end:
                return
            await self._say(line, people[line.speaker])

    async def _say(self, line: Line, peer: Peer) -> None:
        packet_id = await say(line, peer)
        self._speakers[packet_id] = peer
        if line.wants_answer:
            self._asked.append((peer, packet_id))

    async def _keyboard(self, you: Peer, is_thinking: Callable[[], bool]) -> None:
        """What you type is sent by your node, until you end it."""
        self._view.note(
            f"You are on the mesh too: type to write to MeshAI directly, #{BOT_CHANNEL} TEXT to speak on the channel "
            "(@MeshAI addresses the bot), !help for commands. Ctrl-D ends.",
            "bold",
        )
        prompt = thinking.prompt(is_thinking)
        with patch_stdout(raw=True):
            self._console.file = sys.stdout
            while not self._stop.is_set():
                try:
                    text = (await prompt.prompt_async()).strip()
                except (EOFError, KeyboardInterrupt):
                    return
                if text:
                    await self._say_typed(text, you)

    async def _say_typed(self, text: str, you: Peer) -> None:
        """Send a typed line as its beginning says, unless no node could."""
        channel = None
        if match := re.match(r"#(\d+)\s*(.*)", text, re.DOTALL):
            channel, text = int(match[1]), match[2]
            if channel >= len(CHANNELS) or not text:
                self._view.note(
                    f"There are the channels #0 (primary) and #{BOT_CHANNEL}; write #{BOT_CHANNEL} TEXT.", "red"
                )
                return
        size, most = len(text.encode()), MOST_BYTES[channel is None]
        if size > most:
            self._view.note(f"That is {size} bytes; one packet carries {most}. Not sent.", "red")
            return
        await self._say(Line(0, text, 0, channel=channel, wants_answer=False), you)

    async def _note_memory(self, parts: app.Parts) -> None:
        """After each answer, tell how much is remembered of the talk with that person."""
        shown: dict[tuple[Direct | Channel, NodeNum], int] = {}
        while True:
            packet = await self._spoken.get()
            await self._clock.sleep(0.2)
            peer = self._speakers.get(packet.reply_id)
            if peer is None:
                continue
            place = Direct(peer.number) if packet.to == peer.number else Channel(packet.channel)
            count = await parts.memory.count(place, peer.number)
            if shown.get((place, peer.number), 0) != count:
                shown[place, peer.number] = count
                where = f" on #{place.index}" if isinstance(place, Channel) else ""
                self._view.note(f"≡ remembers {count} lines of the talk with {self._names[peer.number]}{where}")

    def _verdict(self) -> int:
        answered = sum(any(heard.reply_id == packet_id for heard in peer.inbox) for peer, packet_id in self._asked)
        is_good = 0 < len(self._asked) == answered and not self._apologies
        told = f"{answered} of {len(self._asked)} questions answered"
        if self._apologies:
            told += f", {self._apologies} by an apology, because the model gave no answer"
        self._view.note(told, "bold green" if is_good else "bold red")
        return 0 if is_good or self._duration_s is None else 1
