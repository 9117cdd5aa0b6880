"""Lists requests in the database quickly, even among millions of rows.

Every list reads a bounded number of rows, through the index that gets furthest with that many reads, and the result
says how far it got. SQLite does not know how often a value occurs, so the index is chosen here: a column whose index
must not be used is wrapped in an expression.
"""

from collections.abc import Callable, Sequence
from typing import Any

import attrs
from sqlalchemy import ColumnElement, Select, TextClause, or_, select

from gateway.domain.request_log import UNHARMED, RequestFilter, RequestPage, StoredRequest, lower_ascii
from gateway.frozen import frozen
from gateway.storage.database import Database
from gateway.storage.dialect import Folded
from gateway.storage.request_cursor import Window, open_window
from gateway.storage.row_mapping import parse_request
from gateway.storage.schema import WRONG, requests

IN_ORDER = 200_000
"""Rows that one list may read sequentially, at about 0.1 us each."""
BY_INDEX = 20_000
"""Rows that one list may read through an index, at about 1.5 us each."""
PROBES = 63
"""Rows that a search for a time reads per step; four steps find a position among 16 million rows."""
SLACK_MS = 10_000
"""Milliseconds by which a row may be stored later than rows that were settled after it."""

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

    def __init__(self, database: Database, *, in_order: int = IN_ORDER, by_index: int = BY_INDEX) -> None:
        self._database = database
        self._ordered_rows = in_order
        self._index_rows = by_index

    async def find_request(self, request_id: str) -> StoredRequest | None:
        found = await self._database.read(select(requests).where(_C.id == request_id))
        return parse_request(found[0]) if found else None

    async def find_by_prefix(self, prefix: str, account_id: int | None, limit: int) -> list[StoredRequest]:
        """Return at most ``limit`` requests whose id begins with ``prefix``, followed by hexadecimal digits."""
        found = select(requests).where(_C.id >= prefix, _C.id < f"{prefix}g").order_by(_C.id).limit(limit)
        if account_id is not None:
            found = found.where(_C.account_id == account_id)
        return [parse_request(row) for row in await self._database.read(found)]

    async def has_model(self, models: Sequence[str]) -> bool:
        """Return whether any logged request used one of ``models``. The index on ``model`` covers the query."""
        return bool(await self._database.read(select(_sequence).where(_C.model.in_(models)).limit(1)))

    async def list_requests(self, wanted: RequestFilter, limit: int) -> RequestPage:
        """Return the newest ``limit`` matching rows, oldest first; with the cursor ``after``, the next ones."""
        window = await open_window(self._database, wanted.after)
        if window is None:
            return RequestPage(next=wanted.after)
        whole = _PageQuery(window.low, window.high)
        if wanted.before is not None:
            whole = attrs.evolve(whole, high=min(whole.high, wanted.before))
        if wanted.request_id is None:
            whole = await self._narrow(wanted, whole)
            query = await self._choose(wanted, whole)
        else:
            query = attrs.evolve(whole, index="id")
        statement = build_list_query(wanted, query).where(*window.conditions).limit(limit + 1)
        found = [parse_request(row) for row in await self._database.read(statement)]
        full = len(found) > limit
        more = full or (query.low, query.high) != (whole.low, whole.high)
        if wanted.after is None:
            return await self._write_page(query, window, found[:limit], full=full, more=more)
        return await self._write_following_page(query, window, found[:limit], full=full, more=more)

    async def _write_page(
        self, query: _PageQuery, window: Window, rows: list[StoredRequest], *, full: bool, more: bool
    ) -> RequestPage:
        last = rows[-1] if full and rows else None
        end = query.low if last is None else last.sequence
        searched_ms = await self._find_searched(last, query.low) if more else None
        return RequestPage(tuple(reversed(rows)), more, str(end) if more else None, searched_ms, window.newest)

    async def _write_following_page(
        self, query: _PageQuery, window: Window, rows: list[StoredRequest], *, full: bool, more: bool
    ) -> RequestPage:
        last = rows[-1] if full and rows else None
        cursor = window.build_next_cursor(query.high - 1 if last is None else last.sequence, more=more)
        more = more or window.is_cut
        searched_ms = await self._find_searched(last, query.high - 1) if more else None
        return RequestPage(tuple(rows), more, cursor, searched_ms, window.newest)

    async def _find_searched(self, last: StoredRequest | None, sequence: int) -> int | None:
        """Return the settlement time up to which rows were searched: the last shown row's, or that at ``sequence``."""
        return await self._find_time(sequence) if last is None else last.row.settled_ms

    async def _find_time(self, sequence: int) -> int | None:
        """Return when the row at ``sequence``, or the next one, was settled; None if there is no such row."""
        there = select(_C.settled_ms).where(_sequence >= sequence).order_by(_sequence).limit(1)
        return next((int(row[0]) for row in await self._database.read(there)), None)

    async def _narrow(self, wanted: RequestFilter, query: _PageQuery) -> _PageQuery:
        """Exclude rows settled too early or too late. Sequences grow with time, except for ``SLACK_MS``."""
        if wanted.since_ms is not None:
            query = attrs.evolve(query, low=(await self._search(query, wanted.since_ms - SLACK_MS, _find_first)).low)
        if wanted.until_ms is not None:
            query = attrs.evolve(query, high=(await self._search(query, wanted.until_ms + SLACK_MS, _find_last)).high)
        return query

    async def _search(self, query: _PageQuery, at_ms: int, find: "_Find") -> _PageQuery:
        while query.high - query.low > PROBES:
            step = (query.high - query.low) / (PROBES + 1)
            places = [query.low + int(step * number) for number in range(1, PROBES + 1)]
            there = select(_sequence, _C.settled_ms).where(_sequence.in_(places)).order_by(_sequence)
            rows = [(row.sequence, row.settled_ms >= at_ms) for row in await self._database.read(there)]
            closer = find(query, rows)
            if closer == query:  # retention has deleted these rows
                break
            query = closer
        return query

    async def _choose(self, wanted: RequestFilter, query: _PageQuery) -> _PageQuery:
        """Return the query with the index that gets furthest, and the range that it covers."""
        if wanted.after is None:
            best = attrs.evolve(query, low=max(query.low, query.high - self._ordered_rows))
        else:
            best = attrs.evolve(query, high=min(query.high, query.low + self._ordered_rows))
        indexes = _list_indexes(wanted) if query.high - query.low > self._index_rows else []
        if not indexes:
            return best
        ends = [build_reach_query(wanted, attrs.evolve(query, index=name), self._index_rows) for name in indexes]
        (reached,) = await self._database.read(select(*(end.scalar_subquery() for end in ends)))
        for name, end in zip(indexes, reached, strict=True):
            if wanted.after is None:
                reach = _PageQuery(query.low if end is None else end, query.high, name)
            else:
                reach = _PageQuery(query.low, query.high if end is None else end + 1, name)
            gain = (reach.high - reach.low) - (best.high - best.low)
            if gain > 0 or (gain == 0 and best.index is None):
                best = reach
        return best


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


def _list_indexes(wanted: RequestFilter) -> list[str]:
    """Return the indexes that may help; among equals the first is used."""
    useful = {
        "key_id": wanted.key_id is not None,
        "wrong": wanted.asks_for_failures,
        "model": wanted.model is not None,
        "account_id": wanted.account_id is not None,
    }
    return [name for name, there in useful.items() if there]


def build_reach_query(wanted: RequestFilter, query: _PageQuery, most: int) -> Select[tuple[int]]:
    """Select the sequence of the ``most``-th row that an index finds; empty if there are fewer."""
    found = select(_sequence).where(
        _build_index_condition(wanted, query.index), _sequence >= query.low, _sequence < query.high
    )
    order = _sequence.desc() if wanted.after is None else _sequence
    return found.order_by(order).limit(1).offset(most - 1)


def build_list_query(wanted: RequestFilter, query: _PageQuery) -> Select[Any]:
    """Select the matching rows within the range."""
    found = select(requests).where(_sequence >= query.low, _sequence < query.high)
    found = found.where(*_write_conditions(wanted, query.index))
    if query.index is not None:
        found = found.where(_build_index_condition(wanted, query.index))
    return found.order_by(_sequence.desc() if wanted.after is None else _sequence)


def _build_index_condition(wanted: RequestFilter, index: str | None) -> ColumnElement[bool] | TextClause:
    if index == "wrong":
        return WRONG
    return _C[index or ""] == (wanted.request_id if index == "id" else getattr(wanted, index or ""))


def _write_conditions(wanted: RequestFilter, index: str | None) -> list[ColumnElement[bool]]:
    """Return the other conditions, written so that SQLite uses no other index."""
    conditions: list[ColumnElement[bool]] = []
    for name, nothing in (("key_id", 0), ("account_id", 0), ("model", "")):
        value = getattr(wanted, name)
        if value is not None and name != index:
            conditions.append(_C[name] + nothing == value)
    equal = {name: getattr(wanted, name) for name in ("status", "channel", "outcome", "unpriced", "route")}
    conditions += [_C[name] == value for name, value in equal.items() if value is not None]
    if wanted.verdict is not None:
        unharmed = _C.outcome.in_(UNHARMED)
        conditions.append(unharmed if wanted.verdict == "ok" else ~unharmed)
    if wanted.since_ms is not None:
        conditions.append(_C.settled_ms >= wanted.since_ms)
    if wanted.until_ms is not None:
        conditions.append(_C.settled_ms < wanted.until_ms)
    if wanted.text is not None and wanted.request_id is None:
        part = lower_ascii(wanted.text)
        conditions.append(or_(*(Folded(_C[name]).contains(part, autoescape=True) for name in ("error", "error_code"))))
    return conditions
