"""The budgets of sessions, and which sessions were ended, in the database."""

from collections.abc import Callable, Collection, Iterable
from typing import Any

import attrs
from sqlalchemy import ColumnElement, Row, Select, Text, cast, delete, exists, func, select, text, update

from gateway.domain.audit_log import AuditRow
from gateway.domain.credit import build_limit_id
from gateway.domain.request_budget import SESSION_BUDGET, SessionState
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.audit_log import add_row
from gateway.storage.database import Database
from gateway.storage.dialect import insert_for
from gateway.storage.limit_counters import LimitCounters
from gateway.storage.schema import IS_NAMED, limit_counters, orphan_charges, requests, session_states

_SESSIONS_PER_STATEMENT = 500
"""Sessions per statement, because databases limit the number of values in one."""
_KEPT_FIELDS = ("subject", "account_id", "limit_nanos", "status", "ended_ms")
_LIST_LEASES = text("SELECT node FROM credit_leases WHERE owner = 2 AND owner_id = :id LIMIT 1")
_COLUMNS = session_states.c
_QUERY: Select[Any] = select(_COLUMNS.subject, _COLUMNS.limit_nanos, _COLUMNS.status, _COLUMNS.ended_ms)


class SessionStateRepository:
    """The ``session_states`` table. A session without a budget has a row only if it was ended."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, subject: str) -> SessionState:
        """Return the state of a session; an empty one if none is stored."""
        rows = await self._database.read_first(_QUERY.where(_COLUMNS.subject == subject))
        return _parse(rows[0]) if rows else SessionState(subject)

    async def look_up(self, subject: str) -> SessionState:
        """Return the state of a session for a request.

        Raises ``StoreUnavailable`` also while a database that has replaced another one may lack the session.
        """
        state = await self.find(subject)
        self._database.check_found(found=state != SessionState(subject))
        return state

    def _keep(self, state: SessionState, now_ms: int) -> None:
        """Keep a changed state for the time after a failover."""
        if self._database.kept is not None:
            row = {name: getattr(state, name) for name in _KEPT_FIELDS}
            self._database.kept.keep("session", state.subject, {"row": {**row, "changed_ms": now_ms}})

    async def list_newest(self, count: int) -> list[SessionState]:
        """Return the ``count`` states that were changed last, the oldest of them first."""
        rows = await self._database.read(_QUERY.order_by(_COLUMNS.changed_ms.desc(), _COLUMNS.subject).limit(count))
        return [_parse(row) for row in reversed(rows)]

    async def list_states(self, subjects: Collection[str]) -> dict[str, SessionState]:
        """Return the stored states of these sessions."""
        names, states = list(subjects), dict[str, SessionState]()
        for first in range(0, len(names), _SESSIONS_PER_STATEMENT):
            statement = _QUERY.where(_COLUMNS.subject.in_(names[first : first + _SESSIONS_PER_STATEMENT]))
            states |= _map_by_subject(map(_parse, await self._database.read(statement)))
        return states

    async def put_budget(
        self, state: SessionState, now_ms: int, may_replace: Callable[[SessionState], bool]
    ) -> SessionState:
        """Store the budget of a session if ``may_replace`` accepts the stored state; return the state after that.

        No other process changes the session meanwhile. Whether the session was ended does not change.
        """
        changes = {"limit_nanos": state.limit_nanos, "status": state.status}

        async def work(connection: AsyncConnection) -> SessionState:
            if may_replace(SessionState(state.subject)):
                statement = _insert(connection, state, {**changes, "changed_ms": now_ms})
                if await connection.scalar(statement.on_conflict_do_nothing().returning(_COLUMNS.subject)) is not None:
                    return state
            former_state = await _lock_state(connection, state.subject)
            if not may_replace(former_state):
                return former_state
            await _put(connection, state, changes, now_ms)
            return attrs.evolve(state, ended_ms=former_state.ended_ms)

        stored_state = await self._database.write_shared(work)
        if stored_state.limit_nanos == state.limit_nanos:
            self._keep(stored_state, now_ms)
        return stored_state

    async def find_spent_nanos(self, subject: str) -> int:
        """Return what a session with a budget has spent in stored requests, in nano-USD."""
        spent = await LimitCounters(self._database).list_spent(SESSION_BUDGET.counter, [subject], 0)
        return sum(spent.get(subject, {}).values())

    async def list_unused(self, before_ms: int) -> list[str]:
        """Return the sessions that were changed before ``before_ms``, have not ended, and have no stored requests.

        The oldest is first. After a full list, more may follow.
        """
        query = select(_COLUMNS.subject).where(*_write_unused(before_ms)).order_by(_COLUMNS.changed_ms)
        return [row.subject for row in await self._database.read_long(query.limit(_SESSIONS_PER_STATEMENT))]

    async def delete_unused(self, subject: str, before_ms: int) -> bool:
        """Delete a session and what it has spent, and return whether that was done.

        The session stays if ``list_unused`` no longer returns it, or if credit of it is set aside. The budget is
        removed first, because other nodes of a cluster are notified of changes and not of deletions.
        """
        is_unused = _COLUMNS.subject == subject, *_write_unused(before_ms)

        async def work(connection: AsyncConnection) -> bool:
            if (credit := self._database.credit) is not None:
                balance_id = build_limit_id(SESSION_BUDGET.counter, subject)
                figures = await credit.find_figures([balance_id], connection)
                leases = (await connection.execute(_LIST_LEASES, {"id": balance_id[1]})).all()
                if leases or figures[balance_id].held_nanos:
                    return False
            await connection.execute(update(session_states).where(*is_unused).values(limit_nanos=None))
            if not (await connection.execute(delete(session_states).where(*is_unused))).rowcount:
                return False
            await connection.execute(_DELETE_SUMS.where(limit_counters.c.subject == subject))
            await connection.execute(_DELETE_ORPHANS.where(orphan_charges.c.subject == subject))
            return True

        return await self._database.write(work)

    async def list_unneeded_sums(self, after: str = "") -> list[str]:
        """Return sessions that have spent something, but have neither a state nor stored requests.

        They are in the order of their subjects, after the subject ``after``. After a full list, more may follow. In a
        cluster, those that a node has credit of are left out.
        """
        sums = limit_counters.c
        query = select(sums.subject).where(
            sums.counter == SESSION_BUDGET.counter, sums.subject > after, *self._write_unneeded()
        )
        query = query.distinct().order_by(sums.subject).limit(_SESSIONS_PER_STATEMENT)
        return [row.subject for row in await self._database.read_long(query)]

    async def delete_unneeded_sums(self, subjects: Collection[str]) -> int:
        """Delete the sums of those ``subjects`` that ``list_unneeded_sums`` still returns; return their number.

        What was charged to them for dead nodes is deleted, too.
        """
        statement = _DELETE_SUMS.where(limit_counters.c.subject.in_(subjects), *self._write_unneeded())

        async def work(connection: AsyncConnection) -> int:
            deleted_sums = (await connection.execute(statement)).rowcount
            await connection.execute(_DELETE_ORPHANS.where(orphan_charges.c.subject.in_(subjects)))
            return deleted_sums

        return await self._database.write(work)

    def _write_unneeded(self) -> tuple[Any, ...]:
        return _UNNEEDED if self._database.credit is None else (*_UNNEEDED, _WITHOUT_CREDIT)

    async def end(self, subject: str, now_ms: int, audit: AuditRow) -> SessionState:
        """Store the end of a session, with the ``audit`` row unless it had ended before. Return its state."""

        async def work(connection: AsyncConnection) -> SessionState:
            state = await _lock_state(connection, subject)
            if state.ended_ms is None:
                await _put(connection, state, {"ended_ms": now_ms}, now_ms)
                await add_row(connection, audit)
            return attrs.evolve(state, ended_ms=state.ended_ms or now_ms)

        state = await self._database.write(work)
        self._keep(state, now_ms)
        return state


def _write_unused(before_ms: int) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions of an unused session. Requests are read through the index of their sessions."""
    return _COLUMNS.ended_ms.is_(None), _COLUMNS.changed_ms < before_ms, ~_write_has_requests(_COLUMNS.subject)


def _write_has_requests(subject: ColumnElement[str]) -> ColumnElement[bool]:
    name = func.substr(func.ltrim(subject, "0123456789"), 2)
    is_of_subject = cast(requests.c.account_id, Text) + ":" + requests.c.session == subject
    return exists().where(IS_NAMED["session"], requests.c.session == name, is_of_subject)


_DELETE_SUMS = delete(limit_counters).where(limit_counters.c.counter == SESSION_BUDGET.counter)
_DELETE_ORPHANS = delete(orphan_charges).where(
    orphan_charges.c.counter == SESSION_BUDGET.counter,
    ~exists().where(
        limit_counters.c.counter == orphan_charges.c.counter, limit_counters.c.subject == orphan_charges.c.subject
    ),
)
_WITHOUT_CREDIT = text(
    "NOT EXISTS (SELECT 1 FROM credit_balances b"
    " WHERE b.owner = 2 AND b.counter = limit_counters.counter AND b.subject = limit_counters.subject)"
)
_UNNEEDED = (
    ~exists().where(_COLUMNS.subject == limit_counters.c.subject),
    ~_write_has_requests(limit_counters.c.subject),
)


async def _lock_state(connection: AsyncConnection, subject: str) -> SessionState:
    """Return the state of a session, and lock its row, if there is one, until the commit."""
    rows = (await connection.execute(_QUERY.where(_COLUMNS.subject == subject).with_for_update())).all()
    return _parse(rows[0]) if rows else SessionState(subject)


async def _put(connection: AsyncConnection, state: SessionState, changes: dict[str, Any], now_ms: int) -> None:
    changes = {**changes, "changed_ms": now_ms}
    statement = _insert(connection, state, changes)
    await connection.execute(statement.on_conflict_do_update(index_elements=["subject"], set_=changes))


def _insert(connection: AsyncConnection, state: SessionState, values: dict[str, Any]) -> Any:
    row = {"subject": state.subject, "account_id": state.account_id, **values}
    return insert_for(connection.dialect.name, session_states).values(row)


def _parse(row: Row[Any]) -> SessionState:
    return SessionState(row.subject, row.limit_nanos, row.status, row.ended_ms)


def _map_by_subject(states: Iterable[SessionState]) -> dict[str, SessionState]:
    return {state.subject: state for state in states}
