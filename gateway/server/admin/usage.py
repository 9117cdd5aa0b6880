"""Admin API: sums of requests and costs, and the values to filter requests by."""

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import get_args

import attrs

from gateway.domain.account_spec import build_time
from gateway.domain.channel import Channel
from gateway.domain.member import Forbidden
from gateway.domain.price import NANOS_PER_USD
from gateway.domain.request_log import Verdict
from gateway.domain.traffic import DAY_HOURS, HOUR_MS, Facet, TrafficAxis, TrafficFilter, TrafficLine
from gateway.errors import InvalidRequest
from gateway.server.admin.handler import AdminRequest, Fields, Query, admin_operation
from gateway.server.admin.io import OF_ACCOUNT
from gateway.server.admin.requests import STATUS, parse_account, parse_channel
from gateway.server.openapi import schema as s
from gateway.server.query import day_of_number, parse_moment, parse_number

Names = Mapping[str, str]
_PROVIDER = "provider"
_AXES: tuple[TrafficAxis, ...] = get_args(TrafficAxis)
_ALL_AXES = (*_AXES, _PROVIDER)
_VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
_OF_OPERATORS = ("account", "channel", _PROVIDER)
_UNKNOWN = "unknown"
_NO_TRAFFIC = TrafficLine("total", 0, 0, 0, 0, 0, 0, 0)
_DAYS_SHOWN = 30
_HOURS_SHOWN, _MOST_HOURS = 24, 31 * 24

_SUMS = s.record(
    requests=s.COUNT,
    failed=s.COUNT,
    prompt_tokens=s.COUNT,
    completion_tokens=s.COUNT,
    cached_tokens=s.COUNT,
    cost_usd=s.NUMBER,
    cost_nanos=s.INTEGER,
    total_ms=s.INTEGER,
)
_LABELS: Mapping[TrafficAxis, s.Shape] = {
    "day": s.record(day=s.TEXT),
    "hour": s.record(hour=s.MOMENT),
    "model": s.record(model=s.TEXT),
    "key": s.record(key=s.TEXT, key_id=s.INTEGER),
    "account": s.record(account=s.TEXT, account_id=s.INTEGER),
    "status": s.record(status=s.INTEGER),
    "channel": s.record(channel=s.TEXT),
}
_LINES = tuple(s.extend(_SUMS, **label["properties"]) for label in (*_LABELS.values(), s.record(provider=s.TEXT)))
_FACET = s.record(value=s.TEXT, requests=s.COUNT)
_FACETS = s.record(
    since=s.MOMENT,
    until=s.MOMENT,
    models=s.array(_FACET),
    keys=s.array(s.record(value=s.INTEGER, name=s.TEXT, requests=s.COUNT)),
    statuses=s.array(s.record(value=s.INTEGER, requests=s.COUNT)),
    channels=s.array(_FACET),
)


_FILTERS = (
    Query("since", "Only requests settled from that hour on: a time such as 2027-01-31T12:00:00Z, or a day (UTC)."),
    Query("until", "Only requests settled in that hour, on that day, or before."),
    Query("key", "Only this API key (an id).", s.COUNT),
    Query("model", "Only this model."),
    Query("channel", "Only this channel. For administrators."),
    OF_ACCOUNT,
)


@admin_operation(
    query=(
        Query("by", "The axis, by default day.", s.one_of(*_ALL_AXES)),
        *_FILTERS,
        Query("status", "Only this status (429).", s.COUNT),
    ),
    answer=s.listing(s.either(*_LINES), by=s.one_of(*_ALL_AXES), since=s.TEXT, until=s.TEXT, total=_SUMS),
)
async def get_usage(request: AdminRequest) -> Fields:
    """Sum all requests `by` day, hour, model, key, account, status, channel or provider.

    `failed` counts the `requests` that were refused or failed. `total_ms` is the sum of their durations. Times are
    whole hours; without any, the last 30 days, or by hour the last 24 hours. By hour at most 31 days are possible.
    Requests without a known model, or without a channel, are in the `total` alone. By account, channel and provider is
    for administrators. A channel that is gone has the provider `unknown`.
    """
    await request.services.billing.flusher.store_waiting()
    by = _parse_by(request)
    default: TrafficAxis = "channel"  # a provider's usage is the sum of its channels
    axis = next((axis for axis in _AXES if axis == by), default)
    wanted = await _parse_filter(request, by_hour=axis == "hour")
    wanted = attrs.evolve(wanted, status=parse_number(request.query, "status"))
    lines = await request.services.admin.history.traffic.list_traffic(axis, wanted)
    if by == _PROVIDER:
        lines = _sum_by_provider(lines, request.services.routing.catalog.channels)
    names = await _list_names(request, axis)
    since, until = _format_times(wanted, axis)
    return {
        "object": "list",
        "by": by,
        "since": since,
        "until": until,
        "data": [{**_label(line.label, by, names), **_build_sums(line)} for line in lines if line.label],
        "total": _build_sums(reduce(_add, lines, _NO_TRAFFIC)),
    }


@admin_operation(query=(*_FILTERS, STATUS), answer=_FACETS)
async def get_facets(request: AdminRequest) -> Fields:
    """List the values to filter requests by, with the number of requests for each, the most frequent first.

    Each kind is counted without its own filter. Times are whole hours, without any the last 30 days; if there are very
    many requests only the newest days are counted, and `since` is their begin. Channels are for administrators.
    """
    await request.services.billing.flusher.store_waiting()
    status, wanted = request.query.get("status"), await _parse_filter(request)
    verdict = next((verdict for verdict in _VERDICTS if verdict == status), None)
    wanted = attrs.evolve(wanted, verdict=verdict, status=None if verdict else parse_number(request.query, "status"))
    facets = await request.services.admin.history.traffic.list_facets(wanted)
    names = await _list_names(request, "key")
    channels = facets.channels if request.actor.scope is None else ()
    return {
        "since": _format_hour(facets.since),
        "until": _format_hour(facets.until),
        "models": [_build_facet(facet) for facet in facets.models],
        "keys": [
            {"value": int(one.value), "name": _name(one.value, names), "requests": one.requests} for one in facets.keys
        ],
        "statuses": [{"value": int(one.value), "requests": one.requests} for one in facets.statuses],
        "channels": [_build_facet(facet) for facet in channels],
    }


def _parse_by(request: AdminRequest) -> str:
    by = request.query.get("by", "day")
    if by not in _ALL_AXES:
        raise InvalidRequest(f"'by' must be one of {', '.join(_ALL_AXES)}", param="by")
    if by in _OF_OPERATORS and request.actor.scope is not None:
        raise Forbidden(f"Only administrators see usage by {by}", param="by", should_retry=False)
    return by


def _sum_by_provider(lines: Sequence[TrafficLine], channels: Iterable[Channel]) -> list[TrafficLine]:
    """Sum the channels' lines by provider, the highest cost first. The line without a channel is kept."""
    providers = {channel.name: channel.provider for channel in channels}
    sums: dict[str, TrafficLine] = {}
    for line in lines:
        label = line.label and providers.get(line.label, _UNKNOWN)
        sums[label] = _add(sums.get(label, attrs.evolve(_NO_TRAFFIC, label=label)), line)
    return sorted(sums.values(), key=lambda line: (-line.cost_nanos, -line.requests, line.label))


async def _parse_filter(request: AdminRequest, *, by_hour: bool = False) -> TrafficFilter:
    """Return the query's filters except the status, limited to the actor's scope."""
    since, until = _parse_hours(request, by_hour=by_hour)
    return TrafficFilter(
        since,
        until,
        account_id=await parse_account(request),
        key_id=parse_number(request.query, "key"),
        model=request.query.get("model"),
        channel=parse_channel(request),
    )


def _parse_hours(request: AdminRequest, *, by_hour: bool) -> tuple[int, int]:
    """Return the first hour and the exclusive last hour. Raises ``InvalidRequest``."""
    since_ms, until_ms = parse_moment(request.query, "since"), parse_moment(request.query, "until", ends=True)
    if until_ms is not None:
        until = -(-until_ms // HOUR_MS)
    else:
        step = HOUR_MS if by_hour else DAY_HOURS * HOUR_MS
        until = (int(request.services.clock() * 1000) // step + 1) * step // HOUR_MS
    if since_ms is not None:
        since = since_ms // HOUR_MS
    else:
        since = until - _HOURS_SHOWN if by_hour else ((until - 1) // DAY_HOURS - _DAYS_SHOWN + 1) * DAY_HOURS
    if since >= until:
        raise InvalidRequest("'since' must be before 'until'", param="since")
    if by_hour and until - since > _MOST_HOURS:
        raise InvalidRequest(f"By hour no more than {_MOST_HOURS // DAY_HOURS} days can be told", param="since")
    return max(since, 0), until


async def _list_names(request: AdminRequest, axis: TrafficAxis) -> Names:
    """Return the names of keys or accounts by their id."""
    accounts, actor = request.services.auth.accounts, request.actor
    if axis == "account":
        return {str(account_id): name for account_id, name in (await accounts.name_accounts()).items()}
    if axis == "key":
        return {str(key["id"]): f"{key['account']}/{key['name']}" for key in await accounts.list_keys(actor)}
    return {}


def _name(label: str, names: Names) -> str:
    return names.get(label, f"{label} (deleted)")


def _label(label: str, axis: str, names: Names) -> Fields:
    if axis == "day":
        return {"day": day_of_number(int(label)).isoformat()}
    if axis == "hour":
        return {"hour": _format_hour(int(label))}
    if axis in {"key", "account"}:
        return {axis: _name(label, names), f"{axis}_id": int(label)}
    return {axis: int(label) if axis == "status" else label}


def _format_times(wanted: TrafficFilter, axis: TrafficAxis) -> tuple[str, str]:
    """Return the first and the last day for a range of whole days; else two times, the second exclusive."""
    if axis != "hour" and not wanted.since % DAY_HOURS and not wanted.until % DAY_HOURS:
        first, last = wanted.since // DAY_HOURS, wanted.until // DAY_HOURS - 1
        return day_of_number(first).isoformat(), day_of_number(last).isoformat()
    return _format_hour(wanted.since), _format_hour(wanted.until)


def _format_hour(hour: int) -> str:
    return build_time(hour * HOUR_MS // 1000)


def _build_sums(line: TrafficLine) -> Fields:
    fields = attrs.asdict(line)
    del fields["label"]
    return {**fields, "cost_usd": line.cost_nanos / NANOS_PER_USD}


def _add(one: TrafficLine, other: TrafficLine) -> TrafficLine:
    sums = map(int.__add__, attrs.astuple(one)[1:], attrs.astuple(other)[1:])
    return TrafficLine(one.label, *sums)


def _build_facet(facet: Facet) -> Fields:
    return {"value": facet.value, "requests": facet.requests}
