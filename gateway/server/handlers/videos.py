"""Video jobs after their submission: get, list, download, delete. Their events are in ``video_events``."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import cast, get_args

import orjson
from aiohttp import web

from gateway.domain.byte_range import RangeNotSatisfiable
from gateway.domain.video import VideoFilter, VideoJob, find_poll_after_ms, is_video_id
from gateway.error_status import STATUS
from gateway.errors import ClientDisconnected, InvalidRequest, NotFound, ProviderError
from gateway.formats.videos.backend import Variant
from gateway.formats.videos.openai import build_deletion, build_video, build_videos
from gateway.server.context import CALLER, SERVICES
from gateway.server.handlers.media import build_file_response, check_dates
from gateway.server.handlers.video_create import POLL_AFTER_HEADER
from gateway.server.remote_file import find_requested_range
from gateway.server.responses import LargeResponse, await_reader
from gateway.server.video_status import find_status_words
from gateway.upstream.interface import FetchedFile
from gateway.videos.jobs import check_completed

DEFAULT_PAGE_ROWS = 20
MAX_PAGE_CHARS = 256 * 1024
"""Maximum number of prompt characters on one page."""
MAX_PAGE_ROWS = 100
_LIMIT_TEXTS = frozenset(map(str, range(MAX_PAGE_ROWS + 1)))
_VARIANTS: tuple[str, ...] = get_args(Variant)
_FORWARDED_HEADERS = ("Content-Type", "Content-Length", "Content-Range", "Accept-Ranges")
_PRIVATE_HEADERS = {"Cache-Control": "private, no-store", "X-Content-Type-Options": "nosniff"}
_UNSATISFIED_RANGE_PATTERN = re.compile(r"bytes \*/([0-9]{1,18})\Z", re.ASCII)
_SAFE_TYPE_PREFIXES = ("video/", "image/")
_EMPTY_HEADERS: Mapping[str, str] = {}


async def get_video(request: web.Request) -> web.Response:
    """``GET /v1/videos/{id}``: the status of a job."""
    job = await _get_job(request)
    return _answer(request, build_video(job, find_status_words(request, job)), _build_poll_header(request, job))


def _build_poll_header(request: web.Request, job: VideoJob) -> dict[str, str]:
    if job.ended:
        return {}
    age_ms = request.app[SERVICES].videos.jobs.now_ms - job.created_ms
    return {POLL_AFTER_HEADER: str(find_poll_after_ms(age_ms))}


async def get_videos(request: web.Request) -> web.Response:
    """``GET /v1/videos``: the account's jobs, paginated."""
    limit, after_id, order = _read_page(request)
    video_filter = VideoFilter(request[CALLER].account.id, after_id, newest_first=order == "desc")
    jobs = await request.app[SERVICES].videos.jobs.store.list_videos(video_filter, limit + 1)
    page = _limit_page(jobs[:limit])
    return _answer(request, build_videos(page, partial(find_status_words, request), has_more=len(jobs) > len(page)))


def _limit_page(jobs: Sequence[VideoJob]) -> Sequence[VideoJob]:
    """Return the first jobs with at most ``MAX_PAGE_CHARS`` characters of prompts, but at least one job."""
    chars = 0
    for count, job in enumerate(jobs):
        chars += len(job.prompt)
        if count and chars > MAX_PAGE_CHARS:
            return jobs[:count]
    return jobs


def _read_page(request: web.Request) -> tuple[int, str | None, str]:
    query = request.query
    limit = query.get("limit", str(DEFAULT_PAGE_ROWS))
    if limit not in _LIMIT_TEXTS:
        raise InvalidRequest(f"'limit' must be a whole number from 0 to {MAX_PAGE_ROWS}", param="limit")
    order = query.get("order", "desc")
    if order not in {"asc", "desc"}:
        raise InvalidRequest("'order' must be 'asc' or 'desc'", param="order")
    after_id = query.get("after") or None
    if after_id is not None and not is_video_id(after_id):
        raise InvalidRequest("'after' must be the id of a video", param="after")
    return int(limit), after_id, order


async def delete_video(request: web.Request) -> web.Response:
    """``DELETE /v1/videos/{id}``: delete a finished job and its video."""
    services = request.app[SERVICES]
    job = await _get_job(request)
    await services.videos.jobs.remove(job)
    if job.media_id is not None:
        await services.videos.content.remove(job.media_id)
    return _answer(request, build_deletion(job.id))


async def get_content(request: web.Request) -> web.StreamResponse:
    """``GET /v1/videos/{id}/content``: the video file or another ``variant``, or a range of it.

    Raises ``InvalidRequest``, ``TaskNotReady``, and ``NotFound`` if the job has failed or its video has expired.
    """
    check_dates(request)
    services, job = request.app[SERVICES], await _get_job(request)
    variant = request.query.get("variant", "video")
    if variant not in _VARIANTS:
        raise InvalidRequest(f"'variant' must be one of {', '.join(_VARIANTS)}", param="variant")
    check_completed(job)
    if job.expires_ms is not None and services.videos.jobs.now_ms >= job.expires_ms:
        raise NotFound("The video has expired", param="video_id", should_retry=False)
    content = await services.videos.content.find(job, cast("Variant", variant))
    if content is not None:
        answer = build_file_response(
            content,
            _PRIVATE_HEADERS | {"Content-Disposition": f'inline; filename="{_build_filename(job, content.id)}"'},
        )
        await answer.prepare(request)
        return answer
    async with services.billing.quota.enter(request[CALLER]):  # a download from the provider counts as a request
        byte_range = find_requested_range(request)  # a file stored only at the provider has no entity tag and no date
        file = await services.videos.content.open(
            job, cast("Variant", variant), byte_range.write() if byte_range else None
        )
        try:
            return await _pass_through(request, file)
        finally:
            file.close()


def _build_filename(job: VideoJob, media_id: str) -> str:
    return f"{job.id}.{media_id.rpartition('.')[2]}"


async def _pass_through(request: web.Request, file: FetchedFile) -> web.StreamResponse:
    """Forward a provider's file at the client's pace. Raises ``RangeNotSatisfiable`` or ``ClientDisconnected``."""
    _check_range(file)
    media_type = file.headers.get("Content-Type", "").lower()
    response = web.StreamResponse(status=file.status, headers=_PRIVATE_HEADERS)
    for name in _FORWARDED_HEADERS:
        if name in file.headers:
            response.headers[name] = file.headers[name]
    if not media_type.startswith(_SAFE_TYPE_PREFIXES):
        response.headers["Content-Type"] = "application/octet-stream"
    response.headers["Content-Security-Policy"] = "default-src 'none'; sandbox"
    await response.prepare(request)
    if request.method == "HEAD":
        return response
    transport = request.transport
    try:
        while piece := await file.read():
            if transport is None:
                raise ClientDisconnected
            await await_reader(lambda data=piece: response.write(data), transport)  # type: ignore[misc]
    except ProviderError:
        # The response has begun: abort it, or the client would mistake a part for the complete file.
        if transport is not None:
            transport.abort()
        raise ClientDisconnected from None
    except ConnectionError:
        raise ClientDisconnected from None
    await response.write_eof()
    return response


def _check_range(file: FetchedFile) -> None:
    if file.status == STATUS[RangeNotSatisfiable.code]:
        size = _UNSATISFIED_RANGE_PATTERN.match(file.headers.get("Content-Range", ""))
        raise RangeNotSatisfiable(int(size[1]) if size else None)


async def _get_job(request: web.Request) -> VideoJob:
    return await request.app[SERVICES].videos.jobs.get(request.match_info["id"], request[CALLER].account.id)


def _answer(request: web.Request, body: object, headers: Mapping[str, str] = _EMPTY_HEADERS) -> web.Response:
    return LargeResponse(request, orjson.dumps(body), {"Content-Type": "application/json", **headers})
