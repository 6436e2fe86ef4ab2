"""Ends exchanges with other bots.

Two programs that answer everything would talk to each other for ever. A person reads an answer and types the next
text; a program sends it sooner than that can be done. One such text may be a person's, who was typing already; the
third in a row is taken for a program's, and its sender's questions stay unanswered for ten minutes: long enough, since
a program that only answers has nothing to answer then. Commands are not judged; people type `!ping` fast.
"""

import logging
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from meshai.messages import IncomingMessage, NodeNum, node_id

log = logging.getLogger(__name__)

MOST_ANSWERS: Final = 3
"""Answers to texts in a row that came too soon, the one that began it included."""
READING_S: Final = 3.0
TYPING_S: Final = 0.15
"""A character, on a telephone: fast typists need 0.15 to 0.2 s."""
MUTED_S: Final = 600.0
MOST_NODES: Final = 1000


@dataclass(slots=True)
class _Sender:
    too_soon: int = 0
    muted_until: float = float("-inf")


class LoopGuard:
    """Judges questions, one after the other. Times are in seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._senders: OrderedDict[NodeNum, _Sender] = OrderedDict()

    def is_loop(self, message: IncomingMessage, *, now: float, answered_at: float | None) -> bool:
        """Whether to stay silent; `answered_at` is when our newest packet to this conversation was sent."""
        sender = self._senders.pop(message.sender, None) or _Sender()
        self._senders[message.sender] = sender
        if len(self._senders) > MOST_NODES:
            self._senders.popitem(last=False)
        if now < sender.muted_until:
            return True
        if answered_at is None or now - answered_at > READING_S + TYPING_S * len(message.text):
            sender.too_soon = 0
            return False
        sender.too_soon += 1
        if sender.too_soon < MOST_ANSWERS:
            return False
        sender.too_soon = 0
        sender.muted_until = now + MUTED_S
        log.warning(
            "%s answers faster than a person reads and types, %d times in a row: taken for a bot and not answered for "
            "%.0f minutes; put it into bot.ignore_nodes",
            node_id(message.sender),
            MOST_ANSWERS,
            MUTED_S / 60,
        )
        return True


class NoGuard(LoopGuard):
    """Takes nobody for a bot: at a terminal people type fast, and benchmarks faster."""

    def is_loop(self, message: IncomingMessage, *, now: float, answered_at: float | None) -> bool:
        return False
