"""Admin API: the request log. A member sees the requests of its account."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar, cast, get_args

import attrs

from gateway.answer_fields import FIRST, Count, Moment
from gateway.billing.cost_breakdown import BillLine
from gateway.domain.account_spec import build_time
from gateway.domain.audit_log import Actor
from gateway.domain.member import Forbidden
from gateway.domain.request_log import (
    MAX_ERROR_CHARS,
    NO_CHANNEL,
    SUCCESS_CODE,
    FailedAttempt,
    Outcome,
    RequestFilter,
    RequestRecord,
    StoredRequest,
    Verdict,
    parse_attempts,
)
from gateway.errors import InvalidRequest
from gateway.frozen import frozen, quick_frozen
from gateway.server.admin.answer import build_view
from gateway.server.admin.handler import AdminRequest, Query, admin_operation
from gateway.server.admin.io import ACCOUNT_QUERY, LIMIT_QUERY, parse_account, parse_limit
from gateway.server.openapi import schema as s
from gateway.server.query import is_number, parse_moment, parse_number

_OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
_VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
NO_CODE = "-"
"""The value of the filter ``error_code`` that selects requests without a code."""


@quick_frozen(kw_only=True)
class RequestView(RequestRecord):
    """A request as the log has it, with times, and with its cost in dollars."""

    sequence: int = attrs.field(metadata=FIRST)
    started_at: Moment
    settled_at: Moment
    usage_capped: bool
    usage_implausible: bool
    cost_usd: float
    saved_usd: float


@frozen(kw_only=True)
class RequestPageView:
    """A page of the request log."""

    object: Literal["list"] = "list"
    data: Sequence[RequestView]
    more: bool
    next: str | None
    searched_to: Moment | None
    newest: str


@frozen(kw_only=True)
class AttemptView:
    """An attempt of a request, or a step of its route that was passed over; then ``channel`` is null.

    ``error_code`` is null if the attempt was answered. ``step`` and ``cause`` (why the step was left) are null without
    a route. ``status`` and ``model`` (the provider's name) are null for requests of version 0.9. Members see no channel
    and model.
    """

    step: Count | None
    model: str | None
    channel: str | None
    cause: str | None
    error_code: str | None
    status: Count | None
    ms: Count


@frozen(kw_only=True)
class Timing:
    """The durations of a request. ``first_byte_ms`` is null if the client got no answer."""

    first_byte_ms: int | None
    total_ms: int


@quick_frozen(kw_only=True)
class RequestDetails(RequestView):
    """A request with its attempts and its cost breakdown."""

    attempts_made: Sequence[AttemptView]
    lines: Sequence[BillLine]
    timing: Timing


R = TypeVar("R", bound=RequestView)
STATUS_QUERY = Query(
    "status", "Only this status (429); `error`: requests that failed or were refused; `ok`: the others."
)
FILTER_QUERIES = (
    Query("key", "Only this API key (an id).", s.COUNT),
    Query("model", "Only this model."),
    Query("route", "Only requests for this route."),
    Query("end_user", "Only requests made for this end user."),
    Query("session", "Only requests of this session."),
    Query("tag", "Only requests with this tag: `team=web`."),
    Query("channel", "Only this channel. For administrators."),
    Query("served_model", "Only requests that this model answered, by its provider's name. For administrators."),
    STATUS_QUERY,
    Query("outcome", "Only requests with this outcome.", s.one_of(*_OUTCOMES)),
    Query("since", "Only requests settled then or later: a time such as 2027-01-31T12:00:00Z, or a day (UTC)."),
    Query("until", "Only requests settled before that time, or until the end of that day."),
    Query(
        "text", "Only failures with this in the error's text or code, ignoring case; or the one request with this id."
    ),
    Query("error_code", "Only with exactly this error code; `-`: only requests without one."),
    Query("unpriced", "`true`: only requests to models without a price; `false`: only the others.", s.FLAG),
    Query("shadow", "`true`: only copies for shadow models; `false`: only the others.", s.FLAG),
    ACCOUNT_QUERY,
)
_PAGING_QUERIES = (
    LIMIT_QUERY,
    Query("before", "Only rows before this `sequence`: `next` of one page leads to the next page.", s.COUNT),
    Query(
        "after", "Only rows stored later, the oldest first: `newest` or `next` of the answer before, to follow the log."
    ),
)


@admin_operation(query=(*_PAGING_QUERIES, *FILTER_QUERIES))
async def list_requests(request: AdminRequest) -> RequestPageView:
    """List requests, the newest first; with `after` the oldest after it first.

    One page searches a limited number of rows: if `more` is true, `next` continues (as `before`, or `after`), and
    `searched_to` is the time up to which rows were searched. `newest`, sent as `after`, finds the rows that are stored
    later. Only administrators see channels and failed attempts.
    """
    await request.services.billing.flusher.store_waiting()
    request_filter, query = await parse_filter(request), request.query
    request_filter = attrs.evolve(request_filter, before=parse_number(query, "before"), after=query.get("after"))
    if request_filter.before is not None and request_filter.after is not None:
        raise InvalidRequest("Either 'before' or 'after', not both", param="after")
    page = await request.services.admin.history.log.list_requests(request_filter, parse_limit(request))
    rows: Iterable[StoredRequest] = page if request_filter.after is not None else reversed(page)
    return RequestPageView(
        data=[build_row(row, request.actor, RequestView) for row in rows],
        more=page.more,
        next=page.next,
        searched_to=None if page.searched_ms is None else build_time(page.searched_ms // 1000),
        newest=page.newest,
    )


@admin_operation()
async def get_request(request: AdminRequest) -> RequestDetails:
    """Get a request with its attempts and its cost breakdown, by its id or a beginning that no other id has.

    `served_model` is the provider's name of the model that was charged, if that is not `model`. `units` are charged
    counts without a field of their own, as JSON. The log has no prices: `lines` are calculated with the current ones.
    If these give another sum than the charge (`cost_usd` of the request), each line is `estimated`; otherwise the
    `cost_nanos` of the lines add up to the charge. `saved_usd` is what the provider's prompt cache has saved at the
    prices of that time.
    """
    await request.services.billing.flusher.store_waiting()
    actor, history = request.actor, request.services.admin.history
    stored_request = await history.get(request.match_info["id"], actor.scope)
    row = stored_request.row
    return build_row(
        stored_request,
        actor,
        RequestDetails,
        attempts_made=[_build_attempt(attempt, actor) for attempt in _list_attempts(row)],
        lines=history.list_lines(row),
        timing=build_view(Timing, row),
    )


async def parse_filter(request: AdminRequest) -> RequestFilter:
    """Return the filters of the query, limited to the actor's scope.

    Raises ``InvalidRequest`` for an invalid filter, ``NotFound`` for an unknown account, and ``Forbidden`` if a member
    filters by channel or served model.
    """
    query, status = request.query, request.query.get("status")
    if status is not None and status not in _VERDICTS and not is_number(status):
        raise InvalidRequest("'status' must be a number, 'error' or 'ok'", param="status")
    if query.get("outcome", "completed") not in _OUTCOMES:
        raise InvalidRequest(f"'outcome' must be one of {', '.join(_OUTCOMES)}", param="outcome")
    text = query.get("text") or None
    if text is not None and len(text) > MAX_ERROR_CHARS:
        raise InvalidRequest(f"'text' must have at most {MAX_ERROR_CHARS} characters", param="text")
    return RequestFilter(
        unpriced=_parse_flag(query, "unpriced"),
        shadow=_parse_flag(query, "shadow"),
        account_id=await parse_account(request),
        key_id=parse_number(query, "key"),
        model=query.get("model"),
        route=query.get("route"),
        end_user=query.get("end_user"),
        session=query.get("session"),
        tag=query.get("tag"),
        channel=parse_channel(request),
        served_model=_parse_operator_filter(request, "served_model"),
        status=int(status) if status is not None and status not in _VERDICTS else None,
        verdict=status if status in _VERDICTS else None,
        outcome=cast(Outcome, query["outcome"]) if "outcome" in query else None,
        since_ms=parse_moment(query, "since"),
        until_ms=parse_moment(query, "until", is_end=True),
        text=text,
        error_code="" if query.get("error_code") == NO_CODE else query.get("error_code"),
    )


def _parse_flag(query: Mapping[str, str], name: str) -> bool | None:
    value = query.get(name)
    if value not in {None, "true", "false"}:
        raise InvalidRequest(f"{name!r} must be true or false", param=name)
    return None if value is None else value == "true"


def parse_channel(request: AdminRequest) -> str | None:
    """Return the requested channel, or None. Raises ``Forbidden`` for a member: only administrators see channels."""
    return _parse_operator_filter(request, "channel")


def _parse_operator_filter(request: AdminRequest, name: str) -> str | None:
    if name in request.query and request.actor.scope is not None:
        raise Forbidden(f"Only administrators choose by {name}", param=name, should_retry=False)
    return request.query.get(name)


def build_row(stored_request: StoredRequest, actor: Actor, kind: type[R], **extra_fields: Any) -> R:
    """Return what ``actor`` may see of a request, as the view ``kind``."""
    is_bound = stored_request.row.usage_source == "bound"
    hidden_fields = {} if actor.scope is None else {"channel": None, "tried": "", "served_model": ""}
    capped_fields = {"usage_capped": is_bound, "usage_implausible": is_bound}  # the second is the former name
    return build_view(
        kind, stored_request.row, sequence=stored_request.sequence, **capped_fields, **hidden_fields, **extra_fields
    )


def _list_attempts(row: RequestRecord) -> tuple[FailedAttempt, ...]:
    """Return all attempts of a request. A single attempt is stored in the request's own fields."""
    if row.tried or row.channel is None or not row.attempts:
        return parse_attempts(row.tried)
    code = row.error_code or (SUCCESS_CODE if row.outcome == "completed" else row.outcome)
    status = 0 if code == SUCCESS_CODE else row.status
    return (FailedAttempt(row.channel, code, row.total_ms, status, model=row.served_model or row.model),)


def _build_attempt(attempt: FailedAttempt, actor: Actor) -> AttemptView:
    shows_channels = actor.scope is None
    return AttemptView(
        step=attempt.step or None,
        model=(attempt.model or None) if shows_channels else None,
        channel=attempt.channel if shows_channels and attempt.channel != NO_CHANNEL else None,
        cause=attempt.cause or None,
        error_code=None if attempt.code == SUCCESS_CODE else attempt.code,
        status=attempt.status or None,
        ms=attempt.ms,
    )
