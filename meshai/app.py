"""Builds the parts, runs them, stops them in order.

Stopping takes less than ten seconds whatever is happening: answers in progress get a moment, then packets waiting to
be sent, then the radio is left. What is not finished stays in SQLite for the next start.
"""

import asyncio
import logging
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from meshai import __version__, builtin, window
from meshai.clock import Clock
from meshai.config import Config, ModelSettings, database_path
from meshai.errors import MeshAIError, StoreError
from meshai.governor import Governor
from meshai.listener import Exchange, Listener
from meshai.loops import LoopGuard
from meshai.memory.memory import Memory, needed_tokens
from meshai.memory.retention import Retention
from meshai.messages import Node, NodeNum, TextLimits
from meshai.model.base import ChatMessage, LanguageModel
from meshai.model.tokens import estimate
from meshai.notify import Notifier
from meshai.orders import Orders
from meshai.outbox import Outbox
from meshai.quiet import Quiet
from meshai.radio.base import Radio
from meshai.radio.console import ConsoleRadio, lines_of
from meshai.radio.meshtastic import MeshtasticRadio
from meshai.registry import Registry
from meshai.responder import Responder
from meshai.router import Router, SettingKey, faults
from meshai.status import Report, Status, node_place, report
from meshai.store import heard, life
from meshai.store import outbox as outbox_rows
from meshai.store.database import Database, again_if_replaced
from meshai.store.keeper import kept_database

log = logging.getLogger(__name__)

REPLIES_GRACE_S: Final = 2.0
OUTBOX_GRACE_S: Final = 1.0
ALIVE_EVERY_S: Final = 300.0
"""How often it is noted that we listen: often enough to date what waited in the radio, rarely enough for an SD card."""
CONTEXT_MARGIN: Final = 0.9
"""Part of the context that prompts may fill, since tokens are estimated."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A built program, for those who look inside: the demo, tests and benchmarks."""

    database: Database
    radio: Radio
    outbox: Outbox
    listener: Listener
    responder: Responder
    memory: Memory
    retention: Retention
    look: Callable[[], Awaitable[Report]]
    """How everything is now."""


@asynccontextmanager
async def built(
    config: Config,
    *,
    database: Database,
    radio: Radio,
    model: LanguageModel | None,
    clock: Clock,
    rng: random.Random,
    loop_guard: LoopGuard | None = None,
) -> AsyncIterator[Parts]:
    """Wire the parts and enter radio and model, the radio first, since it is what must not wait."""
    registry = Registry()
    builtin.register(registry)
    started = clock.monotonic()

    memory = Memory(
        database,
        clock=clock,
        persona=config.bot.persona,
        model=model,
        budget_tokens=lambda: _budget_tokens(config.model, model),
        settings=config.memory,
    )
    governor = Governor(database, radio, config.airtime, clock=clock, queued_s=lambda: outbox.waiting_s)
    await governor.load()
    quiet = Quiet(config.airtime, clock)
    outbox = Outbox(
        database,
        radio,
        governor,
        listens_only=quiet.listens_only,
        clock=clock,
        rng=rng,
        gap_s=config.replies.gap_s,
        worth_saying_s=config.radio.answer_within_s,
        retries=config.replies.retries,
        lost=memory.lost,
    )

    def status() -> Status:
        me = radio.me
        return Status(
            version=__version__,
            uptime_s=clock.monotonic() - started,
            is_connected=radio.is_connected,
            radio=radio.state,
            node=node_place(me.node) if me is not None else None,
            region=me.region if me is not None else "",
            preset=me.preset if me is not None else "",
            firmware=me.firmware if me is not None else "",
            model=model.name if model is not None else "",
            model_trouble=model.trouble if model is not None else "",
            heard=listener.heard,
            answered=responder.answered,
            refused=listener.refused,
            apologies=responder.apologies,
            sent=outbox.sent,
            failed=outbox.failed,
            waiting=sum(outbox.queue.values()),
            airtime=governor.spending,
        )

    async def look() -> Report:
        return await report(database, radio, status(), quiet=quiet, queue=outbox.queue, now=clock.now())

    router = Router(config.bot, config.channels, config.commands, registry.commands, registry.admin_names)
    orders = Orders(database, quiet, clock)
    listener = Listener(
        database=database,
        radio=radio,
        memory=memory,
        outbox=outbox,
        governor=governor,
        router=router,
        registry=registry,
        replies=config.replies,
        clock=clock,
        answer_within_s=config.radio.answer_within_s,
        loop_guard=loop_guard or LoopGuard(),
        quiet=quiet,
        orders=orders,
    )
    responder = Responder(
        database=database,
        radio=radio,
        model=model,
        memory=memory,
        outbox=outbox,
        governor=governor,
        router=router,
        registry=registry,
        status=status,
        replies=config.replies,
        max_tokens=config.model.max_tokens,
        clock=clock,
        orders=orders,
    )
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(radio)
        if model is not None:
            await stack.enter_async_context(model)
        retention = Retention(database, memory.consent, config.memory, clock)
        yield Parts(database, radio, outbox, listener, responder, memory, retention, look)


async def serve(parts: Parts, *, stop: asyncio.Event, clock: Clock, notifier: Notifier) -> None:
    """Answer until `stop` is set, then finish in order."""

    async def document() -> bytes:
        return (await parts.look()).to_json()

    async with asyncio.TaskGroup() as services:
        background = [
            services.create_task(parts.outbox.run(), name="outbox"),
            services.create_task(parts.retention.run(), name="retention"),
            services.create_task(_note_life(parts.database, parts.radio, clock), name="life"),
            services.create_task(_watchdog(parts.radio, notifier, clock), name="watchdog"),
            services.create_task(parts.memory.upkeep(partial(_name, parts.radio)), name="memory"),
            services.create_task(window.show(window.window_of(parts.database.path), document), name="window"),
        ]
        notifier.ready()
        try:
            async with asyncio.TaskGroup() as replies:
                answering: set[asyncio.Task[None]] = set()
                await _listen(parts, stop, replies, answering)
                if not stop.is_set():
                    # The radio itself has ended, as a terminal's input does: no reason to hurry.
                    await _unless(stop, _finished(answering, parts.outbox))
                notifier.stopping()
                log.info("stopping: %d answers in progress", len(answering))
                if answering:
                    await asyncio.wait(answering, timeout=REPLIES_GRACE_S)
                for task in answering:
                    task.cancel()
            await _within(OUTBOX_GRACE_S, parts.outbox.drained())
        finally:
            for task in background:
                task.cancel()
    try:
        await _listening(parts.database, clock.now())
    except StoreError as error:
        log.warning("cannot note the time of the stop: %s", error)


async def _listen(
    parts: Parts, stop: asyncio.Event, replies: asyncio.TaskGroup, answering: set[asyncio.Task[None]]
) -> None:
    """Hear messages one by one and answer each in a task of its own, until told to stop."""

    def answer(exchange: Exchange) -> None:
        task = replies.create_task(
            _guard(parts.responder.respond(exchange), exchange), name=f"answer to {exchange.message.packet_id:08x}"
        )
        answering.add(task)
        task.add_done_callback(answering.discard)

    async def listen() -> None:
        await parts.radio.ready()
        for exchange in await parts.listener.unanswered():
            answer(exchange)
        async for message in parts.radio.messages():
            try:
                exchange_or_none = await parts.listener.hear(message)
            except MeshAIError as error:
                log.error("packet %08x is lost: %s", message.packet_id, error)
                continue
            if exchange_or_none is not None:
                answer(exchange_or_none)

    listening = asyncio.create_task(listen(), name="listen")
    stopping = asyncio.create_task(stop.wait(), name="stop signal")
    try:
        await asyncio.wait({listening, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            parts.database.hurry()
        parts.radio.stop()
        if not parts.radio.is_connected:
            listening.cancel()
        await asyncio.wait({listening}, timeout=REPLIES_GRACE_S)
    finally:
        listening.cancel()
        stopping.cancel()
        ended = await asyncio.gather(listening, stopping, return_exceptions=True)
    for result in ended:
        if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
            raise result


async def _guard(answering: Coroutine[Any, Any, None], exchange: Exchange) -> None:
    """The one place that catches everything for a message: it is logged and dropped, and the bot goes on."""
    try:
        await answering
    except Exception:
        log.exception("packet %08x stays unanswered by a fault of ours", exchange.message.packet_id)


async def _note_life(database: Database, radio: Radio, clock: Clock) -> None:
    while True:
        if radio.is_connected:
            try:
                await _listening(database, clock.now())
            except StoreError as error:
                log.warning("cannot note that we listen: %s", error)
        await clock.sleep(ALIVE_EVERY_S)


@again_if_replaced
async def _listening(database: Database, now: float) -> None:
    async with database.transaction() as db:
        await life.listening(db, now)


@again_if_replaced
async def _last_listened(database: Database) -> float | None:
    async with database.transaction() as db:
        return await life.last_listened(db)


@again_if_replaced
async def _owe_nothing(database: Database) -> int:
    """Drop what an earlier run owes; returns how many packets that were waiting."""
    async with database.transaction() as db:
        await heard.settle_all(db)
        packets = await outbox_rows.count(db)
        await outbox_rows.clear(db)
        return packets


def _name(radio: Radio, number: NodeNum) -> str:
    return radio.nodes().get(number, Node(number)).long_name


async def _watchdog(radio: Radio, notifier: Notifier, clock: Clock) -> None:
    """Tell systemd that this loop turns, and in one line how the radio is."""
    interval_s = min(notifier.watchdog_interval_s or 60.0, 60.0) / 2
    said = ""
    while True:
        notifier.watchdog()
        if radio.state != said:
            said = radio.state
            notifier.status(said)
        await clock.sleep(interval_s)


async def _finished(answering: set[asyncio.Task[None]], outbox: Outbox) -> None:
    if answering:
        await asyncio.wait(answering)
    await outbox.drained()


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Do the work, but not beyond the moment `stop` is set."""
    tasks = {asyncio.create_task(work), asyncio.create_task(stop.wait())}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _within(seconds: float, work: Coroutine[Any, Any, None]) -> None:
    try:
        async with asyncio.timeout(seconds):
            await work
    except TimeoutError:
        log.info("packets not sent in time stay for the next start")


def unusable(config: Config) -> dict[SettingKey, str]:
    """What of the settings cannot work with the commands there are, by key: what a start would refuse."""
    registry = Registry()
    builtin.register(registry)
    unusable = faults(config.bot, config.commands, registry.commands)
    persona = config.bot.persona
    lacking = needed_tokens(persona) - _budget_tokens(config.model)
    if lacking > 0:
        size = estimate([ChatMessage("system", persona)])
        unusable["bot", "persona"] = (
            f"found {len(persona)} characters, about {size} tokens; expected at most {max(size - lacking, 0)} tokens, "
            "which model.context_tokens less model.max_tokens leaves beside a question; shorten it or raise the former"
        )
    return unusable


def _budget_tokens(settings: ModelSettings, model: LanguageModel | None = None) -> int:
    """What a prompt may cost, so that the answer fits behind it."""
    room = settings.context_tokens if model is None else model.context_tokens
    return int((room - settings.max_tokens) * CONTEXT_MARGIN)


def node_radio(config: Config, *, clock: Clock, rng: random.Random, away_since: float | None = None) -> Radio:
    """The Meshtastic node the settings name; `away_since` is when we last listened to it, in Unix seconds."""
    return MeshtasticRadio(config.radio, _limits(config), clock=clock, rng=rng, away_since=away_since)


def terminal_radio(
    config: Config, *, clock: Clock, show: Callable[[str], None], lines: AsyncIterator[str] | None = None
) -> Radio:
    """A terminal in place of a node: each of `lines`, or of standard input, is a direct message."""
    return ConsoleRadio(_limits(config), clock=clock, lines=lines_of(sys.stdin) if lines is None else lines, show=show)


def _limits(config: Config) -> TextLimits:
    return TextLimits(config.replies.channel_bytes, config.replies.direct_bytes)


async def run(
    config: Config,
    *,
    clock: Clock,
    rng: random.Random,
    stop: asyncio.Event,
    notifier: Notifier,
    radio: Radio | None = None,
    model: LanguageModel | None = None,
    loop_guard: LoopGuard | None = None,
    starts_afresh: bool = False,
    watch: Callable[[Parts], Coroutine[Any, Any, None]] | None = None,
) -> None:
    """The whole program until `stop` is set. `radio`, `model` and `loop_guard` take the place of the usual ones.

    `starts_afresh` drops what an earlier run left unanswered, as nobody waits for it at a terminal. `watch`
    runs beside it and may look inside; it is cancelled at the end.
    """
    path = database_path(config)
    async with kept_database(path, clock=clock) as database:
        if starts_afresh or not config.airtime.transmit:
            packets = await _owe_nothing(database)
            if not config.airtime.transmit:
                log.warning("airtime.transmit is off: nothing is sent; %d packets from before are dropped", packets)
        if radio is None:
            away_since = await _last_listened(database)
            radio = node_radio(config, clock=clock, rng=rng, away_since=away_since)
        model = model or builtin.model(config.model, clock=clock)
        log.info("MeshAI %s, database %s, model %s", __version__, database.path, model.name if model else "none")
        async with built(
            config, database=database, radio=radio, model=model, clock=clock, rng=rng, loop_guard=loop_guard
        ) as parts:
            watching = asyncio.create_task(watch(parts), name="watch") if watch is not None else None
            try:
                await serve(parts, stop=stop, clock=clock, notifier=notifier)
            finally:
                if watching is not None:
                    watching.cancel()
                    await asyncio.gather(watching, return_exceptions=True)
