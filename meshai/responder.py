"""One exchange in, packets out.

Theory of operation. Questions of one node are answered one after the other, of different nodes in parallel, commands at
once. An answer is queued, remembered and its question settled in one transaction, so that a crash at any
moment leaves a question either fully unanswered (the next start answers it) or fully answered.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from meshai.characters import is_blank
from meshai.chunker import rest_of, split, text_of
from meshai.clock import Clock
from meshai.commands.base import Request
from meshai.commands.more import asks_for_more
from meshai.config import ReplySettings
from meshai.errors import CommandError, ContextTooLong, ModelError, ModelRefused, ModelTimeout, StoreError
from meshai.governor import Governor
from meshai.listener import Exchange
from meshai.memory.memory import Memory
from meshai.messages import (
    Address,
    Command,
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
from meshai.radio.base import Radio
from meshai.registry import Registry
from meshai.router import Router
from meshai.status import Status
from meshai.store import heard
from meshai.store.database import Database, again_if_replaced

log = logging.getLogger(__name__)

LOST_NOTE: Final = "(Part of my last answer got lost.)"
"""What a node is told when it is heard again after an answer did not reach it; while it could not, nothing could."""
NOTES_KEPT: Final = "(I keep notes; see, extend, stop: !memory)"
"""Said once to each node: what is kept of it is no secret."""
WORKING_SIGN: Final = "⏳"


class Responder:
    """Asks and answers. It knows the seams only, never a concrete radio or model."""

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
        self._orders = orders
        self._turnstiles: dict[NodeNum, _Turnstile] = {}
        self._at_once = asyncio.Semaphore(model.at_once if model is not None else 1)
        self.answered = 0
        """Messages answered since the start, apologies included."""
        self.apologies = 0
        """Questions the model gave no answer to."""
        self.asking = 0
        """Questions the model works on, or that wait for it."""

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

    def _packet_bytes(self, address: Address) -> int:
        """Bytes of a full packet to this address, in a script of one byte a character."""
        return min(address.limit_bytes, self._replies.max_characters)

    def _most_packets(self, address: Address, priority: Priority) -> int:
        return self._governor.most_packets(
            address,
            priority,
            packet_bytes=self._packet_bytes(address),
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
                packets = self._most_packets(exchange.address, exchange.priority)
                context = await self._memory.context(
                    exchange.number,
                    message,
                    question,
                    name_of=lambda number: nodes.get(number, Node(number)).long_name,
                    room_characters=self._packet_bytes(exchange.address) * packets,
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
        priority = Priority.COMMAND if exchange.refusal else exchange.priority
        cut = partial(
            split,
            address=exchange.address,
            max_packets=self._most_packets(exchange.address, priority),
            max_characters=self._replies.max_characters,
        )
        async with self._database.transaction() as db:
            if reply.remember and message.is_direct and await self._memory.consent.tell(db, message.sender):
                # At the end it would be cut off with the rest.
                is_whole = not rest_of(last := f"{text}\n{NOTES_KEPT}", cut(last))
                text = last if is_whole else f"{NOTES_KEPT}\n{text}"
            packets = cut(text)
            first_id = await self._outbox.add(db, exchange.number, packets, priority)
            if reply.is_failure:
                await self._memory.unheard(db, exchange.number)
            if reply.continues:
                await self._memory.said_more(db, message, text_of(packets), rest=rest_of(text, packets))
            if reply.remember and me is not None:
                await self._memory.keep_rest(db, exchange.number, message, rest_of(text, packets))
                # The model would learn to say the line itself.
                said = text_of(packets).removesuffix(NOTES_KEPT).removeprefix(NOTES_KEPT).strip()
                await self._memory.said(db, exchange.number, message, said, me=me.node.number, packet_id=first_id)
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
            with self._memory.answering():
                yield
        finally:
            self.asking -= 1
            if sign is not None:
                sign.cancel()
                await asyncio.gather(sign, return_exceptions=True)

    async def _sign(self, exchange: Exchange) -> None:
        await self._clock.sleep(self._replies.working_after_s)
        try:
            await self._put_sign(exchange.number, OutgoingPacket(exchange.address, WORKING_SIGN, is_tapback=True))
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
