"""Start, memory and time per message of the bot, in a process of its own against a simulated node over TCP.

    python -m benchmarks.core [--quick] [--json FILE]

The model is a local server that answers at once, and texts are put straight into the node's queue for its client, so
that what is measured is ours: neither the model's time nor the air's.
"""

import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from rich.progress import Progress

from benchmarks.report import Row, options, show
from meshai.clock import ScaledClock
from meshai.sim.mesh import SimulatedMesh
from meshai.sim.node import SimulatedNode
from meshai.sim.packets import TEXT, make_packet
from meshai.sim.peers import Peer
from tests.model.serving import HttpServer, completion

SPEED = 1000.0
"""The node's time, so that its two seconds between texts are two milliseconds; all rows are in the machine's time."""
GAP_S = 0.003
IDLE_S = 11.0
"""Beyond the ten seconds in which the bot takes what comes for the radio's backlog."""
ANSWER_S = 20.0
"""A bot that takes longer for a short answer hangs."""


class Bench:
    """A simulated node with one peer, and what it takes to run a bot on it."""

    def __init__(self, node: SimulatedNode, peer: Peer, clock: ScaledClock, settings: Path) -> None:
        self.node, self.peer, self.clock, self.settings = node, peer, clock, settings
        self._answers = 0

    @asynccontextmanager
    async def bot(self, *command: str) -> AsyncIterator[asyncio.subprocess.Process]:
        """A bot that has just begun to listen."""
        process = await asyncio.create_subprocess_exec(sys.executable, *command, stderr=asyncio.subprocess.PIPE)
        assert process.stderr is not None
        try:
            while b"radio: connected" not in (line := await process.stderr.readline()):
                if not line:
                    raise RuntimeError("the bot ended before it listened")
            draining = asyncio.create_task(process.stderr.read())
            yield process
            process.terminate()
            await draining
            await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def ask(self, text: str) -> float:
        """Seconds from a text in the node's queue to the first packet of its answer at the node."""
        seen = len(self.node.handed_over)
        packet = make_packet(
            self.peer.number,
            self.node.number,
            TEXT,
            text.encode(),
            packet_id=self.node.firmware.air.new_packet_id(),
            pki=True,
        )
        packet.public_key = self.peer.identity.public_key
        started = self.clock.now()
        self.node.firmware.deliver(packet)
        async with asyncio.timeout(ANSWER_S):
            while len(self.node.handed_over) == seen:
                await asyncio.sleep(0.0002)
        took_s = (self.node.handed_over[seen].at - started) / SPEED
        await asyncio.sleep(2 * GAP_S)  # so that the next one does not wait for the pause between texts
        return took_s


def resident_mb(process: asyncio.subprocess.Process) -> float:
    """Resident memory of a process, in MB."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(process.pid)


@asynccontextmanager
async def bench(folder: Path, model: HttpServer) -> AsyncIterator[Bench]:
    clock = ScaledClock(SPEED)
    async with SimulatedMesh(clock=clock, rng=random.Random(1), preset="SHORT_TURBO") as mesh:
        node = mesh.node(idle_limit_s=None)
        peer = mesh.peer("Anna")
        settings = folder / "config.yaml"
        settings.write_text(
            f"radio: {{address: 'tcp:127.0.0.1:{await node.listen_tcp()}'}}\n"
            f"model: {{base_url: '{model.url}/v1', name: instant}}\n"
            f"storage: {{path: '{folder / 'meshai.db'}'}}\n"
        )
        yield Bench(node, peer, clock, settings)


async def measure(*, is_quick: bool) -> list[Row]:
    starts, messages = (3, 1000) if is_quick else (10, 10_000)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name, Progress() as progress:
        folder = Path(name)
        async with HttpServer.answering(completion("A short answer.")) as model, bench(folder, model) as made:
            task = progress.add_task("start to listening", total=starts)
            took: list[float] = []
            for _ in range(starts):
                started = time.perf_counter()
                async with made.bot("-m", "meshai", "--config", str(made.settings), "run"):
                    took.append(time.perf_counter() - started)
                progress.advance(task)
            rows.append(Row("start to listening, median", statistics.median(took), "s", 1.5))

            task = progress.add_task("messages", total=messages)
            async with made.bot("-m", "benchmarks.bot", str(made.settings), str(GAP_S)) as process:
                await asyncio.sleep(IDLE_S)
                rows.append(Row("resident, idle, model client loaded", resident_mb(process), "MB", 90))
                commands: list[float] = []
                questions: list[float] = []
                for number in range(messages):
                    if number % 2:
                        commands.append(await made.ask("!ping"))
                    else:
                        questions.append(await made.ask(f"question {number}?"))
                    progress.advance(task)
                rows.append(Row(f"resident, after {messages:,} messages", resident_mb(process), "MB", 90))
    for what, times in (("a command", commands), ("a question, model apart", questions)):
        rows += [Row(f"time added to {what}, {name}", value * 1000, "ms", goal) for name, value, goal in spread(times)]
    return rows


def spread(times: Sequence[float]) -> list[tuple[str, float, float | None]]:
    """Median and 99th percentile, with the goal of the latter in ms."""
    cuts = statistics.quantiles(times, n=100)
    return [("p50", cuts[49], None), ("p99", cuts[98], 20.0)]


if __name__ == "__main__":
    chosen = options(__doc__ or "")
    show("MeshAI core", asyncio.run(measure(is_quick=chosen.quick)), chosen.json)
