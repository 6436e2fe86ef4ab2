"""What other people's nodes do all day without being asked: telemetry, chatter, another bot, store and forward."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from meshtastic.protobuf import portnums_pb2, storeforward_pb2, telemetry_pb2

from meshai.characters import beginning, utf8_bytes
from meshai.errors import NotDelivered
from meshai.messages import BROADCAST, NodeNum
from meshai.sim.air import Cause
from meshai.sim.packets import TELEMETRY, Priority, make_packet, set_sender
from meshai.sim.peers import HeardText, Peer

STORE_FORWARD: Final[int] = portnums_pb2.PortNum.STORE_FORWARD_APP
POLITE_UTILISATION_PERCENT: Final = 25.0
"""Above that the firmware sends nothing of its own accord (firmware `airtime.h`)."""
ANSWER_BYTES: Final = 180
HISTORY: Final = 25
"""Most texts a store-and-forward server repeats at a request."""
HISTORY_REQUEST: Final = "SF"
REMARKS: Final = (
    "Good morning everyone",
    "Anyone on the ridge today?",
    "73 from the valley",
    "Testing the new antenna, how do you hear me?",
    "Snow above 1500 m, take chains",
    "Доброе утро всем",
    "お疲れ様です",
    "Battery at 60 %, solar is doing fine ☀️",
)


async def tell_telemetry(peer: Peer, every_s: float) -> None:
    """Broadcast the node's own metrics about that often, but not while the channel is busy."""
    air = peer.air
    await air.clock.sleep(air.rng.uniform(0, every_s))
    while True:
        if peer.ledger.utilisation_percent < POLITE_UTILISATION_PERCENT:
            metrics = telemetry_pb2.DeviceMetrics(
                battery_level=peer.battery_percent,
                voltage=3.7,
                channel_utilization=peer.ledger.utilisation_percent,
                air_util_tx=peer.ledger.own_percent,
                uptime_seconds=int(air.clock.monotonic()),
            )
            telemetry = telemetry_pb2.Telemetry(time=int(air.clock.now()), device_metrics=metrics)
            packet = make_packet(
                peer.number,
                BROADCAST,
                TELEMETRY,
                telemetry.SerializeToString(),
                packet_id=air.new_packet_id(),
                hop_limit=peer.hop_limit,
                priority=Priority.BACKGROUND,
            )
            peer.send_packet(packet, Cause.PEER)
        await air.clock.sleep(every_s * air.rng.uniform(0.9, 1.1))


async def chatter(peer: Peer, every_s: float, remarks: tuple[str, ...] = REMARKS) -> None:
    """Say something on the primary channel at random times, on average that often."""
    air = peer.air
    while True:
        await air.clock.sleep(air.rng.expovariate(1 / every_s))
        with suppress(NotDelivered):
            await peer.send_channel(0, air.rng.choice(remarks))


async def echo(peer: Peer) -> None:
    """Answer every text where it was heard, bots and tapbacks included, as a badly behaved bot does."""
    while True:
        heard = await peer.heard(timeout_s=None)
        answer = beginning(f"you said: {heard.text}", ANSWER_BYTES, size=utf8_bytes)
        with suppress(NotDelivered):
            if heard.is_direct:
                await peer.send_direct(answer, to=heard.sender, reply_id=heard.packet_id)
            else:
                await peer.send_channel(heard.channel, answer, reply_id=heard.packet_id)


async def store_and_forward(peer: Peer) -> None:
    """Keep channel texts, and repeat them to whoever sends the request as a direct text."""
    history: list[HeardText] = []
    while True:
        heard = await peer.heard(timeout_s=None)
        if not heard.is_direct:
            history = [*history, heard][-HISTORY:]
        elif heard.text == HISTORY_REQUEST:
            await replay(peer, heard.sender, history)


async def replay(peer: Peer, to: NodeNum, texts: Iterable[HeardText]) -> None:
    """Repeat old texts to a node as a server does: by their first sender and id, wrapped in its own port."""
    kinds = storeforward_pb2.StoreAndForward.RequestResponse
    for text in texts:
        kind = kinds.ROUTER_TEXT_DIRECT if text.is_direct else kinds.ROUTER_TEXT_BROADCAST
        packet = make_packet(
            peer.number,
            to,
            STORE_FORWARD,
            storeforward_pb2.StoreAndForward(rr=kind, text=text.payload).SerializeToString(),
            packet_id=text.packet_id,
            channel=text.channel,
            reply_id=text.reply_id,
            hop_limit=peer.hop_limit,
        )
        set_sender(packet, text.sender)
        with suppress(NotDelivered):
            await peer.send_raw(packet)
