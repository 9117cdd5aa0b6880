"""M11: the day ends in the middle of requests, at each node at another moment; every snapshot is right."""

import asyncio
import os
import random
from collections import Counter
from pathlib import Path

from gateway.domain.balance import DAY_S
from gateway.errors import QuotaExceeded
from gateway.request_context import RequestContext
from tests.billing.test_credit_cluster import add_caller
from tests.support.billing_services import NOON, capped
from tests.support.credit_gateway import LeasedGateway
from tests.support.credit_nodes import World, look, watch
from tests.support.credit_store import open_credit_store
from tests.support.postgres import SharedPostgres

NODES, TURNS = "abc", int(os.environ.get("M11_TURNS", "10"))
MIDNIGHT = NOON + DAY_S / 2
"""Seconds before midnight at the first turn."""
LIMIT, MOST = 6_000, 100


async def test_a_day_that_ends_in_the_middle_leaves_every_snapshot_right(
    tmp_path: Path, shared_postgres: SharedPostgres
) -> None:
    chance, spent = random.Random(11), Counter[int]()  # noqa: S311 - no secret
    async with open_credit_store(shared_postgres) as store:
        gateways = [LeasedGateway(store.url, name, tmp_path, live=len(NODES)) for name in NODES]
        for gateway in gateways:
            await gateway.start()
        caller = await add_caller(gateways[0], capped(LIMIT, "daily"), capped(5 * LIMIT, "monthly"))
        world = World(store.url, chance)
        eye = await world.connect()
        watching = asyncio.create_task(watch(eye, world))
        running: list[tuple[LeasedGateway, RequestContext]] = []
        refused = Counter[int]()

        async def ask(gateway: LeasedGateway) -> None:
            try:
                running.append((gateway, await gateway.admit(caller, MOST)))
            except QuotaExceeded:
                refused[int(gateway.now // DAY_S)] += 1

        def settle(share: float) -> None:
            for pair in [each for each in running if chance.random() < share]:
                running.remove(pair)
                gateway, ctx = pair
                row = gateway.settle(ctx, chance.randrange(MOST + 1))
                spent[row.settled_ms // (DAY_S * 1000)] += row.cost_nanos

        for day in range(2):
            for turn in range(TURNS):
                for number, gateway in enumerate(gateways):  # each passes midnight at another turn
                    gateway.now = max(gateway.least_s, MIDNIGHT + day * DAY_S + (turn - TURNS // 2 - number) * 10)
                await asyncio.gather(*(ask(chance.choice(gateways)) for _ in range(20)))
                settle(0.7)
                await asyncio.sleep(0.05)
        settle(1.0)
        for gateway in gateways:
            await gateway.flusher.flush()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        eye.terminate()
        for gateway in gateways:
            await gateway.stop()
        await look(store.connection, world)
        assert world.wrong == []
        rows = await store.connection.fetch("SELECT day, sum(cost_nanos)::bigint nanos FROM usage_days GROUP BY 1")
        assert {row["day"]: row["nanos"] for row in rows} == {day: nanos for day, nanos in spent.items() if nanos}
        assert await store.connection.fetchval("SELECT count(*) FROM credit_leases") == 0
    assert len(spent) == 3
    assert sum(refused.values()) > 0
    # What is running at midnight is paid for by the day on which it ends.
    assert max(spent.values()) <= LIMIT
