"""The file of a job that is completed is there, whole, or the job goes on; passed through, it is nobody's to hold."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web

from gateway.domain.video import CANCELLED_ERROR
from gateway.errors import StoreUnavailable
from gateway.serve import SEND_BUFFER
from gateway.server.context import SERVICES
from gateway.videos.content import MAX_VIDEO_BYTES
from tests.support.fault_scene import drop_own_words, until
from tests.support.gateway import KEY, RunningGateway, channel
from tests.support.image_providers import draw
from tests.support.openai_videos import (
    BREAK,
    CLIP_BYTES,
    CLOSE,
    SILENCE,
    Answered,
    Cut,
    OpenAiVideos,
    Play,
    Raw,
    Turn,
    write_clip,
)
from tests.support.slow_readers import HELD, narrow, waiting_bytes
from tests.support.small_disk import small_disk
from tests.support.started_gateways import StartGateway
from tests.support.video_scene import VIDEOS, audit, await_ends, await_job, digest, find_jobs, look, site, submit

MB = 1024 * 1024
GONE = Answered({"error": {"message": "Video not found"}}, 404)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: video/mp4\r\n"
CLIP = write_clip("short", 1_000)
STUMBLES: dict[str, tuple[Turn, ...]] = {
    "cut at its beginning": (Cut(0),),
    "cut in the middle": (Cut(CLIP_BYTES // 2),),
    "cut at its last byte, in order": (Cut(CLIP_BYTES - 1, CLOSE),),
    "shorter than it says": (Raw(HEAD + b"Content-Length: 2000\r\n\r\n" + CLIP),),
    "a chunk that is cut": (Raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\n7d0\r\n" + CLIP),),
    "chunks without an end": (Raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\n3e8\r\n" + CLIP + b"\r\n"),),
    "a page instead": (Answered(b"<!DOCTYPE html><html>Sign in</html>", content_type="video/mp4"),),
    "an image instead": (Answered(draw(), content_type="video/mp4"),),
    "nothing": (Answered(b"", content_type="video/mp4"),),
    "half of it with 206": (Answered(CLIP, 206, content_type="video/mp4"),),
    "compressed": (Answered(CLIP, 200, {"Content-Encoding": "gzip"}, "video/mp4"),),
    "an error": (Answered(b"", 500), Answered(b"", 403), Answered(b"", 429, {"Retry-After": "1"})),
    "not there yet": (GONE,) * 3,
    "no HTTP": (Raw(b"WHAT\r\n\r\n"),),
    "a reset": (BREAK,),
    "moved to where nothing is fetched from": (Answered(b"", 302, {"Location": "http://169.254.169.254/latest/"}),),
}


def list_kept(gateway: RunningGateway) -> list[Path]:
    """Every file of a video, whole or not."""
    return [path for path in (gateway.folder.path / "videos").rglob("*") if path.is_file()]


async def test_a_file_that_cannot_be_had_whole_is_fetched_again_until_it_is(gateway_with: StartGateway) -> None:
    """What came before leaves nothing behind."""
    async with OpenAiVideos() as up:
        up.plays = {name: Play(polls=("completed",), file=(*turns, "ok")) for name, turns in STUMBLES.items()}
        gateway = await gateway_with(site(up.channel()))
        for prompt in up.plays:
            await submit(gateway, prompt)
        jobs = await await_ends(gateway)
        for prompt, job in jobs.items():
            assert (job.state, job.media_bytes, job.media_type) == ("completed", CLIP_BYTES, "video/mp4"), job
            assert len(up.find(prompt).ranges) == len(STUMBLES[prompt]) + 1
        assert sorted(path.name for path in list_kept(gateway)) == sorted(str(job.media_id) for job in jobs.values())
        await audit(gateway, up)


async def test_a_file_that_is_larger_than_any_is_not_begun_and_one_that_is_cancelled_is_not_kept(
    gateway_with: StartGateway,
) -> None:
    never = asyncio.Event()
    plays = {
        "large": Play(polls=("completed",), file=(Cut(MB, then=never),), size=MAX_VIDEO_BYTES + 1),
        "cancelled": Play(polls=("completed",), file=(Cut(CLIP_BYTES - 1, then=never),)),
        "cancelled when it is whole": Play(polls=("completed",), file=(never, "ok")),
    }
    async with OpenAiVideos() as up:
        up.plays |= plays
        gateway = await gateway_with(site(up.channel()))
        for prompt in plays:
            await submit(gateway, prompt)
        await until(lambda: len(up.tasks) == 3 and all(task.ranges for task in up.tasks.values()))
        await until(lambda: len(up.find("large").ranges) > 1)
        await until(lambda: list_kept(gateway))
        assert [path.name[:6] for path in list_kept(gateway)] == ["draft-"]
        jobs = await find_jobs(gateway)
        for prompt, job in jobs.items():
            assert (await look(gateway, f"{VIDEOS}/{job.id}/content")).status == 409, prompt
            await gateway.app[SERVICES].videos.jobs.cancel(job.id)
        never.set()
        await until(lambda: not list_kept(gateway))
        for job in (await await_ends(gateway)).values():
            assert (job.state, job.error_code, job.media_id) == ("failed", CANCELLED_ERROR.code, None)
            assert (await look(gateway, f"{VIDEOS}/{job.id}/content")).status == 404
        await until(lambda: up.sent >= 2 * CLIP_BYTES - 1)
        rows = await audit(gateway, up)
        assert {row.outcome for row in rows.values()} == {"cancelled"}
        assert list_kept(gateway) == []


@pytest.mark.slow
async def test_on_a_disk_that_is_nearly_full_no_video_is_begun_and_one_that_is_finished_waits(
    gateway_with: StartGateway, tmp_path: Path
) -> None:
    (tmp_path / "data0").mkdir()
    end = asyncio.Event()
    with small_disk(tmp_path / "data0" / "videos", 68) as disk:
        async with OpenAiVideos(Play(polls=(end, "completed"))) as up:
            gateway = await gateway_with(site(up.channel()))
            assert (await submit(gateway, "take")).status == 200
            filler = disk / "filler"
            with filler.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, 5 * MB)
            await until(lambda: is_full(gateway))
            end.set()
            heard = await submit(gateway, "another")
            assert (heard.status, orjson.loads(heard.body)["error"]["code"]) == (503, "overloaded")
            assert int(heard.headers["Retry-After"]) >= 1
            await until(lambda: up.find("take").ranges)
            job = await await_job(gateway, "take", "fetching")
            assert [path.name for path in list_kept(gateway)] == ["filler"]
            filler.unlink()
            assert (await await_job(gateway, "take")).id == job.id
            assert len(up.submits) == 1
            await audit(gateway, up, rows=2)


def is_full(gateway: RunningGateway) -> bool:
    try:
        gateway.app[SERVICES].videos.content.check_room()
    except StoreUnavailable:
        return True
    return False


# Passed through.

PROXY = {"videos": {"store": "proxy"}}


async def make(gateway: RunningGateway, prompt: str) -> str:
    """A video that is completed; the path of its content."""
    heard = await submit(gateway, prompt)
    assert heard.status == 200
    await await_job(gateway, prompt, "completed")
    return f"{VIDEOS}/{orjson.loads(heard.body)['id']}/content"


async def test_a_range_is_passed_on_and_its_answer_passed_through(gateway_with: StartGateway) -> None:
    """Nothing is kept, nor fetched before somebody asks."""
    clip = write_clip("take")
    async with OpenAiVideos(Play(polls=("completed",))) as up:
        gateway = await gateway_with(site(up.channel(), **PROXY))
        path = await make(gateway, "take")
        assert up.sent == 0
        whole = await look(gateway, path)
        assert (whole.status, whole.body, whole.headers["Content-Length"]) == (200, clip, str(CLIP_BYTES))
        part = await look(gateway, path, Range="bytes=1000-200999")
        assert (part.status, part.body) == (206, clip[1000:201_000])
        assert part.headers["Content-Range"] == f"bytes 1000-200999/{CLIP_BYTES}"
        assert part.headers["Content-Length"] == "200000"
        for heard in (whole, part):
            assert heard.headers["Content-Type"] == "video/mp4"
            assert heard.headers["Cache-Control"].startswith("private")
        assert up.find("take").ranges == [None, "bytes=1000-200999"]
        assert list_kept(gateway) == []
        await audit(gateway, up)


TROUBLE: dict[str, tuple[Turn, int]] = {
    "gone": (GONE, 404),
    "an error": (Answered(b"", 500), 502),
    "denied": (Answered(b"", 401), 502),
    "no HTTP": (Raw(b"WHAT\r\n\r\n"), 502),
    "a reset": (BREAK, 502),
    "moved to where nothing is fetched from": (Answered(b"", 302, {"Location": "http://169.254.169.254/latest/"}), 502),
}


async def test_what_breaks_off_on_its_way_is_never_taken_for_the_whole(gateway_with: StartGateway) -> None:
    """Before the first byte it is an error; after it the connection is broken, and the provider's as well."""
    cuts = {"middle": Cut(200_000), "in order": Cut(CLIP_BYTES - 1, CLOSE), "left": Cut(200_000, SILENCE)}
    async with OpenAiVideos() as up:
        up.plays = {name: Play(polls=("completed",), file=(turn,)) for name, (turn, _) in TROUBLE.items()}
        up.plays |= {name: Play(polls=("completed",), file=(cut,)) for name, cut in cuts.items()}
        gateway = await gateway_with(site(up.channel(), **PROXY))
        paths = dict(zip(up.plays, await asyncio.gather(*(make(gateway, name) for name in up.plays)), strict=True))
        for name, (_, status) in TROUBLE.items():
            heard = await look(gateway, paths[name])
            assert (heard.status, heard.headers["Content-Type"]) == (status, "application/json"), (name, heard)
            assert "127.0.0.1" not in drop_own_words(heard.body.decode())
            assert b"169.254" not in heard.body
        for name in ("middle", "in order"):
            heard = await look(gateway, paths[name])
            assert (heard.status, heard.whole) == (200, False), name
            assert 0 < len(heard.body) < CLIP_BYTES
        async with gateway.client.get(gateway.url + paths["left"]) as response:
            assert await response.content.read(1000) == write_clip("left", 1000)
        await until(lambda: up.hung_up)
        jobs = await find_jobs(gateway)
        assert {job.state for job in jobs.values()} == {"completed"}
        await audit(gateway, up)


async def test_a_large_file_is_read_no_faster_than_its_caller_reads_and_arrives_whole(
    gateway_with: StartGateway,
) -> None:
    large = 64 * MB
    async with OpenAiVideos(Play(polls=("completed",), size=large)) as up:
        gateway = await gateway_with(site(up.channel(idle_timeout_s=0.1, total_timeout_s=0.5), **PROXY))
        path = await make(gateway, "take")
        gateway.server.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        connector = aiohttp.TCPConnector(socket_factory=narrow)
        headers = {"Authorization": f"Bearer {KEY}"}
        async with (
            aiohttp.ClientSession(connector=connector, headers=headers, read_bufsize=2**14) as session,
            session.get(gateway.url + path) as response,
        ):
            held = await settle(up)
            assert 0 < held < HELD
            assert waiting_bytes(gateway) < MB
            size, made = 0, sha256()
            async for piece in response.content.iter_any():
                size += len(piece)
                made.update(piece)
        assert (size, made.digest()) == (large, digest("take", large))
        assert list_kept(gateway) == []
        await audit(gateway, up)


async def settle(up: OpenAiVideos) -> int:
    """How much the provider could send until it could send no more."""
    last = -1
    while up.sent != last:
        last = up.sent
        await asyncio.sleep(0.05)
    return last


@asynccontextmanager
async def serving(handler: Any) -> AsyncIterator[str]:
    """A server that has everything answered by ``handler``; its origin."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("store", ["keep", "proxy"])
async def test_an_address_that_has_expired_is_asked_for_anew(gateway_with: StartGateway, store: str) -> None:
    """DashScope's are good for a day, and then refused; the gateway is told another one, and goes there."""
    reported: list[int] = []
    fetched: list[str] = []

    async def serve(request: web.Request) -> web.Response:
        if request.method == "POST":
            return web.json_response({"output": {"task_id": "task-1", "task_status": "PENDING"}, "request_id": "r"})
        if request.path.startswith("/api/v1/tasks/"):
            reported.append(len(reported) + 1)
            url = f"http://{request.host}/files/{reported[-1]}.mp4?Signature=x%2Fy"
            return web.json_response({"output": {"task_id": "task-1", "task_status": "SUCCEEDED", "video_url": url}})
        fetched.append(request.raw_path)
        fresh = request.path == f"/files/{reported[-1]}.mp4" and reported[-1] > 1
        return web.Response(body=CLIP, content_type="video/mp4") if fresh else web.Response(status=403)

    async with serving(serve) as origin:
        made = channel(f"{origin}/v1", provider="dashscope", models=["wan2.5-t2v-preview"])
        gateway = await gateway_with(site(made, videos={"store": store}))
        heard = await submit(gateway, "short", model="wan2.5-t2v-preview", seconds="5")
        job = await await_job(gateway, "short", "completed")
        heard = await look(gateway, f"{VIDEOS}/{job.id}/content")
        assert (heard.status, heard.body) == (200, CLIP)
        assert fetched == ["/files/1.mp4?Signature=x%2Fy", "/files/2.mp4?Signature=x%2Fy"]
