"""Whether a lost packet is tried again, by the way it goes."""

import pytest

from meshai.messages import Delivery, Fate
from meshai.retries import MOST_LOSSES, Again, again, ended

RELAYED, UNCONFIRMED = Delivery(Fate.RELAYED), Delivery(Fate.UNCONFIRMED)
UNHEARD = Delivery(Fate.FAILED, "MAX_RETRANSMIT")
REFUSED = Delivery(Fate.FAILED, "NO_CHANNEL")


def tries(end: Delivery, *, is_direct: bool = True, retries: int = 2, relays: int = 0) -> int:
    """How often a packet is sent that always ends like this."""
    ends = [end]
    while len(ends) < 100 and again(ends, is_direct=is_direct, retries=retries, relays=relays) is not None:
        ends.append(end)
    return len(ends)


@pytest.mark.parametrize("end", [RELAYED, UNCONFIRMED, UNHEARD])
def test_each_relay_adds_tries_up_to_a_bound(end: Delivery) -> None:
    assert [tries(end, relays=relays) for relays in range(4)] == [3, 5, 7, 7]
    assert tries(end, retries=1, relays=2) == 4
    assert tries(end, retries=3, relays=6) == 1 + MOST_LOSSES
    assert tries(end, retries=0, relays=6) == 1


@pytest.mark.parametrize("end", [RELAYED, UNCONFIRMED, UNHEARD])
def test_channel_packets_are_never_tried_again(end: Delivery) -> None:
    assert tries(end, is_direct=False, relays=3) == 1


@pytest.mark.parametrize("end", [Delivery(Fate.DELIVERED), REFUSED])
def test_what_is_final_ends_the_tries_on_any_way(end: Delivery) -> None:
    assert tries(end, relays=3) == 1


def test_losses_count_and_other_ends_do_not() -> None:
    key = Delivery(Fate.FAILED, "PKI_UNKNOWN_PUBKEY")
    plan = again([UNHEARD, key, RELAYED], is_direct=True, retries=2, relays=0)
    assert isinstance(plan, Again)
    assert again([UNHEARD, key, RELAYED, UNHEARD], is_direct=True, retries=2, relays=0) is None


def test_what_was_relayed_once_may_have_arrived() -> None:
    assert ended([RELAYED, UNHEARD]) == RELAYED
    assert ended([UNHEARD, UNHEARD]) == UNHEARD
    assert ended([RELAYED, REFUSED]) == REFUSED
    assert ended([UNHEARD, Delivery(Fate.DELIVERED)]) == Delivery(Fate.DELIVERED)
