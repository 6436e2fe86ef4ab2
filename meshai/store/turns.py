"""SQL for turns: what was said and heard, by conversation, in order of arrival.

The order is (exchange, is_ours): an answer stands behind its question, also when the next question came before it.
"""

from collections.abc import AsyncIterator, Sequence

import aiosqlite

from meshai.messages import Conversation, NodeNum, Turn
from meshai.store.conversations import key


async def add_question(
    db: aiosqlite.Connection, exchange: int, turn: Turn, *, packet_id: int, public_key: bytes | None
) -> None:
    """Keep what a node said."""
    await db.execute(
        "INSERT INTO turns (kind, number, exchange, is_ours, node, public_key, packet_id, at, text)"
        " VALUES (?, ?, ?, 0, ?, ?, ?, ?, ?)",
        (*key(turn.conversation), exchange, turn.node, public_key, packet_id, turn.at, turn.text),
    )


async def add_answer(db: aiosqlite.Connection, exchange: int, turn: Turn, *, packet_id: int) -> None:
    """Keep what we said, unless its question was forgotten meanwhile."""
    kind, number = key(turn.conversation)
    await db.execute(
        "INSERT INTO turns (kind, number, exchange, is_ours, node, packet_id, at, text)"
        " SELECT ?1, ?2, ?3, 1, ?4, ?5, ?6, ?7"
        " WHERE EXISTS (SELECT 1 FROM turns WHERE kind = ?1 AND number = ?2 AND exchange = ?3 AND NOT is_ours)",
        (kind, number, exchange, turn.node, packet_id, turn.at, turn.text),
    )


async def extend_answer(db: aiosqlite.Connection, exchange: int, text: str) -> None:
    """Add what was said later to the answer of an exchange, if that is still kept."""
    await db.execute(
        "UPDATE turns SET text = rtrim(text, '… ') || ' ' || ? WHERE exchange = ? AND is_ours", (text, exchange)
    )


async def remove(db: aiosqlite.Connection, exchange: int) -> None:
    """Delete what was said in one exchange."""
    await db.execute("DELETE FROM turns WHERE exchange = ?", (exchange,))


async def newest(
    db: aiosqlite.Connection, conversation: Conversation, *, before: int, most: int
) -> AsyncIterator[tuple[int, Turn]]:
    """The turns of a conversation in exchanges before `before`, with their exchange: newest first, at most `most`."""
    async with db.execute(
        "SELECT exchange, text, node, is_ours, at FROM turns WHERE kind = ? AND number = ? AND exchange < ?"
        " ORDER BY exchange DESC, is_ours DESC LIMIT ?",
        (*key(conversation), before, most),
    ) as cursor:
        async for row in cursor:
            yield row["exchange"], Turn(conversation, row["text"], row["node"], bool(row["is_ours"]), row["at"])


async def between(
    db: aiosqlite.Connection, conversation: Conversation, *, after: int, before: int, most: int
) -> Sequence[tuple[int, Turn]]:
    """The turns of the exchanges between `after` and `before`, with their exchange: oldest first, at most `most`."""
    async with db.execute(
        "SELECT exchange, text, node, is_ours, at FROM turns WHERE kind = ? AND number = ? AND exchange > ?"
        " AND exchange < ? ORDER BY exchange, is_ours LIMIT ?",
        (*key(conversation), after, before, most),
    ) as rows:
        return [
            (row["exchange"], Turn(conversation, row["text"], row["node"], bool(row["is_ours"]), row["at"]))
            async for row in rows
        ]


async def count(db: aiosqlite.Connection, conversation: Conversation, node: NodeNum) -> int:
    """How many turns are kept of the exchanges that `node` began here: all of a direct conversation."""
    async with db.execute(
        "SELECT count(*) FROM turns WHERE kind = ?1 AND number = ?2 AND exchange IN"
        " (SELECT exchange FROM turns WHERE kind = ?1 AND number = ?2 AND (kind = 'direct' OR node = ?3)"
        " AND NOT is_ours)",
        (*key(conversation), node),
    ) as cursor:
        row = await cursor.fetchone()
    return int(row[0]) if row else 0
