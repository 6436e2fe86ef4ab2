"""When nothing may be answered: in the quiet hours of the settings, and for as long as an admin has ordered.

Hours are looked up by the time of day alone, so the night on which clocks are changed does no harm: an hour that comes
twice is quiet twice, one that is left out is not missed, and nothing lasts beyond its end.
"""

from datetime import datetime, time, tzinfo
from typing import Final, NamedTuple

from meshai.clock import Clock
from meshai.config import AirtimeSettings

MOST_ORDERED_S: Final = 7 * 86_400.0
"""Longest silence that can be ordered. An end further ahead shows that our clock has lost the date, and counts not."""


class Quiet:
    """Judges the present moment. `zone` is where the hours are meant, by default where the machine is."""

    def __init__(self, settings: AirtimeSettings, clock: Clock, *, zone: tzinfo | None = None) -> None:
        self._hours = {text: _Hours(*map(time.fromisoformat, text.split("-"))) for text in settings.quiet_hours}
        self.listens_only = not settings.transmit
        """Nothing is ever sent, to nobody."""
        self._clock = clock
        self._zone = zone

    def reason(self, ordered_until: float | None = None) -> str:
        """Why nothing may be answered now, or ""; `ordered_until` is the end of an ordered silence in Unix seconds."""
        now = self._clock.now()
        at = datetime.fromtimestamp(now, self._zone).time()
        for text, hours in self._hours.items():
            if hours.cover(at):
                return f"quiet hours {text}"
        if ordered_until is not None and 0 < ordered_until - now <= MOST_ORDERED_S:
            return "quiet by command"
        return ""


class _Hours(NamedTuple):
    """A part of every day, up to but not including `end`, which is on the next day when it comes before `start`."""

    start: time
    end: time

    def cover(self, at: time) -> bool:
        if self.start < self.end:
            return self.start <= at < self.end
        return at >= self.start or at < self.end
