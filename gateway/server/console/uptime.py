"""The strip of a model's requests over time: one bar for each hour or day, by the share that was answered."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal

from gateway.frozen import frozen
from gateway.server.admin.usage import UsageLine
from gateway.server.console.routes import mark

Level = Literal["idle", "good", "warn", "bad"]
_GOOD_SHARE, _FAIR_SHARE = 0.99, 0.9
_LABEL_FORMATS: Mapping[str, str] = {"hour": "%m-%d %H:%M", "day": "%Y-%m-%d"}
_QUERY_FORMATS: Mapping[str, str] = {"hour": "%Y-%m-%dT%H:%M:%SZ", "day": "%Y-%m-%d"}
"""For hours and days, the form of their time in the usage report and in its query."""


@frozen
class Period:
    """A period that ends now. ``axis``: whether its ``bar_count`` bars are hours or days (UTC)."""

    name: str
    axis: Literal["hour", "day"]
    bar_count: int

    def list_starts(self, now_s: float) -> list[datetime]:
        """Return the starts of its hours or days in order; the last one is still running."""
        start = datetime.fromtimestamp(now_s, UTC).replace(minute=0, second=0, microsecond=0)
        step = timedelta(hours=1)
        if self.axis == "day":
            start, step = start.replace(hour=0), timedelta(days=1)
        return [start - step * steps_back for steps_back in reversed(range(self.bar_count))]

    def format_query(self, start: datetime) -> str:
        """Write the start of an hour or a day as the usage report does."""
        return start.strftime(_QUERY_FORMATS[self.axis])


PERIODS: Mapping[str, Period] = {
    "24h": Period(mark("Last 24 hours"), "hour", 24),
    "7d": Period(mark("Last 7 days"), "day", 7),
    "30d": Period(mark("Last 30 days"), "day", 30),
    "90d": Period(mark("Last 90 days"), "day", 90),
}


@frozen
class UptimeBar:
    """An hour or a day. ``answered_share`` is None without requests, and ``level`` then is ``idle``."""

    label: str
    requests: int
    failed: int
    answered_share: float | None
    level: Level


def build_bars(period: Period, starts: Sequence[datetime], lines: Sequence[UsageLine]) -> list[UptimeBar]:
    """Return a bar for each of the ``starts`` of the period's hours or days. ``lines`` are the usage by these."""
    sums = {getattr(line, period.axis): (line.requests, line.failed) for line in lines}
    return [
        _build_bar(start.strftime(_LABEL_FORMATS[period.axis]), *sums.get(period.format_query(start), (0, 0)))
        for start in starts
    ]


def _build_bar(label: str, requests: int, failed: int) -> UptimeBar:
    if not requests:
        return UptimeBar(label, 0, 0, None, "idle")
    share = 1 - failed / requests
    return UptimeBar(
        label, requests, failed, share, "good" if share >= _GOOD_SHARE else "warn" if share >= _FAIR_SHARE else "bad"
    )
