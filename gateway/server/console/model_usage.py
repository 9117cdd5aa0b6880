"""What a model's page shows of its requests: sums of hours and days, and times of its latest requests."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web

from gateway.frozen import frozen
from gateway.server.admin.channel_view import ChannelView
from gateway.server.admin.explanation import Explanation
from gateway.server.admin.requests import RequestPageView, RequestView
from gateway.server.admin.usage import UsageLine, UsageReport
from gateway.server.console.page import Data, ask_admin_api
from gateway.server.console.uptime import build_bars, find_period
from gateway.server.console.usage_charts import PageCharts, list_lines
from gateway.server.context import ACTOR, SERVICES

_SAMPLE_ROWS = 500
"""Number of the model's latest requests from which end users, and the times of each channel, are taken."""
_MAX_SHOWN = 10
"""Maximum number of accounts, of keys and of end users: those with the most requests or the highest cost."""


@frozen
class ServedChannel:
    """A channel that serves the model, or served it in the period.

    Attributes:
        view: its present state; None if the channel is gone, or no longer serves the model.
        sums: its requests in the period; None without any.
        traffic_share: its share of the model's requests that a channel got; None without any.
        chance: its share of the next requests, of a caller without restrictions; None if that is not known.
        first_byte_ms: ``p50`` and ``p95`` of its streams among the latest requests; None without streams.
    """

    name: str
    view: ChannelView | None
    sums: UsageLine | None
    traffic_share: float | None
    chance: float | None
    first_byte_ms: Mapping[str, int | None]

    @property
    def answered_share(self) -> float | None:
        return None if self.sums is None or not self.sums.requests else 1 - self.sums.failed / self.sums.requests


async def load_usage(request: web.Request, model: str, charts: PageCharts) -> Data:
    """Load sums of the requests that named ``model`` in the period of ``charts``, and the latest of these requests.

    Members see the requests of their account. Only administrators see accounts and channels. ``bars`` is None for
    minutes, and for a period without a name.
    """
    period = find_period(charts.period.span)
    query: dict[str, Any] = {"since": charts.answer.since, "until": charts.answer.until, "model": model}
    axes = ("key", "account", "channel") if request[ACTOR].scope is None else ("key",)
    times: UsageReport
    sample: RequestPageView
    times, sample, *axis_lines = await asyncio.gather(
        ask_admin_api(request, "/usage", by="day" if period is None else period.step, **query),
        ask_admin_api(request, "/requests", limit=_SAMPLE_ROWS, **query),
        *(list_lines(request, charts, axis, query) for axis in axes),
    )
    lines = dict(zip(axes, axis_lines, strict=True))
    users = Counter(row.end_user for row in sample.data if row.end_user)
    return {
        "total": charts.answer.total,
        "is_daily": period is not None and period.step == "day",
        "bars": period and build_bars(period, period.list_starts(request.app[SERVICES].clock()), times.data),
        "sample": sample.data,
        "users": users.most_common(_MAX_SHOWN),
        "keys": lines["key"][:_MAX_SHOWN],
        "accounts": lines.get("account", ())[:_MAX_SHOWN],
        "channel_lines": lines.get("channel", ()),
    }


def list_served_channels(
    views: Mapping[str, ChannelView], names: Sequence[str], usage: Data, explanation: Explanation | None
) -> list[ServedChannel]:
    """Return the channels ``names`` that serve the model, then others that served it in the period.

    ``views`` has the states of channels by name. ``explanation`` is the dry run of a request to the model.
    """
    sums = {line.channel: line for line in usage["channel_lines"] if line.channel}
    request_count = sum(line.requests for line in sums.values())
    chances = {line.channel: line.chance for line in explanation.channels} if explanation is not None else {}
    times_ms = _list_first_bytes(usage["sample"])
    return [
        ServedChannel(
            name=name,
            view=views.get(name) if name in names else None,
            sums=(line := sums.get(name)),
            traffic_share=line.requests / request_count if line is not None and request_count else None,
            chance=chances.get(name),
            first_byte_ms=_find_percentiles(times_ms[name]),
        )
        for name in dict.fromkeys((*names, *sums))
    ]


def _list_first_bytes(rows: Sequence[RequestView]) -> Mapping[str, list[int]]:
    """Return the milliseconds to the first byte of completed streams, by channel. Other names give an empty list."""
    times_ms: defaultdict[str, list[int]] = defaultdict(list)
    for row in rows:
        if row.stream and row.outcome == "completed" and row.channel and row.first_byte_ms is not None:
            times_ms[row.channel].append(row.first_byte_ms)
    return times_ms


def _find_percentiles(times_ms: Sequence[int]) -> Mapping[str, int | None]:
    sorted_times_ms = sorted(times_ms)
    return {
        f"p{percent}": sorted_times_ms[-(-len(sorted_times_ms) * percent // 100) - 1] if sorted_times_ms else None
        for percent in (50, 95)
    }
