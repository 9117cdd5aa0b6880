"""Windows of limits: an hour to a quarter in a time zone, the lifetime, and rolling windows. Unix seconds.

Windows of one kind follow each other without a gap and without an overlap, also when clocks change: a day then has 23
or 25 hours, and hours are counted from midnight. A rolling window is counted in 60 slices. Its slices begin at
multiples of their length since 1970, in UTC.
"""

import re
from datetime import date, datetime, timedelta
from datetime import time as time_of_day
from typing import Literal
from zoneinfo import ZoneInfo

from gateway.frozen import frozen

WindowKind = Literal["hour", "5h", "day", "week", "month", "quarter", "lifetime", "rolling"]

ROLLING_SLICES = 60
"""The slices of a rolling window."""
NEVER_S = 2**53
"""The end of a window that has none."""
HOUR_S, DAY_S = 3_600, 86_400
_MAX_ROLLING_DAYS = 366
HOURS_BY_KIND = {"hour": 1, "5h": 5}
"""The lengths of the windows that are shorter than a day."""
_MONTHS_A_QUARTER, _DECEMBER = 3, 12
_ROLLING_PATTERN = re.compile(r"rolling:([1-9][0-9]{0,3})([hd])", re.ASCII)
_DESCRIPTIONS_BY_KIND: dict[WindowKind, str] = {
    "hour": "per hour",
    "5h": "per 5 hours",
    "day": "per day",
    "week": "per week",
    "month": "per month",
    "quarter": "per quarter",
    "lifetime": "in all",
}
EXPECTED_WINDOW = "hour, 5h, day, week, month, quarter, lifetime, or rolling: and 1h to 366d, as in rolling:7d"


@frozen
class Window:
    """A kind of window. ``rolling_s`` is the length of a rolling window in seconds; 0 for the other kinds."""

    kind: WindowKind
    text: str
    rolling_s: int = 0

    @property
    def about(self) -> str:
        return f"in any {self.text.partition(':')[2]}" if self.rolling_s else _DESCRIPTIONS_BY_KIND[self.kind]

    @property
    def has_zone(self) -> bool:
        """Whether the time zone decides when the window begins."""
        return not self.rolling_s and self.kind != "lifetime"

    @property
    def slice_s(self) -> int:
        """The length of a rolling window's slice."""
        return self.rolling_s // ROLLING_SLICES

    def find(self, now_s: float, zone: ZoneInfo) -> tuple[int, int]:
        """Return start and end of the window that ``now_s`` is in; for a rolling window, of its slice."""
        if self.rolling_s:
            start_s = int(now_s // self.slice_s) * self.slice_s
            return start_s, start_s + self.slice_s
        if self.kind == "lifetime":
            return 0, NEVER_S
        first_day = datetime.fromtimestamp(now_s, zone).date()
        if self.kind in HOURS_BY_KIND:
            start_s, end_s = _find_days(first_day, timedelta(1), now_s, zone)
            length_s = HOURS_BY_KIND[self.kind] * HOUR_S
            start_s += int(now_s - start_s) // length_s * length_s
            return start_s, min(start_s + length_s, end_s)
        if self.kind == "day":
            return _find_days(first_day, timedelta(1), now_s, zone)
        if self.kind == "week":
            return _find_days(first_day - timedelta(first_day.weekday()), timedelta(7), now_s, zone)
        return _find_months(first_day, _MONTHS_A_QUARTER if self.kind == "quarter" else 1, now_s, zone)


def parse_window(text: str) -> Window:
    """Parse ``day`` or ``rolling:7d``. Raises ``ValueError`` that says what is expected."""
    match = _ROLLING_PATTERN.fullmatch(text)
    if match is not None:
        hours = int(match[1]) * (24 if match[2] == "d" else 1)
        if hours <= _MAX_ROLLING_DAYS * 24:
            return Window("rolling", text, hours * HOUR_S)
    for kind in _DESCRIPTIONS_BY_KIND:
        if text == kind:
            return Window(kind, text)
    raise ValueError(f"expected {EXPECTED_WINDOW}")


def find_kept_since(counter: str, now_s: float) -> int:
    """Return since when the sums of a counter (``Limit.counter``) are kept, in Unix seconds. 0: forever."""
    window = parse_window(counter.split("|")[-2])
    if window.kind == "lifetime":
        return 0
    if window.rolling_s:
        return int(now_s) - window.rolling_s - window.slice_s - 3 * DAY_S
    return int(now_s) - (8 if window.kind in HOURS_BY_KIND else 400) * DAY_S


def _find_days(first_day: date, length: timedelta, now_s: float, zone: ZoneInfo) -> tuple[int, int]:
    """Return start and end of the days from ``first_day``.

    A date may come back when clocks are set back at midnight. Its second part belongs to the next window.
    """
    start_s, end_s = find_midnight(first_day, zone), find_midnight(first_day + length, zone)
    while now_s >= end_s:
        first_day += length
        start_s, end_s = end_s, find_midnight(first_day + length, zone)
    return start_s, end_s


def _find_months(day: date, months: int, now_s: float, zone: ZoneInfo) -> tuple[int, int]:
    first_day = day.replace(day=1, month=(day.month - 1) // months * months + 1)
    next_day = _add_months(first_day, months)
    start_s, end_s = find_midnight(first_day, zone), find_midnight(next_day, zone)
    if now_s >= end_s:
        return end_s, find_midnight(_add_months(next_day, months), zone)
    return start_s, end_s


def _add_months(first_day: date, months: int) -> date:
    month = first_day.month + months
    return first_day.replace(year=first_day.year + (month > _DECEMBER), month=month - _DECEMBER * (month > _DECEMBER))


def find_midnight(day: date, zone: ZoneInfo) -> int:
    """Return when a day begins: at the first of two midnights, or at the change if clocks skip midnight."""
    return int(datetime.combine(day, time_of_day(), zone).timestamp())
