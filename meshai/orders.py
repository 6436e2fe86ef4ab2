"""What admins have ordered by command: a silence, and nodes to ignore.

SQLite alone knows it, so that it outlives the process and has one home.
"""

from collections.abc import Sequence

from meshai.clock import Clock
from meshai.messages import IncomingMessage, Node, key_text, node_id
from meshai.quiet import MOST_ORDERED_S, Quiet
from meshai.store import orders
from meshai.store.database import Connection, Database, again_if_replaced


class Orders:
    """Keeps the orders, and judges messages by them and by the hour."""

    def __init__(self, database: Database, quiet: Quiet, clock: Clock) -> None:
        self._database = database
        self._quiet = quiet
        self._clock = clock

    @again_if_replaced
    async def silence(self, message: IncomingMessage, sender: Node) -> str:
        """Why a message gets no answer now, or ""; `sender` is what our node knows of who sent it."""
        keys = {key_text(key) for key in (message.public_key, sender.public_key) if key}
        async with self._database.transaction() as db:
            if await orders.is_any_ignored(db, [node_id(message.sender), *keys]):
                return "ignored by command"
            return self._quiet.reason(await orders.quiet_until(db))

    async def is_new(self, db: Connection, message: IncomingMessage) -> bool:
        """Whether this order was never given before; who records a packet can play it again months later."""
        return await orders.note_order(db, message.sender, message.packet_id)

    @again_if_replaced
    async def quiet_left_s(self) -> float:
        """How much longer the ordered silence lasts; 0 when there is none."""
        async with self._database.transaction() as db:
            until = await orders.quiet_until(db)
        left_s = 0.0 if until is None else until - self._clock.now()
        return left_s if 0 < left_s <= MOST_ORDERED_S else 0.0

    @again_if_replaced
    async def be_quiet(self, for_s: float) -> None:
        """From now on; 0 ends the silence. At most `quiet.MOST_ORDERED_S`."""
        async with self._database.transaction() as db:
            if for_s > 0:
                await orders.be_quiet(db, self._clock.now() + for_s)
            else:
                await orders.end_quiet(db)

    @again_if_replaced
    async def ignore(self, who: str) -> None:
        """`who` is a node id or a public key, as `messages` writes them."""
        async with self._database.transaction() as db:
            await orders.ignore(db, who)

    @again_if_replaced
    async def unignore(self, who: str) -> bool:
        """False when it was not ignored by command."""
        async with self._database.transaction() as db:
            return await orders.unignore(db, who)

    @again_if_replaced
    async def ignored(self) -> Sequence[str]:
        """Whom admins want ignored; the settings may list more."""
        async with self._database.transaction() as db:
            return await orders.ignored(db)
