"""Forgetting by age and by count, and wiping what was forgotten out of the files."""

import logging
from typing import Final

from meshai.clock import Clock
from meshai.config import MemorySettings
from meshai.errors import StoreError
from meshai.memory.consent import Consent, Level
from meshai.messages import Conversation
from meshai.store import forgetting
from meshai.store.database import Connection, Database, again_if_replaced

log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 3600.0
DAY_S: Final = 86_400.0
MOST_DRIFT_S: Final = 300.0
"""How far a clock that has not jumped comes from the time that passed between two looks."""


class Retention:
    """Drops what is too old or too much, and wipes. `run()` is its one task."""

    def __init__(self, database: Database, consent: Consent, settings: MemorySettings, clock: Clock) -> None:
        self._database = database
        self._consent = consent
        self._settings = settings
        self._clock = clock
        self._looked_at: tuple[float, float] | None = None
        """By the wall clock, and by the one that only counts."""

    async def run(self) -> None:
        """Look once an hour, until cancelled."""
        while True:
            try:
                await self.look()
            except StoreError as error:
                log.warning("what is too old cannot be forgotten now: %s", error)
            await self._clock.sleep(LOOK_EVERY_S)

    async def look(self) -> None:
        """Drop what is to go by now, and wipe whatever is due."""
        if await self._dropped(is_clock_steady=self._is_clock_steady()):
            await wipe(self._database)

    def _is_clock_steady(self) -> bool:
        # A clock that jumps ahead would forget everything; one that has run evenly since the last look is believed.
        now, elapsed = self._clock.now(), self._clock.monotonic()
        before, self._looked_at = self._looked_at, (now, elapsed)
        return before is not None and abs((now - before[0]) - (elapsed - before[1])) <= MOST_DRIFT_S

    @again_if_replaced
    async def _dropped(self, *, is_clock_steady: bool) -> bool:
        async with self._database.transaction() as db:
            if self._database.is_stand_in:
                return False
            for conversation in await forgetting.conversations(db):
                gone = await forgetting.drop_beyond(db, conversation, self._settings.keep_turns)
                if is_clock_steady and await self._consent.level_of(db, conversation) is not Level.FULL:
                    gone += await self._drop_old(db, conversation)
                if gone:
                    log.info("forgot %d lines of %s: too old, or too many", gone, conversation)
                    await forgetting.be_due(db)
            return await forgetting.is_due(db)

    async def _drop_old(self, db: Connection, conversation: Conversation) -> int:
        oldest = self._clock.now() - self._settings.keep_days * DAY_S
        if await forgetting.is_all_before(db, conversation, oldest):
            return await forgetting.forget_all(db, conversation)
        return await forgetting.drop_before(db, conversation, oldest)


async def wipe(database: Database) -> None:
    """Let no byte of what was forgotten stay in the database's files; what cannot be done now, `Retention` does."""
    try:
        if await database.wipe():
            await _be_done(database)
        else:
            log.warning("what was forgotten is still in the files of %s: another program reads them", database.path)
    except StoreError as error:
        log.warning("what was forgotten is still in the files: %s", error)


@again_if_replaced
async def _be_done(database: Database) -> None:
    async with database.transaction() as db:
        await forgetting.be_done(db)
