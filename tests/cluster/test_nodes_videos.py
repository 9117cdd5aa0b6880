"""Video jobs of a cluster: each is submitted, ended and charged once, whichever nodes are killed (J1).

A channel is polled by one node at a time, however many there are, also while nodes join or leave.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import attrs
import pytest
from aiohttp import web

from tests.support.cluster import start_nodes
from tests.support.gateway_process import GatewayProcess, eventually, open_caller
from tests.support.openai_videos import OpenAiVideos, Play
from tests.support.postgres import SharedPostgres
from tests.support.video_scene import A_VIDEO, PRICE, SECONDS, VIDEOS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
POLLS = 2
"""``videos.polls_per_channel``."""
WITHIN_S = 60
_WAITED = """
SELECT coalesce(max(extract(epoch FROM clock_timestamp()) * 1000 - due_ms), 0)::float / 1000 FROM videos
WHERE due_ms IS NOT NULL
"""
_SUMS = """
SELECT (SELECT count(*) FROM videos WHERE state NOT IN ('completed', 'failed')) AS unfinished,
  (SELECT count(*) FROM videos WHERE state = 'completed') AS completed,
  (SELECT count(*) FROM videos WHERE error_code <> 'submit_unknown' AND error_code <> 'interrupted') AS failed,
  (SELECT count(*) FROM videos) AS jobs,
  (SELECT count(*) FROM requests WHERE outcome = 'completed') AS charged_rows,
  (SELECT coalesce(sum(amount_nanos), 0)::bigint FROM entries WHERE kind = 'charge') AS charged,
  (SELECT sum(reserved)::bigint FROM credit_balances) AS reserved,
  (SELECT count(*) FROM deliveries) AS deliveries,
  (SELECT count(*) FROM deliveries WHERE due_ms IS NOT NULL) AS undelivered
"""


class SlowPolls(OpenAiVideos):
    """A provider that takes a while to answer a poll, and counts how many it has at once."""

    polling = most_polling = 0

    async def _tell(self, request: web.Request) -> web.StreamResponse:
        self.polling += 1
        self.most_polling = max(self.most_polling, self.polling)
        try:
            await asyncio.sleep(0.1)
            return await super()._tell(request)
        finally:
            self.polling -= 1


class Hooks:
    """Receives webhooks. ``events``: how often each came, by the job's id."""

    def __init__(self) -> None:
        self.events: Counter[str] = Counter()
        self.url = ""

    async def take(self, request: web.Request) -> web.Response:
        self.events[(await request.json())["data"]["id"]] += 1
        return web.Response()


@asynccontextmanager
async def open_hooks() -> AsyncIterator[Hooks]:
    hooks, app = Hooks(), web.Application()
    app.router.add_post("/", hooks.take)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    hooks.url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    try:
        yield hooks
    finally:
        await runner.cleanup()


@attrs.define
class VideoScenario:
    """Nodes over two providers, a caller, and what has become of its calls."""

    ups: Sequence[SlowPolls]
    hooks: Hooks
    nodes: Sequence[GatewayProcess]
    caller: aiohttp.ClientSession
    database: asyncpg.Connection
    polls: int
    answers: Counter[int] = attrs.Factory(Counter)
    waited_s: float = 0.0

    async def submit(self, number: int) -> None:
        node = self.nodes[number % len(self.nodes)]
        body = {"model": "m", "prompt": f"job {number}", "seconds": str(SECONDS), "webhook_url": self.hooks.url}
        try:
            async with self.caller.post(node.url + VIDEOS, json=body) as response:
                assert response.status == 200, await response.text()
                self.answers[response.status] += 1
        except (aiohttp.ClientError, OSError):
            self.answers[0] += 1  # the node was killed

    async def have_ended(self) -> bool:
        self.waited_s = max(self.waited_s, await self.database.fetchval(_WAITED))
        found = await self.database.fetchrow(_SUMS)
        return bool(found["unfinished"] == found["undelivered"] == 0)

    async def check(self) -> dict[str, int]:
        """Every job has ended once and was charged once; the provider has heard of none twice."""
        found = dict(await self.database.fetchrow(_SUMS))
        asked = Counter(submit.prompt for up in self.ups for submit in up.submits)
        assert set(asked.values()) == {1}
        assert found["jobs"] >= self.answers[200]
        assert found["completed"] >= self.answers[200] - found["failed"]
        assert found["failed"] == 0
        assert (found["charged_rows"], found["charged"]) == (found["completed"], found["completed"] * A_VIDEO)
        assert (found["reserved"], found["deliveries"]) == (0, found["jobs"])
        assert len(self.hooks.events) == found["jobs"], "every event has come"
        assert [up.most_polling <= self.polls for up in self.ups] == [True] * len(self.ups)
        return found


@asynccontextmanager
async def open_scene(path: Path, url: str, count: int, polls: int = POLLS) -> AsyncIterator[VideoScenario]:
    async with AsyncExitStack() as stack:
        plays = Play(polls=("queued", "in_progress", "completed"), hint_ms=300, size=2_000)
        ups = [await stack.enter_async_context(SlowPolls(plays)) for _ in range(2)]
        tables: dict[str, Any] = {
            "channel": [up.channel(f"up{number}") for number, up in enumerate(ups)],
            "price": [PRICE],
            "egress": {"allow": ["127.0.0.1"]},
            "videos": {"polls_per_channel": polls, "max_open": 5_000, "webhook_hosts": ["127.0.0.1"]},
            "account": [{"name": "acme"}],
        }
        hooks = await stack.enter_async_context(open_hooks())
        nodes = await stack.enter_async_context(start_nodes(path, [url] * count, tables))
        key = await nodes[0].ask("keys", {"name": "k", "account": "acme", "quota_usd": 1_000_000})
        await asyncio.sleep(0.5)
        caller = await stack.enter_async_context(open_caller(key["secret"]))
        database = await asyncpg.connect(url)
        stack.push_async_callback(database.close)
        yield VideoScenario(ups, hooks, nodes, caller, database, polls)


async def test_jobs_of_a_killed_node_are_made_once_and_charged_once(
    tmp_path: Path, shared_postgres: SharedPostgres
) -> None:
    async with open_scene(tmp_path, await shared_postgres.empty(), 2) as scene:
        await asyncio.gather(*(scene.submit(number) for number in range(16)))
        assert scene.answers == {200: 16}

        async def is_polled() -> bool:
            return all(up.most_polling for up in scene.ups)

        await eventually(is_polled, WITHIN_S)
        late = asyncio.gather(*(scene.submit(number) for number in range(16, 24)))
        await asyncio.sleep(0.05)
        await scene.nodes[0].kill()
        await late
        await scene.nodes[0].start()
        await eventually(scene.have_ended, WITHIN_S)
        found = await scene.check()
        for node in scene.nodes:
            assert (await node.ask("audit"))["ok"]
    print(dict(scene.answers), found, f"waited {scene.waited_s:.1f} s")  # noqa: T201 - what happened


@pytest.mark.soak
@pytest.mark.timeout(1200)
async def test_two_thousand_jobs_over_four_nodes_with_kills(tmp_path: Path, shared_postgres: SharedPostgres) -> None:
    async with open_scene(tmp_path, await shared_postgres.empty(), 4, polls=32) as scene:
        chance = random.Random(7)  # noqa: S311 - no secret

        async def submit_all() -> None:
            for first in range(0, 2000, 20):
                await asyncio.gather(*(scene.submit(number) for number in range(first, first + 20)))
                await asyncio.sleep(2)  # no more than two nodes can do: what waits then, waits for a node

        submitting = asyncio.create_task(submit_all())
        for rest_s in (0, 0, 40, 0, 0, 0):  # the third stays dead until the others have noticed
            for _ in range(10):
                await asyncio.sleep(chance.uniform(0.7, 1.3))
                await scene.have_ended()
            node = chance.choice(scene.nodes)
            await node.kill()
            for _ in range(rest_s):
                await asyncio.sleep(1)
                await scene.have_ended()
            await node.start()
        await submitting
        await eventually(scene.have_ended, 600)
        found = await scene.check()
        print(dict(scene.answers), found, f"waited {scene.waited_s:.1f} s")  # noqa: T201 - what happened
        assert scene.waited_s < 35
