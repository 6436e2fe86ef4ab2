"""People who ask a bot over a simulated air, and what they read: one cell of `benchmarks.delivery`."""

import asyncio
import itertools
import math
import random
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from meshai.airtime import Modem, text_frame_bytes
from meshai.chunker import CUT_MARK
from meshai.clock import Clock
from meshai.sim.air import OnAir
from meshai.sim.mesh import SimulatedMesh
from meshai.sim.node import SimulatedNode
from meshai.sim.peers import HeardText, Peer
from meshai.sim.topology import LinkSpec, NodeSpec, Topology

PEOPLE: Final = 5
CHATTERERS: Final = 8
CHATTER_MINUTES: Final = 5.0
TELEMETRY_MINUTES: Final = 10.0
PAUSE_PACKETS: Final = 40.0
"""Airtimes of a 150-byte text between two questions, times the square of the hops: the channel can carry that, for a
way of three hops takes three transmissions and, with loss, three tries."""
MOST_CHARACTERS: Final = 420
AFTERWARDS_S: Final = 180.0
"""How long the channel is watched after the bot has done: what is under way arrives."""
REFUSALS: Final = frozenset({"TOO_SOON", "RATE_LIMIT_EXCEEDED", "TOO_LARGE", "UNDECODABLE", "QUEUE_FULL"})
WORDS: Final = re.findall(
    r"\w+",
    "the ridge relay hears both valleys when its battery is warm and snow has left the panel so try again at noon with "
    "the long antenna and tell us what you heard",
)


@dataclass(frozen=True, slots=True)
class Setting:
    """The air of one cell."""

    hops: int
    loss: float
    preset: str
    is_chattering: bool

    def topology(self) -> Topology:
        """A line of relays with our node at one end and the people at the other, all of whom hear each other.

        Only the relays relay, so that every way has exactly `hops` links that lose packets.
        """
        relays = [f"R{number}" for number in range(1, self.hops)]
        people = [f"P{number}" for number in range(PEOPLE)]
        talkers = [f"C{number}" for number in range(CHATTERERS)] if self.is_chattering else []
        last = ["MAI", *relays][-1]
        ways = [
            *itertools.pairwise(["MAI", *relays]),
            *((last, person) for person in people),
            *itertools.combinations(people, 2),
            *self._around(talkers, relays, people),
        ]
        return Topology(
            nodes=(
                NodeSpec("MAI", "MeshAI", role="CLIENT_MUTE", is_ours=True),
                *(NodeSpec(relay) for relay in relays),
                *(NodeSpec(person, role="CLIENT_MUTE") for person in people),
                *(
                    NodeSpec(
                        talker,
                        role="CLIENT_MUTE",
                        chatter_minutes=CHATTER_MINUTES,
                        telemetry_minutes=TELEMETRY_MINUTES,
                    )
                    for talker in talkers
                ),
            ),
            preset=self.preset,
            links=tuple(LinkSpec(way, loss=self.loss) for way in ways),
        )

    @staticmethod
    def _around(talkers: Sequence[str], relays: Sequence[str], people: Sequence[str]) -> list[tuple[str, str]]:
        """Half of the talkers live around our end, half around the people; with one hop that is one place."""
        near, far = ["MAI", *relays[:1]], [*(relays[1:2] or ["MAI"]), *people]
        if not relays:
            near = far
        ways = []
        for place, neighbours in ((near, talkers[::2]), (far, talkers[1::2])):
            ways += [(there, talker) for there in place for talker in neighbours]
            ways += itertools.combinations(neighbours, 2)
        return ways


def answer_to(question: str) -> str:
    """The answer to a question: of one to three parts, the same for every bot, by the number in the question."""
    number = int(re.findall(r"\d+", question)[-1])
    rng = random.Random(number)
    length = rng.randint(40, MOST_CHARACTERS)
    text = f"Answer {number}:"
    while len(text) < length:
        text += f" {' '.join(rng.choices(WORDS, k=rng.randint(3, 9)))} {number}."
    return text[:length].rsplit(" ", 1)[0]


@dataclass(slots=True)
class Question:
    number: int
    by: Peer
    asked_at: float
    heard_at: float | None = None
    packet_ids: list[int] = field(default_factory=list)

    @property
    def text(self) -> str:
        return f"question {self.number}"

    @property
    def answer(self) -> str:
        return answer_to(self.text)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the replies of one cell. Times and shares are in virtual time."""

    replies: int
    whole: int
    """Complete and in order, as the person read them."""
    shortened: int
    """Of those, cut to one packet with a mark that says so, because the channel was busy."""
    parts: int
    """Read by the people, each counted once."""
    repeated: int
    characters: int
    """Delivered, part numbers and repetitions apart."""
    all_characters: int
    """Of all answers."""
    own_texts_s: float
    """Airtime of our node's own texts, resends included."""
    least_s: float
    """The least airtime these answers can take, each part sent once."""
    caused_s: float
    """Airtime of everything that carried the answers: with relays and acks."""
    on_air_s: float
    """Airtime of our node."""
    busy_s: float
    """Airtime of everybody."""
    duration_s: float
    took_s: tuple[float, ...]
    """From when the bot's node had the question to the last part, for the whole replies."""
    refused: int

    @property
    def whole_percent(self) -> float:
        return 100 * self.whole / self.replies if self.replies else math.nan

    @property
    def repeated_percent(self) -> float:
        return 100 * self.repeated / self.parts if self.parts else math.nan

    @property
    def ms_per_character(self) -> float:
        return 1000 * self.own_texts_s / self.characters if self.characters else math.nan

    @property
    def over_least_percent(self) -> float:
        least_ms = 1000 * self.least_s / self.all_characters
        return 100 * (self.ms_per_character / least_ms - 1)

    @property
    def on_air_percent(self) -> float:
        return 100 * self.on_air_s / self.duration_s

    def took(self, quantile: float) -> float:
        times = sorted(self.took_s)
        return times[min(len(times) - 1, int(quantile * len(times)))] if times else math.nan


class _Reply:
    """What a person has read of the answer to one question."""

    def __init__(self, answer: str, texts: Sequence[HeardText]) -> None:
        self.texts = texts
        seen: dict[str, HeardText] = {}
        for heard in texts:
            seen.setdefault(_piece(heard.text), heard)
        self.first = list(seen.values())
        """Each part as it was read first."""
        joined = "".join(seen)
        self.is_shortened = joined.endswith(CUT_MARK)
        joined = _bare(joined.removesuffix(CUT_MARK))
        self.is_whole = joined == _bare(answer) or (self.is_shortened and _bare(answer).startswith(joined))
        self.characters = len(answer) if joined == _bare(answer) else sum(map(len, seen))


class Conversations:
    """Questions of several people, each asked until the bot has it, and what comes back."""

    def __init__(self, mesh: SimulatedMesh, node: SimulatedNode, setting: Setting, least: "Least") -> None:
        self._mesh = mesh
        self._node = node
        self._setting = setting
        self._least = least
        self._people = [peer for peer in mesh.peers.values() if peer.identity.short_name.startswith("P")]
        self._questions: list[Question] = []
        self._heard: dict[int, asyncio.Event] = {}

    def answer(self, text: str) -> str:
        """What the bot's model says; that it is asked shows that the question was heard."""
        number = int(re.findall(r"\d+", text)[-1])
        question = self._questions[number]
        if question.heard_at is None:
            question.heard_at = self._mesh.clock.now()
            self._heard[number].set()
        return question.answer

    async def ask(self, count: int, finished: Callable[[], Awaitable[None]], advance: Callable[[], None]) -> Outcome:
        """Ask `count` questions one after the other, and return when the bot has `finished` with all."""
        clock = self._mesh.clock
        modem = self._mesh.air.modem
        pause_s = PAUSE_PACKETS * modem.airtime_s(text_frame_bytes(150, is_direct=True)) * self._setting.hops**2
        began = clock.now()
        async with asyncio.TaskGroup() as asking:
            for number in range(count):
                question = Question(number, self._people[number % len(self._people)], clock.now())
                self._questions.append(question)
                self._heard[number] = asyncio.Event()
                asking.create_task(self._ask_until_heard(question, modem, clock))
                await clock.sleep(pause_s)
                advance()
        await finished()
        await clock.sleep(AFTERWARDS_S)
        return self._outcome(began)

    async def _ask_until_heard(self, question: Question, modem: Modem, clock: Clock) -> None:
        """A person who gets no answer asks again, but not before the radio has given up."""
        patience_s = modem.ack_wait_s(text_frame_bytes(len(question.text), is_direct=True))
        while question.heard_at is None:
            question.packet_ids.append(await question.by.send_direct(question.text))
            try:
                async with clock.timeout(patience_s):
                    await self._heard[question.number].wait()
            except TimeoutError:
                continue

    def _outcome(self, began: float) -> Outcome:
        read = self._read()
        replies = [(question, _Reply(question.answer, read[question.number])) for question in self._questions]
        whole = [(question, reply) for question, reply in replies if reply.is_whole]
        log = self._mesh.log
        own = [entry for entry in log if entry.by == self._node.number]
        ids = {entry.packet_id for entry in own if entry.is_text}
        return Outcome(
            replies=len(self._questions),
            whole=len(whole),
            shortened=sum(reply.is_shortened for _, reply in whole),
            parts=sum(len(reply.first) for _, reply in replies),
            repeated=sum(len(reply.texts) - len(reply.first) for _, reply in replies),
            characters=sum(reply.characters for _, reply in replies),
            own_texts_s=sum(entry.airtime_s for entry in own if entry.is_text),
            all_characters=sum(len(question.answer) for question in self._questions),
            least_s=sum(self._least.airtime_s(question.answer) for question in self._questions),
            caused_s=sum(entry.airtime_s for entry in log if _carries(entry, ids)),
            on_air_s=sum(entry.airtime_s for entry in own),
            busy_s=sum(entry.airtime_s for entry in log),
            duration_s=self._mesh.clock.now() - began,
            took_s=tuple(reply.first[-1].at - (question.heard_at or 0) for question, reply in whole),
            refused=sum(handed.refusal in REFUSALS for handed in self._node.firmware.refusals),
        )

    def _read(self) -> dict[int, list[HeardText]]:
        """What was read of each answer, in order. What names no question belongs to the newest it is a piece of."""
        read: dict[int, list[HeardText]] = defaultdict(list)
        by_id = {packet_id: question for question in self._questions for packet_id in question.packet_ids}
        for person in self._people:
            own = [question for question in self._questions if question.by is person]
            for heard in person.inbox:
                if heard.sender != self._node.number:
                    continue
                question = by_id.get(heard.reply_id) or next(
                    (
                        question
                        for question in reversed(own)
                        if question.heard_at is not None
                        and question.heard_at <= heard.at
                        and _bare(_piece(heard.text)) in _bare(question.answer)
                    ),
                    None,
                )
                if question is not None:
                    read[question.number].append(heard)
        return read


def _carries(entry: OnAir, ids: set[int]) -> bool:
    """Whether it is a text of ours or an ack of one, from whomever."""
    return entry.packet_id in ids or entry.request_id in ids


def _piece(text: str) -> str:
    """A part without its number."""
    return re.sub(r"^\(\d+/\d+\) ", "", text)


def _bare(text: str) -> str:
    """Without white space, which a cut may hide."""
    return re.sub(r"\s", "", text)


@dataclass(slots=True)
class Least:
    """The least airtime of an ASCII text in numbered parts, as few as can be.

    A space at each cut is not sent. Cuts inside words count as allowed, so that no real cutting can be better.
    """

    modem: Modem
    part_characters: int
    number: str = "(1/2) "
    """What stands before each part; empty for a bot that does not number."""
    _known: dict[tuple[int, int], float] = field(default_factory=dict)

    def airtime_s(self, text: str) -> float:
        if len(text) <= self.part_characters:
            return self._shared(len(text), 1)
        room = self.part_characters - len(self.number)
        parts = math.ceil((len(text) + 1) / (room + 1))
        return self._shared(len(text) - (parts - 1) + parts * len(self.number), parts)

    def _shared(self, size: int, parts: int) -> float:
        """Of so many bytes in so many parts: they need not be equal, for airtime grows in steps."""
        if parts == 1:
            return self.modem.airtime_s(text_frame_bytes(size, is_direct=True))
        if (size, parts) not in self._known:
            smallest = max(1, size - (parts - 1) * self.part_characters)
            self._known[size, parts] = min(
                self._shared(first, 1) + self._shared(size - first, parts - 1)
                for first in range(smallest, min(size, self.part_characters + 1))
            )
        return self._known[size, parts]
