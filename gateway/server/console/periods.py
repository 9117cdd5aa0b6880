"""The periods of charts and of the request list that have a name: minutes, hours or days that end now."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from gateway.frozen import frozen
from gateway.server.console.routes import mark

STEPS: Mapping[str, timedelta] = {
    "minute": timedelta(minutes=1),
    "5minutes": timedelta(minutes=5),
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
}
"""The lengths of the parts into which charts split a period."""


@frozen
class NamedPeriod:
    """A period of minutes, hours or days (UTC) that ends now.

    Attributes:
        name: its English name.
        step: the name in ``STEPS`` of its parts.
        bar_count: the number of these parts, which are the bars of a chart.
    """

    name: str
    step: str
    bar_count: int

    def list_starts(self, now_s: float) -> list[datetime]:
        """Return the starts of the parts in order; the last part is still running."""
        step = STEPS[self.step]
        start = datetime.fromtimestamp(now_s // step.total_seconds() * step.total_seconds(), UTC)
        return [start - step * steps_back for steps_back in reversed(range(self.bar_count))]


NAMED_PERIODS: Mapping[str, NamedPeriod] = {
    "1h": NamedPeriod(mark("Last hour"), "minute", 60),
    "3h": NamedPeriod(mark("Last 3 hours"), "5minutes", 36),
    "24h": NamedPeriod(mark("Last 24 hours"), "hour", 24),
    "7d": NamedPeriod(mark("Last 7 days"), "day", 7),
    "30d": NamedPeriod(mark("Last 30 days"), "day", 30),
    "90d": NamedPeriod(mark("Last 90 days"), "day", 90),
}
"""The named periods, by their value in the address of a page."""
