"""M5: what a node has set aside that is gone for good is released or charged, once; a late return is on record."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import attrs
import pytest

from gateway.billing.quota import build_start
from gateway.cluster.credit.node_credit import _OrphanRepository
from gateway.cluster.credit.orphans import OrphanWorker
from gateway.cluster.credit.stored_orphans import end_orphans, list_orphaned_nodes
from gateway.cluster.journal.left_notes import EndedNodeNotes, record_journal_location
from gateway.cluster.journal.note_worker import NoteCollector
from gateway.cluster.journal.request_notes import NoteWriter
from gateway.domain.account import Caller
from gateway.domain.balance import Quota, parse_day
from gateway.domain.ledger import OnCrash
from gateway.errors import Conflict, NotFound, QuotaExceeded
from gateway.storage.api_keys import ApiKeyRepository
from gateway.storage.postgres.address import Address
from tests.support.billing_services import capped
from tests.support.cluster import start_nodes
from tests.support.credit_checks import add_caller, audit, spent
from tests.support.credit_gateway import LeasedGateway
from tests.support.credit_store import CreditStore, open_credit_store
from tests.support.gateway import channel
from tests.support.gateway_process import GatewayProcess, eventually
from tests.support.postgres import SharedPostgres
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.spending_callers import PRICE, RESERVED_USD, call

LIMIT = 1_000
_REGISTER = """
INSERT INTO nodes (id, epoch, state, url, version, schema, config_digest, started_ms, ended_ms)
VALUES ($1, 1, $2, '', '', '', '', 0, CASE $2 WHEN 'live' THEN NULL ELSE
  (extract(epoch FROM clock_timestamp()) * 1000)::bigint - 2000 END)
ON CONFLICT (id) DO UPDATE SET epoch = nodes.epoch + 1, state = excluded.state, ended_ms = excluded.ended_ms
"""


@pytest.fixture
async def store(shared_postgres: SharedPostgres) -> AsyncIterator[CreditStore]:
    async with open_credit_store(shared_postgres) as opened:
        yield opened


async def set_state(store: CreditStore, node: str, state: str) -> None:
    """As the leader declares a node dead, two seconds ago, or as it registers."""
    await store.connection.execute(_REGISTER, node, state)


def make_worker(gateway: LeasedGateway, after_s: float, verdict: OnCrash) -> OrphanWorker:
    own = gateway.credit._node
    orphans = _OrphanRepository(gateway.database, own.id, lambda: gateway.now, gateway.limits)
    own.leads = True  # type: ignore[misc]
    return OrphanWorker(orphans, own, after_s, verdict, lambda: not gateway.queue)


async def lose(store: CreditStore, folder: Path, account: Quota, key: Quota) -> tuple[LeasedGateway, Caller]:
    """Kill the node ``a`` that has 100 stored, 300 settled and not stored, and one request of 100 under way."""
    lost, left = (LeasedGateway(store.url, name, folder) for name in "ab")
    for each in (lost, left):
        await each.start()
        await set_state(store, each.credit._node.id, "live")
    caller = await add_caller(lost, account, key)
    lost.settle(await lost.admit(caller, 100), 100)
    await lost.flusher.flush()
    lost.flusher = None  # type: ignore[assignment]
    await lost.workers.stop()
    lost.workers.start("keep_credit", lost.credit.keeper.run)
    for nanos in (300, 100):
        ctx = await lost.admit(caller, nanos)
        if nanos == 300:
            lost.settle(ctx, nanos)
    await lost.kill()
    await set_state(store, "a", "dead")
    return left, caller


async def find_left(gateway: LeasedGateway, caller: Caller) -> tuple[float, float]:
    """What is left of the key's limit, and what was spent beyond it, in nano-USD."""
    await gateway.accounting.refresh(caller.key)
    shown = gateway.accounting.describe(caller.key)
    return round(shown["left_usd"] * 1e9), round(shown["overrun_usd"] * 1e9)


async def come_back(store: CreditStore, folder: Path) -> None:
    await set_state(store, "a", "live")
    lost = LeasedGateway(store.url, "a", folder)
    await lost.start()
    await lost.stop()


async def test_nothing_is_charged_for_a_lease_whose_limit_was_removed(store: CreditStore, tmp_path: Path) -> None:
    left, caller = await lose(store, tmp_path, Quota(), capped(LIMIT))
    keys = ApiKeyRepository(left.database)
    await keys.put_key(attrs.evolve(caller.key, quota=Quota()))
    assert await end_orphans(left.database, "a", "charge", left.now) == 0
    await keys.put_key(caller.key)
    assert await find_left(left, caller) == (LIMIT - 100, 0)
    await audit(store)
    await left.stop()


async def test_released_credit_is_for_the_others_and_a_late_return_is_an_overrun(
    store: CreditStore, tmp_path: Path
) -> None:
    left, caller = await lose(store, tmp_path, Quota(), capped(LIMIT))
    await make_worker(left, 60, "release").end_due_leases()
    with pytest.raises(QuotaExceeded):
        await left.admit(caller, 900)  # two seconds are not a minute
    await make_worker(left, 2, "release").end_due_leases()
    await audit(store)
    left.balances.note_credit("key", caller.key.id, 0)  # it remembers the refusal for a moment
    left.settle(await left.admit(caller, 900), 900)
    await left.flusher.flush()
    assert await find_left(left, caller) == (0, 0)
    await come_back(store, tmp_path)
    await audit(store, overruns=True)
    assert await find_left(left, caller) == (-300, 300)
    assert await spent(store) == 100 + 900 + 300
    await left.stop()
    assert await store.connection.fetchval("SELECT count(*) FROM credit_leases") == 0


@pytest.mark.parametrize("period", ["lifetime", "daily"])
async def test_charged_credit_is_taken_back_when_the_node_posts_what_it_spent(
    store: CreditStore, tmp_path: Path, period: str
) -> None:
    limit = capped(LIMIT, "lifetime" if period == "lifetime" else "daily")
    left, caller = await lose(store, tmp_path, limit, limit)
    outstanding = await store.connection.fetchval(
        "SELECT granted - posted FROM credit_leases WHERE owner = 1 AND node = 'a'"
    )
    assert outstanding >= 400
    worker = make_worker(left, 2, "charge")
    await worker.end_due_leases()
    await worker.end_due_leases()  # once
    await audit(store)
    rows = await store.connection.fetch("SELECT * FROM entries WHERE kind = 'orphan' ORDER BY sequence")
    assert [(row["key_id"], row["amount_nanos"]) for row in rows] == [
        (None, -outstanding),
        (caller.key.id, -outstanding),
    ]
    assert await find_left(left, caller) == (LIMIT - 100 - outstanding, 0)
    listed = await left.accounting.list_credits(caller.key, 9)
    assert [(each["kind"], each["reference"]) for each in listed] == [("orphan", "a")]
    await come_back(store, tmp_path)
    await audit(store)
    assert await find_left(left, caller) == (LIMIT - 400, 0)
    assert await spent(store) == 400
    await come_back(store, tmp_path)
    assert await store.connection.fetchval("SELECT sum(amount_nanos) FROM entries WHERE kind = 'orphan'") == 0
    assert await store.connection.fetchval("SELECT count(*) FROM entries WHERE kind = 'orphan'") == 4
    report = await left.accounting.reconcile()
    assert (report["ok"], report["problems"]) == (True, [])
    await left.stop()


async def test_a_return_on_another_day_is_credited_to_the_day_of_the_charge(store: CreditStore, tmp_path: Path) -> None:
    left, caller = await lose(store, tmp_path, Quota(), capped(LIMIT, "daily"))
    await make_worker(left, 2, "charge").end_due_leases()
    assert await find_credit(left, caller) <= -400
    left.now += 86_400
    left.settle(await left.admit(caller, 10), 10)
    await left.flusher.flush()
    assert await find_credit(left, caller) == 0
    await come_back(store, tmp_path)
    assert await find_credit(left, caller) == 0
    await audit(store)
    left.now -= 86_400
    assert await store.connection.fetchval("SELECT sum(amount_nanos) FROM entries WHERE kind = 'orphan'") == 0
    await left.stop()


async def find_credit(gateway: LeasedGateway, caller: Caller) -> int:
    await gateway.accounting.refresh(caller.key)
    found: int = round(gateway.accounting.describe(caller.key)["credit_usd"] * 1e9)
    return found


async def test_a_folder_that_is_restored_from_a_copy_posts_nothing_twice(store: CreditStore, tmp_path: Path) -> None:
    left, caller = await lose(store, tmp_path, Quota(), capped(LIMIT))
    journal = tmp_path / "a.journal"
    copy = journal.read_bytes()
    for _ in range(2):
        await come_back(store, tmp_path)
        await set_state(store, "a", "dead")
        journal.write_bytes(copy)  # the same id, and an old journal
    await make_worker(left, 0, "release").end_due_leases()
    await audit(store)
    assert await spent(store) == 400
    assert await store.connection.fetchval("SELECT count(*) FROM requests") == 3
    assert (await find_left(left, caller))[0] == LIMIT - 400
    await left.stop()


async def test_a_living_node_keeps_its_leases_and_an_unknown_one_is_none(store: CreditStore, tmp_path: Path) -> None:
    left, caller = await lose(store, tmp_path, Quota(), capped(LIMIT))
    await left.admit(caller, 5)
    now_s = left.now
    with pytest.raises(Conflict):
        await end_orphans(left.database, "b", "release", now_s)
    with pytest.raises(NotFound):
        await end_orphans(left.database, "c", "release", now_s)
    assert await list_orphaned_nodes(left.database, 0) == ["a"]
    assert await end_orphans(left.database, "a", "release", now_s) >= 400
    assert await list_orphaned_nodes(left.database, 0) == []
    assert await store.connection.fetchval("SELECT state FROM nodes WHERE id = 'a'") == "gone"
    await left.stop()


async def test_a_node_that_was_held_for_dead_spends_nothing_that_was_settled(
    store: CreditStore, tmp_path: Path
) -> None:
    zombie, left = (LeasedGateway(store.url, name, tmp_path) for name in "ab")
    for each in (zombie, left):
        await each.start()
        await set_state(store, each.credit._node.id, "live")
    caller = await add_caller(zombie, Quota(), capped(LIMIT))
    running = await zombie.admit(caller, 200)
    at_hand = zombie.balances.reserve_now(caller, 40)  # it has more than it needed
    assert at_hand is not None
    zombie.balances.release(at_hand)
    await set_state(store, "a", "dead")
    await make_worker(left, 2, "charge").end_due_leases()
    worker = make_worker(zombie, 0, "charge")
    await set_state(store, "a", "live")
    zombie.credit._node.epoch = 2  # type: ignore[attr-defined]
    zombie.credit.keeper.distrust_leases()  # as the reload of a node that registers again does
    assert zombie.balances.reserve_now(caller, 1) is None
    zombie.settle(running, 150)
    await zombie.flusher.flush()
    await worker.step()
    await audit(store)
    assert await store.connection.fetchval("SELECT sum(amount_nanos) FROM entries WHERE kind = 'orphan'") == 0
    for nanos in (500, 250):
        left.settle(await left.admit(caller, nanos), nanos)
    for each in (left, zombie):
        await each.stop()
    await audit(store)
    assert await spent(store) == 150 + 750


async def test_a_frozen_node_without_a_disk_stays_within_the_limit_when_it_wakes(
    store: CreditStore, tmp_path: Path
) -> None:
    frozen, left = (LeasedGateway(store.url, name, tmp_path) for name in "ab")
    for each in (frozen, left):
        await each.start()
        await set_state(store, each.credit._node.id, "live")
    await record_journal_location(left.database, "a", "store")
    caller = await add_caller(frozen, Quota(), capped(LIMIT))
    await frozen.workers.stop()
    frozen.workers.start("keep_credit", frozen.credit.keeper.run)
    requests = [await frozen.admit(caller, 100) for _ in range(8)]
    writer = NoteWriter(Address(store.url), lambda: "a:1")
    written = [writer.write_soon(build_start(ctx, "up", 100)) for ctx in requests]
    await writer.step()
    await asyncio.gather(*written)
    for ctx in requests[:4]:
        frozen.settle(ctx, 100)  # in memory only
    await set_state(store, "a", "dead")
    collector = NoteCollector(
        EndedNodeNotes(left.database, lambda: parse_day(left.now), lambda _: ""),
        lambda: True,
        "release",
        time.time,
        0.0,
    )
    await collector.step()
    await audit(store)
    with pytest.raises(QuotaExceeded):
        await left.admit(caller, 300)
    left.balances.note_credit("key", caller.key.id, 0)  # it remembers the refusal for a moment
    await set_state(store, "a", "live")
    frozen.credit.keeper.distrust_leases()  # as the reload of a node that registers again does
    for ctx in requests[4:]:
        frozen.settle(ctx, 100)
    await frozen.flusher.flush()
    await audit(store)
    frozen.settle(await frozen.admit(caller, 100), 100)
    left.settle(await left.admit(caller, 100), 100)
    for each in (frozen, left):
        await each.stop()
    await writer.close()
    await audit(store)
    assert await spent(store) == LIMIT
    assert await store.connection.fetchval("SELECT count(*) FROM credit_leases") == 0


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_the_leader_settles_what_a_killed_process_had_and_forgetting_does_it_at_once(
    tmp_path: Path, shared_postgres: SharedPostgres
) -> None:
    url = await shared_postgres.empty()
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        tables = {
            "channel": [channel(up.base_url)],
            "account": [{"name": "acme"}],
            "price": [PRICE],
            "ledger": {"on_crash": "charge"},
        }
        async with start_nodes(tmp_path, [url] * 3, tables, {"orphan_after_s": 2}) as nodes:
            quota = {"quota_usd": round(RESERVED_USD * 20, 9)}
            key = await nodes[0].ask("keys", {"name": "k", "account": "acme", **quota})

            async def can_all() -> bool:
                return [await call(node, key["secret"]) for node in nodes] == [200] * 3

            await eventually(can_all, 30)
            connection = await asyncpg.connect(url)
            try:
                names = [next(one["id"] for one in await listed(node) if one["own"]) for node in nodes]
                with pytest.raises(AssertionError, match="conflict"):
                    await nodes[0].ask(f"nodes/{names[1]}/forget", {"leases": "release"})
                await nodes[1].kill()
                await nodes[2].kill()
                dead = "UPDATE nodes SET state = 'dead', ended_ms = $2 WHERE id = $1"
                now = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"
                now_ms = await connection.fetchval(now)
                await connection.execute(dead, names[1], now_ms + 3_600_000)  # not due for an hour
                settled = await nodes[0].ask(f"nodes/{names[1]}/forget", {"leases": "release"})
                assert settled["outstanding_usd"] > 0
                assert await leases(connection, names[1]) == 0
                assert await leases(connection, names[2]) > 0
                await connection.execute(dead, names[2], now_ms)
                await eventually(lambda: is_settled(connection, names[2]), 60)
                noted = [
                    row["reference"] for row in await connection.fetch("SELECT * FROM entries WHERE kind = 'orphan'")
                ]
                assert noted == [names[2]]
                assert (await nodes[0].ask("audit"))["ok"]
                log = [row["action"] for row in (await nodes[0].ask("audit-trail"))["data"]]
                assert log.count("node.forgotten") == 1
                for node in nodes[1:]:
                    await node.start()
                report = await nodes[0].check_books()
                assert report["ok"]
                assert await connection.fetchval("SELECT sum(amount_nanos) FROM entries WHERE kind = 'orphan'") == 0
                await asyncio.gather(*(node.end() for node in nodes))
                assert await connection.fetchval("SELECT count(*) FROM credit_leases") == 0
            finally:
                await connection.close()


async def listed(node: GatewayProcess) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await node.ask("nodes"))["data"]
    return found


async def leases(connection: asyncpg.Connection, node: str) -> int:
    return int(await connection.fetchval("SELECT count(*) FROM credit_leases WHERE node = $1", node))


async def is_settled(connection: asyncpg.Connection, node: str) -> bool:
    return await leases(connection, node) == 0
