"""The demo's videos: ``/v1/videos``, with progress by the clock. Every video is a four-second sample clip.

A job's id contains its model, size, length and time. Only deletions are stored, in memory: a restarted demo still knows
every job.
"""

import math
import struct
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from collections.abc import Callable
from functools import cache, partial
from hashlib import blake2b
from importlib.resources import files
from secrets import token_bytes

from aiohttp import hdrs, web
from attrs import field

from gateway.demo import models
from gateway.demo.forms import receive_form
from gateway.demo.png import draw
from gateway.demo.replies import build_reply, parse_json
from gateway.demo.requests import Json, RequestError
from gateway.demo.video_requests import (
    SIZES,
    DemoVideoRequest,
    parse_remix,
    parse_remix_form,
    parse_video,
    parse_video_form,
)
from gateway.domain.byte_range import RangeNotSatisfiable, read_range
from gateway.frozen import frozen

POLL_AFTER = "openai-poll-after-ms"

_PACE_S = 0.03  # at this pace a video takes half its length plus one second
_BASE_S = 1.0
_S_PER_SECOND = 0.5
_SLOW_FACTOR = 10
_QUEUED_SHARE = 0.12  # fraction of a job's duration in which it is queued
_FILTER_SHARE = 0.3
_FAILURE_SHARE = 0.5
_PROGRESS_EXPONENT = 1.35  # the last percent take longer
_MAX_RUNNING_PERCENT = 99
_LIFETIME_S = 24 * 3600
_MIN_POLL_MS, _MAX_POLL_MS = 100, 2_000
_MAX_DELETED_IDS = 10_000
_ID_PREFIX = "video_"
_JOB_LAYOUT = struct.Struct(">BBBQ4s")
_NONCE_BYTES = 4
_CHECKSUM_BYTES = 6


@frozen
class DemoVideo:
    """One job, with all values that its id contains. ``nonce`` distinguishes jobs of the same moment."""

    model: str
    size: tuple[int, int]
    seconds: int
    created_ms: int
    nonce: bytes = field(factory=partial(token_bytes, _NONCE_BYTES), repr=False)

    @property
    def id(self) -> str:
        model, size = models.VIDEO_MODELS.index(self.model), SIZES.index(self.size)
        packed_job = _JOB_LAYOUT.pack(model, size, self.seconds, self.created_ms, self.nonce)
        return _ID_PREFIX + urlsafe_b64encode(packed_job + _compute_checksum(packed_job)).decode().rstrip("=")


def find_job(job_id: str) -> DemoVideo | None:
    """Return the job of an id that the demo issued; None for any other id."""
    try:
        packed_job = urlsafe_b64decode(job_id.removeprefix(_ID_PREFIX) + "==")
    except (Error, ValueError):
        return None
    if len(packed_job) != _JOB_LAYOUT.size + _CHECKSUM_BYTES or packed_job[_JOB_LAYOUT.size :] != _compute_checksum(
        packed_job[: _JOB_LAYOUT.size]
    ):
        return None
    model, size, seconds, created_ms, nonce = _JOB_LAYOUT.unpack(packed_job[: _JOB_LAYOUT.size])
    if model >= len(models.VIDEO_MODELS) or size >= len(SIZES):  # the checksum has no key: anyone can make one
        return None
    job = DemoVideo(models.VIDEO_MODELS[model], SIZES[size], seconds, created_ms, nonce)
    return job if job.id == job_id else None


def _compute_checksum(packed_job: bytes) -> bytes:
    return blake2b(packed_job, digest_size=_CHECKSUM_BYTES).digest()


class DemoVideos:
    """Serves video jobs.

    Args:
        pace_s: the demo's pace, in seconds; at 0 a video is completed immediately.
    """

    def __init__(self, *, pace_s: float, clock: Callable[[], float] = time.time) -> None:
        self._factor = pace_s / _PACE_S
        self._clock = clock
        self._deleted_ids: dict[str, None] = {}

    def add_routes(self, app: web.Application) -> None:
        app.router.add_post("/v1/videos", self._create)
        app.router.add_get("/v1/videos/{id}", self._retrieve)
        app.router.add_delete("/v1/videos/{id}", self._delete)
        app.router.add_post("/v1/videos/{id}/remix", self._remix)
        app.router.add_get("/v1/videos/{id}/content", self._show)

    async def _create(self, request: web.Request) -> web.Response:
        if request.content_type == "multipart/form-data":
            async with receive_form(request) as form:
                video_request = parse_video_form(form)
        else:
            video_request = parse_video(await parse_json(request))
        return self._start(video_request, video_request.prompt)

    def _start(
        self, video_request: DemoVideoRequest | DemoVideo, prompt: str, parent: DemoVideo | None = None
    ) -> web.Response:
        job = DemoVideo(video_request.model, video_request.size, video_request.seconds, int(self._clock() * 1000))
        return self._answer(job, prompt=prompt, remixed_from_video_id=None if parent is None else parent.id)

    async def _retrieve(self, request: web.Request) -> web.Response:
        return self._answer(self._find(request))

    async def _remix(self, request: web.Request) -> web.Response:
        parent = self._find(request)
        if request.content_type == "multipart/form-data":
            async with receive_form(request) as form:
                prompt = parse_remix_form(form)
        else:
            prompt = parse_remix(await parse_json(request))
        self._check_completed(parent)
        return self._start(parent, prompt, parent)

    async def _delete(self, request: web.Request) -> web.Response:
        job = self._find(request)
        self._deleted_ids[job.id] = None
        if len(self._deleted_ids) > _MAX_DELETED_IDS:
            del self._deleted_ids[next(iter(self._deleted_ids))]
        return build_reply({"id": job.id, "object": "video.deleted", "deleted": True})

    async def _show(self, request: web.Request) -> web.Response:
        job = self._find(request)
        variant = request.query.get("variant", "video")
        if variant not in {"video", "thumbnail"}:
            raise RequestError("'variant' must be 'video' or 'thumbnail'; the demo has no others.", param="variant")
        self._check_completed(job)
        if variant == "thumbnail":
            size = (job.size[0] // 2, job.size[1] // 2)
            return web.Response(body=draw(job.id, 0, size), content_type="image/png")
        return send_part(request, _read_sample(portrait=job.size[0] < job.size[1]), "video/mp4")

    def _find(self, request: web.Request) -> DemoVideo:
        job = find_job(request.match_info["id"])
        if job is None or job.id in self._deleted_ids:
            raise RequestError("There is no video with that id.", param="video_id", code="not_found", status=404)
        return job

    def _check_completed(self, job: DemoVideo) -> None:
        status = describe(job, self._clock(), self._factor)["status"]
        if status != "completed":
            raise RequestError(
                f"The video is {status}, not completed.", param="video_id", code="invalid_state", status=409
            )

    def _answer(self, job: DemoVideo, **extra_fields: str | None) -> web.Response:
        response = build_reply({**describe(job, self._clock(), self._factor), **extra_fields})
        left_s = max(job.created_ms / 1000 + compute_duration_s(job, self._factor) - self._clock(), 0)
        response.headers[POLL_AFTER] = str(min(max(round(left_s * 250), _MIN_POLL_MS), _MAX_POLL_MS))
        return response


@cache
def _read_sample(*, portrait: bool) -> bytes:
    name = "portrait.mp4" if portrait else "landscape.mp4"
    return (files("gateway.demo") / "samples" / name).read_bytes()


def compute_duration_s(job: DemoVideo, factor: float) -> float:
    """Return the duration of a job, in seconds. ``factor`` is 1 at the demo's usual pace."""
    slowness = _SLOW_FACTOR if job.model == models.SLOW_VIDEO_MODEL else 1
    return (_BASE_S + _S_PER_SECOND * job.seconds) * factor * slowness


def describe(job: DemoVideo, now_s: float, factor: float) -> Json:
    """Return the OpenAI API's object for a job, with all keys and without the prompt."""
    duration_s = compute_duration_s(job, factor)
    share = (now_s - job.created_ms / 1000) / duration_s if duration_s else 1.0
    status, progress, error = _find_state(job.model, min(max(share, 0.0), 1.0))
    ended_s = math.ceil(job.created_ms / 1000 + duration_s) if status == "completed" else None
    return {
        "id": job.id,
        "object": "video",
        "model": job.model,
        "status": status,
        "progress": progress,
        "created_at": job.created_ms // 1000,
        "completed_at": ended_s,
        "expires_at": None if ended_s is None else ended_s + _LIFETIME_S,
        "prompt": None,
        "size": f"{job.size[0]}x{job.size[1]}",
        "seconds": str(job.seconds),
        "remixed_from_video_id": None,
        "error": error,
    }


def _find_state(model: str, share: float) -> tuple[str, int, Json | None]:
    if share < _QUEUED_SHARE:
        return "queued", 0, None
    if model == models.BLOCKED_VIDEO_MODEL and share >= _FILTER_SHARE:
        message = "Blocked by the demo's safety filter (this model always fails, for testing)."
        return "failed", _compute_progress(_FILTER_SHARE), {"code": "moderation_blocked", "message": message}
    if model == models.FAILING_VIDEO_MODEL and share >= _FAILURE_SHARE:
        message = "The demo failed half way: the model is there to try this out."
        return "failed", _compute_progress(_FAILURE_SHARE), {"code": "video_generation_failed", "message": message}
    return ("completed", 100, None) if share >= 1 else ("in_progress", _compute_progress(share), None)


def _compute_progress(share: float) -> int:
    run_share = (share - _QUEUED_SHARE) / (1 - _QUEUED_SHARE)
    curved_share: float = 1 - (1 - run_share) ** _PROGRESS_EXPONENT
    return min(round(100 * curved_share), _MAX_RUNNING_PERCENT)


def send_part(request: web.Request, data: bytes, media_type: str) -> web.Response:
    """Return a response with a file or the requested range; status 416 if the file has no such range (RFC 9110, 14)."""
    headers = {hdrs.ACCEPT_RANGES: "bytes"}
    byte_range = read_range(request.headers.getall(hdrs.RANGE, ())) if request.method == hdrs.METH_GET else None
    if byte_range is None:
        return web.Response(body=data, content_type=media_type, headers=headers)
    try:
        start, stop = byte_range.find(len(data))
    except RangeNotSatisfiable:
        headers[hdrs.CONTENT_RANGE] = f"bytes */{len(data)}"
        return web.Response(status=web.HTTPRequestRangeNotSatisfiable.status_code, headers=headers)
    headers[hdrs.CONTENT_RANGE] = f"bytes {start}-{stop - 1}/{len(data)}"
    partial = web.HTTPPartialContent.status_code
    return web.Response(body=data[start:stop], status=partial, content_type=media_type, headers=headers)
