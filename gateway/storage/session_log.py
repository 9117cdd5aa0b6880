"""Lists sessions, and sums up their requests.

One list reads a bounded number of rows, like a list of requests: in the order of their sequences, or those of one key,
end user or account through its index. The sums of its sessions are read through the index of sessions and accounts.
Some clients send the same name with every request: of each session, only the latest ``SUMMED_ROWS`` rows are read. A
session is that of one account: another account may use the same name.
"""

from collections.abc import Collection, Sequence
from typing import Any

import attrs
from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    FromClause,
    Row,
    ScalarSelect,
    Select,
    Subquery,
    Text,
    and_,
    case,
    cast,
    func,
    literal,
    null,
    or_,
    select,
    text,
    union_all,
)

from gateway.domain.session_usage import SessionCursor, SessionFilter, SessionKey, SessionPage, SessionUsage
from gateway.storage.database import Database
from gateway.storage.dialect import EqualInOrder
from gateway.storage.request_log import INDEXED_ROWS, SLACK_MS
from gateway.storage.schema import IS_NAMED, requests

LISTED_ROWS = 50_000
"""The maximum of rows in sequence that one list reads."""
SUMMED_ROWS = 10_000
"""The maximum of rows of one session that are summed."""
SEARCH_STEPS = 20_000
"""The maximum of steps of one list's search for sessions on earlier pages, after ``_FIRST_STEPS`` for each session."""
_FIRST_STEPS = 20
"""The maximum of steps of the search for one session together with all others."""
_MAX_SUMMED_ROWS = 500_000
"""Rows that one call sums at most: of more than 50 sessions, fewer rows each."""
_SESSIONS_PER_STATEMENT = 200
"""Sessions, and rows, per statement."""
_PARTS = (100, 10, 1)
"""Divisors of the permitted rows: one list reads a hundredth of them, then a tenth, until it has enough sessions."""
_INDEXES = ("key_id", "end_user", "account_id")
"""Fields of a filter whose columns have an index, the most selective first."""
_AFTER_ALL = 2**63 - 1
"""A sequence after all rows. Where a row was compared with null, SQLite would read all of the session."""
_COLUMNS = requests.c
_sequence = _COLUMNS.sequence
# Made once: each alias makes a copy of every column, which took ten times as long as the queries of a page.
_OWN, _SOUGHT = (requests.alias(name).c for name in ("own", "sought"))
_SUMS = ("prompt_tokens", "completion_tokens", "cached_tokens", "cost_nanos")


class SessionLogRepository:
    """The sessions in the ``requests`` table.

    One list reads at most ``max_rows`` rows in sequence, or ``by_index`` rows of one key, end user or account. It
    searches earlier pages for its sessions in at most ``search_steps`` steps. Of each session, at most the latest
    ``summed_rows`` rows are summed.
    """

    def __init__(
        self,
        database: Database,
        max_rows: int = LISTED_ROWS,
        *,
        by_index: int = INDEXED_ROWS,
        search_steps: int = SEARCH_STEPS,
        summed_rows: int = SUMMED_ROWS,
    ) -> None:
        self._database = database
        self._max_rows = max_rows
        self._index_rows = by_index
        self._search_steps = search_steps
        self._summed_rows = summed_rows

    async def list_sessions(self, session_filter: SessionFilter, limit: int) -> SessionPage:
        """Return the ``limit`` sessions that match and were used last.

        A page may have fewer although more follow: only one without ``next`` is the last.
        """
        ends = [await self._database.read(select(end(_sequence))) for end in (func.min, func.max)]
        lowest, highest = (rows[0][0] for rows in ends)
        if highest is None:
            return SessionPage(())
        high = min(highest + 1, session_filter.before.sequence if session_filter.before else highest + 1)
        index = next((name for name in _INDEXES if getattr(session_filter, name)), None)
        max_rows = self._max_rows if index is None else self._index_rows
        page = SessionPage(())
        for part in _PARTS:  # few rows first, because these nearly always have sessions enough
            low = await self._find_low(session_filter, index, range(lowest, high), max(max_rows // part, 1))
            query = _select_sessions(session_filter, index, range(low, high), min(_FIRST_STEPS, self._search_steps))
            rows = await self._database.read_long(query.limit(limit + 1))
            next_before = rows[limit - 1].latest if len(rows) > limit else low
            is_last = len(rows) <= limit and (low == lowest or await self._is_old(low, session_filter))
            sessions, unsearched = await self._leave_out_listed(rows[:limit], session_filter)
            page = SessionPage(sessions, unsearched or (None if is_last else SessionCursor(next_before)))
            if is_last or unsearched or len(rows) >= limit:
                break
        return page

    async def _leave_out_listed(
        self, rows: Sequence[Row[Any]], session_filter: SessionFilter
    ) -> tuple[tuple[SessionKey, ...], SessionCursor | None]:
        """Return the sessions that no earlier page has, in order, as far as the search got with its steps.

        The second value is the cursor of the next page if the search was cut off, else None.
        """
        sessions, steps_left = list[SessionKey](), self._search_steps
        for row in rows:
            next_row, steps = row.next_row, 0
            if next_row is not None and steps_left > 0:
                query = _select_last_step(row, session_filter, steps_left)
                last = (await self._database.read_long(query))[0]
                next_row, steps = last.next_row, last.step
            if next_row is None:
                sessions.append((row.account_id, row.session))
            elif steps >= steps_left:
                return tuple(sessions), SessionCursor(row.latest + 1, next_row)
            steps_left -= steps
        return tuple(sessions), None

    async def _find_low(self, session_filter: SessionFilter, index: str | None, sequences: range, max_rows: int) -> int:
        """Return where the last ``max_rows`` rows of ``sequences`` begin, of those that the index finds.

        Returns the start of ``sequences`` if there are fewer. Without an index, every sequence counts as a row.
        """
        if index is None:
            return max(sequences.start, sequences.stop - max_rows)
        is_before = _build_index_condition(session_filter, index), _sequence < sequences.stop
        order = _COLUMNS[index].desc(), _sequence.desc()
        query = select(_sequence).where(*is_before).order_by(*order).limit(1).offset(max_rows - 1)
        return next((row.sequence for row in await self._database.read_long(query)), sequences.start)

    async def find_accounts(self, session: str, account_id: int | None) -> list[int]:
        """Return the ids of the accounts with requests of this session; only ``account_id`` unless that is None."""
        if account_id is None:
            statement = _select_accounts(session)
        else:
            statement = _select_rows(account_id, session, ["account_id"]).limit(1)
        return sorted([row.account_id for row in await self._database.read_long(statement)])

    async def sum_up(self, sessions: Collection[SessionKey]) -> dict[SessionKey, SessionUsage]:
        """Return the usage of these sessions; those without requests are left out."""
        keys, sums = sorted(sessions), list[Row[Any]]()
        max_rows = min(self._summed_rows, _MAX_SUMMED_ROWS // max(1, len(keys)))
        for first in range(0, len(keys), _SESSIONS_PER_STATEMENT):
            part = [_sum_session(key, max_rows) for key in keys[first : first + _SESSIONS_PER_STATEMENT]]
            sums += [row for row in await self._database.read_long(union_all(*part)) if row.requests]
        rows = await self._find_rows({number for row in sums for number in row[-3:] if number is not None})
        return {(row.account_id, row.session): _build_usage(row, rows) for row in sums if row.last_row in rows}

    async def _find_rows(self, sequences: Collection[int]) -> dict[int, Row[Any]]:
        numbers, rows = sorted(sequences), dict[int, Row[Any]]()
        query = select(
            _sequence, _COLUMNS.account, _COLUMNS.key_id, _COLUMNS.key_name, _COLUMNS.end_user, _COLUMNS.prompt_tokens
        )
        for first in range(0, len(numbers), _SESSIONS_PER_STATEMENT):
            statement = query.where(_sequence.in_(numbers[first : first + _SESSIONS_PER_STATEMENT]))
            rows |= {row.sequence: row for row in await self._database.read(statement)}
        return rows

    async def _is_old(self, sequence: int, session_filter: SessionFilter) -> bool:
        """Return whether the filter's period excludes all rows before ``sequence``."""
        if session_filter.since_ms is None:
            return False
        query = select(_COLUMNS.settled_ms).where(_sequence >= sequence).order_by(_sequence).limit(1)
        return any(row.settled_ms < session_filter.since_ms - SLACK_MS for row in await self._database.read(query))


def _select_sessions(session_filter: SessionFilter, index: str | None, sequences: range, max_steps: int) -> Select[Any]:
    """Select the sessions of the matching rows among ``sequences``, those used last first.

    Sessions that an earlier page has are left out. A session for which ``max_steps`` steps do not decide that has a
    ``next_row``, at which the search continues.
    """
    latest = func.max(_sequence).label("latest")
    statement = (
        select(_COLUMNS.account_id, _COLUMNS.session, latest)
        .where(_sequence >= sequences.start, _sequence < sequences.stop, _COLUMNS.session + "" != "")
        .where(*_write_conditions(_COLUMNS, session_filter, index))
        .group_by(_COLUMNS.account_id, _COLUMNS.session)
    )
    if index is not None:
        statement = statement.where(_build_index_condition(session_filter, index))
    cursor = session_filter.before
    if cursor is None:
        return statement.add_columns(cast(null(), BigInteger).label("next_row")).order_by(latest.desc())
    used = statement.subquery("used")
    high, searched = [literal(max(sequences.stop, number), BigInteger) for number in (0, cursor.searched)]
    start = case((used.c.latest == cursor.sequence - 1, searched), else_=high)
    walk = _search_later(used, start, session_filter, max_steps).c
    found = select(walk.account_id, walk.session, walk.latest, walk.next_row)
    return found.where(or_(walk.next_row.is_(None), walk.step == max_steps)).order_by(walk.latest.desc())


def _build_index_condition(session_filter: SessionFilter, index: str) -> ColumnElement[bool]:
    condition = EqualInOrder(_COLUMNS[index], literal(getattr(session_filter, index), _COLUMNS[index].type))
    return and_(IS_NAMED[index], condition) if index in IS_NAMED else condition


def _write_conditions(columns: Any, session_filter: SessionFilter, index: str | None) -> Sequence[ColumnElement[bool]]:
    """Return the conditions that ``index`` does not cover, written so that SQLite uses no other index."""
    conditions: list[ColumnElement[bool]] = []
    for name, neutral_value in (("account_id", 0), ("key_id", 0), ("end_user", "")):
        value = getattr(session_filter, name)
        if value is not None and name != index:
            conditions.append(columns[name] + neutral_value == value)
    if session_filter.since_ms is not None:
        conditions.append(columns.settled_ms >= session_filter.since_ms)
    return conditions


def _select_last_step(row: Row[Any], session_filter: SessionFilter, max_steps: int) -> Select[Any]:
    """Select the last step of the search for one session, which continues at the ``next_row`` of ``row``."""
    names = ("account_id", "session")
    used = select(
        *(literal(getattr(row, name), _COLUMNS[name].type).label(name) for name in names),
        literal(row.latest, BigInteger).label("latest"),
    ).subquery("used")
    walk = _search_later(used, literal(row.next_row, BigInteger), session_filter, max_steps).c
    return select(walk.next_row, walk.step).order_by(walk.step.desc()).limit(1)


def _search_later(used: Subquery, start: ColumnElement[int], session_filter: SessionFilter, max_steps: int) -> CTE:
    """Search for a matching row of each session from ``start`` on: an earlier page has the session if there is one.

    A step goes to the next row of the session that may match, which cannot be before the next row of the filter's key
    and end user. The last step has no ``next_row`` if there is none that matches.
    """
    columns = ("account_id", "session", "latest")
    first = _find_next_row(used, start, session_filter).label("next_row")
    walk = select(*(used.c[name] for name in columns), first, literal(0).label("step")).cte("walk", recursive=True)
    row = requests.alias("met").c
    of_account = attrs.evolve(session_filter, account_id=None)  # the rows of ``walk`` are of that account already
    match = select(row.sequence).where(row.sequence == walk.c.next_row, *_write_conditions(row, of_account, None))
    following = _find_next_row(walk, walk.c.next_row + 1, session_filter)
    is_open = walk.c.next_row.is_not(None), walk.c.step < max_steps, match.correlate(walk).scalar_subquery().is_(None)
    return walk.union_all(select(*(walk.c[name] for name in columns), following, walk.c.step + 1).where(*is_open))


def _find_next_row(session: FromClause, start: ColumnElement[int], session_filter: SessionFilter) -> ScalarSelect[int]:
    """Select the sequence of a session's first row from ``start`` on that may match.

    Rows before the next row of the filter's key, or of its end user, are skipped. Without a row the result is null.
    """
    for name in ("key_id", "end_user"):
        value = getattr(session_filter, name)
        if value is not None:
            query = _seek(name, literal(value, _COLUMNS[name].type), start)
            start = func.coalesce(query.correlate(session).scalar_subquery(), _AFTER_ALL)
    query = _seek("account_id", session.c.account_id, start, session.c.session)
    return query.correlate(session).scalar_subquery()


def _seek(
    name: str, value: ColumnElement[Any], start: ColumnElement[int], session: ColumnElement[str] | None = None
) -> Select[tuple[int]]:
    """Select the first row from ``start`` on with a value of the column ``name``, and of this session unless None."""
    query = select(_SOUGHT.sequence).where(EqualInOrder(_SOUGHT[name], value), _SOUGHT.sequence >= start)
    if session is not None:
        query = query.where(_SOUGHT.session == session)
    named = name if session is None else "session"
    if named in IS_NAMED:
        query = query.where(text(f"sought.{IS_NAMED[named]}"))
    return query.order_by(_SOUGHT[name], _SOUGHT.sequence).limit(1)


def _select_rows(account_id: int, session: str, names: Sequence[str]) -> Select[Any]:
    """Select columns of the rows of a session, the latest first."""
    is_of_account = EqualInOrder(_OWN.account_id, literal(account_id, BigInteger))
    rows = select(*(_OWN[name] for name in names)).where(text("own.session != ''"), _OWN.session == session)
    return rows.where(is_of_account).order_by(_OWN.account_id.desc(), _OWN.sequence.desc())


def _select_accounts(session: str) -> Select[Any]:
    """Select the accounts with rows of a session. Each is read with one step through the index of sessions."""
    lowest = select(func.min(_COLUMNS.account_id).label("account_id"))
    lowest = lowest.where(IS_NAMED["session"], _COLUMNS.session == session)
    found = lowest.cte("found", recursive=True)
    following = lowest.where(_COLUMNS.account_id > found.c.account_id).correlate(found).scalar_subquery()
    found = found.union_all(select(following).where(found.c.account_id.is_not(None)))
    return select(found.c.account_id).where(found.c.account_id.is_not(None))


def _sum_session(key: SessionKey, max_rows: int) -> Select[Any]:
    """Select the sums of the latest ``max_rows`` rows of a session, and the next older row, null if there is none.

    The last three columns are the last row, the first and the last with a prompt.
    """
    names = (*_SUMS, "started_ms", "settled_ms", "sequence")
    rows = _select_rows(*key, names).limit(max_rows).subquery().c
    older = _select_rows(*key, ["sequence"]).limit(1).offset(max_rows).scalar_subquery()
    has_prompt = case((rows.prompt_tokens > 0, rows.sequence))
    columns: Sequence[ColumnElement[Any]] = (
        literal(key[0], BigInteger).label("account_id"),
        literal(key[1], Text).label("session"),
        func.count().label("requests"),
        *(func.sum(rows[name]).label(name) for name in _SUMS),
        func.min(rows.started_ms).label("started_ms"),
        func.max(rows.settled_ms).label("settled_ms"),
        older.label("older_row"),
        func.max(rows.sequence).label("last_row"),
        func.min(has_prompt).label("first_prompt"),
        func.max(has_prompt).label("last_prompt"),
    )
    return select(*columns)


def _build_usage(sums: Row[Any], rows: dict[int, Row[Any]]) -> SessionUsage:
    last_row = rows[sums.last_row]
    prompts = [rows[number].prompt_tokens if number in rows else 0 for number in (sums.first_prompt, sums.last_prompt)]
    amounts = [int(getattr(sums, name)) for name in ("requests", *_SUMS, "started_ms", "settled_ms")]
    return SessionUsage(
        last_row.account,
        last_row.key_id,
        last_row.key_name,
        last_row.end_user,
        *amounts,
        *prompts,
        is_partial=sums.older_row is not None,
    )
