"""A day of the bot in a busy town: a hundred nodes that talk, relays, links that come and go, a radio that is lost.

    python -m benchmarks.day [--quick] [--json FILE]

The bot runs with its default limits, through the radio's library and a simulated node, on the true channel of the
topology `town`: collisions, hidden nodes, another bot that answers everything. People ask it directly and on a channel,
and send commands; every few minutes two stations stop hearing each other for a while, and about once an hour the link
between the bot and its node breaks in one of eight ways. Virtual time, which jumps over every wait.

A question counts from when the bot heard it. Its answer is a packet on air in reply to it; a refusal is a line of the
log that says why there is none. Memory, threads, tasks and files are those of the whole process, the simulator
included, and compared between the middle and the end. `--quick` is two hours of the day, in about 20 s; the whole one
takes about five minutes.
"""

import asyncio
import logging
import os
import random
import re
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import Progress

from benchmarks.jumping import JumpingLoop, LoopClock
from benchmarks.report import Row, options, show
from meshai.app import Parts
from meshai.clock import Clock
from meshai.config import AirtimeSettings
from meshai.errors import NotDelivered
from meshai.messages import NodeNum
from meshai.sim.air import Cause, OnAir
from meshai.sim.faults import LinkFault
from meshai.sim.links import Link
from meshai.sim.mesh import SimulatedMesh
from meshai.sim.node import SimulatedNode
from meshai.sim.peers import Peer
from meshai.sim.topology import load
from tests.acceptance.bot import config, echoing, running

HOUR_S: Final = 3600.0
DAY_HOURS: Final = 24
QUICK_HOURS: Final = 2
SEED: Final = 3
QUESTION_EVERY_S: Final = 75.0
FLAP_EVERY_S: Final = 120.0
FAULT_EVERY_S: Final = 3300.0
FAULTS: Final = (
    LinkFault.CLOSE,
    LinkFault.MUTE,
    LinkFault.RESET,
    LinkFault.REFUSE,
    LinkFault.HALF_OPEN,
    LinkFault.GARBAGE,
    LinkFault.REBOOT,
    LinkFault.CONFIG_SLOW,
)
BOT_CHANNEL: Final = 1
LIMIT_PERCENT: Final = AirtimeSettings().share_percent
HEARD: Final = re.compile(r"heard packet ([0-9a-f]{8}) .* bytes: (.*)")
UNANSWERED: Final = re.compile(
    r"(?:in reply to ([0-9a-f]{8}).*not (?:delivered|sent)|packet ([0-9a-f]{8}).*unanswered)"
)


@dataclass(slots=True)
class Size:
    """What may grow in a program that runs for months."""

    resident_mb: float
    threads: int
    tasks: int
    files: int

    @classmethod
    def now(cls) -> "Size":
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return cls(
            pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
            threading.active_count(),
            len(asyncio.all_tasks()),
            len(os.listdir("/proc/self/fd")),
        )


class OwnShare(logging.Handler):
    """Watches what our node's client texts take of the air, and what the log says of each question."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(logging.INFO)
        self._clock = clock
        self._hour: deque[tuple[float, float]] = deque()
        self.node: NodeNum = 0
        self.most_s = 0.0
        self.spent_s = 0.0
        self.answered: set[int] = set()
        self.meaning: dict[int, str] = {}
        self.refused: dict[int, str] = {}
        self.tracebacks = 0

    def on_air(self, packet: OnAir) -> None:
        if packet.by != self.node or not packet.is_text or packet.cause not in (Cause.CLIENT, Cause.RESEND):
            return
        self.answered.add(packet.reply_id)
        self._hour.append((packet.at, packet.airtime_s))
        while self._hour[0][0] <= packet.at - HOUR_S:
            self._hour.popleft()
        self.spent_s += packet.airtime_s
        self.most_s = max(self.most_s, sum(airtime_s for _, airtime_s in self._hour))

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info:
            self.tracebacks += 1
        if found := HEARD.search(text):
            self.meaning.setdefault(int(found[1], 16), found[2])
        elif found := UNANSWERED.search(text):
            self.refused[int(found[1] or found[2], 16)] = text


@dataclass(slots=True)
class Town:
    """The people who ask, and what goes wrong around them."""

    mesh: SimulatedMesh
    node: SimulatedNode
    clock: Clock
    rng: random.Random
    asked: list[int] = field(default_factory=list)

    async def live(self, until: float) -> None:
        """Ask, cut links and break the radio's connection until that moment."""
        async with asyncio.TaskGroup() as life:
            for work in (self._asking, self._flapping, self._breaking):
                life.create_task(self._until(until, work))

    async def _until(self, until: float, work: Callable[[], Awaitable[None]]) -> None:
        with suppress(TimeoutError):
            async with self.clock.timeout(until - self.clock.monotonic()):
                while True:
                    await work()

    async def _asking(self) -> None:
        await self.clock.sleep(self.rng.expovariate(1 / QUESTION_EVERY_S))
        peer = self.rng.choice(self._people)
        number = len(self.asked)
        with suppress(NotDelivered):
            match self.rng.random():
                case roll if roll < 0.55:
                    packet_id = await peer.send_direct(f"question {number}: which way to the ridge?")
                case roll if roll < 0.8:
                    packet_id = await peer.send_channel(BOT_CHANNEL, f"@MeshAI question {number}: any news?")
                case roll if roll < 0.9:
                    packet_id = await peer.send_direct("!ping")
                case _:
                    packet_id = await peer.send_channel(BOT_CHANNEL, "!status")
            self.asked.append(packet_id)

    async def _flapping(self) -> None:
        """Two stations stop hearing each other, and hear each other again later."""
        await self.clock.sleep(self.rng.expovariate(1 / FLAP_EVERY_S))
        links = self.mesh.air.channel.links
        one = self.rng.choice([peer.number for peer in self._people] + [self.node.number])
        if not (around := links.of(one)):
            return
        other = self.rng.choice(list(around))
        there, back = around[other], links.of(other).get(one)
        links.cut(one, other)
        asyncio.get_running_loop().call_later(
            self.rng.uniform(60, 1800), lambda: links.connect(one, other, there, back=back or Link(loss=1.0))
        )

    async def _breaking(self) -> None:
        await self.clock.sleep(self.rng.expovariate(1 / FAULT_EVERY_S))
        await self.node.fault(self.rng.choice(FAULTS), seconds=self.rng.uniform(5, 120))

    @property
    def _people(self) -> Sequence[Peer]:
        return [peer for peer in self.mesh.peers.values() if peer.identity.short_name.startswith("T")]


async def measure(hours: int, advance: Callable[[], None]) -> list[Row]:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, JumpingLoop)
    clock = LoopClock(loop)
    watch = OwnShare(clock)
    logging.basicConfig(level=logging.INFO, handlers=[watch])
    topology = load("town")
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        async with (
            topology.mesh(clock=clock, rng=random.Random(SEED), observer=watch.on_air, keep_last=30) as mesh,
            echoing() as model,
        ):
            node = topology.settle(mesh, channels=("", "bots"))
            watch.node = node.number
            settings = config(node_port=await node.listen_tcp(), model_url=f"{model.url}/v1", folder=Path(folder))
            settings = settings.model_copy(update={"airtime": AirtimeSettings()})
            town = Town(mesh, node, clock, random.Random(SEED + 1))
            async with running(settings, clock, rng=random.Random(SEED + 2)) as parts:
                await parts.radio.ready()
                loop.jump()
                sizes = [Size.now()]
                for _ in range(hours):
                    await town.live(clock.monotonic() + HOUR_S)
                    await _calm(parts, clock)
                    sizes.append(Size.now())
                    advance()
    return list(rows(town, watch, sizes, hours))


async def _calm(parts: Parts, clock: Clock) -> None:
    """Let what is under way end, so that sizes can be compared."""
    await clock.sleep(60)
    await parts.radio.ready()
    async with clock.timeout(1800):
        await parts.outbox.drained()
    await clock.sleep(60)


def rows(town: Town, watch: OwnShare, sizes: Sequence[Size], hours: int) -> list[Row]:
    heard = [packet_id for packet_id in town.asked if packet_id in watch.meaning]
    silent = {packet_id: watch.meaning[packet_id] for packet_id in heard if "silent" in watch.meaning[packet_id]}
    owed = [packet_id for packet_id in heard if packet_id not in silent]
    answered = [packet_id for packet_id in owed if packet_id in watch.answered]
    explained = [packet_id for packet_id in owed if packet_id not in watch.answered and packet_id in watch.refused]
    for packet_id in {*owed} - {*answered, *explained}:
        print(f"neither answered nor refused: {packet_id:08x}, {watch.meaning[packet_id]}", file=sys.stderr)
    middle, last = sizes[len(sizes) // 2], sizes[-1]
    return [
        Row("hours of virtual time", hours, "h"),
        Row("asked", len(town.asked), "questions"),
        Row("heard by the bot", len(heard), "questions"),
        Row("answered", len(answered), "questions"),
        Row("refused, with the reason in the log", len(silent) + len(explained), "questions"),
        Row("neither answered nor refused", len(owed) - len(answered) - len(explained), "questions", 0),
        Row("most of any hour on air, our texts", 100 * watch.most_s / HOUR_S, "%", LIMIT_PERCENT),
        Row("of the whole time on air, our texts", 100 * watch.spent_s / HOUR_S / hours, "%"),
        Row("refused by the node", len(town.node.firmware.refusals), "packets", 0),
        Row("tracebacks in the log", watch.tracebacks, "lines", 0),
        Row(
            "resident memory: growth in the second half",
            last.resident_mb - middle.resident_mb,
            "MB",
            None if hours < DAY_HOURS else 8,
        ),
        Row("threads: growth in the second half", last.threads - middle.threads, "", 0),
        Row("tasks: growth in the second half", last.tasks - middle.tasks, "", 0),
        Row("open files: growth in the second half", last.files - middle.files, "", 0),
        Row("losses of the link", len(town.node.connects) - 1, ""),
    ]


def main() -> None:
    chosen = options(__doc__ or "")
    hours = QUICK_HOURS if chosen.quick else DAY_HOURS
    with Progress(console=Console(stderr=True)) as progress, asyncio.Runner(loop_factory=JumpingLoop) as runner:
        task = progress.add_task("hours in the town", total=hours)
        result = runner.run(measure(hours, lambda: progress.advance(task)))
    show("A day in a busy town", result, chosen.json)


if __name__ == "__main__":
    main()
