"""Every write of a node keeps the balances and leases of the cluster right, in its own transaction."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import attrs
import pytest
from sqlalchemy import Executable, text

from gateway.cluster.credit.authority import PostgresCreditAuthority
from gateway.cluster.credit.rows import LIMITS_LOCK
from gateway.cluster.credit.store import PostgresCredit, clear_credit
from gateway.domain.account import Account, ApiKey
from gateway.domain.balance import DAY_S, Quota, parse_day
from gateway.domain.credit import BalanceId, CreditFigures, CreditRequest, LeaseClaim
from gateway.domain.ledger import LedgerEntry
from gateway.domain.request_log import RequestRecord
from gateway.domain.video import VideoJob
from gateway.errors import NotFound, StoreUnavailable
from gateway.events import Events
from gateway.storage.accounts import AccountRepository
from gateway.storage.api_keys import ApiKeyRepository
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.database import Database, DatabaseStartupError
from gateway.storage.ledger import LedgerRepository
from gateway.storage.open import open_database
from gateway.storage.postgres.address import Address
from gateway.storage.postgres.database import PostgresDatabase
from gateway.storage.postgres.lock_numbers import OVERRUNS_LOCK
from gateway.storage.retention import RetentionRepository
from gateway.storage.videos import VideoRepository
from tests.support.billing_services import NOON, capped
from tests.support.credit_store import CreditStore, open_credit_store
from tests.support.postgres import SharedPostgres, await_waiter
from tests.support.request_records import ROW
from tests.support.video_records import make_job

TODAY = parse_day(NOON)
KEY: BalanceId = ("key", 1)
ACCOUNT: BalanceId = ("account", 1)


class Cluster:
    """A node named ``a`` on a database, with an account and a key that have limits."""

    def __init__(self, store: CreditStore, database: Database, node: PostgresCreditAuthority) -> None:
        self.store, self.database, self.node, self.day = store, database, node, TODAY
        self.database.credit = PostgresCredit(database, "a", lambda: self.day)
        self.accounts, self.keys = AccountRepository(self.database), ApiKeyRepository(self.database)
        self.ledger, self.videos = LedgerRepository(self.database), VideoRepository(self.database)

    async def find(self, balance: BalanceId) -> dict[str, int] | None:
        """The balance, with the sums of its leases."""
        row = await self.store.connection.fetchrow(
            "SELECT period, credit, settled, leased, reserved, coalesce(sum(granted), 0)::bigint granted,"
            " coalesce(sum(posted), 0)::bigint posted"
            " FROM credit_balances LEFT JOIN credit_leases USING (owner, owner_id)"
            " WHERE owner = $1 AND owner_id = $2 GROUP BY credit_balances.owner, credit_balances.owner_id",
            0 if balance[0] == "account" else 1,
            balance[1],
        )
        return None if row is None else dict(row)

    async def take(self, need: int) -> None:
        wants = [CreditRequest(each, need, need, need) for each in (ACCOUNT, KEY)]
        assert [grant.granted_nanos for grant in await self.node.take(wants, self.day)] == [need, need]


@pytest.fixture
async def cluster(shared_postgres: SharedPostgres) -> AsyncIterator[Cluster]:
    async with open_credit_store(shared_postgres) as store:
        database = await open_database(store.url)
        node = PostgresCreditAuthority(Address(store.url), "a", lambda: 1, Events())
        made = Cluster(store, database, node)
        await made.accounts.add_account(Account(0, "acme", quota=capped(1_000, "daily")))
        await made.keys.add_key(ApiKey(0, 1, "laptop", b"d", "last", quota=capped(500)))
        yield made
        await node.close()
        await database.close()


class OtherNode:
    """The user of another node's database, which shares the lock of writes."""

    async def acquire(self, wait_s: float = 0.0) -> None:
        pass

    def lock(self, *, is_exclusive: bool) -> Executable:
        return text(f"SELECT pg_advisory_xact_lock{'' if is_exclusive else '_shared'}({LIMITS_LOCK}), 1 AS alive")

    def lose(self) -> None:
        raise AssertionError

    async def close(self) -> None:
        pass


async def list_problems(cluster: Cluster) -> Sequence[str]:
    found = await cluster.ledger.audit_cluster()
    assert found is not None
    return found.problems


def row(nanos: int, **more: Any) -> RequestRecord:
    return attrs.evolve(
        ROW, account_id=1, key_id=1, cost_nanos=nanos, attempts=1, settled_ms=int(NOON * 1000),
        started_ms=int(NOON * 1000) - 5, **more,
    )  # fmt: skip


def job(held: int) -> VideoJob:
    made = make_job(1, account=1, held_nanos=held)
    return attrs.evolve(made, receipt=attrs.evolve(made.receipt, key_id=1))


async def test_a_limit_makes_changes_and_deletes_its_balance(cluster: Cluster) -> None:
    assert (await cluster.find(KEY) or {})["period"] == 0
    key = (await cluster.keys.list_keys())[0]
    await cluster.take(100)
    await cluster.ledger.post([row(60, id="req_1")])
    await cluster.keys.put_key(attrs.evolve(key, quota=capped(500, "daily")))
    assert await cluster.find(KEY) == {
        "period": 1, "credit": 0, "settled": 60, "leased": 40, "reserved": 0, "granted": 40, "posted": 0,
    }  # fmt: skip
    await cluster.keys.put_key(attrs.evolve(key, quota=Quota()))
    assert await cluster.find(KEY) is None
    await cluster.keys.put_key(attrs.evolve(key, quota=capped(9)))
    assert (await cluster.find(KEY) or {})["settled"] == 60


async def test_a_change_of_something_else_leaves_the_balance(cluster: Cluster) -> None:
    await cluster.take(100)
    key = (await cluster.keys.list_keys())[0]
    before = await cluster.find(KEY)
    await cluster.keys.put_key(attrs.evolve(key, name="desk"))
    assert await cluster.find(KEY) == before


@pytest.mark.parametrize("whose", ["key", "account"])
async def test_deletion_takes_balances_and_leases_along(cluster: Cluster, whose: str) -> None:
    await cluster.take(100)
    with pytest.raises(NotFound):
        await cluster.keys.delete_key(5)
    await (cluster.keys.delete_key(1) if whose == "key" else cluster.accounts.delete_account(1))
    assert await cluster.find(KEY) is None
    assert (await cluster.find(ACCOUNT) is None) == (whose == "account")
    assert len(await cluster.node.find_leases()) == (1 if whose == "key" else 0)


async def test_rows_are_posted_once_with_their_commit(cluster: Cluster) -> None:
    await cluster.take(100)
    await cluster.ledger.post([row(20, id="req_1"), row(0, id="req_2")])
    await cluster.ledger.post([row(20, id="req_1"), row(5, id="req_3")])  # its answer was lost
    await cluster.ledger.post_again([row(5, id="req_3"), row(3, id="req_4")])
    for balance in (KEY, ACCOUNT):
        assert (await cluster.find(balance) or {})["posted"] == 28
    assert await cluster.ledger.find_stored_ids(["req_1", "req_9"]) == {"req_1"}


async def test_what_a_node_brings_after_newer_rows_were_deleted_is_charged_unless_it_was_stored(
    cluster: Cluster,
) -> None:
    await cluster.take(100)
    left = [attrs.evolve(row(nanos, id=f"req_{nanos}"), started_ms=1) for nanos in (7, 0)]
    await cluster.ledger.post([row(20, id="req_20")])
    assert (await RetentionRepository(cluster.database).retire_requests(int(NOON * 1000) + 1, 0, 9)).retired == 1
    for _ in range(2):
        await cluster.ledger.post_again([*left, row(20, id="req_20")])
    assert (await cluster.find(KEY) or {})["posted"] == 27
    stored = await cluster.store.connection.fetch("SELECT id FROM requests")
    assert [each["id"] for each in stored] == ["req_7"]
    assert await list_problems(cluster) == []


@pytest.mark.parametrize(
    ("claim", "granted", "excess"),
    [
        (LeaseClaim(100, 50), 170, 0),  # as the node says: 20 were posted
        (LeaseClaim(100, 900), 340, 0),  # no more idle credit than the limit allows
        (LeaseClaim(400, 10), 420, 80),  # what is held is set aside in any case
        (None, 20, 0),  # the node has given it back
    ],
)
async def test_a_restored_lease_is_what_its_node_says(
    cluster: Cluster, claim: LeaseClaim | None, granted: int, excess: int
) -> None:
    await cluster.take(60)
    await cluster.ledger.post([row(20, id="req_1", overrun_nanos=0)])
    other = PostgresCreditAuthority(Address(cluster.store.url), "b", lambda: 1, Events())
    await other.take([CreditRequest(KEY, 160, 160, 160)], cluster.day)
    await other.close()
    assert cluster.database.credit is not None
    await cluster.database.credit.restore_leases({} if claim is None else {KEY: claim})
    assert await cluster.store.connection.fetchval("SELECT overrun_nanos FROM requests") == min(excess, 20)
    assert {lease.balance: lease.granted_nanos for lease in await cluster.node.find_leases()} == {
        KEY: granted, ACCOUNT: 20
    }  # fmt: skip
    assert (await cluster.find(KEY) or {})["leased"] == granted + 160
    assert await list_problems(cluster) == []


async def test_rows_that_are_stored_again_above_a_limit_have_the_overrun(cluster: Cluster) -> None:
    other = PostgresCreditAuthority(Address(cluster.store.url), "b", lambda: 1, Events())
    await other.take([CreditRequest(KEY, 470, 470, 470)], cluster.day)
    await other.close()
    await cluster.ledger.post([row(10, id="req_1", overrun_nanos=0)])
    again = [row(nanos, id=f"req_{nanos}", overrun_nanos=0) for nanos in (10, 1, 40, 30)]
    await cluster.ledger.post_again(again)
    stored = await cluster.store.connection.fetch("SELECT id, overrun_nanos FROM requests ORDER BY id")
    assert dict(map(tuple, stored)) == {"req_1": 10, "req_10": 10, "req_30": 30, "req_40": 10}
    assert await list_problems(cluster) == []
    audit = await cluster.ledger.audit_cluster()
    assert audit is not None
    assert not audit.overruns  # the other node has not spent its lease
    await cluster.ledger.post_again([row(500, id="req_500")])
    audit = await cluster.ledger.audit_cluster()
    assert audit is not None
    assert audit.overruns == ["key 1: $0.00000009 more is spent than its limit"]


async def test_nodes_store_their_rows_again_at_the_same_time_and_the_later_one_counts_both(cluster: Cluster) -> None:
    """The other node has stored a row with sums of its own, and does not commit before this node waits to count."""
    await cluster.take(100)
    authority = PostgresCreditAuthority(Address(cluster.store.url), "b", lambda: 1, Events())
    await authority.take([CreditRequest(each, 100, 100, 100) for each in (ACCOUNT, KEY)], TODAY)
    await authority.close()
    apart = row(300, id="req_b", overrun_nanos=0, model="o", end_user="", session="", tags="", limit_charges="")
    other = PostgresDatabase(
        Address(cluster.store.url), OtherNode(), lambda made: PostgresCredit(made, "b", lambda: TODAY)
    )
    stored, ends = asyncio.Event(), asyncio.Event()

    async def post(connection: AsyncConnection) -> None:
        new_rows = await LedgerRepository(other).insert_new(connection, [apart])
        assert other.credit is not None
        await other.credit.record_overruns(connection, new_rows)
        stored.set()
        await ends.wait()

    others = asyncio.create_task(other.write_shared(post))
    await stored.wait()
    own = asyncio.create_task(cluster.ledger.post_again([row(250, id="req_a", overrun_nanos=0)]))
    await await_waiter(cluster.store.connection, own, OVERRUNS_LOCK)
    ends.set()
    await asyncio.gather(others, own)
    await other.close()
    recorded = await cluster.store.connection.fetch("SELECT id, overrun_nanos FROM requests")
    assert sum(each["overrun_nanos"] for each in recorded) == 50  # of 500
    assert (await cluster.find(KEY) or {})["posted"] == 550
    assert await list_problems(cluster) == []


async def test_a_row_that_replaces_an_interrupted_one_is_stored_alone(cluster: Cluster) -> None:
    """Another node stores rows meanwhile: this one finds what to replace beside it, and waits for its end to do so."""
    await cluster.take(100)
    await cluster.ledger.post([row(0, id="req_1", outcome="interrupted"), row(10, id="req_2")])
    other = PostgresDatabase(Address(cluster.store.url), OtherNode())
    started, ends = asyncio.Event(), asyncio.Event()

    async def wait(_connection: AsyncConnection) -> None:
        started.set()
        await ends.wait()

    others = asyncio.create_task(other.write_shared(wait))
    await started.wait()
    own = asyncio.create_task(cluster.ledger.post_again([row(20, id="req_1"), row(10, id="req_2"), row(5, id="req_3")]))
    await await_waiter(cluster.store.connection, own, LIMITS_LOCK)
    ends.set()
    await asyncio.gather(others, own)
    await other.close()
    rows = await cluster.store.connection.fetch("SELECT id, outcome, cost_nanos FROM requests ORDER BY id")
    assert [tuple(each) for each in rows] == [(f"req_{n}", "completed", cost) for n, cost in ((1, 20), (2, 10), (3, 5))]
    assert (await cluster.find(KEY) or {})["posted"] == 35
    assert await list_problems(cluster) == []


async def test_rows_of_two_days_count_in_their_own(cluster: Cluster) -> None:
    await cluster.take(100)
    late, new = row(7, id="req_1"), attrs.evolve(row(9, id="req_2"), settled_ms=int((NOON + DAY_S) * 1000))
    await cluster.ledger.post([new, late])
    found = await cluster.find(ACCOUNT) or {}
    assert (found["settled"], found["leased"], found["posted"]) == (0, 100, 9)
    await cluster.node.take([CreditRequest(ACCOUNT, 0, 0, 0)], parse_day(NOON + DAY_S))  # it pays for the late one
    found = await cluster.find(ACCOUNT) or {}
    assert (found["settled"], found["leased"], found["posted"]) == (0, 93, 9)


async def test_a_credit_counts_once(cluster: Cluster) -> None:
    cluster.day = parse_day(NOON + DAY_S)
    entry = LedgerEntry(0, int((NOON + DAY_S) * 1000), "top_up", 1, None, 250, None, "ref")
    for _ in range(2):
        await cluster.ledger.add_credit(entry)
    assert (await cluster.find(ACCOUNT) or {})["credit"] == 250
    assert (await cluster.find(KEY) or {})["credit"] == 0


async def test_what_a_job_holds_leaves_the_lease_and_is_freed_at_its_end(cluster: Cluster) -> None:
    await cluster.take(100)
    await cluster.videos.create(job(80))
    found = await cluster.find(KEY) or {}
    assert (found["leased"], found["granted"], found["reserved"]) == (20, 20, 80)
    ended = job(80).complete(1, 2)
    assert await cluster.videos.finish(ended, row(50, id="req_v"), None)
    assert not await cluster.videos.finish(ended, row(50, id="req_w"), None)
    found = await cluster.find(KEY) or {}
    assert (found["leased"], found["reserved"], found["settled"], found["posted"]) == (20, 0, 50, 0)


async def test_an_account_has_no_more_jobs_than_it_may_whatever_node_creates_them(cluster: Cluster) -> None:
    second = attrs.evolve(job(5), id="video_2", receipt=attrs.evolve(job(5).receipt, id="req_2"))
    assert await cluster.videos.create(job(80), 1)
    assert not await cluster.videos.create(second, 1)
    assert (await cluster.find(KEY) or {})["reserved"] == 80
    assert await cluster.videos.finish(job(80).complete(1, 2), row(0, id="req_v"), None)
    assert await cluster.videos.create(second, 1)


async def test_a_job_without_a_lease_and_a_return_without_one_keep_the_sums_right(cluster: Cluster) -> None:
    await cluster.videos.create(job(80))
    await cluster.node.return_credit({KEY: 30})
    found = await cluster.find(KEY) or {}
    assert (found["leased"], found["granted"], found["reserved"]) == (0, 0, 80)


async def test_missing_balances_are_made_of_what_is_stored(cluster: Cluster) -> None:
    await cluster.ledger.post([row(20, id="req_1")])
    await cluster.database.write(partial(clear_credit, dead_s=20))
    assert await cluster.find(KEY) is None
    assert await list_problems(cluster) == [
        f"{owner} 1: its limit is not enforced, it has no balance" for owner in ("account", "key")
    ]
    assert cluster.database.credit is not None
    await cluster.database.write(cluster.database.credit.open_missing_balances)
    assert await list_problems(cluster) == []
    assert [(await cluster.find(each) or {})["settled"] for each in (KEY, ACCOUNT)] == [20, 20]


async def test_a_gateway_that_is_no_node_deletes_no_balance_while_a_node_lives(cluster: Cluster) -> None:
    execute = cluster.store.connection.execute
    await execute(
        "INSERT INTO nodes (id, epoch, state, url, version, schema, config_digest, started_ms)"
        " VALUES ('a', 1, 'live', '', '', '', '', 0)"
    )
    await execute(
        "INSERT INTO beats (node, beat, at_ms, seen_change)"
        " VALUES ('a', 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint, 0)"
    )
    with pytest.raises(DatabaseStartupError, match="Stop every node first"):
        await cluster.database.write(partial(clear_credit, dead_s=20))
    await execute("UPDATE beats SET at_ms = 0")
    with pytest.raises(DatabaseStartupError):  # it could not beat before the server started, so long ago
        await cluster.database.write(partial(clear_credit, dead_s=1e6))
    assert await cluster.find(KEY) is not None
    await cluster.database.write(partial(clear_credit, dead_s=0))
    assert await cluster.find(KEY) is None
    for state in ("dead", "gone"):
        await execute("UPDATE nodes SET state = $1", state)
        await cluster.database.write(partial(clear_credit, dead_s=1e6))


async def test_rows_are_not_stored_without_their_posting(cluster: Cluster) -> None:
    await cluster.take(100)
    await cluster.store.connection.execute(
        "DROP FUNCTION post_spending(text, integer, integer, smallint[], bigint[], bigint[])"
    )
    with pytest.raises(StoreUnavailable):
        await cluster.ledger.post([row(20, id="req_1")])
    assert await cluster.ledger.find_stored_ids(["req_1"]) == set()


async def test_figures_are_those_of_the_period_and_without_a_limit_of_all_time(cluster: Cluster) -> None:
    free = await cluster.keys.add_key(ApiKey(0, 1, "free", b"f", "last"))
    await cluster.take(100)
    await cluster.ledger.post([row(20, id="req_1"), attrs.evolve(row(7, id="req_2"), key_id=free.id)])
    await cluster.ledger.add_credit(LedgerEntry(0, int(NOON * 1000), "top_up", 1, None, 250))
    await cluster.videos.create(job(40))
    asked: list[BalanceId] = [KEY, ACCOUNT, ("key", free.id), ("key", 99)]
    assert await cluster.ledger.find_figures(asked) == {
        KEY: CreditFigures(20, 0, 80),  # a job has 40 of what the node was granted
        ACCOUNT: CreditFigures(27, 250, 73),
        ("key", free.id): CreditFigures(7, 0, 0),
        ("key", 99): CreditFigures(0, 0, 0),
    }
    cluster.day = parse_day(NOON + DAY_S)
    await cluster.ledger.add_credit(LedgerEntry(0, int((NOON + DAY_S) * 1000), "top_up", 1, 1, 30))
    found = await cluster.ledger.find_figures(asked) or {}
    assert found[KEY] == CreditFigures(20, 30, 80)
    assert found[ACCOUNT] == CreditFigures(0, 0, 73)  # its day is over, and no write has turned it
    assert await list_problems(cluster) == []


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("credit_balances SET leased = leased - 1 WHERE owner = 1", "key 1: set aside is 99, its leases say 100"),
        ("credit_balances SET settled = 3 WHERE owner = 0", "account 1: spent in the period is 23, its charges say 20"),
        ("credit_balances SET credit = 4 WHERE owner = 0", "account 1: credited in the period is 4, its entries say 0"),
        ("credit_balances SET reserved = 5 WHERE owner = 1", "key 1: reserved is 5, its open jobs say 0"),
        ("usage_days SET cost_nanos = 21 WHERE key_id = 1", "key 1: spent in the period is 20, its charges say 21"),
    ],
)
async def test_each_equation_is_checked(cluster: Cluster, change: str, found: str) -> None:
    await cluster.take(100)
    await cluster.ledger.post([row(20, id="req_1")])
    await cluster.store.connection.execute(f"UPDATE {change}")
    assert f"{found} (nano-USD)" in (await list_problems(cluster) or [])
