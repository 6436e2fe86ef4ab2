"""Airtime as a budget: what an answer costs, whether it may be given, how long it may be, and when a packet may leave.

Theory of operation. A packet costs the time it occupies the air: its own transmission and, on a channel, a relay for
each hop it may take, since every relay repeats it. The firmware sends a direct packet up to three times: for that there
must be room before it leaves, and it is counted when no ack came. At most a set
share of a rolling hour is spent, and never more than half of what the region allows a node, because ours relays for
others too. The last quarter of that is kept for direct messages and commands, the last tenth for commands. Spending is
noted in SQLite minute by minute, so that a restart does not begin a new hour.

Beside that, what our node measures of the channel decides: above `BUSY_PERCENT` answers shrink to one packet and
leave further apart, above `FULL_PERCENT` only direct messages leave, to people who wait for them.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from meshai.airtime import DUTY_CYCLE_PERCENT, TRANSMISSIONS, text_frame_bytes
from meshai.clock import Clock
from meshai.config import AirtimeSettings
from meshai.limits import HOUR_S, MOST_NODES, AnswerLimits
from meshai.messages import Address, Channel, Delivery, Direct, Fate, NodeNum, OutgoingPacket, Priority
from meshai.radio.base import Radio
from meshai.store import airtime
from meshai.store.database import Connection, Database, again_if_replaced

ALLOWED: Final = {Priority.COMMAND: 1.0, Priority.DIRECT: 0.9, Priority.CHANNEL: 0.75}
"""Part of the budget each kind of answer may use up."""
BUSY_PERCENT: Final = 25.0
"""Channel utilisation above which the firmware itself is silent unless it must speak (firmware `airtime.h`)."""
FULL_PERCENT: Final = 40.0
"""Channel utilisation above which the firmware sends nothing of its own accord (firmware `airtime.h`)."""
BUSY_GAP_S: Final = 15.0
"""Least pause between two packets on a busy channel."""
RECHECK_S: Final = 15.0
"""How long a packet is held before it is looked at again; the node measures the channel once a minute."""
MEASURED_S: Final = 300.0
"""A node measures every minute; a figure that has not changed for so long is none."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that is not given: why, for the log, and what the person is told, if it is time to tell."""

    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class Spending:
    """The airtime budget of the rolling hour, in seconds."""

    spent_s: float
    left_s: float
    """What may still be promised: the budget less what was spent, and what packets under way may yet cost."""
    budget_s: float
    utilisation_percent: float | None
    """How busy our node found the channel in its last minute; None when it has not told lately."""


class Governor:
    """Decides before each answer and each packet. `spent` is told of every packet that was handed over."""

    def __init__(
        self,
        database: Database,
        radio: Radio,
        settings: AirtimeSettings,
        *,
        clock: Clock,
        queued_s: Callable[[], float],
    ) -> None:
        """`queued_s` says how much airtime the packets will cost that are queued already."""
        self._database = database
        self._radio = radio
        self._clock = clock
        self._share = settings.share_percent / 100
        self._limits = AnswerLimits(per_node_hour=settings.answers_per_node_hour, per_hour=settings.answers_per_hour)
        self._queued_s = queued_s
        self._spent: deque[tuple[float, float]] = deque()
        """When (by the monotonic clock) and how much, in the last hour."""
        self._at_risk: dict[int, tuple[float, float]] = {}
        """By packet id, when it left and what the firmware may yet spend on repeating it while it is under way."""
        self._last_at = float("-inf")
        self._measured: tuple[float, float] | None = None
        """The newest channel utilisation, and when it was first seen."""
        self._told_at: OrderedDict[NodeNum, float] = OrderedDict()

    @again_if_replaced
    async def load(self) -> None:
        """Count what was spent before the start."""
        now, monotonic = self._clock.now(), self._clock.monotonic()
        async with self._database.transaction() as db:
            minutes = await airtime.since(db, now - HOUR_S)
        # Minutes of a clock that was ahead of ours count as the newest of all.
        self._spent = deque((monotonic - max(0.0, now - minute.began_at), minute.spent_s) for minute in minutes)

    def packet_s(self, packet: OutgoingPacket) -> float:
        """Seconds of air a packet takes."""
        return self.cost_s(packet.address, len(packet.text.encode()), is_tapback=packet.is_tapback)

    def cost_s(self, address: Address, text_bytes: int, *, is_tapback: bool = False) -> float:
        """Seconds of air a packet with a text of this length takes; 0 where there is no air, as at a terminal."""
        me = self._radio.me
        if me is None or me.modem is None:
            return 0.0
        is_direct = isinstance(address.destination, Direct)
        frame = text_frame_bytes(
            text_bytes, is_direct=is_direct, has_reply_id=address.reply_to is not None, has_emoji=is_tapback
        )
        return me.modem.airtime_s(frame) * (1 if is_direct else 1 + me.hop_limit_to(address))

    @property
    def spending(self) -> Spending:
        left_s = max(0.0, self._budget_s - self._committed_s)
        return Spending(self._spent_s, left_s, self._budget_s, self._utilisation)

    def refusal(self, node: NodeNum, address: Address, priority: Priority, *, packet_bytes: int) -> Refusal | None:
        """Why a message of `node` is not answered now, or None: then this answer counts.

        An answer needs airtime for one packet of `packet_bytes` bytes at least. The text is empty unless it would go
        to the node directly, and the node was not told within the hour.
        """
        now = self._clock.monotonic()
        wait_s = self._until_affordable(self._most_s(address, packet_bytes), priority)
        if wait_s:
            return self._refused(node, address, wait_s, "the airtime budget of this hour is used up")
        wait_s = self._limits.wait_s(node, now)
        if wait_s:
            return self._refused(node, address, wait_s, "answers per hour are used up")
        return None

    def most_packets(self, address: Address, priority: Priority, *, packet_bytes: int, most: int) -> int:
        """Into how many packets of `packet_bytes` bytes an answer may be cut now: from 1 to `most`."""
        utilisation = self._utilisation
        if utilisation is not None and utilisation > BUSY_PERCENT:
            return 1
        cost_s = self.cost_s(address, packet_bytes)
        if not cost_s:
            return most
        left_s = self._budget_s * ALLOWED[priority] - self._committed_s - self._queued_s()
        return max(1, min(most, int(left_s / cost_s)))

    def hold(self, packet: OutgoingPacket, priority: Priority) -> str:
        """Why a packet may not leave yet; empty when it may. Ask again after `RECHECK_S`."""
        utilisation = self._utilisation
        if utilisation is not None and utilisation > FULL_PERCENT and isinstance(packet.address.destination, Channel):
            return f"the channel is {utilisation:.0f} % busy"
        if (
            utilisation is not None
            and utilisation > BUSY_PERCENT
            and self._clock.monotonic() - self._last_at < BUSY_GAP_S
        ):
            return f"a pause, as the channel is {utilisation:.0f} % busy"
        most_s = self.packet_s(packet) * (TRANSMISSIONS if packet.wants_ack else 1)
        if most_s and self._committed_s + most_s > self._budget_s * ALLOWED[priority]:
            return "the airtime budget of this hour is used up"
        return ""

    def sent(self, packet: OutgoingPacket) -> float:
        """Count a packet that was handed over; returns its cost in seconds, for `store.airtime`."""
        cost_s = self.packet_s(packet)
        self._last_at = self._clock.monotonic()
        self._count(cost_s)
        if packet.wants_ack:
            self._at_risk[packet.packet_id] = self._last_at, (TRANSMISSIONS - 1) * cost_s
        return cost_s

    def ended(self, packet: OutgoingPacket, delivery: Delivery) -> float:
        """Count what the firmware repeated of a packet, or may have; returns the cost, as `sent`.

        It tells nobody how often it sent. An ack that comes later than its wait before a resend is taken for one of
        that; without one, all resends are.
        """
        at, most_s = self._at_risk.pop(packet.packet_id, (0.0, 0.0))
        match delivery.fate:
            case Fate.DELIVERED:
                resends = min(TRANSMISSIONS - 1, int((self._clock.monotonic() - at) / self._resend_wait_s(packet)))
            case Fate.FAILED if delivery.reason != "MAX_RETRANSMIT":
                resends = 0
            case _:
                resends = TRANSMISSIONS - 1
        repeated_s = most_s * resends / (TRANSMISSIONS - 1)
        self._count(repeated_s)
        return repeated_s

    def _resend_wait_s(self, packet: OutgoingPacket) -> float:
        me = self._radio.me
        if me is None or me.modem is None:
            return float("inf")
        frame = text_frame_bytes(
            len(packet.text.encode()), is_direct=True, has_reply_id=packet.address.reply_to is not None
        )
        return me.modem.resend_wait_s(frame)

    def _most_s(self, address: Address, text_bytes: int) -> float:
        """What a packet costs if the firmware has to repeat it."""
        most = TRANSMISSIONS if isinstance(address.destination, Direct) else 1
        return most * self.cost_s(address, text_bytes)

    def _count(self, cost_s: float) -> None:
        if cost_s:
            self._spent.append((self._clock.monotonic(), cost_s))

    @property
    def _budget_s(self) -> float:
        me = self._radio.me
        duty_percent = DUTY_CYCLE_PERCENT.get(me.region, 100.0) if me is not None else 100.0
        return HOUR_S * min(self._share, duty_percent / 100 / 2)

    @property
    def _spent_s(self) -> float:
        since = self._clock.monotonic() - HOUR_S
        while self._spent and self._spent[0][0] <= since:
            self._spent.popleft()
        return sum(cost_s for _, cost_s in self._spent)

    @property
    def _committed_s(self) -> float:
        return self._spent_s + sum(most_s for _, most_s in self._at_risk.values())

    @property
    def _utilisation(self) -> float | None:
        """What our node says of the channel, unless it has said the same for too long to be believed."""
        me = self._radio.me
        node = self._radio.nodes().get(me.node.number) if me is not None else None
        if node is None or node.channel_utilisation_percent is None:
            return None
        now = self._clock.monotonic()
        if self._measured is None or self._measured[0] != node.channel_utilisation_percent:
            self._measured = (node.channel_utilisation_percent, now)
        percent, since = self._measured
        return percent if now - since <= MEASURED_S else None

    def _until_affordable(self, cost_s: float, priority: Priority) -> float:
        """Seconds until so much may be spent by this kind of answer; 0 for now, an hour when it never may."""
        excess_s = self._committed_s + self._queued_s() + cost_s - self._budget_s * ALLOWED[priority]
        if not cost_s or excess_s <= 0:
            return 0.0
        now = self._clock.monotonic()
        for at, freed_s in self._spent:
            excess_s -= freed_s
            if excess_s <= 0:
                return at + HOUR_S - now
        return HOUR_S

    def _refused(self, node: NodeNum, address: Address, wait_s: float, reason: str) -> Refusal:
        minutes = math.ceil(wait_s / 60)
        text = f"To keep the channel free I pause my answers to you. Ask again in {minutes} min."
        return Refusal(reason, text if self._may_tell(node, address, text) else "")

    def _may_tell(self, node: NodeNum, address: Address, text: str) -> bool:
        """Whether a refusal may be told: to the node alone, once an hour, and if there is airtime for that."""
        now = self._clock.monotonic()
        if (
            not isinstance(address.destination, Direct)
            or now - self._told_at.get(node, float("-inf")) < HOUR_S
            or self._until_affordable(self._most_s(address, len(text)), Priority.COMMAND)
        ):
            return False
        self._told_at[node] = now
        self._told_at.move_to_end(node)
        if len(self._told_at) > MOST_NODES:
            self._told_at.popitem(last=False)
        return True


async def note(db: Connection, now: float, cost_s: float, packets: int) -> None:
    """Write down what was counted."""
    if cost_s:
        await airtime.add(db, now, cost_s, packets)
