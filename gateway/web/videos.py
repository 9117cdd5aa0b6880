"""Videos after their submit: asked after, listed, followed, downloaded, deleted."""

import asyncio
from typing import cast, get_args

import orjson
from aiohttp import web
from aiohttp_sse import EventSourceResponse

from gateway.dialects.filming import Variant
from gateway.dialects.openai_videos import write_deleted, write_video, write_videos
from gateway.domain.fault import ClientGone, InvalidRequest, NotFound, UpstreamFault
from gateway.domain.media import Media
from gateway.domain.video import VideoFilter, VideoJob, find_poll_after_ms, is_video_id
from gateway.flow.videos import check_completed
from gateway.upstream.port import OpenFile
from gateway.web.keys import CALLER, ROOMS
from gateway.web.media import FileAnswer, check_dates
from gateway.web.outlet import await_reader
from gateway.web.submitting import POLL_AFTER, post_remix, post_videos
from gateway.web.words import find_status_words

PAGE = 20
_MAX_RANGE = 256
MAX_PAGE = 100
_LIMITS = frozenset(map(str, range(1, MAX_PAGE + 1)))
LOOK_AGAIN_S = 2.0
"""Whoever follows a job hears of its moves at once; those of another process's making a little later."""
_VARIANTS: tuple[str, ...] = get_args(Variant)
_PASSED = ("Content-Type", "Content-Length", "Content-Range", "Accept-Ranges")
_PRIVATE = {"Cache-Control": "private, no-store", "X-Content-Type-Options": "nosniff"}
_SAFE_TYPES = ("video/", "image/")
_PATH = "/v1/videos"
_ALIAS = "/v1/video/generations"
_BY_ID = "/{id:[^/]+}"


def add_video_routes(app: web.Application) -> None:
    """Every path of videos. ``{id}`` is whatever has no slash: what is no id is nobody's."""
    for path in (_PATH, _ALIAS):
        app.router.add_post(path, post_videos)
        app.router.add_get(f"{path}{_BY_ID}", get_video)
    app.router.add_get(_PATH, get_videos)
    app.router.add_delete(f"{_PATH}{_BY_ID}", delete_video)
    app.router.add_get(f"{_PATH}{_BY_ID}/content", get_content)
    app.router.add_get(f"{_PATH}{_BY_ID}/events", get_events, allow_head=False)
    app.router.add_post(f"{_PATH}{_BY_ID}/remix", post_remix)


async def get_video(request: web.Request) -> web.Response:
    """``GET /v1/videos/{id}``: how a job stands."""
    job = await _get_job(request)
    return _answer(write_video(job, find_status_words(request)), _say_when(request, job))


def _say_when(request: web.Request, job: VideoJob) -> dict[str, str]:
    if job.ended:
        return {}
    age_ms = request.app[ROOMS].videos.now_ms - job.created_ms
    return {POLL_AFTER: str(find_poll_after_ms(age_ms))}


async def get_videos(request: web.Request) -> web.Response:
    """``GET /v1/videos``: the account's jobs, a page at a time."""
    limit, after, order = _read_page(request)
    wanted = VideoFilter(request[CALLER].account.id, after, newest_first=order == "desc")
    found = await request.app[ROOMS].videos.list_videos(wanted, limit + 1)
    return _answer(write_videos(found[:limit], find_status_words(request), more=len(found) > limit))


def _read_page(request: web.Request) -> tuple[int, str | None, str]:
    query = request.query
    limit = query.get("limit", str(PAGE))
    if limit not in _LIMITS:
        raise InvalidRequest(f"'limit' must be a whole number from 1 to {MAX_PAGE}", param="limit")
    order = query.get("order", "desc")
    if order not in {"asc", "desc"}:
        raise InvalidRequest("'order' must be 'asc' or 'desc'", param="order")
    after = query.get("after") or None
    if after is not None and not is_video_id(after):
        raise InvalidRequest("'after' must be the id of a video", param="after")
    return int(limit), after, order


async def delete_video(request: web.Request) -> web.Response:
    """``DELETE /v1/videos/{id}``: a job that has ended is forgotten, and its video with it."""
    rooms = request.app[ROOMS]
    job = await _get_job(request)
    await rooms.videos.remove(job)
    if job.media_id is not None:
        await rooms.footage.remove(job.media_id)
    return _answer(write_deleted(job.id))


async def get_content(request: web.Request) -> web.StreamResponse:
    """``GET /v1/videos/{id}/content``: the file, or a range of it."""
    check_dates(request)
    rooms, job = request.app[ROOMS], await _get_job(request)
    variant = request.query.get("variant", "video")
    if variant not in _VARIANTS:
        raise InvalidRequest(f"'variant' must be one of {', '.join(_VARIANTS)}", param="variant")
    check_completed(job)
    if job.expires_ms is not None and rooms.videos.now_ms >= job.expires_ms:
        raise NotFound("The video is not kept any more", param="id", should_retry=False)
    told = request.headers.get("Range", "")
    wanted = told if told.startswith("bytes=") and len(told) <= _MAX_RANGE else None
    found = await rooms.footage.open(job, cast("Variant", variant), wanted)
    if isinstance(found, Media):
        answer = FileAnswer(found, _PRIVATE | {"Content-Disposition": f'inline; filename="{_name(job, found.id)}"'})
        await answer.prepare(request)
        return answer
    try:
        return await _pass_through(request, found)
    finally:
        found.close()


def _name(job: VideoJob, media_id: str) -> str:
    return f"{job.id}.{media_id.rpartition('.')[2]}"


async def _pass_through(request: web.Request, file: OpenFile) -> web.StreamResponse:
    """A provider's file as it comes; no faster than it is read."""
    kind = file.headers.get("Content-Type", "").lower()
    response = web.StreamResponse(status=file.status, headers=_PRIVATE)
    for name in _PASSED:
        if name in file.headers:
            response.headers[name] = file.headers[name]
    if not kind.startswith(_SAFE_TYPES):
        response.headers["Content-Type"] = "application/octet-stream"
    response.headers["Content-Security-Policy"] = "default-src 'none'; sandbox"
    await response.prepare(request)
    if request.method == "HEAD":
        return response
    transport = request.transport
    try:
        while piece := await file.read():
            if transport is None:
                raise ClientGone
            await await_reader(lambda data=piece: response.write(data), transport)  # type: ignore[misc]
    except UpstreamFault:
        # What has begun cannot be taken back: it breaks off, so that nobody takes a part for the whole.
        if transport is not None:
            transport.abort()
        raise ClientGone from None
    except ConnectionError:
        raise ClientGone from None
    await response.write_eof()
    return response


async def get_events(request: web.Request) -> web.StreamResponse:
    """``GET /v1/videos/{id}/events``: the task object, now and whenever it has changed, until the job has ended."""
    rooms, job = request.app[ROOMS], await _get_job(request)
    words = find_status_words(request)
    response = EventSourceResponse(sep="\n")
    told = b""
    async with rooms.videos.signals.listen(job.id) as bell:
        await response.prepare(request)
        async with response:
            while rooms.gate.open:
                now = orjson.dumps(write_video(job, words))
                if now != told:
                    await response.send(now.decode(), event=f"video.{write_video(job, words)['status']}")
                    told = now
                if job.ended:
                    break
                bell.clear()
                try:
                    async with asyncio.timeout(LOOK_AGAIN_S):
                        await bell.wait()
                except TimeoutError:
                    pass
                found = await rooms.videos.find(job.id)
                if found is None:
                    break
                job = found
    return response


async def _get_job(request: web.Request) -> VideoJob:
    """The caller's own job. Raises ``NotFound`` for every other."""
    return await request.app[ROOMS].videos.get(request.match_info["id"], request[CALLER].account.id)


def _answer(said: object, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=orjson.dumps(said), headers={"Content-Type": "application/json", **(headers or {})})
