"""The real SDK has videos made, over the built-in demo, a scripted provider, and another gateway."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import openai
import orjson
import pytest
from aiohttp import web
from openai import AsyncOpenAI, BadRequestError, ConflictError, NotFoundError, OpenAI

from gateway.domain.webhook import build_secret, derive_secret
from tests.support.gateway import KEY, RunningGateway
from tests.support.image_providers import draw
from tests.support.openai_videos import OpenAiVideos, Play, write_clip
from tests.support.sdk_clients import MakeClient
from tests.support.started_gateways import NO_TLS, StartGateway

pytestmark = pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")

MODEL = "demo-video"
SMALL: Any = {"model": MODEL, "size": "640x360", "seconds": "4"}
QUICK: Any = {"poll_interval_ms": 20}
PROMPT = "a sailing boat at dusk"
PRICE = {"price": [{"model": "demo-video*", "usd_per_second": 0.25}]}
PASSING = {"videos": {"store": "proxy"}}
"""No film is made that nobody looks at."""
PNG = draw(32, 32)
DATA = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"


def list_boxes(data: bytes) -> list[str]:
    """The boxes of an MP4 file, in their order."""
    boxes, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        assert 8 <= size <= len(data) - at
        boxes.append(data[at + 4 : at + 8].decode())
        at += size
    return boxes


async def download(client: AsyncOpenAI, video_id: str, **more: Any) -> bytes:
    answer = await client.videos.download_content(video_id, **more)
    return await answer.aread()


async def test_a_video_from_its_prompt_to_its_file_its_remix_and_its_end(
    gateway_with: StartGateway, sdk: MakeClient
) -> None:
    gateway = await gateway_with(PRICE)
    client = sdk(gateway)
    video = await client.videos.create_and_poll(prompt=PROMPT, **SMALL, **QUICK)
    assert (video.status, video.progress, video.error) == ("completed", 100, None)
    assert (video.model, video.size, video.seconds, video.prompt) == (MODEL, "640x360", "4", PROMPT)
    assert video.completed_at is not None
    assert video.expires_at == video.completed_at + 7 * 86_400
    assert await client.videos.retrieve(video.id) == video

    file = await download(client, video.id)
    assert file[4:8] == b"ftyp"
    assert list_boxes(file)[:2] == ["ftyp", "moov"], "it plays before it is there whole"
    assert (await download(client, video.id, variant="thumbnail"))[:4] == b"\x89PNG"

    remix = await client.videos.remix(video.id, prompt="the same at night")
    remix = await client.videos.poll(remix.id, **QUICK)
    assert (remix.status, remix.remixed_from_video_id) == ("completed", video.id)
    assert (remix.size, remix.seconds) == ("640x360", "4")
    other = await download(client, remix.id)
    assert other[4:8] == b"ftyp"
    assert len(other) == len(file), "a clip in the same format"

    page = await client.videos.list(limit=1)
    assert ([one.id for one in page.data], page.has_more) == ([remix.id], True)
    assert [one.id async for one in client.videos.list(limit=1)] == [remix.id, video.id]
    assert [one.id async for one in client.videos.list(order="asc")] == [video.id, remix.id]

    deleted = await client.videos.delete(video.id)
    assert (deleted.id, deleted.deleted, deleted.object) == (video.id, True, "video.deleted")
    for gone in (client.videos.retrieve(video.id), client.videos.delete(video.id), download(client, video.id)):
        with pytest.raises(NotFoundError) as missing:
            await gone
        assert missing.value.code == "not_found"
    rows = await gateway.rows(2)
    assert [(row.operation, row.cost_nanos, row.outcome) for row in rows] == [
        ("videos", 1_000_000_000, "completed"),
        ("video_remixes", 1_000_000_000, "completed"),
    ]


async def test_the_client_that_waits_has_it_made_too(gateway_with: StartGateway, tmp_path: Path) -> None:
    gateway = await gateway_with(PASSING)
    path = tmp_path / "film.mp4"

    def make() -> tuple[Any, list[str]]:
        http = openai.DefaultHttpxClient(verify=NO_TLS)
        with OpenAI(base_url=f"{gateway.url}/v1", api_key=KEY, max_retries=0, http_client=http) as client:
            video = client.videos.create_and_poll(prompt=PROMPT, **SMALL, **QUICK)
            client.videos.download_content(video.id).write_to_file(path)
            return video, [one.id for one in client.videos.list(limit=1)]

    video, listed = await asyncio.to_thread(make)
    assert video.status == "completed"
    assert listed == [video.id]
    assert "mdat" in list_boxes(path.read_bytes())


async def test_a_video_starts_from_a_image_in_every_form(
    gateway_with: StartGateway, sdk: MakeClient, tmp_path: Path
) -> None:
    gateway = await gateway_with(PASSING)
    client = sdk(gateway)
    path = tmp_path / "picture.png"
    path.write_bytes(PNG)
    files: list[Any] = [PNG, path, ("named.png", PNG, "image/png"), path.open("rb")]
    ids = [(await client.videos.create(prompt=PROMPT, input_reference=file, **SMALL)).id for file in files]
    files[3].close()
    for url in (DATA, "https://pictures.example/1.png"):
        more = {"input_reference": {"image_url": url}}
        ids.append((await client.videos.create(prompt=PROMPT, extra_body=more, **SMALL)).id)
        body = {"prompt": PROMPT, "input_reference": url, **SMALL}
        async with gateway.post(body, "/v1/videos") as response:
            assert response.status == 200
            ids.append((await response.json())["id"])
    assert len(set(ids)) == 8
    for video_id in ids:
        assert (await client.videos.poll(video_id, **QUICK)).status == "completed"
    for wrong in (b"%PDF-1.7", ("empty.png", b"", "image/png")):
        with pytest.raises(BadRequestError) as refused:
            await client.videos.create(prompt=PROMPT, input_reference=wrong, **SMALL)
        assert (refused.value.code, refused.value.param) == ("invalid_request", "input_reference")


async def test_models_that_fail_are_blocked_or_are_slow_say_so(gateway_with: StartGateway, sdk: MakeClient) -> None:
    gateway = await gateway_with(PASSING | PRICE)
    client = sdk(gateway)

    async def make(model: str) -> Any:
        return await client.videos.create_and_poll(prompt=PROMPT, **SMALL | {"model": model}, **QUICK)

    failed, blocked, slow = await asyncio.gather(*map(make, (f"{MODEL}-fail", f"{MODEL}-blocked", f"{MODEL}-slow")))
    assert (failed.status, failed.error.code) == ("failed", "upstream_error")
    assert "half way" in failed.error.message
    assert (blocked.status, blocked.error.code) == ("failed", "content_policy_violation")
    assert slow.status == "completed"
    with pytest.raises(BadRequestError) as refused:
        await client.videos.create(prompt="a blocked road", **SMALL)
    assert refused.value.code == "content_policy_violation"
    assert refused.value.response.headers["x-should-retry"] == "false"
    with pytest.raises(NotFoundError):
        await download(client, failed.id)
    rows = await gateway.rows(4)
    assert sorted(row.cost_nanos for row in rows) == [0, 0, 0, 1_000_000_000]


async def test_what_cannot_be_had_is_refused_by_name(gateway_with: StartGateway, sdk: MakeClient) -> None:
    client = sdk(await gateway_with(PASSING))
    for wrong, param in (({"seconds": "5"}, "seconds"), ({"size": "1024x1792"}, "size"), ({"model": ""}, "model")):
        with pytest.raises(BadRequestError) as refused:
            await client.videos.create(prompt=PROMPT, **SMALL | wrong)
        assert (refused.value.code, refused.value.param) == ("invalid_request", param)
    with pytest.raises(BadRequestError, match="4, 8, 12"):
        await client.videos.create(prompt=PROMPT, **SMALL | {"seconds": "5"})
    for lost in (client.videos.retrieve("video_1"), client.videos.create(prompt=PROMPT, model="sora-2")):
        with pytest.raises(NotFoundError):
            await lost


async def test_the_library_waits_for_a_job_that_is_told_in_its_words(
    gateway_with: StartGateway, sdk: MakeClient
) -> None:
    """``create_and_poll`` takes every word that it does not know for the end; so all are told in the words it knows."""
    go = asyncio.Event()
    async with OpenAiVideos(slow=Play(polls=["in_progress", go, "completed"])) as provider:
        gateway = await gateway_with({"channel": [provider.channel()], "egress": {"allow": ["127.0.0.1"]}})
        client = sdk(gateway)
        making = asyncio.create_task(client.videos.create_and_poll(model="m", prompt="slow", **QUICK))
        words = []
        async with asyncio.timeout(10):
            while "in_progress" not in words:
                for path in ("/v1/videos", "/v1/videos?limit=1&order=asc"):
                    async with gateway.client.get(gateway.url + path) as response:
                        words += [one["status"] for one in (await response.json())["data"]]
        assert set(words) <= {"queued", "in_progress"}
        (video,) = (await client.videos.list()).data
        assert (video.status, making.done()) == ("in_progress", False)
        with pytest.raises(ConflictError) as early:
            await download(client, video.id)
        assert early.value.code == "task_not_ready"
        go.set()
        assert (await making).status == "completed"
        assert await download(client, video.id) == write_clip("slow")


async def test_the_other_path_is_the_same(gateway_with: StartGateway, sdk: MakeClient) -> None:
    gateway = await gateway_with(PASSING)
    client = sdk(gateway)
    path = f"{gateway.url}/v1/video/generations"
    form = aiohttp.FormData({"prompt": PROMPT, **SMALL}, default_to_multipart=True)
    ids = []
    for more in ({"json": {"prompt": PROMPT, **SMALL}}, {"data": form}):
        async with gateway.client.post(path, **more) as response:
            assert response.status == 200
            assert response.headers["openai-poll-after-ms"] == "2000"
            ids.append((await response.json())["id"])
    for video_id in ids:
        video = await client.videos.poll(video_id, **QUICK)
        async with gateway.client.get(f"{path}/{video_id}") as response:
            reported = await response.json()
        assert reported == {name: value for name, value in video.to_dict().items() if name != "error"}


# ---- webhooks


@asynccontextmanager
async def open_receiver() -> AsyncIterator[tuple[str, "asyncio.Queue[tuple[dict[str, str], bytes]]"]]:
    """Somebody's server: its address, and what came there."""
    came: asyncio.Queue[tuple[dict[str, str], bytes]] = asyncio.Queue()

    async def receive(request: web.Request) -> web.Response:
        came.put_nowait((dict(request.headers), await request.read()))
        return web.Response(status=204)

    app = web.Application()
    app.router.add_post("/hook/{name}", receive)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/hook", came
    await runner.cleanup()


def read_secret(gateway: RunningGateway, key_id: int) -> str:
    """What the operator gives to the owner of that key."""
    return build_secret(derive_secret(gateway.folder.secret("webhook.key"), key_id))


async def test_the_end_is_told_to_a_webhook_that_the_library_unwraps(
    gateway_with: StartGateway, sdk: MakeClient
) -> None:
    async with open_receiver() as (address, came):
        config = {
            "videos": {"store": "proxy", "webhook_hosts": ["127.0.0.1"]},
            "egress": {"allow": ["127.0.0.1"]},
            "key": [{"name": "test", "account": "acme", "secret": KEY, "webhook_url": f"{address}/keys"}],
        }
        gateway = await gateway_with(config)
        client = sdk(gateway)
        mine = await client.videos.create(prompt=PROMPT, extra_body={"webhook_url": f"{address}/mine"}, **SMALL)
        keys = await client.videos.create(prompt=PROMPT, **SMALL | {"model": f"{MODEL}-fail"})
        async with asyncio.timeout(10):
            reported = [await came.get(), await came.get()]
        key_id = (await gateway.rows(2))[0].key_id
        events = [
            client.webhooks.unwrap(body, headers, secret=read_secret(gateway, key_id)) for headers, body in reported
        ]
        ends = {"video.completed": mine.id, "video.failed": keys.id}
        assert {event.type: event.data.id for event in events} == ends  # type: ignore[union-attr]
        assert all(event.object == "event" and event.created_at > 1_700_000_000 for event in events)
        assert [headers["webhook-id"] for headers, _ in reported] == [event.id for event in events]
        with pytest.raises(openai.InvalidWebhookSignatureError):
            client.webhooks.unwrap(reported[0][1], reported[0][0], secret=read_secret(gateway, key_id + 1))
        assert orjson.loads(reported[0][1]).keys() == {"id", "object", "created_at", "type", "data"}


# ---- another gateway is a provider


async def test_a_gateway_is_a_provider_for_another(gateway_with: StartGateway, sdk: MakeClient) -> None:
    there = await gateway_with(PASSING)
    upstream = {"name": "there", "provider": "custom", "base_url": f"{there.url}/v1", "api_key": KEY}
    here = await gateway_with({"channel": [{**upstream, "models": [MODEL]}]})
    client = sdk(here)
    video = await client.videos.create_and_poll(prompt=PROMPT, input_reference=PNG, **SMALL, **QUICK)
    assert (video.status, video.size, video.seconds) == ("completed", "640x360", "4")
    theirs_client = sdk(there)
    (theirs,) = (await theirs_client.videos.list()).data
    assert theirs.id != video.id
    assert await download(client, video.id) == await download(theirs_client, theirs.id)
    remix = await client.videos.remix(video.id, prompt="at night")
    assert (await client.videos.poll(remix.id, **QUICK)).status == "completed"
    reported = [one async for one in theirs_client.videos.list()]
    assert [one.remixed_from_video_id for one in reported] == [theirs.id, None]
    await client.videos.delete(video.id)
    async with asyncio.timeout(5):
        while len((await theirs_client.videos.list()).data) > 1:  # noqa: ASYNC110 - it is told behind the answer
            await asyncio.sleep(0.02)
    await there.check_books()
    await there.stop()
