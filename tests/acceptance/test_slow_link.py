"""A node that takes longer than half a minute to describe itself is waited for, as long as it goes on."""

import random
from pathlib import Path

import pytest

from meshai.clock import ScaledClock
from meshai.sim.link import LinkConditions
from meshai.sim.mesh import SimulatedMesh
from tests.acceptance.bot import config, echoing, running


@pytest.mark.parametrize("delay_s", [0.9, 5.0])
async def test_a_slow_configuration_is_waited_for(tmp_path: Path, delay_s: float) -> None:
    clock = ScaledClock(50)
    async with SimulatedMesh(clock=clock, rng=random.Random(1)) as mesh, echoing() as model:
        node = mesh.node()
        anna = mesh.peer("Anna")
        node.ports.conditions = LinkConditions(config_delay_s=delay_s)
        settings = config(node_port=await node.listen_tcp(), model_url=f"{model.url}/v1", folder=tmp_path)
        async with running(settings, clock) as parts:
            async with clock.timeout(500):
                await parts.radio.ready()
            assert len(node.connects) == 1
            await anna.send_direct("are you there?")
            assert "are you there?" in (await anna.heard(200)).text
