"""How old is what we hear? The rule that keeps the bot from answering a backlog.

A node keeps the packets it hears while no client listens, and hands them all over directly after its configuration.
Nothing in a packet says that it waited, except the time of reception by the node's clock, and that clock may be
unset, wrong, or set while we listen. So:

1. **The burst.** Packets that follow the configuration without a pause of 0.5 s, for at most 10 s, may have waited.
2. **The node's clock** is read from live packets other than texts (a node tells of itself every minute). It is kept
   as a difference to our monotonic clock, so that a step of our own wall clock changes nothing.
3. **Age in the burst.** With the node's clock known, a packet is as old as its reception time says. With the clock
   not known yet, that time is compared with our wall clock, but a packet is never taken to be older than the time
   since we last listened. With no usable reception time it is as old as that. At the first connect of the process
   that time counts from `away_since`; when even this is unknown, the packet counts as stale.
4. **After the burst** a packet is live whatever its reception time says: a wrong clock must not silence the bot. The
   one exception is a text far behind a node clock that is known: a store-and-forward node replays it.

Known limits: a node clock that is set back makes texts look replayed until the next packet of another kind, about a
minute; and at the first connect a wrong wall clock of ours can make a fresh text stale, or an old one of the
previous run fresh.
"""

from typing import Final

from meshai.radio.packets import Heard

PAUSE_S: Final = 0.5
LONGEST_BURST_S: Final = 10.0
EARLIEST_RX_TIME: Final = 1_577_836_800
"""2020: a node whose clock says less counts from its start or its build date."""
MOST_AHEAD_S: Final = 60.0
"""How far ahead of ours an unproven node clock may be and still be believed."""


class Backlog:
    """Tells stale packets from live ones, over all links of one process."""

    def __init__(self, answer_within_s: float, *, away_since: float | None) -> None:
        self._answer_within_s = answer_within_s
        self._away_since = away_since
        self._opened_at = 0.0
        self._burst_at: float | None = None
        self._listened_at: float | None = None
        self._away_s: float | None = None
        self._node_clock: float | None = None

    def opened(self, at: float, now: float) -> None:
        """A link is up and its configuration complete: what follows may have waited."""
        if self._listened_at is not None:
            self._away_s = at - self._listened_at
        elif self._away_since is not None and self._away_since <= now:
            self._away_s = now - self._away_since
        self._opened_at = self._burst_at = at

    def listening(self, at: float) -> None:
        """The node was heard from. While the burst lasts, that does not yet mean that nothing waits in it."""
        if not self._is_burst(at):
            self._listened_at = at

    def is_stale(self, heard: Heard, now: float) -> bool:
        """Whether this packet waited too long to be answered."""
        rx_time = heard.rx_time if heard.rx_time is not None and heard.rx_time >= EARLIEST_RX_TIME else None
        if self._is_burst(heard.at):
            self._burst_at = heard.at
            age_s = self._age_in_burst(heard.at, now, rx_time)
            return age_s is None or age_s > self._answer_within_s
        self._listened_at = heard.at
        if rx_time is None:
            return False
        if heard.is_text:
            return self._node_clock is not None and heard.at + self._node_clock - rx_time > self._answer_within_s
        self._node_clock = rx_time - heard.at
        return False

    def _is_burst(self, at: float) -> bool:
        if self._burst_at is not None and (at - self._burst_at > PAUSE_S or at - self._opened_at > LONGEST_BURST_S):
            self._burst_at = None
        return self._burst_at is not None

    def _age_in_burst(self, at: float, now: float, rx_time: int | None) -> float | None:
        if rx_time is not None and self._node_clock is not None:
            return at + self._node_clock - rx_time
        if rx_time is None or rx_time > now + MOST_AHEAD_S:
            return self._away_s
        return now - rx_time if self._away_s is None else min(now - rx_time, self._away_s)
