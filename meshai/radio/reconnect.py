"""When to try the next link, and what a row of short ones means. Times are monotonic seconds."""

import random
from collections import deque
from typing import Final

from meshai.clock import Clock

FIRST_PAUSE_S: Final = 1.0
FACTOR: Final = 1.7
LONGEST_PAUSE_S: Final = 15.0
STABLE_S: Final = 30.0
"""A link that lived this long ends the back-off, and is no victim of a rival."""
RIVAL_LINKS: Final = 3
RIVAL_WINDOW_S: Final = 60.0
REPEAT_S: Final = 600.0
MOST_KEYS: Final = 50


class Backoff:
    """Pauses that grow from 1 s to 15 s, with jitter so that two clients of one node do not march in step."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._pause_s = FIRST_PAUSE_S

    def next_pause_s(self) -> float:
        pause_s = self._pause_s * self._rng.uniform(0.7, 1.3)
        self._pause_s = min(self._pause_s * FACTOR, LONGEST_PAUSE_S)
        return min(pause_s, LONGEST_PAUSE_S)

    def lived(self, seconds: float) -> None:
        """A link ended after so long."""
        if seconds >= STABLE_S:
            self._pause_s = FIRST_PAUSE_S


class RivalWatch:
    """Recognises another client of the node by how often the node closes a link it has just configured."""

    def __init__(self) -> None:
        self._closed_at: deque[float] = deque(maxlen=RIVAL_LINKS)

    def closed_by_node(self, at: float, lived_s: float) -> bool:
        """Whether this end of a link, with those before it, looks like a rival."""
        if lived_s >= STABLE_S:
            self._closed_at.clear()
            return False
        self._closed_at.append(at)
        return len(self._closed_at) == RIVAL_LINKS and at - self._closed_at[0] <= RIVAL_WINDOW_S


class Rarely:
    """Lets the same thing be said once in ten minutes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._said_at: dict[str, float] = {}

    def is_due(self, what: str) -> bool:
        """Whether to say it now; if so, it counts as said."""
        now = self._clock.monotonic()
        if now - self._said_at.get(what, -REPEAT_S) < REPEAT_S:
            return False
        if len(self._said_at) >= MOST_KEYS:
            self._said_at.clear()
        self._said_at[what] = now
        return True
