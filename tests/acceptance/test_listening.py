"""The bot on a real link where nothing may be sent: told only to listen, or hearing only what is old news."""

import random
from pathlib import Path

import pytest

from meshai.clock import ScaledClock
from meshai.config import AirtimeSettings, Config
from meshai.messages import Address, Direct, IncomingMessage, OutgoingPacket, Priority, TextLimits
from meshai.sim.air import Cause, OnAir
from meshai.sim.mesh import SimulatedMesh
from meshai.sim.node import SimulatedNode
from meshai.sim.packets import TEXT, make_packet
from meshai.sim.peers import HeardText
from meshai.sim.residents import replay
from meshai.store import heard
from meshai.store import outbox as outbox_rows
from meshai.store.database import Database, open_database
from tests.acceptance.bot import config, echoing, running


def sent_by(mesh: SimulatedMesh, node: SimulatedNode) -> list[OnAir]:
    """What the bot had its node transmit."""
    return [packet for packet in mesh.log if packet.by == node.number and packet.cause is Cause.CLIENT]


async def owed(database: Database) -> tuple[int, int]:
    """(packets to send, questions to answer) in the database."""
    async with database.transaction() as db:
        return await outbox_rows.count(db), len(await heard.unsettled(db))


async def test_with_transmit_off_it_hears_and_sends_nothing_whatever_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    clock = ScaledClock(50)
    async with SimulatedMesh(clock=clock, rng=random.Random(4)) as mesh, echoing() as model:
        node = mesh.node(channels=("", "bots"))
        anna = mesh.peer("Anna")
        async with open_database(tmp_path / "meshai.db") as database, database.transaction() as db:
            question = IncomingMessage(77, anna.number, node.number, 0, "hi?", clock.now(), TextLimits(160, 200))
            answered = await heard.add(db, question)
            assert answered is not None
            await heard.settle(db, answered)
            reply = OutgoingPacket(Address(Direct(anna.number), 200), "an answer from before", packet_id=78)
            await outbox_rows.add(db, answered, [reply], clock.now(), Priority.DIRECT)
            await heard.add(
                db, IncomingMessage(79, anna.number, node.number, 0, "?", clock.now(), TextLimits(160, 200))
            )
        settings = config(node_port=await node.listen_tcp(), model_url=f"{model.url}/v1", folder=tmp_path)
        settings = settings.model_copy(update={"airtime": AirtimeSettings(transmit=False)})
        async with running(settings, clock) as parts:
            await parts.radio.ready()
            await anna.send_direct("hello")
            await anna.send_direct("!ping")
            await anna.send_channel(1, "@MeshAI !help")
            await clock.sleep(60)
            assert await owed(parts.database) == (0, 0)
        assert sent_by(mesh, node) == []
        assert [text.text for text in anna.inbox] == []
        assert model.asked == []
    assert caplog.text.count("silent, airtime.transmit is off") == 3
    assert "1 packets from before are dropped" in caplog.text


async def test_old_news_and_a_large_node_database_cause_no_transmission(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    clock = ScaledClock(50)
    async with SimulatedMesh(clock=clock, rng=random.Random(4)) as mesh, echoing() as model:
        node = mesh.node(channels=("", "bots"))
        anna, server = mesh.peer("Anna"), mesh.peer("Store and forward")
        for number in range(500):
            mesh.peer(f"Resident {number}")
        settings: Config = config(node_port=await node.listen_tcp(), model_url=f"{model.url}/v1", folder=tmp_path)
        async with running(settings, clock) as parts:
            await parts.radio.ready()
            assert len(parts.radio.nodes()) >= 503
            await clock.sleep(60)
            assert sent_by(mesh, node) == []

            # A server replays old questions, wrapped in its own port or, as our node would unwrap them, as texts.
            old = [
                HeardText(clock.now() - 7200, anna.number, node.number, channel, 900 + channel, text, 0, False, 0)
                for channel, text in ((0, b"what time is it?"), (1, b"!ping"))
            ]
            await replay(server, node.number, old)
            for text in old:
                packet = make_packet(
                    text.sender, text.to, TEXT, text.payload, packet_id=text.packet_id + 10, channel=text.channel
                )
                packet.rx_time = int(text.at)
                node.firmware.client.put(packet)
            # Questions that were carried to us over the internet.
            await anna.send_channel(1, "@MeshAI !ping", via_mqtt=True)
            await anna.send_channel(1, "@MeshAI how are you?", via_mqtt=True)
            await clock.sleep(120)
            assert sent_by(mesh, node) == []
            assert model.asked == []
            assert caplog.text.count("silent, stale") == 2
            assert caplog.text.count("silent, came over MQTT") == 2

            # It was not deaf.
            await anna.send_direct("!ping")
            assert (await anna.heard()).text.startswith("pong")
