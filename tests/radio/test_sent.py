"""What is known of packets handed over, from answers in any order."""

import pytest

from meshai.config import CHANNEL_BYTES_MAX, DIRECT_BYTES_MAX
from meshai.errors import PacketTooLong
from meshai.messages import Address, Channel, Conversation, Delivery, Direct, Fate, OutgoingPacket
from meshai.radio.packets import RoutingAnswer
from meshai.radio.sent import MOST_PACKETS, SentPackets, check_fits

ME, ANNA = 0x5E400001, 0xA1B2C3D4


TO_ANNA = Direct(ANNA)


def packet(number: int = 1, to: Conversation = TO_ANNA, text: str = "hi", limit: int = 200) -> OutgoingPacket:
    return OutgoingPacket(Address(to, limit, reply_to=7), text, packet_id=number)


def answer(sender: int, error: str = "NONE") -> RoutingAnswer:
    return RoutingAnswer(1, sender, error)


async def test_the_destination_s_ack_is_delivery() -> None:
    sent = SentPackets().register(packet(), at=0.0)
    sent.queue_status(0)
    assert sent.taken.result() == ""
    sent.answered(answer(ANNA), ME)
    assert sent.fate.result() == Delivery(Fate.DELIVERED)


async def test_a_relay_heard_is_not_yet_delivery() -> None:
    sent = SentPackets().register(packet(), at=0.0)
    sent.answered(answer(ME), ME)
    assert sent.taken.done(), "a routing answer shows that the node took the packet"
    assert not sent.fate.done()
    sent.answered(answer(ANNA), ME)
    assert sent.fate.result() == Delivery(Fate.DELIVERED)


async def test_a_relay_heard_and_no_more_is_relayed() -> None:
    sent = SentPackets().register(packet(), at=0.0)
    sent.answered(answer(ME), ME)
    sent.give_up()
    assert sent.fate.result() == Delivery(Fate.RELAYED)


async def test_nothing_heard_is_unconfirmed() -> None:
    sent = SentPackets().register(packet(), at=0.0)
    sent.give_up()
    assert sent.fate.result() == Delivery(Fate.UNCONFIRMED)


@pytest.mark.parametrize("sender", [ME, ANNA])
@pytest.mark.parametrize("error", ["MAX_RETRANSMIT", "PKI_UNKNOWN_PUBKEY", "ROUTING_ERROR_77"])
async def test_a_nak_is_failure_with_its_name(sender: int, error: str) -> None:
    sent = SentPackets().register(packet(), at=0.0)
    sent.queue_status(0)
    sent.answered(answer(sender, error), ME)
    sent.answered(answer(sender, error), ME)
    assert sent.fate.result() == Delivery(Fate.FAILED, error)
    assert sent.nak == error


async def test_an_ack_of_a_third_node_means_nothing() -> None:
    sent = SentPackets().register(packet(), at=0.0)
    sent.answered(answer(0x1234), ME)
    sent.give_up()
    assert sent.fate.result() == Delivery(Fate.UNCONFIRMED)


@pytest.mark.parametrize(
    ("to", "res", "refusal"),
    [
        (Direct(ANNA), 0, ""),
        (Direct(ANNA), 35, ""),
        (Direct(ANNA), 39, "PKI_SEND_FAIL_PUBLIC_KEY"),
        (Direct(ANNA), 32, ""),
        (Channel(1), 32, "QUEUE_FULL"),
        (Channel(1), 7, "TOO_LARGE"),
        (Channel(1), 99, "REFUSED_99"),
    ],
)
async def test_the_queue_status_says_whether_the_node_holds_it(to: Conversation, res: int, refusal: str) -> None:
    sent = SentPackets().register(packet(to=to), at=0.0)
    sent.queue_status(res)
    assert sent.taken.result() == refusal


async def test_a_packet_tried_again_may_have_arrived_before() -> None:
    packets = SentPackets()
    first = packets.register(packet(), at=0.0)
    first.queue_status(0)
    again = packets.register(packet(), at=9.0)
    assert again is first
    assert not again.taken.done(), "only a new word shows that the node holds it now"
    again.answered(answer(ANNA), ME)
    assert packets.register(packet(), at=20.0).fate.result() == Delivery(Fate.DELIVERED)


async def test_a_packet_tried_again_after_a_refusal_starts_anew() -> None:
    packets = SentPackets()
    first = packets.register(packet(), at=0.0)
    first.answered(answer(ME, "TOO_LARGE"), ME)
    assert not packets.register(packet(), at=9.0).fate.done()


async def test_a_packet_given_up_and_tried_again_starts_anew() -> None:
    packets = SentPackets()
    first = packets.register(packet(), at=0.0)
    first.answered(answer(ME), ME)
    first.give_up()
    again = packets.register(packet(), at=90.0)
    assert not again.taken.done()
    assert not again.relayed.done()
    again.give_up()
    again.answered(answer(ANNA), ME)
    late = packets.register(packet(), at=180.0)
    assert late.delivered.done(), "an ack that comes after all counts whenever it is asked for"


async def test_the_table_is_bounded_and_nobody_waits_for_ever() -> None:
    packets = SentPackets()
    first = packets.register(packet(1), at=0.0)
    for number in range(2, MOST_PACKETS + 10):
        packets.register(packet(number), at=0.0)
    assert len(packets) == MOST_PACKETS
    assert first.fate.result() == Delivery(Fate.UNCONFIRMED)
    packets.clear()
    assert len(packets) == 0


@pytest.mark.parametrize(("to", "most"), [(Channel(1), CHANNEL_BYTES_MAX), (Direct(ANNA), DIRECT_BYTES_MAX)])
def test_the_longest_text_the_settings_allow_fits_on_air(to: Conversation, most: int) -> None:
    check_fits(packet(to=to, text="x" * most, limit=most))
    with pytest.raises(PacketTooLong):
        check_fits(packet(to=to, text="x" * (most + 1), limit=255))


@pytest.mark.parametrize("text", ["x" * 201, "ж" * 101, "👍" * 51])
def test_the_address_s_limit_counts_bytes(text: str) -> None:
    with pytest.raises(PacketTooLong):
        check_fits(packet(text=text))


def test_impossible_numbers_are_refused_before_they_reach_the_library() -> None:
    address = Address(Direct(ANNA), 200)
    for wrong in (
        OutgoingPacket(address, "hi"),
        OutgoingPacket(address, "hi", packet_id=2**32),
        OutgoingPacket(Address(Direct(ANNA), 200, channel=8), "hi", packet_id=1),
        OutgoingPacket(Address(Direct(ANNA), 200, reply_to=2**32), "hi", packet_id=1),
    ):
        with pytest.raises(ValueError, match="is no"):
            check_fits(wrong)
