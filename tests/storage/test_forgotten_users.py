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
    last_sequence = await repository.find_last_row()
    await ledger.post([attrs.evolve(charge("later", 3), end_user="ann")])
    steps = [await repository.rename_rows("ann", "forgotten-1", ACCOUNT, last_sequence) for _ in range(3)]
    assert steps == [500, 150, 0]
    assert all(total.is_correct for total in await ledger.list_subject_totals())
    names = [row.end_user for row in await database.read(select(requests.c.end_user))]
    assert (names.count("forgotten-1"), names.count("bob"), names.count("ann")) == (650, 650, 4)
    sums = await database.read(
        select(subject_usage.c.value, subject_usage.c.requests).where(subject_usage.c.kind == "user")
    )
    assert sorted(map(tuple, sums)) == [("ann", 1), ("ann", 3), ("bob", 650), ("forgotten-1", 650)]
    assert await repository.rename_sums("ann", "forgotten-2", None) == 2
    assert await repository.rename_rows("ann", "forgotten-2", None, last_sequence + 1) == 4


async def test_two_stored_names_of_one_user_become_one(database: Database) -> None:
    """As text and as hash: the setting was changed on a day with requests."""
    ledger, repository = LedgerRepository(database), ForgottenUserRepository(database)
    names = ("ann", "hmac:0f")
    await ledger.post([attrs.evolve(charge(name, 3), end_user=name) for name in names])
    for name in names:
        assert await repository.rename_sums(name, "x", None) == 1
        assert await repository.rename_rows(name, "x", None, await repository.find_last_row()) == 1
    columns = subject_usage.c
    (sums,) = await database.read(
        select(columns.value, columns.requests, columns.cost_nanos).where(columns.kind == "user")
    )
    assert tuple(sums) == ("x", 2, 6)
    assert all(total.is_correct for total in await ledger.list_subject_totals())


async def test_counters_of_limits_are_renamed(database: Database) -> None:
    repository = ForgottenUserRepository(database)
    charges = '[["each|user|day|UTC","1:ann",5],["all|session|day|UTC","1:ann",5],["run|user|day|UTC","1:ann",5]]'
    await LedgerRepository(database).post([attrs.evolve(charge(1, 7), end_user="ann", limit_charges=charges)])
    assert await repository.rename_rows("ann", "x", None, await repository.find_last_row()) == 1
    (row,) = await database.read(select(requests.c.limit_charges))
    assert row[0] == charges.replace('user|day|UTC","1:ann"', 'user|day|UTC","1:x"')
