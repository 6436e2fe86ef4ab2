"""One message in, packets out.

Theory of operation. `hear` decides and, for what deserves an answer, notes it in SQLite, one message at a time in order
of arrival. `respond` then answers it: questions of one node one after the other, of different nodes in parallel,
commands at once. An answer is queued, remembered and its question settled in one transaction, so that a crash at any
moment leaves a question either fully unanswered (the next start answers it) or fully answered.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from meshai.characters import is_blank
from meshai.chunker import rest_of, split, text_of
from meshai.clock import Clock
from meshai.commands.base import Request
from meshai.commands.more import asks_for_more
from meshai.config import ReplySettings
from meshai.errors import CommandError, ContextTooLong, ModelError, ModelRefused, ModelTimeout, StoreError
from meshai.governor import Governor, Refusal
from meshai.loops import LoopGuard
from meshai.memory.memory import Memory
from meshai.messages import (
    Command,
    Decision,
    Direct,
    Ignore,
    IncomingMessage,
    Node,
    NodeNum,
    OutgoingPacket,
    Priority,
    Prompt,
    Reply,
    node_id,
)
from meshai.model.base import LanguageModel
from meshai.orders import Orders
from meshai.outbox import Outbox
from meshai.plaintext import disarm, plain
from meshai.quiet import Quiet
from meshai.radio.base import Radio
from meshai.registry import Registry
from meshai.router import Router
from meshai.status import Status
from meshai.store import heard
from meshai.store.database import Database, again_if_replaced

log = logging.getLogger(__name__)

LOST_NOTE: Final = "(Part of my last answer got lost.)"
"""What a node is told when it is heard again after an answer did not reach it; while it could not, nothing could."""
WORKING_SIGN: Final = "⏳"
MOST_REPEATS: Final = 10
"""How often a question is begun again whose process ended meanwhile; one that is there after more may be the cause.
Many, for the cause may as well be a power supply that fails again and again."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A heard message that is owed an answer."""

    number: int
    message: IncomingMessage
    decision: Command | Prompt
    refusal: str = ""
    """It is not answered, for the sake of the air, and this is said instead."""
    repeats: int | None = None
    """For one that the last process left: how often it was begun again already."""

    @property
    def is_given_up(self) -> bool:
        """It was in hand when the process ended, again and again: its sender is told so, and it is not tried again."""
        return self.repeats is not None and self.repeats >= MOST_REPEATS


class Responder:
    """Decides, asks, answers. It knows the seams only, never a concrete radio or model."""

    def __init__(
        self,
        *,
        database: Database,
        radio: Radio,
        model: LanguageModel | None,
        memory: Memory,
        outbox: Outbox,
        governor: Governor,
        router: Router,
        registry: Registry,
        status: Callable[[], Status],
        replies: ReplySettings,
        max_tokens: int,
        clock: Clock,
        answer_within_s: float,
        loop_guard: LoopGuard,
        quiet: Quiet,
        orders: Orders,
    ) -> None:
        self._database = database
        self._radio = radio
        self._model = model
        self._memory = memory
        self._outbox = outbox
        self._governor = governor
        self._router = router
        self._registry = registry
        self._status = status
        self._replies = replies
        self._max_tokens = max_tokens
        self._clock = clock
        self._answer_within_s = answer_within_s
        self._loop_guard = loop_guard
        self._quiet = quiet
        self._orders = orders
        self._turnstiles: dict[NodeNum, _Turnstile] = {}
        self._at_once = asyncio.Semaphore(model.at_once if model is not None else 1)
        self.heard = 0
        """Texts heard since the start, most of which are not for us."""
        self.answered = 0
        """Messages answered since the start, apologies included."""
        self.refused = 0
        """Messages not answered for the sake of the air, the hour or an order, whether or not their sender was told."""
        self.apologies = 0
        """Questions the model gave no answer to."""
        self.asking = 0
        """Questions the model works on, or that wait for it."""

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
        return Exchange(number, message, decision, refusal)

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
                        owed.append(Exchange(number, message, decision, repeats=repeats))
                        continue
                await heard.settle(db, number)
                log.warning(
                    "packet %08x from %s, heard before the start, stays unanswered: %s",
                    message.packet_id,
                    node_id(message.sender),
                    reason,
                )
        return owed

    async def respond(self, exchange: Exchange) -> None:
        """Answer one message, or settle it in silence."""
        if exchange.is_given_up:
            text = "Sorry, I broke down over your message several times." if exchange.message.is_direct else ""
            await self._say(exchange, Reply(text, is_failure=True))
            return
        if exchange.refusal:
            await self._say(exchange, Reply(exchange.refusal, is_failure=True))
            return
        match exchange.decision:
            case Command("more") as command:
                # Behind the answer it goes on with, which may still be written.
                async with self._in_order(exchange.message.sender):
                    await self._say(exchange, await self._run(exchange, command))
            case Command() as command:
                await self._say(exchange, await self._run(exchange, command))
            case Prompt(question):
                async with self._in_order(exchange.message.sender):
                    await self._say(exchange, await self._ask(exchange, question))

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
        return self._governor.refusal(
            message.sender,
            self._router.reply_address(message),
            self._priority(message, decision),
            packet_bytes=self._packet_bytes(message),
        )

    def _priority(self, message: IncomingMessage, decision: Command | Prompt) -> Priority:
        match decision:
            case Command(name) if name != "more":
                return Priority.COMMAND
            case _ if isinstance(self._router.reply_address(message).destination, Direct):
                return Priority.DIRECT
            case _:
                return Priority.CHANNEL

    def _packet_bytes(self, message: IncomingMessage) -> int:
        """Bytes of a full packet to this address, in a script of one byte a character."""
        return min(self._router.reply_address(message).limit_bytes, self._replies.max_characters)

    def _most_packets(self, message: IncomingMessage, priority: Priority) -> int:
        return self._governor.most_packets(
            self._router.reply_address(message),
            priority,
            packet_bytes=self._packet_bytes(message),
            most=self._replies.max_packets,
        )

    async def _begin(self, exchange: Exchange) -> None:
        """Note that one of the last process is begun again; waiting for its turn at a process's end is no guilt."""
        if exchange.repeats is None:
            return
        try:
            await self._note_repeat(exchange.number, exchange.repeats + 1)
        except StoreError as error:
            log.error("cannot note that a question is asked again: %s", error)

    @again_if_replaced
    async def _note_repeat(self, number: int, repeats: int) -> None:
        async with self._database.transaction() as db:
            await heard.note_repeats(db, number, repeats)

    async def _run(self, exchange: Exchange, command: Command) -> Reply:
        message = exchange.message
        await self._begin(exchange)
        is_from_admin = self._router.is_from_admin(message)
        request = Request(
            message,
            command.argument,
            self._node(message.sender),
            self._memory,
            self._status,
            self._orders,
            self._radio,
            self._clock,
            {name: each for name, each in self._registry.commands.items() if is_from_admin or not each.admin},
        )
        try:
            return await self._registry.commands[command.name].run(request)
        except CommandError as error:
            return Reply(str(error) if message.is_direct else "")
        except StoreError as error:
            log.error("!%s failed: %s", command.name, error)
            return Reply("My memory cannot be reached right now." if message.is_direct else "")

    async def _ask(self, exchange: Exchange, question: str) -> Reply:
        """The model's answer, or a short honest text to the person (on a channel: silence) when there is none."""
        message = exchange.message
        rest = await self._memory.rest(message)
        if rest is not None and asks_for_more(question):
            return Reply(rest.text, remember=True)
        try:
            if self._model is None:
                raise _NoModel
            async with self._working(exchange), self._at_once:
                await self._begin(exchange)
                nodes = self._radio.nodes()
                packets = self._most_packets(message, self._priority(message, exchange.decision))
                context = await self._memory.context(
                    exchange.number,
                    message,
                    question,
                    name_of=lambda number: nodes.get(number, Node(number)).long_name,
                    room_characters=self._packet_bytes(message) * packets,
                )
                log.debug("asking with %d turns, about %d tokens", context.turns, context.tokens)
                completion = await self._model.complete(context.messages, max_tokens=self._max_tokens)
            me = self._radio.me
            speakers = [self._node(message.sender), *([me.node] if me else [])]
            text = _without_speaker(plain(completion.text), speakers)
            if is_blank(text):
                raise ModelRefused("the answer held no text but reasoning or markup; raise model.max_tokens?")
            return Reply(f"{LOST_NOTE} {text}" if rest is not None and rest.is_lost else text, remember=True)
        except ModelError as error:
            self.apologies += 1
            if not isinstance(error, _NoModel):
                log.warning("no answer for %s: %s", node_id(message.sender), error)
            return Reply(_apology(error) if message.is_direct else "", is_failure=True)

    @again_if_replaced
    async def _say(self, exchange: Exchange, reply: Reply) -> None:
        """Cut the reply into packets, queue and remember them, and settle the question, all or nothing."""
        message, me = exchange.message, self._radio.me
        text = disarm(reply.text)
        priority = Priority.COMMAND if exchange.refusal else self._priority(message, exchange.decision)
        packets = split(
            text,
            self._router.reply_address(message),
            max_packets=self._most_packets(message, priority),
            max_characters=self._replies.max_characters,
        )
        async with self._database.transaction() as db:
            first_id = await self._outbox.add(db, exchange.number, packets, priority)
            if reply.is_failure:
                await self._memory.unheard(db, exchange.number)
            if reply.continues:
                await self._memory.said_more(db, message, text_of(packets), rest=rest_of(text, packets))
            if reply.remember and me is not None:
                await self._memory.keep_rest(db, exchange.number, message, rest_of(text, packets))
                await self._memory.said(
                    db, exchange.number, message, text_of(packets), me=me.node.number, packet_id=first_id
                )
            await heard.settle(db, exchange.number)
        self._outbox.wake()
        if packets:
            self.answered += 1

    def _node(self, number: NodeNum) -> Node:
        return self._radio.nodes().get(number, Node(number))

    @asynccontextmanager
    async def _working(self, exchange: Exchange) -> AsyncIterator[None]:
        """Count the question, and put a sign to it, if the settings ask for it, when this block takes long."""
        sign: asyncio.Task[None] | None = None
        if self._replies.working_after_s:
            sign = asyncio.create_task(self._sign(exchange), name=f"sign to {exchange.message.packet_id:08x}")
        self.asking += 1
        try:
            yield
        finally:
            self.asking -= 1
            if sign is not None:
                sign.cancel()
                await asyncio.gather(sign, return_exceptions=True)

    async def _sign(self, exchange: Exchange) -> None:
        await self._clock.sleep(self._replies.working_after_s)
        address = self._router.reply_address(exchange.message)
        try:
            await self._put_sign(exchange.number, OutgoingPacket(address, WORKING_SIGN, is_tapback=True))
        except StoreError as error:
            log.error("cannot say that an answer takes long: %s", error)
        self._outbox.wake()

    @again_if_replaced
    async def _put_sign(self, exchange: int, sign: OutgoingPacket) -> None:
        async with self._database.transaction() as db:
            await self._outbox.add(db, exchange, [sign], Priority.COMMAND)

    @asynccontextmanager
    async def _in_order(self, sender: NodeNum) -> AsyncIterator[None]:
        """Questions of one node pass one at a time, in the order they came."""
        turnstile = self._turnstiles.setdefault(sender, _Turnstile())
        turnstile.waiting += 1
        try:
            async with turnstile.lock:
                yield
        finally:
            turnstile.waiting -= 1
            if not turnstile.waiting:
                del self._turnstiles[sender]


class _Turnstile:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.waiting = 0


class _NoModel(ModelError):
    """No model is set up: known since the start, not worth a log line each time."""


def _without_speaker(text: str, speakers: Sequence[Node]) -> str:
    """Small models begin an answer with somebody's name and a colon, as in a script."""
    for name in {name for node in speakers for name in (node.long_name, node.short_name) if name}:
        if text.startswith(f"{name}:"):
            return text[len(name) + 1 :].lstrip()
    return text


def _apology(error: ModelError) -> str:
    match error:
        case _NoModel():
            return "No language model is set up here, so I only answer commands: !help"
        case ModelTimeout():
            return "Sorry, my language model did not answer in time. Please ask again later."
        case ModelRefused():
            return "Sorry, my language model gave no usable answer. Please ask in other words."
        case ContextTooLong():
            return "Sorry, that is more than my language model can take in. Please ask in fewer words."
        case _:
            return "Sorry, I can't reach my language model right now. Commands still work: !help"


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
