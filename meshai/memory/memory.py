"""What the bot remembers: keeps turns, and makes the context for a question.

The history of a conversation and its rolling summary; facts and recall take their place behind the same methods.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Final

from meshai.chunker import unread
from meshai.clock import Clock
from meshai.config import MemorySettings
from meshai.errors import StoreError
from meshai.memory import context, prompts, recall
from meshai.memory.attention import Attention
from meshai.memory.consent import Consent, Level
from meshai.memory.facts import Facts
from meshai.memory.language import languages
from meshai.memory.retention import wipe
from meshai.memory.summaries import Summaries
from meshai.messages import Channel, Conversation, Direct, IncomingMessage, NodeNum, OutgoingPacket, Turn, node_id
from meshai.model.base import ChatMessage, LanguageModel
from meshai.model.tokens import estimate
from meshai.plaintext import one_line_name
from meshai.store import facts, forgetting, identities, rests, summaries, turns
from meshai.store.database import Connection, Database, again_if_replaced

TURNS_READ: Final = 200
"""Most turns looked at for one context; a radio's short texts fill any small model's budget long before."""

LOOK_EVERY_S: Final = 10.0
"""How often it is looked whether something is to be done in the background."""

MORE_WITHIN_S: Final = 3600.0
"""How long the rest of an answer is kept for whoever asks for more."""

_LONGEST_NAME: Final = "0" * 40
_LONGEST_QUESTION: Final = "0" * 233
"""A packet's payload, and digits, which cost most."""


def needed_tokens(persona: str) -> int:
    """The least budget in which any question that a packet can carry gets asked."""
    system = prompts.system_text(persona, name=_LONGEST_NAME, room_characters=9999)
    return estimate([ChatMessage("system", system), ChatMessage("user", _LONGEST_QUESTION)])


class Memory:
    """The turns of every conversation, and the prompt made from them."""

    def __init__(
        self,
        database: Database,
        *,
        clock: Clock,
        persona: str,
        budget_tokens: Callable[[], int],
        model: LanguageModel | None = None,
        settings: MemorySettings = MemorySettings(),  # noqa: B008 - it is frozen
    ) -> None:
        self.consent = Consent(database, settings, clock)
        self._facts = Facts()
        self._database = database
        self._whole_turns = settings.window + settings.summarize_after
        self._clock = clock
        self._persona = persona
        self._languages = languages()
        self._budget_tokens = budget_tokens
        self._summaries = Summaries(database, settings, clock=clock, model=model, budget_tokens=budget_tokens)
        self._attention = Attention(clock)

    async def heard(self, db: Connection, exchange: int, message: IncomingMessage, question: str) -> None:
        """Keep a question, in the transaction that notes it was heard."""
        await self.consent.recognise(db, message)
        if not await self._keeps(db, exchange, message):
            return
        turn = Turn(message.conversation, question, message.sender, is_ours=False, at=message.heard_at)
        await turns.add_question(db, exchange, turn, packet_id=message.packet_id, public_key=message.public_key)
        if await self.consent.level(db, message) is Level.FULL:
            await self._facts.learn(db, message.conversation, message.sender, until=exchange)

    async def said(
        self,
        db: Connection,
        exchange: int,
        message: IncomingMessage,
        text: str,
        *,
        me: NodeNum,
        packet_id: int,
    ) -> None:
        """Keep what was queued as the answer, in the transaction that queues it."""
        turn = Turn(message.conversation, text, me, is_ours=True, at=self._clock.now())
        await turns.add_answer(db, exchange, turn, packet_id=packet_id)
        await self._summaries.said(db, message.conversation)

    def answering(self) -> AbstractContextManager[None]:
        """A block in which somebody waits for an answer; work in the background makes way for it."""
        return self._attention.answering()

    async def upkeep(self, name_of: Callable[[NodeNum], str]) -> None:
        """See to the notes of each conversation that has grown, while nobody waits, for ever.

        `name_of` gives a node's (untrusted) name, empty when it is not known.
        """
        await self._attention.when_free(self._summaries.begin)
        while True:
            if not await self._attention.when_free(partial(self._summaries.work, name_of)):
                await self._clock.sleep(LOOK_EVERY_S)

    @again_if_replaced
    async def context(
        self,
        exchange: int,
        message: IncomingMessage,
        question: str,
        *,
        name_of: Callable[[NodeNum], str],
        room_characters: int,
    ) -> context.Context:
        """The prompt for a question: nothing said after it, nothing from another conversation.

        `name_of` gives a node's (untrusted) name, empty when it is not known.
        """
        is_channel = isinstance(message.conversation, Channel)

        def shown(node: NodeNum, text: str) -> str:
            return prompts.spoken_by(name_of(node) or node_id(node), text) if is_channel else text

        def who(node: NodeNum) -> str:
            return one_line_name(name_of(node) or node_id(node)) if is_channel else "user"

        async def newest_first(db: Connection) -> AsyncIterator[context.Line]:
            if await self.consent.level(db, message) is Level.OFF:
                return
            async for number, turn in turns.newest(db, message.conversation, before=exchange, most=TURNS_READ):
                text = turn.text if turn.is_ours else shown(turn.node, turn.text)
                yield context.Line(number, ChatMessage("assistant" if turn.is_ours else "user", text))

        system = prompts.system_text(
            self._persona,
            name=None if is_channel else name_of(message.sender),
            room_characters=room_characters,
        )
        async with self._database.transaction() as db:
            level = await self.consent.level(db, message)
            kept = await summaries.find(db, message.conversation) if level is not Level.OFF else None
            facts: Sequence[str] = ()
            if level is Level.FULL:
                facts = await self._facts.lines(db, message.conversation, message.sender, question)

            async def recalled(before: int, tokens: int) -> Sequence[context.Recalled]:
                return await recall.find(
                    db,
                    message.conversation,
                    recall.Question(question, message.sender, message.heard_at),
                    before=min(before, exchange),
                    tokens=tokens,
                    speaker=lambda place: "you" if place.is_ours else who(place.node),
                    known=self._languages,
                )

            return await context.fit(
                system,
                newest_first(db),
                shown(message.sender, question),
                budget_tokens=self._budget_tokens(),
                whole_turns=self._whole_turns,
                summary=context.Digest(kept.text, kept.through) if kept is not None else None,
                facts=facts,
                recall=recalled if level is Level.FULL else None,
            )

    async def unheard(self, db: Connection, exchange: int) -> None:
        """Drop a question that got no answer, as it is settled; it would else be answered along with the next one."""
        await turns.remove(db, exchange)

    async def keep_rest(self, db: Connection, exchange: int, message: IncomingMessage, text: str) -> None:
        """Keep what an answer had to leave out, in the transaction that queues it; with "" there is none any more."""
        now = self._clock.now()
        if not await self._keeps(db, exchange, message):
            text = ""
            # The question goes with this transaction; the answer, in the outbox, when it is sent.
            await forgetting.be_due(db)
        await rests.keep(db, message.conversation, message.sender, rests.Rest(exchange, text, now))
        await rests.drop_older(db, now - MORE_WITHIN_S)

    async def said_more(self, db: Connection, message: IncomingMessage, text: str, *, rest: str) -> None:
        """Keep more of the last answer as said, and what is still left of it."""
        earlier = await rests.find(db, message.conversation, message.sender)
        if earlier is not None:
            # What was lost is in the answer already, as it was to be sent with it.
            if not earlier.is_lost:
                await turns.extend_answer(db, earlier.exchange, text)
            await self.keep_rest(db, earlier.exchange, message, rest)

    @again_if_replaced
    async def rest(self, message: IncomingMessage) -> rests.Rest | None:
        """What of the last answer to this sender, here and within the hour, was left out or lost."""
        async with self._database.transaction() as db:
            if await self.consent.level(db, message) is Level.OFF:
                return None
            rest = await rests.find(db, message.conversation, message.sender)
        return rest if rest is not None and self._clock.now() - rest.cut_at <= MORE_WITHIN_S else None

    @again_if_replaced
    async def lost(self, exchange: int, packets: Sequence[OutgoingPacket]) -> None:
        """Keep the last packets of a reply, which did not reach the node they were for, for when it asks for more."""
        node = packets[0].address.destination
        if not isinstance(node, Direct):
            return
        async with self._database.transaction() as db:
            is_off = await self.consent.level_of(db, node) is Level.OFF
            if is_off or await forgetting.is_forgotten(db, exchange):
                return
            earlier = await rests.find(db, node, node.node)
            # A newer answer leaves nothing to say of an older one.
            if earlier is None or earlier.exchange <= exchange:
                text = unread(packets, earlier.text if earlier is not None else "")
                await rests.keep(db, node, node.node, rests.Rest(exchange, text, self._clock.now(), is_lost=True))

    @again_if_replaced
    async def count(self, conversation: Conversation, node: NodeNum) -> int:
        """How many turns are kept of what `node` began in this conversation; StoreError while that is not known."""
        async with self._database.transaction() as db:
            self._need_all()
            return await turns.count(db, conversation, node)

    @again_if_replaced
    async def level(self, message: IncomingMessage) -> Level:
        """What is kept of what the sender says here; `OFF` also when its number is another's."""
        async with self._database.transaction() as db:
            await self.consent.recognise(db, message)
            return await self.consent.level(db, message)

    async def choose(self, message: IncomingMessage, level: Level) -> bool:
        """Keep that much of the sender from now on, and forget what is beyond it; False when it may not choose.

        Raises StoreError while the database file cannot be used, since what is in there would come back.
        """
        if not await self._choose(message, level):
            return False
        if level is Level.OFF:
            await self._forget(message)
        if level is not Level.FULL:
            await wipe(self._database)
        return True

    @again_if_replaced
    async def _choose(self, message: IncomingMessage, level: Level) -> bool:
        async with self._database.transaction() as db:
            self._need_all()
            await self.consent.recognise(db, message)
            if not self.consent.proves_sender(message) or not await self.consent.is_theirs(db, message):
                return False
            await identities.set_level(db, message.sender, level)
            if level is not Level.FULL:
                known = await facts.known(db, message.conversation, message.sender, with_closed=True)
                await facts.remove(db, [fact.row for fact in known])
        return True

    async def forget(self, message: IncomingMessage) -> int | None:
        """Delete what the sender began in this conversation, answers too; returns how many turns went.

        None when that may be somebody else's. Raises StoreError while the database file cannot be used, since what is
        in there would come back.
        """
        gone = await self._forget(message)
        await wipe(self._database)
        return gone

    @again_if_replaced
    async def _forget(self, message: IncomingMessage) -> int | None:
        conversation, node = message.conversation, message.sender
        async with self._database.transaction() as db:
            self._need_all()
            await self.consent.recognise(db, message)
            if not await self.consent.is_theirs(db, message):
                return None
            await rests.drop(db, conversation, node)
            gone = await forgetting.forget(db, conversation, await forgetting.begun_by(db, conversation, node))
            # What others said there is still to be in the notes.
            await self._summaries.said(db, conversation)
            return gone

    async def _keeps(self, db: Connection, exchange: int, message: IncomingMessage) -> bool:
        is_off = await self.consent.level(db, message) is Level.OFF
        return not is_off and not await forgetting.is_forgotten(db, exchange)

    def _need_all(self) -> None:
        if self._database.is_stand_in:
            raise StoreError("the database file cannot be used now")
