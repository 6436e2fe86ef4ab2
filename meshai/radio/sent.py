"""The packets handed to the node lately, and what is known of each.

Word of a packet comes from three sides, in any order: the node's queue status (it holds the packet, or why not), a
routing answer from our own node (a neighbour was heard relaying it, or why it failed) and one from the destination.
A packet is registered before it is written, because the answer can be here before the write returns.
"""

import asyncio
from collections import OrderedDict
from typing import Final

from meshai.airtime import MAX_FRAME_BYTES, text_frame_bytes
from meshai.characters import utf8_bytes
from meshai.errors import PacketTooLong
from meshai.messages import Delivery, Direct, Fate, NodeNum, OutgoingPacket
from meshai.radio.packets import ACCEPTED, NO_ERROR, RoutingAnswer, refusal_name

MOST_PACKETS: Final = 256
QUEUE_FULL: Final = "QUEUE_FULL"


class SentPacket:
    """What is known of one packet. Its futures are in the running loop."""

    def __init__(self, packet: OutgoingPacket, at: float, links_lost: int) -> None:
        destination = packet.address.destination
        self.packet_id = packet.packet_id
        self.destination: NodeNum | None = (
            destination.node if packet.wants_ack and isinstance(destination, Direct) else None
        )
        """Whose ack is to come; None when none is."""
        self.at = at
        self.relayed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """A neighbour was heard passing it on, which ends the firmware's own tries."""
        self.links_lost = links_lost
        """How many links had been lost when it was written."""
        self.taken: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Whether the node holds it: "", or the name of the refusal."""
        self.fate: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()
        self.delivered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """The destination's ack, also one that comes after all hope was given up."""

    @property
    def nak(self) -> str:
        """The routing error's name, if it has failed by now."""
        delivery = self.fate.result() if self.fate.done() else None
        return delivery.reason if delivery is not None and delivery.fate is Fate.FAILED else ""

    @property
    def is_over(self) -> bool:
        """Whether the wait for it ended without its destination's ack."""
        return self.fate.done() and not self.delivered.done()

    def tried_again(self, at: float, links_lost: int) -> None:
        """It is written once more: only a new word shows that the node holds it now."""
        self.at, self.links_lost = at, links_lost
        if not self.fate.done():
            self.taken = asyncio.get_running_loop().create_future()

    def queue_status(self, res: int) -> None:
        # A full queue is not the end of a packet that wants an ack: the node has it on its list of resends.
        is_kept = res in ACCEPTED or (self.destination is not None and refusal_name(res) == QUEUE_FULL)
        self._take("" if is_kept else refusal_name(res))

    def answered(self, answer: RoutingAnswer, own: NodeNum) -> None:
        self._take("")
        if answer.error != NO_ERROR:
            self.settle(Delivery(Fate.FAILED, answer.error))
        elif answer.sender == self.destination:
            self.settle(Delivery(Fate.DELIVERED))
            if not self.delivered.done():
                self.delivered.set_result(None)
        elif answer.sender == own and not self.relayed.done():
            self.relayed.set_result(None)

    def settle(self, delivery: Delivery) -> None:
        """The first word that is final stays."""
        if not self.fate.done():
            self.fate.set_result(delivery)

    def give_up(self) -> None:
        """Nothing more will be heard of it."""
        self.settle(Delivery(Fate.RELAYED if self.relayed.done() else Fate.UNCONFIRMED))

    def _take(self, refusal: str) -> None:
        if not self.taken.done():
            self.taken.set_result(refusal)


class SentPackets:
    """The newest of them by packet id; the oldest make room."""

    def __init__(self) -> None:
        self._packets: OrderedDict[int, SentPacket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._packets)

    def register(self, packet: OutgoingPacket, at: float, *, links_lost: int = 0) -> SentPacket:
        """Begin to watch a packet, or go on with one that was written before and may have arrived all the same."""
        sent = self._packets.get(packet.packet_id)
        if sent is not None and not sent.is_over:
            sent.tried_again(at, links_lost)
            return sent
        if len(self._packets) >= MOST_PACKETS:
            self.drop(next(iter(self._packets)))
        sent = self._packets[packet.packet_id] = SentPacket(packet, at, links_lost)
        return sent

    def get(self, packet_id: int) -> SentPacket | None:
        return self._packets.get(packet_id)

    def drop(self, packet_id: int) -> None:
        """Forget a packet; whoever still waits for its fate learns that it stays unknown."""
        if (sent := self._packets.pop(packet_id, None)) is not None:
            sent.give_up()

    def clear(self) -> None:
        for packet_id in tuple(self._packets):
            self.drop(packet_id)


def check_fits(packet: OutgoingPacket) -> None:
    """Raise PacketTooLong for what the address or the air does not carry, ValueError for impossible numbers."""
    address = packet.address
    if not 0 < packet.packet_id <= 0xFFFFFFFF:
        raise ValueError(f"{packet.packet_id} is no packet id; it is chosen before the packet is sent")
    if not 0 <= address.channel <= 7 or not 0 <= (address.reply_to or 0) <= 0xFFFFFFFF:
        raise ValueError(f"{address} is no address of a packet")
    size, frame = utf8_bytes(packet.text), frame_bytes(packet)
    if size > address.limit_bytes or frame > MAX_FRAME_BYTES:
        raise PacketTooLong(
            f"{size} bytes of text in a frame of {frame}; {address.limit_bytes} and {MAX_FRAME_BYTES} are the limits"
        )


def frame_bytes(packet: OutgoingPacket) -> int:
    """Size on air."""
    address = packet.address
    return text_frame_bytes(
        utf8_bytes(packet.text),
        is_direct=isinstance(address.destination, Direct),
        has_reply_id=address.reply_to is not None,
        has_emoji=packet.is_tapback,
    )
