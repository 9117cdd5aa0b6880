"""The ledger in the database: rows, entries and the sums of each day and hour, written together.

What is written with every request is given to the driver as it takes it: SQLAlchemy would look at each value of each
row, which costs more than the database does.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

import attrs
from sqlalchemy import ColumnElement, Table, and_, case, func, insert, select, union_all
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.domain.audit_log import AuditRow
from gateway.domain.balance import DAY_S, UtcDay
from gateway.domain.ledger import (
    KeyTotals,
    LedgerEntry,
    Spending,
    UsageAxis,
    UsageFilter,
    UsageLine,
    check_same_credit,
    counts_as_usage,
    day_of,
    is_retired,
)
from gateway.domain.request_log import RequestRecord
from gateway.domain.traffic import SUMS, add_columns, sum_up
from gateway.storage.audit_log import add_row
from gateway.storage.database import Database
from gateway.storage.row_mapping import REQUEST_COLUMNS, build_entry, parse_entry, request_values
from gateway.storage.schema import entries, requests, retired, usage_days, usage_hours

_DAY_MS = DAY_S * 1000

_LOOKED_UP = 500
"""Ids a statement: a database bounds the values that one may have."""
_SUMS = ("requests", "prompt_tokens", "completion_tokens", "cached_tokens", "cost_nanos")
_CHARGE = ("at_ms", "kind", "account_id", "key_id", "amount_nanos", "request_id")
_tokens_of = attrgetter("prompt_tokens", "completion_tokens", "cached_tokens", "cost_nanos")


def write_insert(table: Table, columns: Sequence[str]) -> str:
    """A statement for rows of values of these columns."""
    return f"INSERT INTO {table.name} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"  # noqa: S608 - our own words


def write_addition(table: Table, sums: Sequence[str], **others: str) -> str:
    """The same of every column; where there is a row in its place, the ``sums`` are added to that one's."""
    place = ", ".join(column.name for column in table.primary_key.columns)
    change = {name: f"{name} + excluded.{name}" for name in sums} | others
    changes = ", ".join(f"{name} = {value}" for name, value in change.items())
    return f"{write_insert(table, table.c.keys())} ON CONFLICT ({place}) DO UPDATE SET {changes}"


# Question marks and ON CONFLICT are SQLite's: the PostgreSQL store will bring its own statements here.
_ADD_REQUESTS = write_insert(requests, REQUEST_COLUMNS)
_ADD_CHARGES = write_insert(entries, _CHARGE)
_ADD_TO_DAYS = write_addition(usage_days, _SUMS)
_ADD_TO_HOURS = write_addition(usage_hours, SUMS)


class LedgerRepository:
    """``domain.ledger.Ledger`` over the database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def post(self, rows: Sequence[RequestRecord]) -> None:
        """Store rows with their charges in one commit."""
        if not rows:
            return
        try:
            await self._database.write(lambda connection: post_rows(connection, rows))
        except IntegrityError:  # only after a crash, or a commit whose answer was lost: some of them are there
            await self._database.write(lambda connection: _post_new(connection, rows))

    async def post_again(self, rows: Sequence[RequestRecord]) -> None:
        """Store what an earlier process has left, but for rows that were retired since they were stored."""

        async def work(connection: AsyncConnection) -> None:
            found = await connection.execute(select(retired.c.account_id, retired.c.key_id, retired.c.until_ms))
            until = {(account_id, key_id): until_ms for account_id, key_id, until_ms in found}
            fresh = [row for row in rows if not is_retired(row, until.get((row.account_id, row.key_id)))]
            await _post_new(connection, fresh)

        await self._database.write(work)

    async def add_credit(self, entry: LedgerEntry, audit: AuditRow | None = None) -> tuple[LedgerEntry, bool]:
        """Store a credit, or find the one that its purse has under its reference."""

        async def work(connection: AsyncConnection) -> tuple[LedgerEntry, bool]:
            if entry.reference is not None:
                known = select(entries).where(_is_of(entry), entries.c.reference == entry.reference)
                for row in await connection.execute(known):
                    stored = parse_entry(row)
                    check_same_credit(stored, entry)
                    return stored, False
            sequence = await connection.scalar(
                insert(entries).values(build_entry(entry)).returning(entries.c.sequence),
            )
            await add_row(connection, audit)
            return attrs.evolve(entry, sequence=sequence), True

        return await self._database.write(work)

    async def list_credits(self, account_id: int, key_id: int | None, limit: int) -> Sequence[LedgerEntry]:
        """The newest credits of a purse, the newest first."""
        whose = _is_of(LedgerEntry(0, 0, "top_up", account_id, key_id, 0))
        statement = select(entries).where(whose).order_by(entries.c.sequence.desc()).limit(limit)
        return [parse_entry(row) for row in await self._database.read(statement)]

    async def list_spending(self, day: UtcDay) -> Sequence[Spending]:
        """Every purse with a charge or a credit."""
        cost, number = usage_days.c.cost_nanos, usage_days.c.day
        charged = select(
            usage_days.c.account_id,
            usage_days.c.key_id,
            func.sum(cost).label("lifetime"),
            _sum_where(number.between(day.month_number, day.next_month_number - 1), cost).label("month"),
            _sum_where(number == day.number, cost).label("day"),
        ).group_by(usage_days.c.account_id, usage_days.c.key_id)
        amount, at_s = entries.c.amount_nanos, entries.c.at_ms / 1000
        credited = (
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
        charges = [
            Spending(row.account_id, row.key_id, int(row.lifetime), int(row.month), int(row.day))
            for row in await self._database.read(charged)
        ]
        credits_ = [
            Spending(row.account_id, row.key_id, 0, 0, 0, int(row.lifetime), int(row.month), int(row.day))
            for row in await self._database.read(credited)
        ]
        return charges + credits_

    async def find_last_day(self) -> int | None:
        """The last day with a charge or a credit."""
        credited = select(func.max(entries.c.at_ms) // _DAY_MS).where(entries.c.kind != "charge")
        found = await self._database.read(union_all(select(func.max(usage_days.c.day)), credited))
        return max((int(row[0]) for row in found if row[0] is not None), default=None)

    async def list_usage(self, axis: UsageAxis, wanted: UsageFilter) -> Sequence[UsageLine]:
        """Usage summed along ``axis``."""
        label = usage_days.c[axis if axis in {"day", "model"} else f"{axis}_id"]
        sums = [func.sum(usage_days.c[name]).label(name) for name in _SUMS]
        statement = select(label.label("label"), *sums).group_by(label)
        statement = statement.where(usage_days.c.day.between(wanted.since, wanted.until))
        for column, value in (
            (usage_days.c.account_id, wanted.account_id),
            (usage_days.c.key_id, wanted.key_id),
            (usage_days.c.model, wanted.model),
        ):
            if value is not None:
                statement = statement.where(column == value)
        dearest = (func.sum(usage_days.c.cost_nanos).desc(), func.sum(usage_days.c.requests).desc(), label)
        statement = statement.order_by(label) if axis == "day" else statement.order_by(*dearest)
        return [
            UsageLine(str(row.label), *(int(getattr(row, name)) for name in _SUMS))
            for row in await self._database.read(statement)
        ]

    async def list_totals(self) -> Sequence[KeyTotals]:
        """Every key's charges as each place has them."""
        places = [
            select(table.c.account_id, table.c.key_id, *(
                (func.sum(amount) if position == min(place, 2) else func.sum(0)).label(name)
                for position, name in enumerate(("entries", "usage", "requests"))
            )).where(condition).group_by(table.c.account_id, table.c.key_id)
            for place, (table, amount, condition) in enumerate((
                (entries, entries.c.amount_nanos, entries.c.kind == "charge"),
                (usage_days, usage_days.c.cost_nanos, usage_days.c.cost_nanos > 0),
                (requests, requests.c.cost_nanos, requests.c.cost_nanos > 0),
                (retired, retired.c.cost_nanos, retired.c.cost_nanos > 0),
            ))
        ]  # fmt: skip
        merged = places[0].union_all(*places[1:]).subquery()
        statement = select(
            merged.c.account_id,
            merged.c.key_id,
            *(func.sum(merged.c[name]).label(name) for name in ("entries", "usage", "requests")),
        ).group_by(merged.c.account_id, merged.c.key_id)
        return [
            KeyTotals(row.account_id, row.key_id, int(row.entries), int(row.usage), int(row.requests))
            for row in await self._database.read(statement)
        ]


async def post_rows(connection: AsyncConnection, rows: Sequence[RequestRecord]) -> None:
    """Store rows with their charges, as a part of whatever else is committed with them.

    Raises SQLAlchemy's ``IntegrityError`` where one of them is there already.
    """
    await connection.exec_driver_sql(_ADD_REQUESTS, list(map(request_values, rows)))
    charges = [
        (row.settled_ms, "charge", row.account_id, row.key_id, row.cost_nanos, row.id) for row in rows if row.cost_nanos
    ]
    if charges:
        await connection.exec_driver_sql(_ADD_CHARGES, charges)
    days = _sum_up_days(rows)
    if days:
        await connection.exec_driver_sql(_ADD_TO_DAYS, days)
    await connection.exec_driver_sql(_ADD_TO_HOURS, [(*place, *sums) for place, sums in sum_up(rows).items()])


async def _post_new(connection: AsyncConnection, rows: Sequence[RequestRecord]) -> None:
    """As ``post_rows``, of those rows that are not there yet, each once: of two with one id the first counts."""
    fresh: dict[str, RequestRecord] = {}
    for first in range(0, len(rows), _LOOKED_UP):
        some = rows[first : first + _LOOKED_UP]
        stored = select(requests.c.id).where(requests.c.id.in_([row.id for row in some]))
        known = set(await connection.scalars(stored))
        for row in some:
            if row.id not in known:
                fresh.setdefault(row.id, row)
    if fresh:
        await post_rows(connection, list(fresh.values()))


def _sum_up_days(rows: Iterable[RequestRecord]) -> list[tuple[Any, ...]]:
    alike: defaultdict[tuple[int, int, int, str], list[RequestRecord]] = defaultdict(list)
    for row in rows:
        if counts_as_usage(row):
            alike[day_of(row), row.account_id, row.key_id, row.model].append(row)
    # In one order, so that two writers of a database that has several never wait for each other.
    return [(*place, len(alike[place]), *add_columns(alike[place], _tokens_of)) for place in sorted(alike)]


def _sum_where(condition: ColumnElement[bool], amount: ColumnElement[Any]) -> ColumnElement[Any]:
    return func.sum(case((condition, amount), else_=0))


def _is_of(entry: LedgerEntry) -> ColumnElement[bool]:
    """Whether a credit is of the same purse."""
    return and_(
        entries.c.kind != "charge",
        entries.c.account_id == entry.account_id,
        entries.c.key_id.is_(None) if entry.key_id is None else entries.c.key_id == entry.key_id,
    )
