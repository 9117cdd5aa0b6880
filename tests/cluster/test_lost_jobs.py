"""Video jobs of which the standby has not heard when the primary is lost: each ends, and is charged once."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import asyncpg
import pytest

from tests.support.cluster import start_nodes
from tests.support.gateway_process import eventually, open_caller
from tests.support.lost_servers import open_pair
from tests.support.openai_videos import OpenAiVideos, Play
from tests.support.video_scene import A_VIDEO, PRICE, SECONDS, VIDEOS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
_SUMS = """
SELECT (SELECT count(*) FROM videos WHERE state = 'completed'), (SELECT count(*) FROM videos),
  (SELECT count(*) FROM requests WHERE outcome = 'completed'), (SELECT sum(cost_nanos)::bigint FROM usage_days),
  (SELECT sum(reserved)::bigint FROM credit_balances)
"""


@pytest.mark.parametrize("killed", [False, True])
async def test_every_accepted_job_ends_after_a_failover(tmp_path: Path, *, killed: bool) -> None:
    """``killed``: a node ends together with the primary, and starts again later."""
    async with AsyncExitStack() as stack:
        pair = await stack.enter_async_context(open_pair())
        play = Play(polls=("queued", "in_progress", "completed"), hint_ms=300, size=2_000)
        up = await stack.enter_async_context(OpenAiVideos(play))
        tables = {
            "channel": [up.channel("up")],
            "price": [PRICE],
            "egress": {"allow": ["127.0.0.1"]},
            "account": [{"name": "acme"}],
        }
        nodes = await stack.enter_async_context(start_nodes(tmp_path, [pair.url] * 2, tables))
        key = await nodes[0].ask("keys", {"name": "k", "account": "acme", "quota_usd": 20})
        caller = await stack.enter_async_context(open_caller(key["secret"], 60))
        ids: list[str] = []

        async def submit(number: int) -> None:
            body = {"model": "m", "prompt": f"job {number}", "seconds": str(SECONDS)}
            async with caller.post(nodes[number % 2].url + VIDEOS, json=body) as response:
                assert response.status == 200, await response.text()
                ids.append((await response.json())["id"])

        async def have_some_ended() -> bool:
            return await pair.ask(pair.primary, "SELECT count(*) FROM videos WHERE state = 'completed'") >= 4

        await eventually(pair.is_level, 30)
        await pair.detach()
        await asyncio.gather(*map(submit, range(6)))
        await eventually(have_some_ended, 60)
        await asyncio.gather(*map(submit, range(6, 12)))
        if killed:
            await nodes[1].kill()
        await pair.lose()
        if killed:
            await nodes[1].start()

        async def have_all_ended() -> bool:
            states: Counter[object] = Counter()
            for number, video in enumerate(ids):
                async with caller.get(f"{nodes[number % 2].url}{VIDEOS}/{video}") as response:
                    states[(await response.json()).get("status") if response.status == 200 else response.status] += 1
            print(states)  # noqa: T201 - what happened
            return states == {"completed": len(ids)}

        await eventually(have_all_ended, 60)
        assert set(Counter(each.prompt for each in up.submits).values()) == {1}
        connection = await asyncpg.connect(pair.standby.name_url(pair.url.rpartition("/")[2]))
        try:
            assert tuple(await connection.fetchrow(_SUMS)) == (12, 12, 12, 12 * A_VIDEO, 0)
        finally:
            await connection.close()
        for node in nodes:
            await node.check_books()
