"""Recall inside the real prompt: at level full alone, of one's own conversation, once, in the quoted notes."""

import pytest

from meshai.memory.consent import Level
from meshai.messages import Channel
from meshai.store import identities
from meshai.store.database import Database
from meshai.testing import ManualClock
from tests.memory.test_consent import Talk
from tests.stories import ANNA, BEN

SAID = "my goat Olga escaped from the barn"


@pytest.mark.parametrize("level", [Level.CHAT, Level.FULL])
async def test_what_is_beyond_the_window_is_recalled_at_level_full(
    database: Database, clock: ManualClock, level: Level
) -> None:
    talk = Talk(database, clock)
    await talk.say(SAID)
    await talk.say("my goat is called Secretive", node=BEN)
    await talk.say("my goat on the air is Public", channel=0)
    for number in range(110):
        await talk.say(f"signal number {number} is quite fine here")
    async with database.transaction() as db:
        await identities.set_level(db, ANNA, level)
        assert await talk.memory.consent.level_of(db, Channel(0)) is Level.CHAT
    prompt = await talk.prompt("which goat do I have?")
    assert (f'user "{SAID}" you "re: {SAID}"' in prompt) is (level is Level.FULL)
    assert "Secretive" not in prompt
    assert "Public" not in prompt
    assert prompt.count("signal number 109 is") == 2  # as it was said, and in its answer
