"""Whether a packet that was not delivered is tried again, when, and how.

The firmware itself sends a direct packet up to three times. What is decided here comes after that, on each answer of
section "routing errors" of the protocol: a loss is tried again as often as the settings say, a missing key once when
there was time to exchange keys, a refusal for lack of room or airtime when there may be some again, and a refusal that
would only be repeated never. A channel packet is never repeated for want of an ack, since none can come.

On a way over relays more is lost, for each relay sends a packet but once: at 30 % loss per link a packet arrives over
one link in 97 of 100 tries, over three in 46, and of those that arrived three in five acks are lost. So each relay
adds as many tries as the settings allow over one link. What arrived and was not acked is then read twice; nothing that
the radio tells could prevent that.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from meshai.messages import Delivery, Fate

LOST_PAUSE_S: Final = 25.0
"""The destination may have it, and its ack be lost: it sends that again for about twenty seconds on LONG_FAST."""
KEY_SENT_PAUSE_S: Final = 20.0
"""After PKI_UNKNOWN_PUBKEY our node sends its node info by itself (firmware `ReliableRouter.cpp`)."""
KEY_WAIT_S: Final = 60.0
"""How long to wait for the destination's node info when our node lacks its key."""
TOO_SOON_PAUSE_S: Final = 5.0
DUTY_CYCLE_PAUSE_S: Final = 300.0
QUEUE_PAUSE_S: Final = 30.0
MOST_LOSSES: Final = 6
"""How often a packet is tried again at most, however long its way."""
MOST_PAUSES: Final = 3
"""How often a packet waits for airtime or room in the node's queue."""


class Again(NamedTuple):
    """Try once more after a pause, with a new packet id."""

    pause_s: float
    wants_key: bool = False
    """Only if the destination's key is known by then; as soon as it is."""
    in_smaller_parts: bool = False


def lost(delivery: Delivery) -> bool:
    """Whether nobody can say that the packet arrived, though nobody refused it."""
    return delivery.fate in (Fate.RELAYED, Fate.UNCONFIRMED) or delivery.reason == "MAX_RETRANSMIT"


def ended(deliveries: Sequence[Delivery]) -> Delivery:
    """How a packet ended for which nothing more is done: lost at last, but relayed once, it may well have arrived."""
    newest = deliveries[-1]
    if lost(newest) and any(delivery.fate is Fate.RELAYED for delivery in deliveries):
        return Delivery(Fate.RELAYED)
    return newest


def again(deliveries: Sequence[Delivery], *, is_direct: bool, retries: int, relays: int) -> Again | None:
    """What to do after these ends of the tries so far, the newest last; None to leave it at that.

    `retries` is how often what was lost over one link is tried again, and `relays` how many are on the way.
    """
    newest = deliveries[-1]
    if newest.fate in (Fate.DELIVERED, Fate.HANDED_OVER):
        return None
    if lost(newest):
        losses = sum(lost(delivery) for delivery in deliveries)
        most = min(MOST_LOSSES, retries * (1 + relays))
        return Again(LOST_PAUSE_S) if is_direct and losses <= most else None
    refusals = sum(delivery.reason == newest.reason for delivery in deliveries)
    is_first = refusals == 1
    match newest.reason:
        case "DUTY_CYCLE_LIMIT" if refusals <= MOST_PAUSES:
            return Again(DUTY_CYCLE_PAUSE_S)
        case "QUEUE_FULL" if refusals <= MOST_PAUSES:
            return Again(QUEUE_PAUSE_S)
        case "RATE_LIMIT_EXCEEDED" if is_first:
            return Again(TOO_SOON_PAUSE_S)
        case "TOO_LARGE" if is_first:
            return Again(0.0, in_smaller_parts=True)
        case "PKI_UNKNOWN_PUBKEY" if is_first and is_direct:
            return Again(KEY_SENT_PAUSE_S)
        case "PKI_SEND_FAIL_PUBLIC_KEY" if is_first and is_direct:
            return Again(KEY_WAIT_S, wants_key=True)
        case _:
            return None
