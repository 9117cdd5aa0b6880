"""The periods of charts and of the request list that have a name: hours or days that end now."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Literal

from gateway.frozen import frozen
from gateway.server.console.routes import mark


@frozen
class NamedPeriod:
    """A period of hours or days (UTC) that ends now.

    Attributes:
        name: its English name.
        axis: what the usage report sums by.
        bar_count: the number of hours or days, which are the bars of a chart.
    """

    name: str
    axis: Literal["hour", "day"]
    bar_count: int

    def list_starts(self, now_s: float) -> list[datetime]:
        """Return the starts of the hours or days in order; the last one is still running."""
        start = datetime.fromtimestamp(now_s, UTC).replace(minute=0, second=0, microsecond=0)
        step = timedelta(hours=1)
        if self.axis == "day":
            start, step = start.replace(hour=0), timedelta(days=1)
        return [start - step * steps_back for steps_back in reversed(range(self.bar_count))]


NAMED_PERIODS: Mapping[str, NamedPeriod] = {
    "24h": NamedPeriod(mark("Last 24 hours"), "hour", 24),
    "7d": NamedPeriod(mark("Last 7 days"), "day", 7),
    "30d": NamedPeriod(mark("Last 30 days"), "day", 30),
    "90d": NamedPeriod(mark("Last 90 days"), "day", 90),
}
"""By their value in the address of a page."""
