"""What happens on a simulated mesh, line by line, for a terminal."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from rich.console import Console
from rich.text import Text

from meshai.messages import BROADCAST, NodeNum
from meshai.sim.air import Cause, OnAir

INDENT: Final = " " * 9
JOINERS: Final = "\u200d\ufe0f"
"""Not printable by themselves, but parts of emoji."""


class AirView:
    """Prints the texts, acks and naks of a mesh. Texts come from anyone: control signs are dropped."""

    def __init__(
        self, console: Console, name_of: Callable[[NodeNum], str], channels: Sequence[str], *, wraps: bool = False
    ) -> None:
        """`wraps` breaks long lines at the console's width; otherwise the terminal does, and a file has none."""
        self._console = console
        self._wraps = wraps
        self._name_of = name_of
        self._channels = channels
        self.bot: NodeNum = 0
        """The node whose texts stand out, and whose deliveries are shown."""
        self._ours: deque[int] = deque(maxlen=100)

    def on_air(self, packet: OnAir) -> None:
        """Show one transmission; relays, telemetry and the like stay out of sight."""
        if packet.cause is Cause.RELAY:
            return
        if packet.is_text:
            self._show_text(packet)
        elif packet.error is not None and packet.request_id in self._ours:
            self._show_ack(packet)

    def note(self, text: str, style: str = "dim") -> None:
        """A line about what is not on air."""
        self._console.print(Text(INDENT + text, style=style), soft_wrap=not self._wraps)

    def _show_text(self, packet: OnAir) -> None:
        is_ours = packet.by == self.bot
        if is_ours:
            self._ours.append(packet.packet_id)
        line = Text(time.strftime("%H:%M:%S ", time.localtime(packet.at)), style="dim")
        line.append(harmless(self._name_of(packet.by)), style="bold green" if is_ours else "bold cyan")
        line.append(f" {self._place(packet)} ", style="dim")
        said = harmless(packet.text)
        line.append(f"(reacts) {said}" if packet.is_tapback else said, style="green" if is_ours else "")
        again = ", again" if packet.cause is Cause.RESEND else ""
        line.append(f"  [{packet.text_bytes} B, {packet.airtime_s:.2f} s on air{again}]", style="dim")
        self._console.print(line, soft_wrap=not self._wraps)

    def _show_ack(self, packet: OnAir) -> None:
        who = harmless(self._name_of(packet.by))
        if packet.error == 0:
            self.note(f"✓ delivered to {who}  [ack, {packet.airtime_s:.2f} s on air]")
        else:
            self.note(f"✗ not taken by {who} (routing error {packet.error})", "red")

    def _place(self, packet: OnAir) -> str:
        if packet.to == BROADCAST:
            return f"on #{packet.channel} {self._channels[packet.channel] or 'primary'}:"
        return f"→ {harmless(self._name_of(packet.to))}:"


def harmless(text: str) -> str:
    """A text from anyone, as one line without control signs."""
    return "".join(sign if sign.isprintable() or sign in JOINERS else " " for sign in text)
