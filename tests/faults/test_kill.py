"""P1: ``kill -9`` under load, six times over three stores: nothing is lost, held for ever or charged twice.

``test_kill_soak.py`` does it a thousand times.
"""

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gateway.domain.ledger import OnCrash
from gateway.domain.price import NANOS_PER_USD
from gateway.domain.request_log import RequestRecord
from tests.support import kill_runs
from tests.support.fault_scene import until
from tests.support.gateway_process import GatewayProcess
from tests.support.postgres import SharedPostgres

KILLS = 2
CALLERS = 48
LOAD_S = (0.1, 0.45)
START_S = (0.0, 0.25)
"""When a start is killed: from before it opens its folder to its first calls; its imports are behind it."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


async def live_and_die(
    gateway: GatewayProcess, memory: kill_runs.Memory, rng: random.Random, number: int, *, until_refused: bool
) -> bool:
    """A round: caps filled up, a crowd let in, and the gateway killed under it.

    Leaves it dead. Whether the one after it was killed as well, at its start, where it recovers. ``until_refused``: it
    is killed once a call of this or an earlier round was refused.
    """
    reached = len(memory.reached)
    for path, usd in kill_runs.REFILL.items():
        await gateway.ask(path, {"kind": "set", "amount_usd": usd})
    crowd = [
        asyncio.create_task(kill_runs.keep_calling(gateway.url, secret, f"r{number}.{index}.{place}", memory, rng))
        for place, secret in enumerate(kill_runs.KEYS)
        for index in range(CALLERS // len(kill_runs.KEYS))
    ]
    await until(lambda: len(memory.reached) >= reached + CALLERS and (memory.refused or not until_refused))
    await asyncio.sleep(rng.uniform(*LOAD_S))
    await gateway.kill()
    await asyncio.gather(*crowd)
    again = rng.random() < 0.25
    if again:
        gateway.launch()
        await asyncio.sleep(rng.uniform(*START_S))
        await gateway.kill()
    return again


async def check_round(gateway: GatewayProcess, memory: kill_runs.Memory, on_crash: OnCrash) -> list[RequestRecord]:
    """What must be true of the next gateway over the same folder; the rows that are new to it."""
    await gateway.check_books()
    rows, memory.last = await gateway.read_rows(memory.last)
    for row in rows:
        mark = row.client_request_id
        assert mark is not None
        assert mark not in memory.rows, ("two rows of one call", row, memory.rows[mark])
        memory.rows[mark] = row
        if row.outcome == "interrupted":
            assert (row.reserved_nanos, row.attempts, row.status) == (kill_runs.RESERVED, 1, 500)
            assert row.cost_nanos == (kill_runs.RESERVED if on_crash == "charge" else 0)
        assert row.overrun_nanos <= max(0, row.cost_nanos - row.reserved_nanos), row
        assert (
            row.cost_nanos in {0, kill_runs.ANSWER_COST, kill_runs.STREAM_COST, kill_runs.RESERVED}
            or row.outcome == "client_closed"
        ), row
    missing = memory.reached.keys() - memory.rows.keys()
    assert not missing, f"reached the provider and left no row: {missing}"
    for mark, stream in memory.whole.items():
        row = memory.rows[mark]
        assert (row.outcome, row.cost_nanos) == (
            "completed",
            kill_runs.STREAM_COST if stream else kill_runs.ANSWER_COST,
        ), row
    memory.whole.clear()
    assert not any(memory.rows[mark].cost_nanos for mark in memory.refused & memory.rows.keys())
    await check_caps(gateway, memory)
    await gateway.check_traffic(memory.rows.values())
    return rows


async def check_caps(gateway: GatewayProcess, memory: kill_runs.Memory) -> None:
    """Spent is what the rows cost; and no more than the cap, but for what the rows say is above it."""
    for account in (await gateway.ask("accounts"))["data"]:
        mine = [row for row in memory.rows.values() if row.account == account["name"]]
        check_balance(account, mine)
    for key in (await gateway.ask("keys"))["data"]:
        check_balance(key, [row for row in memory.rows.values() if row.key_id == key["id"]])


def check_balance(balance: dict[str, Any], rows: list[RequestRecord]) -> None:
    spent, credit = nanos(balance["spent_usd"]), nanos(balance["credit_usd"])
    assert spent == sum(row.cost_nanos for row in rows), balance
    assert nanos(balance["held_usd"]) == 0
    if balance["quota_usd"] is not None:
        assert spent <= credit + sum(row.overrun_nanos for row in rows), balance
        assert nanos(balance["left_usd"]) == credit - spent


def nanos(usd: float) -> int:
    return round(usd * NANOS_PER_USD)


@pytest.mark.parametrize(("on_crash", "kind"), [("release", "sqlite"), ("charge", "sqlite"), ("charge", "postgresql")])
async def test_kills_under_load_leave_books_that_agree(
    tmp_path: Path, on_crash: OnCrash, kind: str, shared_postgres: SharedPostgres
) -> None:
    """Every call that reached a provider has one row, and what was answered is paid."""
    seed, rng = kill_runs.roll()
    memory = kill_runs.Memory()
    store = {} if kind == "sqlite" else {"store": {"url": await shared_postgres.empty()}}
    with kill_runs.telling(seed):
        async with (
            kill_runs.open_up(memory, rng, stream=False) as up,
            kill_runs.open_up(memory, rng, stream=True) as streaming,
            GatewayProcess(tmp_path / "data", {**kill_runs.site(up, streaming, on_crash), **store}) as gateway,
        ):
            for number in range(KILLS):
                twice = await live_and_die(gateway, memory, rng, number, until_refused=number == KILLS - 1)
                await gateway.start()
                rows = await check_round(gateway, memory, on_crash)
                logged = {line["request_id"] for line in gateway.read_log("request_interrupted")}
                assert twice or logged == {row.id for row in rows if row.outcome == "interrupted"}
            await gateway.kill()
            kill_runs.check_offline(gateway)
        outcomes = Counter(row.outcome for row in memory.rows.values())
        overruns = sum(row.overrun_nanos > 0 for row in memory.rows.values())
        print(f"{on_crash}: {dict(outcomes)}, {overruns} overruns, {len(memory.refused)} refused")  # noqa: T201
        assert outcomes["interrupted"] > KILLS
        assert kind == "postgresql" or outcomes["completed"] > KILLS
        assert memory.refused
