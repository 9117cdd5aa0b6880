"""Videos of MiniMax (Hailuo): tasks, in two API versions.

platform.minimax.io/docs/api-reference:
    video-generation-t2v, -i2v, -query, -download (``files/retrieve``): Hailuo 2.3 and older. Errors have status 200 and
        a code in ``base_resp``; errorcode explains the codes.
    video-generation-v2-create, -v2-query, -v2-delete: H3, with meaningful statuses, and errors in the shape of the
        OpenAI API format, whose message ends with such a code. A waiting task can be cancelled, one that has ended
        deleted; a running task rejects both, harmlessly.

A model accepts a resolution, and H3 also an aspect ratio. A video that starts from an image has the image's aspect
ratio. The pixels of 768P and 480P are not documented, so sizes represent them: 2K as 1440 lines, 768P of Hailuo as
1366x768.

Not supported: 512P, which needs an image, and whose size is not documented; S2V-01, which needs a subject; last frames,
reference videos and sound, templates, which the OpenAI API format cannot express; ``extra.prompt_expansion_mode`` of H3
Max; progress, which is not reported; remixing (``video_regeneration`` only enlarges).
"""

import re
from collections.abc import Mapping
from urllib.parse import quote

import attrs

from gateway.domain.video import Reference
from gateway.errors import ContentBlocked, InvalidRequest, ProviderBadResponse, ProviderError
from gateway.formats.errors.content_filter import build_verdict
from gateway.formats.errors.openai import Secrets
from gateway.formats.errors.vendor import find_message
from gateway.formats.images.backend import ProviderRequest
from gateway.formats.images.image_data import find_url
from gateway.formats.images.task import parse_field
from gateway.formats.vendor_models import find_model
from gateway.formats.videos import backend as video_backend
from gateway.formats.videos.sizes import list_video_sizes
from gateway.formats.wire.json_values import as_object, as_text, loads_or_none
from gateway.formats.wire.request_body import Body, InlineUpload, build_data_url
from gateway.frozen import frozen

_H3_PREFIX = "MiniMax-H3"
_RATIOS = {"16:9": (16, 9), "9:16": (9, 16), "1:1": (1, 1), "4:3": (4, 3), "3:4": (3, 4), "21:9": (21, 9)}
_LINES_BY_RESOLUTION = {"768P": 768, "2K": 1440, "480P": 480}
_FULL_HD_RESOLUTION = "1080P"
_FULL_HD_SECONDS = 6
"""The only length in seconds of videos in ``_FULL_HD_RESOLUTION``."""


def _map_sizes(*tiers: str) -> Mapping[str, tuple[str, str]]:
    sizes = list_video_sizes({tier: _LINES_BY_RESOLUTION[tier] for tier in tiers}, _RATIOS)
    return {size: (tier, ratio) for size, (ratio, tier) in sizes.items()}


@frozen
class HailuoModel:
    """The options of a model.

    Attributes:
        seconds: lengths, the default first.
        sizes: resolution and aspect ratio by size. The ratio is empty if the model has no field for one.
        takes_image: whether the model can start from an image.
        needs_image: whether the model requires an image.
    """

    seconds: tuple[int, ...]
    sizes: Mapping[str, tuple[str, str]]
    takes_image: bool = True
    needs_image: bool = False


_HAILUO_MODEL = HailuoModel((6, 10), {"1366x768": ("768P", ""), "1920x1080": (_FULL_HD_RESOLUTION, "")})
_FIRST_MODEL = HailuoModel((6,), {"1280x720": ("720P", "")})
MODELS: Mapping[str, HailuoModel] = {
    "MiniMax-H3": HailuoModel((5, 4, *range(6, 16)), _map_sizes("768P", "2K")),
    "MiniMax-H3-Max": HailuoModel((5, *range(6, 16)), _map_sizes("768P", "480P")),
    "MiniMax-Hailuo-2.3": _HAILUO_MODEL,
    "MiniMax-Hailuo-2.3-Fast": attrs.evolve(_HAILUO_MODEL, needs_image=True),
    "MiniMax-Hailuo-02": _HAILUO_MODEL,
    "T2V-01": attrs.evolve(_FIRST_MODEL, takes_image=False),
    "T2V-01-Director": attrs.evolve(_FIRST_MODEL, takes_image=False),
    "I2V-01": attrs.evolve(_FIRST_MODEL, needs_image=True),
    "I2V-01-Director": attrs.evolve(_FIRST_MODEL, needs_image=True),
    "I2V-01-live": attrs.evolve(_FIRST_MODEL, needs_image=True),
}
TASKS_PATH = "/v1/video_generation"
_QUERY_PATH = "/v1/query/video_generation?task_id="
_FILE_PATH = "/v1/files/retrieve?file_id="
_H3_TASKS_PATH = "/v2/video_generation"
_H3_QUERY_PATH = "/v2/query/video_generation/"
_FLAG_FIELDS = ("prompt_optimizer", "fast_pretreatment")
_H3_FLAG_FIELDS = ("aigc_watermark",)
_REJECTED_FIELDS = ("first_frame_image", "last_frame_image", "subject_reference", "content")
_STATES: dict[str, video_backend.TaskState] = {
    "Preparing": "queued",
    "Queueing": "queued",
    "Processing": "processing",
    "Success": "completed",
    "Fail": "failed",
    "queued": "queued",
    "running": "processing",
    "succeeded": "completed",
    "failed": "failed",
    "cancelled": "failed",
    "expired": "failed",
}
_END_MESSAGES: Mapping[str, str] = {
    "cancelled": "The provider cancelled the task",
    "expired": "The provider let the task expire",
}
"""``expired`` is documented at platform.minimaxi.com, "video-generation-v2-delete", as a final state."""
_STATUSES_BY_CODE: Mapping[int, int] = {
    **dict.fromkeys((1004, 2049), 401),
    **dict.fromkeys((1008, 2056), 402),
    **dict.fromkeys((1002, 1039, 1041, 2045), 429),
    **dict.fromkeys((1042, 2013), 400),
    **dict.fromkeys((1000, 1001, 1024, 1033), 500),
}
"""Error codes -> HTTP statuses."""
_BLOCK_CODES = (1026, 1027)
"""Codes of the content filter: blocked prompt, blocked video."""
_OK_STATUS = 200
_TRAILING_CODE_PATTERN = re.compile(r"\((\d{4})\)\s*\Z", re.ASCII)
_MAX_SECONDS = 600


class MiniMaxVideoBackend(video_backend.VideoBackend):
    """Videos from MiniMax. Before H3, a task's ``clue`` is the id of its video's file, for which a URL is requested."""

    __slots__ = ()

    def submit(self, spec: video_backend.VideoSpec) -> ProviderRequest:
        model = find_model(MODELS, spec.model)
        _check_spec(spec, model)
        return _build_h3_body(spec, model) if _is_h3(spec.model) else _build_body(spec, model)

    def parse_submit_answer(self, raw: bytes, secrets: Secrets) -> video_backend.TaskStatus:
        value = video_backend.parse_object(raw)
        if _parse_code(value) or "error" in value:
            raise self.parse_error_answer(_OK_STATUS, raw, secrets)
        return video_backend.TaskStatus("queued", video_backend.parse_id(_read_id(value.get("task_id"))))

    def parse_error_answer(
        self, status: int, raw: bytes, secrets: Secrets, *, provider_retry_after_s: float | None = None
    ) -> ProviderError:
        # H3 has meaningful statuses (422: content filter). Older models always answer with status 200 and a code.
        value = loads_or_none(raw)
        code = _parse_code(value)
        is_sensitive = as_object(as_object(value).get("error")).get("type") == "unprocessable_entity_error"
        if code in _BLOCK_CODES or is_sensitive:
            return ContentBlocked(build_verdict(video_backend.BLOCKED_TEXT, find_message(value, secrets), secrets))
        return video_backend.parse_code_error(
            status, raw, secrets, code=code, statuses=_STATUSES_BY_CODE, provider_retry_after_s=provider_retry_after_s
        )

    def poll(self, task: video_backend.ProviderTask) -> ProviderRequest:
        path = _H3_QUERY_PATH if _is_h3(task.model) else _QUERY_PATH
        return ProviderRequest(method="GET", path=path + quote(task.id, safe=""), repeatable=True)

    def parse_poll_answer(self, raw: bytes, secrets: Secrets) -> video_backend.TaskStatus:
        """Parse the task's state.

        A task has failed if its status says so or, with models before H3, if the answer has a code of the content
        filter. Any other code raises ``ProviderError``, and so does an answer without a state.
        """
        value = video_backend.parse_object(raw)
        task = value.get("task")
        return _parse_h3_task(task, secrets) if isinstance(task, dict) else _parse_task(value, secrets)

    def find_content(
        self, task: video_backend.ProviderTask, variant: video_backend.Variant
    ) -> video_backend.ContentLocation | ProviderRequest | None:
        """Return the request for the video's URL, which is not stored because it expires after some hours.

        Return None for another variant, and for a task without a clue.
        """
        if variant != "video" or task.clue is None:
            return None
        if _is_h3(task.model):
            return self.poll(task)
        return ProviderRequest(method="GET", path=_FILE_PATH + quote(task.clue, safe=""), repeatable=True)

    def parse_content_location(self, raw: bytes, secrets: Secrets) -> video_backend.ContentLocation:
        value = video_backend.parse_object(raw)
        if _parse_code(value):
            raise video_backend.make_reported_error(value, secrets)
        task = value.get("task")
        file_fields = as_object(task.get("content") if isinstance(task, dict) else value.get("file"))
        url = find_url(file_fields.get("url") or file_fields.get("download_url"))
        if url is None:
            raise ProviderBadResponse("The provider's answer has no address of the video")
        return video_backend.ContentLocation(url=url)

    def cancel(self, task: video_backend.ProviderTask) -> ProviderRequest | None:
        """Return the request to cancel a task that still waits, or None for a model before H3."""
        return self.delete(task)

    def delete(self, task: video_backend.ProviderTask) -> ProviderRequest | None:
        """Return the request to delete a task that has ended, or None for a model before H3."""
        if not _is_h3(task.model):
            return None
        return ProviderRequest(method="DELETE", path=f"{_H3_TASKS_PATH}/{quote(task.id, safe='')}", repeatable=True)


def _is_h3(model: str) -> bool:
    return model.startswith(_H3_PREFIX)


def _check_spec(spec: video_backend.VideoSpec, model: HailuoModel) -> None:
    video_backend.check_reference(spec, takes_image=model.takes_image, needs_image=model.needs_image)
    video_backend.check_size_and_seconds(spec, model.sizes, model.seconds)
    rejected_field = next((name for name in _REJECTED_FIELDS if spec.extra.get(name) not in (None, "")), None)
    if rejected_field is not None:
        raise InvalidRequest(
            f"'{rejected_field}' is not supported: set 'input_reference' for the first image", param=rejected_field
        )


def _build_body(spec: video_backend.VideoSpec, model: HailuoModel) -> ProviderRequest:
    body: Body = {"model": spec.model, "prompt": spec.prompt, **_parse_flags(spec.extra, _FLAG_FIELDS)}
    if spec.size is not None:
        body["resolution"] = model.sizes[spec.size][0]
    if spec.seconds is not None:
        if body.get("resolution") == _FULL_HD_RESOLUTION and spec.seconds != _FULL_HD_SECONDS:
            raise InvalidRequest(f"'seconds' must be {_FULL_HD_SECONDS} for videos of that size", param="seconds")
        body["duration"] = spec.seconds
    if spec.reference is not None:
        body["first_frame_image"] = _build_image(spec.reference)
    return ProviderRequest(body, path=TASKS_PATH, starts_task=True)


def _build_h3_body(spec: video_backend.VideoSpec, model: HailuoModel) -> ProviderRequest:
    """Build the request for H3, which requires a length, a resolution and, without an image, a ratio."""
    resolution, ratio = model.sizes[spec.size or next(iter(model.sizes))]
    content: list[Body] = [{"type": "text", "text": spec.prompt}]
    if spec.reference is not None:
        image = {"type": "image_url", "image_url": {"url": _build_image(spec.reference)}, "role": "first_frame"}
        content.append(image)
    body: Body = {
        "model": spec.model,
        "content": content,
        "resolution": resolution,
        "ratio": ratio if spec.reference is None else "adaptive",
        "duration": spec.seconds or model.seconds[0],
        **_parse_flags(spec.extra, _H3_FLAG_FIELDS),
    }
    return ProviderRequest(body, path=_H3_TASKS_PATH, starts_task=True)


def _parse_flags(extra_fields: Body, names: tuple[str, ...]) -> Body:
    return {name: parse_field(extra_fields[name]) for name in names if extra_fields.get(name) not in (None, "")}


def _build_image(reference: Reference) -> str | InlineUpload:
    return build_data_url(reference.upload) if reference.upload is not None else reference.url or ""


def _parse_task(value: Body, secrets: Secrets) -> video_backend.TaskStatus:
    code, status = _parse_code(value), value.get("status")
    state = _STATES.get(status) if isinstance(status, str) else None
    if state == "failed" or code in _BLOCK_CODES:
        message = as_object(value.get("base_resp")).get("status_msg") if code else None
        return video_backend.TaskStatus("failed", error=video_backend.build_error(code or None, message, secrets))
    if code or not isinstance(status, str):
        raise video_backend.make_reported_error(value, secrets)
    if state != "completed":
        return video_backend.TaskStatus(state)
    clue = _read_id(value.get("file_id"))
    if clue is None:
        raise ProviderBadResponse("The provider's task is done, and has no video")
    return video_backend.TaskStatus(state, progress=100, clue=clue)


def _parse_h3_task(task: Body, secrets: Secrets) -> video_backend.TaskStatus:
    status = task.get("status")
    if not isinstance(status, str):
        raise ProviderBadResponse("The provider's answer does not contain the task")
    state = _STATES.get(status)
    if state == "failed":
        error = as_object(task.get("error"))
        message = error.get("message") or _END_MESSAGES.get(status)
        return video_backend.TaskStatus(state, error=video_backend.build_error(error.get("code"), message, secrets))
    if state != "completed":
        return video_backend.TaskStatus(state)
    url = find_url(as_object(task.get("content")).get("url"))
    if url is None:
        raise ProviderBadResponse("The provider's task is done, and has no video")
    return video_backend.TaskStatus(state, progress=100, clue=url, seconds=_parse_seconds(task.get("duration")))


def _parse_seconds(value: object) -> str | None:
    return str(value) if type(value) is int and 0 < value <= _MAX_SECONDS else None


def _read_id(value: object) -> str | None:
    text = str(value) if type(value) is int and value > 0 else value
    return text if isinstance(text, str) and 0 < len(text) <= video_backend.MAX_ID_CHARS else None


def _parse_code(value: object) -> int:
    fields = as_object(value)
    code = as_object(fields.get("base_resp")).get("status_code")
    if type(code) is int:
        return code
    match = _TRAILING_CODE_PATTERN.search(as_text(as_object(fields.get("error")).get("message"))[-16:])
    return int(match[1]) if match else 0
