"""Admin API: lists of end users and of tags, from the sums of days. A member sees those of its account."""

from collections.abc import Sequence

from gateway.answer_fields import Count
from gateway.domain.attribution import find_tag_problem
from gateway.domain.price import NANOS_PER_USD
from gateway.domain.subject_usage import SubjectFilter, SubjectKind
from gateway.domain.traffic import DAY_HOURS
from gateway.errors import InvalidRequest
from gateway.frozen import frozen
from gateway.server.admin.handler import AdminRequest, ListPage, Query, admin_operation
from gateway.server.admin.io import ACCOUNT_QUERY, LIMIT_QUERY, parse_account, parse_limit, parse_search
from gateway.server.admin.usage import parse_hours
from gateway.server.openapi import schema as s
from gateway.server.query import day_of_number, parse_number
from gateway.storage.subject_list import (
    SORT_KEYS,
    SubjectPage,
    find_first_day,
    list_subjects,
    list_tag_names,
    split_words,
)

MAX_DAYS = 92
"""The most days of one list. A day has the sums of at most ``attribution.max_values`` end users or values of a tag."""
_DEFAULT_SORT = "-cost_usd"
MAX_RANKED = 70_000
"""Maximum number of end users, or values of a tag, on all days of a console page together: a week of full days."""


@frozen(kw_only=True)
class SubjectView:
    """The requests of an end user, or with one value of a tag. ``last_used_on`` is the last day (UTC) with one."""

    name: str
    requests: Count
    failed: Count
    prompt_tokens: Count
    completion_tokens: Count
    cached_tokens: Count
    cost_usd: float
    saved_usd: float
    last_used_on: str


@frozen(kw_only=True)
class TagName:
    """A tag that requests have."""

    name: str


@frozen
class ListedDays:
    """The days of a page's list, both inclusive. ``is_cut``: the page's period begins earlier."""

    since: str
    until: str
    is_cut: bool


_PERIOD_QUERIES = (
    Query("since", "Only requests settled on that day (UTC) or later; without it, those of the last 30 days."),
    Query("until", "Only requests settled on that day or before."),
    ACCOUNT_QUERY,
)
_LIST_QUERIES = (
    Query("search", "Only those with each of these words in the name, in any case."),
    Query(
        "sort",
        f"The field to sort by; with `-` before it, in descending order. The default is {_DEFAULT_SORT}.",
        s.one_of(*(name for field in SORT_KEYS for name in (field, f"-{field}"))),
    ),
    *_PERIOD_QUERIES,
    Query("key", "Only this API key (an id).", s.COUNT),
    LIMIT_QUERY,
    Query("after", "`next` of one page leads to the next page."),
)


@admin_operation(query=_LIST_QUERIES)
async def list_end_users(request: AdminRequest) -> ListPage[SubjectView]:
    """List the end users of requests, with the sums of a period of at most 92 whole days (UTC).

    On a day with very many end users some are only counted together (`other` in `GET /usage?by=user`): requests of
    such days are missing here.
    """
    return await _list_page(request, await _parse_filter(request, "user", ""))


@admin_operation(query=(Query("tag", "The name of the tag. Without it the list is empty."), *_LIST_QUERIES))
async def list_tag_values(request: AdminRequest) -> ListPage[SubjectView]:
    """List the values of a tag, with the sums of a period of at most 92 whole days (UTC).

    On a day with very many values some are only counted together (`other` in `GET /usage?by=tag:NAME`): requests of
    such days are missing here.
    """
    tag = request.query.get("tag", "")
    subject_filter = await _parse_filter(request, "tag", tag)
    problem = find_tag_problem(tag, "value") if tag else None
    if problem is not None:
        raise InvalidRequest(f"'tag' {problem}", param="tag")
    return await _list_page(request, subject_filter)


@admin_operation(query=_PERIOD_QUERIES)
async def list_tags(request: AdminRequest) -> list[TagName]:
    """List the names of the tags that requests of a period of at most 92 days have, in alphabetical order."""
    await request.services.billing.flusher.store_waiting()
    names = await list_tag_names(request.services.storage.database, await _parse_filter(request, "tag", ""))
    return [TagName(name=name) for name in names]


async def find_listed_days(
    request: AdminRequest, kind: SubjectKind, tag: str = "", *, max_ranked: int = MAX_RANKED
) -> ListedDays:
    """Return the newest days of the period in the query that have at most ``max_ranked`` end users or values together.

    There are at most ``MAX_DAYS`` of them. A user or value counts once for each day with its requests, because the
    database reads a sum for each: 900,000 sums take a second. Raises ``InvalidRequest``.
    """
    since_hour, until_hour = parse_hours(request)
    since, until = since_hour // DAY_HOURS, -(-until_hour // DAY_HOURS) - 1
    newest = SubjectFilter(kind, tag, max(since, until - MAX_DAYS + 1), until)
    first = await find_first_day(request.services.storage.database, newest, max_ranked)
    return ListedDays(day_of_number(first).isoformat(), day_of_number(until).isoformat(), is_cut=first > since)


async def _list_page(request: AdminRequest, subject_filter: SubjectFilter) -> ListPage[SubjectView]:
    sort, limit, start = request.query.get("sort", _DEFAULT_SORT), parse_limit(request), _parse_start(request)
    if sort.removeprefix("-") not in SORT_KEYS:
        raise InvalidRequest(f"'sort' must be one of {', '.join(SORT_KEYS)}, or one of these after '-'", param="sort")
    words = split_words(parse_search(request))
    await request.services.billing.flusher.store_waiting()
    page = await list_subjects(request.services.storage.database, subject_filter, words, sort, start=start, limit=limit)
    if start and not page.rows:
        raise InvalidRequest("'after' is not in this list, or no longer: begin with the first page", param="after")
    return _build_page(page, start, limit)


def _build_page(page: SubjectPage, start: int, limit: int) -> ListPage[SubjectView]:
    end, before = start + len(page.rows), max(start - limit, 0)
    return ListPage(
        _build_views(page),
        total=page.total,
        start=start,
        next_after=str(end) if end < page.total else None,
        previous_after=None if not start else str(before) if before else "",
    )


def _build_views(page: SubjectPage) -> Sequence[SubjectView]:
    return [
        SubjectView(
            name=row.sums.label,
            requests=row.sums.requests,
            failed=row.sums.failed,
            prompt_tokens=row.sums.prompt_tokens,
            completion_tokens=row.sums.completion_tokens,
            cached_tokens=row.sums.cached_tokens,
            cost_usd=row.sums.cost_nanos / NANOS_PER_USD,
            saved_usd=row.sums.saved_nanos / NANOS_PER_USD,
            last_used_on=day_of_number(row.last_day).isoformat(),
        )
        for row in page.rows
    ]


async def _parse_filter(request: AdminRequest, kind: SubjectKind, tag: str) -> SubjectFilter:
    """Return the days, account and key that the query asks for. Raises ``InvalidRequest`` and ``NotFound``."""
    since_hour, until_hour = parse_hours(request)
    since, until = since_hour // DAY_HOURS, -(-until_hour // DAY_HOURS)
    if until - since > MAX_DAYS:
        raise InvalidRequest(f"No more than {MAX_DAYS} days can be listed", param="since")
    return SubjectFilter(kind, tag, since, until - 1, await parse_account(request), parse_number(request.query, "key"))


def _parse_start(request: AdminRequest) -> int:
    """Return the number of rows before the page. Raises ``InvalidRequest``."""
    return parse_number(request.query, "after") or 0
