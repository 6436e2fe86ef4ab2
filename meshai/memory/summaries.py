"""The rolling summary of each conversation: when turns are folded into it, and how.

Theory of operation. A summary holds every turn up to its watermark, the last exchange in it; turns behind that are sent
word for word. When enough of them have come together beyond the window, the oldest are folded: the old summary and only
these turns make the new one, so that the cost of all is linear. Text and watermark change in one transaction, and only
if neither the old summary nor one of the turns has changed meanwhile (was forgotten, say). When the model fails, all
stays as it is, and the job is tried again later.

What a model summarizes again and again drifts. So the own words of each batch are kept as a piece, and every tenth time
the summary is made from the pieces. The same way a summary of a time without a model, which is but an extract of the
pieces, is replaced as soon as there is one.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from meshai.clock import Clock
from meshai.config import MemorySettings
from meshai.errors import ModelError
from meshai.memory import extract, prompts
from meshai.memory.context import SUMMARY_TOKENS
from meshai.memory.sense import nonsense
from meshai.messages import Conversation, Direct, NodeNum, Turn, node_id
from meshai.model.base import LanguageModel
from meshai.model.tokens import estimate, text_tokens, within
from meshai.plaintext import plain
from meshai.store import heard, jobs, summaries, turns
from meshai.store.database import Connection, Database, again_if_replaced
from meshai.store.jobs import Job
from meshai.store.summaries import Piece, Summary

log = logging.getLogger(__name__)

BEYOND_TOKENS: Final = 400
"""What may lie beyond the window before it is folded, however few turns that is."""
QUIET_TURNS: Final = 6
QUIET_S: Final = 1800.0
"""After this long a silence so few turns beyond the window are folded too."""
BATCH_TOKENS: Final = 600
MOST_BEYOND: Final = 100
"""So many turns beyond the window are no longer left to a model that fails: an extract takes its place for a while."""
REBUILT_AFTER: Final = 9
PIECE_TOKENS: Final = 60
MOST_PIECES: Final = 20
"""Beyond it the older half becomes one piece, so that a summary made from them costs the same however old it is."""
OURS_TOKENS: Final = 30
"""As much of an answer of ours as tells what it was about."""
THEIRS_TOKENS: Final = 100
FIRST_PAUSE_S: Final = 60.0
LONGEST_PAUSE_S: Final = 3600.0
ANSWER_TOKENS: Final = 200


@dataclass(frozen=True, slots=True)
class _Batch:
    """What is to be folded."""

    job: Job
    old: Summary | None
    pieces: Sequence[Piece]
    turns: Sequence[tuple[int, Turn]]
    """With their exchanges, all after the old watermark; none when only the summary is to be replaced."""
    beyond: int
    """How many turns there are beyond the window in all."""

    @property
    def through(self) -> int:
        return self.turns[-1][0] if self.turns else self.old.through if self.old else 0

    @property
    def piece(self) -> str:
        return extract.digest([turn.text for _, turn in self.turns if not turn.is_ours], tokens=PIECE_TOKENS)

    @property
    def all_pieces(self) -> list[str]:
        return [text for text in (*(piece.text for piece in self.pieces), self.piece) if text]


class Summaries:
    """Sees to one conversation at a time."""

    def __init__(
        self,
        database: Database,
        settings: MemorySettings,
        *,
        clock: Clock,
        model: LanguageModel | None,
        budget_tokens: Callable[[], int],
    ) -> None:
        self._database = database
        self._settings = settings
        self._clock = clock
        self._model = model if model is not None and model.can_summarize else None
        self._budget_tokens = budget_tokens

    async def said(self, db: Connection, conversation: Conversation) -> None:
        """Plan to look at a conversation that has grown."""
        await jobs.plan(db, conversation, due_at=self._clock.now())

    @again_if_replaced
    async def begin(self) -> None:
        """Plan to replace what was made without a model, if there is one now."""
        async with self._database.transaction() as db:
            for conversation in await summaries.extracts(db) if self._model else ():
                await jobs.plan(db, conversation, due_at=self._clock.now())

    async def work(self, name_of: Callable[[NodeNum], str]) -> bool:
        """Do one job; returns whether any was due."""
        batch = await self._next()
        if batch is None:
            return False
        if self._model is None:
            await self._keep(batch, _extract(batch), is_extract=True)
            return True
        text = await self._written(self._model, batch, name_of)
        if text:
            await self._keep(batch, text, is_extract=False)
        elif batch.beyond >= MOST_BEYOND:
            await self._keep(batch, _extract(batch), is_extract=True)
        else:
            await self._put_off(batch.job)
        return True

    @again_if_replaced
    async def _next(self) -> _Batch | None:
        """What is to be done next; jobs with nothing to do are done. Nothing while the database file is not in use."""
        async with self._database.transaction() as db:
            if self._database.is_stand_in:
                return None
            while (job := await jobs.due(db, self._clock.now())) is not None:
                old = await summaries.find(db, job.conversation)
                beyond = await self._beyond(db, job.conversation, old.through if old else 0)
                batch = self._batch(beyond)
                if batch or (old is not None and old.is_extract and self._model is not None):
                    pieces = await summaries.pieces(db, job.conversation)
                    return _Batch(job, old, pieces, batch, len(beyond))
                if len(beyond) >= QUIET_TURNS:
                    await jobs.put_off(db, job.conversation, due_at=self._clock.now() + self._until_quiet(beyond))
                else:
                    await jobs.done(db, job.conversation)
            return None

    async def _beyond(self, db: Connection, conversation: Conversation, through: int) -> Sequence[tuple[int, Turn]]:
        """The turns behind the watermark, but not those of the window, and of whole exchanges only."""
        lines = await turns.between(
            db,
            conversation,
            after=through,
            # What may still get an answer stays out: the answer would be in no summary.
            before=await heard.first_open(db),
            most=2 * MOST_BEYOND + self._settings.window,
        )
        return _whole(lines, len(lines) - self._settings.window)

    def _batch(self, beyond: Sequence[tuple[int, Turn]]) -> Sequence[tuple[int, Turn]]:
        """What of it to fold now: nothing, if there is too little."""
        costs = [text_tokens(turn.text) for _, turn in beyond]
        is_enough = len(beyond) >= self._settings.summarize_after or sum(costs) >= BEYOND_TOKENS
        if not is_enough and (len(beyond) < QUIET_TURNS or self._until_quiet(beyond) > 0):
            return []
        count = spent = 0
        while count < len(beyond) and spent + costs[count] <= BATCH_TOKENS:
            spent += costs[count]
            count += 1
        return _whole(beyond, count) or _whole(beyond, 2)

    def _until_quiet(self, beyond: Sequence[tuple[int, Turn]]) -> float:
        """Seconds until it has been silent for long enough, for all that is known: the window's turns came later."""
        return beyond[-1][1].at + QUIET_S - self._clock.now()

    async def _written(self, model: LanguageModel, batch: _Batch, name_of: Callable[[NodeNum], str]) -> str:
        """The model's summary, or nothing when it has none that can be used."""
        old = batch.old.text if batch.old else ""
        if batch.old and (batch.old.is_extract or batch.old.folds >= REBUILT_AFTER):
            old = "; ".join(piece.text for piece in batch.pieces)
        request = prompts.summary_request(old, [_shown(turn, name_of) for _, turn in batch.turns])
        if estimate(request) > self._budget_tokens():
            log.debug("the summary of %s takes more than the model's context", batch.job.conversation)
            return _extract(batch)
        try:
            completion = await model.complete(request, max_tokens=ANSWER_TOKENS)
        except ModelError as error:
            log.info("no summary of %s for now: %s", batch.job.conversation, error)
            return ""
        text = prompts.note(plain(completion.text))
        if why := nonsense(text, request[-1].content):
            log.info("the summary of %s is not used: %s", batch.job.conversation, why)
            return ""
        return within(text, SUMMARY_TOKENS)

    @again_if_replaced
    async def _keep(self, batch: _Batch, text: str, *, is_extract: bool) -> None:
        """Keep a summary with its watermark, unless what it was made of has changed."""
        conversation, old = batch.job.conversation, batch.old
        folds = old.folds + 1 if old and not old.is_extract and old.folds < REBUILT_AFTER else 0
        async with self._database.transaction() as db:
            if self._database.is_stand_in or not await self._is_unchanged(db, batch):
                return
            if old is None:
                await summaries.drop(db, conversation)  # pieces of one that was forgotten
            await summaries.keep(db, conversation, Summary(text, batch.through, folds, is_extract))
            if batch.turns:
                await summaries.add_piece(db, conversation, Piece(batch.through, batch.piece))
                if len(batch.pieces) >= MOST_PIECES:
                    joined = batch.pieces[: MOST_PIECES // 2]
                    clauses = _clauses([piece.text for piece in joined], 2 * PIECE_TOKENS)
                    await summaries.join_pieces(db, conversation, Piece(joined[-1].through, clauses))
            await jobs.put_off(db, conversation, due_at=self._clock.now())
        log.debug("%s is summarized up to exchange %d", conversation, batch.through)

    async def _is_unchanged(self, db: Connection, batch: _Batch) -> bool:
        conversation, old = batch.job.conversation, batch.old
        if await summaries.find(db, conversation) != old:
            return False
        now = await turns.between(
            db, conversation, after=old.through if old else 0, before=batch.through + 1, most=len(batch.turns) + 1
        )
        return now == batch.turns

    @again_if_replaced
    async def _put_off(self, job: Job) -> None:
        pause_s = min(FIRST_PAUSE_S * 2 ** min(job.tries, 10), LONGEST_PAUSE_S)
        async with self._database.transaction() as db:
            await jobs.put_off(db, job.conversation, due_at=self._clock.now() + pause_s, tries=job.tries + 1)


def _whole(lines: Sequence[tuple[int, Turn]], count: int) -> Sequence[tuple[int, Turn]]:
    """The first `count` lines, less those of an exchange that goes on behind them."""
    count = max(count, 0)
    while 0 < count < len(lines) and lines[count][0] == lines[count - 1][0]:
        count -= 1
    return lines[:count]


def _shown(turn: Turn, name_of: Callable[[NodeNum], str]) -> str:
    text = prompts.note(turn.text)
    if turn.is_ours:
        return f"Assistant: {within(text, OURS_TOKENS)}"
    text = within(text, THEIRS_TOKENS)
    if isinstance(turn.conversation, Direct):
        return f"Person: {text}"
    return prompts.spoken_by(name_of(turn.node) or node_id(turn.node), text)


def _extract(batch: _Batch) -> str:
    return _clauses(batch.all_pieces, SUMMARY_TOKENS)


def _clauses(pieces: Sequence[str], tokens: int) -> str:
    """The most distinctive clauses of pieces."""
    return extract.digest([clause for piece in pieces for clause in piece.split("; ")], tokens=tokens)
