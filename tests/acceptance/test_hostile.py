"""100,000 hostile packets: no traceback, and no transmission that a well-formed text addressed to us did not earn."""

import asyncio
import logging
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from meshtastic.protobuf import mesh_pb2

from meshai.app import Parts
from meshai.clock import ScaledClock
from meshai.config import BotSettings, ChannelSettings, CommandSettings
from meshai.messages import BROADCAST, Ignore, IncomingMessage, Node, NodeNum, TextLimits
from meshai.radio.packets import heard_from, node_from
from meshai.router import Router
from meshai.sim.air import Cause, OnAir
from meshai.sim.link import FRAME_BYTES, frame
from meshai.sim.mesh import SimulatedMesh
from meshai.sim.node import SimulatedNode
from meshai.sim.packets import TEXT, sender_of
from tests.acceptance.bot import config, echoing, running
from tests.acceptance.hostile import DictMutator, Mutator, dicts, made_up, published, real_frames, wires

MUTATED_FRAMES, MADE_UP_FRAMES = 36_000, 4_000
MUTATED_DICTS, MADE_UP_DICTS = 56_000, 4_000
BATCH = 200
OURS, ANNA, BOB, MARKER = 0x5E40_0001, 0x5E40_1111, 0x5E40_2222, 0x5E40_9999
MOST_PARTS, MOST_TRIES = 3, 5
"""Packets of an answer, and transmissions of each when acks are lost and naks forged."""


@dataclass(frozen=True, slots=True)
class Earned:
    """Where an answer may go, and which packet it must name."""

    to: NodeNum
    reply_id: int


def earned(
    *, sender: NodeNum, to: NodeNum, channel: int, packet_id: int, payload: bytes, is_tapback: bool, via_mqtt: bool
) -> Earned | None:
    """What a text earns, by the rules people are told and none of our own code; None is silence."""
    if not payload or is_tapback or via_mqtt or sender in (0, BROADCAST, OURS):
        return None
    if to == OURS:
        return Earned(sender, packet_id)
    text = payload.decode(errors="replace")
    first = next((sign for sign in text if sign.isprintable() and not sign.isspace()), "")
    is_called = "meshai" in text.lower() or first in "!！"
    return Earned(BROADCAST, packet_id) if to == BROADCAST and 1 <= channel <= 7 and is_called else None


def earned_by_frame(wire: bytes) -> tuple[Earned | None, NodeNum]:
    """What a frame earns, and its sender."""
    try:
        packet = mesh_pb2.FromRadio.FromString(wire).packet
    except DecodeError:
        return None, 0
    data, sender = packet.decoded, sender_of(packet)
    if data.portnum != TEXT or len(wire) > FRAME_BYTES:
        return None, sender
    answer = earned(
        sender=sender,
        to=packet.to,
        channel=packet.channel,
        packet_id=packet.id,
        payload=data.payload,
        is_tapback=data.emoji != 0,
        via_mqtt=packet.via_mqtt,
    )
    return answer, sender


class Flood:
    """Puts frames on the stream of whatever client is attached, no faster than the client takes them."""

    def __init__(self, node: SimulatedNode, parts: Parts) -> None:
        self._node = node
        self._parts = parts
        self._batches = 0

    async def put(self, wires: list[bytes]) -> None:
        radio = self._parts.radio
        await radio.ready()
        while (connection := self._node.ports.tcp) is None or connection.is_over:
            await asyncio.sleep(0.01)
        self._batches += 1
        name = f"batch {self._batches}"
        marker = mesh_pb2.NodeInfo(num=MARKER, user={"long_name": name}, last_heard=2**31)
        for wire in (*wires, mesh_pb2.FromRadio(node_info=marker).SerializeToString()):
            connection.inject(frame(wire))
        # A damaged frame may say that the node restarted, which ends the link: then the marker never comes.
        while not connection.is_over and radio.nodes().get(MARKER, Node(MARKER)).long_name != name:
            await asyncio.sleep(0.005)


@pytest.mark.slow
async def test_hostile_frames_bring_no_traceback_and_no_unearned_transmission(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    clock = ScaledClock(40)
    rng = random.Random(20)
    frames = await real_frames(OURS, (ANNA, BOB))
    invented = await asyncio.to_thread(made_up, wires((OURS, ANNA, BOB)), MADE_UP_FRAMES)
    owed: dict[Earned, set[NodeNum]] = defaultdict(set)
    caplog.set_level(logging.INFO)
    caplog.set_level(logging.ERROR, "meshtastic")  # which is silent otherwise
    async with SimulatedMesh(clock=clock, rng=random.Random(7)) as mesh, echoing() as model:
        node = mesh.node("MeshAI", "MAI", number=OURS, channels=("", "bots"))
        for number in (ANNA, BOB):
            mesh.peer(f"Person {number:x}", number=number)
        carl = mesh.peer("Carl")
        mutator = Mutator(rng, frames, lambda: (OURS, ANNA, BOB, *(packet.packet_id for packet in mesh.log[-20:])))

        def batches() -> Iterator[list[bytes]]:
            count = (MUTATED_FRAMES + MADE_UP_FRAMES) // BATCH
            for index in range(count):
                batch = invented[index::count]
                batch += [mutator.frame(int(clock.now())) for _ in range(BATCH - len(batch))]
                rng.shuffle(batch)
                yield batch

        settings = config(node_port=await node.listen_tcp(), model_url=f"{model.url}/v1", folder=tmp_path)
        async with running(settings, clock) as parts:
            await parts.radio.ready()
            await clock.sleep(15)
            flood = Flood(node, parts)
            for batch in batches():
                for answer, sender in map(earned_by_frame, batch):
                    if answer is not None:
                        owed[answer].add(sender)
                await flood.put(batch)
                await clock.sleep(6)
            answered = parts.responder.answered
            await clock.sleep(90)  # until the node tells a true time again
            question = await carl.send_direct("!ping")
            while (await carl.heard(6000)).reply_id != question:
                pass

    ours = [packet for packet in mesh.log if packet.by == OURS and packet.cause is not Cause.ACK]
    said = _check_earned([packet for packet in ours if packet.to != carl.number], owed)
    assert answered >= 20
    assert said >= 20
    assert "Traceback" not in "".join(capfd.readouterr())
    assert [record.message for record in caplog.records if record.exc_info] == []
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR and _is_ours(record)] == []


def _is_ours(record: logging.LogRecord) -> bool:
    """The library logs each text that is not UTF-8 as an error, and each end of a link."""
    return record.name.startswith("meshai")


def _check_earned(ours: list[OnAir], owed: Mapping[Earned, set[NodeNum]]) -> int:
    """Each packet answers a text that earned it, in so many parts and tries at most; returns how many answers."""
    parts: dict[Earned, Counter[str]] = defaultdict(Counter)
    for packet in ours:
        assert packet.is_text
        assert Earned(packet.to, packet.reply_id) in owed
        parts[Earned(packet.to, packet.reply_id)][packet.text] += 1
    for answer, texts in parts.items():
        if answer.reply_id:  # packets without an id cannot be told apart
            assert len(texts) <= MOST_PARTS * len(owed[answer])
            assert max(texts.values()) <= (len(owed[answer]) if answer.to == BROADCAST else MOST_TRIES)
    return len(parts)


def test_hostile_dicts_never_raise_and_route_nothing_that_is_not_addressed() -> None:
    router = Router(BotSettings(), ChannelSettings(), CommandSettings(), ("help", "ping", "more", "reset"))
    me = Node(OURS, "MeshAI", "MAI")
    limits = TextLimits(channel_bytes=160, direct_bytes=200)
    real = [published(each.packet) for each in asyncio.run(real_frames(OURS, (ANNA, BOB))) if each.HasField("packet")]
    mutator = DictMutator(random.Random(21), real, (OURS, ANNA, BOB))
    packets: list[Any] = [mutator.packet() for _ in range(MUTATED_DICTS)]
    packets += made_up(dicts((OURS, ANNA, BOB)), MADE_UP_DICTS)
    decisions: Counter[str] = Counter()
    for packet in packets:
        node_from(packet)
        message = heard_from(packet, limits, at=1.0, now=1_796_000_000.0).content
        if not isinstance(message, IncomingMessage):
            continue
        decision = router.route(message, me, Node(message.sender))
        decisions[type(decision).__name__] += 1
        if not isinstance(decision, Ignore):
            decoded = packet["decoded"]
            assert decoded["portnum"] == "TEXT_MESSAGE_APP"
            assert earned(
                sender=packet["from"],
                to=packet["to"],
                channel=packet.get("channel", 0),
                packet_id=0,
                payload=decoded["payload"],
                is_tapback=_is_number(decoded.get("emoji")),
                via_mqtt=packet.get("viaMqtt") is True,
            )
    assert min(decisions[name] for name in ("Ignore", "Prompt", "Command")) > 500


def _is_number(value: object) -> bool:
    """Whether a field of a packet says a number other than 0; of another type it says nothing."""
    return type(value) is int and 0 < value < 2**32
