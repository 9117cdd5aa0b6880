"""The counters of limits on both databases: they are the sums of the rows, whatever is posted, repeated or reversed."""

from typing import Any

import attrs
import pytest

from gateway.domain.limit import LimitCharge, build_charges
from gateway.domain.request_log import RequestRecord
from gateway.storage.database import Database
from gateway.storage.ledger import LedgerRepository
from gateway.storage.ledger_rows import find_contradicted_rows, reverse_rows
from gateway.storage.limit_counters import LimitCounters
from tests.support.request_records import charge

USERS, TEAMS = "each user|user|day|UTC", "teams|tag:team|rolling:24h|UTC"


def ask(name: object, cost: int, *charges: LimitCharge, **values: Any) -> RequestRecord:
    return attrs.evolve(charge(name, cost), limit_charges=build_charges(charges), **values)


async def check(database: Database, expected: dict[LimitCharge, int]) -> None:
    """The counters are ``expected``, and agree with the stored rows."""
    counters = LimitCounters(database)
    stored = {limit_charge: nanos for limit_charge, nanos in (await counters.list_all()).items() if nanos}
    assert stored == expected
    assert (await counters.recompute()).spent == expected


async def test_rows_count_once_for_each_of_their_limits(database: Database) -> None:
    ledger = LedgerRepository(database)
    ann, bob, team = (USERS, "1:ann", 5), (USERS, "1:bob", 5), (TEAMS, "1:web", 60)
    rows = [ask(1, 7, ann, team), ask(2, 11, bob, team), ask(3, 13, ann), ask(4, 17), ask(5, 0, ann)]
    await ledger.post(rows[:2])
    await ledger.post(rows)
    await ledger.post_again(rows)
    await check(database, {ann: 20, bob: 11, team: 18})


@pytest.mark.parametrize("cost", [0, 3, 29])
async def test_the_end_of_an_interrupted_request_counts_in_place_of_its_reservation(
    database: Database, cost: int
) -> None:
    """The reservation was charged in the window of the interruption; the request had ended in the one before."""
    ledger, before, after = LedgerRepository(database), (USERS, "1:ann", 5), (USERS, "1:ann", 6)
    interrupted = [ask(number, 11, after, outcome="interrupted") for number in (1, 2)]
    await ledger.post(interrupted)
    await check(database, {after: 22})
    ended = ask(1, cost, *([before] if cost else []), outcome="completed")

    async def replace(connection: Any) -> None:
        contradicted_rows = await find_contradicted_rows(connection, [ended])
        assert [row.id for row in contradicted_rows] == [ended.id]
        await reverse_rows(connection, contradicted_rows, database.subjects)

    await database.write(replace)
    await ledger.post([ended])
    await check(database, {after: 11} | ({before: cost} if cost else {}))
