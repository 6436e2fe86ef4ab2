"""Whose memory a message may reach, and how much its person lets us keep.

Theory of operation. The number in a packet is anybody's who knows the channel's key; a direct message encrypted for our
public key proves the sender's. So the first key seen with a number owns that number's memory: a message that does not
prove it stands alone, and another key locks the memory and begins a new one. A key that comes back, from whatever
number, gets its memory back. A number that never proved a key is taken at its word, as on a mesh without keys.
"""

import logging
from enum import StrEnum

from meshai.clock import Clock
from meshai.config import MemorySettings
from meshai.messages import Channel, Conversation, Direct, IncomingMessage, NodeNum, node_id
from meshai.store import identities
from meshai.store.database import Connection, Database

log = logging.getLogger(__name__)


class Level(StrEnum):
    """How much is kept of what a node says."""

    OFF = "off"
    """Nothing but this choice: each question stands alone."""
    CHAT = "chat"
    """Turns and their rolling summary, for a while."""
    FULL = "full"
    """Facts, episodes and recall too, until told otherwise."""


class Consent:
    """The level of every conversation, and the identities behind their numbers."""

    def __init__(self, database: Database, settings: MemorySettings, clock: Clock) -> None:
        self._database = database
        self._settings = settings
        self._clock = clock

    async def recognise(self, db: Connection, message: IncomingMessage) -> None:
        """Learn from a direct message who speaks from its number now; memories move or are locked by that."""
        if not message.is_direct:
            return
        sender, key = message.sender, message.public_key
        known = await identities.find(db, sender)
        if key is None or (known is not None and known.public_key == key):
            if known is None:
                await identities.add(db, sender, None, self._clock.now())
            return
        if self._database.is_stand_in:
            return  # What is in the file can neither be moved nor locked.
        owner = await identities.of_key(db, key)
        if known is not None and (known.public_key is not None or owner is not None):
            await identities.lock(db, known)
            log.warning(
                "%s speaks with another key than before: what was remembered under that number is locked, and only "
                "its own key opens it",
                node_id(sender),
            )
        if owner is not None:
            log.warning("the key of %s speaks from %s now: its memory moves along", _whose(owner), node_id(sender))
            await identities.take(db, owner, sender)
        elif known is not None and known.public_key is None:
            await identities.learn_key(db, sender, key)
        else:
            await identities.add(db, sender, key, self._clock.now())

    async def level(self, db: Connection, message: IncomingMessage) -> Level:
        """What may be kept of a message, and seen for it: `OFF` also when its number is another's."""
        known = await identities.find(db, message.sender)
        if known is not None and message.is_direct and not self._is_theirs(known, message):
            return Level.OFF
        own = self._chosen(known)
        if message.is_direct or own is Level.OFF:
            return own
        return Level(self._settings.channels)

    async def level_of(self, db: Connection, conversation: Conversation) -> Level:
        """What may be kept of a conversation; that of a channel depends on its speakers too."""
        match conversation:
            case Direct(node):
                return self._chosen(await identities.find(db, node))
            case Channel():
                return Level(self._settings.channels)

    async def is_theirs(self, db: Connection, message: IncomingMessage) -> bool:
        """Whether the memory under the sender's number is the sender's, as far as it can be told."""
        known = await identities.find(db, message.sender)
        return known is None or not message.is_direct or self._is_theirs(known, message)

    def proves_sender(self, message: IncomingMessage) -> bool:
        """Whether private things may be shown and changed for this message."""
        return message.is_direct and (message.public_key is not None or not self._settings.need_key)

    async def tell(self, db: Connection, node: NodeNum) -> bool:
        """Whether a node is still to be told that notes are kept; from now on it is not."""
        known = await identities.find(db, node)
        if known is None or known.is_told or not self._settings.tell or self._chosen(known) is Level.OFF:
            return False
        await identities.be_told(db, node)
        return True

    def _is_theirs(self, known: identities.Identity, message: IncomingMessage) -> bool:
        if message.public_key is None:
            return known.public_key is None or not self._settings.need_key
        return known.public_key in (None, message.public_key)

    def _chosen(self, known: identities.Identity | None) -> Level:
        return Level(self._settings.level if known is None or known.level is None else known.level)


def _whose(identity: identities.Identity) -> str:
    return node_id(identity.node)
