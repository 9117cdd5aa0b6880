"""Nodes spend, die, return and lose answers at random; in every snapshot PostgreSQL's balances are right to the nano.

Limits are changed meanwhile, removed and set again, and change their period.

The functions are changed one at a time, too: each such fault has to be found.
"""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack

import asyncpg
import pytest

from gateway.cluster.credit.rows import LIMITS_LOCK, Connection
from gateway.domain.balance import Quota, parse_day
from gateway.domain.credit import BalanceId
from gateway.storage.postgres.credit_sql import CREATE_TABLES, FUNCTIONS
from tests.support.credit_nodes import (
    DAY_S,
    FIRST_DAY,
    LIMITS,
    MOST,
    PERIODS,
    Node,
    Row,
    World,
    insert,
    insert_charge,
    look,
    repeat,
    watch,
)
from tests.support.postgres import SharedPostgres

NODES = 3
RUN_S, LONG_RUN_S = float(os.environ.get("CREDIT_RUN_S", "3")), 10.0
KEYS = [number for owner, number in LIMITS if owner == "key"]
_OPEN = "SELECT open_balance($1, $2, $3, $4, $5)"
_LIMIT = {
    "account": "UPDATE accounts SET quota_nanos = $1 WHERE id = $2",
    "key": "UPDATE keys SET quota_nanos = $1 WHERE id = $2",
}
_SPENT = """
SELECT b.settled + b.reserved + coalesce(sum(greatest(l.granted, l.posted)), 0) AS spent FROM credit_balances b
LEFT JOIN credit_leases l USING (owner, owner_id) WHERE owner = $1 AND owner_id = $2 GROUP BY b.owner, b.owner_id
"""
_OUTSTANDING = """
SELECT node, granted - posted - late AS nanos FROM credit_leases WHERE owner = $1 AND owner_id = $2
"""


async def seed(connection: Connection, functions: dict[str, str]) -> None:
    """Make the account, its keys, and the balances of those with a limit."""
    await connection.execute(CREATE_TABLES + ";".join(functions.values()))
    for (owner, number), quota in LIMITS.items():
        own = {"account_id": 1, "digest": bytes([number])} if owner == "key" else {}
        await insert(connection, f"{owner}s", id=number, name=f"{owner}{number}", quota_nanos=quota.limit_nanos, **own)
        await connection.execute(_OPEN, *place_of((owner, number)), PERIODS[quota.period], FIRST_DAY, FIRST_DAY)


class Cluster:
    """Some nodes and what happens to them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.nodes: list[Node] = []
        self.tasks: dict[str, list[asyncio.Task[None]]] = {}

    async def start(self, name: str, journal: list[Row]) -> Node:
        node = Node(name, self.world, journal)
        await node.start()
        self.nodes.append(node)
        chance = self.world.chance
        self.tasks[name] = [
            *(
                asyncio.create_task(repeat(self.world, lambda: self.call(node), lambda: chance.random() / 100))
                for _ in range(4)
            ),
            asyncio.create_task(repeat(self.world, lambda: self.film(node), lambda: chance.random() / 20)),
            asyncio.create_task(repeat(self.world, node.flush, lambda: chance.random() / 20)),
            asyncio.create_task(repeat(self.world, node.give_back, lambda: chance.random() / 10)),
        ]
        return node

    async def call(self, node: Node) -> None:
        """One request: reserved, answered, charged."""
        chance = self.world.chance
        account, key, nanos = 1, chance.choice(KEYS), chance.randrange(1, MOST)
        if not await node.hold((("account", account), ("key", key)), nanos):
            self.world.done["refused"] += 1
            return
        await asyncio.sleep(chance.random() / 100)
        cost = chance.randrange(2 * nanos) if self.world.overruns else chance.randrange(nanos + 1)
        node.settle(Row(f"r{next(self.world.numbers)}", account, key, cost, self.world.day), nanos)
        self.world.done["calls"] += 1

    async def film(self, node: Node) -> None:
        """Create a job, or end one that any node has created."""
        chance = self.world.chance
        if chance.random() < 0.5:
            await self._end_job(node)
            return
        account, key, nanos = 1, chance.choice(KEYS), chance.randrange(1, MOST)
        balances: tuple[BalanceId, BalanceId] = ("account", account), ("key", key)
        if not await node.hold(balances, nanos):
            return
        async with node.granting, node.lane.transaction():
            await node.lane.execute("SELECT pg_advisory_xact_lock_shared($1)", LIMITS_LOCK)
            for each in balances:  # under the lock: a lease that is corrected meanwhile would get it back
                node.leases[each].detach(nanos)
            name = f"v{next(self.world.numbers)}"
            job = {"id": name, "request_id": name, "account_id": account, "key_id": key, "held_nanos": nanos}
            await insert(node.lane, "videos", state="running", **job)
            await node.lane.execute("SELECT reserve_job($1, $2, $3, $4)", node.name, *numbers(balances), nanos)
        self.world.done["jobs"] += 1

    async def _end_job(self, node: Node) -> None:
        async with node.granting, node.lane.transaction():
            await node.lane.execute("SELECT pg_advisory_xact_lock_shared($1)", LIMITS_LOCK)
            job = await node.lane.fetchrow(
                "UPDATE videos SET state = 'completed' WHERE id = (SELECT id FROM videos WHERE state = 'running'"
                " ORDER BY random() LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING *"
            )
            if job is None:
                return
            cost, day = self.world.chance.randrange(job["held_nanos"] + 1), self.world.day
            row = Row(f"j{job['id']}", job["account_id"], job["key_id"], cost, day)
            await insert_charge(node.lane, row)
            await node.lane.execute(
                "SELECT finish_job($1, $2, $3, $4, $5, $6)",
                day.number, day.month_number, *numbers(row.balances), job["held_nanos"], cost,
            )  # fmt: skip

    async def stop(self, node: Node) -> list[Row]:
        """End a node's work at once; return its journal."""
        self.nodes.remove(node)
        node.kill()
        tasks = self.tasks.pop(node.name)
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            lost = (asyncio.CancelledError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError, ConnectionError)
            if isinstance(result, BaseException) and not isinstance(result, lost):
                raise result
        return node.journal

    async def disturb(self) -> None:
        """Kill a node and start it again, turn the day, change a limit, or add credit."""
        chance = self.world.chance
        await asyncio.sleep(0.05 + chance.random() / 5)
        what = chance.random()
        if what < 0.5:
            node = chance.choice(self.nodes)
            journal = await self.stop(node)
            self.world.done["kills"] += 1
            await self.start(node.name, journal)
        elif what < 0.7:
            balance = chance.choice(list(LIMITS))
            await self.change_limit(balance)
            if chance.random() < 0.5:
                await self.change_limit(balance)
        elif what < 0.85:
            self.world.day = parse_day(self.world.day.start_s + DAY_S)
            self.world.done["days"] += 1
        else:
            connection = await self.world.connect()
            async with connection.transaction():
                owner, number = chance.choice([(0, 1), (1, 11), (1, 12)])
                day, amount = self.world.day, chance.randrange(20 * MOST)
                await connection.execute(
                    "SELECT add_credit($1, $2, $3, $4, $5)", owner, number, day.number, day.month_number, amount
                )
                await connection.execute(
                    "INSERT INTO entries (at_ms, kind, account_id, key_id, amount_nanos)"
                    " VALUES ($1, 'top_up', 1, $2, $3)",
                    day.start_s * 1000, number if owner else None, amount,
                )  # fmt: skip
            await connection.close()

    async def change_limit(self, balance: BalanceId) -> None:
        """Change a limit and its period, make or remove it, while the nodes neither grant nor post."""
        world = self.world
        period = world.chance.choice(list(PERIODS))
        quota = Quota() if period == "none" else Quota(world.chance.randrange(30_000, 90_000), period)
        connection, day = await world.connect(), world.day
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(world.changing)
            for node in self.nodes:
                await stack.enter_async_context(node.granting)
            for node in self.nodes:
                await stack.enter_async_context(node.posting)
            world.limits[balance], known = quota, world.beside[balance]  # who has no limit yet adds to it from now on
            async with connection.transaction():
                await connection.execute("SELECT pg_advisory_xact_lock($1)", LIMITS_LOCK)
                await connection.execute(_LIMIT[balance[0]], quota.limit_nanos, balance[1])
                await connection.execute(_OPEN, *place_of(balance), PERIODS[quota.period], day.number, day.month_number)
                left = {row["node"]: row["nanos"] for row in await connection.fetch(_OUTSTANDING, *place_of(balance))}
                beside = [await node.sum_beside(balance, left.get(node.name, 0)) for node in self.nodes]
                world.before[balance] = await connection.fetchval(_SPENT, *place_of(balance)) or 0
                world.beside[balance] += sum(beside) - known
        await connection.close()
        world.removed |= set() if quota.capped else {balance}
        world.done["limits"] += 1

    async def finish(self) -> None:
        """Let every node end well."""
        self.world.ending = True
        for node in self.nodes:
            await asyncio.gather(*self.tasks[node.name])
            await node.end()


def place_of(balance: BalanceId) -> tuple[int, int]:
    return 0 if balance[0] == "account" else 1, balance[1]


def numbers(balances: Iterable[BalanceId]) -> tuple[list[int], list[int]]:
    """Return owners and ids in the order of locks."""
    places = sorted(map(place_of, balances))
    return [place[0] for place in places], [place[1] for place in places]


async def run(
    dsn: str,
    world_seed: int,
    *,
    overruns: bool = False,
    functions: dict[str, str] | None = None,
    lasts_s: float = RUN_S,
) -> World:
    """Run some nodes for a while; return what was seen."""
    world = World(dsn, random.Random(world_seed), overruns=overruns)  # noqa: S311 - no secret
    auditor = await world.connect()
    await seed(auditor, functions or dict(FUNCTIONS))
    cluster = Cluster(world)
    for number in range(NODES):
        await cluster.start(f"n{number}", [])
    watching = asyncio.create_task(watch(auditor, world))
    loop = asyncio.get_running_loop()
    end = loop.time() + lasts_s
    while loop.time() < end and not world.wrong:
        await cluster.disturb()
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    await cluster.finish()
    last = await world.connect()
    await look(last, world)
    if left := await last.fetchval("SELECT coalesce(sum(leased), 0) FROM credit_balances"):
        world.wrong.append(f"leased after every node has ended: {left}")
    await last.close()
    auditor.terminate()
    return world


@pytest.fixture
async def make_database(shared_postgres: SharedPostgres) -> AsyncIterator[Callable[[], Awaitable[str]]]:
    """Make a database of the test's own; it is dropped at the end."""
    server, made = await shared_postgres.get_server(), []

    async def make() -> str:
        made.append(await server.make_database())
        return made[-1]

    yield make
    for url in made:
        await server.execute(f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)")


@pytest.mark.slow
@pytest.mark.parametrize("overruns", [False, True])
async def test_every_snapshot_is_right(make_database: Callable[[], Awaitable[str]], *, overruns: bool) -> None:
    world = await run(await make_database(), random.randrange(1_000), overruns=overruns)  # noqa: S311 - no secret
    print(world.done)  # noqa: T201 - what happened
    assert world.wrong == []
    assert min(world.done[name] for name in ("calls", "looked")) > 0


@pytest.mark.soak
@pytest.mark.parametrize("world_seed", range(20))
async def test_every_snapshot_of_a_long_run_is_right(
    make_database: Callable[[], Awaitable[str]], world_seed: int
) -> None:
    world = await run(await make_database(), world_seed, overruns=world_seed % 2 == 1, lasts_s=LONG_RUN_S)
    print(world.done)  # noqa: T201 - what happened
    assert world.wrong == []


_END = "DELETE FROM credit_leases WHERE owner = _owner AND owner_id = _id;"
FAULTS = {
    "room without jobs": ("take_credit", "- b.leased - b.reserved", "- b.leased"),
    "late rows not noted": ("post_spending", "l.late + CASE WHEN x.s < l.start THEN x.a ELSE 0 END", "l.late"),
    "late rows are today's": ("post_spending", "CASE WHEN x.s >= l.start THEN x.a ELSE 0 END", "x.a"),
    "fold without posted": ("fold_other_leases", "settled = settled + r.posted", "settled = settled"),
    "turn keeps posted": ("turn_balance", "(granted - posted - late, 0), posted = 0,", "(granted - late, 0),"),
    "late rows stay leased": ("take_credit", "greatest(l.granted - l.late, l.posted), late = 0", "l.granted, late = 0"),
    "leases end with a limit": ("open_balance", "IF _period IS NULL THEN", f"IF _period IS NULL THEN {_END}"),
    "limits forget leases": ("open_balance", "granted = greatest(granted - posted - late, 0)", "granted = 0"),
    "credit of yesterday": ("turn_balance", "credit = credited_since(_owner, _id, s)", "credit = b.credit"),
}  # fmt: skip
TRIES = 6


@pytest.mark.soak
@pytest.mark.parametrize("fault", FAULTS)
async def test_each_fault_in_a_function_is_found(make_database: Callable[[], Awaitable[str]], fault: str) -> None:
    """A test of the test above: it fails if a function is wrong."""
    name, old, new = FAULTS[fault]
    assert FUNCTIONS[name].count(old) == 1
    broken = {**FUNCTIONS, name: FUNCTIONS[name].replace(old, new)}
    found = [(await run(await make_database(), attempt, functions=broken)).wrong for attempt in range(TRIES)]
    assert any(found)
