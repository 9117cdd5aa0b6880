"""Batches in a cluster: run by a node that has their input, continued by another one, cancelled at any, never twice."""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import openai
import orjson
import pytest
from openai import AsyncOpenAI
from openai.types import Batch

from tests.support.batch_calls import ask, await_end, await_requests, limited, read_results, start
from tests.support.cluster import share_files, start_nodes
from tests.support.fast_provider import SwiftUpstream, slow
from tests.support.gateway import KEY
from tests.support.gateway_process import GatewayProcess, eventually
from tests.support.postgres import SharedPostgres

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
WITHIN_S = 60
LINES = 24
ONE_AT_A_TIME = {"batches": {"max_active": 1}}


@pytest.fixture
async def url(shared_postgres: SharedPostgres) -> str:
    return await shared_postgres.empty()


@attrs.frozen
class BatchScenario:
    """A provider, two nodes, and a client of each."""

    up: SwiftUpstream
    nodes: Sequence[GatewayProcess]
    clients: Sequence[AsyncOpenAI]


@asynccontextmanager
async def open_scene(path: Path, url: str, pace_s: float, **tables: Any) -> AsyncIterator[BatchScenario]:
    async with (
        SwiftUpstream(slow(pace_s)) as up,
        start_nodes(path, [url] * 2, {**limited(up), **tables}) as nodes,
        AsyncExitStack() as stack,
    ):
        clients = [AsyncOpenAI(base_url=f"{node.url}/v1", api_key=KEY, max_retries=0) for node in nodes]
        for client in clients:
            stack.push_async_callback(client.close)
        yield BatchScenario(up, nodes, clients)


def count_completed(batch: Batch) -> int:
    return batch.request_counts.completed if batch.request_counts is not None else -1


def write_lines(count: int) -> bytes:
    return b"\n".join(orjson.dumps(ask(number)) for number in range(count))


def count_lines(up: SwiftUpstream) -> Counter[str]:
    """How often each line has reached the provider."""
    return Counter(orjson.loads(seen.body)["messages"][0]["content"] for seen in up.seen)


async def test_a_batch_goes_on_at_another_node_when_its_node_stops(tmp_path: Path, url: str) -> None:
    share_files(tmp_path, 2)
    async with open_scene(tmp_path, url, 0.1, **ONE_AT_A_TIME) as scene:
        up, nodes, (first, second) = scene.up, scene.nodes, scene.clients
        batch = await start(first, [ask(number) for number in range(LINES)])
        await await_requests(up, 3)
        assert await nodes[0].end() == 0
        assert len(up.seen) < LINES
        ended = await await_end(second, batch)
        assert (ended.status, count_completed(ended)) == ("completed", LINES)
        results = await read_results(second, ended.output_file_id)
        assert results.keys() == {f"c{number}" for number in range(LINES)}
    assert set(count_lines(up).values()) == {1}
    assert len(up.seen) == LINES


async def test_no_line_is_sent_twice_when_a_node_is_killed(tmp_path: Path, url: str) -> None:
    share_files(tmp_path, 2)
    async with open_scene(tmp_path, url, 0.05) as scene:
        up, nodes, (first, second) = scene.up, scene.nodes, scene.clients
        batch = await start(first, [ask(number) for number in range(LINES * 2)])
        await await_requests(up, 10)
        await nodes[0].kill()
        await nodes[0].start()  # what it had claimed is free: another node, or itself, goes on
        ended = await await_end(second, batch)
        counts = ended.request_counts
        assert counts is not None
        assert (ended.status, counts.total, counts.completed + counts.failed) == ("completed", LINES * 2, LINES * 2)
        assert counts.failed <= 8, "more lines are unknown than were under way"
        answers = await read_results(second, ended.output_file_id)
        unknown = await read_results(second, ended.error_file_id) if counts.failed else {}
        assert answers.keys() | unknown.keys() == {f"c{number}" for number in range(LINES * 2)}
    assert set(count_lines(up).values()) == {1}
    assert len(up.seen) >= counts.completed


async def test_a_batch_is_run_where_its_input_is_and_cancelled_anywhere(tmp_path: Path, url: str) -> None:
    async with open_scene(tmp_path, url, 0.1, **ONE_AT_A_TIME) as scene:
        up, nodes, (first, second) = scene.up, scene.nodes, scene.clients
        file = await first.files.create(file=("lines.jsonl", write_lines(LINES)), purpose="batch")
        batch = await second.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        await await_requests(up, 2)
        assert len(nodes[1].read_log("batch_not_claimed")) <= 1
        cancelled = await second.batches.cancel(batch.id)
        assert cancelled.status == "cancelling"
        ended = await await_end(second, batch)
        assert (ended.status, bool(ended.cancelling_at)) == ("cancelled", True)
        assert len(up.seen) < LINES
        with pytest.raises(openai.ConflictError):
            await first.batches.cancel(batch.id)
    assert set(count_lines(up).values()) == {1}


async def test_a_batch_without_a_node_that_has_its_input_waits_for_it(tmp_path: Path, url: str) -> None:
    async with open_scene(tmp_path, url, 0.1, **ONE_AT_A_TIME) as scene:
        up, nodes, (first, second) = scene.up, scene.nodes, scene.clients
        batch = await start(first, [ask(number) for number in range(LINES)])
        await await_requests(up, 2)
        assert await nodes[0].end() == 0

        async def is_left() -> bool:
            return len(nodes[1].read_log("batch_not_claimed")) == 1

        await eventually(is_left, WITHIN_S)
        sent = len(up.seen)
        await nodes[0].start()
        ended = await await_end(second, batch)
        assert (ended.status, count_completed(ended)) == ("completed", LINES)
        assert sent < len(up.seen) == LINES
    assert set(count_lines(up).values()) == {1}
