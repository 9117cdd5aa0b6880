"""The rate limit headers."""

import re

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.rate_limit import RateLimitStatus, RateLimitWindow
from gateway.server.responses import build_limits
from tests.support.table_rows import table_rows

GO_DURATION = re.compile(r"(?:(?:(\d+)h)?(\d{1,2})m)?(\d{1,2})(?:\.(\d{0,2}[1-9]))?s")


def write_reset(seconds: float) -> str:
    return build_limits(RateLimitStatus(RateLimitWindow(1, 0, seconds)))["x-ratelimit-reset-requests"]


def read_duration(text: str) -> float:
    """What the clients do."""
    if text.endswith("ms"):
        return int(text[:-2]) / 1_000
    match = GO_DURATION.fullmatch(text)
    assert match, text
    hours, minutes, seconds, part = match.groups()
    return int(hours or 0) * 3_600 + int(minutes or 0) * 60 + int(seconds) + float(f"0.{part or 0}")


def test_both_rates_are_written_with_their_units() -> None:
    limit_status = RateLimitStatus(RateLimitWindow(60, 5, 1.0), RateLimitWindow(160_000, 15_976, 0.009))
    assert build_limits(limit_status) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "5",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "160000",
        "x-ratelimit-remaining-tokens": "15976",
        "x-ratelimit-reset-tokens": "9ms",
    }


def test_a_rate_without_a_limit_has_no_headers() -> None:
    assert build_limits(RateLimitStatus()) == {}
    assert {name.rpartition("-")[2] for name in build_limits(RateLimitStatus(requests=RateLimitWindow(1, 1, 0)))} == {
        "requests"
    }
    assert {name.rpartition("-")[2] for name in build_limits(RateLimitStatus(tokens=RateLimitWindow(1, 1, 0)))} == {
        "tokens"
    }


@table_rows(
    ("seconds", "text"),
    [(0, "0s"), (0.0004, "1ms"), (0.001, "1ms"), (0.02, "20ms"), (0.9996, "1s"), (1, "1s"), (1.5, "1.5s"),
     (1.05, "1.05s"), (10, "10s"), (59.9999, "1m0s"), (60, "1m0s"), (90.25, "1m30.25s"), (360, "6m0s"),
     (3_600, "1h0m0s"), (3_661.001, "1h1m1.001s"), (85_656.648, "23h47m36.648s"), (1e30, "99h0m0s"),
     (float("inf"), "99h0m0s")],
)  # fmt: skip
def test_a_reset_is_written_as_go_prints_a_duration(seconds: float, text: str) -> None:
    assert write_reset(seconds) == text


@given(st.floats(0, 99 * 3_600) | st.floats(0, 2))
def test_a_reset_is_read_back_rounded_up_to_a_millisecond(seconds: float) -> None:
    assert -2e-6 < read_duration(write_reset(seconds)) - seconds < 0.001 + 2e-6
