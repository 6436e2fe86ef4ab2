"""kill -9 at random moments: nothing noted is lost, nothing is answered twice, every answer arrives whole."""

import asyncio
import itertools
import random
import re
import signal
import sqlite3
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from meshai.clock import ScaledClock
from meshai.messages import NodeNum
from meshai.sim.mesh import SimulatedMesh
from meshai.sim.node import SimulatedNode
from meshai.sim.packets import TEXT
from meshai.sim.peers import Peer
from tests.acceptance.bots import Bots
from tests.model.serving import Answer, Asked, HttpServer, completion

WORDS: Final = 30
"""Of a long answer, which fills three packets."""
PACKETS: Final = 3


class Question(NamedTuple):
    node: NodeNum
    packet_id: int


@dataclass
class Killing:
    """A mesh with people, the node and database of a bot that is killed, and what happened."""

    mesh: SimulatedMesh
    node: SimulatedNode
    people: list[Peer]
    database: Path
    rng: random.Random
    asked: dict[Question, int] = field(default_factory=dict)
    """The number that stands in the text of each question."""
    killed_at: list[float] = field(default_factory=list)
    under_way: list[int] = field(default_factory=list)
    """Replies under way at each kill."""

    async def ask(self, person: Peer) -> None:
        number = len(self.asked)
        question = Question(person.number, self.mesh.air.new_packet_id())
        self.asked[question] = number
        await person.send_direct(f"question {number}", packet_id=question.packet_id)

    async def kill(self, bots: Bots, times: int, *, lives_s: tuple[float, float]) -> None:
        """Kill the running bot again and again, after so many seconds of the machine, and leave one running."""
        for _ in range(times):
            await asyncio.sleep(self.rng.uniform(*lives_s))
            self.under_way.append(under_way(self.database))
            self.killed_at.append(self.mesh.clock.now())
            assert await bots.end(signal.SIGKILL) == -signal.SIGKILL, bots.said
            await bots.start()

    async def check(self, bots: Bots) -> tuple[int, int]:
        """Let the last bot finish, and check all that was said; returns how many texts were lost with a process that
        lived when it was given them, and how many were given to one that was dead already.
        """
        async with asyncio.timeout(120):
            while self.node.connects[-1] < self.killed_at[-1] or len(self.given()) < len(self.asked):
                await asyncio.sleep(0.2)
            await self.mesh.clock.sleep(30)  # the last text given is noted by then
            while under_way(self.database):
                await asyncio.sleep(0.2)
        assert await bots.end(signal.SIGTERM) == 0, bots.said
        assert "Traceback" not in bots.said
        noted = [Question(*row) for row in rows(self.database, "SELECT node, packet_id FROM heard")]
        lost = self.lost(set(noted))
        assert Counter(noted) == Counter(self.asked.keys() - lost.keys())
        questions = rows(self.database, "SELECT number, packet_id FROM turns WHERE NOT is_ours")
        assert Counter(Question(*row) for row in questions) == Counter(noted), "none was answered with an apology"
        assert len(rows(self.database, "SELECT id FROM turns WHERE is_ours")) == len(noted)
        self.check_answers(set(noted))
        late = sum(lag_s < 0 for lag_s in lost.values())
        return len(lost) - late, late

    def given(self) -> list[tuple[float, Question]]:
        """When the radio gave which question to a bot, in order."""
        return [(one.at, Question(one.sender, one.packet_id)) for one in self.node.given if one.port == TEXT]

    def lost(self, noted: set[Question]) -> dict[Question, float]:
        """The questions that no bot lived to note, and how long before its end the radio gave them to one.

        What the radio has given is out of its hands: it gives a text once. So these, and only these, cannot be heard.
        """
        given = self.given()
        assert Counter(question for _, question in given) == Counter(self.asked.keys()), "the radio gave each once"
        lost: dict[Question, float] = {}
        for kill, texts in itertools.groupby(given, key=lambda text: self.kill_after(text[0])):
            in_order = list(texts)
            is_noted = [question in noted for _, question in in_order]
            assert is_noted == sorted(is_noted, reverse=True), "of what one bot was given, only the last can be lost"
            for at, question in in_order[sum(is_noted) :]:
                lost[question] = (self.killed_at[kill] - at) / self.speed
        return lost

    def kill_after(self, at: float) -> int:
        """Which kill ended the bot that was attached to the node then; its bytes may come a moment after its end."""
        connected_at = self.node.connects[bisect_right(self.node.connects, at) - 1]
        return bisect_left(self.killed_at, connected_at)

    @property
    def speed(self) -> float:
        assert isinstance(self.mesh.clock, ScaledClock)
        return self.mesh.clock.speed

    def check_answers(self, noted: set[Question]) -> None:
        """Whatever was noted is answered whole, in order, by one reply, with each part read once."""
        read: dict[Question, list[str]] = {}
        for person in self.people:
            for text in person.inbox:
                read.setdefault(Question(person.number, text.reply_id), []).append(text.text)
        assert read.keys() == noted
        for question, texts in read.items():
            assert is_whole(texts, self.asked[question]), texts

    def repeats(self) -> Counter[int]:
        """How many packets each kill made doubtful, so that they were handed over once more with their id."""
        sent: dict[int, int] = {}
        repeats: Counter[int] = Counter()
        for handed in self.node.handed_over:
            if handed.port != TEXT or handed.refusal:
                continue
            if handed.packet_id in sent:
                kill = sent[handed.packet_id]
                assert kill < self.kill_after(handed.at), "nothing is repeated without a kill in between"
                repeats[kill] += 1
            sent[handed.packet_id] = self.kill_after(handed.at)
        return repeats


def slow_model(clock: ScaledClock, rng: random.Random, *, longest_s: float) -> HttpServer:
    """A model that thinks for a while, and never gives the same answer twice."""
    count = itertools.count()

    async def handler(asked: Asked, writer: asyncio.StreamWriter) -> Answer:
        number = int(asked.json["messages"][-1]["content"].split("question ")[-1])
        await clock.sleep(rng.uniform(0, longest_s))
        return Answer(completion(answer_to(number, next(count))))

    return HttpServer(handler)


def answer_to(number: int, count: int) -> str:
    """Every fifth is short, the others fill three packets; the words tell which answer each part is of."""
    return " ".join(f"q{number:03}a{count:03}w{word:02}" for word in range(WORDS if number % 5 else 3))


def is_whole(texts: list[str], number: int) -> bool:
    """Whether texts, as read in order, are one answer to this question with every part once."""
    parts = len(texts)
    marks = [f"({part}/{parts}) " if parts > 1 else "" for part in range(1, parts + 1)]
    found = re.search(r"a(\d+)w", texts[0])
    if found is None or not all(text.startswith(mark) for text, mark in zip(texts, marks, strict=True)):
        return False
    said = " ".join(text.removeprefix(mark) for text, mark in zip(texts, marks, strict=True))
    return parts == (PACKETS if number % 5 else 1) and said == answer_to(number, int(found[1]))


@asynccontextmanager
async def killing_at(
    speed: float, folder: Path, *, people: int, preset: str, slowest_s: float
) -> AsyncIterator[tuple[Killing, Bots]]:
    """A mesh, a model and a bot that runs, in time `speed` times as fast as the machine's."""
    clock = ScaledClock(speed)
    async with (
        # Quick packets, for the bot shortens its answers on a channel that is busy for a quarter of the time.
        SimulatedMesh(clock=clock, rng=random.Random(6), preset=preset, interference=False) as mesh,
        slow_model(clock, random.Random(7), longest_s=slowest_s) as model,
    ):
        node = mesh.node("MeshAI", "MAI", channels=("", "bots"))
        told: dict[str, object] = {
            "node_port": await node.listen_tcp(),
            "model_url": f"{model.url}/v1",
            "folder": str(folder),
            "speed": clock.speed,
            "start": clock.start,
            "origin": clock.origin,
        }
        persons = [mesh.peer(f"Person {number}", role="CLIENT_MUTE") for number in range(people)]
        async with Bots.of(told, folder / "log") as bots:
            await bots.start()
            async with asyncio.timeout(20):
                while not node.connects:
                    await asyncio.sleep(0.01)
            yield Killing(mesh, node, persons, folder / "meshai.db", random.Random(8)), bots


def under_way(database: Path) -> int:
    """Questions without an answer yet, and answers not wholly sent."""
    (counts,) = rows(
        database,
        "SELECT (SELECT count(*) FROM heard WHERE message IS NOT NULL),"
        " (SELECT count(DISTINCT exchange) FROM outbox WHERE NOT is_settled)",
    )
    return sum(counts)


def rows(database: Path, query: str) -> list[tuple[int, ...]]:
    """Read beside the bot, or after it was killed, and leave to the next one what is to be recovered."""
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_fifty_kills_during_two_hundred_messages(tmp_path: Path) -> None:
    async with killing_at(40, tmp_path, people=20, preset="SHORT_SLOW", slowest_s=20) as (killing, bots):

        async def talk() -> None:
            for person in itertools.islice(itertools.cycle(killing.people), 200):
                await killing.ask(person)
                await killing.mesh.clock.sleep(killing.rng.uniform(3, 19))

        async with asyncio.TaskGroup() as both:
            both.create_task(talk())
            both.create_task(killing.kill(bots, 50, lives_s=(0.05, 2.0)))
        lost, late = await killing.check(bots)
        repeats = killing.repeats()
    print(f"{lost} texts lost with a process, {late} given to a dead one, {repeats.total()} packets repeated on air")
    assert lost <= 20
    assert repeats.total() <= 50


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_two_hundred_kills_while_fifty_replies_are_under_way(tmp_path: Path) -> None:
    async with killing_at(30, tmp_path, people=60, preset="SHORT_TURBO", slowest_s=2) as (killing, bots):
        clock, database = killing.mesh.clock, killing.database

        async def talk() -> None:
            for person in itertools.cycle(killing.people):
                await killing.ask(person)
                await clock.sleep(1)  # more than 32 at once would push each other out of the node's queue
                while under_way(database) + len(killing.asked) - len(killing.given()) >= 55:
                    await clock.sleep(1)
                if len(killing.killed_at) == 200:
                    return

        async with asyncio.TaskGroup() as both:
            both.create_task(talk())
            async with asyncio.timeout(60):
                while under_way(database) < 50:
                    await clock.sleep(1)
            await killing.kill(bots, 200, lives_s=(0.1, 0.6))
        lost, late = await killing.check(bots)
        repeats = killing.repeats()
    print(f"{lost} texts lost with a process, {late} given to a dead one, {repeats.total()} packets repeated on air")
    assert min(killing.under_way) >= 50
    assert lost <= 50
    assert repeats.total() <= 200
