"""How long a packet occupies the air.

Formula: RadioLib `calculateTimeOnAir` (SX126x), explicit header, CRC on, as the Meshtastic firmware calls it:

    Tsym [ms] = 2^SF / BW[kHz]          DE = 1 if Tsym >= 16 ms else 0
    symbols   = preamble + 4.25 + 8 + CR * ceil((8*L + 16 - 4*SF + 28) / (4*(SF - 2*DE)))
    airtime   = symbols * Tsym, in whole ms
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

HEADER_BYTES: Final = 16
"""Unencrypted frame header (firmware `RadioInterface.h`)."""
PKI_BYTES: Final = 12
"""Tag and extra nonce of a public-key direct message (firmware `CryptoEngine.cpp`)."""
MAX_FRAME_BYTES: Final = 255
"""Whole frame on air (firmware `MAX_LORA_PAYLOAD_LEN`)."""
ACK_FRAME_BYTES: Final = 29
TRANSMISSIONS: Final = 3
"""Times the firmware sends a packet that wants an ack before it gives up (`NUM_RELIABLE_RETX`)."""
BANDWIDTH_KHZ: Final[Mapping[int, float]] = {31: 31.25, 62: 62.5, 200: 203.125, 400: 406.25, 800: 812.5, 1600: 1625.0}
"""What the codes of a custom bandwidth mean; any other is the number itself (firmware `RadioInterface.cpp`)."""
WIDE_KHZ: Final[Mapping[float, float]] = {125: 406.25, 250: 812.5, 500: 1625.0}
"""What the presets' bandwidths become in the 2.4 GHz band (firmware `MeshRadio.h`)."""


@dataclass(frozen=True, slots=True)
class Modem:
    """LoRa settings that decide airtime. `coding_rate` is the 5 of 4/5."""

    spreading_factor: int
    bandwidth_khz: float
    coding_rate: int
    is_2_4_ghz: bool = False

    @property
    def symbol_ms(self) -> float:
        return (1 << self.spreading_factor) / self.bandwidth_khz

    @property
    def slot_s(self) -> float:
        """Contention slot: 2.5 symbols and 7.6 ms of switching, in whole ms (firmware `RadioInterface.cpp`)."""
        return int(2.5 * self.symbol_ms + 7.6) / 1000

    def airtime_s(self, frame_bytes: int) -> float:
        """Seconds on air of a frame of `frame_bytes` bytes, header included."""
        sf = self.spreading_factor
        low_rate = 1 if self.symbol_ms >= 16 else 0
        preamble = 12 if self.is_2_4_ghz else 16
        coded = max(0, math.ceil((8 * frame_bytes + 16 - 4 * sf + 28) / (4 * (sf - 2 * low_rate))))
        symbols = preamble + 4.25 + 8 + self.coding_rate * coded
        return int(symbols * self.symbol_ms) / 1000

    def resend_wait_s(self, frame_bytes: int, contention: int = 3) -> float:
        """The firmware's wait before each resend (`RadioInterface::getRetransmissionMsec`).

        `contention` is the exponent of the contention window: 3 on an idle channel, 8 on a full one.
        """
        return 2 * self.airtime_s(frame_bytes) + ((1 << contention) + 48) * self.slot_s + 4.5

    def ack_passes_s(self, relays: int) -> float:
        """How long an ack, with the ack of that over no relay, keeps the channel on its way over so many relays.

        On an idle channel: own packets wait up to 8 slots, a relay that heard well up to 16 + 128.
        """
        ack_s = self.airtime_s(ACK_FRAME_BYTES)
        own_s, relay_s = ack_s + 8 * self.slot_s, ack_s + (16 + 128) * self.slot_s
        return own_s + (relays * relay_s if relays else own_s)

    def ack_wait_s(self, frame_bytes: int) -> float:
        """When all tries have had their time even on a full channel: no routing answer is to be expected later."""
        return TRANSMISSIONS * self.resend_wait_s(frame_bytes, contention=8)


PRESETS: Final[dict[str, Modem]] = {
    "SHORT_TURBO": Modem(7, 500, 5),
    "SHORT_FAST": Modem(7, 250, 5),
    "SHORT_SLOW": Modem(8, 250, 5),
    "MEDIUM_TURBO": Modem(9, 500, 5),
    "MEDIUM_FAST": Modem(9, 250, 5),
    "MEDIUM_SLOW": Modem(10, 250, 5),
    "LONG_TURBO": Modem(11, 500, 8),
    "LONG_FAST": Modem(11, 250, 5),
    "LONG_MODERATE": Modem(11, 125, 8),
    "LONG_SLOW": Modem(12, 125, 8),
    "VERY_LONG_SLOW": Modem(11, 250, 5),
    "LITE_FAST": Modem(9, 125, 5),
    "LITE_SLOW": Modem(10, 125, 5),
    "NARROW_FAST": Modem(7, 62.5, 6),
    "NARROW_SLOW": Modem(8, 62.5, 6),
    "TINY_FAST": Modem(7, 15.6, 5),
    "TINY_SLOW": Modem(8, 15.6, 6),
}
"""Firmware `MeshRadio.h`. VERY_LONG_SLOW is still in the enum; the firmware has treated it as LONG_FAST since 2.6.5."""

DUTY_CYCLE_PERCENT: Final = {
    "EU_433": 10.0,
    "EU_868": 10.0,
    "TH": 10.0,
    "UA_433": 10.0,
    "UA_868": 1.0,
    "EU_866": 2.5,
    "EU_N_868": 10.0,
}
"""Share of an hour a node may transmit, by region; all others have no limit (firmware `RadioInterface.cpp`, and its 2.8
branch for the last two)."""


def data_bytes(text_bytes: int, *, has_reply_id: bool = False, has_emoji: bool = False) -> int:
    """Encoded size of the `Data` message that carries a text of `text_bytes` bytes."""
    payload = 2 + text_bytes + (1 if text_bytes > 127 else 0) if text_bytes else 0
    port, bitfield = 2, 2
    return port + payload + bitfield + (5 if has_reply_id else 0) + (5 if has_emoji else 0)


def text_frame_bytes(text_bytes: int, *, is_direct: bool, has_reply_id: bool = False, has_emoji: bool = False) -> int:
    """Size on air of a text packet; direct messages are taken to be public-key encrypted."""
    data = data_bytes(text_bytes, has_reply_id=has_reply_id, has_emoji=has_emoji)
    return HEADER_BYTES + data + (PKI_BYTES if is_direct else 0)
