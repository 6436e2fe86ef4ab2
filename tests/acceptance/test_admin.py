"""Orders of admins: by encrypted direct messages with a listed key through a real link, and by nothing that is less."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from meshtastic.protobuf import mesh_pb2

from meshai.app import Parts
from meshai.clock import ScaledClock
from meshai.config import BotSettings, Config
from meshai.messages import BROADCAST, key_text, node_id
from meshai.sim.air import Cause
from meshai.sim.mesh import SimulatedMesh
from meshai.sim.node import SimulatedNode
from meshai.sim.packets import TEXT, make_packet
from meshai.sim.peers import Peer
from tests.acceptance.bot import config, echoing, running
from tests.model.serving import HttpServer

ORDERS = ("!quiet 2h", "!quiet off", "!ignore !a1b2c3d4", "!ignore", "!unignore !a1b2c3d4", "!stats", "!restart-radio")


@dataclass(slots=True)
class Town:
    """Admin, Anna and the bot's node on one mesh."""

    mesh: SimulatedMesh
    node: SimulatedNode
    admin: Peer
    anna: Peer
    model: HttpServer
    clock: ScaledClock
    settings: Config

    def answers(self) -> int:
        return sum(packet.by == self.node.number and packet.cause is Cause.CLIENT for packet in self.mesh.log)

    async def ask(self, who: Peer, text: str, *, timeout_s: float = 120) -> str:
        """Somebody writes to the bot, by encrypted direct message, and reads the answer to that."""
        packet_id = await who.send_direct(text)
        parts: list[str] = []
        while not parts or f"({len(parts)}/" not in parts[0]:
            heard = await who.heard(timeout_s)
            if heard.reply_id == packet_id:
                parts.append(heard.text)
                if not heard.text.startswith("(1/"):
                    break
        await self.clock.sleep(20)
        return " ".join(parts)

    async def is_silent(self, seconds: float = 60) -> bool:
        before = self.answers()
        await self.clock.sleep(seconds)
        return self.answers() == before


@asynccontextmanager
async def town(folder: Path, *, admins: list[str] | None = None) -> AsyncIterator[Town]:
    clock = ScaledClock(50)
    async with SimulatedMesh(clock=clock, rng=random.Random(8)) as mesh, echoing() as model:
        node = mesh.node(channels=("", "bots"))
        admin, anna = mesh.peer("Admin"), mesh.peer("Anna")
        keys = tuple([key_text(admin.identity.public_key)] if admins is None else admins)
        settings = config(node_port=await node.listen_tcp(), model_url=f"{model.url}/v1", folder=folder)
        settings = settings.model_copy(update={"bot": BotSettings(admin_keys=keys)})
        yield Town(mesh, node, admin, anna, model, clock, settings)


async def nothing_was_ordered(parts: Parts) -> bool:
    async with parts.database.transaction() as db:
        tables = [
            await (await db.execute(f"SELECT count(*) FROM {table}")).fetchone()
            for table in ("quiet", "ignored", "ordered")
        ]
    return [row[0] for row in tables if row] == [0, 0, 0]


async def test_an_admin_silences_the_bot_and_wakes_it_also_across_a_restart(tmp_path: Path) -> None:
    async with town(tmp_path) as there:
        async with running(there.settings, there.clock) as parts:
            await parts.radio.ready()
            assert "!quiet" in await there.ask(there.admin, "!help")
            assert "!quiet" not in await there.ask(there.anna, "!help")
            assert (await there.ask(there.admin, "!quiet 2h")).startswith("Quiet for 2 h")
            for text in ("hello", "!ping"):
                await there.anna.send_direct(text)
                assert await there.is_silent()
            await there.anna.send_channel(1, "@MeshAI !ping")
            assert await there.is_silent()
            # Also an admin is only answered to orders.
            await there.admin.send_direct("!ping")
            assert await there.is_silent()
            assert "refused 4" in await there.ask(there.admin, "!stats")
        async with running(there.settings, there.clock, rng=random.Random(2)) as parts:
            await parts.radio.ready()
            await there.anna.send_direct("still quiet?")
            assert await there.is_silent()
            assert (await there.ask(there.admin, "!quiet")).startswith("Quiet for 1 h ")
            assert await there.ask(there.admin, "@MeshAI !quiet off") == "No longer quiet."
            assert "hello again" in await there.ask(there.anna, "hello again")
        assert len(there.model.asked) == 1


async def test_an_admin_has_a_node_ignored_by_id_and_by_key(tmp_path: Path) -> None:
    async with town(tmp_path) as there:
        key = key_text(there.anna.identity.public_key)
        async with running(there.settings, there.clock) as parts:
            await parts.radio.ready()
            await there.ask(there.admin, f"!ignore {node_id(there.anna.number)}")
            await there.anna.send_direct("!ping")
            assert await there.is_silent()
        async with running(there.settings, there.clock, rng=random.Random(2)) as parts:
            await parts.radio.ready()
            await there.anna.send_channel(1, "@MeshAI !ping")
            assert await there.is_silent()
            assert node_id(there.anna.number) in await there.ask(there.admin, "!ignore")
            await there.ask(there.admin, f"!ignore {key}")
            await there.ask(there.admin, f"!unignore {node_id(there.anna.number)}")
            # Her key is known of old, so that the channel does not hide her.
            await there.anna.send_channel(1, "@MeshAI !ping")
            assert await there.is_silent()
            await there.ask(there.admin, f"!unignore {key}")
            assert (await there.ask(there.anna, "!ping")).startswith("pong")


async def test_an_admin_restarts_the_radio_and_reads_the_answer_over_the_new_link(tmp_path: Path) -> None:
    async with town(tmp_path) as there, running(there.settings, there.clock) as parts:
        await parts.radio.ready()
        connects = len(there.node.connects)
        assert (await there.ask(there.admin, "!restart-radio")).startswith("The link to my radio is a new one")
        assert len(there.node.connects) == connects + 1
        assert there.node.open_connections == 1
        assert (await there.ask(there.anna, "!ping")).startswith("pong")


async def test_for_everybody_else_orders_do_not_exist(tmp_path: Path) -> None:
    async with town(tmp_path) as there, running(there.settings, there.clock) as parts:
        await parts.radio.ready()
        connects = len(there.node.connects)
        for text in ORDERS:
            word = text.split()[0]
            unknown = await there.ask(there.anna, text.replace(word, "!weather"))
            assert await there.ask(there.anna, text) == unknown.replace("!weather", word)
        assert "no command !quiet" in await there.ask(there.anna, "!help quiet")
        for who in (there.admin, there.anna):
            for text in ("!stats", "@MeshAI !quiet 2h"):
                await who.send_channel(1, text)
                assert await there.is_silent()
        assert await nothing_was_ordered(parts)
        assert len(there.node.connects) == connects


async def test_a_number_without_the_key_or_a_key_without_its_encryption_orders_nothing(tmp_path: Path) -> None:
    async with town(tmp_path) as there, running(there.settings, there.clock) as parts:
        await parts.radio.ready()
        key, other = there.admin.identity.public_key, there.anna.identity.public_key
        forgeries = [
            ("the number alone", there.admin.number, False, b"", False),
            ("the number, and the key without its encryption", there.admin.number, False, key, False),
            ("the number, encrypted with another key", there.admin.number, True, other, False),
            ("the number, encrypted with no key that is told", there.admin.number, True, b"", False),
            ("a key cut short", there.admin.number, True, key[:31], False),
            ("all of it, but from the internet", there.admin.number, True, key, True),
        ]
        for number, (how, sender, is_encrypted, shown, via_mqtt) in enumerate(forgeries):
            for order, text in enumerate(ORDERS):
                packet = make_packet(
                    sender, there.node.number, TEXT, text.encode(), packet_id=1000 + 100 * number + order
                )
                packet.pki_encrypted, packet.public_key, packet.via_mqtt = is_encrypted, shown, via_mqtt
                # As a client could be told by an older node, which passes on what is not encrypted.
                there.node.firmware.deliver(packet)
            await there.clock.sleep(60)
            assert await nothing_was_ordered(parts), how
        broadcast = make_packet(there.admin.number, BROADCAST, TEXT, b"!quiet 2h", packet_id=9000, channel=1)
        broadcast.pki_encrypted, broadcast.public_key = True, key
        there.node.firmware.deliver(broadcast)
        await there.clock.sleep(30)
        assert await nothing_was_ordered(parts)
        assert not any("Quiet for" in text.text for text in there.admin.inbox)
        # Nothing but the proof was missing.
        genuine = make_packet(there.admin.number, there.node.number, TEXT, b"!quiet 2h", packet_id=9001)
        genuine.pki_encrypted, genuine.public_key = True, key
        there.node.firmware.deliver(genuine)
        await there.clock.sleep(30)
        assert not await nothing_was_ordered(parts)


async def test_an_order_that_is_played_again_is_followed_once_also_when_all_else_forgot_it(tmp_path: Path) -> None:
    async with town(tmp_path) as there:
        recorded: mesh_pb2.MeshPacket | None = None
        async with running(there.settings, there.clock) as parts:
            await parts.radio.ready()
            packet_id = await there.admin.send_direct("!quiet 2h")
            await there.admin.heard()
            recorded = make_packet(there.admin.number, there.node.number, TEXT, b"!quiet 2h", packet_id=packet_id)
            recorded.pki_encrypted, recorded.public_key = True, there.admin.identity.public_key
            await there.clock.sleep(20)
            await there.ask(there.admin, "!quiet off")
            async with parts.database.transaction() as db:
                await db.execute("DELETE FROM heard")
        async with running(there.settings, there.clock, rng=random.Random(2)) as parts:
            await parts.radio.ready()
            there.node.firmware.deliver(recorded)
            assert await there.is_silent()
            assert (await there.ask(there.anna, "!ping")).startswith("pong")


async def test_a_key_that_is_not_listed_any_more_orders_nothing(tmp_path: Path) -> None:
    admins = [key_text(bytes(32)), key_text(b"k" * 32)]
    async with town(tmp_path, admins=admins) as there, running(there.settings, there.clock) as parts:
        await parts.radio.ready()
        assert "no command !quiet" in await there.ask(there.admin, "!quiet 2h")
        assert await nothing_was_ordered(parts)
