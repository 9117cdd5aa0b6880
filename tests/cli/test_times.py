"""Times as people write them."""

from datetime import UTC, date, datetime

import click
import pytest

from gateway.cli.times import parse_day, resolve_moment
from tests.support.table_rows import table_rows

NOW = datetime(2027, 3, 1, 12, 30, 15, 999, tzinfo=UTC)


@table_rows(
    ("text", "direction", "written"),
    [
        ("24h", -1, "2027-02-28T12:30:15Z"),
        ("30d", 1, "2027-03-31T12:30:15Z"),
        ("15min", -1, "2027-03-01T12:15:15Z"),
        ("15m", -1, "2027-03-01T12:15:15Z"),
        ("2w", 1, "2027-03-15T12:30:15Z"),
        ("90s", 1, "2027-03-01T12:31:45Z"),
        ("yesterday", -1, "2027-02-28"),
        ("Today", -1, "2027-03-01"),
        ("tomorrow", 1, "2027-03-02"),
        ("2027-01-31", -1, "2027-01-31"),
        ("none", 1, "none"),
        ("soon", 1, "soon"),
        ("1y", 1, "1y"),
    ],
)
def test_a_relative_time_becomes_one_that_the_admin_api_reads(text: str, direction: int, written: str) -> None:
    assert resolve_moment(text, NOW, direction) == written


def test_a_time_that_no_calendar_has_is_refused() -> None:
    with pytest.raises(click.BadParameter, match="'999999w' is too far away"):
        resolve_moment("999999w", NOW, 1)


@table_rows(
    ("text", "day"), [("7d", date(2027, 2, 22)), ("yesterday", date(2027, 2, 28)), ("2027-01-31", date(2027, 1, 31))]
)
def test_a_day_may_be_relative(text: str, day: date) -> None:
    assert parse_day(text, NOW) == day


@table_rows("text", ["", "d", "7x", "last week", "2027-13-01"])
def test_what_is_no_day_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"isoformat|month"):
        parse_day(text, NOW)
