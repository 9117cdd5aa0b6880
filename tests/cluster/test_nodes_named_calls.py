"""What is under way at one node survives the starts of others, and a name is one call wherever it is used (J2)."""

import asyncio
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import orjson
import pytest

from tests.support.cluster import make_node, start_nodes
from tests.support.gateway import CHAT, HELLO, channel
from tests.support.gateway_process import GatewayProcess, eventually
from tests.support.openai_videos import OpenAiVideos, Play
from tests.support.postgres import SharedPostgres
from tests.support.scripted_upstream import COMPLETION, Received, ScriptedUpstream, answer
from tests.support.video_scene import PRICE, VIDEOS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
WITHIN_S = 60
PATIENT: dict[str, Any] = {"first_byte_timeout_s": 500, "idle_timeout_s": 500, "total_timeout_s": 600}
Answer = tuple[int, Mapping[str, str], bytes]


class Provider:
    """What chat calls reach: it answers when it may. ``calls``: how often each prompt has come."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.may_answer = asyncio.Event()

    async def note(self, received: Received) -> None:
        if received.body:  # else it is asked for its models
            self.calls[received.json["messages"][0]["content"]] += 1
            await self.may_answer.wait()


def open_patient_caller(secret: str) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        headers={"Authorization": f"Bearer {secret}"},
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=600),
    )


async def call(caller: aiohttp.ClientSession, node: GatewayProcess, name: str) -> Answer:
    body = {**HELLO, "messages": [{"role": "user", "content": name}]}
    async with caller.post(node.url + CHAT, json=body, headers={"Idempotency-Key": name}) as response:
        return response.status, response.headers, await response.read()


async def submit(caller: aiohttp.ClientSession, node: GatewayProcess, number: int) -> int:
    body = {"model": "v", "prompt": f"job {number}", "seconds": "4"}
    async with caller.post(node.url + VIDEOS, json=body) as response:
        await response.read()
        return response.status


async def run_command(*words: str) -> int:
    """A command in a process of its own; returns its exit status."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", *words, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    return await asyncio.wait_for(process.wait(), WITHIN_S)


async def disturb(tmp_path: Path, url: str, tables: Mapping[str, Any], running: GatewayProcess) -> None:
    """Start a node, start another process over its folder, look with a command, and start the node again."""
    third = make_node(tmp_path / "third", url, tables)
    try:
        await third.start()
        options = ("--data", str(third.data), "--config", str(third.config))
        assert await run_command("serve", "--port", "0", *options) != 0, "the folder is in use"
        assert await run_command("requests", *options) == 0
        assert await third.end() == 0
        assert await run_command("requests", *options) != 0, "it needs a running gateway"
        assert await run_command("requests", "--data", str(running.data), "--config", str(running.config)) == 0
        await third.start()
        assert await third.end() == 0
    finally:
        await third.kill()


async def check_under_way(tmp_path: Path, url: str, jobs: int, names: int) -> None:
    provider, deaf = Provider(), asyncio.Event()
    async with (
        OpenAiVideos(Play(polls=("completed",), hint_ms=300, size=2_000)) as films,
        ScriptedUpstream([provider.note, answer(COMPLETION)]) as up,
    ):
        films.deaf = deaf
        tables = {
            "channel": [channel(up.base_url, **PATIENT), films.channel("films", models=["v"], **PATIENT)],
            "price": [PRICE, {"model": "m", "input_usd_per_million": 1, "output_usd_per_million": 1}],
            "egress": {"allow": ["127.0.0.1"]},
            "account": [{"name": "acme"}],
        }
        async with start_nodes(tmp_path, [url] * 2, tables) as nodes:
            key = await nodes[0].ask("keys", {"name": "k", "account": "acme", "quota_usd": 100_000})
            async with open_patient_caller(key["secret"]) as caller:
                await eventually(lambda: is_known(caller, nodes[1]), WITHIN_S)
                submits = [asyncio.create_task(submit(caller, nodes[n % 2], n)) for n in range(jobs)]
                both = [
                    asyncio.gather(*(call(caller, node, f"name {number}") for node in nodes)) for number in range(names)
                ]

                async def are_asked() -> bool:
                    return len(provider.calls) == names and len(films.asked) == jobs

                await eventually(are_asked, WITHIN_S)
                await disturb(tmp_path, url, tables, nodes[1])
                again = await asyncio.gather(*(call(caller, nodes[n % 2], f"name {n}") for n in range(names)))
                assert {status for status, _, _ in again} == {409}
                provider.may_answer.set()
                deaf.set()
                assert await asyncio.gather(*submits) == [200] * jobs
                for pair in await asyncio.gather(*both):
                    assert sorted(status for status, _, _ in pair) == [200, 409]
                    made = next(body for status, _, body in pair if status == 200)
                    assert orjson.loads(made)["choices"]
                assert set(provider.calls.values()) == {1}
                for number in range(names):
                    one, other = [await call(caller, node, f"name {number}") for node in nodes]
                    assert (one[0], one[2]) == (other[0], other[2])
                    assert one[1]["Idempotent-Replayed"] == other[1]["Idempotent-Replayed"] == "true"
                assert set(provider.calls.values()) == {1}
                await check_jobs(url, jobs)
        assert len(films.submits) == len({each.prompt for each in films.submits}) == jobs


async def is_known(caller: aiohttp.ClientSession, node: GatewayProcess) -> bool:
    async with caller.get(node.url + "/v1/models") as response:
        return response.status == 200


async def check_jobs(url: str, jobs: int) -> None:
    """Every job completes."""
    connection = await asyncpg.connect(url)

    async def have_completed() -> bool:
        states = await connection.fetch("SELECT state, count(*) FROM videos GROUP BY state")
        assert not {row["state"] for row in states} & {"failed"}
        return [tuple(row) for row in states] == [("completed", jobs)]

    try:
        await eventually(have_completed, WITHIN_S * 2)
    finally:
        await connection.close()


async def test_starts_and_commands_leave_what_is_under_way_alone(
    tmp_path: Path, shared_postgres: SharedPostgres
) -> None:
    await check_under_way(tmp_path, await shared_postgres.empty(), jobs=6, names=4)


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_starts_and_commands_leave_five_hundred_jobs_and_fifty_names_alone(
    tmp_path: Path, shared_postgres: SharedPostgres
) -> None:
    await check_under_way(tmp_path, await shared_postgres.empty(), jobs=500, names=50)
