"""Airtime against the reference table: channel texts in whole milliseconds, resend and nak times."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshtastic.protobuf import mesh_pb2

from meshai.airtime import (
    MAX_FRAME_BYTES,
    PKI_BYTES,
    PRESETS,
    TRANSMISSIONS,
    Modem,
    data_bytes,
    text_frame_bytes,
)

ACK_BYTES = 29
VERY_LONG_SLOW = Modem(12, 62.5, 8)
"""As it was; the preset of that name now means LONG_FAST."""

# preset: SF, bandwidth, coding rate, slot ms, ack, 50 B, 150 B, 200 B, 230 B (ms), resend s, NAK s
TABLE: dict[str, tuple[int, float, int, int, int, int, int, int, int, float, int]] = {
    "SHORT_TURBO": (7, 500, 5, 8, 18, 35, 71, 90, 100, 5.1, 15),
    "SHORT_FAST": (7, 250, 5, 8, 37, 70, 142, 180, 201, 5.2, 16),
    "SHORT_SLOW": (8, 250, 5, 10, 69, 126, 254, 320, 356, 5.6, 17),
    "MEDIUM_TURBO": (9, 500, 5, 10, 64, 115, 228, 284, 320, 5.5, 17),
    "MEDIUM_FAST": (9, 250, 5, 12, 129, 231, 457, 569, 641, 6.1, 18),
    "MEDIUM_SLOW": (10, 250, 5, 17, 238, 422, 832, 1037, 1160, 7.1, 21),
    "LONG_TURBO": (11, 500, 8, 17, 312, 574, 1164, 1459, 1623, 7.8, 23),
    "LONG_FAST": (11, 250, 5, 28, 477, 804, 1542, 1910, 2115, 9.2, 27),
    "LONG_MODERATE": (11, 125, 8, 48, 1380, 2560, 5574, 7016, 7933, 18.3, 55),
    "LONG_SLOW": (12, 125, 8, 89, 2498, 4857, 10100, 12722, 14295, 29.7, 89),
    "LITE_FAST": (9, 125, 5, 17, 259, 463, 914, 1139, 1283, 7.3, 22),
    "LITE_SLOW": (10, 125, 5, 28, 477, 845, 1665, 2074, 2320, 9.4, 28),
    "NARROW_FAST": (7, 62.5, 6, 12, 168, 328, 672, 856, 954, 6.5, 20),
    "NARROW_SLOW": (8, 62.5, 6, 17, 312, 582, 1197, 1516, 1688, 7.8, 24),
    "TINY_FAST": (7, 15.6, 5, 28, 601, 1134, 2283, 2898, 3226, 10.6, 32),
    "TINY_SLOW": (8, 15.6, 6, 48, 1546, 2925, 6272, 7848, 8832, 19.7, 59),
}
VERY_LONG_SLOW_ROW = (12, 62.5, 8, 171, 4997, 9715, 20201, 25444, 28590, 54.5, 163)
ROWS = [*((PRESETS[name], row) for name, row in TABLE.items()), (VERY_LONG_SLOW, VERY_LONG_SLOW_ROW)]


def text_ms(modem: Modem, text_bytes: int) -> float:
    return modem.airtime_s(text_frame_bytes(text_bytes, is_direct=False)) * 1000


@pytest.mark.parametrize(("modem", "row"), ROWS, ids=[*TABLE, "VERY_LONG_SLOW"])
def test_row_of_the_table(modem: Modem, row: tuple[float, ...]) -> None:
    factor, bandwidth, rate, slot_ms, ack, b50, b150, b200, b230, resend_s, nak_s = row
    assert (modem.spreading_factor, modem.bandwidth_khz, modem.coding_rate) == (factor, bandwidth, rate)
    assert modem.slot_s * 1000 == pytest.approx(slot_ms)
    assert modem.airtime_s(ACK_BYTES) * 1000 == pytest.approx(ack)
    for size, milliseconds in ((50, b50), (150, b150), (200, b200), (230, b230)):
        assert text_ms(modem, size) == pytest.approx(milliseconds)
    wait_s = modem.resend_wait_s(text_frame_bytes(150, is_direct=False))
    assert round(wait_s, 1) == resend_s
    assert round(TRANSMISSIONS * wait_s) == nak_s


def test_every_preset_is_in_the_table() -> None:
    assert set(PRESETS) == {*TABLE, "VERY_LONG_SLOW"}
    assert PRESETS["VERY_LONG_SLOW"] == PRESETS["LONG_FAST"], "so the firmware has treated it since 2.6.5"


def test_direct_message_costs_twelve_bytes_more() -> None:
    channel, direct = (text_frame_bytes(150, is_direct=is_direct) for is_direct in (False, True))
    assert direct - channel == PKI_BYTES
    long_fast = PRESETS["LONG_FAST"]
    assert (long_fast.airtime_s(direct) - long_fast.airtime_s(channel)) * 1000 == pytest.approx(80, abs=5)


@pytest.mark.parametrize(
    ("text_bytes", "is_direct", "has_reply_id"),
    [(232, False, False), (227, False, True), (220, True, False), (215, True, True)],
)
def test_longest_texts_fill_the_frame(text_bytes: int, is_direct: bool, has_reply_id: bool) -> None:
    assert text_frame_bytes(text_bytes, is_direct=is_direct, has_reply_id=has_reply_id) == MAX_FRAME_BYTES


def test_encoded_size_is_that_of_the_protobuf() -> None:
    for size in (0, 1, 127, 128, 232):
        for reply_id in (0, 7):
            for emoji in (0, 1):
                data = mesh_pb2.Data(portnum=1, payload=b"x" * size, bitfield=0, reply_id=reply_id, emoji=emoji)
                assert data_bytes(size, has_reply_id=bool(reply_id), has_emoji=bool(emoji)) == data.ByteSize()


def test_2_4_ghz_has_a_shorter_preamble() -> None:
    wide = replace(PRESETS["LONG_FAST"], bandwidth_khz=812.5)
    shorter = replace(wide, is_2_4_ghz=True)
    assert wide.airtime_s(100) - shorter.airtime_s(100) == pytest.approx(4 * wide.symbol_ms / 1000, abs=0.0011)


def test_acks_pass_sooner_than_anything_is_sent_again() -> None:
    for modem in PRESETS.values():
        assert modem.ack_passes_s(0) < modem.resend_wait_s(40)
        assert modem.ack_passes_s(0) < modem.ack_passes_s(1) < modem.ack_passes_s(2)
    assert PRESETS["LONG_FAST"].ack_passes_s(0) == pytest.approx(2 * (0.477 + 8 * 0.028))


def test_ack_wait_covers_all_tries_on_a_full_channel() -> None:
    modem = PRESETS["LONG_FAST"]
    assert modem.ack_wait_s(100) == 3 * modem.resend_wait_s(100, contention=8) > 3 * modem.resend_wait_s(100)


@given(st.sampled_from(sorted(PRESETS)), st.integers(0, MAX_FRAME_BYTES - 1))
def test_airtime_grows_with_length(preset: str, frame_bytes: int) -> None:
    modem = PRESETS[preset]
    assert 0 < modem.airtime_s(frame_bytes) <= modem.airtime_s(frame_bytes + 1)
