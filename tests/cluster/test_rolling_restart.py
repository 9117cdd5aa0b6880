"""Nodes behind a load balancer are restarted one after the other: no call fails, and no stream breaks."""

import asyncio
from pathlib import Path

import aiohttp
import asyncpg
import pytest

from tests.support.balancers import STREAM, Callers, RunProxy, run_caddy, run_nginx, wait_for_proxy
from tests.support.cluster import start_nodes
from tests.support.gateway import channel
from tests.support.gateway_process import GatewayProcess
from tests.support.postgres import SharedPostgres
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.spending_callers import PRICE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
KEYS = 8
"""Each belongs to one node, as long as that serves."""
DELAY_S = 2.5
"""Longer than the proxies take a node for dead that has come back."""


async def find_states(url: str) -> dict[str, int]:
    connection = await asyncpg.connect(url)
    try:
        found = await connection.fetchrow(
            "SELECT (SELECT count(*) FROM credit_leases) AS leases, (SELECT count(*) FROM requests) AS requests,"
            " (SELECT count(*) FROM requests WHERE outcome <> 'completed') AS incomplete"
        )
        return dict(found)
    finally:
        await connection.close()


async def find_readiness(node: GatewayProcess) -> int:
    """The status of ``/readyz`` over a new connection; 0 if none is accepted."""
    try:
        async with aiohttp.ClientSession() as client, client.get(f"{node.url}/readyz") as response:
            return response.status
    except aiohttp.ClientError:
        return 0


async def watch_stop(node: GatewayProcess, seen: list[int]) -> None:
    """Note how ``/readyz`` changes until no connection is accepted."""
    while not seen or seen[-1]:
        status = await find_readiness(node)
        if seen[-1:] != [status]:
            seen.append(status)
        await asyncio.sleep(0.02)


async def restart(node: GatewayProcess) -> None:
    """Stop a node in order and start it again at the same address."""
    seen: list[int] = [await find_readiness(node)]
    watching = asyncio.create_task(watch_stop(node, seen))
    node.port = int(node.url.rpartition(":")[2])
    assert await node.end() == 0
    await watching
    assert seen == [200, 503, 0], "it says that it stops before it accepts no more"
    await node.start()


@pytest.mark.parametrize("run_proxy", [run_nginx, pytest.param(run_caddy, marks=pytest.mark.soak)])
async def test_nodes_are_restarted_one_after_the_other_and_no_call_fails(
    run_proxy: RunProxy, tmp_path: Path, shared_postgres: SharedPostgres
) -> None:
    url = await shared_postgres.empty()
    async with ScriptedUpstream([0.02, answer(COMPLETION)]) as up, ScriptedUpstream(STREAM) as streams:
        tables = {
            "server": {"log_format": "json", "shutdown_delay_s": DELAY_S, "trusted_proxies": ["127.0.0.1"]},
            "channel": [channel(up.base_url), channel(streams.base_url, "streams", models=["s"])],
            "account": [{"name": "acme"}],
            "price": [PRICE, {**PRICE, "model": "s"}],
            "cluster": {"enabled": True, "journal": "store"},
        }
        async with start_nodes(tmp_path, [url] * 2, tables) as nodes:
            made = [
                await nodes[0].ask("keys", {"name": f"k{number}", "account": "acme", "quota_usd": 100.0})
                for number in range(KEYS)
            ]
            with run_proxy(tmp_path, nodes) as proxy:
                await wait_for_proxy(proxy, tmp_path / "error")
                callers = Callers(proxy, [key["secret"] for key in made], tmp_path / "error")
                calls = [asyncio.create_task(callers.run(number)) for number in range(KEYS)]
                for node in nodes:
                    await callers.wait(20)
                    await restart(node)
                await callers.wait(20)
                callers.going_on = False
                await asyncio.gather(*calls)
            assert [await node.end() for node in nodes] == [0, 0]
    found = await find_states(url)
    print(dict(callers.done), found)  # noqa: T201 - what happened
    assert callers.failed == []
    assert found == {"leases": 0, "requests": callers.done.total(), "incomplete": 0}
