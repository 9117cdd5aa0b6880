"""Lists requests in the database quickly, even among millions of rows.

Every list reads a bounded number of rows, through the index that gets furthest with that many reads, and the result
says how far it got. SQLite does not know how often a value occurs, so the index is chosen here: a column whose index
must not be used is wrapped in an expression.
"""

from collections.abc import Callable, Sequence
from typing import Any

import attrs
from sqlalchemy import ColumnElement, Select, TextClause, or_, select

from gateway.domain.request_log import NON_FAILURES, RequestFilter, RequestPage, StoredRequest, lower_ascii
from gateway.frozen import frozen
from gateway.storage.database import Database
from gateway.storage.dialect import FoldedText
from gateway.storage.request_cursor import Window, open_window
from gateway.storage.row_mapping import parse_request
from gateway.storage.schema import NOT_SUCCESSFUL, requests

ORDERED_ROWS = 200_000
"""Rows that one list may read sequentially, at about 0.1 us each."""
INDEXED_ROWS = 20_000
"""Rows that one list may read through an index, at about 1.5 us each."""
PROBES = 63
"""Rows that a search for a time reads per step; four steps find a position among 16 million rows."""
SLACK_MS = 10_000
"""Milliseconds by which a row may be stored later than rows that were settled after it."""

_EQUAL = ("status", "channel", "outcome", "unpriced", "route", "shadow")
"""Fields of a filter that are compared with a column of their name, which has no index."""
_C = requests.c
_sequence = _C.sequence


@frozen
class _PageQuery:
    """The range to read: sequences from ``low`` up to ``high``, through ``index`` (None: sequentially)."""

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
        rows = await self._database.read(select(requests).where(_C.id == request_id))
        return parse_request(rows[0]) if rows else None

    async def find_by_prefix(self, prefix: str, account_id: int | None, limit: int) -> list[StoredRequest]:
        """Return at most ``limit`` requests whose id begins with ``prefix``, followed by hexadecimal digits."""
        query = select(requests).where(_C.id >= prefix, _C.id < f"{prefix}g").order_by(_C.id).limit(limit)
        if account_id is not None:
            query = query.where(_C.account_id == account_id)
        return [parse_request(row) for row in await self._database.read(query)]

    async def has_model(self, models: Sequence[str]) -> bool:
        """Return whether any logged request used one of ``models``. The index on ``model`` covers the query."""
        return bool(await self._database.read(select(_sequence).where(_C.model.in_(models)).limit(1)))

    async def list_requests(self, request_filter: RequestFilter, limit: int) -> RequestPage:
        """Return the newest ``limit`` matching rows, oldest first; with the cursor ``after``, the next ones."""
        window = await open_window(self._database, request_filter.after)
        if window is None:
            return RequestPage(next=request_filter.after)
        whole_query = _PageQuery(window.low, window.high)
        if request_filter.before is not None:
            whole_query = attrs.evolve(whole_query, high=min(whole_query.high, request_filter.before))
        if request_filter.request_id is None:
            whole_query = await self._narrow(request_filter, whole_query)
            query = await self._choose(request_filter, whole_query)
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
        self, query: _PageQuery, window: Window, rows: list[StoredRequest], *, is_full: bool, has_more: bool
    ) -> RequestPage:
        last = rows[-1] if is_full and rows else None
        end = query.low if last is None else last.sequence
        searched_ms = await self._find_searched(last, query.low) if has_more else None
        return RequestPage(tuple(reversed(rows)), has_more, str(end) if has_more else None, searched_ms, window.newest)

    async def _write_following_page(
        self, query: _PageQuery, window: Window, rows: list[StoredRequest], *, is_full: bool, has_more: bool
    ) -> RequestPage:
        last = rows[-1] if is_full and rows else None
        cursor = window.build_next_cursor(query.high - 1 if last is None else last.sequence, has_more=has_more)
        has_more = has_more or window.is_cut
        searched_ms = await self._find_searched(last, query.high - 1) if has_more else None
        return RequestPage(tuple(rows), has_more, cursor, searched_ms, window.newest)

    async def _find_searched(self, last: StoredRequest | None, sequence: int) -> int | None:
        """Return the settlement time up to which rows were searched: the last shown row's, or that at ``sequence``."""
        return await self._find_time(sequence) if last is None else last.row.settled_ms

    async def _find_time(self, sequence: int) -> int | None:
        """Return when the row at ``sequence``, or the next one, was settled; None if there is no such row."""
        query = select(_C.settled_ms).where(_sequence >= sequence).order_by(_sequence).limit(1)
        return next((int(row[0]) for row in await self._database.read(query)), None)

    async def _narrow(self, request_filter: RequestFilter, query: _PageQuery) -> _PageQuery:
        """Exclude rows settled too early or too late. Sequences grow with time, except for ``SLACK_MS``."""
        if request_filter.since_ms is not None:
            query = attrs.evolve(
                query, low=(await self._search(query, request_filter.since_ms - SLACK_MS, _find_first)).low
            )
        if request_filter.until_ms is not None:
            query = attrs.evolve(
                query, high=(await self._search(query, request_filter.until_ms + SLACK_MS, _find_last)).high
            )
        return query

    async def _search(self, query: _PageQuery, at_ms: int, find: "_Find") -> _PageQuery:
        while query.high - query.low > PROBES:
            step = (query.high - query.low) / (PROBES + 1)
            sequences = [query.low + int(step * number) for number in range(1, PROBES + 1)]
            times_query = select(_sequence, _C.settled_ms).where(_sequence.in_(sequences)).order_by(_sequence)
            rows = [(row.sequence, row.settled_ms >= at_ms) for row in await self._database.read(times_query)]
            closer = find(query, rows)
            if closer == query:  # retention has deleted these rows
                break
            query = closer
        return query

    async def _choose(self, request_filter: RequestFilter, query: _PageQuery) -> _PageQuery:
        """Return ``query`` narrowed to the longest range that one index can cover."""
        if request_filter.after is None:
            ordered_query = attrs.evolve(query, low=max(query.low, query.high - self._ordered_rows))
        else:
            ordered_query = attrs.evolve(query, high=min(query.high, query.low + self._ordered_rows))
        indexes = _list_indexes(request_filter) if query.high - query.low > self._index_rows else []
        if not indexes:
            return ordered_query
        ends = [
            build_reach_query(request_filter, attrs.evolve(query, index=name), self._index_rows) for name in indexes
        ]
        (reached,) = await self._database.read(select(*(end.scalar_subquery() for end in ends)))
        for name, end in zip(indexes, reached, strict=True):
            if request_filter.after is None:
                reach = _PageQuery(query.low if end is None else end, query.high, name)
            else:
                reach = _PageQuery(query.low, query.high if end is None else end + 1, name)
            gain = (reach.high - reach.low) - (ordered_query.high - ordered_query.low)
            if gain > 0 or (gain == 0 and ordered_query.index is None):
                ordered_query = reach
        return ordered_query


_Find = Callable[[_PageQuery, Sequence[tuple[int, bool]]], _PageQuery]


def _find_first(query: _PageQuery, rows: Sequence[tuple[int, bool]]) -> _PageQuery:
    low = query.low
    for sequence, late in rows:
        if late:
            return _PageQuery(low, sequence)
        low = sequence + 1
    return _PageQuery(low, query.high)


def _find_last(query: _PageQuery, rows: Sequence[tuple[int, bool]]) -> _PageQuery:
    high = query.high
    for sequence, late in reversed(rows):
        if not late:
            return _PageQuery(sequence + 1, high)
        high = sequence
    return _PageQuery(query.low, high)


def _list_indexes(request_filter: RequestFilter) -> list[str]:
    """Return the indexes that may help; among equals the first is used."""
    useful = {
        "key_id": request_filter.key_id is not None,
        "wrong": request_filter.asks_for_failures,
        "model": request_filter.model is not None,
        "account_id": request_filter.account_id is not None,
    }
    return [name for name, applies in useful.items() if applies]


def build_reach_query(request_filter: RequestFilter, query: _PageQuery, max_rows: int) -> Select[tuple[int]]:
    """Select the sequence of the ``max_rows``-th row that an index finds; empty if there are fewer."""
    rows = select(_sequence).where(
        _build_index_condition(request_filter, query.index), _sequence >= query.low, _sequence < query.high
    )
    order = _sequence.desc() if request_filter.after is None else _sequence
    return rows.order_by(order).limit(1).offset(max_rows - 1)


def build_list_query(request_filter: RequestFilter, query: _PageQuery) -> Select[Any]:
    """Select the matching rows within the range."""
    page_query = select(requests).where(_sequence >= query.low, _sequence < query.high)
    page_query = page_query.where(*_write_conditions(request_filter, query.index))
    if query.index is not None:
        page_query = page_query.where(_build_index_condition(request_filter, query.index))
    return page_query.order_by(_sequence.desc() if request_filter.after is None else _sequence)


def _build_index_condition(request_filter: RequestFilter, index: str | None) -> ColumnElement[bool] | TextClause:
    if index == "wrong":
        return NOT_SUCCESSFUL
    return _C[index or ""] == (request_filter.request_id if index == "id" else getattr(request_filter, index or ""))


def _write_conditions(request_filter: RequestFilter, index: str | None) -> list[ColumnElement[bool]]:
    """Return the other conditions, written so that SQLite uses no other index."""
    conditions: list[ColumnElement[bool]] = []
    for name, nothing in (("key_id", 0), ("account_id", 0), ("model", "")):
        value = getattr(request_filter, name)
        if value is not None and name != index:
            conditions.append(_C[name] + nothing == value)
    equal = {name: getattr(request_filter, name) for name in _EQUAL}
    conditions += [_C[name] == value for name, value in equal.items() if value is not None]
    if request_filter.verdict is not None:
        unharmed = _C.outcome.in_(NON_FAILURES)
        conditions.append(unharmed if request_filter.verdict == "ok" else ~unharmed)
    if request_filter.since_ms is not None:
        conditions.append(_C.settled_ms >= request_filter.since_ms)
    if request_filter.until_ms is not None:
        conditions.append(_C.settled_ms < request_filter.until_ms)
    if request_filter.text is not None and request_filter.request_id is None:
        text = lower_ascii(request_filter.text)
        conditions.append(
            or_(*(FoldedText(_C[name]).contains(text, autoescape=True) for name in ("error", "error_code")))
        )
    return conditions
