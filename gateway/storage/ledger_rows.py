"""Rows of requests with their charges and their part of every sum, as parts of a transaction.

An "interrupted" row may later turn out to be wrong. If a node of a cluster is declared dead, its open requests become
interrupted rows. If the node was only cut off, it stores the real ends of these requests later: its rows replace the
interrupted ones, whose charges are reversed.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

from sqlalchemy import Select, delete, select

from gateway.domain.ledger import counts_as_usage, day_of
from gateway.domain.request_log import RequestRecord, has_failed
from gateway.domain.traffic import SUMMED_FIELDS, add_columns, negate, sum_rows
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.bulk import BulkAddition, BulkInsert, Inserts
from gateway.storage.row_mapping import REQUEST_COLUMNS, parse_request, request_values
from gateway.storage.schema import entries, requests, retired, usage_days, usage_hours
from gateway.storage.subject_sums import SubjectSums

IDS_PER_STATEMENT = 500
"""Ids per statement, because databases limit the number of values in one."""
_SUMS = ("requests", "prompt_tokens", "completion_tokens", "cached_tokens", "cost_nanos")
_CHARGE_COLUMNS = ("at_ms", "kind", "account_id", "key_id", "amount_nanos", "request_id")
_Inserts = list[tuple[BulkInsert, list[tuple[Any, ...]]]]
_tokens_of = attrgetter("prompt_tokens", "completion_tokens", "cached_tokens", "cost_nanos")

_INSERT_REQUESTS = BulkInsert(requests, REQUEST_COLUMNS)
_INSERT_CHARGES = BulkInsert(entries, _CHARGE_COLUMNS)
_ADD_DAYS = BulkAddition(usage_days, _SUMS)
_ADD_HOURS = BulkAddition(usage_hours, SUMMED_FIELDS)
_ADD_RETIRED = BulkAddition(retired, ("requests", "cost_nanos"))
UNSTORABLE_MODEL = "(unstorable)"
"""The model in the charge for a refused row, since the name of its model may be the reason."""


async def post_rows(connection: AsyncConnection, rows: Sequence[RequestRecord], subjects: SubjectSums) -> None:
    """Store rows and their charges in the current transaction. Raises ``IntegrityError`` if a row is stored already."""
    for bulk_insert, values in list_inserts(rows):
        await bulk_insert.run(connection, values)
    await subjects.add(connection, rows)


def list_inserts(rows: Sequence[RequestRecord]) -> Inserts:
    """Return the inserts that store the rows, their charges, and their part of every sum except those of subjects."""
    inserts: _Inserts = [
        (_INSERT_REQUESTS, list(map(request_values, rows))),
        (
            _INSERT_CHARGES,
            [
                (row.settled_ms, "charge", row.account_id, row.key_id, row.cost_nanos, row.id)
                for row in rows
                if row.cost_nanos
            ],
        ),
        (_ADD_DAYS, _sum_up_days(rows)),
        (_ADD_HOURS, [(*group_key, *sums) for group_key, sums in sum_rows(rows).items()]),
        *_list_failure_inserts(rows),
        *_list_limit_inserts(rows),
    ]
    return [(bulk_insert, values) for bulk_insert, values in inserts if values]


def _list_limit_inserts(rows: Iterable[RequestRecord], sign: int = 1) -> _Inserts:
    """Return the inserts by which the costs of rows count for limits; with the sign -1, those that reverse them."""
    limited_rows = [row for row in rows if row.limit_charges and row.cost_nanos]
    if not limited_rows:
        return []
    from gateway.storage.limit_counters import ADD_SPENT, list_additions  # noqa: PLC0415 - only if there are limits

    return [(ADD_SPENT, list_additions(limited_rows, sign))]


def _list_failure_inserts(rows: Iterable[RequestRecord], sign: int = 1) -> _Inserts:
    """Return the inserts by which failed rows count for their causes; with the sign -1, those that reverse them."""
    failed_rows = [row for row in rows if has_failed(row)]
    if not failed_rows:
        return []
    from gateway.storage.failures import ADD_FAILURES, list_additions  # noqa: PLC0415 - only if requests fail

    return [(ADD_FAILURES, list_additions(failed_rows, sign))]


async def reverse_rows(connection: AsyncConnection, rows: Sequence[RequestRecord], subjects: SubjectSums) -> None:
    """Delete rows, and their part of every sum, in the current transaction. New entries reverse their charges."""
    await connection.execute(delete(requests).where(requests.c.id.in_([row.id for row in rows])))
    charges = [
        (row.settled_ms, "charge", row.account_id, row.key_id, -row.cost_nanos, row.id)
        for row in rows
        if row.cost_nanos
    ]
    if charges:
        await _INSERT_CHARGES.run(connection, charges)
    days = [(*line[: -len(_SUMS)], *negate(line[-len(_SUMS) :])) for line in _sum_up_days(rows)]
    if days:
        await _ADD_DAYS.run(connection, days)
    await _ADD_HOURS.run(connection, [(*group_key, *negate(sums)) for group_key, sums in sum_rows(rows).items()])
    await subjects.add(connection, rows, reverses=True)
    for bulk_insert, values in (*_list_failure_inserts(rows, -1), *_list_limit_inserts(rows, -1)):
        await bulk_insert.run(connection, values)
    from gateway.storage.usage_splits import take_back  # noqa: PLC0415 - only if rows are reversed

    await take_back(connection, [row.settled_ms for row in rows])


async def find_stored_ids(connection: AsyncConnection, ids: Sequence[str], *, ended_only: bool = False) -> set[str]:
    """Return which of these requests are stored. With ``ended_only``, interrupted ones are left out."""
    known_ids: set[str] = set()
    for start in range(0, len(ids), IDS_PER_STATEMENT):
        query = select(requests.c.id).where(requests.c.id.in_(ids[start : start + IDS_PER_STATEMENT]))
        known_ids.update(
            await connection.scalars(query.where(requests.c.outcome != "interrupted") if ended_only else query)
        )
    return known_ids


def select_charged(ids: Sequence[str]) -> Select[Any]:
    """Return the statement that selects which of these requests were ever charged. It scans all entries."""
    return select(entries.c.request_id).where(entries.c.kind == "charge", entries.c.request_id.in_(ids))


async def post_charge(connection: AsyncConnection, row: RequestRecord) -> bool:
    """Charge a row that is not stored, once; return whether this call charged it."""
    charged_query = select_charged([row.id]).limit(1)
    if not row.cost_nanos or (await connection.execute(charged_query)).first() is not None:
        return False
    owner = (row.account_id, row.key_id)
    await _INSERT_CHARGES.run(connection, [(row.settled_ms, "charge", *owner, row.cost_nanos, row.id)])
    await _ADD_DAYS.run(connection, [(day_of(row), *owner, UNSTORABLE_MODEL, 1, 0, 0, 0, row.cost_nanos)])
    await _ADD_RETIRED.run(connection, [(*owner, 1, row.cost_nanos, -1)])
    for bulk_insert, values in _list_limit_inserts([row]):
        await bulk_insert.run(connection, values)
    return True


def _sum_up_days(rows: Iterable[RequestRecord]) -> list[tuple[Any, ...]]:
    rows_by_day: defaultdict[tuple[int, int, int, str], list[RequestRecord]] = defaultdict(list)
    for row in rows:
        if counts_as_usage(row):
            rows_by_day[day_of(row), row.account_id, row.key_id, row.model].append(row)
    # All writers use the same order, so that no two of them deadlock in PostgreSQL.
    return [
        (*group_key, len(rows_by_day[group_key]), *add_columns(rows_by_day[group_key], _tokens_of))
        for group_key in sorted(rows_by_day)
    ]


async def find_contradicted_rows(connection: AsyncConnection, rows: Sequence[RequestRecord]) -> list[RequestRecord]:
    """Return the stored "interrupted" rows that ``rows`` of the same requests contradict."""
    rows_by_id = {row.id: row for row in rows}
    ids, contradicted_rows = list(rows_by_id), []
    for start in range(0, len(ids), IDS_PER_STATEMENT):
        is_requested = requests.c.id.in_(ids[start : start + IDS_PER_STATEMENT])
        for stored_row in await connection.execute(
            select(requests).where(is_requested, requests.c.outcome == "interrupted")
        ):
            stored_request = parse_request(stored_row).row
            if _build_end_key(stored_request) != _build_end_key(rows_by_id[stored_request.id]):
                contradicted_rows.append(stored_request)
    return contradicted_rows


def _build_end_key(row: RequestRecord) -> tuple[object, ...]:
    return row.outcome, row.settled_ms, row.cost_nanos, row.prompt_tokens, row.completion_tokens
