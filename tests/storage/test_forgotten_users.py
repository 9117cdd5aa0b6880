"""Renaming an end user in rows and sums, on both databases."""

import attrs
from sqlalchemy import select

from gateway.storage.database import Database
from gateway.storage.forgotten_users import ForgottenUserRepository
from gateway.storage.ledger import LedgerRepository
from gateway.storage.schema import requests, subject_usage
from tests.support.request_records import charge

ACCOUNT = 1
"""Of the key 11."""


async def test_a_user_is_renamed_in_steps_and_every_sum_stays(database: Database) -> None:
    ledger, repository = LedgerRepository(database), ForgottenUserRepository(database)
    rows = [attrs.evolve(charge(number, 3), end_user="ann" if number % 2 else "bob") for number in range(1_300)]
    others = [attrs.evolve(charge(f"other{number}", 3, key=21), end_user="ann") for number in range(3)]
    await ledger.post([*rows, *others])
    assert await repository.rename_sums("ann", "forgotten-1", ACCOUNT) == 1
    steps = [await repository.rename_rows("ann", "forgotten-1", ACCOUNT, ()) for _ in range(3)]
    assert steps == [500, 150, 0]
    assert all(total.is_correct for total in await ledger.list_subject_totals())
    names = [row.end_user for row in await database.read(select(requests.c.end_user))]
    assert (names.count("forgotten-1"), names.count("bob"), names.count("ann")) == (650, 650, 3)
    sums = await database.read(
        select(subject_usage.c.value, subject_usage.c.requests).where(subject_usage.c.kind == "user")
    )
    assert sorted(map(tuple, sums)) == [("ann", 3), ("bob", 650), ("forgotten-1", 650)]
    assert await repository.rename_sums("ann", "forgotten-2", None) == 1
    assert await repository.rename_rows("ann", "forgotten-2", None, ()) == 3


async def test_counters_of_limits_are_renamed_unless_they_are_in_use(database: Database) -> None:
    repository = ForgottenUserRepository(database)
    charges = '[["each|user|day|UTC","1:ann",5],["all|session|day|UTC","1:ann",5],["run|user|day|UTC","1:ann",5]]'
    await LedgerRepository(database).post([attrs.evolve(charge(1, 7), end_user="ann", limit_charges=charges)])
    used = {("run|user|day|UTC", "1:ann")}
    assert await repository.rename_rows("ann", "x", None, used) == 1
    (row,) = await database.read(select(requests.c.limit_charges))
    assert row[0] == charges.replace('["each|user|day|UTC","1:ann"', '["each|user|day|UTC","1:x"')
