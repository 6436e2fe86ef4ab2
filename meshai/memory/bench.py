"""The plug for benchmarks of memory: real store, real recall, real notes of a prompt."""

import asyncio
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

from meshai.memory import prompts
from meshai.memory.language import languages
from meshai.memory.recall import Question, find
from meshai.messages import Channel, Conversation, Direct, NodeNum, Turn
from meshai.plaintext import one_line_name
from meshai.store import turns
from meshai.store.database import Connection, open_database
from meshai.store.recall import Place

_PERSON: Final = 1
_US: Final = 2
_STRANGER: Final = 3
_TURN_S: Final = 60.0
_SESSION_S: Final = 4 * 3600.0
"""Sessions of one day are told apart by a silence, as the product tells them."""
_CHARACTERS: Final = 4
"""The benchmarks count so many characters as a token."""


class Said(Protocol):
    """A turn as the benchmarks give it; `when` is a day such as `8 May 2023` or `2023/05/08`."""

    @property
    def session(self) -> int: ...
    @property
    def speaker(self) -> str: ...
    @property
    def body(self) -> str: ...
    @property
    def when(self) -> str: ...


class _Bench:
    """One conversation in a database file of its own."""

    def __init__(self, said: Sequence[Said]) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._runner = asyncio.Runner()
        self._opened = open_database(Path(self._folder.name) / "meshai.db")
        self._database = self._runner.run(self._opened.__aenter__())
        self._languages = languages()
        names = sorted({turn.speaker for turn in said})
        self._is_direct = set(names) <= {"user", "assistant"}
        self._conversation: Conversation = Direct(_PERSON) if self._is_direct else Channel(0)
        self._nodes = (
            {"user": _PERSON, "assistant": _US}
            if self._is_direct
            else {name: 100 + number for number, name in enumerate(names)}
        )
        self._names = {node: name for name, node in self._nodes.items()}
        self._runner.run(self._keep(said))

    def __call__(self, question: str, budget: int, asker: str | None = None) -> str:
        """The notes a prompt would hold for this question, in at most `budget` tokens."""
        return self._runner.run(self._recalled(question, budget, asker))

    def close(self) -> None:
        self._runner.run(self._opened.__aexit__(None, None, None))
        self._runner.close()
        self._folder.cleanup()

    async def _keep(self, said: Sequence[Said]) -> None:
        async with self._database.transaction() as db:
            for exchange, turn in enumerate(said, start=1):
                await self._keep_one(db, exchange, turn)

    async def _keep_one(self, db: Connection, exchange: int, said: Said) -> None:
        self._now = _day(said.when) + said.session % 5 * _SESSION_S + exchange % 60 * _TURN_S
        turn = Turn(self._conversation, said.body, self._nodes[said.speaker], is_ours=False, at=self._now)
        await turns.add_question(db, exchange, turn, packet_id=exchange, public_key=None)

    async def _recalled(self, question: str, budget: int, asker: str | None) -> str:
        asked = Question(question, self._node(question, asker), self._now)
        around = -(-len(prompts.notes({})) // _CHARACTERS)
        async with self._database.transaction() as db:
            lines = await find(
                db,
                self._conversation,
                asked,
                before=2**62,
                tokens=(budget - around) * _CHARACTERS,
                speaker=self._speaker,
                known=self._languages,
                zone=UTC,
                cost=lambda text: len(text) + text.count("\n") * len(prompts.LABELS["recall"]),
            )
        return prompts.notes({"recall": [prompts.note(line.text) for line in lines]}) if lines else ""

    def _node(self, question: str, asker: str | None) -> NodeNum | None:
        if asker is not None:
            return self._nodes[asker]
        return _PERSON if self._is_direct else None

    def _speaker(self, place: Place) -> str:
        name = self._names[place.node]
        return {"user": "user", "assistant": "you"}.get(name, one_line_name(name))


def context_factory(said: Sequence[Said]) -> _Bench:
    """The `--context` plug of the benchmark: the notes that a prompt would hold for a question, within a budget."""
    return _Bench(said)


def _day(when: str) -> float:
    for form in ("%d %B %Y", "%Y/%m/%d"):
        try:
            return datetime.strptime(when, form).replace(tzinfo=UTC).timestamp()
        except ValueError:
            continue
    raise ValueError(f"{when!r} is no day")
