"""Videos in the OpenAI API format: objects for clients, and requests to providers that use the format."""

from collections.abc import Callable, Sequence
from typing import Any

from gateway.domain.video import StatusWords, VideoJob, VideoState
from gateway.errors import InvalidRequest, ProviderBadResponse
from gateway.formats.errors.openai import Secrets
from gateway.formats.images.backend import ProviderRequest
from gateway.formats.videos.backend import (
    ContentLocation,
    ProviderTask,
    TaskState,
    TaskStatus,
    Variant,
    VideoBackend,
    VideoSpec,
    build_error,
    build_task_path,
    parse_id,
    parse_object,
    parse_progress,
)
from gateway.formats.wire.request_body import Body, Form

_STATUSES_BY_STATE: dict[VideoState, str] = {
    "created": "queued",
    "submitting": "queued",
    "queued": "queued",
    "processing": "processing",
    "fetching": "processing",
    "completed": "completed",
    "failed": "failed",
}
_OPENAI_STATUSES = {"processing": "in_progress"}


def build_status(state: VideoState, status_words: StatusWords) -> str:
    """Return the name of a job's state in the client's API version."""
    status = _STATUSES_BY_STATE[state]
    return _OPENAI_STATUSES.get(status, status) if status_words == "openai" else status


def build_video(job: VideoJob, status_words: StatusWords) -> Body:
    """Build the video object; a failed job also has an ``error``."""
    video = {
        "id": job.id,
        "object": "video",
        "model": job.model,
        "status": build_status(job.state, status_words),
        "progress": job.progress,
        "created_at": job.created_ms // 1000,
        "completed_at": _to_seconds(job.completed_ms) if job.state == "completed" else None,
        "expires_at": _to_seconds(job.expires_ms),
        "prompt": job.prompt,
        "size": job.size,
        "seconds": job.seconds,
        "remixed_from_video_id": job.remixed_from,
    }
    return video | {"error": {"code": job.error_code, "message": job.error_message}} if job.state == "failed" else video


def build_videos(jobs: Sequence[VideoJob], find_words: Callable[[VideoJob], StatusWords], *, has_more: bool) -> Body:
    """Build a page of video objects, each with the state names that ``find_words`` returns for the job."""
    data = [build_video(job, find_words(job)) for job in jobs]
    return {
        "object": "list",
        "data": data,
        "first_id": jobs[0].id if jobs else None,
        "last_id": jobs[-1].id if jobs else None,
        "has_more": has_more,
    }


def build_deletion(video_id: str) -> Body:
    """Build the answer to the deletion of a job."""
    return {"id": video_id, "object": "video.deleted", "deleted": True}


def _to_seconds(ms: int | None) -> int | None:
    return None if ms is None else ms // 1000


VIDEOS_PATH = "/videos"
SAFE_FIELDS = frozenset(
    {
        "enhance_prompt", "guidance_scale", "negative_prompt", "prompt_extend", "safety_identifier", "seed", "user",
        "watermark",
    },
)  # fmt: skip
"""Fields that tune a video or name its user, without making it longer, larger or more expensive."""
_MAX_EXCERPT_CHARS = 64
_STATES: dict[str, TaskState] = {
    **dict.fromkeys(("queued", "pending", "submitted", "created", "waiting"), "queued"),
    **dict.fromkeys(("in_progress", "processing", "running", "generating"), "processing"),
    **dict.fromkeys(("completed", "complete", "succeeded", "success", "done", "finished"), "completed"),
    **dict.fromkeys(
        ("failed", "failure", "fail", "error", "cancelled", "canceled", "aborted", "expired", "rejected", "timeout"),
        "failed",
    ),
}
"""State names of OpenAI, this gateway and other servers of the format, in lower case -> states."""


class OpenAiVideoBackend(VideoBackend):
    """Videos from a provider with the OpenAI API format, which may be another instance of this gateway."""

    __slots__ = ()

    def submit(self, spec: VideoSpec) -> ProviderRequest:
        """Build the request that starts a task: JSON, or a form if there is a file.

        Fields outside ``SAFE_FIELDS`` (``quality``, …) are rejected with ``InvalidRequest``: they might make a video
        longer or larger than reserved.
        """
        body: dict[str, Any] = {**_parse_safe_fields(spec.extra), "model": spec.model, "prompt": spec.prompt}
        if spec.seconds is not None:
            body["seconds"] = str(spec.seconds)
        if spec.size is not None:
            body["size"] = spec.size
        headers = (("Idempotency-Key", spec.mark),)  # a server that supports it creates only one job for repeats
        if spec.reference is not None and spec.reference.upload is not None:
            form = Form(body, (("input_reference", spec.reference.upload),))
            return ProviderRequest(form, starts_task=True, headers=headers)
        if spec.reference is not None:
            body["input_reference"] = {"image_url": spec.reference.url}
        return ProviderRequest(body, starts_task=True, headers=headers)

    def parse_submit_answer(self, raw: bytes, secrets: Secrets) -> TaskStatus:
        value = parse_object(raw)
        task_id = parse_id(value.get("id"))  # the only required field
        status = self.parse_poll_answer(raw, secrets) if isinstance(value.get("status"), str) else TaskStatus()
        return TaskStatus(status.state, task_id, status.progress, seconds=status.seconds, size=status.size)

    def poll(self, task: ProviderTask) -> ProviderRequest:
        return ProviderRequest(method="GET", path=build_task_path(VIDEOS_PATH, task), repeatable=True)

    def parse_poll_answer(self, raw: bytes, secrets: Secrets) -> TaskStatus:
        value = parse_object(raw)
        status = value.get("status")
        if not isinstance(status, str):
            raise ProviderBadResponse("The provider's answer does not contain the task")
        state = _STATES.get(status.strip().lower())
        error_field = value.get("error")
        error = error_field if isinstance(error_field, dict) else {"message": error_field}
        return TaskStatus(
            state,
            progress=parse_progress(value.get("progress")),
            error=build_error(error.get("code"), error.get("message"), secrets) if state == "failed" else None,
            seconds=_read_text(value.get("seconds")),
            size=_read_text(value.get("size")),
        )

    def find_content(self, task: ProviderTask, variant: Variant) -> ContentLocation | ProviderRequest | None:
        query = "" if variant == "video" else f"?variant={variant}"
        return ContentLocation(path=f"{build_task_path(VIDEOS_PATH, task)}/content{query}", is_signed=True)

    def remix(self, task: ProviderTask, spec: VideoSpec) -> ProviderRequest | None:
        headers = (("Idempotency-Key", spec.mark),)
        return ProviderRequest(
            {"prompt": spec.prompt},
            path=f"{build_task_path(VIDEOS_PATH, task)}/remix",
            starts_task=True,
            headers=headers,
        )

    def delete(self, task: ProviderTask) -> ProviderRequest | None:
        return ProviderRequest(method="DELETE", path=build_task_path(VIDEOS_PATH, task), repeatable=True)


def _parse_safe_fields(extra_fields: Body) -> Body:
    """Return the fields that are set.

    Raises ``InvalidRequest`` for other fields than ``SAFE_FIELDS``, and for arrays and objects.
    """
    fields = {name: value for name, value in extra_fields.items() if value is not None}
    for name, value in fields.items():
        if name not in SAFE_FIELDS or not isinstance(value, str | int | float):
            excerpt = name[:_MAX_EXCERPT_CHARS]
            raise InvalidRequest(f"'{excerpt}' is not supported by the channels of this model", param=excerpt)
    return fields


def _read_text(value: object) -> str | None:
    text = str(value) if type(value) is int else value
    return text if isinstance(text, str) and 0 < len(text) <= 32 else None  # noqa: PLR2004 - a length or a size
