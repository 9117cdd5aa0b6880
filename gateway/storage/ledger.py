"""The ledger in the database: requests, entries and the sums of each day and hour, written in one commit."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import structlog
from sqlalchemy import ColumnElement, Executable, Row, Select, and_, case, func, insert, select, union_all
from sqlalchemy.exc import IntegrityError

from gateway.domain.audit_log import AuditRow
from gateway.domain.balance import DAY_S, UtcDay
from gateway.domain.ledger import (
    ClusterAudit,
    KeyTotals,
    LedgerEntry,
    Spending,
    SubjectTotals,
    UsageAxis,
    UsageFilter,
    UsageLine,
    check_same_credit,
    is_retired,
)
from gateway.domain.request_log import RequestRecord
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.audit_log import add_row
from gateway.storage.database import Database, RowRefused
from gateway.storage.dialect import describe_violation
from gateway.storage.ledger_rows import (
    IDS_PER_STATEMENT,
    find_contradicted_rows,
    find_stored_ids,
    list_inserts,
    post_charge,
    post_rows,
    reverse_rows,
    select_charged,
)
from gateway.storage.row_mapping import build_entry_row, parse_entry
from gateway.storage.schema import entries, requests, retired, usage_days, videos
from gateway.storage.unstorable import UnstorableFile, post_separately

if TYPE_CHECKING:  # of a node of a cluster, or of accounts with a time zone
    from gateway.domain.account_zone import AccountZone
    from gateway.domain.credit import BalanceId, CreditFigures
    from gateway.storage.stored_credit import StoredCredit
    from gateway.storage.stored_notes import StoredNotes

_DAY_MS = DAY_S * 1000
_SUMS = ("requests", "prompt_tokens", "completion_tokens", "cached_tokens", "cost_nanos")
T = TypeVar("T")
_InsertAgain = Callable[[AsyncConnection], Awaitable[Sequence[str]]]
DecideCredit = Callable[["CreditFigures"], tuple[LedgerEntry, AuditRow | None]]

log = structlog.stdlib.get_logger(__name__)


def _sum_totals() -> Select[Any]:
    selects = [
        select(table.c.account_id, table.c.key_id, *(
            (func.sum(amount) if position == min(index, 2) else func.sum(0)).label(name)
            for position, name in enumerate(("entries", "usage", "requests"))
        )).where(condition).group_by(table.c.account_id, table.c.key_id)
        for index, (table, amount, condition) in enumerate((
            (entries, entries.c.amount_nanos, entries.c.kind == "charge"),
            (usage_days, usage_days.c.cost_nanos, usage_days.c.cost_nanos > 0),
            (requests, requests.c.cost_nanos, requests.c.cost_nanos > 0),
            (retired, retired.c.cost_nanos, retired.c.cost_nanos > 0),
        ))
    ]  # fmt: skip
    all_amounts = selects[0].union_all(*selects[1:]).subquery()
    return select(
        all_amounts.c.account_id,
        all_amounts.c.key_id,
        *(func.sum(all_amounts.c[name]).label(name) for name in ("entries", "usage", "requests")),
    ).group_by(all_amounts.c.account_id, all_amounts.c.key_id)


_TOTALS = _sum_totals()
_LIST_LAST_DAYS = union_all(
    select(func.max(usage_days.c.day)), select(func.max(entries.c.at_ms) // _DAY_MS).where(entries.c.kind != "charge")
)
_SUM_OPEN_JOBS = select(
    func.count().label("number"), func.coalesce(func.sum(videos.c.held_nanos), 0).label("held")
).where(videos.c.state.not_in(("completed", "failed")))


class _RowsContradicted(Exception):
    """Some rows replace stored ones, whose part of the sums is then subtracted: no other write may run meanwhile."""


class LedgerRepository:
    """The tables of requests, entries and daily sums. A sum is written in the same commit as its rows.

    ``unstorable`` receives the rows that the database refuses; without it, ``post`` raises. ``notes`` are the notes of
    started requests, deleted in the transactions of their rows; None if the database has none of this node.
    """

    def __init__(
        self, database: Database, unstorable: UnstorableFile | None = None, notes: "StoredNotes | None" = None
    ) -> None:
        self._database = database
        self._unstorable = unstorable
        self._notes = notes

    async def post(self, rows: Sequence[RequestRecord]) -> None:
        """Store rows with their charges in one commit. Rows whose ids are stored are left as they are, uncharged.

        In a cluster, a stored "interrupted" row is replaced by one with the real end. A row that the database refuses
        is set aside and charged; the others then take several commits.

        Raises ``StoreUnavailable``: some rows may not be stored. Stored rows will not be stored twice.
        """
        if not rows:
            return
        try:
            await self._post(rows)
        except RowRefused as error:
            await self._post_apart(rows, error, self._post)

    async def post_again(self, rows: Sequence[RequestRecord]) -> None:
        """Store rows like ``post``, even if they may have been stored before and deleted by retention since."""
        try:
            await self._post_again(rows)
        except RowRefused as error:
            await self._post_apart(rows, error, self._post_again)

    async def _post(self, rows: Sequence[RequestRecord]) -> None:
        is_alone = self._notes is None and self._database.credit is None
        subject_inserts = self._database.subjects.list_inserts(rows) if is_alone else None
        if subject_inserts is not None and await self._database.insert(lambda: [*list_inserts(rows), *subject_inserts]):
            return
        try:
            await self._database.write_shared(lambda connection: self._insert(connection, rows))
        except IntegrityError:  # some rows are stored: after a crash, or a commit whose result was lost
            await self._write(lambda connection: self.insert_new(connection, rows))

    async def _post_again(self, rows: Sequence[RequestRecord]) -> None:
        """Store those of ``rows`` that were never stored. Raises ``RowRefused`` if a constraint refuses one.

        Other nodes may write at the same time, unless stored rows are to be replaced or a constraint was violated.
        """
        is_charged: dict[str, bool] = {}
        write: Callable[[_InsertAgain], Awaitable[Sequence[str]]] = self._database.write_shared
        while True:
            try:
                unknown_ids = await write(
                    partial(self._insert_again, rows=rows, is_charged=is_charged, may_reverse=write == self._write)
                )
            except (_RowsContradicted, IntegrityError):  # of the latter, ``_write`` raises ``RowRefused``
                write = self._write
                continue
            if not unknown_ids:
                return
            charged_rows = await self._database.read_long(select_charged(unknown_ids))
            is_charged |= dict.fromkeys(unknown_ids, False) | {row.request_id: True for row in charged_rows}

    async def _insert_again(
        self,
        connection: AsyncConnection,
        rows: Sequence[RequestRecord],
        is_charged: Mapping[str, bool],
        *,
        may_reverse: bool,
    ) -> Sequence[str]:
        """Store those of ``rows`` that were never stored; return an empty sequence.

        A row that retention may have deleted counts as stored. In a cluster, it does not if it has a cost and
        ``is_charged`` says that the ledger has no entry of its charge. If ``is_charged`` lacks such rows, nothing is
        stored, and the first of their ids are returned, to be looked up before the next call.

        Unless ``may_reverse``, raises ``_RowsContradicted`` if stored rows are to be replaced.
        """
        retired_rows = await connection.execute(select(retired.c.account_id, retired.c.key_id, retired.c.until_ms))
        until_ms_by_key = {(account_id, key_id): until_ms for account_id, key_id, until_ms in retired_rows}
        old_rows = [row for row in rows if is_retired(row, until_ms_by_key.get((row.account_id, row.key_id)))]
        if self._database.credit is not None:
            unknown_ids = [row.id for row in old_rows if row.cost_nanos and row.id not in is_charged]
            if unknown_ids:
                return unknown_ids[:IDS_PER_STATEMENT]
        known_ids = {row.id for row in old_rows if is_charged.get(row.id, True)}
        new_rows = await self.insert_new(
            connection, [row for row in rows if row.id not in known_ids], may_reverse=may_reverse
        )
        if self._database.credit is not None:
            await self._database.credit.record_overruns(connection, new_rows)
        await self._delete_notes(connection, rows)
        return ()

    async def _write(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        try:
            return await self._database.write(work)
        except IntegrityError as error:  # a constraint on another column than the id
            raise RowRefused(describe_violation(error)) from error

    async def _post_apart(
        self,
        rows: Sequence[RequestRecord],
        error: RowRefused,
        post: Callable[[Sequence[RequestRecord]], Awaitable[None]],
    ) -> None:
        if self._unstorable is None:
            raise error
        await post_separately(rows, error, post, self._set_aside)

    async def _set_aside(self, row: RequestRecord, reason: str) -> None:
        if self._unstorable is not None:
            self._unstorable.add(row, reason)
        try:
            await self._write(lambda connection: self._charge(connection, row, reason))
        except RowRefused as error:
            log.error("charge_not_stored", request_id=row.id, cost_nanos=row.cost_nanos, error=error.reason)  # noqa: TRY400

    async def _insert(
        self, connection: AsyncConnection, rows: Sequence[RequestRecord], credit: "StoredCredit | None" = None
    ) -> None:
        await post_rows(connection, rows, self._database.subjects)
        await self._delete_notes(connection, rows)
        credit = credit or self._database.credit
        if credit is not None:
            await credit.post(connection, rows)

    async def insert_new(
        self,
        connection: AsyncConnection,
        rows: Sequence[RequestRecord],
        credit: "StoredCredit | None" = None,
        *,
        may_reverse: bool = True,
    ) -> Sequence[RequestRecord]:
        """Store the rows that are not stored yet, as part of the current transaction; return them.

        Of two rows with the same id the first counts. In a cluster, a stored "interrupted" row is replaced by one with
        the real end.

        ``credit``: the leases of the node that served the requests; None if this node did. ``may_reverse``: whether
        the transaction excludes other writes; without it, raises ``_RowsContradicted`` if a row is to be replaced.
        """
        known_ids = await find_stored_ids(connection, [row.id for row in rows])
        if known_ids and self._database.credit is not None:
            contradicted_rows = await find_contradicted_rows(connection, [row for row in rows if row.id in known_ids])
            if contradicted_rows and not may_reverse:
                raise _RowsContradicted
            if contradicted_rows:
                await reverse_rows(connection, contradicted_rows, self._database.subjects)
                await self._database.credit.refund(connection, contradicted_rows)
                known_ids.difference_update(row.id for row in contradicted_rows)
        new_rows: dict[str, RequestRecord] = {}
        for row in rows:
            if row.id not in known_ids:
                new_rows.setdefault(row.id, row)
        if new_rows:
            await self._insert(connection, list(new_rows.values()), credit)
        if known_ids:
            await self._delete_notes(connection, rows)
        return list(new_rows.values())

    async def _delete_notes(self, connection: AsyncConnection, rows: Sequence[RequestRecord]) -> None:
        if self._notes is not None:
            await self._notes.delete(connection, [row.id for row in rows])

    async def _charge(self, connection: AsyncConnection, row: RequestRecord, reason: str) -> None:
        if self._notes is not None:
            await self._notes.store_refused_row(connection, row, reason)
        if await post_charge(connection, row) and self._database.credit is not None:
            await self._database.credit.post(connection, [row])

    async def find_stored_ids(self, ids: Sequence[str]) -> set[str]:
        """Return which of these requests are stored with their end."""
        return await self._database.write(lambda connection: find_stored_ids(connection, ids, ended_only=True))

    async def add_credit(
        self, entry: LedgerEntry, audit: AuditRow | None = None, decide: DecideCredit | None = None
    ) -> tuple[LedgerEntry, bool]:
        """Store a credit and its ``audit`` row in one commit; return the credit and True.

        If the balance has a credit with the same ``reference``, store nothing and return the stored credit and False.

        In a cluster, ``decide`` returns the entry and its audit row from the stored figures of the balance at that
        moment; it may raise. Raises ``Conflict`` if the stored credit has another kind, or for a top-up another amount.
        """

        async def work(connection: AsyncConnection) -> tuple[LedgerEntry, bool]:
            if entry.reference is not None:
                query = select(entries).where(_is_of(entry), entries.c.reference == entry.reference)
                for row in await connection.execute(query):
                    stored_entry = parse_entry(row)
                    check_same_credit(stored_entry, entry)
                    return stored_entry, False
            new_entry, row_of_audit = entry, audit
            if self._database.credit is not None:
                if decide is not None:
                    figures = await self._database.credit.find_figures([_find_balance_id(entry)], connection)
                    new_entry, row_of_audit = decide(figures[_find_balance_id(entry)])
                await self._database.credit.add_credit(connection, new_entry)
            sequence = await connection.scalar(
                insert(entries).values(build_entry_row(new_entry)).returning(entries.c.sequence)
            )
            await add_row(connection, row_of_audit)
            return attrs.evolve(new_entry, sequence=sequence), True

        return await self._database.write(work)

    async def find_figures(self, balances: Sequence["BalanceId"]) -> "Mapping[BalanceId, CreditFigures] | None":
        return None if self._database.credit is None else await self._database.credit.find_figures(balances)

    async def list_credits(self, account_id: int, key_id: int | None, limit: int) -> Sequence[LedgerEntry]:
        is_of_owner = _is_of(LedgerEntry(0, 0, "top_up", account_id, key_id, 0))
        statement = select(entries).where(is_of_owner).order_by(entries.c.sequence.desc()).limit(limit)
        return [parse_entry(row) for row in await self._database.read(statement)]

    async def list_spending(self, day: UtcDay, zones: "Mapping[int, AccountZone] | None" = None) -> Sequence[Spending]:
        """Return what each key was charged, and what each key and account was credited, as of ``day``.

        The same balance may have several items, which add up. ``zones``: the accounts whose days and months are not
        those of UTC.
        """
        charge_query, credit_query = _select_spending(day)
        charges = [
            Spending(row.account_id, row.key_id, int(row.lifetime), int(row.month), int(row.day))
            for row in await self._database.read_long(charge_query)
        ]
        credits_ = [
            Spending(row.account_id, row.key_id, 0, 0, 0, int(row.lifetime), int(row.month), int(row.day))
            for row in await self._database.read_long(credit_query)
        ]
        if not zones:
            return charges + credits_
        from gateway.storage.zone_spending import correct_spending  # noqa: PLC0415 - only with time zones

        return await correct_spending(self._database, day.since_s, zones, charges + credits_)

    async def find_last_day(self) -> int | None:
        """Return the last day with a charge or a credit, as days since 1970; None before the first."""
        days = await self._database.read_long(_LIST_LAST_DAYS)
        return max((int(row[0]) for row in days if row[0] is not None), default=None)

    async def find_latest_s(self, account_ids: Collection[int], since_s: int) -> int | None:
        """Return the second after the last entry of ``account_ids``; None without an entry at or after ``since_s``.

        Both are Unix seconds.
        """
        from gateway.storage.zone_spending import find_latest_s  # noqa: PLC0415 - only with time zones

        return await find_latest_s(self._database, account_ids, since_s)

    async def list_usage(self, axis: UsageAxis, usage_filter: UsageFilter) -> Sequence[UsageLine]:
        """Return usage summed along ``axis``: days in order, other axes by cost, highest first."""
        label = usage_days.c[axis if axis in {"day", "model"} else f"{axis}_id"]
        sums = [func.sum(usage_days.c[name]).label(name) for name in _SUMS]
        statement = select(label.label("label"), *sums).group_by(label)
        statement = statement.where(usage_days.c.day.between(usage_filter.since, usage_filter.until))
        for column, value in (
            (usage_days.c.account_id, usage_filter.account_id),
            (usage_days.c.key_id, usage_filter.key_id),
            (usage_days.c.model, usage_filter.model),
        ):
            if value is not None:
                statement = statement.where(column == value)
        by_cost = (func.sum(usage_days.c.cost_nanos).desc(), func.sum(usage_days.c.requests).desc(), label)
        statement = statement.order_by(label) if axis == "day" else statement.order_by(*by_cost)
        return [
            UsageLine(str(row.label), *(int(getattr(row, name)) for name in _SUMS))
            for row in await self._database.read_long(statement)
        ]

    async def list_totals(self) -> Sequence[KeyTotals]:
        """Return every key's charges according to each table, read in one statement."""
        return [_parse_totals(row) for row in await self._database.read_long(_TOTALS)]

    async def list_subject_totals(self) -> Sequence[SubjectTotals]:
        """Return the charges of each key and day according to each source; empty if no request has a user."""
        from gateway.storage.subject_usage import SUBJECT_TOTALS, parse_totals  # noqa: PLC0415 - only to verify

        return parse_totals(await self._database.read_long(SUBJECT_TOTALS))

    async def audit_cluster(self) -> ClusterAudit | None:
        """Return the errors in the state that nodes share, and the sums to be compared; None for a single gateway.

        All are read in one snapshot.
        """
        if self._database.credit is None:
            return None
        from gateway.storage.limit_counters import WRONG_COUNTERS, parse_wrong_counters  # noqa: PLC0415 - only to verify
        from gateway.storage.subject_usage import SUBJECT_TOTALS, parse_totals  # noqa: PLC0415

        queries: list[Executable] = [_TOTALS, _SUM_OPEN_JOBS, SUBJECT_TOTALS, WRONG_COUNTERS]
        problems, overruns, query_rows = await self._database.credit.list_problems(queries)
        total_rows, (jobs,), subject_rows, counter_rows = query_rows
        totals, subject_totals = [_parse_totals(row) for row in total_rows], parse_totals(subject_rows)
        return ClusterAudit(
            problems,
            overruns,
            totals,
            int(jobs.number),
            int(jobs.held),
            subject_totals,
            parse_wrong_counters(counter_rows),
        )


def _parse_totals(row: Row[Any]) -> KeyTotals:
    return KeyTotals(row.account_id, row.key_id, int(row.entries), int(row.usage), int(row.requests))


@lru_cache(4)
def _select_spending(day: UtcDay) -> tuple[Select[Any], Select[Any]]:
    """Return the statements of charges and of credits by balance; SQLAlchemy takes a millisecond to build them."""
    cost, number = usage_days.c.cost_nanos, usage_days.c.day
    charge_query = select(
        usage_days.c.account_id,
        usage_days.c.key_id,
        func.sum(cost).label("lifetime"),
        _sum_where(number.between(day.month_number, day.next_month_number - 1), cost).label("month"),
        _sum_where(number == day.number, cost).label("day"),
    ).group_by(usage_days.c.account_id, usage_days.c.key_id)
    amount, at_s = entries.c.amount_nanos, entries.c.at_ms / 1000
    credit_query = (
        select(
            entries.c.account_id,
            entries.c.key_id,
            func.sum(amount).label("lifetime"),
            _sum_where(and_(at_s >= day.month_start_s, at_s < day.month_end_s), amount).label("month"),
            _sum_where(and_(at_s >= day.start_s, at_s < day.end_s), amount).label("day"),
        )
        .where(entries.c.kind != "charge")
        .group_by(entries.c.account_id, entries.c.key_id)
    )
    return charge_query, credit_query


def _sum_where(condition: ColumnElement[bool], amount: ColumnElement[Any]) -> ColumnElement[Any]:
    return func.sum(case((condition, amount), else_=0))


def _find_balance_id(entry: LedgerEntry) -> "BalanceId":
    return ("account", entry.account_id) if entry.key_id is None else ("key", entry.key_id)


def _is_of(entry: LedgerEntry) -> ColumnElement[bool]:
    return and_(
        entries.c.kind != "charge",
        entries.c.account_id == entry.account_id,
        entries.c.key_id.is_(None) if entry.key_id is None else entries.c.key_id == entry.key_id,
    )
