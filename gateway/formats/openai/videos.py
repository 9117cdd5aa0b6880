"""Videos in the convention: what callers are told of their jobs, and how a server of the convention is asked for one.

Shapes: the convention's OpenAPI document, ``VideoResource``, ``VideoListResource``, ``DeletedVideoResource`` and
``VideoContentVariant``. Another instance of this gateway is such a server too.
"""

from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

from gateway.domain.video import StatusWords, VideoJob, VideoState
from gateway.errors import InvalidRequest, ProviderBadResponse, ProviderError
from gateway.formats.image_backend import ProviderCall
from gateway.formats.openai.errors import Secrets
from gateway.formats.request_body import Body, Form
from gateway.formats.video_backend import (
    ContentLocation,
    ProviderTask,
    TaskState,
    TaskStatus,
    Variant,
    VideoSpec,
    build_error,
    parse_id,
    parse_object,
    parse_progress,
    parse_video_fault,
)

_SHOWN: dict[VideoState, str] = {
    "created": "queued",
    "submitting": "queued",
    "queued": "queued",
    "processing": "processing",
    "fetching": "processing",
    "completed": "completed",
    "failed": "failed",
}
_OPENAI = {"processing": "in_progress"}


def build_status(state: VideoState, words: StatusWords) -> str:
    """A job's state in the public words."""
    shown = _SHOWN[state]
    return _OPENAI.get(shown, shown) if words == "openai" else shown


def build_video(job: VideoJob, words: StatusWords) -> Body:
    """The task object. ``error`` is there only where the job has failed."""
    told = {
        "id": job.id,
        "object": "video",
        "model": job.model,
        "status": build_status(job.state, words),
        "progress": job.progress,
        "created_at": job.created_ms // 1000,
        "completed_at": _seconds(job.completed_ms) if job.state == "completed" else None,
        "expires_at": _seconds(job.expires_ms),
        "prompt": job.prompt,
        "size": job.size,
        "seconds": job.seconds,
        "remixed_from_video_id": job.remixed_from,
    }
    return told | {"error": {"code": job.error_code, "message": job.error_message}} if job.state == "failed" else told


def build_videos(jobs: Sequence[VideoJob], find_words: Callable[[VideoJob], StatusWords], *, more: bool) -> Body:
    """A page of them, each in the words that ``find_words`` has for it."""
    data = [build_video(job, find_words(job)) for job in jobs]
    return {
        "object": "list",
        "data": data,
        "first_id": jobs[0].id if jobs else None,
        "last_id": jobs[-1].id if jobs else None,
        "has_more": more,
    }


def build_deleted(video_id: str) -> Body:
    """What is said of a job that is forgotten."""
    return {"id": video_id, "object": "video.deleted", "deleted": True}


def _seconds(ms: int | None) -> int | None:
    return None if ms is None else ms // 1000


PATH = "/videos"
SHADES = frozenset(
    {
        "enhance_prompt", "guidance_scale", "negative_prompt", "prompt_extend", "safety_identifier", "seed", "user",
        "watermark",
    },
)  # fmt: skip
"""How a video is to be, or for whom: nothing that makes it longer, larger or dearer."""
_SHOWN_CHARS = 64
_STATES: dict[str, TaskState] = {
    "queued": "queued",
    "in_progress": "processing",
    "processing": "processing",
    "completed": "completed",
    "succeeded": "completed",
    "failed": "failed",
    "cancelled": "failed",
    "canceled": "failed",
    "expired": "failed",
}
"""The convention's words, this gateway's own, and those that servers of the convention have besides."""


class OpenAiVideoBackend:
    """``VideoBackend``; see there. Paths are behind the channel's base URL."""

    takes_urls = True

    def submit(self, shot: VideoSpec) -> ProviderCall:
        """JSON, or a form where a file goes with it, as the client libraries send it.

        Of what else the caller said only ``SHADES`` pass: nobody knows what a server makes of the others, and by some
        of them (``quality``, ``metadata``, …) servers make longer and larger videos than are set aside for.
        """
        body: dict[str, Any] = {**_parse_shades(shot.extra), "model": shot.model, "prompt": shot.prompt}
        if shot.seconds is not None:
            body["seconds"] = str(shot.seconds)
        if shot.size is not None:
            body["size"] = shot.size
        headers = (("Idempotency-Key", shot.mark),)  # whoever knows it makes one job of two equal calls
        if shot.reference is not None and shot.reference.upload is not None:
            form = Form(body, (("input_reference", shot.reference.upload),))
            return ProviderCall(form, begins=True, headers=headers)
        if shot.reference is not None:
            body["input_reference"] = {"image_url": shot.reference.url}
        return ProviderCall(body, begins=True, headers=headers)

    def parse_submitted(self, raw: bytes, secrets: Secrets) -> TaskStatus:
        """A task."""
        said = parse_object(raw)
        task = parse_id(said.get("id"))  # whatever else is said, it is there
        take = self.parse_polled(raw, secrets) if isinstance(said.get("status"), str) else TaskStatus()
        return TaskStatus(take.state, task, take.progress, seconds=take.seconds, size=take.size)

    def parse_refused(
        self, status: int, raw: bytes, secrets: Secrets, *, provider_retry_after_s: float | None = None
    ) -> ProviderError:
        """The convention's error object."""
        return parse_video_fault(status, raw, secrets, provider_retry_after_s=provider_retry_after_s)

    def poll(self, task: ProviderTask) -> ProviderCall:
        """Ask after it."""
        return ProviderCall(method="GET", path=_path(task), passing=True)

    def parse_polled(self, raw: bytes, secrets: Secrets) -> TaskStatus:
        """What is said of it."""
        said = parse_object(raw)
        status = said.get("status")
        if not isinstance(status, str):
            raise ProviderBadResponse("The provider's answer says nothing of the task")
        state = _STATES.get(status)
        error = said.get("error")
        told = error if isinstance(error, dict) else {"message": error}
        return TaskStatus(
            state,
            progress=parse_progress(said.get("progress")),
            error=build_error(told.get("code"), told.get("message"), secrets) if state == "failed" else None,
            seconds=_read_text(said.get("seconds")),
            size=_read_text(said.get("size")),
        )

    def find_content(self, task: ProviderTask, variant: Variant) -> ContentLocation | ProviderCall | None:
        """Beside the task."""
        query = "" if variant == "video" else f"?variant={variant}"
        return ContentLocation(path=f"{_path(task)}/content{query}", signed=True)

    def read_content(self, raw: bytes, secrets: Secrets) -> ContentLocation:  # noqa: ARG002 - nothing is asked
        """Never: the place is known."""
        raise ProviderBadResponse("The provider was not asked where its video is")

    def remix(self, task: ProviderTask, shot: VideoSpec) -> ProviderCall | None:
        """The same video by another prompt."""
        headers = (("Idempotency-Key", shot.mark),)
        return ProviderCall({"prompt": shot.prompt}, path=f"{_path(task)}/remix", begins=True, headers=headers)

    def cancel(self, task: ProviderTask) -> ProviderCall | None:  # noqa: ARG002 - nothing is offered
        """The convention has no word for it."""
        return None

    def delete(self, task: ProviderTask) -> ProviderCall | None:
        """Have it forgotten."""
        return ProviderCall(method="DELETE", path=_path(task), passing=True)


def _parse_shades(extra: Body) -> Body:
    """Raise ``InvalidRequest`` for whatever is none of ``SHADES``, or is no plain value."""
    said = {name: value for name, value in extra.items() if value is not None}
    for name, value in said.items():
        if name not in SHADES or not isinstance(value, str | int | float):
            shown = name[:_SHOWN_CHARS]
            raise InvalidRequest(f"'{shown}' is not taken by the channels of this model", param=shown)
    return said


def _path(task: ProviderTask) -> str:
    return f"{PATH}/{quote(task.id, safe='')}"


def _read_text(value: object) -> str | None:
    text = str(value) if type(value) is int else value
    return text if isinstance(text, str) and 0 < len(text) <= 32 else None  # noqa: PLR2004 - a length or a size
