"""SQL for jobs: a conversation whose notes are to be seen to in the background, until that is done."""

from typing import Final, NamedTuple

import aiosqlite

from meshai.messages import Conversation
from meshai.store.conversations import conversation, key

FARTHEST_S: Final = 86_400.0
"""No job is put off so far: one that seems to be was planned by a clock that has stepped back since."""


class Job(NamedTuple):
    conversation: Conversation
    tries: int
    """How often it has failed."""


async def plan(db: aiosqlite.Connection, about: Conversation, *, due_at: float) -> None:
    """Have it seen to at `due_at` (Unix seconds), unless it failed and waits to be tried again."""
    await db.execute(
        "INSERT INTO jobs (kind, number, due_at) VALUES (?, ?, ?)"
        " ON CONFLICT DO UPDATE SET due_at = excluded.due_at WHERE tries = 0",
        (*key(about), due_at),
    )


async def due(db: aiosqlite.Connection, now: float) -> Job | None:
    """The job that is due for longest."""
    async with db.execute(
        "SELECT kind, number, tries FROM jobs WHERE due_at <= ? OR due_at > ? ORDER BY due_at LIMIT 1",
        (now, now + FARTHEST_S),
    ) as cursor:
        row = await cursor.fetchone()
    return Job(conversation(row["kind"], row["number"]), row["tries"]) if row else None


async def put_off(db: aiosqlite.Connection, about: Conversation, *, due_at: float, tries: int = 0) -> None:
    await db.execute(
        "UPDATE jobs SET due_at = ?, tries = ? WHERE kind = ? AND number = ?", (due_at, tries, *key(about))
    )


async def done(db: aiosqlite.Connection, about: Conversation) -> None:
    await db.execute("DELETE FROM jobs WHERE kind = ? AND number = ?", key(about))
