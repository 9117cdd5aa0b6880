"""One gateway with a bucket: images, videos, files and batches, and what becomes of them while the bucket is away."""

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from gateway.storage.database import DatabaseStartupError
from tests.support.batch_calls import ask, await_end, limited, read_results, start
from tests.support.fast_provider import SwiftUpstream, well
from tests.support.gateway import RunningGateway, channel
from tests.support.image_providers import draw
from tests.support.s3_server import start_s3_server
from tests.support.scripted_upstream import ScriptedUpstream, answer
from tests.support.sdk_clients import MakeClient
from tests.support.started_gateways import StartGateway
from tests.support.video_gateway import VIDEOS, open_video_gateway

IMAGE = draw(16, 16)
IMAGES = "/v1/images/generations"
IMAGE_BODY = {"created": 1, "data": [{"b64_json": base64.b64encode(IMAGE).decode()}]}
BODY = {"model": "m", "prompt": "x", "response_format": "url"}


async def ask_image(gateway: RunningGateway) -> tuple[int, Any]:
    async with gateway.post(BODY, IMAGES) as response:
        return response.status, await response.json()


async def test_an_image_that_cannot_be_stored_is_refused_and_the_next_before_it_is_made(
    gateway_with: StartGateway,
) -> None:
    async with start_s3_server() as server, ScriptedUpstream([answer(IMAGE_BODY)]) as up:
        store = {"store": {"media_url": server.media_url}}
        gateway = await gateway_with({"channel": [channel(up.base_url)], **store, "billing": {"unpriced": "free"}})
        server.fails = 403  # is not tried again, so that the test need not wait
        for _ in range(2):
            async with gateway.post(BODY, IMAGES) as response:
                assert (response.status, response.headers["Retry-After"]) == (503, "5")
                assert (await response.json())["error"]["code"] == "overloaded"
        assert len(up.received) == 1
        async with gateway.post({**BODY, "response_format": "b64_json"}, IMAGES) as response:
            assert response.status == 200
        server.fails = 0
        async with asyncio.timeout(20):  # for some seconds after an error none is made
            while (made := await ask_image(gateway))[0] == 503:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.1)
        link = made[1]["data"][0]["url"]
        async with gateway.client.get(link) as response:
            assert await response.read() == IMAGE
        server.fails = 403
        async with gateway.client.get(link) as response:
            assert response.status == 503


async def test_a_video_that_cannot_be_stored_is_stored_later(gateway_with: StartGateway) -> None:
    async with (
        start_s3_server() as server,
        open_video_gateway(gateway_with, store={"media_url": server.media_url}) as scene,
    ):
        server.fails = 403
        video_id = await scene.begin()
        async with asyncio.timeout(30):
            while not server.failed:  # noqa: ASYNC110 - the server counts
                await asyncio.sleep(0.01)
        assert (await scene.get(f"{VIDEOS}/{video_id}")).json["status"] != "failed"
        server.fails = 0
        assert (await scene.finish(video_id))["status"] == "completed"
        assert len(server.list_keys("videos")) == 1
        heard = await scene.get(f"{VIDEOS}/{video_id}/content", Range="bytes=4-11")
        assert (heard.status, heard.body) == (206, b"ftypisom")
        assert (await scene.ask("DELETE", f"{VIDEOS}/{video_id}")).status == 200
        assert server.list_keys("videos") == []


async def test_a_batch_runs_from_a_bucket_and_into_it(gateway_with: StartGateway, sdk: MakeClient) -> None:
    async with start_s3_server() as server, SwiftUpstream(well) as up:
        gateway = await gateway_with({**limited(up), "store": {"media_url": server.media_url}})
        client = sdk(gateway)
        ended = await await_end(client, await start(client, [ask(number) for number in range(20)]))
        assert (await read_results(client, ended.output_file_id)).keys() == {f"c{number}" for number in range(20)}
        assert len(server.list_keys("files")) == 2  # the input and the output: the lines are joined
        assert not [path for path in (gateway.folder.path / "media-drafts").iterdir() if path.is_file()]


@pytest.mark.parametrize("reason", ["does not exist", "cannot be used"])
async def test_a_folder_that_is_not_there_is_not_made(gateway_with: StartGateway, tmp_path: Path, reason: str) -> None:
    folder = tmp_path / "mount"
    if reason == "cannot be used":
        folder.write_bytes(b"")
    config: dict[str, Any] = {"store": {"media_url": str(folder)}}
    with pytest.raises(DatabaseStartupError, match=r"store\.media_url: the folder .*mount"):
        await gateway_with(config)
    assert not folder.is_dir()
