"""Two gateway processes with one store of media: what one of them stores, the other serves, uses and deletes."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import attrs
import openai
import pytest
from openai import AsyncOpenAI
from structlog.testing import capture_logs

from gateway.cluster.deployment import Cluster
from gateway.cluster.membership.leadership import Leadership
from gateway.cluster.membership.node import ClusterNode
from gateway.services.media_store import sweep_store, watch_nodes
from tests.support.batch_calls import await_end, read_results, start
from tests.support.cluster import MASTER_KEY, start_nodes
from tests.support.gateway import KEY, channel
from tests.support.gateway_process import GatewayProcess, open_caller
from tests.support.image_providers import draw
from tests.support.media_stores import KINDS
from tests.support.openai_videos import OpenAiVideos, Play
from tests.support.postgres import SharedPostgres
from tests.support.s3_server import start_s3_server
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer

IMAGE = draw(16, 16)
IMAGE_BODY = {"created": 1, "data": [{"b64_json": base64.b64encode(IMAGE).decode()}]}
WITHIN_S = 60


@attrs.frozen
class Node:
    process: GatewayProcess
    client: AsyncOpenAI

    @property
    def url(self) -> str:
        return self.process.url


@asynccontextmanager
async def open_media_url(kind: str, path: Path) -> AsyncIterator[str]:
    if kind == "folder":
        (path / "shared").mkdir()
        yield str(path / "shared")
        return
    async with start_s3_server() as server:
        yield server.media_url
        assert not server.refused


@asynccontextmanager
async def start_pair(kind: str, path: Path, url: str) -> AsyncIterator[tuple[Node, Node]]:
    """Two nodes over providers of chats, images and videos."""
    async with (
        open_media_url(kind, path) as media_url,
        ScriptedUpstream([answer(COMPLETION)]) as chats,
        ScriptedUpstream([answer(IMAGE_BODY)]) as images,
        OpenAiVideos(Play(polls=["completed"])) as videos,
    ):
        tables = {
            "store": {"url": url, "master_key": MASTER_KEY, "media_url": media_url},
            "account": [{"name": "acme"}],
            "key": [{"name": "test", "account": "acme", "secret": KEY}],
            "channel": [
                channel(chats.base_url, "chats"),
                channel(images.base_url, "images", models=["image"]),
                videos.channel("videos", models=["video"]),
            ],
            "billing": {"unpriced": "free"},
            "egress": {"allow": ["127.0.0.1"]},
        }
        async with start_nodes(path, [url, url], tables) as nodes:
            first, second = nodes
            async with open_client(first) as here, open_client(second) as there:
                yield Node(first, here), Node(second, there)


def open_client(node: GatewayProcess) -> AsyncOpenAI:
    return AsyncOpenAI(api_key=KEY, base_url=f"{node.url}/v1", max_retries=0)


async def get(url: str, **headers: str) -> tuple[int, bytes]:
    async with open_caller() as caller, caller.get(url, headers=headers) as response:
        return response.status, await response.read()


async def check_images(first: Node, second: Node) -> None:
    made = await first.client.images.generate(model="image", prompt="x", response_format="url")
    assert made.data is not None
    link = str(made.data[0].url).removeprefix(first.url)
    assert await get(second.url + link) == await get(first.url + link) == (200, IMAGE)
    assert await get(second.url + link, Range="bytes=1-9") == (206, IMAGE[1:10])


async def check_videos(first: Node, second: Node) -> None:
    async with open_caller() as caller:
        async with caller.post(f"{first.url}/v1/videos", json={"model": "video", "prompt": "x"}) as response:
            video = await response.json()
        path = f"/v1/videos/{video['id']}"
        async with asyncio.timeout(WITHIN_S):
            while video["status"] != "completed":
                await asyncio.sleep(0.1)
                async with caller.get(second.url + path) as response:
                    video = await response.json()
        clips = [await get(f"{node.url}{path}/content") for node in (first, second)]
        assert (clips[0][0], len(clips[0][1])) == (200, 300_000)
        assert clips[0] == clips[1]
        await caller.delete(second.url + path)
        assert [(await get(f"{node.url}{path}/content"))[0] for node in (first, second)] == [404, 404]


async def check_files(first: Node, second: Node) -> None:
    here, there = first.client, second.client
    upload = await here.uploads.create(filename="a", purpose="batch", bytes=9, mime_type="text/plain")
    parts = [
        (await client.uploads.parts.create(upload.id, data=data)).id
        for client, data in ((there, b"one"), (here, b"two"), (there, b"six"))
    ]
    done = await here.uploads.complete(upload.id, part_ids=parts)
    assert done.file is not None
    assert (await there.files.content(done.file.id)).content == b"onetwosix"
    await there.files.delete(done.file.id)
    for client in (here, there):
        with pytest.raises(openai.NotFoundError):
            await client.files.content(done.file.id)


async def check_batches(first: Node, second: Node) -> None:
    here, there = first.client, second.client
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    lines = [
        {"custom_id": f"c{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        for number in range(5)
    ]
    batch = await start(here, lines)
    again = await there.batches.create(
        input_file_id=batch.input_file_id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    for ended in (await await_end(here, batch), await await_end(there, again)):
        assert ended.status == "completed", ended.errors
        for client in (here, there):
            assert (await read_results(client, ended.output_file_id)).keys() == {f"c{number}" for number in range(5)}


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", KINDS)
async def test_what_one_node_stores_is_there_for_the_other(
    kind: str, tmp_path: Path, shared_postgres: SharedPostgres
) -> None:
    async with start_pair(kind, tmp_path, await shared_postgres.empty()) as (first, second):
        await check_images(first, second)
        await check_videos(first, second)
        await check_files(first, second)
        await check_batches(first, second)
        for node in (first, second):
            data = node.process.data
            kept = {path.relative_to(data).parts[0] for path in data.rglob("*") if path.is_file()}
            assert not kept & {"media", "videos", "files", "media-drafts"}
            assert not node.process.read_log("media_store_failed")


async def test_a_second_node_that_cannot_read_the_media_is_reported() -> None:
    node = SimpleNamespace(live_count=2)
    with capture_logs() as lines:
        await watch_nodes(cast("Any", node))
    assert [line["event"] for line in lines] == ["media_on_this_node_alone"]


@pytest.mark.parametrize("shared", [True, False])
async def test_the_leader_alone_deletes_what_is_too_old_in_a_shared_store(*, shared: bool) -> None:
    leadership, swept = Leadership(), asyncio.Event()

    async def sweep() -> None:
        swept.set()
        await asyncio.Event().wait()

    deployment = Cluster(cast("ClusterNode", SimpleNamespace(leadership=leadership)))
    stores: Any = SimpleNamespace(shared=shared)
    running = asyncio.ensure_future(sweep_store(stores, deployment, sweep)())
    for _ in range(10):
        await asyncio.sleep(0)
    assert swept.is_set() is not shared
    leadership.begin()
    await asyncio.wait_for(swept.wait(), 5)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
