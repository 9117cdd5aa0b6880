"""The demo's films: ``/v1/videos``, their progress by the clock, and the films themselves.

Nothing of a task is kept but its id (``slate.py``). Its state follows from the time that has passed, and its film from
what the id says; a film that was made is kept for a while, since making it takes a second.
"""

import asyncio
import functools
import math
import time
from collections.abc import Callable, Generator
from concurrent.futures import Executor
from typing import TypeVar

from aiohttp import hdrs, web

from gateway.demo import asks
from gateway.demo.asks import AskError, Json
from gateway.demo.film import Reel, shoot
from gateway.demo.film_asks import FilmAsk, read_film, read_film_form, read_remix, read_remix_form
from gateway.demo.forms import receive_form
from gateway.demo.replies import json_reply, read_json
from gateway.demo.sight import look_at
from gateway.demo.slate import Slate, find_slate, open_slate
from gateway.domain.byte_range import RangeNotSatisfiable, read_range

POLL_AFTER = "openai-poll-after-ms"

_PACE_S = 0.03  # at this pace a film takes half its length and a second
_BASE_S = 1.0
_S_PER_SECOND = 0.5
_SLOWNESS = 10
_QUEUED = 0.12  # the share of its time that a task waits
_JUDGED = 0.3
_BROKEN = 0.5
_BEND = 1.35  # the last percent take longer
_NEARLY = 99
_EXPIRES_S = 24 * 3600
_SOONEST_MS, _LATEST_MS = 100, 2_000
_MAX_REELS_MB = 12
_MAX_DELETED = 10_000
_T = TypeVar("_T")


class Director:
    """Takes calls for films, and makes one after the other.

    Args:
        executor: where films are made, in steps, so that whoever else works there gets a turn in between.
        pace_s: the demo's pace, in seconds; at 0 a film is there at once.
        clock: the time, in Unix seconds.
    """

    def __init__(self, executor: Executor, *, pace_s: float, clock: Callable[[], float] = time.time) -> None:
        self._executor = executor
        self._factor = pace_s / _PACE_S
        self._clock = clock
        self._deleted: dict[str, None] = {}
        self._reels: dict[str, Reel] = {}
        self._making: dict[str, asyncio.Task[Reel]] = {}

    def add_routes(self, app: web.Application) -> None:
        """Take the convention's paths."""
        app.router.add_post("/v1/videos", self._create)
        app.router.add_get("/v1/videos/{id}", self._retrieve)
        app.router.add_delete("/v1/videos/{id}", self._delete)
        app.router.add_post("/v1/videos/{id}/remix", self._remix)
        app.router.add_get("/v1/videos/{id}/content", self._show)

    def close(self) -> None:
        """Stop making films, and forget them."""
        for making in self._making.values():
            making.cancel()
        self._reels.clear()

    async def _create(self, request: web.Request) -> web.Response:
        if request.content_type == "multipart/form-data":
            async with receive_form(request) as form:
                return self._answer(await self._open(read_film_form(form)))
        return self._answer(await self._open(read_film(await read_json(request))))

    async def _open(self, ask: FilmAsk) -> Slate:
        reference, tint = b"", None
        if ask.picture is not None:
            looking = asyncio.ensure_future(self._run(functools.partial(look_at, ask.picture)))
            try:
                reference, tint = await asyncio.shield(looking)
            finally:
                await asyncio.wait({looking})  # what it reads is closed next
        elif ask.address is not None:
            reference = ask.address.encode(errors="replace")
        return open_slate(ask, self._now_ms(), reference=reference, tint=tint)

    async def _retrieve(self, request: web.Request) -> web.Response:
        return self._answer(self._find(request))

    async def _remix(self, request: web.Request) -> web.Response:
        parent = self._find(request)
        if request.content_type == "multipart/form-data":
            async with receive_form(request) as form:
                prompt = read_remix_form(form)
        else:
            prompt = read_remix(await read_json(request))
        self._check_completed(parent)
        return self._answer(parent.remix(prompt, self._now_ms()))

    async def _delete(self, request: web.Request) -> web.Response:
        slate = self._find(request)
        self._deleted[slate.id] = None
        if len(self._deleted) > _MAX_DELETED:
            del self._deleted[next(iter(self._deleted))]
        self._reels.pop(slate.id, None)
        return json_reply({"id": slate.id, "object": "video.deleted", "deleted": True})

    async def _show(self, request: web.Request) -> web.Response:
        slate = self._find(request)
        variant = request.query.get("variant", "video")
        if variant not in {"video", "thumbnail"}:
            raise AskError("'variant' must be 'video' or 'thumbnail'; the demo has no others.", param="variant")
        self._check_completed(slate)
        reel = await self._make(slate)
        if variant == "thumbnail":
            return web.Response(body=reel.thumbnail, content_type="image/png")
        return send_part(request, reel.video, "video/mp4")

    def _find(self, request: web.Request) -> Slate:
        slate = find_slate(request.match_info["id"])
        if slate is None or slate.id in self._deleted:
            raise AskError("There is no video with that id.", param="video_id", code="not_found", status=404)
        return slate

    def _check_completed(self, slate: Slate) -> None:
        status = tell(slate, self._clock(), self._factor)["status"]
        if status != "completed":
            raise AskError(f"The video is {status}, not completed.", param="video_id", code="invalid_state", status=409)

    def _answer(self, slate: Slate) -> web.Response:
        reply = json_reply(tell(slate, self._clock(), self._factor))
        left_s = max(slate.created_ms / 1000 + find_duration(slate, self._factor) - self._clock(), 0)
        reply.headers[POLL_AFTER] = str(min(max(round(left_s * 250), _SOONEST_MS), _LATEST_MS))
        return reply

    async def _make(self, slate: Slate) -> Reel:
        """A task's film: made once, whoever waits for it or leaves."""
        reel = self._reels.get(slate.id)
        if reel is not None:
            return reel
        making = self._making.get(slate.id)
        if making is None:
            making = self._making[slate.id] = asyncio.create_task(self._shoot(slate))
            making.add_done_callback(lambda _: self._making.pop(slate.id))
        return await asyncio.shield(making)

    async def _shoot(self, slate: Slate) -> Reel:
        work = shoot(slate)
        while True:
            reel = await self._run(functools.partial(_work_on, work))
            if reel is not None:
                break
        self._reels[slate.id] = reel
        while sum(kept.size for kept in self._reels.values()) > _MAX_REELS_MB << 20 and len(self._reels) > 1:
            del self._reels[next(iter(self._reels))]
        return reel

    async def _run(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)


def find_duration(slate: Slate, factor: float) -> float:
    """How long a task takes, in seconds; ``factor`` 1: in the demo's ordinary pace."""
    slow = _SLOWNESS if slate.model == asks.SLOW_VIDEO_MODEL else 1
    return (_BASE_S + _S_PER_SECOND * slate.seconds) * factor * slow


def tell(slate: Slate, now_s: float, factor: float) -> Json:
    """The convention's object of a task, all keys present."""
    duration = find_duration(slate, factor)
    share = (now_s - slate.created_ms / 1000) / duration if duration else 1.0
    status, progress, error = _find_state(slate.model, min(max(share, 0.0), 1.0))
    ended = math.ceil(slate.created_ms / 1000 + duration) if status == "completed" else None
    return {
        "id": slate.id,
        "object": "video",
        "model": slate.model,
        "status": status,
        "progress": progress,
        "created_at": slate.created_ms // 1000,
        "completed_at": ended,
        "expires_at": None if ended is None else ended + _EXPIRES_S,
        "prompt": slate.opening,
        "size": f"{slate.size[0]}x{slate.size[1]}",
        "seconds": str(slate.seconds),
        "remixed_from_video_id": slate.parent_id,
        "error": error,
    }


def _find_state(model: str, share: float) -> tuple[str, int, Json | None]:
    """Status, progress and error after that share of the time."""
    if share < _QUEUED:
        return "queued", 0, None
    if model == asks.BLOCKED_VIDEO_MODEL and share >= _JUDGED:
        message = "The demo's safety filter blocked this video: the model is there to try this out."
        return "failed", _find_progress(_JUDGED), {"code": "moderation_blocked", "message": message}
    if model == asks.FAILING_VIDEO_MODEL and share >= _BROKEN:
        message = "The demo's camera broke half way: the model is there to try this out."
        return "failed", _find_progress(_BROKEN), {"code": "video_generation_failed", "message": message}
    return ("completed", 100, None) if share >= 1 else ("in_progress", _find_progress(share), None)


def _find_progress(share: float) -> int:
    done = (share - _QUEUED) / (1 - _QUEUED)
    bent: float = 1 - (1 - done) ** _BEND
    return min(round(100 * bent), _NEARLY)


def send_part(request: web.Request, data: bytes, media_type: str) -> web.Response:
    """Answer with a file, or with the part of it that is asked for (RFC 9110, section 14)."""
    headers = {hdrs.ACCEPT_RANGES: "bytes"}
    wanted = read_range(request.headers.getall(hdrs.RANGE, ())) if request.method == hdrs.METH_GET else None
    if wanted is None:
        return web.Response(body=data, content_type=media_type, headers=headers)
    try:
        start, stop = wanted.find(len(data))
    except RangeNotSatisfiable:
        headers[hdrs.CONTENT_RANGE] = f"bytes */{len(data)}"
        return web.Response(status=web.HTTPRequestRangeNotSatisfiable.status_code, headers=headers)
    headers[hdrs.CONTENT_RANGE] = f"bytes {start}-{stop - 1}/{len(data)}"
    partial = web.HTTPPartialContent.status_code
    return web.Response(body=data[start:stop], status=partial, content_type=media_type, headers=headers)


def _work_on(work: Generator[None, None, Reel]) -> Reel | None:
    """A step of the work: the film if that was the last."""
    time.sleep(0)  # the loop need not wait until the interpreter takes its lock away
    try:
        next(work)
    except StopIteration as end:
        reel: Reel = end.value
        return reel
    return None
