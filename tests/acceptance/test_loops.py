"""The bot beside another that answers everything: the exchange ends by itself."""

import asyncio
import random
from pathlib import Path

import pytest

from meshai.clock import ScaledClock
from meshai.sim.air import Cause
from meshai.sim.mesh import SimulatedMesh
from tests.acceptance.bot import config, echoing, running


@pytest.mark.parametrize("thinks_s", [0.5, 15.0])
@pytest.mark.parametrize("channel", [None, 1])
async def test_a_bot_that_answers_everything_gets_three_answers(
    tmp_path: Path, thinks_s: float, channel: int | None
) -> None:
    clock = ScaledClock(60)
    async with SimulatedMesh(clock=clock, rng=random.Random(1)) as mesh, echoing() as model:
        node = mesh.node("MeshAI", "MAI", channels=("", "bots"))
        other = mesh.peer("OtherBot")

        async def answer_everything() -> None:
            while True:
                heard = await other.heard(10_000)
                await clock.sleep(thinks_s)
                words = f"@MeshAI you said: {heard.text}"[:200]
                await (other.send_direct(words) if channel is None else other.send_channel(channel, words))

        settings = config(node_port=await node.listen_tcp(), model_url=f"{model.url}/v1", folder=tmp_path)
        async with running(settings, clock) as parts:
            await parts.radio.ready()
            answering = asyncio.create_task(answer_everything())
            hello = "@MeshAI hello, I am a bot"
            await (other.send_direct(hello) if channel is None else other.send_channel(channel, hello))
            await clock.sleep(500)
            answering.cancel()
            assert parts.responder.answered <= 3
        said = {packet.reply_id for packet in mesh.log if packet.by == node.number and packet.cause is Cause.CLIENT}
    assert 1 <= len(said) <= 3
