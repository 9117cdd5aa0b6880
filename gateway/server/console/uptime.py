"""The strip of a model's requests over time: one bar for each hour or day, by the share that was answered."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

from gateway.frozen import frozen
from gateway.server.admin.usage import UsageLine
from gateway.server.console.periods import NAMED_PERIODS, NamedPeriod

Level = Literal["idle", "good", "warn", "bad"]
_GOOD_SHARE, _FAIR_SHARE = 0.99, 0.9
_LABEL_FORMATS: Mapping[str, str] = {"hour": "%m-%d %H:%M", "day": "%Y-%m-%d"}
_REPORT_FORMATS: Mapping[str, str] = {"hour": "%Y-%m-%dT%H:%M:%SZ", "day": "%Y-%m-%d"}
"""How the usage report writes the start of an hour and of a day."""


@frozen
class UptimeBar:
    """An hour or a day. ``answered_share`` is None without requests, and ``level`` then is ``idle``."""

    label: str
    requests: int
    failed: int
    answered_share: float | None
    level: Level


def find_period(name: str) -> NamedPeriod | None:
    """Return the period of hours or days with this name; None if there is none."""
    period = NAMED_PERIODS.get(name)
    return period if period is not None and period.step in _LABEL_FORMATS else None


def build_bars(period: NamedPeriod, starts: Sequence[datetime], lines: Sequence[UsageLine]) -> list[UptimeBar]:
    """Return a bar for each of the ``starts`` of the period's hours or days. ``lines`` are the usage by hour or day."""
    sums = {getattr(line, period.step): (line.requests, line.failed) for line in lines}
    report_format, label_format = _REPORT_FORMATS[period.step], _LABEL_FORMATS[period.step]
    return [
        _build_bar(start.strftime(label_format), *sums.get(start.strftime(report_format), (0, 0))) for start in starts
    ]


def _build_bar(label: str, requests: int, failed: int) -> UptimeBar:
    if not requests:
        return UptimeBar(label, 0, 0, None, "idle")
    share = 1 - failed / requests
    return UptimeBar(
        label, requests, failed, share, "good" if share >= _GOOD_SHARE else "warn" if share >= _FAIR_SHARE else "bad"
    )
