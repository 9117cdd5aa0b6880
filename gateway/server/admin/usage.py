"""Admin API: sums of requests and costs, and the values to filter requests by."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial, reduce
from typing import Annotated, Literal, get_args

import attrs
from aiohttp import web

from gateway.answer_fields import FIRST, OMITTED, Count, FieldSchema, Moment
from gateway.domain.account_spec import build_time
from gateway.domain.attribution import find_tag_problem
from gateway.domain.channel import Channel
from gateway.domain.member import Forbidden
from gateway.domain.request_log import Verdict
from gateway.domain.subject_usage import SubjectFilter, SubjectKind
from gateway.domain.traffic import DAY_HOURS, HOUR_MS, Facet, TrafficAxis, TrafficFilter, TrafficLine, add_lines
from gateway.errors import InvalidRequest
from gateway.frozen import frozen
from gateway.server.admin.answer import build_json_schema, build_view
from gateway.server.admin.export import format_csv
from gateway.server.admin.handler import AdminRequest, Fields, Query, admin_operation
from gateway.server.admin.io import ACCOUNT_QUERY, parse_account
from gateway.server.admin.requests import STATUS_QUERY, parse_channel
from gateway.server.openapi import schema as s
from gateway.server.query import day_of_number, parse_moment, parse_number
from gateway.storage.traffic_series import open_series_reader

Names = Mapping[str, str]
_PROVIDER = "provider"
_AXES: tuple[TrafficAxis, ...] = get_args(TrafficAxis)
_ALL_AXES = (*_AXES, _PROVIDER)
_VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
_SUBJECT_KINDS: tuple[SubjectKind, ...] = get_args(SubjectKind)
_SUBJECTS_LISTED, _MAX_SUBJECTS_LISTED = 1_000, 10_000
_TAG_PREFIX = "tag:"
_REMAINDER_FIELDS = ("unlisted", "other", "unattributed")
OPERATOR_AXES = ("account", "channel", _PROVIDER)
_UNKNOWN = "unknown"
_DELETED = " (deleted)"
_EMPTY_LINE = TrafficLine("total", 0, 0, 0, 0, 0, 0, 0, 0)
_DAYS_SHOWN = 30
_HOURS_SHOWN, _MAX_HOURS = 24, 31 * 24
_MAX_SESSION_DAYS = 31
"""Maximum number of days of usage by session. A day may have 10,000 sessions, few of which last for another day."""

_LABEL_METADATA = {**FIRST, **OMITTED}


@frozen(kw_only=True)
class UsageSums:
    """Sums of requests. ``failed`` of them were refused or failed.

    ``cached_tokens`` are the part of ``prompt_tokens`` that providers have read from their prompt caches.
    ``saved_nanos`` and ``saved_usd`` are what these caches have saved; negative if writing to them cost more.
    """

    requests: Count
    failed: Count
    prompt_tokens: Count
    completion_tokens: Count
    cached_tokens: Count
    cost_nanos: int
    total_ms: int
    saved_nanos: int
    cost_usd: float
    saved_usd: float


@frozen(kw_only=True)
class UsageLine(UsageSums):
    """The sums of one hour, day, model, key, account, status, channel, provider, user, session or value of a tag.

    Other labels are left out.
    """

    day: str | None = attrs.field(default=None, metadata=_LABEL_METADATA)
    hour: Moment | None = attrs.field(default=None, metadata=_LABEL_METADATA)
    model: str | None = attrs.field(default=None, metadata=_LABEL_METADATA)
    key: str | None = attrs.field(default=None, metadata=_LABEL_METADATA)
    key_id: int | None = attrs.field(default=None, metadata=_LABEL_METADATA)
    account: str | None = attrs.field(default=None, metadata=_LABEL_METADATA)
    account_id: int | None = attrs.field(default=None, metadata=_LABEL_METADATA)
    status: int | None = attrs.field(default=None, metadata=_LABEL_METADATA)
    channel: str | None = attrs.field(default=None, metadata=_LABEL_METADATA)
    provider: str | None = attrs.field(default=None, metadata=_LABEL_METADATA)
    user: str | None = attrs.field(default=None, metadata=_LABEL_METADATA)
    session: str | None = attrs.field(default=None, metadata=_LABEL_METADATA)
    tag: str | None = attrs.field(default=None, metadata=_LABEL_METADATA)


def _build_lines() -> s.Schema:
    """Return the schema of the lines: the sums with the labels of one axis."""
    schemas = build_json_schema(UsageLine)["properties"]
    labels = {"key": ("key", "key_id"), "account": ("account", "account_id")}
    sums = [field.name for field in attrs.fields(UsageSums)]
    field_names = [(*sums, *labels.get(axis, (axis,))) for axis in (*_ALL_AXES, *_SUBJECT_KINDS)]
    return s.array(s.either(*(s.record(**{name: schemas[name] for name in fields}) for fields in field_names)))


@frozen(kw_only=True)
class UsageReport:
    """The usage by one axis.

    By user, session or tag the `total` has more than the lines: `unlisted` is the sum of those beyond `limit`, `other`
    of those that have no sums of their own because a day had too many, and `unattributed` of requests without any. With
    `value` the `total` is the sum of that one, without what `other` may have of it.
    """

    object: Literal["list"] = "list"
    by: str
    since: str
    until: str
    data: Annotated[Sequence[UsageLine], FieldSchema(_build_lines())]
    total: UsageSums
    unlisted: UsageSums | None = attrs.field(default=None, metadata=OMITTED)
    other: UsageSums | None = attrs.field(default=None, metadata=OMITTED)
    unattributed: UsageSums | None = attrs.field(default=None, metadata=OMITTED)


@frozen
class KeyFacet:
    """A key to filter by, and the number of its requests."""

    value: int
    name: str
    requests: Count


@frozen
class StatusFacet:
    """A status to filter by, and the number of requests that have it."""

    value: int
    requests: Count


@frozen(kw_only=True)
class FacetsView:
    """The values to filter requests by."""

    since: Moment
    until: Moment
    models: Sequence[Facet]
    keys: Sequence[KeyFacet]
    statuses: Sequence[StatusFacet]
    channels: Sequence[Facet]


FILTERS = (
    Query("since", "Only requests settled from that hour on: a time such as 2027-01-31T12:00:00Z, or a day (UTC)."),
    Query("until", "Only requests settled in that hour, on that day, or before."),
    Query("key", "Only this API key (an id).", s.COUNT),
    Query("model", "Only this model."),
    Query("channel", "Only this channel. For administrators."),
    ACCOUNT_QUERY,
)


_USAGE_QUERIES = (
    Query("by", f"{', '.join(_ALL_AXES)}, user, session, or tag:NAME for the values of a tag. The default is day."),
    *FILTERS,
    Query("status", "Only this status (429).", s.COUNT),
    Query("value", "By user, session or tag: only this one."),
    Query(
        "limit",
        f"By user, session or tag: the number of lines, {_SUBJECTS_LISTED:,} by default, at most "
        f"{_MAX_SUBJECTS_LISTED:,}.",
        s.COUNT,
    ),
)


@admin_operation(query=_USAGE_QUERIES)
async def get_usage(request: AdminRequest) -> UsageReport:
    """Sum all requests `by` day, hour, model, key, account, status, channel, provider, user, session or tag.

    `failed` counts the `requests` that were refused or failed. `total_ms` is the sum of their durations.
    `cached_tokens` are the part of `prompt_tokens` that providers read from their prompt caches, and `saved_usd` is the
    price of the same prompts without a cache minus what was charged. Writing to a cache can cost more than is saved;
    then it is negative. Times are whole hours; without any, the last 30 days, or by hour the last 24 hours. By hour at
    most 31 days are possible, and by session, too. By user, session and tag are whole days, of all models, channels and
    statuses. Requests without a known model, or without a channel, are in the `total` alone. By account, channel and
    provider is for administrators. A channel that is gone has the provider `unknown`.
    """
    return await build_report(request)


@admin_operation(query=_USAGE_QUERIES, media_type="text/csv")
async def export_usage(request: AdminRequest) -> web.StreamResponse:
    """Export the same sums as `GET /usage` as CSV (RFC 4180, with a header line).

    By user, session and tag the column `line` tells the sums of `unlisted`, `other` and `unattributed` requests apart.
    """
    report = await build_report(request)
    kind = report.by.partition(":")[0]
    sums = [field.name for field in attrs.fields(UsageSums)]
    parts = [("value", line) for line in report.data]
    parts += [(name, line) for name in _REMAINDER_FIELDS if (line := getattr(report, name)) is not None]
    lines = [(part, getattr(line, kind, None) or "", *(getattr(line, name) for name in sums)) for part, line in parts]
    headers = {"Content-Disposition": 'attachment; filename="usage.csv"', "Cache-Control": "no-store"}
    return web.Response(
        body=format_csv([("line", kind, *sums), *lines]), headers=headers, content_type="text/csv", charset="utf-8"
    )


async def build_report(request: AdminRequest) -> UsageReport:
    """Build the report that the query asks for. Raises ``InvalidRequest``, ``NotFound`` and ``Forbidden``."""
    await request.services.billing.flusher.store_waiting()
    axis_name = _parse_axis_name(request)
    kind, _, tag = axis_name.partition(":")
    for subject_kind in _SUBJECT_KINDS:
        if kind == subject_kind:
            return await _report_subjects(request, subject_kind, tag)
    if "value" in request.query:
        raise InvalidRequest("'value' is for usage by user, session or tag", param="value")
    default: TrafficAxis = "channel"  # a provider's usage is the sum of its channels
    axis = next((axis for axis in _AXES if axis == axis_name), default)
    traffic_filter = await _parse_filter(request, by_hour=axis == "hour")
    traffic_filter = attrs.evolve(traffic_filter, status=parse_number(request.query, "status"))
    lines = await _list_lines(request, axis, traffic_filter)
    if axis_name == _PROVIDER:
        lines = _sum_by_provider(lines, request.services.routing.catalog.channels)
    names = await list_names(request, axis)
    since, until = _format_times(traffic_filter, axis)
    return UsageReport(
        by=axis_name,
        since=since,
        until=until,
        data=[
            build_view(UsageLine, line, **_build_label(line.label, axis_name, names)) for line in lines if line.label
        ],
        total=build_view(UsageSums, reduce(add_lines, lines, _EMPTY_LINE)),
    )


async def _list_lines(request: AdminRequest, axis: TrafficAxis, traffic_filter: TrafficFilter) -> Sequence[TrafficLine]:
    """Return the traffic summed along ``axis``. Except by hour, whole days are read from the sums of days."""
    if axis == "hour":
        return await request.services.admin.history.traffic.list_traffic(axis, traffic_filter)
    reader = await open_series_reader(request.services.storage.database, traffic_filter)
    return await reader.list_lines(axis, traffic_filter.since, traffic_filter.until)


async def _report_subjects(request: AdminRequest, kind: SubjectKind, tag: str) -> UsageReport:
    for name in ("model", "channel", "status"):
        if name in request.query:
            raise InvalidRequest(f"Usage by {kind} is not summed by {name}: leave '{name}' out", param=name)
    limit = min(parse_number(request.query, "limit") or _SUBJECTS_LISTED, _MAX_SUBJECTS_LISTED)
    traffic_filter = await _parse_filter(request)
    since, until = traffic_filter.since // DAY_HOURS, -(-traffic_filter.until // DAY_HOURS)
    traffic_filter = attrs.evolve(traffic_filter, since=since * DAY_HOURS, until=until * DAY_HOURS)
    if kind == "session" and until - since > _MAX_SESSION_DAYS:
        raise InvalidRequest(f"By session no more than {_MAX_SESSION_DAYS} days can be told", param="since")
    history = request.services.admin.history
    value = request.query.get("value")
    values = () if value is None else (value,)
    usage = await history.subjects.find_usage(
        SubjectFilter(kind, tag, since, until - 1, traffic_filter.account_id, traffic_filter.key_id, values), limit
    )
    all_lines = await _list_lines(request, "status", traffic_filter) if value is None else usage.lines
    total = reduce(add_lines, all_lines, _EMPTY_LINE)
    attributed = (*usage.lines, usage.unlisted, usage.other)
    since_text, until_text = _format_times(traffic_filter, "day")
    return UsageReport(
        by=f"{kind}:{tag}" if tag else kind,
        since=since_text,
        until=until_text,
        data=[build_view(UsageLine, line, **{kind: line.label}) for line in usage.lines],
        total=build_view(UsageSums, total),
        unlisted=build_view(UsageSums, usage.unlisted) if value is None else None,
        other=build_view(UsageSums, usage.other),
        unattributed=(
            build_view(UsageSums, reduce(partial(add_lines, sign=-1), attributed, total)) if value is None else None
        ),
    )


@admin_operation(query=(*FILTERS, STATUS_QUERY))
async def get_facets(request: AdminRequest) -> FacetsView:
    """List the most frequent values to filter requests by, with the number of requests for each.

    Each kind is counted without its own filter. Times are whole hours; the default is the last 30 days. If keys,
    models, channels and statuses have too many combinations, only the newest days are counted, and `since` says when
    they begin. Only administrators get channels.
    """
    await request.services.billing.flusher.store_waiting()
    status, traffic_filter = request.query.get("status"), await _parse_filter(request)
    verdict = next((verdict for verdict in _VERDICTS if verdict == status), None)
    traffic_filter = attrs.evolve(
        traffic_filter, verdict=verdict, status=None if verdict else parse_number(request.query, "status")
    )
    facets = await request.services.admin.history.traffic.list_facets(traffic_filter)
    names = await list_names(request, "key")
    return FacetsView(
        since=_format_hour(facets.since),
        until=_format_hour(facets.until),
        models=facets.models,
        keys=[KeyFacet(int(facet.value), name_label(facet.value, names), facet.requests) for facet in facets.keys],
        statuses=[StatusFacet(int(facet.value), facet.requests) for facet in facets.statuses],
        channels=facets.channels if request.actor.scope is None else (),
    )


def _parse_axis_name(request: AdminRequest) -> str:
    axis = request.query.get("by", "day")
    is_tag = axis.startswith(_TAG_PREFIX) and find_tag_problem(axis.removeprefix(_TAG_PREFIX), "value") is None
    if axis not in {*_ALL_AXES, "user", "session"} and not is_tag:
        raise InvalidRequest(f"'by' must be one of {', '.join(_ALL_AXES)}, user, session or tag:NAME", param="by")
    if axis in OPERATOR_AXES and request.actor.scope is not None:
        raise Forbidden(f"Only administrators see usage by {axis}", param="by", should_retry=False)
    return axis


def _sum_by_provider(lines: Sequence[TrafficLine], channels: Iterable[Channel]) -> list[TrafficLine]:
    """Sum the channels' lines by provider, the highest cost first. The line without a channel is kept."""
    providers = {channel.name: channel.provider for channel in channels}
    sums: dict[str, TrafficLine] = {}
    for line in lines:
        label = line.label and providers.get(line.label, _UNKNOWN)
        sums[label] = add_lines(sums.get(label, attrs.evolve(_EMPTY_LINE, label=label)), line)
    return sorted(sums.values(), key=lambda line: (-line.cost_nanos, -line.requests, line.label))


async def _parse_filter(request: AdminRequest, *, by_hour: bool = False) -> TrafficFilter:
    since, until = parse_hours(request, by_hour=by_hour)
    return TrafficFilter(
        since,
        until,
        account_id=await parse_account(request),
        key_id=parse_number(request.query, "key"),
        model=request.query.get("model"),
        channel=parse_channel(request),
    )


def parse_hours(request: AdminRequest, *, by_hour: bool = False) -> tuple[int, int]:
    """Return the first hour of the query's period and the first hour after it, both counted in UTC since 1970.

    Without times the period is the last 30 days, or the last 24 hours if ``by_hour``. Raises ``InvalidRequest``.
    """
    since_ms, until_ms = parse_moment(request.query, "since"), parse_moment(request.query, "until", is_end=True)
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
    if by_hour and until - since > _MAX_HOURS:
        raise InvalidRequest(f"By hour no more than {_MAX_HOURS // DAY_HOURS} days can be told", param="since")
    return max(since, 0), until


async def list_names(request: AdminRequest, axis: TrafficAxis) -> Names:
    """Return the names of accounts, or of the keys that the actor sees, by their ids; empty for other axes."""
    accounts, actor = request.services.auth.accounts, request.actor
    if axis == "account":
        return {str(account_id): name for account_id, name in (await accounts.name_accounts()).items()}
    if axis == "key":
        callers = await accounts.list_callers(actor)
        return {str(caller.key.id): f"{caller.account.name}/{caller.key.name}" for caller in callers}
    return {}


def name_label(label: str, names: Names) -> str:
    """Return the name of the account or key with the id ``label``; the id with " (deleted)" if it has no name."""
    return names.get(label, f"{label}{_DELETED}")


def is_deleted(label: object, name: str) -> bool:
    """Return whether ``name`` is what ``name_label`` returns for the id of a deleted account or key."""
    return name == f"{label}{_DELETED}"


def _build_label(label: str, axis: str, names: Names) -> Fields:
    if axis == "day":
        return {"day": day_of_number(int(label)).isoformat()}
    if axis == "hour":
        return {"hour": _format_hour(int(label))}
    if axis in {"key", "account"}:
        return {axis: name_label(label, names), f"{axis}_id": int(label)}
    return {axis: int(label) if axis == "status" else label}


def _format_times(traffic_filter: TrafficFilter, axis: TrafficAxis) -> tuple[str, str]:
    """Return the first and the last day of the period.

    By hour, or for a period with parts of days, return two times, the second exclusive.
    """
    if axis != "hour" and not traffic_filter.since % DAY_HOURS and not traffic_filter.until % DAY_HOURS:
        first_day, last_day = traffic_filter.since // DAY_HOURS, traffic_filter.until // DAY_HOURS - 1
        return day_of_number(first_day).isoformat(), day_of_number(last_day).isoformat()
    return _format_hour(traffic_filter.since), _format_hour(traffic_filter.until)


def _format_hour(hour: int) -> str:
    return build_time(hour * HOUR_MS // 1000)
