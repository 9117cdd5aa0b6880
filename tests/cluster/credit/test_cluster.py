"""Several gateways on one PostgreSQL database spend one limit: exactly what it covers, whatever happens to them."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest

from gateway.domain.account import Caller
from gateway.domain.account_spec import CreditSpec
from gateway.domain.balance import Balance, Quota, QuotaPeriod
from gateway.domain.context_windows import find_context_window
from gateway.domain.leased_balance import LeasedBalance
from gateway.errors import QuotaExceeded, StoreUnavailable
from gateway.formats.chat.responses.responses import parse_responses_inference
from gateway.request_context import RequestContext
from gateway.storage.api_keys import ApiKeyRepository
from gateway.storage.videos import VideoRepository
from tests.support.billing_services import NANO_A_TOKEN, call_for, capped, option_of
from tests.support.contexts import make_attempt, make_context
from tests.support.credit_checks import add_caller, audit, spent
from tests.support.credit_gateway import LeasedGateway, try_all
from tests.support.credit_store import CreditStore, open_credit_store
from tests.support.fault_scene import until
from tests.support.postgres import SharedPostgres
from tests.support.video_records import make_job


@pytest.fixture
async def store(shared_postgres: SharedPostgres) -> AsyncIterator[CreditStore]:
    async with open_credit_store(shared_postgres) as opened:
        yield opened


@pytest.mark.parametrize(
    ("covered", "whose", "period"),
    [(1, "key", "lifetime"), (7, "account", "daily"), (37, "key", "monthly"), (399, "both", "daily")],
)
async def test_of_callers_at_two_nodes_exactly_as_many_are_admitted_as_the_limit_covers(
    store: CreditStore, tmp_path: Path, covered: int, whose: str, period: QuotaPeriod
) -> None:
    gateways = [LeasedGateway(store.url, name, tmp_path) for name in "ab"]
    for gateway in gateways:
        await gateway.start()
    limit = capped(covered * 100 + 99, period)
    roomy = capped(10**6)
    caller = await add_caller(gateways[0], roomy if whose == "key" else limit, roomy if whose == "account" else limit)
    results = await try_all(gateways, caller, 100, 400)
    admitted = [each for each in results if isinstance(each, RequestContext)]
    refused = [each for each in results if isinstance(each, QuotaExceeded)]
    assert (len(admitted), len(refused)) == (covered, 400 - covered)
    assert {error.status for error in refused} == {403 if period == "lifetime" else 429}
    await audit(store)
    for ctx in admitted:
        for gateway in gateways:
            if ctx.reservation in gateway.balances.reservations:
                gateway.settle(ctx, 100)
    for gateway in gateways:
        await gateway.stop()
    await audit(store)
    assert await spent(store) == covered * 100
    assert await store.connection.fetchval("SELECT count(*) FROM credit_leases") == 0


UNKNOWN_SIZE: dict[str, dict[str, Any]] = {
    "a response before": {"previous_response_id": "resp_1"},
    "a file": {"input": [{"role": "user", "content": [{"type": "input_file", "file_url": "https://up/x.pdf"}]}]},
    "a search": {"tools": [{"type": "web_search"}]},
}


@pytest.mark.parametrize("nodes", [2, 4])
async def test_of_requests_of_unknown_size_one_at_a_time_exceeds_the_limit(
    store: CreditStore, tmp_path: Path, nodes: int
) -> None:
    """Some at all nodes run at once, each of which makes the provider read a whole context window."""
    gateways = [LeasedGateway(store.url, f"n{number}", tmp_path, nodes) for number in range(nodes)]
    for gateway in gateways:
        await gateway.start()
    repository, window = ApiKeyRepository(gateways[0].database), find_context_window("gpt-5.1-codex")
    caller = await add_caller(gateways[0], capped(10**9), capped(10**5))
    account = 0
    for way, body in list(UNKNOWN_SIZE.items()) * 3:
        name = f"{way} {account}"
        key = await repository.add_key(attrs.evolve(caller.key, id=0, name=name, digest=name.encode()))
        asked = attrs.evolve(caller, key=key)
        inference = parse_responses_inference(
            {"model": "gpt-5.1-codex", "input": "hi", "max_output_tokens": 10, **body}
        )
        ordinary = [each.admit(asked, 100) for each in gateways]  # so that every node has idle credit
        for gateway, ctx in zip(gateways, await asyncio.gather(*ordinary), strict=True):
            gateway.settle(ctx, 100)
        results = await try_all(gateways, asked, inference, 20)
        (ctx,) = [each for each in results if isinstance(each, RequestContext)]
        refused = [each for each in results if isinstance(each, QuotaExceeded)]
        assert len(refused) == 19, results
        (gateway,) = [each for each in gateways if ctx.reservation in each.balances.reservations]
        record = gateway.settle(ctx, window)
        account += window + 100 * nodes
        # What the other nodes still hold is not waited for: how much is left depends on their pace.
        most = 10**5 - 100 * nodes
        assert 0 < record.reserved_nanos <= most
        # Nor is what they give back after the request has reserved, which its cost may take.
        assert window - most <= record.overrun_nanos <= window - record.reserved_nanos
    await audit(store, overruns=True)
    for gateway in gateways:
        await gateway.stop()
    assert await spent(store) == account


class Traffic:
    """Requests that come, cost something and end at any node, until no node admits one; nodes are killed meanwhile."""

    def __init__(self, gateways: list[LeasedGateway], caller: Caller, chance: random.Random) -> None:
        self.gateways, self.caller, self.chance = gateways, caller, chance
        self.running: list[tuple[LeasedGateway, RequestContext]] = []
        self.cost = self.refused = 0

    async def ask(self, nanos: int) -> None:
        gateway = self.chance.choice(self.gateways)
        try:
            self.running.append((gateway, await gateway.admit(self.caller, nanos)))
        except QuotaExceeded:
            self.refused += 1

    def end_some(self, share: float) -> None:
        for pair in list(self.running):
            if self.chance.random() < share:
                self.running.remove(pair)
                self.cost += pair[0].settle(pair[1], self.chance.randrange(101)).cost_nanos

    async def kill(self, name: str, make: Callable[[], LeasedGateway]) -> None:
        old = next(gateway for gateway in self.gateways if gateway.credit._node.id == name)
        self.running = [pair for pair in self.running if pair[0] is not old]
        await old.kill()
        self.gateways[self.gateways.index(old)] = new = make()
        await new.start()


async def test_killed_nodes_and_requests_of_every_cost_leave_the_ledger_right(
    store: CreditStore, tmp_path: Path
) -> None:
    def make(name: str) -> LeasedGateway:
        return LeasedGateway(store.url, name, tmp_path)

    gateways = [make(name) for name in "ab"]
    for gateway in gateways:
        await gateway.start()
    caller = await add_caller(gateways[0], capped(8_000), capped(9_000, "daily"))
    traffic = Traffic(gateways, caller, random.Random(7))  # noqa: S311 - no secret
    for turn in range(12):
        await asyncio.gather(*(traffic.ask(100) for _ in range(30)))
        traffic.end_some(0.6)
        if turn % 4 == 3:
            name = "ab"[turn // 4 % 2]
            await traffic.kill(name, partial(make, name))
        await audit(store)
    traffic.end_some(1)
    for gateway in gateways:
        await gateway.stop()
    await audit(store)
    assert await spent(store) == traffic.cost <= 8_000
    assert traffic.refused
    assert 8_000 - traffic.cost < 100 * 30  # what interrupted requests had reserved came back
    assert await store.connection.fetchval("SELECT sum(leased) FROM credit_balances") == 0


async def test_a_job_ends_at_another_node(store: CreditStore, tmp_path: Path) -> None:
    gateways = [LeasedGateway(store.url, name, tmp_path) for name in "ab"]
    for gateway in gateways:
        await gateway.start()
    caller = await add_caller(gateways[0], capped(1_000), capped(1_000))
    first, second = gateways
    reservation = await first.balances.reserve(caller, 600)
    made = make_job(1, account=caller.account.id, held_nanos=600)
    job = attrs.evolve(made, receipt=attrs.evolve(made.receipt, key_id=caller.key.id))
    async with first.balances.hand_over(reservation):
        await VideoRepository(first.database).create(job)
    first.balances.release(reservation)  # it is the job's
    await audit(store)
    with pytest.raises(QuotaExceeded):
        await second.admit(caller, 401)
    row = attrs.evolve(job.receipt, cost_nanos=250, settled_ms=int(second.now * 1000))
    assert await VideoRepository(second.database).finish(job.complete(1, 2), row, None)
    await audit(store)
    first.settle(await first.admit(caller, 750), 750)  # the second has just been refused, and remembers it
    for gateway in gateways:
        await gateway.stop()
    await audit(store)
    assert await spent(store) == 1_000


async def test_a_job_that_was_not_stored_leaves_its_reservation(store: CreditStore, tmp_path: Path) -> None:
    gateway = LeasedGateway(store.url, "a", tmp_path)
    await gateway.start()
    caller = await add_caller(gateway, capped(1_000), Quota())
    reservation = await gateway.balances.reserve(caller, 1_000)
    with pytest.raises(StoreUnavailable):
        async with gateway.balances.hand_over(reservation):
            raise StoreUnavailable("lost")
    gateway.balances.release(reservation)
    gateway.settle(await gateway.admit(caller, 1_000), 1_000)
    await gateway.stop()
    await audit(store)
    assert await spent(store) == 1_000


async def test_the_store_restarts_under_waiting_requests(store: CreditStore, tmp_path: Path) -> None:
    gateway = LeasedGateway(store.url, "a", tmp_path)
    await gateway.start()
    caller = await add_caller(gateway, capped(10**9), Quota())
    contexts = []
    for turn in range(6):
        asked = asyncio.gather(*(gateway.admit(caller, 10**6 + turn) for _ in range(20)))
        if turn % 2:
            await store.cut_others()
        contexts += await asked
    for ctx in contexts:
        gateway.settle(ctx, 9)
    await until(lambda: not gateway.queue and not gateway.queue.failing)
    await gateway.stop()
    await audit(store)
    assert await spent(store) == 9 * len(contexts)


async def test_a_node_that_stops_before_its_rows_are_stored_keeps_what_they_cost_set_aside(
    store: CreditStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped, other = gateways = [LeasedGateway(store.url, name, tmp_path) for name in "ab"]
    for gateway in gateways:
        await gateway.start()
    caller = await add_caller(stopped, Quota(), capped(1_000))
    await stopped.workers.stop()
    stopped.workers.start("keep_credit", stopped.credit.keeper.run)
    stopped.settle(await stopped.admit(caller, 600), 600)

    async def refuse(_rows: object) -> None:
        raise StoreUnavailable("a migration has locked the table")

    monkeypatch.setattr(stopped.ledger, "post", refuse)
    await stopped.stop()
    with pytest.raises(QuotaExceeded):
        await other.admit(caller, 500)
    started = LeasedGateway(store.url, "a", tmp_path)
    await started.start()
    other.balances.note_credit("key", caller.key.id, 0)  # it remembers the refusal for a moment
    other.settle(await other.admit(caller, 400), 400)
    for gateway in (started, other):
        await gateway.stop()
    await audit(store)
    assert await spent(store) == 1_000
    assert await store.connection.fetchval("SELECT count(*) FROM credit_leases") == 0


def _is_called_in(balance: Balance) -> bool:
    assert isinstance(balance, LeasedBalance)
    return balance.room_nanos <= 0


async def test_every_node_shows_and_credits_what_all_have_spent(store: CreditStore, tmp_path: Path) -> None:
    gateways = [LeasedGateway(store.url, name, tmp_path) for name in "ab"]
    for gateway in gateways:
        await gateway.start()
    first, second = gateways
    caller = await add_caller(first, Quota(), capped(1_000, "daily"))
    first.settle(await first.admit(caller, 300), 200)
    second.settle(await second.admit(caller, 300), 100)
    running = await second.admit(caller, 300)
    for gateway in gateways:
        await gateway.flusher.flush()
    shown = []
    for gateway in gateways:
        await gateway.accounting.refresh(caller.key, caller.account)
        shown.append((gateway.accounting.describe(caller.key), gateway.accounting.describe(caller.account)))
    assert shown[0] == shown[1]
    of_key, of_account = shown[0]
    assert of_key["spent_usd"] == of_account["spent_usd"] == pytest.approx(300e-9)
    assert of_key["held_usd"] + of_key["left_usd"] == pytest.approx(700e-9)
    assert of_key["held_usd"] >= 300e-9
    assert (of_account["left_usd"], of_key["overrun_usd"]) == (None, 0)
    assert first.accounting.find_stricter(caller.key, caller.account)[0].owner == "key"
    credited = await first.accounting.credit(caller.key, CreditSpec(Decimal("0.0000007"), "top_up"))
    assert credited["credit_usd"] == pytest.approx(700e-9)
    put = await second.accounting.credit(caller.key, CreditSpec(Decimal("0.0000005"), "set"))
    assert put["held_usd"] + put["left_usd"] == pytest.approx(500e-9)
    for gateway in gateways:  # what was granted of more than there is now is called in
        own = gateway.balances.find_balance("key", caller.key.id)
        await until(partial(_is_called_in, own))
    second.settle(running, 300)
    report = await first.accounting.reconcile()
    assert (report["ok"], report["problems"]) == (True, [])
    await store.connection.execute("UPDATE credit_balances SET leased = leased + 5 WHERE owner = 1")
    assert "key 1: set aside is" in (await first.accounting.reconcile())["problems"][0]
    await store.connection.execute("UPDATE credit_balances SET leased = leased - 5 WHERE owner = 1")
    first.settle(await first.admit(caller, 200), 200)
    with pytest.raises(QuotaExceeded):
        await first.admit(caller, 1)
    for gateway in gateways:
        await gateway.stop()
    await audit(store)
    assert await spent(store) == 300 + 300 + 200


@pytest.mark.parametrize("turn", range(3))
async def test_credits_that_two_nodes_make_at_once_all_count_and_each_reference_once(
    store: CreditStore, tmp_path: Path, turn: int
) -> None:
    gateways = [LeasedGateway(store.url, name, tmp_path) for name in "ab"]
    for gateway in gateways:
        await gateway.start()
    caller = await add_caller(gateways[0], Quota(), capped(1_000))
    gateways[turn % 2].settle(await gateways[turn % 2].admit(caller, 300), 200)
    put = (CreditSpec(Decimal(f"0.00000{number}"), "set") for number in (5, 7))
    await asyncio.gather(
        *(gateway.accounting.credit(caller.key, spec) for gateway, spec in zip(gateways, put, strict=True))
    )
    await gateways[0].accounting.refresh(caller.key)
    shown = gateways[0].accounting.describe(caller.key)
    assert round((shown["held_usd"] + shown["left_usd"]) * 1e9) in {5_000, 7_000}  # the last one's, and not both
    same = CreditSpec(Decimal("0.000001"), "top_up", reference="invoice 7")
    added = await asyncio.gather(*(gateway.accounting.credit(caller.key, same) for gateway in gateways * 2))
    assert sorted(each["added"] for each in added) == [False, False, False, True]
    for gateway in gateways:
        report = await gateway.accounting.reconcile()
        assert (report["ok"], report["problems"]) == (True, [])
    for gateway in gateways:
        await gateway.stop()
    await audit(store)
    assert await store.connection.fetchval("SELECT count(*) FROM entries WHERE reference = 'invoice 7'") == 1


async def test_a_limit_that_is_removed_and_set_again_admits_no_more_than_it_covers(
    store: CreditStore, tmp_path: Path
) -> None:
    gateway = LeasedGateway(store.url, "a", tmp_path)
    await gateway.start()
    caller = await add_caller(gateway, Quota(), capped(1_000))
    gateway.settle(await gateway.admit(caller, 100), 100)
    await gateway.flusher.flush()
    keys = ApiKeyRepository(gateway.database)
    await keys.put_key(attrs.evolve(caller.key, quota=Quota()))
    await keys.put_key(caller.key)
    again = Caller(caller.account, (await keys.find_keys([caller.key.id], []))[0])
    for _ in range(9):
        gateway.settle(await gateway.admit(again, 100), 100)
    await gateway.flusher.flush()
    with pytest.raises(QuotaExceeded):
        await gateway.admit(again, 1)
    await audit(store)
    assert await store.connection.fetchval("SELECT count(*) FROM credit_leases") == 1
    await keys.delete_key(caller.key.id)
    assert await store.connection.fetchval("SELECT count(*) FROM credit_leases") == 0
    await gateway.stop()


async def test_what_a_node_has_spent_beyond_its_lease_is_shown_and_refused_at_another(
    store: CreditStore, tmp_path: Path
) -> None:
    gateways = [LeasedGateway(store.url, name, tmp_path) for name in "ab"]
    for gateway in gateways:
        await gateway.start()
    first, second = gateways
    caller = await add_caller(first, Quota(), capped(1_000))
    begun = make_context(caller, call_for(1), request_id="req_begun", started_ms=int(first.now * 1000), started_at=0.0)
    first.quota.admit_begun(begun, "up")
    begun.attempts.append(make_attempt(option_of(NANO_A_TOKEN)))
    first.settle(begun, 5_000)
    await first.flusher.flush()
    await second.accounting.refresh(caller.key)
    shown = second.accounting.describe(caller.key)
    assert {name: round(shown[name] * 1e9) for name in ("spent_usd", "held_usd", "left_usd", "overrun_usd")} == {
        "spent_usd": 5_000, "held_usd": 0, "left_usd": -4_000, "overrun_usd": 4_000,
    }  # fmt: skip
    with pytest.raises(QuotaExceeded):
        await second.admit(caller, 1)
    for gateway in gateways:
        await gateway.stop()


async def test_a_lease_that_is_smaller_in_the_store_is_reported(store: CreditStore, tmp_path: Path) -> None:
    gateway = LeasedGateway(store.url, "a", tmp_path)
    await gateway.start()
    caller = await add_caller(gateway, Quota(), capped(1_000))
    ctx = await gateway.admit(caller, 300)
    gateway.settle(ctx, 400)  # beyond its reservation, which is no fault
    await gateway.admit(caller, 100)
    assert (await gateway.accounting.reconcile())["problems"] == []
    await store.connection.execute("UPDATE credit_leases SET granted = granted - 7")
    await store.connection.execute("UPDATE credit_balances SET leased = leased - 7")
    report = await gateway.accounting.reconcile()
    assert len(report["problems"]) == 1
    assert "outstanding, the store" in report["problems"][0]
    own = gateway.balances.find_balance("key", caller.key.id)
    assert isinstance(own, LeasedBalance)
    own.granted_nanos -= 10_000
    assert any("more than its lease" in each for each in (await gateway.accounting.reconcile())["problems"])
    await gateway.stop()


async def test_the_audit_of_a_node_shows_the_jobs_of_all(store: CreditStore, tmp_path: Path) -> None:
    gateways = [LeasedGateway(store.url, name, tmp_path) for name in "ab"]
    for gateway in gateways:
        await gateway.start()
    first = gateways[0]
    caller = await add_caller(first, capped(1_000), Quota())
    reservation = await first.balances.reserve(caller, 600)
    made = make_job(1, account=caller.account.id, held_nanos=600)
    job = attrs.evolve(made, receipt=attrs.evolve(made.receipt, key_id=caller.key.id))
    async with first.balances.hand_over(reservation):
        await VideoRepository(first.database).create(job)
    first.balances.release(reservation)
    for gateway in gateways:
        report = await gateway.accounting.reconcile()
        assert (report["ok"], report["open_holds"], report["video_holds"]) == (True, 0, 1)
        assert report["held_usd"] == report["video_held_usd"] == pytest.approx(600e-9)
    for gateway in gateways:
        await gateway.stop()
