"""PostgreSQL is restarted under load: requests go on, and no charge is lost or double."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import asyncpg
import pytest

from tests.support.cluster import PATIENT_SERVE, is_known, start_nodes
from tests.support.gateway import channel
from tests.support.gateway_process import GatewayProcess, eventually, open_caller
from tests.support.openai_videos import OpenAiVideos, Play
from tests.support.postgres import PostgresServer, owning_server
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.steady_callers import SteadyCallers
from tests.support.video_scene import A_VIDEO, SECONDS, VIDEOS
from tests.support.video_scene import PRICE as VIDEO_PRICE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
PRICE = {"model": "m", "input_usd_per_million": 1000, "output_usd_per_million": 1000}
COST_NANOS = 12_000_000
CAPPED = {"quota_usd": 100_000.0}
_FOUND = """
SELECT (SELECT count(*) FROM requests) AS rows, (SELECT count(DISTINCT id) FROM requests) AS ids,
  (SELECT count(*) FROM entries WHERE kind = 'charge') AS entries,
  (SELECT coalesce(sum(amount_nanos), 0)::bigint FROM entries) AS charged,
  (SELECT coalesce(sum(cost_nanos), 0)::bigint FROM usage_days) AS used,
  (SELECT count(*) FROM credit_leases) AS leases
"""


@pytest.fixture
async def server() -> AsyncIterator[PostgresServer]:
    async with owning_server() as running:
        yield running


async def restart_under_load(
    server: PostgresServer, path: Path, per_s: float, pauses_s: Sequence[float], journal: str
) -> None:
    """Restart the server while callers call; every answer is 200, and each is one row and one charge.

    It is away for as long as each of ``pauses_s``, and for as long as a restart takes.
    """
    url, away_s = await server.make_database(), list[float]()
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        tables = {"channel": [channel(up.base_url)], "account": [{"name": "acme"}], "price": [PRICE]}
        async with start_nodes(path, [url] * 2, tables, {"journal": journal}) as nodes:
            keys = [
                await nodes[0].ask("keys", {"name": f"k{number}", "account": "acme", **quota})
                for number, quota in enumerate(({}, CAPPED, {}))
            ]
            await asyncio.sleep(0.5)  # the other node hears of them
            callers = SteadyCallers(nodes, [key["secret"] for key in keys])
            async with callers.run(per_s):
                for pause_s in pauses_s:
                    await callers.wait(int(2 * per_s))
                    began_s = time.monotonic()
                    await asyncio.to_thread(server.stop)
                    await asyncio.sleep(pause_s)
                    await asyncio.to_thread(server.start)
                    away_s.append(round(time.monotonic() - began_s, 2))
                await callers.wait(int(2 * per_s))
            slowest_s = round(max(each.took_s for each in callers.answers), 2)
            print(f"away for {away_s} s, answers {callers.count()}, slowest {slowest_s} s")  # noqa: T201 - the figures
            assert callers.count() == {200: callers.sent}

            async def is_at_rest() -> bool:
                reports = [await node.ask("audit") for node in nodes]
                return all(report["open_holds"] == report["waiting_rows"] == 0 for report in reports)

            await eventually(is_at_rest, 30)
            for node in nodes:
                await node.check_books()
            assert [await node.end() for node in nodes] == [0, 0]
    spent = callers.sent * COST_NANOS
    assert await find_sums(url) == {
        **dict.fromkeys(("rows", "ids", "entries"), callers.sent), "charged": spent, "used": spent, "leases": 0,
    }  # fmt: skip


@pytest.mark.parametrize("journal", ["disk", "store"])
async def test_a_restart_of_the_store_fails_no_request_and_loses_no_charge(
    tmp_path: Path, server: PostgresServer, journal: str
) -> None:
    await restart_under_load(server, tmp_path, 30, [0], journal)


@pytest.mark.soak
@pytest.mark.parametrize("journal", ["disk", "store"])
async def test_five_restarts_of_the_store_under_load_fail_no_request_and_lose_no_charge(
    tmp_path: Path, server: PostgresServer, journal: str
) -> None:
    await restart_under_load(server, tmp_path, 200, [0, 0, 1, 2, 3], journal)


async def test_a_video_request_waits_for_a_restart_of_the_store_and_is_made_once(
    tmp_path: Path, server: PostgresServer
) -> None:
    url = await server.make_database()
    play = Play(polls=("queued", "completed"), hint_ms=200, size=2_000)
    async with OpenAiVideos(play) as up:
        tables = {
            "channel": [up.channel()],
            "price": [VIDEO_PRICE],
            "egress": {"allow": ["127.0.0.1"]},
            "account": [{"name": "acme"}],
        }
        async with start_nodes(tmp_path, [url] * 2, tables, command=PATIENT_SERVE) as nodes:
            key = await nodes[0].ask("keys", {"name": "k", "account": "acme", "quota_usd": 100})
            await eventually(lambda: is_known(nodes, key["secret"]), 60)
            assert await make_video(nodes[1], key["secret"], "before") == 200
            await asyncio.to_thread(server.stop)
            prompts = [f"during {number}" for number in range(4)]
            waiting = [
                asyncio.create_task(make_video(nodes[number % 2], key["secret"], prompt))
                for number, prompt in enumerate(prompts)
            ]
            await eventually(lambda: have_noticed(nodes), 30)
            assert [submit.prompt for submit in up.submits] == ["before"]
            assert not any(each.done() for each in waiting)
            await asyncio.to_thread(server.start)
            assert await asyncio.gather(*waiting) == [200] * 4

            async def have_ended() -> bool:
                return (await find_sums(url))["entries"] == 5

            await eventually(have_ended, 60)
            assert sorted(submit.prompt for submit in up.submits) == ["before", *prompts]
            for node in nodes:
                await node.check_books()
            assert [await node.end() for node in nodes] == [0, 0]
    assert await find_sums(url) == {
        **dict.fromkeys(("rows", "ids", "entries"), 5), "charged": 5 * A_VIDEO, "used": 5 * A_VIDEO, "leases": 0,
    }  # fmt: skip


async def make_video(node: GatewayProcess, secret: str, prompt: str) -> int:
    async with open_caller(secret, 60) as caller:
        body = {"model": "m", "prompt": prompt, "seconds": str(SECONDS)}
        async with caller.post(node.url + VIDEOS, json=body) as response:
            await response.read()
            return response.status


async def have_noticed(nodes: Sequence[GatewayProcess]) -> bool:
    return all(node.read_log("node_out_of_touch") for node in nodes)


async def find_sums(url: str) -> dict[str, int]:
    connection = await asyncpg.connect(url)
    try:
        return dict(await connection.fetchrow(_FOUND))
    finally:
        await connection.close()
