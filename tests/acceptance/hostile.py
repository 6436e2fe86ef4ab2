"""Packets as nobody honest sends them: real ones mutated field by field and byte by byte, and wholly made-up ones."""

import asyncio
import copy
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from meshtastic.protobuf import mesh_pb2, portnums_pb2, storeforward_pb2, telemetry_pb2

from meshai.messages import BROADCAST, NodeNum
from meshai.sim.mesh import SimulatedMesh
from meshai.sim.packets import NODE_INFO, POSITION, TELEMETRY, TEXT, TRACEROUTE, WAYPOINT, make_packet
from meshai.sim.residents import STORE_FORWARD
from meshai.testing import ManualClock
from tests.sim.clients import DeskClient, text_packet

NUMBERS: Final = (0, 1, 6, 7, 8, 127, 128, 255, 256, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFE, BROADCAST)
REALS: Final = (0.0, -0.0, 1e-45, 6.25, -1e38, 3.4e38, float("inf"), float("-inf"), float("nan"))
WORDS: Final = (
    "",
    "\0",
    " \u200b\u2060",
    "@MeshAI",
    "@MeshAI hello",
    "MeshAI: !help",
    "!ping",
    "!more",
    "!reset",
    "@[MeshAI]",
    "\u202e!olleh",
    "🦊" * 58,
    "ﷺ" * 70,
    "a\u0301" * 60,
    "\r\n" * 100,
    "%s%n{0}${x}\x1b[2J",
    "'; drop table turns; --",
    "x" * 233,
)
BYTES: Final = (
    *(word.encode() for word in WORDS),
    b"\xff" * 233,
    b"\xed\xa0\x80",
    b"!ping \xf0\x9f",
    b"\xc0\xaf",
    b"@MeshAI \xff\xfe",
    b"\x08\x00",
    bytes(range(256)),
)


# Real ones.


async def real_frames(ours: NodeNum, people: Sequence[NodeNum]) -> list[mesh_pb2.FromRadio]:
    """What the node `ours` tells its client on a lively day: texts, acks, naks, telemetry, ciphertext and the rest."""
    clock = ManualClock()
    async with SimulatedMesh(clock=clock, rng=random.Random(8)) as mesh:
        node = mesh.node("MeshAI", "MAI", number=ours, channels=("", "bots"))
        peers = [mesh.peer(f"Person {number:x}", number=number) for number in people]
        desk = DeskClient(node.firmware)
        doings = [
            peer.send_direct(text) for peer in peers for text in ("hello there", "!ping", "Привет! Как дела?", "👍")
        ] + [peers[0].send_raw(packet) for packet in _packets_of(peers[0].number, peers[0].identity.user)]
        for doing in doings:
            task = asyncio.ensure_future(doing)
            await clock.advance(30)
            await task
            desk.take()
        desk.send(text_packet("a question", people[0], packet_id=4242, want_ack=True))
        await clock.advance(60)
        desk.send(text_packet("to a stranger", 0xDEAD, packet_id=4243, want_ack=True))
        desk.send(text_packet("too soon", packet_id=4244))
        desk.take()
        nodes = [mesh_pb2.FromRadio(node_info=peer.node_info()) for peer in peers]
    notice = mesh_pb2.ClientNotification(message="Duty cycle limit exceeded. You can send again in 4 mins")
    return [*desk.taken, *nodes, mesh_pb2.FromRadio(clientNotification=notice)]


def _packets_of(sender: NodeNum, user: mesh_pb2.User) -> list[mesh_pb2.MeshPacket]:
    contents: list[tuple[int, bytes, dict[str, Any]]] = [
        (TEXT, b"@MeshAI what is SNR?", {"channel": 1}),
        (TEXT, b"@MeshAI not here", {}),
        (TEXT, b"just talking", {"channel": 1, "reply_id": 77}),
        (TEXT, "👍".encode(), {"channel": 1, "reply_id": 77, "emoji": 1}),
        (NODE_INFO, user.SerializeToString(), {}),
        (TELEMETRY, telemetry_pb2.Telemetry(device_metrics={"battery_level": 80}).SerializeToString(), {}),
        (POSITION, mesh_pb2.Position(latitude_i=440_000_000, longitude_i=1).SerializeToString(), {}),
        (WAYPOINT, mesh_pb2.Waypoint(id=5, name="hut").SerializeToString(), {}),
        (TRACEROUTE, mesh_pb2.RouteDiscovery(route=[1, 2]).SerializeToString(), {}),
        (STORE_FORWARD, storeforward_pb2.StoreAndForward(text=b"old").SerializeToString(), {}),
        (250, b"a port nobody has named", {}),
    ]
    packets = [
        make_packet(sender, BROADCAST, port, payload, packet_id=900 + index, **fields)
        for index, (port, payload, fields) in enumerate(contents)
    ]
    unreadable = mesh_pb2.MeshPacket(to=BROADCAST, id=999, channel=0x5B, encrypted=b"x" * 40)
    setattr(unreadable, "from", sender)
    return [*packets, unreadable]


# Mutation.


class Mutator:
    """Makes hostile frames of real ones. `numbers` are node numbers and packet ids that mean something at present."""

    def __init__(
        self, rng: random.Random, frames: Sequence[mesh_pb2.FromRadio], numbers: Callable[[], Sequence[int]]
    ) -> None:
        self._rng = rng
        self._frames = frames
        self._numbers = numbers

    def frame(self, rx_time: int) -> bytes:
        """A frame that is mutated a little; a few are left as they are."""
        rng = self._rng
        frame = mesh_pb2.FromRadio()
        frame.CopyFrom(rng.choice(self._frames))
        if frame.HasField("packet"):
            frame.packet.rx_time = rx_time
            frame.packet.id = rng.choice((frame.packet.id, rng.randrange(2**32)))
        for _ in range(rng.choice((0, 1, 1, 2, 3, 8))):
            self._mutate(getattr(frame, str(frame.WhichOneof("payload_variant"))))
        wire = frame.SerializeToString()
        return self._broken(wire) if rng.random() < 0.25 else wire

    def _mutate(self, message: Message) -> None:
        """Change, remove or add one field, at any depth."""
        rng = self._rng
        present = [field for field, _ in message.ListFields()]
        inner = [field for field in present if field.message_type is not None and not field.is_repeated]
        if inner and rng.random() < 0.85:
            self._mutate(getattr(message, rng.choice(inner).name))
        elif present and rng.random() < 0.3:
            message.ClearField(rng.choice(present).name)
        elif fields := [field for field in message.DESCRIPTOR.fields if field.message_type is None]:
            field = rng.choice([field for field in present if field.message_type is None] or fields)
            self._set(message, field if rng.random() < 0.7 else rng.choice(fields))

    def _set(self, message: Message, field: Any) -> None:
        value = self._value(field)
        if field.is_repeated:
            getattr(message, field.name).append(value)
        else:
            setattr(message, field.name, value)

    def _value(self, field: Any) -> Any:
        rng = self._rng
        match field.cpp_type:
            case FieldDescriptor.CPPTYPE_BOOL:
                return rng.random() < 0.5
            case FieldDescriptor.CPPTYPE_STRING:
                return rng.choice(WORDS if field.type == FieldDescriptor.TYPE_STRING else BYTES)
            case FieldDescriptor.CPPTYPE_FLOAT | FieldDescriptor.CPPTYPE_DOUBLE:
                return rng.choice(REALS)
            case FieldDescriptor.CPPTYPE_ENUM if rng.random() < 0.7:
                return rng.choice(field.enum_type.values).number
            case FieldDescriptor.CPPTYPE_INT32 | FieldDescriptor.CPPTYPE_ENUM | FieldDescriptor.CPPTYPE_INT64:
                return (self._number() + 2**31) % 2**32 - 2**31
            case _:
                return self._number()

    def _number(self) -> int:
        rng = self._rng
        return rng.choice((rng.choice(NUMBERS), rng.choice(self._numbers()), rng.getrandbits(32)))

    def _broken(self, wire: bytes) -> bytes:
        rng = self._rng
        at = rng.randrange(len(wire) + 1)
        return rng.choice(
            (
                wire[:at],
                wire[:at] + rng.randbytes(rng.randint(1, 4)) + wire[at:],
                wire[:at] + wire[at + rng.randint(1, 4) :],
                wire[:at] + rng.randbytes(1) + wire[at + 1 :],
                wire[:at] + bytes((wire[at] ^ 1 << rng.randrange(8),)) + wire[at + 1 :] if at < len(wire) else wire,
            )
        )


class DictMutator:
    """Makes hostile dicts of those the library publishes: fields missing, of other types, zero, giant, or repeated."""

    def __init__(self, rng: random.Random, packets: Sequence[Mapping[str, Any]], numbers: Sequence[int]) -> None:
        self._rng = rng
        self._packets = packets
        self._numbers = numbers

    def packet(self) -> dict[str, Any]:
        """A packet that is mutated a little; a few are left as they are."""
        rng = self._rng
        packet = copy.deepcopy(dict(rng.choice(self._packets)))
        packet["id"] = rng.choice((packet["id"], rng.randrange(2**32)))
        for _ in range(rng.choice((0, 1, 1, 2, 3, 8))):
            inner = packet.get("decoded")
            self._mutate(inner if isinstance(inner, dict) and inner and rng.random() < 0.5 else packet)
        return packet

    def _mutate(self, section: dict[str, Any]) -> None:
        rng = self._rng
        if not section:
            return
        key = rng.choice(list(section))
        if rng.random() < 0.25:
            del section[key]
        elif rng.random() < 0.25:
            section[key] = section[rng.choice(list(section))]
        else:
            section[key] = rng.choice(
                (
                    rng.choice(NUMBERS),
                    rng.choice(self._numbers),
                    rng.choice(REALS),
                    rng.choice(WORDS),
                    rng.choice(BYTES),
                    rng.choice((None, True, False, -1, 2**64, [], {}, [section], {"decoded": {}}, "NaN", 1e400)),
                )
            )


def published(packet: mesh_pb2.MeshPacket) -> dict[str, Any]:
    """A packet as the library publishes it."""
    return {
        "to": 0,
        **MessageToDict(packet),
        "decoded": {**MessageToDict(packet.decoded), "payload": packet.decoded.payload},
    }


# Made up by Hypothesis.

_numbers = st.sampled_from(NUMBERS) | st.integers(0, 2**32 - 1)
_texts = st.sampled_from(WORDS) | st.text(max_size=60)
_payloads = st.sampled_from(BYTES) | st.binary(max_size=240)


def made_up(strategy: st.SearchStrategy[Any], count: int) -> list[Any]:
    """`count` values of a strategy, the same in every run."""
    found: list[Any] = []

    @settings(max_examples=count, database=None, phases=[Phase.generate], derandomize=True, deadline=None)
    @given(strategy)
    def collect(value: Any) -> None:
        found.append(value)

    collect()
    return found


def wires(numbers: Sequence[int]) -> st.SearchStrategy[bytes]:
    """Frames of packets with any values at all; `numbers` are node numbers that mean something."""
    known = st.sampled_from(numbers) | _numbers
    data = st.builds(
        mesh_pb2.Data,
        portnum=st.sampled_from((TEXT, TEXT, *portnums_pb2.PortNum.values())),
        payload=_payloads,
        want_response=st.booleans(),
        dest=known,
        source=known,
        request_id=known,
        reply_id=known,
        emoji=st.sampled_from((0, 0, 0, 1, 0x1F600)),
        bitfield=_numbers,
    )
    packet = st.builds(
        mesh_pb2.MeshPacket,
        **{"from": known},
        to=known,
        channel=st.sampled_from((0, 1, 2, 7, 8, 91, 2**32 - 1)),
        decoded=data,
        id=_numbers,
        rx_snr=st.sampled_from(REALS),
        rx_rssi=st.integers(-(2**31), 2**31 - 1),
        hop_limit=_numbers,
        hop_start=_numbers,
        want_ack=st.booleans(),
        via_mqtt=st.sampled_from((False, False, True)),
        public_key=st.binary(max_size=40),
        pki_encrypted=st.booleans(),
        next_hop=_numbers,
        relay_node=_numbers,
    )
    return st.builds(lambda packet: mesh_pb2.FromRadio(packet=packet).SerializeToString(), packet) | _payloads


def dicts(numbers: Sequence[int]) -> st.SearchStrategy[Any]:
    """Packets as the library publishes them, or nearly so: any field may be missing, or of another type."""
    odd: st.SearchStrategy[Any] = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        _texts,
        _payloads,
        st.lists(st.integers(), max_size=2),
        st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
    )

    def mostly(usual: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.one_of(usual, usual, usual, usual, odd)

    known = mostly(st.sampled_from(numbers) | _numbers)
    decoded = st.fixed_dictionaries(
        {},
        optional={
            "portnum": mostly(st.sampled_from(("TEXT_MESSAGE_APP", "TEXT_MESSAGE_APP", "ROUTING_APP", 1, 300))),
            "payload": mostly(_payloads),
            "text": odd,
            "replyId": known,
            "requestId": known,
            "emoji": mostly(st.sampled_from((0, 0, 0, 1))),
            "bitfield": known,
            "routing": mostly(st.fixed_dictionaries({}, optional={"errorReason": mostly(_texts), "routeReply": odd})),
        },
    )
    return mostly(
        st.fixed_dictionaries(
            {},
            optional={
                "from": known,
                "to": known,
                "id": known,
                "channel": mostly(st.integers(0, 9)),
                "rxTime": known,
                "rxSnr": mostly(st.sampled_from(REALS)),
                "rxRssi": mostly(st.integers(-(2**31), 2**31)),
                "hopStart": mostly(st.integers(0, 8)),
                "hopLimit": mostly(st.integers(0, 8)),
                "viaMqtt": mostly(st.just(False)),
                "pkiEncrypted": mostly(st.booleans()),
                "publicKey": mostly(_texts),
                "decoded": mostly(decoded),
            },
        )
    )
