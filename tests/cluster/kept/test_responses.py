"""Kept responses and the owners of others are brought back into a database that lacks them."""

from collections.abc import Awaitable, Callable
from typing import Any, cast

import attrs
import pytest
from sqlalchemy import text

from gateway.cluster.kept.kept_changes import ChangeFile
from gateway.cluster.kept.restore import MAX_CHANGES, restore_changes
from gateway.domain.account import Account
from gateway.domain.kept_response import KeptResponse
from gateway.domain.response_owner import ResponseOwner
from gateway.errors import StoreUnavailable
from gateway.storage.accounts import AccountRepository
from gateway.storage.database import Database
from gateway.storage.encryption import SecretBox
from gateway.storage.kept_responses import KeptResponseRepository
from gateway.storage.response_owners import ResponseOwnerRepository
from tests.support.lacking_stores import Work, open_lacking
from tests.support.postgres import SharedPostgres

FIRST = KeptResponse("resp_1", 1, 5, 10**13, b'{"status":"queued"}', b'["a"]', body_memory=9, items_memory=8)
LATER = attrs.evolve(FIRST, created_ms=6, body=b'{"status":"completed"}')
SECOND = attrs.evolve(FIRST, id="resp_2", body=b"{}", items=b'["b"]', before_id=FIRST.id)
OWNERS = {"resp_3": ResponseOwner(1, "up", 7), "part:msg_1": ResponseOwner(1, "up")}
NOW_MS = 1000
Step = Callable[[KeptResponseRepository], Awaitable[object]]


def open_store(database: Database) -> KeptResponseRepository:
    return KeptResponseRepository(database, SecretBox(bytes(32)))


def use(*steps: Step) -> Work:
    async def work(database: Database) -> None:
        await AccountRepository(database).add_account(Account(0, "acme"))
        for step in steps:
            await step(open_store(database))

    return work


def put(response: KeptResponse) -> Step:
    return lambda store: store.put_response(response)


async def delete(store: KeptResponseRepository) -> None:
    await store.delete_response(FIRST.id, NOW_MS)


@pytest.mark.parametrize(
    ("known", "lost", "expected"),
    [
        (use(), use(put(FIRST)), [FIRST]),
        (use(put(FIRST)), use(put(FIRST), put(LATER)), [LATER]),
        (use(put(LATER)), use(put(FIRST)), [LATER]),  # another node knows less
        (use(), use(put(FIRST), put(SECOND)), [FIRST, SECOND]),
        (use(put(FIRST)), use(put(FIRST), put(SECOND)), [FIRST, SECOND]),
        (use(put(FIRST)), use(put(FIRST), delete), [attrs.evolve(FIRST, expires_ms=NOW_MS)]),
        (use(put(FIRST), put(SECOND)), use(delete), [attrs.evolve(FIRST, expires_ms=NOW_MS), SECOND]),
    ],
)
async def test_a_response_is_as_its_node_knows_it(
    shared_postgres: SharedPostgres, known: Work, lost: Work, expected: list[KeptResponse]
) -> None:
    async with open_lacking(shared_postgres, known, lost) as database:
        store = open_store(database)
        for _ in range(2):
            await restore_changes(database, "", "me:1")
            chain = await store.list_chain(expected[-1].id, 9)
            loaded = await store.load(chain[::-1], 10_000, items=True)
            assert [attrs.evolve(each, stored_bytes=0) for each in loaded] == expected


async def test_the_owners_of_a_response_and_its_objects_are_known(shared_postgres: SharedPostgres) -> None:
    async def add(database: Database) -> None:
        await ResponseOwnerRepository(database).add_owners(OWNERS, NOW_MS)

    async with open_lacking(shared_postgres, use(), add) as database:
        owners = ResponseOwnerRepository(database)
        for _ in range(2):
            await restore_changes(database, "", "me:1")
            assert await owners.find_owners(list(OWNERS)) == OWNERS
        await owners.delete_owner("resp_3")
        assert await owners.find_owners(["resp_3"]) == {}
        await restore_changes(database, "", "me:1")
        assert await owners.find_owners(["resp_3"]) == {}


async def test_many_changes_come_back_in_one_transaction_and_a_refused_one_holds_up_no_other(
    shared_postgres: SharedPostgres,
) -> None:
    async def add(database: Database) -> None:
        owner = next(iter(OWNERS.values()))
        for number in range(MAX_CHANGES + 10):
            await ResponseOwnerRepository(database).add_owners({f"resp_{number}": owner}, NOW_MS)
        assert database.kept is not None
        database.kept.keep(cast("Any", "of a later version"), "resp_0", {})

    async with open_lacking(shared_postgres, use(), add) as database:
        await restore_changes(database, "", "me:1", max_hold_s=60)
        count = text("SELECT count(*), count(DISTINCT xmin::text) FROM response_owners")
        half_transactions = 4  # of 11 changes the last is refused: 5, 3, 1 and 1 come back
        assert [tuple(row) for row in await database.read(count)] == [(MAX_CHANGES + 10, 1 + half_transactions)]
        await database.change(text("DELETE FROM response_owners"))
        await restore_changes(database, "", "me:1", max_hold_s=0)  # other writes wait for one change only
        assert [tuple(row) for row in await database.read(count)] == [(MAX_CHANGES + 10, MAX_CHANGES + 10)]


async def test_what_may_come_back_is_not_missing(shared_postgres: SharedPostgres) -> None:
    async with open_lacking(shared_postgres, use(put(FIRST), put(SECOND), delete), use()) as database:
        database.keep_changes(ChangeFile(None, lambda: "", lambda: "", find_restoring=lambda: True))
        store, owners = open_store(database), ResponseOwnerRepository(database)
        assert (await store.find_responses([FIRST.id]))[0].expires_ms == NOW_MS
        for missing in (store.find_responses([FIRST.id, "resp_9"]), owners.find_owners(["resp_9"])):
            with pytest.raises(StoreUnavailable):
                await missing
