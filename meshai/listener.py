"""What is heard: whether it will be answered, and its note in SQLite before anything is done about it.

One message at a time, in order of arrival. What deserves an answer becomes an exchange, which outlives the process.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from meshai.clock import Clock
from meshai.config import ReplySettings
from meshai.governor import Governor, Refusal
from meshai.loops import LoopGuard
from meshai.memory.memory import Memory
from meshai.messages import (
    Address,
    Command,
    Decision,
    Direct,
    Ignore,
    IncomingMessage,
    Node,
    NodeNum,
    Priority,
    Prompt,
    node_id,
)
from meshai.orders import Orders
from meshai.outbox import Outbox
from meshai.quiet import Quiet
from meshai.radio.base import Radio
from meshai.registry import Registry
from meshai.router import Router
from meshai.store import heard
from meshai.store.database import Database, again_if_replaced

log = logging.getLogger(__name__)

MOST_REPEATS: Final = 10
"""How often a question is begun again whose process ended meanwhile; one that is there after more may be the cause.
Many, for the cause may as well be a power supply that fails again and again."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A heard message that is owed an answer."""

    number: int
    message: IncomingMessage
    decision: Command | Prompt
    address: Address
    """Where the answer goes."""
    priority: Priority
    refusal: str = ""
    """It is not answered, for the sake of the air, and this is said instead."""
    repeats: int | None = None
    """For one that the last process left: how often it was begun again already."""

    @property
    def is_given_up(self) -> bool:
        """It was in hand when the process ended, again and again: its sender is told so, and it is not tried again."""
        return self.repeats is not None and self.repeats >= MOST_REPEATS


class Listener:
    """Decides on each message, and notes what is owed an answer. It knows the radio's seam only."""

    def __init__(
        self,
        *,
        database: Database,
        radio: Radio,
        memory: Memory,
        outbox: Outbox,
        governor: Governor,
        router: Router,
        registry: Registry,
        replies: ReplySettings,
        clock: Clock,
        answer_within_s: float,
        loop_guard: LoopGuard,
        quiet: Quiet,
        orders: Orders,
    ) -> None:
        self._database = database
        self._radio = radio
        self._memory = memory
        self._outbox = outbox
        self._governor = governor
        self._router = router
        self._registry = registry
        self._replies = replies
        self._clock = clock
        self._answer_within_s = answer_within_s
        self._loop_guard = loop_guard
        self._quiet = quiet
        self._orders = orders
        self.heard = 0
        """Texts heard since the start, most of which are not for us."""
        self.refused = 0
        """Messages not answered for the sake of the air, the hour or an order, whether or not their sender was told."""

    async def hear(self, message: IncomingMessage) -> Exchange | None:
        """Decide on a message, and note it if it will be answered. Returns None for silence."""
        self.heard += 1
        decision = self._route(message)
        refusal = None
        if not isinstance(decision, Ignore) and not self._is_order(decision):
            decision, refusal = await self._judged(message, decision)
        _log_heard(message, decision if refusal is None else Ignore(refusal.reason))
        if isinstance(decision, Ignore) or (refusal and not refusal.text):
            return None
        return await self._note(message, decision, refusal.text if refusal else "")

    async def _judged(self, message: IncomingMessage, decision: Command | Prompt) -> tuple[Decision, Refusal | None]:
        """Whether what could be answered is answered, and if not, whether that is told."""
        if isinstance(decision, Prompt) and self._is_loop(message):
            return Ignore("taken for a bot that answers us"), None
        if reason := await self._orders.silence(message, self._node(message.sender)):
            self.refused += 1
            return Ignore(reason), None
        refusal = self._refusal(message, decision)
        if refusal:
            self.refused += 1
        return decision, refusal

    @again_if_replaced
    async def _note(self, message: IncomingMessage, decision: Command | Prompt, refusal: str) -> Exchange | None:
        async with self._database.transaction() as db:
            number = await heard.add(db, message)
            if number is None or (self._is_order(decision) and not await self._orders.is_new(db, message)):
                log.debug("silent on packet %08x: answered before", message.packet_id)
                return None
            if isinstance(decision, Prompt) and not refusal:
                await self._memory.heard(db, number, message, decision.text)
        return replace(self._exchange(number, message, decision), refusal=refusal)

    @again_if_replaced
    async def unanswered(self) -> Sequence[Exchange]:
        """What the last process heard and did not answer, in order of arrival. Needs a connected radio."""
        owed: list[Exchange] = []
        async with self._database.transaction() as db:
            for number, repeats, message in await heard.unsettled(db):
                decision = self._route(message)
                match decision:
                    case Ignore(reason):
                        pass
                    case _ if self._clock.now() - message.heard_at > self._answer_within_s:
                        reason = "it was asked too long ago"
                    case Command() | Prompt():
                        owed.append(replace(self._exchange(number, message, decision), repeats=repeats))
                        continue
                await heard.settle(db, number)
                log.warning(
                    "packet %08x from %s, heard before the start, stays unanswered: %s",
                    message.packet_id,
                    node_id(message.sender),
                    reason,
                )
        return owed

    def _is_order(self, decision: Command | Prompt) -> bool:
        """Whether it is a command of an admin's, which is followed at any hour."""
        return isinstance(decision, Command) and self._registry.commands[decision.name].admin

    def _route(self, message: IncomingMessage) -> Decision:
        if self._quiet.listens_only:
            return Ignore("airtime.transmit is off")
        me = self._radio.me
        if me is None:
            return Ignore("our own node is not known yet")
        return self._router.route(message, me.node, self._node(message.sender))

    def _is_loop(self, message: IncomingMessage) -> bool:
        answered_at = self._outbox.sent_at(self._router.reply_address(message).destination)
        return self._loop_guard.is_loop(message, now=self._clock.monotonic(), answered_at=answered_at)

    def _refusal(self, message: IncomingMessage, decision: Command | Prompt) -> Refusal | None:
        address = self._router.reply_address(message)
        return self._governor.refusal(
            message.sender,
            address,
            self._priority(message, decision),
            packet_bytes=min(address.limit_bytes, self._replies.max_characters),
        )

    def _priority(self, message: IncomingMessage, decision: Command | Prompt) -> Priority:
        match decision:
            case Command(name) if name != "more":
                return Priority.COMMAND
            case _ if isinstance(self._router.reply_address(message).destination, Direct):
                return Priority.DIRECT
            case _:
                return Priority.CHANNEL

    def _exchange(self, number: int, message: IncomingMessage, decision: Command | Prompt) -> Exchange:
        return Exchange(
            number, message, decision, self._router.reply_address(message), self._priority(message, decision)
        )

    def _node(self, number: NodeNum) -> Node:
        return self._radio.nodes().get(number, Node(number))


def _log_heard(message: IncomingMessage, decision: Decision) -> None:
    match decision:
        case Ignore(reason):
            meaning = f"silent, {reason}"
        case Command(name):
            meaning = f"!{name}"
        case Prompt():
            meaning = "a question"
    log.info(
        "heard packet %08x from %s on %s, %d bytes: %s",
        message.packet_id,
        node_id(message.sender),
        "direct" if message.is_direct else message.conversation,
        len(message.text.encode(errors="replace")),
        meaning,
    )
    log.debug("packet %08x says: %r", message.packet_id, message.text)
