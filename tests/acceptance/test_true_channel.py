"""The bot on a true channel: somebody at the end of a line of lossy relays asks, and is answered."""

import itertools
import random
from pathlib import Path

import pytest

from meshai.clock import ScaledClock
from meshai.sim.topology import LinkSpec, NodeSpec, Topology
from tests.acceptance.bot import config, echoing, running

LINE = ("MAI", "ANNA", "RDGE", "FAR")


@pytest.mark.slow
async def test_person_three_hops_away_is_answered(tmp_path: Path) -> None:
    topology = Topology(
        nodes=(
            NodeSpec("MAI", "MeshAI", role="CLIENT_MUTE", is_ours=True),
            *(NodeSpec(short) for short in LINE[1:]),
        ),
        links=tuple(LinkSpec((one, other), loss=0.02) for one, other in itertools.pairwise(LINE)),
    )
    clock = ScaledClock(60)
    async with topology.mesh(clock=clock, rng=random.Random(9)) as mesh, echoing() as model:
        node = topology.settle(mesh, channels=("", "bots"))
        far = next(peer for peer in mesh.peers.values() if peer.identity.short_name == "FAR")
        settings = config(node_port=await node.listen_tcp(), model_url=f"{model.url}/v1", folder=tmp_path)
        async with running(settings, clock) as parts:
            await parts.radio.ready()
            asked = []
            for number in range(5):
                asked.append(await far.send_direct(f"question {number}"))
                await clock.sleep(180)
    heard_of = {packet.reply_id for packet in mesh.log if packet.is_text and packet.by == node.number}
    answered = {heard.reply_id for heard in far.inbox}
    assert answered <= set(asked)
    assert len(heard_of) >= 3, "most questions come over three hops at all"
    assert len(answered) >= len(heard_of) - 1, "and their answers back"
    assert {heard.hops for heard in far.inbox} == {2}
    assert node.firmware.refusals == []
