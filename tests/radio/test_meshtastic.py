"""The radio through the real library, against a node that does what its script says."""

import asyncio
import logging
import time

import pytest
from meshtastic.protobuf import mesh_pb2, portnums_pb2

from meshai.clock import ScaledClock
from meshai.errors import NotDelivered, PacketTooLong, RadioDisconnected
from meshai.messages import (
    Address,
    Channel,
    Delivery,
    Direct,
    Fate,
    IncomingMessage,
    Node,
    OutgoingPacket,
)
from meshai.radio.meshtastic import Counts, MeshtasticRadio
from tests.radio.conftest import Attach, until
from tests.radio.scripted import (
    ANNA,
    ME,
    START,
    ScriptedNode,
    broadcast,
    heard,
    own_config,
    queue_status,
    routing,
)

DIRECT = Address(Direct(ANNA), 200, reply_to=77)
CHANNEL = Address(Channel(1), 160, reply_to=78, channel=1)


async def hear(radio: MeshtasticRadio, count: int = 1) -> list[IncomingMessage]:
    texts = radio.messages()
    async with asyncio.timeout(10):
        return [await anext(texts) for _ in range(count)]


async def lost(radio: MeshtasticRadio, seconds: float = 10.0) -> None:
    await until(lambda: not radio.is_connected, seconds)


# Connecting and what is known then.


async def test_what_the_node_tells_is_read_at_each_connect(node: ScriptedNode, attach: Attach) -> None:
    async with attach(node) as radio:
        assert radio.me is not None
        assert radio.me.node.number == ME
        assert (radio.me.region, radio.me.preset, radio.me.firmware) == ("US", "LONG_FAST", "2.7.26")
        assert radio.me.channel_names == {0: ""}
        assert radio.state.startswith(f"connected to MeshAI (!5e400001) at tcp:127.0.0.1:{node.port}")
        node.config = own_config(number=0x5E400002, name="Renamed", hop_limit=5)
        node.drop()
        await lost(radio)
        await radio.ready()
        assert radio.me.node == Node(0x5E400002, "Renamed", "Rena")
        assert radio.me.hop_limit == 5


async def test_a_node_that_tells_only_its_number_is_enough(node: ScriptedNode, attach: Attach) -> None:
    node.config = [mesh_pb2.FromRadio(my_info=mesh_pb2.MyNodeInfo(my_node_num=ME))]
    async with attach(node) as radio:
        assert radio.me is not None
        assert radio.me.node == Node(ME)
        assert radio.me.modem is None


async def test_a_node_that_does_not_say_who_it_is_is_no_radio(node: ScriptedNode, attach: Attach) -> None:
    node.config = []
    async with attach(node, is_ready=False) as radio:
        await until(lambda: "did not describe itself" in radio.state)
        assert not radio.is_connected
        node.config = own_config()
        await radio.ready()
        assert radio.me is not None
        assert radio.me.node.number == ME


async def test_nodes_are_known_and_their_names_survive_a_connect_without_them(
    node: ScriptedNode, attach: Attach
) -> None:
    user = mesh_pb2.User(id="!a1b2c3d4", long_name="Anna\nWeber", short_name="ANNA")
    node.nodes = [mesh_pb2.FromRadio(node_info=mesh_pb2.NodeInfo(num=ANNA, user=user, snr=5.5, hops_away=1))]
    async with attach(node) as radio:
        assert radio.nodes()[ANNA] == Node(ANNA, "Anna Weber", "ANNA", snr=5.5, hops_away=1)
        node.nodes = []
        node.drop()
        await lost(radio)
        assert radio.nodes()[ANNA].name == "Anna Weber"
        await radio.ready()
        node.say(heard(b"hi"))
        await hear(radio)
        assert radio.nodes()[ANNA].name == "Anna Weber", "the library has invented a name by now"


async def test_a_stranger_s_text_is_heard_and_its_name_is_not_invented(node: ScriptedNode, attach: Attach) -> None:
    async with attach(node) as radio:
        node.say(heard(b"hi", id=5))
        (message,) = await hear(radio)
        assert (message.sender, message.packet_id, message.text, message.is_direct) == (ANNA, 5, "hi", True)
        await until(lambda: ANNA in radio.nodes())
        assert radio.nodes()[ANNA].name == "!a1b2c3d4"


async def test_the_library_s_table_of_nodes_is_bounded(node: ScriptedNode, attach: Attach) -> None:
    async with attach(node) as radio:
        texts = radio.messages()
        for first in range(1, 2200, 100):
            for number in range(first, first + 100):
                node.say(broadcast(b"", id=number, **{"from": 0x10000 + number}))
            async with asyncio.timeout(10):
                while (await anext(texts)).packet_id != first + 99:
                    pass
        assert len(radio.nodes()) <= 2000


# What is heard.


async def test_only_texts_to_us_or_to_all_are_handed_on_and_nothing_else_breaks(
    node: ScriptedNode, attach: Attach, capfd: pytest.CaptureFixture[str]
) -> None:
    encrypted = mesh_pb2.FromRadio(packet=mesh_pb2.MeshPacket(to=ME, id=3, channel=77, encrypted=b"??"))
    setattr(encrypted.packet, "from", ANNA)
    from_nobody = heard(b"zero", **{"from": 0})
    odd = [
        encrypted,
        from_nobody,
        heard(b"\xff\xff\xff", port=portnums_pb2.PortNum.TELEMETRY_APP),
        heard(b"\xff\xff\xff", port=portnums_pb2.PortNum.NODEINFO_APP),
        heard(b"\x08", port=portnums_pb2.PortNum.ROUTING_APP),
        heard(b"data", port=portnums_pb2.PortNum.PRIVATE_APP),
        heard(b"data", port=20_000),
        heard(b"sim", port=portnums_pb2.PortNum.SIMULATOR_APP),
        heard(b"overheard", to=0x99),
        mesh_pb2.FromRadio(log_record=mesh_pb2.LogRecord(message="node log")),
        mesh_pb2.FromRadio(),
    ]
    async with attach(node) as radio:
        node.say(*odd)
        node.say_bytes(b"INFO | device log\r\n\x94\xc3\x00\x05\xff\xff\xff\xff\xff" + b"\x94\xc3\xff\xff junk \x00\x01")
        node.say(broadcast("héllo 👍".encode(), channel=1), heard(b"\xc3\x28", id=2))
        channel, direct = await hear(radio, 2)
        assert (channel.text, channel.channel, channel.is_direct) == ("héllo 👍", 1, False)
        assert (direct.text, direct.is_direct) == ("\ufffd(", True)
        assert radio.is_connected
    assert capfd.readouterr() == ("", "")


async def test_packets_are_heard_in_order_and_the_newest_before_a_loss_are_not_lost(
    node: ScriptedNode, attach: Attach
) -> None:
    async with attach(node) as radio:
        node.say(*(heard(str(number).encode(), id=number) for number in range(1, 51)))
        node.drop()
        assert [message.text for message in await hear(radio, 50)] == [str(number) for number in range(1, 51)]


async def test_stop_ends_the_texts_after_those_heard(node: ScriptedNode, attach: Attach) -> None:
    async with attach(node) as radio:
        node.say(heard(b"one"), heard(b"two", id=2))
        texts = radio.messages()
        assert (await anext(texts)).text == "one"
        await asyncio.sleep(0.1)
        radio.stop()
        assert [message.text async for message in texts] == ["two"]


async def test_a_backlog_is_marked_stale_by_age(node: ScriptedNode, attach: Attach, clock: ScaledClock) -> None:
    now = int(clock.now())
    node.backlog = [
        *(heard(b"old", id=number, rx_time=now - 7200 + number) for number in range(20)),
        heard(b"no time", id=30),
        heard(b"fresh", id=31, rx_time=now - 60),
    ]
    async with attach(node) as radio:
        messages = await hear(radio, 22)
        assert [message.is_stale for message in messages] == [True] * 21 + [False]
        await clock.sleep(20)
        node.say(heard(b"live", id=40), heard(b"wrong clock", id=41, rx_time=now - 9_000))
        assert [message.is_stale for message in await hear(radio, 2)] == [False, False]
        node.backlog = [heard(b"short gap", id=50)]
        await clock.sleep(25)
        node.drop()
        assert [message.is_stale for message in await hear(radio)] == [False]


# Handing over.


async def test_a_direct_message_is_sent_as_the_firmware_wants_it(node: ScriptedNode, attach: Attach) -> None:
    async with attach(node) as radio:
        await radio.send(OutgoingPacket(DIRECT, "hé", packet_id=123))
    (packet,) = node.packets
    assert (packet.to, packet.id, packet.want_ack, packet.hop_limit, packet.channel) == (ANNA, 123, True, 3, 0)
    assert getattr(packet, "from") == ME, "else a rate-limit refusal is radioed to node 0 and never reaches us"
    assert packet.decoded.portnum == portnums_pb2.PortNum.TEXT_MESSAGE_APP
    assert (packet.decoded.payload, packet.decoded.reply_id) == ("hé".encode(), 77)
    assert not packet.decoded.want_response


async def test_a_channel_text_wants_no_ack(node: ScriptedNode, attach: Attach) -> None:
    async with attach(node) as radio:
        packet = OutgoingPacket(CHANNEL, "hi", packet_id=124)
        await radio.send(packet)
        assert await radio.delivery(packet) == Delivery(Fate.HANDED_OVER)
    (sent,) = node.packets
    assert (sent.to, sent.want_ack, sent.channel, sent.decoded.reply_id) == (0xFFFFFFFF, False, 1, 78)


async def test_too_long_a_text_is_refused_before_anything_is_sent(node: ScriptedNode, attach: Attach) -> None:
    async with attach(node) as radio:
        with pytest.raises(PacketTooLong):
            await radio.send(OutgoingPacket(CHANNEL, "ж" * 81, packet_id=5))
    assert node.packets == []


@pytest.mark.parametrize(
    ("answers", "name"),
    [
        ([queue_status(9, res=39), routing(9, 39, sender=ME)], "PKI_SEND_FAIL_PUBLIC_KEY"),
        ([routing(9, 7, sender=ME), queue_status(9, res=7)], "TOO_LARGE"),
        ([queue_status(9, res=33), routing(9, 4, sender=ME)], "NO_INTERFACE"),
        ([queue_status(9, res=34)], "RADIO_DISABLED"),
        ([queue_status(9, res=9)], "DUTY_CYCLE_LIMIT"),
        ([queue_status(9, res=50)], "REFUSED_50"),
        ([routing(9, 77, sender=ME)], "ROUTING_ERROR_77"),
    ],
)
async def test_a_refusal_has_the_routing_error_s_name(
    node: ScriptedNode, attach: Attach, answers: list[mesh_pb2.FromRadio], name: str
) -> None:
    node.on_packet = lambda packet: answers
    async with attach(node) as radio:
        with pytest.raises(NotDelivered, match=f"^{name}$"):
            await radio.send(OutgoingPacket(DIRECT, "hi", packet_id=9))
        assert radio.is_connected


async def test_a_packet_is_taken_when_its_ack_comes_without_a_queue_status(node: ScriptedNode, attach: Attach) -> None:
    node.on_packet = lambda packet: [routing(packet.id)]
    async with attach(node) as radio:
        packet = OutgoingPacket(DIRECT, "hi", packet_id=9)
        await radio.send(packet)
        assert await radio.delivery(packet) == Delivery(Fate.DELIVERED)


async def test_a_lost_queue_status_is_no_failure_while_the_node_answers(node: ScriptedNode, attach: Attach) -> None:
    node.on_packet = lambda packet: [queue_status(0xF0E1), queue_status(0xF0E2)]
    async with attach(node) as radio:
        await radio.send(OutgoingPacket(DIRECT, "hi", packet_id=9))
        assert radio.is_connected


async def test_a_node_that_answers_nothing_any_more_is_a_lost_link(node: ScriptedNode, attach: Attach) -> None:
    async with attach(node) as radio:
        node.is_mute = True
        with pytest.raises(RadioDisconnected):
            await radio.send(OutgoingPacket(DIRECT, "hi", packet_id=9))
        await lost(radio)


async def test_a_link_that_breaks_before_the_node_took_the_packet(node: ScriptedNode, attach: Attach) -> None:
    async with attach(node) as radio:

        def drop(packet: mesh_pb2.MeshPacket) -> list[mesh_pb2.FromRadio]:
            node.drop()
            return []

        node.on_packet = drop
        with pytest.raises(RadioDisconnected):
            await radio.send(OutgoingPacket(DIRECT, "hi", packet_id=9))
        await lost(radio)
        with pytest.raises(RadioDisconnected):
            await radio.send(OutgoingPacket(DIRECT, "hi", packet_id=9))


async def test_a_packet_tried_again_after_a_reconnect_keeps_its_earlier_ack(node: ScriptedNode, attach: Attach) -> None:
    """The node took the first try, and swallows the second as a repeat."""
    async with attach(node) as radio:

        def drop(packet: mesh_pb2.MeshPacket) -> list[mesh_pb2.FromRadio]:
            node.drop()
            return []

        node.on_packet = drop
        packet = OutgoingPacket(DIRECT, "hi", packet_id=9)
        with pytest.raises(RadioDisconnected):
            await radio.send(packet)
        await lost(radio)
        node.backlog = [routing(9)]
        node.on_packet = lambda packet: []
        await radio.ready()
        await radio.send(packet)
        assert await radio.delivery(packet) == Delivery(Fate.DELIVERED)


async def test_a_packet_whose_ack_came_after_its_link_was_lost_is_not_written_again(
    node: ScriptedNode, attach: Attach, clock: ScaledClock
) -> None:
    async with attach(node) as radio:
        packet = OutgoingPacket(DIRECT, "hi", packet_id=9)
        node.on_packet = lambda packet: []
        sending = asyncio.create_task(radio.send(packet))
        await until(lambda: node.packets)
        node.backlog = [routing(9)]
        node.drop()
        with pytest.raises(RadioDisconnected):
            await sending
        await radio.ready()
        await clock.sleep(2.5)  # as the outbox does
        await radio.send(packet)
        assert await radio.delivery(packet) == Delivery(Fate.DELIVERED)
    assert len(node.packets) == 1


async def test_nothing_is_sent_into_a_full_queue(node: ScriptedNode, attach: Attach, clock: ScaledClock) -> None:
    node.on_heartbeat = lambda: [queue_status(free=1)]
    async with attach(node) as radio:
        await clock.sleep(5)  # the first heartbeat has told by now
        sending = asyncio.create_task(radio.send(OutgoingPacket(DIRECT, "hi", packet_id=9)))
        await clock.sleep(10)
        assert node.packets == []
        node.on_heartbeat = lambda: [queue_status(free=2)]
        await sending
        assert [packet.id for packet in node.packets] == [9]


async def test_a_queue_that_stays_full_is_said_so(node: ScriptedNode, attach: Attach, clock: ScaledClock) -> None:
    node.on_heartbeat = lambda: [queue_status(free=0)]
    async with attach(node) as radio:
        await clock.sleep(5)
        with pytest.raises(NotDelivered, match="QUEUE_FULL"):
            await radio.send(OutgoingPacket(CHANNEL, "hi", packet_id=9))


# What becomes of packets.


async def test_an_implicit_ack_then_the_real_one(node: ScriptedNode, attach: Attach, clock: ScaledClock) -> None:
    node.on_packet = lambda packet: [queue_status(packet.id), routing(packet.id, sender=ME)]
    async with attach(node) as radio:
        packet = OutgoingPacket(DIRECT, "hi", packet_id=9)
        await radio.send(packet)
        waiting = asyncio.create_task(radio.delivery(packet))
        await clock.sleep(5)
        assert not waiting.done()
        node.say(routing(9), routing(9))
        assert await waiting == Delivery(Fate.DELIVERED)


@pytest.mark.parametrize(("sender", "fate"), [(ME, Fate.RELAYED), (0x77, Fate.UNCONFIRMED)])
async def test_the_wait_for_an_ack_ends(node: ScriptedNode, attach: Attach, sender: int, fate: Fate) -> None:
    node.on_packet = lambda packet: [queue_status(packet.id), routing(packet.id, sender=sender)]
    async with attach(node) as radio:
        packet = OutgoingPacket(DIRECT, "hi", packet_id=9)
        await radio.send(packet)
        async with asyncio.timeout(20):
            assert await radio.delivery(packet) == Delivery(fate)


@pytest.mark.parametrize(
    ("error", "name"), [(5, "MAX_RETRANSMIT"), (35, "PKI_UNKNOWN_PUBKEY"), (77, "ROUTING_ERROR_77")]
)
async def test_a_nak_is_failure(node: ScriptedNode, attach: Attach, error: int, name: str) -> None:
    async with attach(node) as radio:
        packet = OutgoingPacket(DIRECT, "hi", packet_id=9)
        await radio.send(packet)
        node.say(routing(9, error))
        assert await radio.delivery(packet) == Delivery(Fate.FAILED, name)


async def test_an_ack_may_come_after_a_reconnect(node: ScriptedNode, attach: Attach) -> None:
    async with attach(node) as radio:
        packet = OutgoingPacket(DIRECT, "hi", packet_id=9)
        await radio.send(packet)
        node.backlog = [routing(9)]
        node.drop()
        assert await radio.delivery(packet) == Delivery(Fate.DELIVERED)


@pytest.mark.parametrize(("backlog", "fate"), [([routing(9)], Fate.DELIVERED), ([], Fate.UNCONFIRMED)])
async def test_word_of_a_packet_may_wait_for_the_next_process(
    node: ScriptedNode, attach: Attach, backlog: list[mesh_pb2.FromRadio], fate: Fate
) -> None:
    node.backlog = backlog
    async with attach(node, is_ready=False) as radio:
        packet = OutgoingPacket(DIRECT, "hi", packet_id=9)
        assert await radio.delivery(packet, within_s=30) == Delivery(fate)
        assert node.packets == []
        await radio.send(packet)
        node.say(routing(9))
        assert await radio.delivery(packet) == Delivery(Fate.DELIVERED)


async def test_leaving_ends_every_wait(node: ScriptedNode, attach: Attach) -> None:
    async with attach(node) as radio:
        packet = OutgoingPacket(DIRECT, "hi", packet_id=9)
        await radio.send(packet)
        waiting = asyncio.create_task(radio.delivery(packet))
        await asyncio.sleep(0)
    assert await waiting == Delivery(Fate.UNCONFIRMED, is_doubtful=True)
    assert radio.state == "closed"


async def test_an_ack_may_be_lost_with_the_link_and_comes_when_the_packet_is_repeated(
    node: ScriptedNode, attach: Attach
) -> None:
    async with attach(node) as radio:
        packet = OutgoingPacket(DIRECT, "hi", packet_id=9)
        await radio.send(packet)
        assert await radio.delivery(packet, within_s=1) == Delivery(Fate.UNCONFIRMED)
        node.drop()
        await lost(radio)
        assert await radio.delivery(packet, within_s=1) == Delivery(Fate.UNCONFIRMED, is_doubtful=True)
        await radio.ready()
        node.on_packet = lambda packet: [queue_status(packet.id), routing(packet.id)]
        await radio.send(packet)
        assert await radio.delivery(packet) == Delivery(Fate.DELIVERED)
    assert [sent.id for sent in node.packets] == [9, 9]


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
async def test_what_a_wrong_length_kept_back_is_heard_when_the_link_ends(
    node: ScriptedNode, attach: Attach, reset: bool
) -> None:
    async with attach(node) as radio:
        node.say_bytes(START + b"\x01\x90" + b"cut")
        node.say(heard(b"behind it", id=21), heard(b"and this", id=22))
        await asyncio.sleep(0.1)  # the bytes must have been read, for a reset discards those that were not
        node.drop(reset=reset)
        assert [message.text for message in await hear(radio, 2)] == ["behind it", "and this"]
        await radio.ready()


# Dead and half-dead links.


async def test_a_node_that_is_not_there_yet_is_waited_for(
    node: ScriptedNode, attach: Attach, clock: ScaledClock, caplog: pytest.LogCaptureFixture
) -> None:
    await node.stop()
    with caplog.at_level(logging.INFO, "meshai.radio"):
        async with attach(node, is_ready=False) as radio:
            await clock.sleep(45)
            assert not radio.is_connected
            assert "waiting for a radio at tcp:127.0.0.1" in radio.state
            await until(lambda: "connection refused" in radio.state)
            await node.start()
            await radio.ready()
    levels = [record.levelname for record in caplog.records if record.name == "meshai.radio.meshtastic"]
    assert levels == ["WARNING", "INFO"], "one line of waiting and one of success"


async def test_a_node_that_restarts_is_found_again_and_both_are_logged_once(
    node: ScriptedNode, attach: Attach, clock: ScaledClock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "meshai.radio"):
        async with attach(node) as radio:
            await clock.sleep(31)
            node.drop(reset=True)
            await node.stop()
            await lost(radio)
            before = time.process_time()
            await clock.sleep(30)
            assert time.process_time() - before < 0.4
            await node.start()
            await radio.ready()
            node.say(heard(b"hello"))
            assert (await hear(radio))[0].text == "hello"
    said = [record.getMessage() for record in caplog.records]
    assert sum("lost the link" in line for line in said) == 1
    assert sum("reconnected" in line for line in said) == 1
    assert len(said) <= 4


@pytest.mark.parametrize("noise", [b"", b"\x00", b"junk without any line end ", b"\x94\xc3\x02\x00" + b"x" * 300])
async def test_a_mute_or_junk_filled_link_is_noticed_without_traffic(
    node: ScriptedNode, attach: Attach, clock: ScaledClock, noise: bytes
) -> None:
    async with attach(node) as radio:
        node.is_mute = True
        started = clock.monotonic()
        while radio.is_connected:
            if noise:
                node.say_bytes(noise)
            await clock.sleep(1)
        assert clock.monotonic() - started < 60
        await until(lambda: "no longer answers" in radio.state)
        node.is_mute = False
        await radio.ready()
        assert (radio.counts.connects, radio.counts.losses) == (2, 1)


async def test_a_node_that_stops_reading_is_noticed(node: ScriptedNode, attach: Attach, clock: ScaledClock) -> None:
    async with attach(node) as radio:
        node.reads = False
        started = clock.monotonic()
        await lost(radio)
        assert clock.monotonic() - started < 60
        node.reads = True
        await radio.ready()


async def test_a_node_s_own_chatter_does_not_prove_that_it_hears_us(
    node: ScriptedNode, attach: Attach, clock: ScaledClock
) -> None:
    async with attach(node) as radio:
        node.on_heartbeat = list
        while radio.is_connected:
            node.say(queue_status(0xABCD), broadcast(b"", port=portnums_pb2.PortNum.TELEMETRY_APP))
            await clock.sleep(2)
        await until(lambda: "no longer answers" in radio.state)
        assert radio.counts.losses == 1


async def test_a_quiet_link_costs_one_heartbeat_every_twenty_seconds(
    node: ScriptedNode, attach: Attach, clock: ScaledClock
) -> None:
    beats = 0

    def beat() -> list[mesh_pb2.FromRadio]:
        nonlocal beats
        beats += 1
        return [queue_status()]

    node.on_heartbeat = beat
    async with attach(node) as radio:
        await clock.sleep(65)
        assert radio.is_connected
    assert 3 <= beats <= 5
    assert node.packets == []


async def test_a_restart_over_serial_is_a_lost_link(
    node: ScriptedNode, attach: Attach, caplog: pytest.LogCaptureFixture
) -> None:
    async with attach(node) as radio:
        node.say(mesh_pb2.FromRadio(rebooted=True))
        await lost(radio)
        await radio.ready()
        assert "restarted" in caplog.text
        assert node.most_open == 1


async def test_a_configuration_that_never_ends_is_given_up_with_its_socket(node: ScriptedNode, attach: Attach) -> None:
    node.completes_config = False
    async with attach(node, is_ready=False) as radio:
        await until(lambda: node.connects >= 3)
        await until(lambda: "does not complete its configuration" in radio.state)
        node.completes_config = True
        await radio.ready()
    assert node.most_open == 1
    assert [nonce == 69420 for nonce in node.nonces][:3] == [False, True, False]


async def test_a_node_database_too_large_for_its_link_is_skipped(node: ScriptedNode, attach: Attach) -> None:
    complete = own_config()
    node.completes_config = False
    async with attach(node, is_ready=False) as radio:
        await until(lambda: 69420 in node.nonces)
        node.config, node.completes_config = complete, True
        await radio.ready()
        assert radio.is_connected


async def test_a_rival_is_recognised_and_there_is_no_storm(
    node: ScriptedNode, attach: Attach, clock: ScaledClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with attach(node, is_ready=False):
        ends = clock.monotonic() + 60
        while clock.monotonic() < ends:
            node.drop()
            await clock.sleep(0.5)
    assert node.connects <= 14
    rivals = [record for record in caplog.records if "another client" in record.getMessage()]
    assert len(rivals) == 1
    assert "node of its own" in rivals[0].getMessage()


async def test_what_the_node_wants_its_user_to_know_is_logged_once(
    node: ScriptedNode, attach: Attach, caplog: pytest.LogCaptureFixture
) -> None:
    notice = mesh_pb2.ClientNotification(message="Duty cycle limit exceeded.\nYou can send again in 12 mins")
    async with attach(node) as radio:
        node.say(*(mesh_pb2.FromRadio(clientNotification=notice) for _ in range(5)), heard(b"after"))
        await hear(radio)
    said = [record.getMessage() for record in caplog.records if "12 mins" in record.getMessage()]
    assert said == ["radio: the node says: Duty cycle limit exceeded. You can send again in 12 mins"]


# A new link, when it is asked for.


async def test_a_new_link_is_made_once_for_all_who_ask(node: ScriptedNode, attach: Attach) -> None:
    async with attach(node) as radio:
        async with asyncio.timeout(20):
            await asyncio.gather(radio.reconnect(), radio.reconnect())
        assert radio.is_connected
        await until(lambda: node.open == 1)
        assert (node.connects, radio.counts.losses) == (2, 1)


async def test_while_there_is_no_link_a_new_one_is_waited_for(node: ScriptedNode, attach: Attach) -> None:
    node.is_mute = True
    async with attach(node, is_ready=False) as radio:
        asking = asyncio.create_task(radio.reconnect())
        await until(lambda: node.connects == 1)
        assert not asking.done()
        node.is_mute = False
        async with asyncio.timeout(20):
            await asking
        assert radio.is_connected


# Leaving, whatever is happening.


async def leave_within(radio: MeshtasticRadio, seconds: float) -> None:
    started = time.monotonic()
    await radio.__aexit__(None, None, None)
    assert time.monotonic() - started < seconds


async def test_leaving_while_the_configuration_hangs(node: ScriptedNode, attach: Attach) -> None:
    node.is_mute = True
    async with attach(node, is_ready=False) as radio:
        await until(lambda: node.connects == 1)
        await leave_within(radio, 3)
        assert radio.state == "closed"
        assert radio.counts.stuck_threads == 0
    await until(lambda: node.open == 0)
    assert node.connects == 1


async def test_leaving_while_a_write_hangs(node: ScriptedNode, attach: Attach) -> None:
    async with attach(node) as radio:
        node.reads = False
        sending = asyncio.create_task(_send_for_ever(radio))
        await asyncio.sleep(0.2)
        assert not sending.done()
        await leave_within(radio, 5)
        assert radio.state == "closed"
        assert not radio.is_connected
        with pytest.raises(RadioDisconnected):
            await sending


async def _send_for_ever(radio: MeshtasticRadio) -> None:
    for number in range(1, 100_000):
        await radio.send(OutgoingPacket(DIRECT, "x" * 200, packet_id=number))


async def test_leaving_while_nothing_answers_the_connection(attach: Attach, clock: ScaledClock) -> None:
    """A listener whose queue is full drops connection attempts, as a host that is switched off does."""
    import socket

    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(server.getsockname())
        async with attach(f"tcp:127.0.0.1:{server.getsockname()[1]}", is_ready=False) as radio:
            await clock.sleep(5)
            assert not radio.is_connected
            await leave_within(radio, 3)
            assert radio.state == "closed"
            assert radio.counts.connects == 0
        for filler in fillers:
            filler.close()


async def test_leaving_before_anything_was_tried(attach: Attach) -> None:
    async with attach("tcp:127.0.0.1:9", is_ready=False) as radio:
        pass
    assert radio.state == "closed"
    assert radio.counts == Counts()
