"""100 forced disconnects of every fault kind in a row: the bot answers afterwards, and nothing piles up."""

import asyncio
import os
import random
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pubsub import pub

from meshai.clock import ScaledClock
from meshai.config import Config, RadioSettings
from meshai.radio.meshtastic import MeshtasticRadio
from meshai.sim.faults import SERIAL_FAULTS, TCP_FAULTS, LinkFault
from meshai.sim.mesh import SimulatedMesh
from meshai.sim.node import SimulatedNode
from tests.acceptance.bot import config, echoing, running

LEAST_BREAKS = 5
"""How often at least each kind that breaks a link has to break it."""
NOTICED_S = 60.0
"""How soon the bot has to notice a node that says nothing more."""
SILENT = frozenset({LinkFault.MUTE, LinkFault.HALF_OPEN})


@dataclass(frozen=True)
class Way:
    """One way of being attached to a node, with what can happen to it."""

    is_serial: bool
    rounds: tuple[LinkFault, ...]
    """The faults, one after the other."""
    breaking: frozenset[LinkFault]
    """Kinds that end a link by themselves; under any other the link is ended by force."""
    unseen: frozenset[LinkFault]
    """Breaking kinds that end no connection: only the heartbeat probe can notice them."""
    unheard: frozenset[LinkFault]
    """Kinds under which the node misses the bot's goodbye: what it says until the bot is back, nobody reads."""
    force: tuple[LinkFault, ...]
    speed: float

    async def attach(self, node: SimulatedNode, settings: Config, folder: Path) -> Config:
        port = await node.open_pty(folder / "usb-radio") if self.is_serial else None
        address = str(port) if self.is_serial else f"tcp:127.0.0.1:{await node.listen_tcp()}"
        return settings.model_copy(update={"radio": RadioSettings(address=address)})


STANDING = frozenset(
    {LinkFault.SLOW, LinkFault.GARBAGE, LinkFault.LOG_TEXT, LinkFault.CORRUPT_FRAME, LinkFault.WRONG_LENGTH}
)
BREAKING_SERIAL = frozenset({*SILENT, LinkFault.REBOOT, LinkFault.RENUMBER, LinkFault.UNPLUG})
TCP = Way(
    is_serial=False,
    rounds=tuple(sorted(TCP_FAULTS) * 7)[:100],
    breaking=TCP_FAULTS - STANDING,
    unseen=frozenset({LinkFault.HALF_OPEN}),
    unheard=frozenset(),
    force=(LinkFault.CLOSE, LinkFault.RESET),
    speed=100,
)
SERIAL = Way(
    is_serial=True,
    # Fewer and slower: the library pauses 0.4 s to open a port and 0.1 s after each write, by the machine's clock, and
    # the writes before a text must not take the 10 s after which a node counts as taking nothing in.
    rounds=(*sorted(SERIAL_FAULTS) * 3, *sorted(BREAKING_SERIAL) * (LEAST_BREAKS - 3)),
    breaking=BREAKING_SERIAL,
    unseen=SILENT,
    unheard=frozenset({LinkFault.MUTE}),
    force=(LinkFault.UNPLUG,),
    speed=40,
)


def descriptors(*begins: str) -> int:
    """Open files of this process whose name begins so."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{name}").startswith(begins)
        except OSError:
            continue
    return count


def topics(topic: Any) -> Iterator[Any]:
    """A topic of the library's and all below it."""
    yield topic
    for below in topic.getSubtopics():
        yield from topics(below)


def left_open() -> dict[str, object]:
    """Whatever a link may leave behind."""
    root = pub.getDefaultTopicMgr().getRootAllTopics()
    return {
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "tasks": len(asyncio.all_tasks()),
        "sockets": descriptors("socket:"),
        "terminals": descriptors("/dev/pt"),
        "subscriptions": sum(len(list(topic.getListeners())) for topic in topics(root)),
    }


async def disconnect(
    node: SimulatedNode, radio: MeshtasticRadio, kind: LinkFault, way: Way, rng: random.Random
) -> None:
    """Inflict a fault, and end the link by force where it would stand; returns when the node is healthy again."""
    clock = node.firmware.air.clock
    seconds = rng.uniform(90, 95) if kind in SILENT else rng.uniform(1, 5)
    fault = asyncio.create_task(node.fault(kind, seconds=seconds))
    if kind in way.unseen:
        began = clock.monotonic()
        while radio.is_connected:
            assert clock.monotonic() - began < NOTICED_S, f"{kind} was not noticed"
            await clock.sleep(0.5)
    elif kind not in way.breaking:
        await clock.sleep(rng.uniform(0.2, 1.5))
        await node.fault(rng.choice(way.force), seconds=1.0)
    await fault


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", [pytest.param(TCP, id="tcp"), pytest.param(SERIAL, id="serial")])
async def test_after_every_fault_a_question_is_answered_and_nothing_is_left_behind(tmp_path: Path, way: Way) -> None:
    clock = ScaledClock(way.speed)
    rng = random.Random(4)
    async with (
        SimulatedMesh(clock=clock, rng=random.Random(2), preset="SHORT_FAST") as mesh,
        echoing() as model,
    ):
        node = mesh.node("MeshAI", "MAI", channels=("", "bots"))
        anna = mesh.peer("Anna", "ANNA")
        settings = config(node_port=1, model_url=f"{model.url}/v1", folder=tmp_path)
        settings = await way.attach(node, settings, tmp_path)
        asked: list[int] = []
        may_repeat: set[int] = set()
        losses: Counter[LinkFault] = Counter()
        async with running(settings, clock) as parts:
            radio = parts.radio
            assert isinstance(radio, MeshtasticRadio)

            async def ask(number: int) -> None:
                """Anna asks once and is answered."""
                packet_id = await anna.send_direct(f"question {number}")
                try:
                    while (heard := await anna.heard(900)).reply_id != packet_id or heard.is_tapback:
                        pass
                except TimeoutError:
                    pytest.fail(f"question {number} was not answered; {radio.state}")
                assert f"question {number}" in heard.text
                asked.append(packet_id)

            async def quiet() -> dict[str, object]:
                await parts.outbox.drained()
                await radio.ready()
                await clock.sleep(60)
                return left_open()

            await radio.ready()
            await ask(0)
            before = await quiet()
            for number, kind in enumerate(way.rounds, start=1):
                if kind is LinkFault.RENUMBER or kind in way.unheard:
                    may_repeat.add(asked[-1])
                lost_before = radio.counts.losses
                await disconnect(node, radio, kind, way, rng)
                if kind in way.unheard:
                    await radio.ready()
                await clock.sleep(rng.uniform(6, 12))  # as a person reads and types, whether or not the bot is back
                await ask(number)
                assert radio.counts.losses > lost_before, f"round {number}, {kind}: the link was not lost"
                losses[kind] += 1
                assert node.open_connections <= 1
            after = await quiet()
            assert radio.counts.connects == radio.counts.losses + 1 > len(way.rounds)
            assert radio.counts.stuck_threads == 0
        assert losses == Counter(way.rounds)
        assert min(losses[kind] for kind in way.breaking) >= LEAST_BREAKS
        answers = Counter(text.reply_id for text in anna.inbox if not text.is_tapback)
        assert set(answers) == set(asked)
        # An ack under way to the node's former number is lost for good, and the answer then comes from another number.
        # One the node says to a closed serial port is lost too; and the node, which knows no new link, ignores the id.
        assert {packet_id for packet_id, times in answers.items() if times > 1} <= may_repeat
        assert max(answers.values()) <= 2
    assert after == before
