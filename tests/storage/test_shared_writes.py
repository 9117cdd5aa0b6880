"""What requests need, nodes store beside each other; a write that changes a limit waits for it, and it for that."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import attrs
import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.cluster.credit.store import PostgresCredit
from gateway.domain.account import Account, ApiKey
from gateway.domain.balance import DAY_S, Quota, parse_day
from gateway.domain.idempotency import IdempotencyRecord
from gateway.domain.kept_response import KeptResponse
from gateway.domain.request_log import RequestRecord
from gateway.domain.response_owner import ResponseOwner
from gateway.domain.subject_usage import SubjectFilter
from gateway.storage.accounts import AccountRepository
from gateway.storage.api_keys import ApiKeyRepository
from gateway.storage.encryption import SecretBox
from gateway.storage.idempotency import IdempotencyRepository
from gateway.storage.kept_responses import KeptResponseRepository
from gateway.storage.ledger import LedgerRepository
from gateway.storage.open import open_database
from gateway.storage.postgres.address import Address
from gateway.storage.postgres.database import PostgresDatabase
from gateway.storage.response_owners import ResponseOwnerRepository
from gateway.storage.subject_usage import SubjectUsageRepository
from tests.support.any_user import AnyUser
from tests.support.billing_services import NOON, capped
from tests.support.credit_checks import audit
from tests.support.credit_store import CreditStore, open_credit_store
from tests.support.postgres import SharedPostgres
from tests.support.request_records import ROW

NODES, BATCHES, ROWS = 8, 6, 5
BOX = SecretBox(bytes(range(32)))
SPENT = """
SELECT settled + (SELECT sum(posted + late) FROM credit_leases l WHERE l.owner = 1 AND l.owner_id = $1)
FROM credit_balances WHERE owner = 1 AND owner_id = $1
"""


@pytest.fixture
async def store(shared_postgres: SharedPostgres) -> AsyncIterator[CreditStore]:
    async with open_credit_store(shared_postgres) as opened:
        await (await open_database(opened.url)).close()
        yield opened


@pytest.fixture
async def nodes(store: CreditStore) -> AsyncIterator[list[PostgresDatabase]]:
    opened = [PostgresDatabase(Address(store.url), AnyUser()) for _ in range(NODES)]
    for number, database in enumerate(opened):
        database.credit = PostgresCredit(database, f"n{number}", lambda: parse_day(NOON))
    account = await AccountRepository(opened[0]).add_account(Account(0, "acme", quota=capped(10**9, "daily")))
    for number in range(2):
        key = ApiKey(0, account.id, f"k{number}", bytes([number]), "last", quota=capped(10**9))
        await ApiKeyRepository(opened[0]).add_key(key)
    yield opened
    for database in opened:
        await database.close()


def make_row(number: int, key: int, day: int = 0) -> RequestRecord:
    at_ms = int(NOON * 1000) + day * DAY_S * 1000
    return attrs.evolve(
        ROW, id=f"req_{number}", account_id=1, key_id=key, cost_nanos=number % 7, attempts=1, settled_ms=at_ms,
        started_ms=at_ms - 5,
    )  # fmt: skip


async def test_two_nodes_store_rows_at_once_and_a_change_of_limits_waits(nodes: list[PostgresDatabase]) -> None:
    begun, go_on, order = asyncio.Event(), asyncio.Event(), list[str]()

    async def stand_still(_: AsyncConnection) -> None:
        begun.set()
        await go_on.wait()

    async def change_limit() -> None:
        await AccountRepository(nodes[2]).put_account(Account(1, "acme", quota=Quota()))
        order.append("limit")

    first = asyncio.create_task(nodes[0].write_shared(stand_still))
    await begun.wait()
    await LedgerRepository(nodes[1]).post([make_row(1, 1)])
    order.append("rows")
    changing = asyncio.create_task(change_limit())
    await asyncio.sleep(0.1)
    order.append("end")
    go_on.set()
    await asyncio.gather(first, changing)
    assert order == ["rows", "end", "limit"]


async def test_named_requests_and_kept_responses_wait_for_no_other_node(nodes: list[PostgresDatabase]) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def stand_still(_: AsyncConnection) -> None:
        begun.set()
        await go_on.wait()

    first = asyncio.create_task(nodes[0].write_shared(stand_still))
    await begun.wait()
    named = IdempotencyRecord(1, "order-1", "ab", "req_1", 5, "n1")
    replays, kept = IdempotencyRepository(nodes[1]), KeptResponseRepository(nodes[2], BOX)
    try:
        async with asyncio.timeout(5):
            assert await replays.begin_replay(named) is None
            await replays.end_replay(attrs.evolve(named, state="done"))  # type: ignore[arg-type]
            await kept.put_response(KeptResponse("resp_1", 1, 5, 10**15, b"{}", b"[]"))
            await ResponseOwnerRepository(nodes[3]).add_owners({"resp_2": ResponseOwner(1, "up")}, 5)
        assert not first.done()
    finally:
        go_on.set()
        await first


async def test_a_name_that_eight_nodes_use_at_once_is_one_request(nodes: list[PostgresDatabase]) -> None:
    for number in range(BATCHES):
        named = [IdempotencyRecord(1, f"order-{number}", "ab", f"req_{at}", 5, f"n{at}") for at in range(NODES)]
        begin = [IdempotencyRepository(node).begin_replay(one) for node, one in zip(nodes, named, strict=True)]
        found = await asyncio.gather(*begin)
        assert found.count(None) == 1
        winner = named[found.index(None)]
        assert set(found) - {None} == {winner}


async def test_rows_of_eight_nodes_and_two_days_are_all_counted(
    store: CreditStore, nodes: list[PostgresDatabase]
) -> None:
    spent: Counter[int] = Counter()

    async def post(number: int) -> None:
        ledger = LedgerRepository(nodes[number])
        for batch in range(BATCHES):
            first = (number * BATCHES + batch) * ROWS
            rows = [make_row(first + at, 1 + at % 2, (batch + at) % 3 // 2) for at in range(ROWS)]
            await ledger.post(rows)
            for row in rows:
                spent[row.key_id] += row.cost_nanos

    async def change_limits() -> None:
        for at in range(4):
            quota = capped(10**9 + at, "daily" if at % 2 else "lifetime")
            await AccountRepository(nodes[0]).put_account(Account(1, "acme", quota=quota))

    await asyncio.gather(*map(post, range(NODES)), change_limits())
    await audit(store)
    for key, nanos in spent.items():
        found = (
            "SELECT settled + (SELECT sum(posted + late) FROM credit_leases l WHERE l.owner = 1 AND l.owner_id = $1)"
        )
        total = await store.connection.fetchval(f"{found} FROM credit_balances WHERE owner = 1 AND owner_id = $1", key)
        assert total == nanos
    assert await store.connection.fetchval("SELECT count(*) FROM requests") == NODES * BATCHES * ROWS


async def test_eight_nodes_keep_one_bound_of_users_and_lose_no_cost(nodes: list[PostgresDatabase]) -> None:
    max_values, users = 10, 25
    spent = Counter[str]()
    for node in nodes:
        node.bound_subjects(lambda: max_values)

    async def post(number: int) -> None:
        for batch in range(BATCHES):
            first = (number * BATCHES + batch) * ROWS
            rows = [
                attrs.evolve(
                    make_row(first + at, 1 + at % 2), end_user=f"u{(first * 7 + at * 3) % users}", cost_nanos=1
                )
                for at in range(ROWS)
            ]
            await LedgerRepository(nodes[number]).post(rows)
            spent.update(row.end_user for row in rows)

    await asyncio.gather(*map(post, range(NODES)))
    day = int(NOON) // DAY_S
    usage = await SubjectUsageRepository(nodes[0]).find_usage(SubjectFilter("user", "", day, day), 100)
    assert len(usage.lines) == max_values
    assert all(spent[line.label] == line.cost_nanos for line in usage.lines), "a user has one place on all nodes"
    assert sum(line.cost_nanos for line in usage.lines) + usage.other.cost_nanos == spent.total()
    assert all(total.is_correct for total in await LedgerRepository(nodes[0]).list_subject_totals())
