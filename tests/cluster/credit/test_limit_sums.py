"""``gateway verify`` of nodes finds wrong sums of limits, and forgotten users leave no name among their leases."""

import asyncio
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path

import pytest

from gateway.billing.limit_spec import LimitSpec
from gateway.storage.forgotten_users import ForgottenUserRepository
from tests.support.billing_services import capped
from tests.support.credit_checks import add_caller
from tests.support.credit_gateway import LeasedGateway
from tests.support.credit_store import CreditStore, open_credit_store
from tests.support.postgres import SharedPostgres

pytestmark = pytest.mark.timeout(180)
EACH_USER = LimitSpec("each user", of="user", usd=Decimal(1_000) / 10**9, window="day")
NAMES = """
SELECT count(*) FROM (SELECT subject FROM limit_counters UNION ALL SELECT subject FROM credit_balances) s
WHERE subject LIKE '%:ann'
"""


@pytest.fixture
async def store(shared_postgres: SharedPostgres) -> AsyncIterator[CreditStore]:
    async with open_credit_store(shared_postgres) as opened:
        yield opened


async def start(store: CreditStore, path: Path, name: str) -> LeasedGateway:
    gateway = LeasedGateway(store.url, name, path)
    gateway.limits.replace([EACH_USER])
    await gateway.start()
    return gateway


async def list_problems(gateway: LeasedGateway) -> list[str]:
    report = await gateway.accounting.reconcile()
    assert report["ok"] == (not report["problems"])
    return list(report["problems"])


async def test_each_node_finds_a_sum_that_differs_from_the_requests_of_all(store: CreditStore, tmp_path: Path) -> None:
    first, second = [await start(store, tmp_path, name) for name in ("n0", "n1")]
    caller = await add_caller(first, capped(10**6), capped(10**6))
    await first.open_budget(caller, "run1", 500)
    await second.open_budget(caller, "run1", 500)
    for gateway in (first, second):
        gateway.settle(await gateway.admit(caller, 100, user="ann", session="run1"), 70)
        await gateway.flusher.store_waiting()
    running = await second.admit(caller, 100, user="bob")
    assert [await list_problems(gateway) for gateway in (first, second)] == [[], []]
    await store.connection.execute("UPDATE limit_counters SET spent_nanos = spent_nanos + 1")
    for gateway in (first, second):
        problems = await list_problems(gateway)
        assert len(problems) == 2
        assert all("141 counted, its requests say 140 (nano-USD)" in problem for problem in problems)
    await store.connection.execute("UPDATE limit_counters SET spent_nanos = spent_nanos - 1")
    assert running.reservation is not None
    running.reservation.balances[-1].held_nanos += 1
    (problem,) = [one for one in await list_problems(second) if "bob" in one]
    assert "101 held, its holds say 100 (nano-USD)" in problem
    assert await list_problems(first) == []
    running.reservation.balances[-1].held_nanos -= 1
    second.settle(running, 100)
    for gateway in (first, second):
        await gateway.stop()


async def test_deleted_requests_do_not_contradict_the_sums(store: CreditStore, tmp_path: Path) -> None:
    gateway = await start(store, tmp_path, "n0")
    caller = await add_caller(gateway, capped(10**6), capped(10**6))
    gateway.settle(await gateway.admit(caller, 100, user="ann"), 70)
    await gateway.flusher.store_waiting()
    await store.connection.execute("UPDATE limit_counters SET spent_nanos = 71, start_s = start_s - 86400")
    assert len(await list_problems(gateway)) == 2
    await store.connection.execute("INSERT INTO retired VALUES (1, 1, 1, 0, 1)")
    await store.connection.execute("UPDATE requests SET limit_charges = ''")
    assert await list_problems(gateway) == []
    await gateway.stop()


async def test_a_forgotten_user_leaves_no_name_while_a_node_has_credit_of_it(
    store: CreditStore, tmp_path: Path
) -> None:
    """Nothing is spent twice, and what is spent is counted under the new name."""
    first, second = [await start(store, tmp_path, name) for name in ("n0", "n1")]
    caller = await add_caller(first, capped(10**6), capped(10**6))
    first.settle(await first.admit(caller, 100, user="ann"), 70)
    await first.flusher.store_waiting()
    running = await first.admit(caller, 100, user="ann")
    assert await store.connection.fetchval(NAMES) == 2
    repository = ForgottenUserRepository(second.database)
    last = await repository.find_last_row()
    assert await repository.rename_rows("ann", "x", None, last) == 1
    await repository.rename_balances({"ann"}, "x", caller.account.id + 1)
    assert await store.connection.fetchval(NAMES) == 1
    await repository.rename_balances({"ann"}, "x", None)
    assert await store.connection.fetchval(NAMES) == 0
    assert [await list_problems(gateway) for gateway in (first, second)] == [[], []]
    admitted = await asyncio.gather(*[second.admit(caller, 100, user="x") for _ in range(12)], return_exceptions=True)
    contexts = [result for result in admitted if not isinstance(result, BaseException)]
    assert len(contexts) == 9, "70 of 1,000 are spent under the new name"
    for ctx in contexts:
        second.settle(ctx, 100)
    first.settle(running, 0)
    for gateway in (first, second):
        await gateway.stop()
    assert await store.connection.fetchval("SELECT sum(spent_nanos)::bigint FROM limit_counters") == 970
