"""The periods of charts and of the request list: hours or days that end now."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from gateway.frozen import frozen
from gateway.server.console.routes import mark

_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)


@frozen
class Span:
    """A period of hours or days that ends now.

    ``name`` is its English name, ``axis`` is what the usage report sums by ("hour" or "day"), and ``bar_count`` is the
    number of bars in a chart.
    """

    name: str
    axis: str
    bar_count: int


SPANS: Mapping[str, Span] = {
    "24h": Span(mark("Last 24 hours"), "hour", 24),
    "7d": Span(mark("Last 7 days"), "day", 7),
    "30d": Span(mark("Last 30 days"), "day", 30),
    "90d": Span(mark("Last 90 days"), "day", 90),
}


def list_bucket_starts(span: Span, now_s: float) -> list[datetime]:
    """Return the starts of the period's hours or days in order; the last interval is still running."""
    now = datetime.fromtimestamp(now_s, UTC)
    start = now.replace(minute=0, second=0, microsecond=0)
    if span.axis == "day":
        start = start.replace(hour=0)
    step = _HOUR if span.axis == "hour" else _DAY
    return [start - step * steps_back for steps_back in reversed(range(span.bar_count))]
