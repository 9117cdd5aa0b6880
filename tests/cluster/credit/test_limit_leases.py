"""Several gateways on one PostgreSQL database spend a limit of end users: exactly what it covers for each of them."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from decimal import Decimal
from pathlib import Path

import attrs
import pytest

from gateway.billing.limit_filler import FOLLOW_S, LimitFiller
from gateway.billing.limit_spec import LimitSpec
from gateway.cluster.credit.stored_orphans import end_orphans, reverse_orphan_charges
from gateway.domain.account import Caller
from gateway.domain.account_zone import make_zone
from gateway.domain.credit import build_limit_id
from gateway.domain.ledger import OnCrash
from gateway.errors import QuotaExceeded
from gateway.request_context import RequestContext
from gateway.storage.forgotten_users import ForgottenUserRepository
from gateway.storage.limit_counters import LimitCounters
from tests.support.billing_services import NOON, capped
from tests.support.credit_checks import add_caller, audit, spent
from tests.support.credit_gateway import LeasedGateway
from tests.support.credit_store import CreditStore, open_credit_store
from tests.support.gateway_process import eventually
from tests.support.postgres import SharedPostgres

EACH_USER = LimitSpec("each user", of="user", usd=Decimal(0), window="day")
_LIMIT_AUDIT = """
SELECT b.owner_id, b.leased, b.reserved, coalesce(sum(l.granted), 0) AS granted,
  coalesce(sum(greatest(l.granted - l.posted, 0)), 0) AS outstanding
FROM credit_balances b LEFT JOIN credit_leases l USING (owner, owner_id) WHERE b.owner = 2 GROUP BY 1, 2, 3
"""


@pytest.fixture
async def store(shared_postgres: SharedPostgres) -> AsyncIterator[CreditStore]:
    async with open_credit_store(shared_postgres) as opened:
        yield opened


def build_spec(cap_nanos: int, window: str = "day") -> LimitSpec:
    return attrs.evolve(EACH_USER, usd=Decimal(cap_nanos) / 10**9, window=window)


async def start_gateways(store: CreditStore, path: Path, number: int, *specs: LimitSpec) -> list[LeasedGateway]:
    gateways = [LeasedGateway(store.url, f"n{index}", path, number) for index in range(number)]
    for gateway in gateways:
        gateway.limits.replace(specs)
        await gateway.start()
    return gateways


async def admit_all(
    gateways: Sequence[LeasedGateway], caller: Caller, users: Sequence[str], number: int
) -> tuple[list[tuple[LeasedGateway, RequestContext]], list[QuotaExceeded]]:
    """Let ``number`` callers ask at once for 100 nano-USD, each for one of ``users``, in turn at each gateway."""
    asked_gateways = [gateways[index % len(gateways)] for index in range(number)]
    results = await asyncio.gather(
        *[
            gateway.admit(caller, 100, user=users[index // len(gateways) % len(users)])
            for index, gateway in enumerate(asked_gateways)
        ],
        return_exceptions=True,
    )
    pairs = list(zip(asked_gateways, results, strict=True))
    admitted = [(gateway, result) for gateway, result in pairs if isinstance(result, RequestContext)]
    refused = [result for result in results if isinstance(result, QuotaExceeded)]
    assert len(admitted) + len(refused) == number, results
    return admitted, refused


async def list_spent(store: CreditStore) -> dict[str, int]:
    rows = await store.connection.fetch("SELECT subject, sum(spent_nanos)::bigint FROM limit_counters GROUP BY 1")
    return {subject.partition(":")[2]: nanos for subject, nanos in rows}


async def count_leases(store: CreditStore) -> int:
    return int(await store.connection.fetchval("SELECT count(*) FROM credit_leases WHERE owner = 2"))


async def audit_limits(store: CreditStore, cap_nanos: int) -> None:
    """No subject has spent and set aside more than the cap, and what is set aside is the sum of the leases."""
    await audit(store)
    for row in await store.connection.fetch(_LIMIT_AUDIT):
        assert row["leased"] == row["granted"], dict(row)
        assert row["outstanding"] + row["reserved"] <= cap_nanos, dict(row)
    assert max((await list_spent(store)).values(), default=0) <= cap_nanos


@pytest.mark.parametrize("window", ["day", "lifetime", "rolling:1h"])
@pytest.mark.parametrize("scene", [(4, 1, 37), (2, 1, 1), (4, 5, 7)])
async def test_of_callers_at_all_nodes_exactly_as_many_are_admitted_as_the_limit_of_each_user_covers(
    store: CreditStore, tmp_path: Path, window: str, scene: tuple[int, int, int]
) -> None:
    nodes, users, covered = scene
    gateways = await start_gateways(store, tmp_path, nodes, build_spec(covered * 100 + 99, window))
    caller = await add_caller(gateways[0], capped(10**6), capped(10**6))
    names = [f"u-{number}" for number in range(users)]
    admitted, refused = await admit_all(gateways, caller, names, 400)
    assert Counter(ctx.attribution.end_user for _, ctx in admitted) == dict.fromkeys(names, covered)
    assert {error.status for error in refused} == {403 if window == "lifetime" else 429}
    assert all("limit 'each user' of the user 'u-" in error.message for error in refused)
    await audit_limits(store, covered * 100 + 99)
    for gateway, ctx in admitted:
        gateway.settle(ctx, 100)
    for gateway in gateways:
        await gateway.stop()
    assert await list_spent(store) == dict.fromkeys(names, covered * 100)
    assert await spent(store) == users * covered * 100
    assert await count_leases(store) == 0


async def test_a_refusal_tells_what_a_single_process_tells(store: CreditStore, tmp_path: Path) -> None:
    first, second = await start_gateways(store, tmp_path, 2, build_spec(250))
    caller = await add_caller(first, capped(10**6), capped(10**6))
    for gateway in (first, second):
        gateway.settle(await gateway.admit(caller, 100, user="u-1"), 100)
        await gateway.flusher.store_waiting()
    with pytest.raises(QuotaExceeded) as caught:
        await second.admit(caller, 100, user="u-1")
    assert caught.value.message == (
        "The limit 'each user' of the user 'u-1' ($0.00000025 per day) does not cover this request: it may cost up to "
        "$0.0000001, and $0.00000005 is left; $0.0000002 is spent, and it resets at 2027-05-16T00:00:00Z"
    )
    assert caught.value.status == 429
    assert caught.value.room_nanos == 50
    for gateway in (first, second):
        await gateway.stop()


async def test_idle_credit_of_a_user_is_given_back_and_recalled(store: CreditStore, tmp_path: Path) -> None:
    first, second = await start_gateways(store, tmp_path, 2, build_spec(1_000))
    caller = await add_caller(first, capped(10**6), capped(10**6))
    ctx = await first.admit(caller, 100, user="u-1")
    balance = first.credit.keeper.find(build_limit_id("each user|user|day|UTC", f"{caller.account.id}:u-1"))
    assert balance is not None
    assert balance.granted_nanos > 100
    admitted, _ = await admit_all([second], caller, ["u-1"], 20)
    assert len(admitted) == 9  # the first node has given back what it had beyond its request
    first.settle(ctx, 100)
    for _, other in admitted:
        second.settle(other, 50)

    async def is_given_back() -> bool:
        return await count_leases(store) == 0

    await eventually(is_given_back, 30)
    await audit_limits(store, 1_000)
    for gateway in (first, second):
        await gateway.stop()
    assert await list_spent(store) == {"u-1": 100 + 9 * 50}


async def count_balances(store: CreditStore) -> int:
    return int(await store.connection.fetchval("SELECT count(*) FROM credit_balances WHERE owner = 2"))


async def test_users_who_are_refused_leave_nothing_in_the_database(store: CreditStore, tmp_path: Path) -> None:
    """So a caller that makes up names of users cannot fill it, even if the node is killed."""
    (gateway,) = await start_gateways(store, tmp_path, 1, build_spec(99))
    caller = await add_caller(gateway, capped(10**6), capped(10**6))
    _, refused = await admit_all([gateway], caller, [f"u-{number}" for number in range(20)], 20)
    assert len(refused) == 20
    assert await count_balances(store) == 0
    await gateway.kill()


async def test_a_balance_that_is_given_up_without_a_lease_is_deleted(store: CreditStore, tmp_path: Path) -> None:
    (gateway,) = await start_gateways(store, tmp_path, 1, build_spec(1_000))
    await store.connection.execute("INSERT INTO credit_balances (owner, owner_id, period, start) VALUES (2, 7, 0, 0)")
    await store.connection.execute("SELECT give_credit('n0', '{2}', '{7}', '{0}')")
    assert await count_balances(store) == 0
    await gateway.stop()


async def test_the_balances_of_an_ended_node_go_with_its_leases(store: CreditStore, tmp_path: Path) -> None:
    (gateway,) = await start_gateways(store, tmp_path, 1, build_spec(1_000))
    caller = await add_caller(gateway, capped(10**6), capped(10**6))
    admitted, _ = await admit_all([gateway], caller, ["u-1", "u-2"], 2)
    assert await count_balances(store) == 2
    for node, ctx in admitted:
        node.settle(ctx, 100)
    await gateway.stop()
    assert (await count_leases(store), await count_balances(store)) == (0, 0)


async def test_caps_beyond_64_bits_together_are_granted(store: CreditStore, tmp_path: Path) -> None:
    huge = Decimal(9 * 10**9)
    specs = attrs.evolve(EACH_USER, usd=huge), LimitSpec("more", raises=EACH_USER.name, usd=huge)
    (gateway,) = await start_gateways(store, tmp_path, 1, *specs)
    caller = await add_caller(gateway, capped(10**6), capped(10**6))
    gateway.settle(await gateway.admit(caller, 100, user="u-1"), 100)
    await gateway.stop()
    assert await list_spent(store) == {"u-1": 100}


@pytest.mark.parametrize("window", ["day", "rolling:24h"])
async def test_what_a_failover_lets_a_user_spend_beyond_the_limit_is_an_overrun(
    store: CreditStore, tmp_path: Path, window: str
) -> None:
    """The new primary lacks the lease of one node, and grants its credit to the other one."""
    first, second = await start_gateways(store, tmp_path, 2, build_spec(200, window))
    caller = await add_caller(first, capped(10**6), capped(10**6))
    held = [await gateway.admit(caller, 100, user="ann") for gateway in (first, second)]
    await store.connection.execute("DELETE FROM credit_leases WHERE node = 'n1' AND owner = 2")
    more = await first.admit(caller, 100, user="ann")
    for ctx in (held[0], more, await first.admit(caller, 100, user="bob")):
        first.settle(ctx, 100)
    await first.flusher.store_waiting()
    for _ in range(2):
        for gateway in (first, second):
            assert gateway.database.credit is not None
            await gateway.credit.keeper.restore_leases(gateway.database.credit.restore_leases)
        assert await list_overruns(store) == {"ann": 100}
    second.settle(held[1], 100)
    await second.flusher.store_waiting()
    assert first.database.credit is not None
    await first.credit.keeper.restore_leases(first.database.credit.restore_leases)
    assert await list_overruns(store) == {"ann": 100}
    await audit(store)
    for gateway in (first, second):
        await gateway.stop()


async def list_overruns(store: CreditStore) -> dict[str, int]:
    rows = await store.connection.fetch(
        "SELECT end_user, sum(overrun_nanos)::bigint AS nanos FROM requests WHERE overrun_nanos > 0 GROUP BY 1"
    )
    return {row["end_user"]: row["nanos"] for row in rows}


async def test_the_leader_counts_for_a_new_limit_what_all_nodes_have_spent_before(
    store: CreditStore, tmp_path: Path
) -> None:
    first, second = await start_gateways(store, tmp_path, 2)
    caller = await add_caller(first, capped(10**6), capped(10**6))
    running = await second.admit(caller, 100, user="bob")
    for gateway in (first, second):
        gateway.settle(await gateway.admit(caller, 100, user="ann"), 100)
        await gateway.flusher.store_waiting()
        gateway.limits.replace([build_spec(250)])
    spending = first.limits.spending
    assert spending is not None
    filler = LimitFiller(first.database, first.queue, spending, lambda: first.now, is_shared=True, max_rows=1)
    await filler.open()
    await filler.step()
    early = await second.admit(caller, 100, user="ann")  # one of the two is counted
    for _ in range(5):
        await filler.step()
    with pytest.raises(QuotaExceeded):
        await first.admit(caller, 100, user="ann")
    second.settle(early, 50)
    second.settle(running, 100)
    await second.flusher.store_waiting()
    assert await list_spent(store) == {"ann": 250}
    for _ in range(5):
        await filler.step()
    assert await list_spent(store) == {"ann": 250, "bob": 100}
    with pytest.raises(QuotaExceeded):
        await second.admit(caller, 200, user="bob")
    first.now += FOLLOW_S + 1
    await filler.step()
    assert not filler.open_counters
    await audit(store)
    for gateway in (first, second):
        await gateway.stop()


@pytest.mark.parametrize("verdict", ["charge", "release"])
async def test_what_a_lost_node_had_set_aside_counts_under_limits_until_it_comes_back(
    store: CreditStore, tmp_path: Path, verdict: OnCrash
) -> None:
    first, second = await start_gateways(store, tmp_path, 2, build_spec(1_000))
    caller = await add_caller(first, capped(10**6), capped(10**6))
    first.settle(await first.admit(caller, 100, user="ann"), 100)
    await first.flusher.store_waiting()
    await first.admit(caller, 300, user="ann")
    await first.kill()
    held_nanos = await store.connection.fetchval("SELECT granted - posted FROM credit_leases WHERE owner = 2")
    assert held_nanos >= 300
    await end_orphans(second.database, "n0", verdict, second.now)
    charged_nanos = held_nanos if verdict == "charge" else 0
    assert await list_spent(store) == {"ann": 100 + charged_nanos}
    counters, users = LimitCounters(second.database), ForgottenUserRepository(second.database)
    await users.rename_balances(["ann"], "x", None)
    assert await list_spent(store) == ({"ann": 100, "x": charged_nanos} if charged_nanos else {"ann": 100})
    await users.rename_balances(["x"], "ann", None)
    with pytest.raises(QuotaExceeded):
        await second.admit(caller, 901 - charged_nanos, user="ann")
    second.settle(await second.admit(caller, 900 - charged_nanos, user="ann"), 10)
    await second.flusher.store_waiting()
    audited = await second.ledger.audit_cluster()
    assert audited is not None
    assert not audited.counter_differences
    assert {charge: nanos for charge, nanos in (await counters.list_all()).items() if nanos} == (
        await counters.recompute()
    ).spent
    await reverse_orphan_charges(second.database, "n0")
    assert await list_spent(store) == {"ann": 110}
    assert (await counters.recompute()).spent == await counters.list_all()
    await audit(store)
    await second.stop()


@pytest.mark.parametrize(("of", "zone", "start_hour"), [("key", "America/New_York", 4), ("account", "Asia/Tokyo", -9)])
async def test_what_a_lost_node_had_set_aside_is_charged_in_the_window_of_the_account(
    store: CreditStore, tmp_path: Path, of: str, zone: str, start_hour: int
) -> None:
    spec = attrs.evolve(build_spec(1_000), of=of)
    first, second = await start_gateways(store, tmp_path, 2, spec)
    caller = await add_caller(first, capped(10**6), capped(10**6))
    for gateway in (first, second):
        gateway.limits.set_zone(caller.account.id, [caller.key.id], make_zone(((0, zone),)))
    await first.admit(caller, 300)
    await first.kill()
    held_nanos = await store.connection.fetchval("SELECT granted - posted FROM credit_leases WHERE owner = 2")
    await end_orphans(second.database, "n0", "charge", second.now, spending=second.limits.spending)
    (row,) = await store.connection.fetch("SELECT start_s, spent_nanos FROM limit_counters")
    assert (row["start_s"], row["spent_nanos"]) == (int(NOON) + (start_hour - 12) * 3_600, held_nanos)
    with pytest.raises(QuotaExceeded):
        await second.admit(caller, 1_001 - held_nanos)
    second.settle(await second.admit(caller, 1_000 - held_nanos), 1)
    await second.flusher.store_waiting()
    await audit(store)
    await second.stop()
