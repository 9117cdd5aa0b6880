"""Parses times in the forms that operators type: ``24h``, ``yesterday``, ``2027-01-31``."""

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta

import click

_SPAN_PATTERN = re.compile(r"(\d{1,6}) ?(s|min|m|h|d|w)")
_DURATIONS_BY_UNIT = {
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "min": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_DAY_OFFSETS = {"yesterday": -1, "today": 0, "tomorrow": 1}


def parse_span(text: str) -> timedelta | None:
    """Parse a duration such as ``15min``, ``24h``, ``30d`` or ``2w``; None for other texts."""
    match = _SPAN_PATTERN.fullmatch(text.strip().lower())
    return int(match[1]) * _DURATIONS_BY_UNIT[match[2]] if match else None


def parse_day_name(text: str, now: datetime) -> date | None:
    """Parse ``yesterday``, ``today`` or ``tomorrow`` in UTC; None for other texts."""
    days = _DAY_OFFSETS.get(text.strip().lower())
    return None if days is None else (now + timedelta(days=days)).date()


def resolve_moment(text: str, now: datetime, direction: int) -> str:
    """Convert a relative time to the admin API's format. Other text stays.

    ``direction`` is -1 for the past, 1 for the future. A weekday is the next one, or the last one. Raises
    ``BadParameter`` if the time is out of range.
    """
    if text.strip().lower() in _WEEKDAYS:
        days = (_WEEKDAYS.index(text.strip().lower()) - now.weekday()) * direction % len(_WEEKDAYS)
        return (now + timedelta(days=direction * (days or len(_WEEKDAYS)))).date().isoformat()
    if day := parse_day_name(text, now):
        return day.isoformat()
    span = parse_span(text)
    try:
        return text if span is None else (now + direction * span).isoformat(timespec="seconds").replace("+00:00", "Z")
    except OverflowError:
        raise click.BadParameter(f"'{text}' is too far away") from None


def parse_day(text: str, now: datetime) -> date:
    """Parse a day in UTC: ``2027-01-31``, ``yesterday``, ``7d`` before ``now``. Raises ``ValueError``."""
    if span := parse_span(text):
        return (now - span).date()
    return parse_day_name(text, now) or date.fromisoformat(text)


def _build_callback(direction: int) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
    def convert(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
        return None if text is None else resolve_moment(text, datetime.now(UTC), direction)

    return convert


parse_past, parse_future = _build_callback(-1), _build_callback(1)
"""Callbacks of options that take a time."""
