"""Several gateways on one PostgreSQL database share the budget of a session, whichever of them knows of its changes."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import attrs
import pytest

from gateway.domain.account import Caller
from gateway.domain.balance import UtcDay
from gateway.domain.credit import CreditGrant, CreditRequest
from gateway.errors import BudgetExceeded, SessionEnded
from gateway.request_context import RequestContext
from tests.support.billing_services import capped
from tests.support.credit_checks import add_caller, audit, spent
from tests.support.credit_gateway import LeasedGateway
from tests.support.credit_store import CreditStore, open_credit_store
from tests.support.postgres import SharedPostgres

pytestmark = pytest.mark.timeout(180)
CALLERS = 80
_SPENT = "SELECT coalesce(sum(spent_nanos), 0)::bigint FROM limit_counters WHERE subject = $1"
_CHANGES = "SELECT id FROM changes WHERE kind = 'session' ORDER BY sequence"


@pytest.fixture
async def store(shared_postgres: SharedPostgres) -> AsyncIterator[CreditStore]:
    async with open_credit_store(shared_postgres) as opened:
        yield opened


async def start_gateways(store: CreditStore, path: Path, number: int) -> tuple[list[LeasedGateway], Caller]:
    gateways = [LeasedGateway(store.url, f"n{index}", path, number) for index in range(number)]
    for gateway in gateways:
        await gateway.start()
    return gateways, await add_caller(gateways[0], capped(10**6), capped(10**6))


async def stop(gateways: Sequence[LeasedGateway]) -> None:
    for gateway in gateways:
        await gateway.stop()


async def admit_all(
    gateways: Sequence[LeasedGateway], caller: Caller, session: str, number: int
) -> tuple[list[tuple[LeasedGateway, RequestContext]], list[BudgetExceeded]]:
    """Let ``number`` requests of a session ask at once for 100 nano-USD, in turn at each gateway."""
    asked_gateways = [gateways[index % len(gateways)] for index in range(number)]
    results = await asyncio.gather(
        *[gateway.admit(caller, 100, session=session) for gateway in asked_gateways], return_exceptions=True
    )
    pairs = list(zip(asked_gateways, results, strict=True))
    admitted = [(gateway, result) for gateway, result in pairs if isinstance(result, RequestContext)]
    refused = [result for result in results if isinstance(result, BudgetExceeded)]
    assert len(admitted) + len(refused) == number, results
    return admitted, refused


async def find_spent(store: CreditStore, caller: Caller, session: str) -> int:
    return int(await store.connection.fetchval(_SPENT, f"{caller.account.id}:{session}"))


@pytest.mark.parametrize(("nodes", "covered"), [(4, 37), (2, 1)])
async def test_exactly_as_many_requests_are_admitted_at_all_nodes_as_the_budget_covers(
    store: CreditStore, tmp_path: Path, nodes: int, covered: int
) -> None:
    gateways, caller = await start_gateways(store, tmp_path, nodes)
    for gateway in gateways:
        await gateway.open_budget(caller, "run1", covered * 100 + 99)
    admitted, refused = await admit_all(gateways, caller, "run1", CALLERS)
    assert len(admitted) == covered
    assert {(error.status, error.limit_nanos) for error in refused} == {(403, covered * 100 + 99)}
    assert all("budget of the session 'run1'" in error.message for error in refused)
    for gateway, ctx in admitted:
        gateway.settle(ctx, 100)
    await audit(store)
    await stop(gateways)
    late = LeasedGateway(store.url, "late", tmp_path)
    await late.start()
    await late.open_budget(caller, "run1", covered * 100 + 99)
    with pytest.raises(BudgetExceeded) as caught:
        await late.admit(caller, 100, session="run1")
    assert (caught.value.spent_nanos, caught.value.limit_nanos) == (covered * 100, covered * 100 + 99)
    await late.stop()
    assert await find_spent(store, caller, "run1") == await spent(store) == covered * 100
    assert await store.connection.fetchval("SELECT count(*) FROM credit_balances WHERE owner = 2") == 0


async def test_a_lowered_budget_holds_at_a_node_that_does_not_know_it(store: CreditStore, tmp_path: Path) -> None:
    (first, second), caller = await start_gateways(store, tmp_path, 2)
    for gateway in (first, second):
        await gateway.open_budget(caller, "run1", 1_000)
    await first.open_budget(caller, "run1", 250)
    admitted, refused = await admit_all([second], caller, "run1", 10)
    assert len(admitted) == 2
    assert {error.limit_nanos for error in refused} == {250}, "the refusal tells the budget that is in force"
    for gateway, ctx in admitted:
        gateway.settle(ctx, 100)
    await stop([first, second])
    assert await find_spent(store, caller, "run1") == 200


async def test_idle_credit_of_a_higher_budget_goes_back_when_a_node_reads_the_lower_one(
    store: CreditStore, tmp_path: Path
) -> None:
    (first, second), caller = await start_gateways(store, tmp_path, 2)
    await second.open_budget(caller, "run1", 1_000)
    second.settle(await second.admit(caller, 100, session="run1"), 100)
    balance = second.limits.open_budgets().list_balances(caller.account.id, "run1")[0]
    assert balance.find_room(second.balances.today)
    await first.open_budget(caller, "run1", 100)
    subject = f"{caller.account.id}:run1"
    assert [row["id"] for row in await store.connection.fetch(_CHANGES)] == [subject, subject]
    assert not await second.limits.open_budgets().reload(subject)
    assert balance.find_room(second.balances.today) == 0
    for gateway in (first, second):
        with pytest.raises(BudgetExceeded):
            await gateway.admit(caller, 1, session="run1")
    await stop([first, second])


async def test_idle_credit_of_a_raise_that_a_node_never_read_goes_back(store: CreditStore, tmp_path: Path) -> None:
    (first, second), caller = await start_gateways(store, tmp_path, 2)
    await second.open_budget(caller, "run1", 1_000)
    key = attrs.evolve(caller.key, max_session_nanos=9_000)
    await first.open_budget(Caller(caller.account, key), "run1", 9_000)
    second.settle(await second.admit(caller, 800, session="run1"), 800)
    balance = second.limits.open_budgets().list_balances(caller.account.id, "run1")[0]
    assert (balance.find_room(second.balances.today) or 0) > 200
    await first.open_budget(caller, "run1", 1_000)
    await second.limits.open_budgets().reload(f"{caller.account.id}:run1")
    assert balance.find_room(second.balances.today) == 0
    admitted, _ = await admit_all([second], caller, "run1", 10)
    assert len(admitted) == 2
    for gateway, ctx in admitted:
        gateway.settle(ctx, 100)
    await stop([first, second])


async def test_idle_credit_of_a_raise_goes_back_when_the_store_answers_under_the_lower_budget(
    store: CreditStore, tmp_path: Path
) -> None:
    """The budget that the node reads after that answer is the budget it knew before the raise."""
    (first, second), caller = await start_gateways(store, tmp_path, 2)
    await second.open_budget(caller, "run1", 1_000)
    key = attrs.evolve(caller.key, max_session_nanos=9_000)
    await first.open_budget(Caller(caller.account, key), "run1", 9_000)
    second.settle(await second.admit(caller, 800, session="run1"), 800)
    balance = second.limits.open_budgets().list_balances(caller.account.id, "run1")[0]
    assert (balance.find_room(second.balances.today) or 0) > 200
    await first.open_budget(caller, "run1", 1_000)
    with pytest.raises(BudgetExceeded):  # more than the node has: the store is asked
        await second.admit(caller, 9_000, session="run1")
    await second.limits.open_budgets().reload(f"{caller.account.id}:run1")
    assert balance.find_room(second.balances.today) == 0
    admitted, _ = await admit_all([second], caller, "run1", 10)
    assert len(admitted) == 2
    for gateway, ctx in admitted:
        gateway.settle(ctx, 100)
    await stop([first, second])


async def test_credit_of_a_raise_that_ended_before_the_answer_came_goes_back(
    store: CreditStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first, second), caller = await start_gateways(store, tmp_path, 2)
    await second.open_budget(caller, "run1", 1_000)
    key = attrs.evolve(caller.key, max_session_nanos=9_000)
    await first.open_budget(Caller(caller.account, key), "run1", 9_000)
    authority = second.credit._authority
    take = authority.take

    async def take_before_the_budget_falls(requests: Sequence[CreditRequest], day: UtcDay) -> Sequence[CreditGrant]:
        grants = await take(requests, day)
        monkeypatch.setattr(authority, "take", take)
        await first.open_budget(caller, "run1", 1_000)
        await second.limits.open_budgets().reload(f"{caller.account.id}:run1")
        return grants

    monkeypatch.setattr(authority, "take", take_before_the_budget_falls)
    second.settle(await second.admit(caller, 800, session="run1"), 800)
    admitted, _ = await admit_all([second], caller, "run1", 10)
    assert len(admitted) == 2
    for gateway, ctx in admitted:
        gateway.settle(ctx, 100)
    await stop([first, second])
    assert await find_spent(store, caller, "run1") == 1_000


async def test_a_raise_beyond_what_the_key_allows_is_refused_at_every_node(store: CreditStore, tmp_path: Path) -> None:
    """Also where a node takes the raise for a lowering, because it knows an older budget."""
    (first, second), owner = await start_gateways(store, tmp_path, 2)
    key = attrs.evolve(owner.key, max_session_nanos=500)
    caller = Caller(owner.account, key)
    for gateway in (first, second):
        with pytest.raises(BudgetExceeded):
            await gateway.open_budget(caller, "run1", 501)
    await first.open_budget(owner, "run1", 1_000)
    await second.open_budget(owner, "run1", 1_000)
    await first.open_budget(caller, "run1", 300)
    first.settle(await first.admit(caller, 100, session="run1"), 100)
    await first.flusher.store_waiting()
    with pytest.raises(BudgetExceeded) as caught:
        await second.open_budget(caller, "run1", 600)
    assert (caught.value.spent_nanos, caught.value.limit_nanos) == (100, 300)
    await second.open_budget(caller, "run1", 500)
    admitted, _ = await admit_all([first, second], caller, "run1", 20)
    assert len(admitted) == 4
    for gateway, ctx in admitted:
        gateway.settle(ctx, 100)
    await stop([first, second])


async def test_two_nodes_that_open_a_session_at_once_agree(store: CreditStore, tmp_path: Path) -> None:
    gateways, owner = await start_gateways(store, tmp_path, 4)
    caller = Caller(owner.account, attrs.evolve(owner.key, max_session_nanos=300))
    amounts = [300, 200, 400, 300]
    opened = await asyncio.gather(
        *[gateway.open_budget(caller, "run1", nanos) for gateway, nanos in zip(gateways, amounts, strict=True)],
        return_exceptions=True,
    )
    assert isinstance(opened[2], BudgetExceeded)
    limit = await store.connection.fetchval("SELECT limit_nanos FROM session_states")
    assert limit in {200, 300}
    admitted, _ = await admit_all([gateways[0], gateways[1], gateways[3]], caller, "run1", 30)
    assert len(admitted) == limit // 100
    for gateway, ctx in admitted:
        gateway.settle(ctx, 100)
    await stop(gateways)


async def test_a_session_that_was_ended_at_another_node_gets_no_budget(store: CreditStore, tmp_path: Path) -> None:
    (first, second), caller = await start_gateways(store, tmp_path, 2)
    await second.open_budget(caller, "run1", 100)
    await store.connection.execute("UPDATE session_states SET ended_ms = 1")
    with pytest.raises(SessionEnded):
        await second.open_budget(caller, "run1", 50)
    first.limits.open_budgets()
    with pytest.raises(SessionEnded):
        await first.admit(caller, 1, session="run1")
    await stop([first, second])


async def test_a_budget_is_kept_while_another_node_has_credit_of_it(store: CreditStore, tmp_path: Path) -> None:
    (first, second), caller = await start_gateways(store, tmp_path, 2)
    for gateway in (first, second):
        await gateway.open_budget(caller, "run1", 1_000)
    ctx = await first.admit(caller, 100, session="run1")
    later_ms = int(first.now * 1000) + 1
    assert await second.limits.retire_sessions(later_ms) == 0
    first.settle(ctx, 70)
    await first.stop()
    assert await find_spent(store, caller, "run1") == 70
    await store.connection.execute("DELETE FROM requests")
    assert await second.limits.retire_sessions(later_ms) == 1
    assert len(await store.connection.fetch(_CHANGES)) == 2, "other nodes are told"
    assert await find_spent(store, caller, "run1") == 0, "the next budget of the session begins anew"
    await second.stop()


async def test_the_sums_of_deleted_accounts_are_deleted_when_no_node_has_credit_of_them(
    store: CreditStore, tmp_path: Path
) -> None:
    (first, second), caller = await start_gateways(store, tmp_path, 2)
    await first.open_budget(caller, "run1", 1_000)
    second.limits.open_budgets()
    ctx = await first.admit(caller, 100, session="run1")
    await store.connection.execute("DELETE FROM session_states")  # as the deletion of its account does
    first.settle(ctx, 70)
    await first.flusher.store_waiting()
    later_ms = int(first.now * 1000) + 1
    for _ in ("its request is stored", "a node has credit"):
        assert await second.limits.retire_sessions(later_ms) == 0
        assert await find_spent(store, caller, "run1") == 70
        await store.connection.execute("DELETE FROM requests")
    await first.stop()
    assert await second.limits.retire_sessions(later_ms) == 1
    assert await find_spent(store, caller, "run1") == 0
    await second.stop()


async def test_only_balances_in_use_stay_when_a_node_forgets(store: CreditStore, tmp_path: Path) -> None:
    (gateway,), caller = await start_gateways(store, tmp_path, 1)
    for number in range(5):
        await gateway.open_budget(caller, f"run{number}", 100)
    ctx = await gateway.admit(caller, 60, session="run1")
    budgets = gateway.limits.open_budgets()
    budgets.forget()
    assert list(budgets.book.balances) == [f"{caller.account.id}:run1"]
    with pytest.raises(BudgetExceeded):
        await gateway.admit(caller, 60, session="run1")
    gateway.settle(ctx, 30)
    await gateway.admit(caller, 60, session="run1")
    await gateway.admit(caller, 60, session="run2")
    await audit(store)
    await stop([gateway])


async def test_a_request_beyond_its_own_budget_asks_for_no_credit(store: CreditStore, tmp_path: Path) -> None:
    (gateway,), caller = await start_gateways(store, tmp_path, 1)
    with pytest.raises(BudgetExceeded) as caught:
        await gateway.admit(caller, 100, own_nanos=99)
    assert (caught.value.spent_nanos, caught.value.limit_nanos) == (0, 99)
    assert await store.connection.fetchval("SELECT coalesce(sum(granted), 0) FROM credit_leases") == 0
    ctx = await gateway.admit(caller, 100, own_nanos=100)
    gateway.settle(ctx, 100)
    await gateway.stop()
    assert await spent(store) == 100


async def test_a_session_spends_no_more_than_its_budget_while_nodes_are_killed(
    store: CreditStore, tmp_path: Path
) -> None:
    gateways, caller = await start_gateways(store, tmp_path, 2)
    for gateway in gateways:
        await gateway.open_budget(caller, "run1", 1_000)
    settled = 0
    for number in range(6):
        killed, other = gateways[number % 2], gateways[1 - number % 2]
        for gateway in (killed, other):
            gateway.settle(await gateway.admit(caller, 70, session="run1"), 70)
            settled += 70
        await other.flusher.store_waiting()
        await killed.kill()
        gateways[number % 2] = started = LeasedGateway(store.url, f"n{number % 2}", tmp_path)
        await started.start()
    admitted, refused = await admit_all(gateways, caller, "run1", 10)
    assert (settled, len(admitted), len(refused)) == (840, 1, 9)
    for gateway, ctx in admitted:
        gateway.settle(ctx, 100)
    await stop(gateways)
    assert await find_spent(store, caller, "run1") == await spent(store) == 940
