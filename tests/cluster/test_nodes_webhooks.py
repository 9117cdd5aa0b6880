"""Webhooks of a cluster: the bounds of an account and of a host hold over all nodes, and no event is lost (J3)."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from aiohttp import web

from gateway.videos.webhook_worker import MAX_PER_ACCOUNT, MAX_PER_HOST
from tests.support.cluster import make_node, start_nodes
from tests.support.gateway import channel
from tests.support.gateway_process import eventually
from tests.support.postgres import SharedPostgres

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
WITHIN_S = 90
HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4")
_INSERT = """
INSERT INTO deliveries (id, video_id, account_id, key_id, event, created_ms, status, attempts, due_ms, owner,
  lease_until_ms, url, body)
SELECT 'evt_' || n, 'video_' || n, n % $1 + 1, 1, 'video.completed', $4, 'pending', 0, $4, '', 0,
  'http://' || ($2::text[])[n / $1 % cardinality($2) + 1] || ':' || $5 || '/' || (n % $1 + 1), '{}'
FROM generate_series(0, $3 - 1) n
"""


class Receivers:
    """Servers at some hosts. A silent one takes an event and does not answer.

    Attributes:
        events: how often each event has come.
        most: how many deliveries of an account there ever were at a time; of an account to a host, too.
    """

    def __init__(self, pace_s: float, silent: frozenset[str] = frozenset()) -> None:
        self._pace_s = pace_s
        self._silent = silent
        self._active: Counter[tuple[str, ...]] = Counter()
        self.events: Counter[str] = Counter()
        self.most: dict[int, int] = {1: 0, 2: 0}
        self.port = 0

    async def take(self, request: web.Request) -> web.Response:
        account, host = request.match_info["account"], str(request.url.host)
        names = ((account,), (account, host))
        for name in names:
            self._active[name] += 1
            self.most[len(name)] = max(self.most[len(name)], self._active[name])
        try:
            await asyncio.sleep(3_600 if host in self._silent else self._pace_s)
            self.events[request.headers["webhook-id"]] += 1
            return web.Response()
        finally:
            for name in names:
                self._active[name] -= 1


@asynccontextmanager
async def open_receivers(pace_s: float, *silent: str) -> AsyncIterator[Receivers]:
    receivers, app = Receivers(pace_s, frozenset(silent)), web.Application()
    app.router.add_post("/{account}", receivers.take)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        for host in HOSTS:
            await web.TCPSite(runner, host, receivers.port).start()
            receivers.port = runner.addresses[0][1]
        yield receivers
    finally:
        await runner.cleanup()


def configure() -> dict[str, Any]:
    return {
        "channel": [channel("http://127.0.0.1:9/v1")],
        "egress": {"allow": ["127.0.0.0/8"]},
        "account": [{"name": "acme"}],
    }


async def fill(url: str, accounts: int, count: int, port: int, hosts: Sequence[str] = HOSTS) -> None:
    """Store ``count`` deliveries of so many accounts, due now, to the hosts in turn."""
    connection = await asyncpg.connect(url)
    try:
        now_ms = await connection.fetchval("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")
        await connection.execute(_INSERT, accounts, list(hosts), count, now_ms, str(port))
    finally:
        await connection.close()


async def count_pending(url: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        return int(await connection.fetchval("SELECT count(*) FROM deliveries WHERE due_ms IS NOT NULL"))
    finally:
        await connection.close()


@pytest.mark.soak
async def test_nodes_keep_the_bounds_of_accounts_and_hosts_while_one_joins_and_one_leaves(
    tmp_path: Path, shared_postgres: SharedPostgres
) -> None:
    url, accounts, count = await shared_postgres.empty(), 3, 72
    async with open_receivers(0.15) as receivers, start_nodes(tmp_path, [url] * 2, configure()) as nodes:
        await fill(url, accounts, count, receivers.port, HOSTS[:1])  # two nodes could have six there
        await eventually(lambda: has_come(receivers, 10), WITHIN_S)
        third = make_node(tmp_path / "third", url, configure())
        try:
            await third.start()
            await eventually(lambda: has_come(receivers, 30), WITHIN_S)
            assert await nodes[0].end() == 0
            await eventually(lambda: has_come(receivers, count), WITHIN_S)
            assert await third.end() == 0
        finally:
            await third.kill()
    assert set(receivers.events.values()) == {1}
    assert 1 <= receivers.most[1] <= MAX_PER_ACCOUNT
    assert 1 <= receivers.most[2] <= MAX_PER_HOST


async def has_come(receivers: Receivers, count: int) -> bool:
    return len(receivers.events) >= count


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_ten_thousand_events_some_to_silent_hosts(tmp_path: Path, shared_postgres: SharedPostgres) -> None:
    url, accounts, count = await shared_postgres.empty(), 50, 10_000  # as many to each host
    async with open_receivers(0.05, HOSTS[3]) as receivers, start_nodes(tmp_path, [url] * 4, configure()) as nodes:
        await fill(url, accounts, count, receivers.port)
        began = asyncio.get_running_loop().time()
        await eventually(lambda: has_come(receivers, count // 4), 1800)
        await nodes[0].kill()
        await asyncio.sleep(30)
        await nodes[0].start()
        await eventually(lambda: has_come(receivers, count * 3 // 4), 1800)  # all but those of the silent host
        took_s = asyncio.get_running_loop().time() - began
        pending = await count_pending(url)
    print(f"{took_s:.0f} s", receivers.most, Counter(receivers.events.values()), pending)  # noqa: T201 - what happened
    assert len(receivers.events) == count * 3 // 4
    assert receivers.most[1] <= MAX_PER_ACCOUNT
    assert receivers.most[2] <= MAX_PER_HOST
    assert pending >= count // 4, "what was not answered is tried again"
