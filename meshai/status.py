"""How the program is, as values: `Status` is at hand at once, `Report` adds what SQLite knows, and is written as JSON.

Neither holds a text of anybody, nor a secret. Names of nodes are made fit for one line.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from pydantic import TypeAdapter, ValidationError

from meshai.errors import WindowError
from meshai.governor import Spending
from meshai.messages import Channel, Conversation, Direct, Node, NodeNum, node_id
from meshai.plaintext import one_line_name
from meshai.quiet import Quiet
from meshai.radio.base import Radio
from meshai.store import airtime, heard, orders, outbox
from meshai.store.database import Database, again_if_replaced

HOUR_S: Final = 3600
HOURS: Final = 24
MOST_REPLIES: Final = 10
MOST_TALKERS: Final = 12
MOST_PLACES: Final = 12


@dataclass(frozen=True, slots=True)
class Place:
    """A node or a channel: its id (`!a1b2c3d4`, `#1`) and its name, which may be empty."""

    id: str
    name: str

    def __str__(self) -> str:
        return f"{self.id} {self.name}".rstrip() if self.id.startswith("#") else self.name or self.id


@dataclass(frozen=True, slots=True)
class Status:
    """The state of the program, for people. Counts begin at the start."""

    version: str
    uptime_s: float
    is_connected: bool
    radio: str
    """One line: connected to what, or waiting for what, and since when."""
    node: Place | None
    """Our own, None before the first connect; so are region, preset and firmware empty."""
    region: str
    preset: str
    firmware: str
    model: str
    """The model's name, or empty when there is none."""
    model_trouble: str
    """Why the model cannot answer now; empty when it can."""
    heard: int
    """Texts heard, most of which are not for us."""
    answered: int
    """Messages answered, apologies included."""
    refused: int
    """Messages not answered for the sake of the air."""
    apologies: int
    """Questions the model gave no answer to."""
    sent: int
    """Packets that ended well, as far as can be told."""
    failed: int
    """Packets given up, with what was left of their replies."""
    waiting: int
    """Packets waiting to be sent, or on their way."""
    airtime: Spending

    @property
    def modem(self) -> str:
        return f"{self.region} {self.preset}".strip()


@dataclass(frozen=True, slots=True)
class Queued:
    """How many packets wait for one place."""

    to: Place
    packets: int


@dataclass(frozen=True, slots=True)
class Hour:
    """Airtime our packets took in the hour of Unix time that began `began_at`."""

    began_at: float
    spent_s: float
    packets: int


@dataclass(frozen=True, slots=True)
class Part:
    """One packet of a reply: its state (`waiting` or a `messages.Fate`), why, and since when (Unix seconds)."""

    part: int
    parts: int
    state: str
    reason: str
    tries: int
    changed_at: float


@dataclass(frozen=True, slots=True)
class SentReply:
    """One reply on its way or at its end, and when it was queued (Unix seconds)."""

    to: Place
    queued_at: float
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Talker:
    """Somebody who wrote to us: how many messages in the last 24 hours, and when the newest (Unix seconds)."""

    node: Place
    messages: int
    heard_at: float


@dataclass(frozen=True, slots=True)
class Report:
    """All of it, at one moment (Unix seconds)."""

    at: float
    status: Status
    is_stand_in: bool
    """The database file cannot be used: nothing is remembered beyond the end of the program."""
    silence: str
    """Why nobody is answered now; empty when people are."""
    queue: tuple[Queued, ...]
    """The places most packets wait for."""
    hours: tuple[Hour, ...]
    """The last `HOURS`, the one that runs last."""
    replies: tuple[SentReply, ...]
    """The newest first."""
    talkers: tuple[Talker, ...]
    """Who wrote to us most in the last 24 hours."""
    talkers_in_all: int

    def to_json(self) -> bytes:
        return _REPORTS.dump_json(self)

    @staticmethod
    def from_json(document: bytes) -> "Report":
        """Raises WindowError for what another version may have written."""
        try:
            return _REPORTS.validate_json(document)
        except ValidationError as error:
            raise WindowError("the bot that runs is of another version than this command; restart it") from error


_REPORTS: Final = TypeAdapter(Report)


@again_if_replaced
async def report(
    database: Database, radio: Radio, status: Status, *, quiet: Quiet, queue: Mapping[Conversation, int], now: float
) -> Report:
    """Look at everything at `now` (Unix seconds); `queue` is how many packets wait, by destination."""
    places = _Places(radio)
    first_hour = (now // HOUR_S - HOURS + 1) * HOUR_S
    async with database.transaction() as db:
        is_stand_in = database.is_stand_in
        quiet_until = await orders.quiet_until(db)
        minutes = await airtime.since(db, first_hour)
        packets = await outbox.newest_replies(db, MOST_REPLIES)
        talkers = await heard.talkers(db, since=now - HOURS * HOUR_S)
    longest = sorted(queue.items(), key=lambda entry: entry[1], reverse=True)[:MOST_PLACES]
    return Report(
        at=now,
        status=status,
        is_stand_in=is_stand_in,
        silence="airtime.transmit is off: it only listens" if quiet.listens_only else quiet.reason(quiet_until),
        queue=tuple(Queued(places.of(destination), count) for destination, count in longest),
        hours=tuple(_hours(minutes, first_hour)),
        replies=tuple(
            _reply(places, list(parts)) for _, parts in groupby(packets, key=lambda progress: progress.exchange)
        ),
        talkers=tuple(
            Talker(places.node(talker.node), talker.messages, talker.heard_at) for talker in talkers[:MOST_TALKERS]
        ),
        talkers_in_all=len(talkers),
    )


def node_place(node: Node) -> Place:
    """A node by its id, and by the name it gave itself."""
    return Place(node_id(node.number), one_line_name(node.long_name or node.short_name))


class _Places:
    """Names nodes and channels by what our node knows of them."""

    def __init__(self, radio: Radio) -> None:
        self._nodes = radio.nodes()
        self._channels = (radio.me.channel_names if radio.me is not None else None) or {}

    def of(self, conversation: Conversation) -> Place:
        match conversation:
            case Direct(number):
                return self.node(number)
            case Channel(index):
                return Place(f"#{index}", one_line_name(self._channels.get(index, "")))

    def node(self, number: NodeNum) -> Place:
        return node_place(self._nodes.get(number, Node(number)))


def _reply(places: _Places, packets: Sequence[outbox.Progress]) -> SentReply:
    return SentReply(
        places.of(packets[0].destination),
        packets[0].queued_at,
        tuple(
            Part(packet.part, packet.parts, packet.state, packet.reason, packet.tries, packet.changed_at)
            for packet in packets
        ),
    )


def _hours(minutes: Sequence[airtime.Spent], first_hour: float) -> Iterable[Hour]:
    for began_at in (first_hour + number * HOUR_S for number in range(HOURS)):
        inside = [minute for minute in minutes if began_at <= minute.began_at < began_at + HOUR_S]
        yield Hour(began_at, sum(minute.spent_s for minute in inside), sum(minute.packets for minute in inside))
