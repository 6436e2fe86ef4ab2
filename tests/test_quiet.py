"""Quiet hours: by the time of day, past midnight, and through the nights on which clocks are changed."""

import itertools
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshai.config import AirtimeSettings
from meshai.quiet import MOST_ORDERED_S, Quiet
from meshai.testing import ManualClock

DAY_MIN = 24 * 60
ZONES = st.sampled_from(
    ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Africa/Casablanca"]
).map(ZoneInfo)
MINUTES = st.integers(0, DAY_MIN - 1)
MOMENTS = st.datetimes(datetime(2026, 1, 1), datetime(2036, 1, 1), timezones=st.just(UTC)).map(datetime.timestamp)
# Europe and America, forward and back: the days around each change.
CHANGES = st.sampled_from(
    [datetime(2027, 3, 28), datetime(2027, 10, 31), datetime(2027, 3, 14), datetime(2027, 11, 7)]
).map(lambda day: day.replace(tzinfo=UTC).timestamp())


def written(*minutes: int) -> str:
    return "-".join(f"{minute // 60:02}:{minute % 60:02}" for minute in minutes)


def is_quiet(*hours: str, at: float, zone: ZoneInfo) -> bool:
    return bool(Quiet(AirtimeSettings(quiet_hours=hours), ManualClock(at), zone=zone).reason())


@given(MINUTES, MINUTES, MOMENTS, ZONES)
def test_every_moment_is_in_hours_or_in_the_rest_of_the_day(start: int, end: int, at: float, zone: ZoneInfo) -> None:
    if start == end:
        return
    hours, rest = written(start, end), written(end, start)
    assert is_quiet(hours, at=at, zone=zone) != is_quiet(rest, at=at, zone=zone)
    assert is_quiet(hours, rest, at=at, zone=zone)


@given(MINUTES, st.integers(1, DAY_MIN - 1), st.integers(0, DAY_MIN - 1), MOMENTS)
def test_hours_begin_at_their_start_and_are_over_at_their_end(
    start: int, length: int, into_day: int, at: float
) -> None:
    zone = ZoneInfo("UTC")
    hours = written(start, (start + length) % DAY_MIN)
    midnight = at - at % 86_400
    moment = midnight + into_day * 60
    assert is_quiet(hours, at=moment, zone=zone) == ((into_day - start) % DAY_MIN < length)


@given(MINUTES, st.integers(1, DAY_MIN - 1), CHANGES, ZONES)
def test_a_change_of_the_clocks_moves_them_by_no_more_than_its_hour(
    start: int, length: int, day: float, zone: ZoneInfo
) -> None:
    hours = written(start, (start + length) % DAY_MIN)
    samples = [is_quiet(hours, at=day + 300 * step, zone=zone) for step in range(3 * 288)]
    quiet_min = 5 * sum(samples)
    # Three days, of which one may have an hour more or less, and which may begin or end in the middle of the hours.
    assert abs(quiet_min - 3 * length) <= 60 + 10
    changes = sum(one != other for one, other in itertools.pairwise(samples))
    assert changes <= 8


@pytest.mark.parametrize(
    ("hours", "clock", "expected"),
    [
        ("22:00-07:00", "21:59:59", ""),
        ("22:00-07:00", "22:00:00", "quiet hours 22:00-07:00"),
        ("22:00-07:00", "00:00:00", "quiet hours 22:00-07:00"),
        ("22:00-07:00", "06:59:59", "quiet hours 22:00-07:00"),
        ("22:00-07:00", "07:00:00", ""),
        ("12:00-13:30", "12:30:00", "quiet hours 12:00-13:30"),
        ("12:00-13:30", "13:30:00", ""),
        ("00:00-23:59", "23:59:30", ""),
    ],
)
def test_the_reason_names_the_hours(hours: str, clock: str, expected: str) -> None:
    at = datetime.fromisoformat(f"2027-06-01T{clock}+02:00").timestamp()
    quiet = Quiet(AirtimeSettings(quiet_hours=(hours,)), ManualClock(at), zone=ZoneInfo("Europe/Berlin"))
    assert quiet.reason() == expected


async def test_it_follows_the_clock() -> None:
    clock = ManualClock(datetime(2027, 6, 1, 21, tzinfo=UTC).timestamp())
    quiet = Quiet(AirtimeSettings(quiet_hours=("22:00-07:00",)), clock, zone=ZoneInfo("UTC"))
    heard = []
    for _ in range(24):
        heard.append(bool(quiet.reason()))
        await clock.advance(3600)
    assert heard == [False] + [True] * 9 + [False] * 14


def test_without_hours_nothing_is_quiet_until_it_is_ordered() -> None:
    clock = ManualClock()
    quiet = Quiet(AirtimeSettings(), clock)
    assert quiet.reason() == ""
    assert quiet.reason(clock.now() + 7200) == "quiet by command"
    assert quiet.reason(clock.now() - 1) == ""
    assert quiet.reason(clock.now()) == ""


@given(MOMENTS, MOMENTS)
def test_no_clock_however_wrong_makes_an_ordered_silence_last(ordered_at: float, now: float) -> None:
    until = ordered_at + timedelta(hours=2).total_seconds()
    clock = ManualClock(now)
    if Quiet(AirtimeSettings(), clock).reason(until):
        assert until - now <= MOST_ORDERED_S
        assert Quiet(AirtimeSettings(), ManualClock(now + MOST_ORDERED_S)).reason(until) == ""
