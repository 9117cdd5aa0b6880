"""Lists requests in the database quickly, even among millions of rows.

Every list reads a bounded number of rows, through the index that gets furthest with that many reads, and the result
says how far it got. SQLite does not know how often a value occurs, so the index is chosen here: a column whose index
must not be used is wrapped in an expression.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import attrs
from sqlalchemy import ColumnElement, Select, TextClause, and_, case, func, literal, or_, select

from gateway.deferred import defer_function
from gateway.domain.request_log import NON_FAILURES, RequestFilter, RequestPage, StoredRequest, lower_ascii
from gateway.frozen import frozen
from gateway.storage.database import Database
from gateway.storage.dialect import FoldedText
from gateway.storage.row_mapping import parse_request
from gateway.storage.schema import IS_NAMED, NOT_SUCCESSFUL, requests

if TYPE_CHECKING:  # only to list requests
    from gateway.storage.request_cursor import Window

ORDERED_ROWS = 200_000
"""Rows that one list may read sequentially, at about 0.1 us each."""
INDEXED_ROWS = 20_000
"""Rows that one list may read through an index, at about 1.5 us each."""
PROBES = 63
"""Rows that a search for a time reads per step; four steps find a position among 16 million rows."""
SLACK_MS = 10_000
"""Milliseconds by which a row may be stored later than rows that were settled after it."""

_EQUAL_FIELDS = ("status", "channel", "outcome", "unpriced", "route", "shadow")
"""Fields of a filter that are compared with a column of their name, which has no index."""
_open_window = defer_function("storage.request_cursor:open_window")
_COLUMNS = requests.c
_sequence = _COLUMNS.sequence


@frozen
class PageQuery:
    """The range to read: sequences from ``low`` to below ``high``, through ``index``; None: in their order."""

    low: int
    high: int
    index: str | None = None


class RequestLogRepository:
    """The ``requests`` table. One list reads at most ``in_order`` rows in sequence, or ``by_index`` by an index."""

    def __init__(self, database: Database, *, in_order: int = ORDERED_ROWS, by_index: int = INDEXED_ROWS) -> None:
        self._database = database
        self._ordered_rows = in_order
        self._index_rows = by_index

    async def find_request(self, request_id: str) -> StoredRequest | None:
        rows = await self._database.read(select(requests).where(_COLUMNS.id == request_id))
        return parse_request(rows[0]) if rows else None

    async def list_by_ids(self, request_ids: Sequence[str]) -> list[StoredRequest]:
        """Return those of the requests that are stored, oldest row first."""
        query = select(requests).where(_COLUMNS.id.in_(request_ids)).order_by(_sequence)
        return [parse_request(row) for row in await self._database.read(query)]

    async def find_by_prefix(self, prefix: str, account_id: int | None, limit: int) -> list[StoredRequest]:
        """Return at most ``limit`` requests whose id begins with ``prefix``, followed by hexadecimal digits."""
        query = (
            select(requests).where(_COLUMNS.id >= prefix, _COLUMNS.id < f"{prefix}g").order_by(_COLUMNS.id).limit(limit)
        )
        if account_id is not None:
            query = query.where(_COLUMNS.account_id == account_id)
        return [parse_request(row) for row in await self._database.read(query)]

    async def has_model(self, models: Sequence[str]) -> bool:
        """Return whether any logged request used one of ``models``. The index on ``model`` covers the query."""
        return bool(await self._database.read(select(_sequence).where(_COLUMNS.model.in_(models)).limit(1)))

    async def list_requests(self, request_filter: RequestFilter, limit: int) -> RequestPage:
        """Return the newest ``limit`` matching rows, oldest first; with the cursor ``after``, the next ones.

        A page may have fewer rows although more match: it says up to when it was searched.
        Raises ``InvalidRequest`` if ``after`` is not a cursor of this database.
        """
        window: Window | None = await _open_window(self._database, request_filter.after)
        if window is None:
            return RequestPage(next=request_filter.after)
        whole_query = PageQuery(window.low, window.high)
        if request_filter.before is not None:
            whole_query = attrs.evolve(whole_query, high=min(whole_query.high, request_filter.before))
        if request_filter.request_id is None:
            whole_query = await self._narrow_to_times(request_filter, whole_query)
            query = await self._choose_range(request_filter, whole_query)
        else:
            query = attrs.evolve(whole_query, index="id")
        statement = build_list_query(request_filter, query).where(*window.conditions).limit(limit + 1)
        rows = [parse_request(row) for row in await self._database.read(statement)]
        is_full = len(rows) > limit
        has_more = is_full or (query.low, query.high) != (whole_query.low, whole_query.high)
        if request_filter.after is None:
            return await self._write_page(query, window, rows[:limit], is_full=is_full, has_more=has_more)
        return await self._write_following_page(query, window, rows[:limit], is_full=is_full, has_more=has_more)

    async def _write_page(
        self, query: PageQuery, window: "Window", rows: list[StoredRequest], *, is_full: bool, has_more: bool
    ) -> RequestPage:
        last_row = rows[-1] if is_full and rows else None
        end_sequence = query.low if last_row is None else last_row.sequence
        searched_ms = await self._find_searched_ms(last_row, query.low) if has_more else None
        return RequestPage(
            tuple(reversed(rows)), has_more, str(end_sequence) if has_more else None, searched_ms, window.newest
        )

    async def _write_following_page(
        self, query: PageQuery, window: "Window", rows: list[StoredRequest], *, is_full: bool, has_more: bool
    ) -> RequestPage:
        last_row = rows[-1] if is_full and rows else None
        cursor = window.build_next_cursor(query.high - 1 if last_row is None else last_row.sequence, has_more=has_more)
        has_more = has_more or window.is_cut
        searched_ms = await self._find_searched_ms(last_row, query.high - 1) if has_more else None
        return RequestPage(tuple(rows), has_more, cursor, searched_ms, window.newest)

    async def _find_searched_ms(self, last_row: StoredRequest | None, sequence: int) -> int | None:
        """Return up to which settlement time rows were searched, in Unix ms: that of ``last_row``, or at ``sequence``.

        None if there is no row at ``sequence`` or after it.
        """
        return await self._find_time(sequence) if last_row is None else last_row.row.settled_ms

    async def _find_time(self, sequence: int) -> int | None:
        """Return when the row at ``sequence``, or the next one, was settled; None if there is no such row."""
        query = select(_COLUMNS.settled_ms).where(_sequence >= sequence).order_by(_sequence).limit(1)
        return next((int(row[0]) for row in await self._database.read(query)), None)

    async def _narrow_to_times(self, request_filter: RequestFilter, query: PageQuery) -> PageQuery:
        """Return ``query`` narrowed to the rows that may have been settled in the filter's period.

        A row may be stored up to ``SLACK_MS`` out of the order of settlement, so some rows outside the period remain.
        """
        if request_filter.since_ms is not None:
            query = attrs.evolve(
                query, low=(await self._search_time(query, request_filter.since_ms - SLACK_MS, _find_first_after)).low
            )
        if request_filter.until_ms is not None:
            query = attrs.evolve(
                query, high=(await self._search_time(query, request_filter.until_ms + SLACK_MS, _find_last_before)).high
            )
        return query

    async def _search_time(self, query: PageQuery, at_ms: int, narrow_range: "_NarrowRange") -> PageQuery:
        while query.high - query.low > PROBES:
            step = (query.high - query.low) / (PROBES + 1)
            sequences = [query.low + int(step * number) for number in range(1, PROBES + 1)]
            times_query = select(_sequence, _COLUMNS.settled_ms).where(_sequence.in_(sequences)).order_by(_sequence)
            rows = [(row.sequence, row.settled_ms >= at_ms) for row in await self._database.read(times_query)]
            narrower_query = narrow_range(query, rows)
            if narrower_query == query:  # retention has deleted these rows
                break
            query = narrower_query
        return query

    async def _choose_range(self, request_filter: RequestFilter, query: PageQuery) -> PageQuery:
        """Return ``query`` narrowed to the longest range that may be read at once, by an index or in order."""
        ordered_rows = self._ordered_rows // 2 if _compares_slowly(request_filter) else self._ordered_rows
        if request_filter.after is None:
            longest_query = attrs.evolve(query, low=max(query.low, query.high - ordered_rows))
        else:
            longest_query = attrs.evolve(query, high=min(query.high, query.low + ordered_rows))
        indexes = _list_indexes(request_filter) if query.high - query.low > self._index_rows else []
        if not indexes:
            return longest_query
        ends = [
            build_reach_query(request_filter, attrs.evolve(query, index=name), self._index_rows) for name in indexes
        ]
        (end_sequences,) = await self._database.read(select(*(end_query.scalar_subquery() for end_query in ends)))
        for name, end_query in zip(indexes, end_sequences, strict=True):
            if request_filter.after is None:
                index_query = PageQuery(query.low if end_query is None else end_query, query.high, name)
            else:
                index_query = PageQuery(query.low, query.high if end_query is None else end_query + 1, name)
            gained_rows = (index_query.high - index_query.low) - (longest_query.high - longest_query.low)
            if gained_rows > 0 or (gained_rows == 0 and longest_query.index is None):
                longest_query = index_query
        return longest_query


_NarrowRange = Callable[[PageQuery, Sequence[tuple[int, bool]]], PageQuery]


def _find_first_after(query: PageQuery, rows: Sequence[tuple[int, bool]]) -> PageQuery:
    low = query.low
    for sequence, is_late in rows:
        if is_late:
            return PageQuery(low, sequence)
        low = sequence + 1
    return PageQuery(low, query.high)


def _find_last_before(query: PageQuery, rows: Sequence[tuple[int, bool]]) -> PageQuery:
    high = query.high
    for sequence, is_late in reversed(rows):
        if not is_late:
            return PageQuery(sequence + 1, high)
        high = sequence
    return PageQuery(query.low, high)


def _compares_slowly(request_filter: RequestFilter) -> bool:
    """Return whether a row costs twice as much to compare as with other filters."""
    return request_filter.tag is not None or request_filter.served_model is not None


def _list_indexes(request_filter: RequestFilter) -> list[str]:
    """Return the indexes that may help; among equals the first is used."""
    is_useful_by_index = {
        "session": request_filter.session is not None,
        "end_user": request_filter.end_user is not None,
        "key_id": request_filter.key_id is not None,
        "wrong": request_filter.asks_for_failures,
        "model": request_filter.model is not None,
        "account_id": request_filter.account_id is not None,
    }
    return [name for name, is_useful in is_useful_by_index.items() if is_useful]


def build_reach_query(request_filter: RequestFilter, query: PageQuery, max_rows: int) -> Select[tuple[int]]:
    """Select the sequence of the ``max_rows``-th row that an index finds; empty if there are fewer."""
    rows = select(_sequence).where(
        _build_index_condition(request_filter, query.index), _sequence >= query.low, _sequence < query.high
    )
    order = _sequence.desc() if request_filter.after is None else _sequence
    return rows.order_by(order).limit(1).offset(max_rows - 1)


def build_list_query(request_filter: RequestFilter, query: PageQuery) -> Select[Any]:
    """Select the matching rows within the range."""
    page_query = select(requests).where(_sequence >= query.low, _sequence < query.high)
    page_query = page_query.where(*write_conditions(request_filter, query.index))
    if query.index is not None:
        page_query = page_query.where(_build_index_condition(request_filter, query.index))
    return page_query.order_by(_sequence.desc() if request_filter.after is None else _sequence)


def _build_index_condition(request_filter: RequestFilter, index: str | None) -> ColumnElement[bool] | TextClause:
    if index == "wrong":
        return NOT_SUCCESSFUL
    if index is not None and index in IS_NAMED:  # a partial index, used only if its own condition is there
        return and_(IS_NAMED[index], _COLUMNS[index] == getattr(request_filter, index))
    return _COLUMNS[index or ""] == (
        request_filter.request_id if index == "id" else getattr(request_filter, index or "")
    )


def write_conditions(request_filter: RequestFilter, index: str | None) -> list[ColumnElement[bool]]:
    """Return the conditions that ``index`` does not cover, written so that SQLite uses no other index."""
    conditions: list[ColumnElement[bool]] = []
    neutral_values = {"key_id": 0, "account_id": 0, "model": "", "end_user": "", "session": ""}
    for name, neutral_value in neutral_values.items():
        value = getattr(request_filter, name)
        if value is not None and name != index:
            conditions.append(_COLUMNS[name] + neutral_value == value)
    equal_values = {name: getattr(request_filter, name) for name in _EQUAL_FIELDS}
    conditions += [_COLUMNS[name] == value for name, value in equal_values.items() if value is not None]
    if request_filter.tag is not None:
        conditions.append((literal(",") + _COLUMNS.tags + ",").contains(f",{request_filter.tag},", autoescape=True))
    if request_filter.served_model is not None:
        served_model = case((_COLUMNS.served_model == "", _COLUMNS.model), else_=_COLUMNS.served_model)
        conditions.append(served_model == request_filter.served_model)
    if request_filter.error_code is not None:
        conditions.append(func.coalesce(_COLUMNS.error_code, "") == request_filter.error_code)
    if request_filter.verdict is not None:
        has_not_failed = _COLUMNS.outcome.in_(NON_FAILURES)
        conditions.append(has_not_failed if request_filter.verdict == "ok" else ~has_not_failed)
    if request_filter.since_ms is not None:
        conditions.append(_COLUMNS.settled_ms >= request_filter.since_ms)
    if request_filter.until_ms is not None:
        conditions.append(_COLUMNS.settled_ms < request_filter.until_ms)
    if request_filter.text is not None and request_filter.request_id is None:
        text = lower_ascii(request_filter.text)
        conditions.append(~_COLUMNS.outcome.in_(NON_FAILURES))
        conditions.append(
            or_(*(FoldedText(_COLUMNS[name]).contains(text, autoescape=True) for name in ("error", "error_code")))
        )
    return conditions
