"""The client protocol over a socket: download, heartbeat, admin, packets kept, one client at a time."""

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest
from meshtastic.protobuf import admin_pb2, channel_pb2, mesh_pb2, telemetry_pb2

from meshai.clock import ScaledClock
from meshai.sim.link import START, Deframer, frame
from meshai.sim.mesh import SimulatedMesh
from meshai.sim.packets import ADMIN, TELEMETRY, TEXT
from meshai.testing import ManualClock
from tests.sim.clients import DeskClient, SocketClient, eventually, routings, statuses, text_packet
from tests.sim.conftest import Attach, Dial

CONFIGS = [
    "device",
    "position",
    "power",
    "network",
    "display",
    "lora",
    "bluetooth",
    "security",
    "sessionkey",
    "device_ui",
]
MODULES = [
    "mqtt",
    "serial",
    "external_notification",
    "store_forward",
    "range_test",
    "telemetry",
    "canned_message",
    "audio",
    "remote_hardware",
    "neighbor_info",
    "ambient_lighting",
    "detection_sensor",
    "paxcounter",
]


def outline(messages: list[mesh_pb2.FromRadio]) -> list[str]:
    """The kinds of messages in order, with the variant of a config."""
    kinds = []
    for message in messages:
        kind = message.WhichOneof("payload_variant")
        if kind in ("config", "moduleConfig"):
            kind += f" {getattr(message, kind).WhichOneof('payload_variant')}"
        kinds.append(kind)
    return kinds


SETTINGS = [
    *["channel"] * 8,
    *(f"config {name}" for name in CONFIGS),
    *(f"moduleConfig {name}" for name in MODULES),
    *["moduleConfig None"] * 3,
]


async def test_download_in_the_firmwares_order(mesh: SimulatedMesh, dial: Dial) -> None:
    node = mesh.node(channels=("", "bots"))
    peers = [mesh.peer(name) for name in ("Ann", "Bob")]
    async with dial(await node.listen_tcp()) as client:
        client.writer.write(b"\xc3" * 32)
        messages = await client.configure(77)
        assert outline(messages) == [
            *["my_info", "deviceuiConfig", "node_info", "metadata"],
            *SETTINGS,
            *["node_info", "node_info", "fileInfo", "config_complete_id"],
        ]
        assert messages[-1].config_complete_id == 77
        own, *others = client.of("node_info")
        assert (own.num, own.user.id, own.user.long_name) == (node.number, f"!{node.number:08x}", "MeshAI")
        assert len(own.user.public_key) == 32
        assert [(other.num, other.user.long_name) for other in others] == [
            (peer.number, peer.identity.long_name) for peer in peers
        ]
        (info,) = client.of("my_info")
        assert (info.my_node_num, info.min_app_version, info.nodedb_count) == (node.number, 30200, 3)
        (metadata,) = client.of("metadata")
        assert metadata.firmware_version.startswith("2.7.26")
        assert metadata.hasPKC
        channels = client.of("channel")
        assert [channel.index for channel in channels] == list(range(8))
        roles = channel_pb2.Channel.Role
        assert [channel.role for channel in channels] == [roles.PRIMARY, roles.SECONDARY, *[roles.DISABLED] * 6]
        assert [(channel.settings.name, channel.settings.psk) for channel in channels[:3]] == [
            ("", b"\x01"),
            ("bots", b"\x01"),
            ("", b""),
        ]
        (lora,) = [config.lora for config in client.of("config") if config.HasField("lora")]
        assert (lora.use_preset, lora.modem_preset, lora.region, lora.hop_limit) == (True, 0, 1, 3)


async def test_names_too_long_for_a_node_end_between_graphemes(mesh: SimulatedMesh, dial: Dial) -> None:
    mesh.peer("x" * 37 + "山", "a👩\u200d🚀")
    mesh.peer("x" * 38 + "é", "👩\u200d🚀", number=0xA11CAFE)
    node = mesh.node("Мой очень разговорчивый помощник", "Мой")
    async with dial(await node.listen_tcp()) as client:
        await client.configure()
        users = [info.user for info in client.of("node_info")]
    assert [(user.long_name, user.short_name) for user in users] == [
        ("Мой очень разговорчи", "Мо"),
        ("x" * 37, "a"),
        ("x" * 38, "cafe"),
    ]


async def test_special_requests(mesh: SimulatedMesh, dial: Dial) -> None:
    node = mesh.node()
    mesh.peer("Ann")
    async with dial(await node.listen_tcp()) as client:
        assert outline(await client.configure(69420)) == [
            *["my_info", "deviceuiConfig", "node_info", "metadata"],
            *SETTINGS,
            *["fileInfo", "config_complete_id"],
        ]
        assert outline(await client.configure(69421)) == ["node_info", "node_info", "config_complete_id"]


async def test_preset_and_region_are_told() -> None:
    async with SimulatedMesh(
        clock=ScaledClock(50), rng=random.Random(1), preset="MEDIUM_SLOW", region="EU_868"
    ) as mesh:
        node = mesh.node(hop_limit=5)
        port = await node.listen_tcp()
        client = await SocketClient.connect(mesh.clock, port)
        await client.configure()
        await client.close()
        (lora,) = [config.lora for config in client.of("config") if config.HasField("lora")]
        assert (lora.modem_preset, lora.region, lora.hop_limit) == (3, 3, 5)


async def test_new_request_restarts_the_download(clock: ManualClock, still: SimulatedMesh) -> None:
    desk = DeskClient(still.node().firmware)
    desk.hand_over(mesh_pb2.ToRadio(want_config_id=1))
    for _ in range(5):
        desk.phone.next()
    desk.hand_over(mesh_pb2.ToRadio(want_config_id=2))
    messages = desk.take()
    assert outline(messages)[0] == "my_info"
    assert [message.config_complete_id for message in messages if message.config_complete_id] == [2]


async def test_heartbeat(clock: ManualClock, still: SimulatedMesh) -> None:
    node = still.node()
    desk = DeskClient(node.firmware)
    desk.hand_over(mesh_pb2.ToRadio(heartbeat=mesh_pb2.Heartbeat()))
    (answer,) = desk.take()
    assert (answer.queueStatus.mesh_packet_id, answer.queueStatus.free, answer.queueStatus.maxlen) == (0, 16, 16)
    for _ in range(2):  # the second within a minute is skipped
        desk.hand_over(mesh_pb2.ToRadio(heartbeat=mesh_pb2.Heartbeat(nonce=1)))
        await clock.advance(10)
    assert all(packet_id != 0 for packet_id, _ in statuses(desk.take()))
    assert [entry.cause for entry in still.log] == ["node info"]


async def test_noise_from_the_client_is_skipped(mesh: SimulatedMesh, dial: Dial) -> None:
    node = mesh.node()
    async with dial(await node.listen_tcp()) as client:
        client.writer.write(b"garbage \x94 \xc3" + START + b"\xff\xff" + frame(b"\xff\xff\xff") + START[:1])
        assert outline(await client.configure(5))[-1] == "config_complete_id"
        assert client.ended is None


async def test_disconnect_ends_the_connection(mesh: SimulatedMesh, dial: Dial) -> None:
    node = mesh.node()
    async with dial(await node.listen_tcp()) as client:
        await client.configure()
        client.send(disconnect=True)
        await client.until(lambda: client.ended == "closed")
    assert await eventually(lambda: node.open_connections == 0)


async def test_silent_client_is_closed_after_a_quarter_of_an_hour(mesh: SimulatedMesh, dial: Dial) -> None:
    node = mesh.node(idle_limit_s=200)
    async with dial(await node.listen_tcp()) as client:
        await client.configure()
        start = mesh.clock.monotonic()
        await client.until(lambda: client.ended == "closed")
        assert mesh.clock.monotonic() - start > 150


async def test_new_client_ends_the_old_ones_connection(mesh: SimulatedMesh, dial: Dial) -> None:
    node = mesh.node()
    port = await node.listen_tcp()
    async with dial(port) as first:
        await first.configure()
        async with dial(port) as second:  # a bare connect is enough
            await first.until(lambda: first.ended == "closed")
            assert node.open_connections == 2, "the first has not closed its side yet"
            await first.close()
            assert await eventually(lambda: node.open_connections == 1)
            await second.configure()
    assert await eventually(lambda: node.open_connections == 0)
    assert (len(node.connects), node.peak_connections) == (2, 2)


async def test_writing_to_a_connection_the_node_has_ended_resets_it(mesh: SimulatedMesh, dial: Dial) -> None:
    node = mesh.node()
    port = await node.listen_tcp()
    async with dial(port) as first, dial(port):
        await first.until(lambda: first.ended == "closed")
        first.send(heartbeat=mesh_pb2.Heartbeat())
        assert await eventually(lambda: node.open_connections == 1)


async def test_packets_wait_for_the_next_client_and_come_once(mesh: SimulatedMesh, dial: Dial) -> None:
    node, ann = mesh.node(), mesh.peer("Ann")
    port = await node.listen_tcp()
    ids = []
    for number in range(4):
        ids.append(await ann.send_direct(f"text {number}"))
        await mesh.clock.sleep(10)
    assert [ann.answers_to(packet_id) for packet_id in ids] == [[0]] * 4, "acked though no client is there"
    async with dial(port) as client:
        await client.configure()
        await client.until(lambda: len(client.texts()) == 4)
        assert outline(client.received).index("packet") > outline(client.received).index("config_complete_id")
        assert client.texts() == ["text 0", "text 1", "text 2", "text 3"]
    async with dial(port) as client:
        await client.configure()
        await mesh.clock.sleep(5)
        assert client.texts() == []
    texts = [one for one in node.given if one.port == TEXT]
    assert [(one.sender, one.packet_id) for one in texts] == [(ann.number, packet_id) for packet_id in ids]
    first, second = node.connects
    assert all(first < one.at < second for one in texts)


@pytest.mark.parametrize(("last", "kept"), [("text", [1, 2, 3]), ("node info", [0, 1, 2])])
async def test_full_queue_for_the_client(clock: ManualClock, still: SimulatedMesh, last: str, kept: list[int]) -> None:
    node, ann = still.node(), still.peer("Ann")
    node.firmware.client.capacity = 3
    for number in range(3):
        await advance_until_done(still, clock, ann.send_channel(0, f"text {number}"))
    final = ann.send_channel(0, "text 3") if last == "text" else ann.send_node_info()
    await advance_until_done(still, clock, final)
    packets = [message.packet for message in DeskClient(node.firmware).take()]
    assert [packet.decoded.payload.decode() for packet in packets] == [f"text {number}" for number in kept]


async def advance_until_done(mesh: SimulatedMesh, clock: ManualClock, action: Coroutine[Any, Any, int]) -> None:
    task = asyncio.ensure_future(action)
    await clock.advance(5)
    await task


async def test_client_queue_statuses_come_before_packets(clock: ManualClock, still: SimulatedMesh) -> None:
    node, ann = still.node(), still.peer("Ann")
    desk = DeskClient(node.firmware)
    await advance_until_done(still, clock, ann.send_channel(0, "waiting"))
    assert outline(desk.send(text_packet("x"))) == ["queueStatus", "packet"]


async def test_time_is_told_by_the_client(clock: ManualClock, still: SimulatedMesh) -> None:
    node, ann = still.node(), still.peer("Ann")
    node.firmware.is_clock_set = False
    desk = DeskClient(node.firmware)
    await advance_until_done(still, clock, ann.send_channel(0, "when?"))
    (message,) = desk.take()
    assert message.packet.rx_time == 0
    assert node.database.nodes[ann.number].last_heard == 0
    told = admin_pb2.AdminMessage(set_time_only=1_900_000_000)
    said = desk.send(text_packet(told.SerializeToString(), node.number, packet_id=5, port=ADMIN))
    assert (statuses(said), routings(said)) == ([(5, 0)], [(node.number, 5, 0)])
    await advance_until_done(still, clock, ann.send_channel(0, "now?"))
    (message,) = desk.take()
    assert 1_900_000_000 <= message.packet.rx_time <= 1_900_000_005


async def test_wrong_clock(clock: ManualClock, still: SimulatedMesh) -> None:
    node, ann = still.node(), still.peer("Ann")
    node.firmware.clock_error_s = -7200
    desk = DeskClient(node.firmware)
    await advance_until_done(still, clock, ann.send_channel(0, "when?"))
    (message,) = desk.take()
    assert clock.now() - 7206 <= message.packet.rx_time <= clock.now() - 7200


@pytest.mark.parametrize(
    ("request_fields", "answer"),
    [
        ({"get_owner_request": True}, "get_owner_response"),
        ({"get_device_metadata_request": True}, "get_device_metadata_response"),
        ({"get_channel_request": 1}, "get_channel_response"),
        ({"get_config_request": 5}, "get_config_response"),
        ({"get_config_request": 8}, "get_config_response"),
        ({"get_module_config_request": 5}, "get_module_config_response"),
        ({"get_ringtone_request": True}, "get_ringtone_response"),
        ({"get_canned_message_module_messages_request": True}, "get_canned_message_module_messages_response"),
    ],
)
async def test_admin_getters(still: SimulatedMesh, request_fields: dict[str, int], answer: str) -> None:
    node = still.node()
    request = admin_pb2.AdminMessage(**request_fields)
    said = DeskClient(node.firmware).send(
        text_packet(request.SerializeToString(), node.number, packet_id=5, port=ADMIN)
    )
    assert outline(said) == ["queueStatus", "packet"]
    packet = said[1].packet
    assert (getattr(packet, "from"), packet.to, packet.decoded.request_id) == (node.number, node.number, 5)
    response = admin_pb2.AdminMessage.FromString(packet.decoded.payload)
    assert response.WhichOneof("payload_variant") == answer
    assert len(response.session_passkey) == 8


async def test_admin_request_beyond_what_there_is_is_refused(still: SimulatedMesh) -> None:
    node = still.node()
    desk = DeskClient(node.firmware)
    for packet_id, payload in enumerate((b"\xff\xff", admin_pb2.AdminMessage(get_channel_request=99)), start=1):
        raw = payload if isinstance(payload, bytes) else payload.SerializeToString()
        said = desk.send(text_packet(raw, node.number, packet_id=packet_id, port=ADMIN))
        assert routings(said) == [(node.number, packet_id, 32)]


async def test_passkey_is_renewed(clock: ManualClock, still: SimulatedMesh) -> None:
    firmware = still.node().firmware
    first = firmware.session_passkey()
    await clock.advance(149)
    assert firmware.session_passkey() == first
    await clock.advance(2)
    assert firmware.session_passkey() != first


async def test_node_tells_of_itself_each_minute(clock: ManualClock, still: SimulatedMesh) -> None:
    node, ann = still.node(), still.peer("Ann")
    desk = DeskClient(node.firmware)
    await advance_until_done(still, clock, ann.send_channel(0, "x" * 150, hop_limit=0))
    desk.send(text_packet("y" * 150, hop_limit=0))
    await clock.advance(54.9)
    desk.take()
    await clock.advance(0.2)
    ((packet),) = [message.packet for message in desk.take()]
    assert (getattr(packet, "from"), packet.decoded.portnum) == (node.number, TELEMETRY)
    metrics = telemetry_pb2.Telemetry.FromString(packet.decoded.payload).device_metrics
    assert metrics.channel_utilization == pytest.approx(100 * 2 * 1.542 / 60, rel=0.01)
    assert metrics.air_util_tx == pytest.approx(100 * 1.542 / 3600, rel=0.01)
    assert {entry.port for entry in still.log} == {TEXT}, "without using the air"


async def test_telemetry_does_not_pile_up(clock: ManualClock, still: SimulatedMesh) -> None:
    node = still.node()
    await clock.advance(3600)
    assert len(node.firmware.client) == 1


async def test_library_without_nodes(mesh: SimulatedMesh, attach: Attach) -> None:
    node = mesh.node()
    mesh.peer("Ann")
    async with attach(await node.listen_tcp(), noNodes=True) as client:
        assert list(client.interface.nodesByNum) == [node.number]


async def test_library_refuses_what_is_longer_than_a_payload(mesh: SimulatedMesh, attach: Attach) -> None:
    node = mesh.node()
    async with attach(await node.listen_tcp()) as client:
        with pytest.raises(Exception, match="Data payload too big"):
            await client.send("x" * 234)
    assert node.handed_over == []


async def test_hundreds_of_nodes(mesh: SimulatedMesh, attach: Attach) -> None:
    node = mesh.node()
    for number in range(250):
        mesh.peer(f"Node {number}")
    async with attach(await node.listen_tcp()) as client:
        assert len(client.interface.nodesByNum) == 251


def test_deframer_survives_any_noise_and_any_cut() -> None:
    rng = random.Random(3)
    payloads = [rng.randbytes(rng.randrange(513)) for _ in range(60)]
    stream = b"".join(bytes(rng.choices(range(0x94), k=rng.randrange(20))) + frame(payload) for payload in payloads)
    for size in (1, 2, 3, 5, 64, len(stream)):
        deframer = Deframer()
        found = [
            payload for start in range(0, len(stream), size) for payload in deframer.feed(stream[start : start + size])
        ]
        assert found == payloads
