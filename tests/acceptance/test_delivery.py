"""Direct answers over links that lose packets: whole, in order, hardly ever twice, and bounded."""

import asyncio
import random
import re
from pathlib import Path

import pytest

from meshai.clock import ScaledClock
from meshai.sim.air import Cause
from meshai.sim.mesh import SimulatedMesh
from tests.acceptance.bot import config, echoing, running

PART = re.compile(r"\((\d)/(\d)\) ")


@pytest.mark.slow
async def test_answers_arrive_whole_and_in_order_at_thirty_percent_loss(tmp_path: Path) -> None:
    clock = ScaledClock(50)
    async with SimulatedMesh(clock=clock, rng=random.Random(3), preset="SHORT_FAST") as mesh, echoing() as model:
        node = mesh.node(channels=("", "bots"))
        people = [mesh.peer(f"Person {number}", loss=0.3, role="CLIENT_MUTE") for number in range(15)]
        settings = config(node_port=await node.listen_tcp(), model_url=f"{model.url}/v1", folder=tmp_path)
        async with running(settings, clock) as parts:
            await parts.radio.ready()
            for round_number in range(2):
                for number, peer in enumerate(people):
                    await peer.send_direct(f"question {round_number} of {number} " + "with words " * 6)
                    await clock.sleep(10)  # a channel that is not too busy for answers of several packets
                await clock.sleep(60)
                await parts.outbox.drained()
        heard = len(model.asked)
        tries = sum(packet.cause is Cause.CLIENT for packet in mesh.log)
        whole = 0
        for peer in people:
            for reply_id in {text.reply_id for text in peer.inbox}:
                read = [text.text for text in peer.inbox if text.reply_id == reply_id]
                numbers = [int(found[1]) for text in dict.fromkeys(read) if (found := PART.match(text))]
                assert numbers == sorted(numbers)
                first = PART.match(read[0])  # none in an answer that was kept to one packet, the channel being busy
                whole += first is None or len(numbers) == int(first[2])
    assert heard >= 25, "the firmware's own three tries bring most questions through"
    assert whole >= heard - 1, "three tries of three transmissions each are hardly ever lost"
    assert tries <= 1.25 * 3 * heard, "late acks spare most second tries"


async def test_an_ack_that_comes_late_costs_at_most_one_more_copy(tmp_path: Path) -> None:
    clock = ScaledClock(50)
    async with SimulatedMesh(clock=clock, rng=random.Random(3)) as mesh, echoing() as model:
        node = mesh.node()
        anna = mesh.peer("Anna")
        anna.acks.delay_s = 50
        settings = config(node_port=await node.listen_tcp(), model_url=f"{model.url}/v1", folder=tmp_path)
        async with running(settings, clock) as parts:
            await parts.radio.ready()
            await anna.send_direct("hello")
            await clock.sleep(200)
            await parts.outbox.drained()
            assert parts.outbox.failed == 0
        texts = [text.text for text in anna.inbox]
    assert 1 <= len(texts) <= 2
    assert len(set(texts)) == 1


async def test_a_part_that_was_lost_around_a_restart_arrives_all_the_same(tmp_path: Path) -> None:
    clock = ScaledClock(50)
    async with SimulatedMesh(clock=clock, rng=random.Random(3)) as mesh, echoing() as model:
        node, anna = mesh.node(), mesh.peer("Anna")
        settings = config(node_port=await node.listen_tcp(), model_url=f"{model.url}/v1", folder=tmp_path)
        async with running(settings, clock) as parts:
            await parts.radio.ready()
            await anna.send_direct("hello " + "with words " * 6)
            anna.is_deaf = True
            async with asyncio.timeout(20):
                while not node.firmware.text_times:
                    await clock.sleep(0.5)
        anna.is_deaf = False
        async with running(settings, clock) as parts:
            async with asyncio.timeout(20):
                while len(anna.inbox) < 3:
                    await clock.sleep(1)
                await parts.outbox.drained()
        assert [text.text[:5] for text in anna.inbox] == ["(1/3)", "(2/3)", "(3/3)"]
        assert len(model.asked) == 1
