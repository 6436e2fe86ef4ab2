"""The numbered steps that make the schema. A step, once released, never changes; a change is a new step."""

from typing import Final

import aiosqlite

from meshai.errors import StoreError

NEWEST_THINKABLE: Final = 1000
"""No schema will ever have a higher number; a file that says so is damaged."""

STEPS: Final[tuple[tuple[str, ...], ...]] = (
    (
        # 1: what was heard and must be answered, what was said, what waits to be sent
        """
        CREATE TABLE heard (
            id        INTEGER PRIMARY KEY AUTOINCREMENT,  -- order of arrival, the number of the exchange
            node      INTEGER NOT NULL,
            packet_id INTEGER NOT NULL,
            heard_at  REAL    NOT NULL,
            message   TEXT,                               -- the message as JSON until it is settled, then NULL
            tries     INTEGER NOT NULL DEFAULT 0          -- how often it was begun again after a process ended
        )
        """,
        "CREATE UNIQUE INDEX heard_once ON heard (node, packet_id) WHERE packet_id <> 0",
        "CREATE INDEX heard_unsettled ON heard (id) WHERE message IS NOT NULL",
        """
        CREATE TABLE turns (
            id         INTEGER PRIMARY KEY,
            kind       TEXT    NOT NULL CHECK (kind IN ('direct', 'channel')),
            number     INTEGER NOT NULL,                  -- node number or channel index
            exchange   INTEGER NOT NULL,                  -- heard.id of the question: a turn's place in the order
            is_ours    INTEGER NOT NULL,
            node       INTEGER NOT NULL,                  -- who said it
            public_key BLOB,                              -- the speaker's key, where the packet proved it
            packet_id  INTEGER NOT NULL,
            at         REAL    NOT NULL,
            text       TEXT    NOT NULL,
            UNIQUE (kind, number, exchange, is_ours)
        )
        """,
        """
        CREATE TABLE outbox (
            id          INTEGER PRIMARY KEY AUTOINCREMENT,
            exchange    INTEGER NOT NULL,                 -- heard.id of what it answers
            kind        TEXT    NOT NULL CHECK (kind IN ('direct', 'channel')),
            number      INTEGER NOT NULL,
            channel     INTEGER NOT NULL,
            reply_to    INTEGER,
            limit_bytes INTEGER NOT NULL,
            text        TEXT    NOT NULL,
            part        INTEGER NOT NULL,
            parts       INTEGER NOT NULL,
            packet_id   INTEGER NOT NULL,
            queued_at   REAL    NOT NULL,
            handed_over INTEGER NOT NULL DEFAULT 0        -- the node has it; what is left is to learn its fate
        )
        """,
        "CREATE TABLE life (one INTEGER PRIMARY KEY CHECK (one = 1), listening_at REAL NOT NULL)",
    ),
    (
        # 2: what an answer had to leave out, for whoever asks for more
        """
        CREATE TABLE rests (
            kind     TEXT    NOT NULL CHECK (kind IN ('direct', 'channel')),
            number   INTEGER NOT NULL,
            node     INTEGER NOT NULL,                    -- who asked
            exchange INTEGER NOT NULL,                    -- heard.id of the question
            cut_at   REAL    NOT NULL,
            text     TEXT    NOT NULL,
            PRIMARY KEY (kind, number, node)
        )
        """,
        "ALTER TABLE outbox ADD COLUMN hops INTEGER",  # relays the question took; NULL when not known
    ),
    (
        # 3: what became of each packet, which go first, and the airtime spent
        "ALTER TABLE outbox ADD COLUMN priority INTEGER NOT NULL DEFAULT 1",
        "ALTER TABLE outbox ADD COLUMN state TEXT NOT NULL DEFAULT 'waiting'",  # or a messages.Fate
        "ALTER TABLE outbox ADD COLUMN reason TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE outbox ADD COLUMN tries INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE outbox ADD COLUMN changed_at REAL NOT NULL DEFAULT 0",
        "ALTER TABLE outbox ADD COLUMN is_settled INTEGER NOT NULL DEFAULT 0",  # nothing more will be done about it
        "UPDATE outbox SET state = 'handed over' WHERE handed_over",
        "ALTER TABLE outbox DROP COLUMN handed_over",
        "ALTER TABLE outbox ADD COLUMN is_tapback INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE rests ADD COLUMN is_lost INTEGER NOT NULL DEFAULT 0",  # it was to be sent, but did not arrive
        "CREATE INDEX outbox_owed ON outbox (id) WHERE NOT is_settled",
        """
        CREATE TABLE airtime (
            minute  INTEGER PRIMARY KEY,                  -- minutes of Unix time
            spent_s REAL    NOT NULL,                     -- seconds of the air our packets took in it
            packets INTEGER NOT NULL
        )
        """,
    ),
    (
        # 4: what admins ordered by command
        "CREATE TABLE quiet (one INTEGER PRIMARY KEY CHECK (one = 1), until REAL NOT NULL)",
        "CREATE TABLE ignored (who TEXT NOT NULL UNIQUE)",  # node id, or public key in base64
        """
        CREATE TABLE ordered (                            -- packets that were orders, never to be followed again
            node      INTEGER NOT NULL,
            packet_id INTEGER NOT NULL,
            PRIMARY KEY (node, packet_id)
        )
        """,
    ),
    (
        # 5: whose memory it is, how much of it they want, and what was forgotten
        """
        CREATE TABLE identities (
            number     INTEGER PRIMARY KEY,               -- of the direct conversation; below 0 it is locked
            node       INTEGER NOT NULL,                  -- the node it last spoke from
            public_key BLOB    UNIQUE,                    -- the first seen; NULL while none was proved
            level      TEXT    CHECK (level IN ('off', 'chat', 'full')),  -- as chosen; NULL for the default
            is_told    INTEGER NOT NULL DEFAULT 0,        -- it was told that notes are kept
            since      REAL    NOT NULL,
            wish       TEXT    NOT NULL DEFAULT '',       -- what it must say once more for it to be done
            wished_at  REAL    NOT NULL DEFAULT 0
        )
        """,
        """
        CREATE TABLE forgetting (
            one    INTEGER PRIMARY KEY CHECK (one = 1),
            secret BLOB    NOT NULL,                      -- the key of the hashes in tombstones
            is_due INTEGER NOT NULL DEFAULT 0             -- bytes of what was deleted may still be in the files
        )
        """,
        "INSERT INTO forgetting (one, secret) VALUES (1, randomblob(32))",
        "CREATE TABLE tombstones (mark BLOB NOT NULL UNIQUE)",  # hashes of forgotten exchanges and packets
    ),
    (
        # 6: what was said before the latest turns, in short, and whose notes are to be seen to
        """
        CREATE TABLE summaries (
            kind       TEXT    NOT NULL CHECK (kind IN ('direct', 'channel')),
            number     INTEGER NOT NULL,
            text       TEXT    NOT NULL,
            through    INTEGER NOT NULL,                  -- the last exchange that is in it
            folds      INTEGER NOT NULL,                  -- times it was written on since it was made from its pieces
            is_extract INTEGER NOT NULL,                  -- made without a model
            PRIMARY KEY (kind, number)
        )
        """,
        """
        CREATE TABLE pieces (                             -- what a summary can be made from anew
            kind    TEXT    NOT NULL CHECK (kind IN ('direct', 'channel')),
            number  INTEGER NOT NULL,
            through INTEGER NOT NULL,
            text    TEXT    NOT NULL,
            PRIMARY KEY (kind, number, through)
        )
        """,
        """
        CREATE TABLE jobs (                               -- conversations to be seen to in the background
            kind   TEXT    NOT NULL CHECK (kind IN ('direct', 'channel')),
            number INTEGER NOT NULL,
            due_at REAL    NOT NULL,
            tries  INTEGER NOT NULL DEFAULT 0,            -- how often it has failed
            PRIMARY KEY (kind, number)
        )
        """,
        # Histories of before: the background looks at each once.
        "INSERT INTO jobs (kind, number, due_at) SELECT DISTINCT kind, number, 0 FROM turns",
    ),
    (
        # 7: the words of turns, to find them again; kept in step with the turns by triggers, whoever changes them
        """
        CREATE VIEW recall_source AS
            SELECT id, printf('%d%010d', CASE kind WHEN 'direct' THEN 1 ELSE 2 END, number) AS owner, text FROM turns
        """,
        """
        CREATE VIRTUAL TABLE recall USING fts5 (
            owner, text, content = 'recall_source', content_rowid = 'id',
            tokenize = 'porter unicode61 remove_diacritics 2'
        )
        """,
        """
        CREATE TRIGGER recall_added AFTER INSERT ON turns BEGIN
            INSERT INTO recall (rowid, owner, text) VALUES
                (new.id, printf('%d%010d', CASE new.kind WHEN 'direct' THEN 1 ELSE 2 END, new.number), new.text);
        END
        """,
        """
        CREATE TRIGGER recall_removed AFTER DELETE ON turns BEGIN
            INSERT INTO recall (recall, rowid, owner, text) VALUES ('delete',
                old.id, printf('%d%010d', CASE old.kind WHEN 'direct' THEN 1 ELSE 2 END, old.number), old.text);
        END
        """,
        """
        CREATE TRIGGER recall_changed AFTER UPDATE OF id, kind, number, text ON turns BEGIN
            INSERT INTO recall (recall, rowid, owner, text) VALUES ('delete',
                old.id, printf('%d%010d', CASE old.kind WHEN 'direct' THEN 1 ELSE 2 END, old.number), old.text);
            INSERT INTO recall (rowid, owner, text) VALUES
                (new.id, printf('%d%010d', CASE new.kind WHEN 'direct' THEN 1 ELSE 2 END, new.number), new.text);
        END
        """,
        "INSERT INTO recall (recall) VALUES ('rebuild')",
    ),
    (
        # 8: what is known of a node, and how far its turns were looked through for that
        """
        CREATE TABLE facts (
            id            INTEGER PRIMARY KEY,
            kind          TEXT    NOT NULL CHECK (kind IN ('direct', 'channel')),
            number        INTEGER NOT NULL,
            node          INTEGER NOT NULL,               -- whom it is about; in a direct conversation its node
            slot          TEXT    NOT NULL,
            slot_key      TEXT    NOT NULL,               -- what of a slot it is the value of, for slots with keys
            value         TEXT    NOT NULL,
            normal        TEXT    NOT NULL,               -- the value as it is compared
            source        INTEGER NOT NULL,               -- exchange it was learned in
            since         REAL    NOT NULL,
            closed        INTEGER,                        -- exchange that ended it; NULL while it holds
            until         REAL,
            superseded_by INTEGER                         -- the row that took its place
        )
        """,
        "CREATE INDEX facts_of ON facts (kind, number, node, slot, slot_key)",
        """
        CREATE TABLE facts_read (
            kind     TEXT    NOT NULL CHECK (kind IN ('direct', 'channel')),
            number   INTEGER NOT NULL,
            node     INTEGER NOT NULL,                    -- 0 in a direct conversation
            exchange INTEGER NOT NULL,                    -- the last one looked at
            PRIMARY KEY (kind, number, node)
        )
        """,
    ),
)


async def migrate(db: aiosqlite.Connection, name: str) -> None:
    """Run the steps the database has not seen, each in one transaction with its number."""
    async with db.execute("PRAGMA user_version") as cursor:
        row = await cursor.fetchone()
    version = int(row[0]) if row else 0
    if not 0 <= version <= NEWEST_THINKABLE:
        raise aiosqlite.DatabaseError(f"there is no schema {version}")
    if version > len(STEPS):
        raise StoreError(
            f"{name} was written by a newer MeshAI (schema {version}, this one knows {len(STEPS)}): "
            "install that version again, or set storage.path to another file"
        )
    for number, step in enumerate(STEPS[version:], start=version + 1):
        await db.execute("BEGIN IMMEDIATE")
        try:
            for statement in step:
                await db.execute(statement)
            await db.execute(f"PRAGMA user_version = {number}")
        except BaseException:
            await db.rollback()
            raise
        await db.commit()
