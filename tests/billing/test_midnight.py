"""M11: the day ends in the middle of requests, at each node at another moment; every snapshot is right."""

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from gateway.domain.account import Caller
from gateway.domain.balance import DAY_S
from gateway.errors import QuotaExceeded
from gateway.request_context import RequestContext
from tests.support.billing_services import NOON, capped
from tests.support.credit_checks import add_caller
from tests.support.credit_gateway import LeasedGateway
from tests.support.credit_nodes import World, look, watch
from tests.support.credit_store import open_credit_store
from tests.support.postgres import SharedPostgres

NODES, TURNS = "abc", int(os.environ.get("M11_TURNS", "10"))
MIDNIGHT = NOON + DAY_S / 2
LIMIT, MOST = 6_000, 100
"""The account's a day, and the most that a request costs, in nano-USD."""


class Traffic:
    """Requests of one caller at nodes whose clocks pass midnight one after another."""

    def __init__(self, gateways: Sequence[LeasedGateway], caller: Caller, chance: random.Random) -> None:
        self.gateways, self.caller, self.chance = gateways, caller, chance
        self.running: list[tuple[LeasedGateway, RequestContext]] = []
        self.spent, self.refused = Counter[int](), 0

    async def pass_midnight(self, midnight_s: float) -> None:
        for turn in range(TURNS):
            for number, gateway in enumerate(self.gateways):
                gateway.now = max(gateway.least_s, midnight_s + (turn - TURNS // 2 - number) * 10)
            await asyncio.gather(*(self.ask(self.chance.choice(self.gateways)) for _ in range(20)))
            self.settle(0.7)
            await asyncio.sleep(0.05)

    async def ask(self, gateway: LeasedGateway) -> None:
        try:
            self.running.append((gateway, await gateway.admit(self.caller, MOST)))
        except QuotaExceeded:
            self.refused += 1

    def settle(self, share: float) -> None:
        for pair in [each for each in self.running if self.chance.random() < share]:
            self.running.remove(pair)
            gateway, ctx = pair
            row = gateway.settle(ctx, self.chance.randrange(MOST + 1))
            self.spent[row.settled_ms // (DAY_S * 1000)] += row.cost_nanos


@asynccontextmanager
async def watching(world: World) -> AsyncIterator[None]:
    eye = await world.connect()
    task = asyncio.create_task(watch(eye, world))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        eye.terminate()


async def test_a_day_that_ends_in_the_middle_leaves_every_snapshot_right(
    tmp_path: Path, shared_postgres: SharedPostgres
) -> None:
    async with open_credit_store(shared_postgres) as store:
        gateways = [LeasedGateway(store.url, name, tmp_path, live=len(NODES)) for name in NODES]
        for gateway in gateways:
            await gateway.start()
        caller = await add_caller(gateways[0], capped(LIMIT, "daily"), capped(5 * LIMIT, "monthly"))
        world = World(store.url, random.Random(11))  # noqa: S311 - no secret
        traffic = Traffic(gateways, caller, world.chance)
        async with watching(world):
            for day in range(2):
                await traffic.pass_midnight(MIDNIGHT + day * DAY_S)
            traffic.settle(1.0)
            for gateway in gateways:
                await gateway.flusher.flush()
        for gateway in gateways:
            await gateway.stop()
        await look(store.connection, world)
        assert world.wrong == []
        rows = await store.connection.fetch("SELECT day, sum(cost_nanos)::bigint nanos FROM usage_days GROUP BY 1")
        assert {row["day"]: row["nanos"] for row in rows} == dict(+traffic.spent)
        assert await store.connection.fetchval("SELECT count(*) FROM credit_leases") == 0
    assert len(traffic.spent) == 3
    assert traffic.refused > 0
    assert max(traffic.spent.values()) <= LIMIT
