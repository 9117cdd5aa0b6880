"""Windows of limits: where they begin and end when clocks change, and that none is missing or twice."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.limit_window import HOUR_S, NEVER_S, find_kept_since, parse_window

ZONES = (
    "UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Asia/Kathmandu", "Australia/Lord_Howe", "Pacific/Apia",
    "America/Santiago", "America/St_Johns", "America/Havana", "Asia/Beirut", "Pacific/Chatham",
)  # fmt: skip
"""Half and quarter hours, a change of half an hour, a day left out, and changes at midnight."""
KINDS = ("hour", "5h", "day", "week", "month", "quarter", "rolling:1h", "rolling:24h", "rolling:7d", "rolling:366d")


def read_s(text: str, zone: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp())


@pytest.mark.parametrize(
    ("kind", "zone", "now", "start", "hours"),
    [
        ("day", "Europe/Berlin", "2026-03-29 12:00", "2026-03-29 00:00", 23),
        ("day", "Europe/Berlin", "2026-10-25 12:00", "2026-10-25 00:00", 25),
        ("day", "Asia/Kolkata", "2026-10-25 00:10", "2026-10-25 00:00", 24),
        ("day", "America/Santiago", "2026-09-06 12:00", "2026-09-06 01:00", 23),  # there is no midnight
        ("hour", "Asia/Kolkata", "2026-10-25 10:59", "2026-10-25 10:00", 1),
        ("5h", "UTC", "2026-10-25 09:59", "2026-10-25 05:00", 5),
        ("5h", "UTC", "2026-10-25 23:00", "2026-10-25 20:00", 4),
        ("week", "Europe/Berlin", "2026-03-29 23:59", "2026-03-23 00:00", 7 * 24 - 1),  # a Sunday
        ("week", "UTC", "2026-03-30 00:00", "2026-03-30 00:00", 7 * 24),  # a Monday
        ("month", "Europe/Berlin", "2026-10-31 23:59", "2026-10-01 00:00", 31 * 24 + 1),
        ("month", "UTC", "2028-02-10 00:00", "2028-02-01 00:00", 29 * 24),
        ("quarter", "UTC", "2026-12-31 23:59", "2026-10-01 00:00", 92 * 24),
        ("quarter", "UTC", "2027-01-01 00:00", "2027-01-01 00:00", 90 * 24),
    ],
)  # fmt: skip
def test_windows_begin_and_end_at_local_times(kind: str, zone: str, now: str, start: str, hours: int) -> None:
    start_s, end_s = parse_window(kind).find(read_s(now, zone), ZoneInfo(zone))
    assert (start_s, end_s - start_s) == (read_s(start, zone), hours * HOUR_S)


@given(st.sampled_from(KINDS), st.sampled_from(ZONES), st.integers(0, 4_000_000_000))
def test_windows_follow_each_other(kind: str, zone_name: str, now_s: int) -> None:
    window, zone = parse_window(kind), ZoneInfo(zone_name)
    start_s, end_s = window.find(now_s, zone)
    assert start_s <= now_s < end_s
    assert window.find(start_s, zone) == window.find(end_s - 1, zone) == (start_s, end_s)
    assert window.find(end_s, zone)[0] == end_s
    assert window.find(start_s - 1, zone)[1] == start_s


def test_a_time_that_comes_twice_belongs_to_one_window() -> None:
    zone, window = ZoneInfo("Europe/Berlin"), parse_window("hour")
    first_s = read_s("2026-10-25 02:30", "Europe/Berlin")
    starts = [window.find(first_s + offset_s, zone)[0] for offset_s in (0, HOUR_S)]
    assert starts[1] - starts[0] == HOUR_S


def test_a_lifetime_never_ends() -> None:
    assert parse_window("lifetime").find(4e9, ZoneInfo("UTC")) == (0, NEVER_S)
    assert find_kept_since("each user|user|lifetime|UTC", 4e9) == 0


@pytest.mark.parametrize("text", ["", "days", "rolling:", "rolling:0d", "rolling:367d", "rolling:9999h", "rolling:7w"])
def test_other_words_are_no_windows(text: str) -> None:
    with pytest.raises(ValueError, match="expected hour, 5h"):
        parse_window(text)


@pytest.mark.parametrize("kind", KINDS)
def test_sums_are_kept_longer_than_they_count(kind: str) -> None:
    window, now_s = parse_window(kind), read_s("2026-12-31 23:59", "UTC")
    start_s, _ = window.find(now_s, ZoneInfo("UTC"))
    assert find_kept_since(f"a|model:x|y|{kind}|UTC", now_s) < start_s - window.rolling_s
