"""Keys that are made, used and deleted leave no memory in use, also after a restart.

``make soak ARGS=tests/faults/test_many_keys.py`` takes 20,000 keys; ``GATEWAY_TEST_KEYS=2000`` takes fewer.
"""

import asyncio
import os
from pathlib import Path

import aiohttp
import psutil
import pytest

from tests.support.gateway import CHAT, HELLO, channel
from tests.support.gateway_process import GatewayProcess
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer

KEYS = int(os.environ.get("GATEWAY_TEST_KEYS") or 20_000)
WARM_UP = 2_000
"""Keys after which the caches of the database are full."""
AT_ONCE = 10
MOST_MB = 3.0
SERVE = ("-c", "from gateway.cli.main import main; main()", "serve")
"""A process of its own: a forked one has the memory of the process that it comes from."""


async def make_use_delete(gateway: GatewayProcess, count: int) -> None:
    """Make, use and delete ``count`` keys of one account, each with limits of its own."""
    numbers = iter(range(count))
    async with (
        aiohttp.ClientSession(gateway.url, headers={"Authorization": f"Bearer {gateway.token}"}) as admin,
        aiohttp.ClientSession(gateway.url) as client,
    ):

        async def work() -> None:
            for number in numbers:
                body = {"name": f"k{number}", "account": "acme", "quota_usd": 5, "rpm": 100, "tpm": 100_000}
                async with admin.post("/admin/v1/keys", json=body) as response:
                    made = await response.json()
                    assert response.status == 201, made
                async with client.post(CHAT, json=HELLO, headers={"Authorization": f"Bearer {made['secret']}"}) as used:
                    assert used.status == 200, await used.text()
                    await used.read()
                async with admin.delete(f"/admin/v1/keys/{made['id']}") as response:
                    assert response.status in {200, 204}

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))


def measure_mb(gateway: GatewayProcess) -> float:
    found: float = psutil.Process(gateway.pid).memory_info().rss / 1e6
    return found


@pytest.mark.soak
@pytest.mark.timeout(0)
async def test_deleted_keys_leave_no_memory_in_use(tmp_path: Path) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        tables = {
            "channel": [channel(up.base_url)],
            "account": [{"name": "acme", "quota_usd": 1_000_000}],
            "price": [{"model": "m", "input_usd_per_million": 1, "output_usd_per_million": 2}],
        }
        async with GatewayProcess(tmp_path / "data", tables, command=SERVE) as gateway:
            await make_use_delete(gateway, WARM_UP)
            warm_mb = measure_mb(gateway)
            await gateway.end()
            await gateway.start()
            started_mb = measure_mb(gateway)
            await make_use_delete(gateway, WARM_UP)
            before_mb = measure_mb(gateway)
            await make_use_delete(gateway, KEYS)
            after_mb = measure_mb(gateway)
            await gateway.end()
            await gateway.start()
            restarted_mb = measure_mb(gateway)
        print(f"{warm_mb:.1f} MB; {KEYS} keys: {before_mb:.1f} -> {after_mb:.1f} MB")  # noqa: T201
        print(f"after a start {started_mb:.1f} MB, after the next one {restarted_mb:.1f} MB")  # noqa: T201
        assert after_mb <= before_mb + MOST_MB
        assert restarted_mb <= started_mb + MOST_MB
