"""300 messages from 20 nodes in six scripts: every addressed one that is heard is answered once, and none other."""

import itertools
import random
import re
from collections import defaultdict
from pathlib import Path

import pytest

from meshai.clock import ScaledClock
from meshai.messages import BROADCAST
from meshai.sim.air import Cause
from meshai.sim.mesh import SimulatedMesh
from meshai.sim.people import crowd, crowd_talk, perform
from tests.acceptance.bot import config, echoing, running

PART = re.compile(r"\((\d+)/(\d+)\) ")


@pytest.mark.slow
async def test_every_addressed_message_is_answered_once_and_no_other(tmp_path: Path) -> None:
    clock = ScaledClock(60)
    async with SimulatedMesh(clock=clock, rng=random.Random(11), preset="SHORT_FAST") as mesh, echoing() as model:
        node = mesh.node("MeshAI", "MAI", channels=("", "bots"))
        people = crowd(mesh)
        settings = config(node_port=await node.listen_tcp(), model_url=f"{model.url}/v1", folder=tmp_path)
        async with running(settings, clock) as parts:
            await parts.radio.ready()
            talk = crowd_talk(random.Random(5))
            said = await perform(talk, people, clock=clock)
            async with clock.timeout(1200):
                while True:
                    await clock.sleep(5)
                    await parts.outbox.drained()
                    heard = {given.packet_id for given in node.given}
                    wanted = {packet_id for line, packet_id in said if line.wants_answer} & heard
                    if parts.responder.answered == len(wanted):
                        break
            await clock.sleep(30)
        ours = [packet for packet in mesh.log if packet.by == node.number and packet.cause is Cause.CLIENT]

    # Every addressed one once, none other: by the id each answer replies to. A part that was lost is sent again.
    tries: dict[int, list[str]] = defaultdict(list)
    for packet in ours:
        assert packet.is_text
        tries[packet.reply_id].append(packet.text)
    parts_of = {packet_id: list(dict.fromkeys(texts)) for packet_id, texts in tries.items()}
    assert len(said) == 300
    assert len(wanted) >= 0.95 * sum(line.wants_answer for line, _ in said), "few questions are lost"
    assert set(parts_of) == wanted
    assert parts.responder.apologies == 0

    # To whom asked, where they asked, with the answer to their question.
    asked = {packet_id: line for line, packet_id in said}
    for packet in ours:
        line = asked[packet.reply_id]
        place = (people[line.speaker].number, 0) if line.channel is None else (BROADCAST, line.channel)
        assert (packet.to, packet.channel if line.channel is not None else 0) == place
        assert packet.text_bytes <= (200 if line.channel is None else 160)
    for packet_id, texts in parts_of.items():
        line = asked[packet_id]
        words = line.text.rpartition(": ")[2]
        assert words == "!ping" or words[:30] in texts[0]

    # Whole answers, their parts in order and nothing of another reply to the same place between them.
    for texts in parts_of.values():
        numbers = [match.groups() for text in texts if (match := PART.match(text))]
        if len(texts) > 1:
            assert numbers == [(str(part), str(len(texts))) for part in range(1, len(texts) + 1)]
    by_place: dict[tuple[int, int], list[int]] = defaultdict(list)
    for packet in ours:
        by_place[packet.to, packet.channel].append(packet.reply_id)
    for replies in by_place.values():
        runs = [reply for reply, _ in itertools.groupby(replies)]
        assert len(runs) == len(set(runs))

    # The node refused nothing, and never got two texts within 2.5 s.
    assert node.firmware.refusals == []
    assert all(later - earlier >= 2.5 for earlier, later in itertools.pairwise(node.firmware.text_times))
    assert len(node.firmware.text_times) == len(ours)
    assert all(len(packet.text) <= 150 and packet.text_bytes <= 200 for packet in ours)
