"""Gateway processes on one database together keep what was promised to a provider."""

import asyncio
import math
import time
from collections import Counter
from pathlib import Path

import aiohttp
import pytest

from tests.support.cluster import start_nodes
from tests.support.gateway import HELLO, channel
from tests.support.gateway_process import GatewayProcess, ask_chat, eventually, open_caller
from tests.support.postgres import SharedPostgres
from tests.support.scripted_upstream import COMPLETION, Received, ScriptedUpstream, answer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
NODES, EACH, PLACES, RPM = 3, 4, 4, 60
LATE = NODES
"""On a busy machine an answer of the database comes too late now and then, and a node goes by what it last heard."""
SECRET = "sk-limits-of-channels-0123456789"


async def call(node: GatewayProcess, model: str = "m") -> int:
    async with open_caller(SECRET) as caller:
        try:
            async with ask_chat(caller, node.url, {**HELLO, "model": model}) as response:
                await response.read()
                status: int = response.status
                return status
        except aiohttp.ClientError:
            return 0


async def test_nodes_keep_the_places_and_the_rate_of_a_channel(tmp_path: Path, shared_postgres: SharedPostgres) -> None:
    reached, go_on = list[Received](), asyncio.Event()

    async def stand_still(received: Received) -> None:
        reached.append(received)
        await go_on.wait()

    async with (
        ScriptedUpstream([stand_still, answer(COMPLETION)]) as slow,
        ScriptedUpstream([answer(COMPLETION)]) as quick,
    ):
        few = channel(slow.base_url, name="few", max_concurrency=PLACES, first_byte_timeout_s=60, total_timeout_s=90)
        rare = channel(quick.base_url, name="rare", rpm=RPM, models=["r"])
        tables = {
            "channel": [few, rare],
            "account": [{"name": "acme"}],
            "key": [{"name": "k", "account": "acme", "secret": SECRET}],
        }
        async with start_nodes(tmp_path, [await shared_postgres.empty()] * NODES, tables) as nodes:

            async def is_reached() -> bool:
                found = (await nodes[0].ask("health"))["limits"]
                return (found["store"], found["reached"], found["gateways"]) == ("postgresql", True, NODES)

            await eventually(is_reached, 30)

            async def fill(places: int) -> list[asyncio.Task[int]]:
                """Call until all places are taken: a node that heard late refuses what there is a place for."""
                reached.clear()
                calls = [asyncio.create_task(call(nodes[number % NODES])) for number in range(NODES * EACH)]

                async def is_full() -> bool:
                    is_decided = sum(task.done() for task in calls) + len(reached) >= len(calls)
                    if is_decided and len(reached) < places:
                        calls.append(asyncio.create_task(call(nodes[len(calls) % NODES])))
                    return is_decided and len(reached) >= places

                await eventually(is_full, 60)
                assert len(reached) <= places + LATE
                return calls

            calls = await fill(PLACES)
            assert Counter(task.result() for task in calls if task.done()) == {503: len(calls) - len(reached)}
            lost = sum(not task.done() for task in calls[::NODES])
            await nodes[0].kill()  # what ran there holds no place once it has started again
            await nodes[0].start()
            await fill(lost)
            go_on.set()

            since = time.monotonic()
            passed = Counter(await asyncio.gather(*(call(node, "r") for node in nodes for _ in range(RPM // 10))))
            burst = RPM // 10
            assert burst <= passed[200] <= burst + LATE + math.ceil((time.monotonic() - since) * RPM / 60)
            assert passed.total() == passed[200] + passed[503]
