"""Clients of a simulated node: the real library, a hand-written one on a socket, and one without a link."""

import asyncio
from collections.abc import Callable
from typing import Any, Self

from google.protobuf.message import Message
from meshtastic.protobuf import mesh_pb2
from pubsub import pub

from meshai.clock import Clock
from meshai.messages import BROADCAST
from meshai.sim.air import Cause
from meshai.sim.firmware import Firmware
from meshai.sim.link import Deframer, frame
from meshai.sim.mesh import SimulatedMesh
from meshai.sim.packets import TEXT, Priority, make_packet
from meshai.sim.phone import Phone

PATIENCE_S = 1500.0
"""Half a minute of real time at the speed of these tests: only a failure ever takes that long."""


def text_packet(text: str | bytes, to: int = BROADCAST, *, packet_id: int = 0, port: int = TEXT, **fields: Any) -> Any:
    """A packet as a client makes it: no sender, no bitfield."""
    payload = text.encode() if isinstance(text, str) else text
    packet = make_packet(0, to, port, payload, packet_id=packet_id, **fields)
    packet.hop_start = 0
    packet.decoded.ClearField("bitfield")
    if not packet.priority:
        packet.priority = Priority.RELIABLE
    return packet


async def eventually(condition: Callable[[], bool]) -> bool:
    """Whether something becomes true within ten seconds of real time."""
    for _ in range(5000):
        if condition():
            return True
        await asyncio.sleep(0.002)
    return False


class LibraryClient:
    """The `meshtastic` library as a program uses it: it connects, hears by pubsub and sends."""

    def __init__(self, clock: Clock) -> None:
        self.packets: list[dict[str, Any]] = []
        self.notifications: list[Any] = []
        self.interface: Any = None
        self._clock = clock

    def on_packet(self, packet: dict[str, Any], interface: Any) -> None:
        self.packets.append(packet)

    def on_notification(self, notification: Any, interface: Any) -> None:
        self.notifications.append(notification)

    async def connect(self, build: Callable[[], Any]) -> None:
        pub.subscribe(self.on_packet, "meshtastic.receive")
        pub.subscribe(self.on_notification, "meshtastic.clientNotification")
        self.interface = await asyncio.to_thread(build)

    async def close(self) -> None:
        pub.unsubscribe(self.on_packet, "meshtastic.receive")
        pub.unsubscribe(self.on_notification, "meshtastic.clientNotification")
        if self.interface is not None:
            await asyncio.to_thread(self.interface.close)

    async def send(self, text: str, **options: Any) -> Any:
        return await asyncio.to_thread(self.interface.sendText, text, **options)

    def texts(self) -> list[str]:
        return [packet["decoded"]["text"] for packet in self.packets if "text" in packet.get("decoded", {})]

    def routings(self, packet_id: int) -> list[tuple[int, str]]:
        """Who answered a packet, and with which error, in order."""
        return [
            (packet["from"], packet["decoded"]["routing"]["errorReason"])
            for packet in self.packets
            if packet.get("decoded", {}).get("requestId") == packet_id and "routing" in packet["decoded"]
        ]

    async def until(self, condition: Callable[[], Any], seconds: float = PATIENCE_S) -> None:
        """Wait until something has become true; TimeoutError if it does not in `seconds` of the mesh's time."""
        async with self._clock.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.002)


class SocketClient:
    """A hand-written client that sees every message and byte."""

    def __init__(self, clock: Clock, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.received: list[mesh_pb2.FromRadio] = []
        self.wire = bytearray()
        self.ended: str | None = None
        """How the node ended it: "closed" or "reset"; None while it has not."""
        self.writer = writer
        self._reader = reader
        self._clock = clock
        self._task = asyncio.create_task(self._read())

    @classmethod
    async def connect(cls, clock: Clock, port: int) -> Self:
        return cls(clock, *await asyncio.open_connection("127.0.0.1", port))

    async def configure(self, nonce: int = 77) -> list[mesh_pb2.FromRadio]:
        """Ask for the configuration; returns what came from the question to its end."""
        first = len(self.received)
        self.send(want_config_id=nonce)
        await self.until(lambda: any(message.config_complete_id == nonce for message in self.received[first:]))
        return self.received[first:]

    def send(self, **fields: Any) -> None:
        self.writer.write(frame(mesh_pb2.ToRadio(**fields).SerializeToString()))

    def of(self, kind: str) -> list[Any]:
        """The messages of one kind so far."""
        return [getattr(message, kind) for message in self.received if message.WhichOneof("payload_variant") == kind]

    def texts(self) -> list[str]:
        packets = [packet for packet in self.of("packet") if packet.decoded.portnum == TEXT]
        return [packet.decoded.payload.decode() for packet in packets]

    async def until(self, condition: Callable[[], Any], seconds: float = PATIENCE_S) -> None:
        async with self._clock.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.002)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self.writer.close()
        await asyncio.gather(self.writer.wait_closed(), return_exceptions=True)

    async def _read(self) -> None:
        deframer = Deframer()
        try:
            while chunk := await self._reader.read(4096):
                self.wire += chunk
                self.received += [parsed for payload in deframer.feed(chunk) if (parsed := _parse(payload)) is not None]
            self.ended = "closed"
        except ConnectionResetError:
            self.ended = "reset"


def _parse(payload: bytes) -> mesh_pb2.FromRadio | None:
    message = mesh_pb2.FromRadio()
    try:
        message.ParseFromString(payload)
    except Exception:
        return None
    return message


class DeskClient:
    """A client without a link, for time that stands still: it hands messages over and takes what is there."""

    def __init__(self, firmware: Firmware) -> None:
        self.phone = Phone(firmware)
        self.taken: list[mesh_pb2.FromRadio] = []
        """Everything the node has said since the download."""
        self._clock = firmware.air.clock
        self.hand_over(mesh_pb2.ToRadio(want_config_id=1))
        while (message := self.phone.next()) is not None and not message.config_complete_id:
            pass

    def hand_over(self, message: Message) -> None:
        self.phone.handle(message.SerializeToString(), self._clock.now())

    def send(self, packet: mesh_pb2.MeshPacket) -> list[mesh_pb2.FromRadio]:
        """Hand a packet over and take what the node says at once."""
        self.hand_over(mesh_pb2.ToRadio(packet=packet))
        return self.take()

    def take(self) -> list[mesh_pb2.FromRadio]:
        """All that waits."""
        messages = list(iter(self.phone.next, None))
        self.taken += messages
        return messages


def statuses(messages: list[mesh_pb2.FromRadio]) -> list[tuple[int, int]]:
    """(packet id, res) of the queue statuses among messages."""
    return [
        (message.queueStatus.mesh_packet_id, message.queueStatus.res)
        for message in messages
        if message.HasField("queueStatus")
    ]


def routings(messages: list[mesh_pb2.FromRadio]) -> list[tuple[int, int, int]]:
    """(sender, packet id, error) of the acks and naks among messages."""
    return [
        (
            getattr(message.packet, "from"),
            message.packet.decoded.request_id,
            mesh_pb2.Routing.FromString(message.packet.decoded.payload).error_reason,
        )
        for message in messages
        if message.packet.decoded.portnum == 5
    ]


def transmissions(mesh: SimulatedMesh, packet_id: int) -> list[Cause]:
    """Why a packet went on air each time, relays apart."""
    return [entry.cause for entry in mesh.log if entry.packet_id == packet_id and entry.cause is not Cause.RELAY]
