"""A node whose every answer is scripted, for what a well-behaved one never does. Real bytes on a real socket."""

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Any

from meshtastic.protobuf import channel_pb2, config_pb2, mesh_pb2, portnums_pb2

from meshai.messages import BROADCAST, NodeNum, node_id

ME: NodeNum = 0x5E400001
ANNA: NodeNum = 0xA1B2C3D4
START = b"\x94\xc3"


def frame(message: mesh_pb2.FromRadio) -> bytes:
    payload: bytes = message.SerializeToString()
    return START + len(payload).to_bytes(2, "big") + payload


def queue_status(packet_id: int = 0, *, res: int = 0, free: int = 16) -> mesh_pb2.FromRadio:
    status = mesh_pb2.QueueStatus(res=res, free=free, maxlen=16, mesh_packet_id=packet_id)
    return mesh_pb2.FromRadio(queueStatus=status)


def heard(payload: bytes, *, port: int = portnums_pb2.PortNum.TEXT_MESSAGE_APP, **fields: Any) -> mesh_pb2.FromRadio:
    """A packet from Anna to us, unless `fields` say otherwise."""
    message = mesh_pb2.FromRadio()
    packet = message.packet
    for name, value in {"from": ANNA, "to": ME, "id": 1, **fields}.items():
        setattr(packet, name, value)
    packet.decoded.portnum = port
    packet.decoded.payload = payload
    return message


def routing(request_id: int, error: int = 0, *, sender: NodeNum = ANNA) -> mesh_pb2.FromRadio:
    answer = mesh_pb2.Routing(error_reason=error)
    message = heard(
        answer.SerializeToString(), port=portnums_pb2.PortNum.ROUTING_APP, id=request_id ^ 0x55, **{"from": sender}
    )
    message.packet.decoded.request_id = request_id
    return message


def own_config(*, number: NodeNum = ME, name: str = "MeshAI", hop_limit: int = 3) -> list[mesh_pb2.FromRadio]:
    """What a node tells of itself, without the end."""
    user = mesh_pb2.User(id=node_id(number), long_name=name, short_name=name[:4])
    lora = config_pb2.Config.LoRaConfig(use_preset=True, region=1, hop_limit=hop_limit)
    return [
        mesh_pb2.FromRadio(my_info=mesh_pb2.MyNodeInfo(my_node_num=number)),
        mesh_pb2.FromRadio(node_info=mesh_pb2.NodeInfo(num=number, user=user)),
        mesh_pb2.FromRadio(metadata=mesh_pb2.DeviceMetadata(firmware_version="2.7.26")),
        mesh_pb2.FromRadio(channel=channel_pb2.Channel(index=0, role=channel_pb2.Channel.Role.PRIMARY)),
        mesh_pb2.FromRadio(config=config_pb2.Config(lora=lora)),
    ]


class ScriptedNode:
    """Listens on `port` from `start` until `stop`. Its attributes are the script."""

    def __init__(self) -> None:
        self.config = own_config()
        self.nodes: list[mesh_pb2.FromRadio] = []
        self.completes_config = True
        self.accepts_config = True
        self.backlog: list[mesh_pb2.FromRadio] = []
        self.is_mute = False
        self.reads = True
        self.on_packet: Callable[[mesh_pb2.MeshPacket], list[mesh_pb2.FromRadio]] = lambda packet: [
            queue_status(packet.id)
        ]
        self.on_heartbeat: Callable[[], list[mesh_pb2.FromRadio]] = lambda: [queue_status()]
        self.packets: list[mesh_pb2.MeshPacket] = []
        self.nonces: list[int] = []
        self.connects = 0
        self.open = 0
        self.most_open = 0
        self.port = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        """Listen, on the same port as before if there was one."""
        sock = socket.create_server(("127.0.0.1", self.port))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.port = sock.getsockname()[1]
        self._server = await asyncio.start_server(self._accept, sock=sock, limit=4096)

    async def stop(self) -> None:
        """Close everything and refuse."""
        if self._server is not None:
            self._server.close()
        self.drop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def say(self, *messages: mesh_pb2.FromRadio) -> None:
        self.say_bytes(b"".join(frame(message) for message in messages))

    def say_bytes(self, wire: bytes) -> None:
        for writer in self._writers:
            writer.write(wire)

    def drop(self, *, reset: bool = False) -> None:
        """End the connections there are."""
        for writer in self._writers:
            if reset:
                sock = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
            else:
                writer.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer), name="scripted node")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connects += 1
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        self._writers.add(writer)
        try:
            while True:
                payload = await _next_frame(reader)
                if not self.reads:
                    await asyncio.Event().wait()
                for answer in self._answers(payload):
                    writer.write(frame(answer))
        except (EOFError, OSError):
            pass
        finally:
            self.open -= 1
            self._writers.discard(writer)
            writer.close()

    def _answers(self, payload: bytes) -> list[mesh_pb2.FromRadio]:
        message = mesh_pb2.ToRadio.FromString(payload)
        if self.is_mute:
            return []
        match message.WhichOneof("payload_variant"):
            case "want_config_id":
                self.nonces.append(message.want_config_id)
                return self._download(message.want_config_id)
            case "packet":
                self.packets.append(message.packet)
                return self.on_packet(message.packet)
            case "heartbeat":
                return self.on_heartbeat()
        return []

    def _download(self, nonce: int) -> list[mesh_pb2.FromRadio]:
        if not self.accepts_config:
            return []
        nodes = [] if nonce == 69420 else self.nodes
        if not self.completes_config:
            return [*self.config, *nodes]
        backlog, self.backlog = self.backlog, []
        return [*self.config, *nodes, mesh_pb2.FromRadio(config_complete_id=nonce), *backlog]


async def _next_frame(reader: asyncio.StreamReader) -> bytes:
    await reader.readuntil(START)
    length = int.from_bytes(await reader.readexactly(2), "big")
    return await reader.readexactly(length)


def broadcast(payload: bytes, **fields: Any) -> mesh_pb2.FromRadio:
    return heard(payload, to=BROADCAST, **fields)
