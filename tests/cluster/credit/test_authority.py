"""Who judges credit: one contract for PostgreSQL and for the model in memory that tests of a node use."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from functools import partial
from typing import Protocol

import pytest

from gateway.cluster.credit.authority import PostgresCreditAuthority
from gateway.cluster.credit.rows import Connection, post_spending
from gateway.domain.balance import DAY_S, QuotaPeriod, UtcDay, parse_day
from gateway.domain.credit import (
    BalanceId,
    CreditAuthority,
    CreditGrant,
    CreditRecalled,
    CreditRequest,
    CreditReturned,
    RecallAnswered,
    StoredLease,
)
from gateway.errors import StoreUnavailable
from gateway.events import Events
from gateway.storage.postgres.address import Address
from tests.support.credit_memory import MemoryCredit, MemoryCreditAuthority
from tests.support.credit_nodes import CHARGE
from tests.support.credit_store import CreditStore, open_credit_store
from tests.support.postgres import SharedPostgres, await_waiter
from tests.support.stoppable_proxy import StoppableProxy

KEY: BalanceId = ("key", 11)
ACCOUNT: BalanceId = ("account", 1)
OPEN: BalanceId = ("key", 12)
TODAY = parse_day(20_000 * DAY_S)
TOMORROW = parse_day(20_001 * DAY_S)


class Judge(Protocol):
    """What the suite needs of a kind: nodes, limits that are made and changed, and posted charges."""

    def make_node(self, name: str, events: Events | None = None) -> CreditAuthority: ...

    async def open(self, balance: BalanceId, limit: int, period: QuotaPeriod = "lifetime") -> None: ...

    async def change(self, balance: BalanceId, limit: int | None, period: QuotaPeriod = "lifetime") -> None: ...

    async def post(self, node: str, day: UtcDay, amounts: Mapping[BalanceId, int]) -> None: ...


class MemoryJudge:
    def __init__(self) -> None:
        self.credit = MemoryCredit()

    def make_node(self, name: str, events: Events | None = None) -> CreditAuthority:
        return MemoryCreditAuthority(self.credit, name, events=events)

    async def open(self, balance: BalanceId, limit: int, period: QuotaPeriod = "lifetime") -> None:
        self.credit.open(balance, limit, TODAY, period)

    async def change(self, balance: BalanceId, limit: int | None, period: QuotaPeriod = "lifetime") -> None:
        self.credit.change_limit(balance, limit, TODAY, period)

    async def post(self, node: str, day: UtcDay, amounts: Mapping[BalanceId, int]) -> None:
        self.credit.post(node, day, amounts)


class PostgresJudge:
    def __init__(self, store: CreditStore) -> None:
        self.store = store
        self.nodes: list[PostgresCreditAuthority] = []

    def make_node(self, name: str, events: Events | None = None) -> CreditAuthority:
        self.nodes.append(PostgresCreditAuthority(Address(self.store.url), name, lambda: 2, events or Events()))
        return self.nodes[-1]

    async def open(self, balance: BalanceId, limit: int, period: QuotaPeriod = "lifetime") -> None:
        await self.store.add_owner(balance, limit, period)
        await self.store.open(balance, period, TODAY)

    async def change(self, balance: BalanceId, limit: int | None, period: QuotaPeriod = "lifetime") -> None:
        assert balance[0] == "key"
        await self.store.connection.execute("UPDATE keys SET quota_nanos = $1 WHERE id = $2", limit, balance[1])
        await self.store.open(balance, "none" if limit is None else period, TODAY)

    async def post(self, node: str, day: UtcDay, amounts: Mapping[BalanceId, int]) -> None:
        connection: Connection = self.store.connection
        async with connection.transaction():
            for (owner, number), nanos in amounts.items():
                place = (1, number) if owner == "key" else (number, 0)
                await connection.execute(CHARGE, day.number, *place, nanos)
            await post_spending(connection, node, day, amounts)

    async def close(self) -> None:
        for node in self.nodes:
            await node.close()


@pytest.fixture(params=["memory", "postgresql"])
async def judge(request: pytest.FixtureRequest, shared_postgres: SharedPostgres) -> AsyncIterator[Judge]:
    if request.param == "memory":
        yield MemoryJudge()
        return
    async with open_credit_store(shared_postgres) as store:
        opened = PostgresJudge(store)
        yield opened
        await opened.close()


async def ask(
    node: CreditAuthority, need: int, *, least: int | None = None, want: int = 0, balance: BalanceId = KEY,
    day: UtcDay = TODAY,
) -> CreditGrant:  # fmt: skip
    wanted = CreditRequest(balance, need if least is None else least, need, max(want, need))
    return (await node.take([wanted], day))[0]


async def test_a_balance_without_a_limit_needs_no_lease(judge: Judge) -> None:
    node = judge.make_node("a")
    assert await ask(node, 5, balance=OPEN) == CreditGrant(OPEN, False, 0, None, 0)
    assert list(await node.find_leases()) == []


async def test_what_requests_need_is_granted_first_and_the_rest_is_bounded(judge: Judge) -> None:
    await judge.open(KEY, 1_000)
    node = judge.make_node("a")
    answer = CreditGrant(KEY, True, 250, 750, 0, 0, 250)  # a half of 1,000 for each of two
    assert await ask(node, 100, want=900) == answer
    assert await ask(node, 700, want=900) == CreditGrant(KEY, True, 700, 50, 0, 0, 950)
    assert list(await node.find_leases()) == [StoredLease(KEY, 950, 0, 0)]


async def test_less_than_the_smallest_request_is_not_granted(judge: Judge) -> None:
    await judge.open(KEY, 100)
    first, second = judge.make_node("a"), judge.make_node("b")
    assert (await ask(first, 95)).granted_nanos == 95
    assert await ask(second, 12, least=6) == CreditGrant(KEY, True, 0, 5, 95, holders=1)
    assert await ask(second, 12, least=5) == CreditGrant(KEY, True, 5, 0, 0, 0, 5)


async def test_several_balances_are_answered_at_once(judge: Judge) -> None:
    await judge.open(ACCOUNT, 50)
    await judge.open(KEY, 100)
    node = judge.make_node("a")
    grants = await node.take([CreditRequest(each, 60, 60, 60) for each in (ACCOUNT, OPEN, KEY)], TODAY)
    assert {grant.balance: (grant.limited, grant.granted_nanos, grant.room_nanos) for grant in grants} == {
        ACCOUNT: (True, 0, 50),
        KEY: (True, 60, 40),
        OPEN: (False, 0, None),
    }


async def test_returned_credit_is_for_all(judge: Judge) -> None:
    await judge.open(KEY, 100)
    first, second = judge.make_node("a"), judge.make_node("b")
    await ask(first, 100)
    await first.return_credit({KEY: 70})
    assert (await ask(second, 70)).granted_nanos == 70


async def test_recalls_are_heard_by_the_others_and_so_is_what_is_returned(judge: Judge) -> None:
    await judge.open(ACCOUNT, 100)
    await judge.open(KEY, 100)
    heard: asyncio.Queue[tuple[str, Collection[BalanceId]]] = asyncio.Queue()

    def note(name: str, event: CreditRecalled | CreditReturned | RecallAnswered) -> None:
        verb = {CreditRecalled: "recalled", CreditReturned: "returned"}.get(type(event))
        by = f"{name} {verb}" if not isinstance(event, RecallAnswered) else f"{event.node} answered {name}"
        heard.put_nowait((by, set(event.balances)))

    def listen(name: str) -> Events:
        events = Events()
        for kind in (CreditRecalled, CreditReturned, RecallAnswered):
            events.subscribe(kind, partial(note, name))
        return events

    first, second = judge.make_node("a", listen("a")), judge.make_node("b", listen("b"))
    await ask(first, 100)
    await ask(second, 0)  # it is connected from now on
    await second.recall([KEY, ACCOUNT])
    async with asyncio.timeout(20):
        assert await heard.get() == ("a recalled", {ACCOUNT, KEY})
        await first.return_credit({KEY: 40}, [KEY])
        assert await heard.get() == ("b returned", {KEY})
        assert await heard.get() == ("a answered b", {KEY})
        await first.report_kept([ACCOUNT])
        assert await heard.get() == ("a answered b", {ACCOUNT})
        await first.return_credit({}, [ACCOUNT])  # it was credited
        assert await heard.get() == ("b returned", {ACCOUNT})
        assert await heard.get() == ("a answered b", {ACCOUNT})
    assert heard.empty()


async def test_credit_that_a_node_returns_is_free_before_the_node_hears_of_it(shared_postgres: SharedPostgres) -> None:
    """A node that is far away from the database locks no balance while its messages travel."""
    async with open_credit_store(shared_postgres) as store:
        judge = PostgresJudge(store)
        await judge.open(KEY, 100)
        port = int(store.url.rpartition(":")[2].partition("/")[0])
        async with StoppableProxy(port) as proxy:
            far = PostgresCreditAuthority(
                Address(store.url.replace(f":{port}/", f":{proxy.port}/")), "far", lambda: 2, Events()
            )
            near = judge.make_node("near")
            assert (await ask(far, 100)).granted_nanos == 100
            await far.return_credit({KEY: 10}, [KEY])  # the statement is prepared
            proxy.stop(there=False)
            returning = asyncio.ensure_future(far.return_credit({KEY: 90}, [KEY]))
            async with asyncio.timeout(20):
                while not (await ask(near, 100)).granted_nanos:
                    assert not returning.done()
            assert not returning.done()
            proxy.go_on()
            await returning
            await far.close()
        await judge.close()


async def test_a_fold_frees_what_was_not_spent(judge: Judge) -> None:
    await judge.open(KEY, 100)
    first, second = judge.make_node("a"), judge.make_node("b")
    await ask(first, 100)
    await judge.post("a", TODAY, {KEY: 30, OPEN: 9})
    assert list(await first.find_leases()) == [StoredLease(KEY, 100, 30, 0)]
    await first.end_leases()
    assert list(await first.find_leases()) == []
    assert await ask(second, 71) == CreditGrant(KEY, True, 0, 70, 0)


async def test_what_was_spent_beyond_a_lease_is_granted_afterwards(judge: Judge) -> None:
    await judge.open(KEY, 100)
    node = judge.make_node("a")
    await ask(node, 90)
    await judge.post("a", TODAY, {KEY: 130})
    assert await ask(node, 0) == CreditGrant(KEY, True, 40, -30, 0)
    assert list(await node.find_leases()) == [StoredLease(KEY, 130, 130, 0)]


async def test_spending_without_a_lease_counts(judge: Judge) -> None:
    await judge.open(KEY, 100)
    await judge.post("a", TODAY, {KEY: 60})
    assert (await ask(judge.make_node("a"), 41)).granted_nanos == 60  # only what was spent
    assert (await ask(judge.make_node("b"), 40)).granted_nanos == 40


async def test_a_new_day_takes_what_is_outstanding_along(judge: Judge) -> None:
    await judge.open(KEY, 100, "daily")
    first, second = judge.make_node("a"), judge.make_node("b")
    await ask(first, 80)
    await judge.post("a", TODAY, {KEY: 50})
    assert (await ask(second, 90, day=TOMORROW)).room_nanos == 70
    assert list(await first.find_leases()) == [StoredLease(KEY, 30, 0, 0)]


async def test_rows_of_a_new_day_turn_the_balance_and_late_ones_count_in_their_own(judge: Judge) -> None:
    await judge.open(KEY, 100, "daily")
    node, other = judge.make_node("a"), judge.make_node("b")
    await ask(node, 80)
    await judge.post("a", TOMORROW, {KEY: 10})
    await judge.post("a", TODAY, {KEY: 25})
    assert list(await node.find_leases()) == [StoredLease(KEY, 80, 10, 25)]
    await ask(node, 0, day=TOMORROW)
    assert list(await node.find_leases()) == [StoredLease(KEY, 55, 10, 0)]
    assert (await ask(other, 45, day=TOMORROW)).granted_nanos == 45


async def test_a_lease_outlives_its_limit(judge: Judge) -> None:
    await judge.open(KEY, 100)
    first, second = judge.make_node("a"), judge.make_node("b")
    await ask(first, 80)
    await judge.post("a", TODAY, {KEY: 10})
    await judge.change(KEY, None)
    await judge.post("a", TODAY, {KEY: 20})  # the node has not heard of it
    await first.return_credit({KEY: 5})
    assert await ask(second, 500) == CreditGrant(KEY, False, 0, None, 0)
    await judge.change(KEY, 100, "daily")
    assert list(await first.find_leases()) == [StoredLease(KEY, 45, 0, 0)]
    assert (await ask(second, 26)).room_nanos == 25  # beside 45, and the 30 that were charged
    assert await ask(first, 25) == CreditGrant(KEY, True, 25, 0, 0, TODAY.number, 70)


async def test_what_a_node_spends_without_a_limit_beyond_its_lease_is_granted_once_there_is_one(judge: Judge) -> None:
    await judge.open(KEY, 100)
    first, second = judge.make_node("a"), judge.make_node("b")
    await ask(first, 50)
    await judge.change(KEY, None)
    await judge.post("a", TODAY, {KEY: 70})
    await judge.change(KEY, 100)
    assert list(await first.find_leases()) == [StoredLease(KEY, 0, 0, 20)]
    assert await ask(first, 31) == CreditGrant(KEY, True, 20, 30, 0)
    assert (await ask(second, 30)).granted_nanos == 30


async def test_what_a_node_has_spent_beyond_its_lease_is_not_there_for_others(judge: Judge) -> None:
    await judge.open(KEY, 100)
    first, second, third = (judge.make_node(name) for name in "abc")
    await ask(first, 10)
    await ask(third, 20)
    await judge.post("a", TODAY, {KEY: 60})
    assert await ask(second, 21) == CreditGrant(KEY, True, 0, 20, 20, holders=1)  # what the third has can be recalled
    assert (await ask(second, 20)).granted_nanos == 20
    await first.end_leases()
    assert (await ask(second, 1)).room_nanos == 0


async def test_a_store_that_does_not_answer_is_an_error_and_the_next_call_connects_anew(
    shared_postgres: SharedPostgres,
) -> None:
    async with open_credit_store(shared_postgres) as store:
        judge = PostgresJudge(store)
        await judge.open(KEY, 100)
        node = judge.make_node("a")
        await ask(node, 10)
        async with store.connection.transaction():
            await store.connection.execute("LOCK TABLE credit_balances")
            asking = asyncio.create_task(ask(node, 10))
            await await_waiter(store.connection, asking)
            await store.cut_others()
            with pytest.raises(StoreUnavailable):
                await asking
        assert (await ask(node, 10)).granted_nanos == 10
        await judge.close()


async def test_a_connection_that_was_closed_under_a_statement_is_an_error_and_the_next_call_connects_anew(
    shared_postgres: SharedPostgres,
) -> None:
    """asyncpg forgets the server process of a connection that is closed here, as ``Hosts`` does at a silent server."""
    async with open_credit_store(shared_postgres) as store:
        judge = PostgresJudge(store)
        await judge.open(KEY, 100)
        address = WatchedAddress(store.url)
        node = PostgresCreditAuthority(address, "a", lambda: 1, Events())
        await ask(node, 10)
        async with store.connection.transaction():
            await store.connection.execute("LOCK TABLE credit_balances")
            asking = asyncio.create_task(ask(node, 10))
            await await_waiter(store.connection, asking)
            address.opened[-1].terminate()
            with pytest.raises(StoreUnavailable):
                await asking
        assert (await ask(node, 10)).granted_nanos == 10
        assert len(address.opened) == 2
        await node.close()
        await judge.close()


class WatchedAddress(Address):
    """``opened``: the connections made so far."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.opened: list[Connection] = []

    async def connect(self, **settings: str) -> Connection:
        self.opened.append(await super().connect(**settings))
        return self.opened[-1]
