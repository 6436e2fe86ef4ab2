"""An answer travels two hops further than its question needed, and never further than our node's own limit."""

import random
from contextlib import suppress
from pathlib import Path

from meshai.clock import ScaledClock
from meshai.sim.air import Cause
from meshai.sim.mesh import SimulatedMesh
from tests.acceptance.bot import config, echoing, running


async def test_hop_limits_of_answers(tmp_path: Path) -> None:
    clock = ScaledClock(50)
    async with SimulatedMesh(clock=clock, rng=random.Random(1)) as mesh, echoing() as model:
        node = mesh.node(channels=("", "bots"), hop_limit=4)
        people = [mesh.peer(f"At {distance}", distance=distance) for distance in range(4)]
        settings = config(node_port=await node.listen_tcp(), model_url=f"{model.url}/v1", folder=tmp_path)
        async with running(settings, clock) as parts:
            await parts.radio.ready()
            for peer in people:
                answer = None
                while answer is None:
                    await peer.send_direct("hello", hop_limit=5)
                    with suppress(TimeoutError):
                        answer = await peer.heard(200)
                await parts.outbox.drained()
                await clock.sleep(30)
        hops = {given.packet_id: given.hops for given in node.given}
        answers = [packet for packet in mesh.log if packet.cause is Cause.CLIENT and packet.by == node.number]
    assert {packet.to for packet in answers} == {peer.number for peer in people}
    assert {0, 1} < {hops[packet.reply_id] for packet in answers}
    for packet in answers:
        assert packet.hop_limit == min(hops[packet.reply_id] + 2, 4)
