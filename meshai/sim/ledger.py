"""How much of the air a node has heard and used: what it tells of itself and what limits it."""

from collections import deque
from typing import Final

from meshai.clock import Clock

HOUR_S: Final = 3600.0
MINUTE_S: Final = 60.0
MINUTES: Final = 60
IDLE_CONTENTION: Final = 3
FULL_CONTENTION: Final = 8
"""Exponents of the contention window (firmware `RadioInterface.h`)."""


class AirtimeLedger:
    """Airtime of the last hour, by when it ended and whose it was."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._own: deque[tuple[float, float]] = deque()
        self._all: deque[tuple[float, float]] = deque()

    def sent(self, airtime_s: float) -> None:
        now = self._clock.monotonic()
        self._own.append((now, airtime_s))
        self._all.append((now, airtime_s))
        _forget(self._own, now - HOUR_S)
        _forget(self._all, now - MINUTE_S)

    def heard(self, airtime_s: float) -> None:
        now = self._clock.monotonic()
        self._all.append((now, airtime_s))
        _forget(self._all, now - MINUTE_S)

    @property
    def utilisation_percent(self) -> float:
        """Share of the last minute in which the channel was busy, by us or by others."""
        return 100 * self._sum(self._all, MINUTE_S) / MINUTE_S

    @property
    def contention(self) -> int:
        """Exponent of the contention window for packets of one's own: 3 on an idle channel, 8 on a full one."""
        share = min(100, int(self.utilisation_percent))
        return IDLE_CONTENTION + share * (FULL_CONTENTION - IDLE_CONTENTION) // 100

    @property
    def own_percent(self) -> float:
        """Share of the last hour in which we transmitted."""
        return 100 * self.own_s / HOUR_S

    @property
    def own_s(self) -> float:
        """Seconds we transmitted in the last hour."""
        return self._sum(self._own, HOUR_S)

    def minutes_until_below(self, limit_s: float) -> int:
        """Whole minutes of silence after which less than `limit_s` of the last hour is ours."""
        return next(
            (minutes for minutes in range(1, MINUTES) if self._sum(self._own, HOUR_S - 60 * minutes) < limit_s), MINUTES
        )

    def _sum(self, entries: deque[tuple[float, float]], window_s: float) -> float:
        since = self._clock.monotonic() - window_s
        return sum(airtime_s for at, airtime_s in entries if at > since)


def _forget(entries: deque[tuple[float, float]], before: float) -> None:
    while entries and entries[0][0] <= before:
        entries.popleft()
