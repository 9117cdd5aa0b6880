"""What accounts with a time zone have spent in their own day and month.

The stored sums are of UTC days. If a window begins or ends within such a day, the parts before and after its whole days
are added up from the ledger's entries.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import attrs
from sqlalchemy import ColumnElement, Select, func, select

from gateway.domain.account_zone import AccountZone
from gateway.domain.balance import DAY_S
from gateway.domain.ledger import Spending
from gateway.storage.database import Database
from gateway.storage.schema import entries, usage_days

_ACCOUNTS_PER_QUERY = 500
_Key = tuple[int, int | None]
_Sums = Mapping[_Key, int]


async def correct_spending(
    database: Database, now_s: int, zones: Mapping[int, AccountZone], lines: Sequence[Spending]
) -> list[Spending]:
    """Return ``lines`` with the days and months of ``zones`` in place of those of UTC.

    They are in further lines of the same balances.
    """
    other_lines = [
        attrs.evolve(line, month_nanos=0, day_nanos=0, month_credit_nanos=0, day_credit_nanos=0)
        if line.account_id in zones
        else line
        for line in lines
    ]
    return other_lines + await _list_zone_spending(database, now_s, zones)


async def find_latest_s(database: Database, account_ids: Collection[int], since_s: int) -> int | None:
    """Return the second after the last entry of ``account_ids``; None without an entry at or after ``since_s``.

    Both are Unix seconds.
    """
    ids, latest_ms = list(account_ids), list[int]()
    for first in range(0, len(ids), _ACCOUNTS_PER_QUERY):
        batch = ids[first : first + _ACCOUNTS_PER_QUERY]
        query = select(func.max(entries.c.at_ms)).where(
            entries.c.account_id.in_(batch), entries.c.at_ms >= since_s * 1000
        )
        latest_ms += [int(row[0]) for row in await database.read_long(query) if row[0] is not None]
    return max(latest_ms) // 1000 + 1 if latest_ms else None


async def _list_zone_spending(database: Database, now_s: int, zones: Mapping[int, AccountZone]) -> list[Spending]:
    """Return what keys and accounts have spent and been credited in the days and months of ``zones`` at ``now_s``."""
    accounts_by_zone: defaultdict[AccountZone, list[int]] = defaultdict(list)
    for account_id, zone in zones.items():
        accounts_by_zone[zone].append(account_id)
    lines: list[Spending] = []
    for zone, account_ids in accounts_by_zone.items():
        local = zone.find_local_day(now_s)
        for first in range(0, len(account_ids), _ACCOUNTS_PER_QUERY):
            batch = account_ids[first : first + _ACCOUNTS_PER_QUERY]
            month = await _sum_charges(database, batch, local.month_start_s, local.month_end_s)
            day = await _sum_charges(database, batch, local.start_s, local.end_s)
            month_credit = await _sum_credits(database, batch, local.month_start_s, local.month_end_s)
            day_credit = await _sum_credits(database, batch, local.start_s, local.end_s)
            lines += [
                Spending(
                    *owner,
                    month_nanos=month.get(owner, 0),
                    day_nanos=day.get(owner, 0),
                    month_credit_nanos=month_credit.get(owner, 0),
                    day_credit_nanos=day_credit.get(owner, 0),
                )
                for owner in month.keys() | day.keys() | month_credit.keys() | day_credit.keys()
            ]
    return lines


async def _sum_charges(database: Database, account_ids: Sequence[int], start_s: int, end_s: int) -> _Sums:
    """Return the charges of keys from ``start_s`` to ``end_s``, in nano-USD."""
    first_day, last_day = -(-start_s // DAY_S), end_s // DAY_S
    edges = [(start_s, first_day * DAY_S), (last_day * DAY_S, end_s)] if first_day < last_day else [(start_s, end_s)]
    # One query for each part: an index of accounts and times serves them, and none that joins both parts by OR.
    queries = [_select_entries(account_ids, since_s, until_s, entries.c.kind == "charge") for since_s, until_s in edges]
    if first_day < last_day:
        day, cost = usage_days.c.day, func.sum(usage_days.c.cost_nanos)
        queries.append(
            select(usage_days.c.account_id, usage_days.c.key_id, cost.label("nanos"))
            .where(usage_days.c.account_id.in_(account_ids), day.between(first_day, last_day - 1))
            .group_by(usage_days.c.account_id, usage_days.c.key_id)
        )
    return await _add_up(database, queries)


async def _sum_credits(database: Database, account_ids: Sequence[int], start_s: int, end_s: int) -> _Sums:
    """Return the credits of keys and accounts from ``start_s`` to ``end_s``, in nano-USD."""
    return await _add_up(database, [_select_entries(account_ids, start_s, end_s, entries.c.kind != "charge")])


def _select_entries(
    account_ids: Sequence[int], since_s: int, until_s: int, is_of_kind: ColumnElement[bool]
) -> Select[Any]:
    account_id, key_id, at_ms = entries.c.account_id, entries.c.key_id, entries.c.at_ms
    return (
        select(account_id, key_id, func.sum(entries.c.amount_nanos).label("nanos"))
        .where(account_id.in_(account_ids), is_of_kind, at_ms >= since_s * 1000, at_ms < until_s * 1000)
        .group_by(account_id, key_id)
    )


async def _add_up(database: Database, queries: Sequence[Select[Any]]) -> _Sums:
    sums: defaultdict[_Key, int] = defaultdict(int)
    for query in queries:
        for row in await database.read_long(query):
            sums[row.account_id, row.key_id] += int(row.nanos)
    return sums
