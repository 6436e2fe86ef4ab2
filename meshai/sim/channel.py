"""The true channel: a transmission occupies it for its airtime wherever it can be heard, and receptions that overlap
spoil each other.

Each station has an ear. What happens at an ear decides: a station that sends hears nothing of what begins or goes on
meanwhile, and of two receptions that overlap both are lost, or with capture only the one that is weaker by 6 dB. What
is left may still fade with the probability of its link. Energy counts as occupancy even when nothing could be read.

A transmission is sensed only when it has lasted as long as channel activity detection takes: two stations that begin
within that time collide. Stations that hear a third but not each other (hidden ones) collide there at any time.

All moments are those that were meant, not those at which the event loop woke up: in time that runs fast, a few
milliseconds of lateness would be several slots.
"""

import asyncio
import itertools
import random
from bisect import insort
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from meshtastic.protobuf import mesh_pb2

from meshai.airtime import Modem
from meshai.clock import Clock
from meshai.messages import NodeNum
from meshai.sim.links import Link, Links
from meshai.sim.packets import copy_of

SENSED_SYMBOLS: Final = 2.5
"""How long channel activity detection takes (the firmware's slot is that and the switching of the radio)."""
SETTLING_STEPS: Final = 5
"""Steps of the event loop after which all who were woken by one event have drawn their moments."""
INSTANT_S: Final = 1e-6
"""Below this, two moments are the same: one packet that ends as another begins does not overlap it."""


class Outcome(StrEnum):
    """What became of a transmission at a station within reach."""

    HEARD = "heard"
    FADED = "faded"
    COLLIDED = "collided"
    DEAFENED = "deafened"
    """The station was sending itself."""
    OFF = "off"
    """The station was switched off."""


class Listener(Protocol):
    """What the channel needs of a station."""

    @property
    def number(self) -> NodeNum: ...

    @property
    def is_deaf(self) -> bool: ...

    def sensed(self, busy_s: float) -> None:
        """Others have occupied the channel for that long."""
        ...

    def hear(self, packet: mesh_pb2.MeshPacket) -> None: ...


@dataclass(slots=True, eq=False)
class _Reception:
    link: Link
    began: float
    ends: float
    spoiled: Outcome | None = None


@dataclass(slots=True, eq=False)
class _Ear:
    listener: Listener
    clear: asyncio.Event = field(default_factory=asyncio.Event)
    receptions: list[_Reception] = field(default_factory=list)
    sends_until: float = -1.0
    changed_at: float = 0.0
    """When a reception or the station's own sending last began or ended."""
    busy_s: float = 0.0
    """For how long others have occupied the channel while the station did not, and has not been told yet."""
    stirred_at: float = -1.0
    """When a reception last ended."""

    def __post_init__(self) -> None:
        self.clear.set()

    def change(self, now: float) -> None:
        """Account for the time since the last change, before another."""
        now = max(now, self.changed_at)
        is_sending = self.sends_until - self.changed_at > INSTANT_S
        if self.receptions and not is_sending:
            self.busy_s += now - self.changed_at
        self.changed_at = now


class Channel:
    """The spectrum between stations that hear each other as `links` says; `capture_db` None is without capture.

    Without `interference` nothing that overlaps is spoiled: for tests of other things than the air.
    """

    def __init__(
        self,
        links: Links,
        *,
        clock: Clock,
        rng: random.Random,
        modem: Modem,
        capture_db: float | None = None,
        interference: bool = True,
    ) -> None:
        self.links = links
        self.tally: dict[tuple[NodeNum, NodeNum], Counter[Outcome]] = {}
        """What became of the transmissions from one station at another, by (sender, receiver)."""
        self._clock = clock
        self._rng = rng
        self._capture_db = capture_db
        self._interference = interference
        self._sensed_after_s = SENSED_SYMBOLS * modem.symbol_ms / 1000
        self._ears: dict[NodeNum, _Ear] = {}
        self._turns: list[tuple[float, int]] = []
        """Moments that have come, in order, and whose turn follows."""
        self._turn_numbers = itertools.count()

    def attach(self, listener: Listener) -> None:
        self._ears[listener.number] = _Ear(listener)

    def renumber(self, former: NodeNum, number: NodeNum) -> None:
        """A station has become another number."""
        self._ears[number] = self._ears.pop(former)
        self.links.renumber(former, number)

    # Carrier sense.

    async def until_clear(self, number: NodeNum) -> float:
        """Return when a station hears nothing: the moment at which that began, if it had to wait, or now."""
        ear = self._ears[number]
        if ear.clear.is_set():
            return self._clock.monotonic()
        await ear.clear.wait()
        return ear.stirred_at

    async def turn(self, at: float) -> None:
        """Return at a moment, and to all who wait for theirs in the order of the moments, however late they wake up.

        What the caller does before it next awaits something is done before the next one's turn.
        """
        await self._clock.sleep(at - self._clock.monotonic())
        turn = (at, next(self._turn_numbers))
        insort(self._turns, turn)
        try:
            for _ in range(SETTLING_STEPS):
                await asyncio.sleep(0)
            while self._turns[0] != turn:  # noqa: ASYNC110 - a few steps, and an event would come one step late
                await asyncio.sleep(0)
        finally:
            self._turns.remove(turn)

    def has_stirred(self, number: NodeNum, since: float, at: float) -> bool:
        """Whether a station senses something on air at a moment, or has heard something end since another."""
        ear = self._ears[number]
        return ear.stirred_at - since > INSTANT_S or any(
            at - reception.began + INSTANT_S >= self._sensed_after_s for reception in ear.receptions
        )

    # Transmission.

    async def carry(self, packet: mesh_pb2.MeshPacket, by: NodeNum, airtime_s: float, began: float) -> None:
        """Let a packet occupy the channel from a moment on, and all hear it at its end who can; returns then."""
        ends = began + airtime_s
        own = self._ears[by]
        self._begin_sending(own, began, ends)
        receptions = [
            (ear, self._begin(ear, _Reception(link, began, ends)))
            for number, link in self.links.of(by).items()
            if (ear := self._ears.get(number)) is not None
        ]
        await self._clock.sleep(ends - self._clock.monotonic())
        own.change(ends)
        for ear, reception in receptions:
            self._end(ear, reception, ends)
        for ear, reception in receptions:
            outcome = self._outcome(ear, reception)
            self.tally.setdefault((by, ear.listener.number), Counter())[outcome] += 1
            if outcome is Outcome.HEARD:
                ear.listener.hear(_as_received(packet, reception.link))

    def _begin_sending(self, ear: _Ear, began: float, ends: float) -> None:
        for reception in ear.receptions:
            if reception.ends - began > INSTANT_S:
                reception.spoiled = Outcome.DEAFENED
        ear.change(began)
        ear.sends_until = ends

    def _begin(self, ear: _Ear, reception: _Reception) -> _Reception:
        ear.change(reception.began)
        if ear.sends_until - reception.began > INSTANT_S:
            reception.spoiled = Outcome.DEAFENED
        for other in ear.receptions:
            if other.ends - reception.began > INSTANT_S:
                self._collide(reception, other)
        ear.receptions.append(reception)
        ear.clear.clear()
        return reception

    def _collide(self, one: _Reception, other: _Reception) -> None:
        difference = one.link.snr - other.link.snr
        is_captured = self._capture_db is not None and abs(difference) >= self._capture_db
        for reception, is_stronger in ((one, difference > 0), (other, difference < 0)):
            if not (is_captured and is_stronger) and reception.spoiled is None:
                reception.spoiled = Outcome.COLLIDED

    def _end(self, ear: _Ear, reception: _Reception, now: float) -> None:
        ear.change(now)
        ear.receptions.remove(reception)
        ear.stirred_at = now
        if ear.receptions:
            return
        ear.clear.set()
        if ear.busy_s > INSTANT_S and not ear.listener.is_deaf:
            ear.listener.sensed(ear.busy_s)
        ear.busy_s = 0.0

    def _outcome(self, ear: _Ear, reception: _Reception) -> Outcome:
        if ear.listener.is_deaf:
            return Outcome.OFF
        if reception.spoiled is not None and self._interference:
            return reception.spoiled
        loss = reception.link.loss
        return Outcome.FADED if loss > 0 and self._rng.random() < loss else Outcome.HEARD


def _as_received(packet: mesh_pb2.MeshPacket, link: Link) -> mesh_pb2.MeshPacket:
    received = copy_of(packet)
    if not received.via_mqtt:
        received.rx_snr = link.snr
        received.rx_rssi = link.rssi
        received.transport_mechanism = mesh_pb2.MeshPacket.TransportMechanism.TRANSPORT_LORA
    return received
