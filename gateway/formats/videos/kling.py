"""Videos of Kling: tasks, in two API versions of the same server.

kling.ai/document-api (each page also with ``.md`` appended):
    api/get-started/authentication, error-codes
    api/video/3-0-omni/text-to-video, image-to-video, video-omni; 3-0-turbo/…; 2-6/…; o1/video-omni: the model is in the
        path, options are in ``settings``, and ``GET /tasks`` polls every task. Needs only an API key.
    api/video/3-0-omni/text-to-video/legacy, image-to-video/legacy: ``POST /v1/videos/text2video`` and ``image2video``,
        with a ``model_name``; each path polls only its own tasks. Answers do not contain the path, so the gateway puts
        it into its own task id, which the provider repeats in every answer. Also works with an AccessKey.
    guides/capability-map/video: lengths and resolutions. Models before ``kling-v2-5-turbo`` ended on 15 September 2026.

A model accepts a resolution and an aspect ratio, which are both represented by a size, because the pixels of a square
are not documented. A video that starts from an image has the image's aspect ratio. Sound costs extra, so a request for
sound is rejected; some models always generate it. A failed task costs nothing.

Not supported: models whose documentation was not available (``/text-to-video/kling-2.5-turbo``, ``kling-v3-omni`` and
``kling-video-o1`` of the older version); last frames, elements, voices, masks and storyboards, which the OpenAI API
format cannot express; progress, cancelling and deleting, which are not documented; the reported length, which is no
whole number.
"""

from collections.abc import Iterator, Mapping
from typing import Any
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
from gateway.formats.videos.backend import (
    BLOCKED_TEXT,
    ContentLocation,
    ProviderTask,
    TaskState,
    TaskStatus,
    Variant,
    VideoBackend,
    VideoSpec,
    build_error,
    check_size_and_seconds,
    make_reported_error,
    parse_code_error,
    parse_id,
    parse_object,
)
from gateway.formats.wire.json_values import as_object, as_text, list_objects, loads_or_none
from gateway.formats.wire.request_body import Body, InlineUpload
from gateway.frozen import frozen

_LONG_SECONDS = (5, 3, 4, *range(6, 16))
_SHORT_SECONDS = (5, 10)
"""Lengths in seconds; the first is the default."""
_RATIOS = {"16:9": (16, 9), "9:16": (9, 16), "1:1": (1, 1)}
_TIERS = {"720p": 720, "1080p": 1080, "4k": 2160}
"""Resolutions -> pixels of the shorter side."""


def _map_sizes(tiers: tuple[str, ...]) -> Mapping[str, tuple[str, str]]:
    return {
        f"{_TIERS[tier] * width // min(width, height)}x{_TIERS[tier] * height // min(width, height)}": (ratio, tier)
        for tier in tiers
        for ratio, (width, height) in _RATIOS.items()
    }


_HD_SIZES = _map_sizes(("720p", "1080p"))
_ALL_SIZES = _map_sizes(("720p", "1080p", "4k"))


@frozen
class KlingModel:
    """The options of a model.

    Attributes:
        is_older: whether the model uses the older API version.
        is_omni: whether a single path accepts all kinds of input in ``contents``.
        takes_several_shots: whether the client may choose between one shot and several.
    """

    seconds: tuple[int, ...]
    sizes: Mapping[str, tuple[str, str]]
    is_older: bool = False
    is_omni: bool = False
    takes_several_shots: bool = False


MODELS: Mapping[str, KlingModel] = {
    "kling-3.0": KlingModel(_LONG_SECONDS, _ALL_SIZES, takes_several_shots=True),
    "kling-3.0-turbo": KlingModel(_LONG_SECONDS, _HD_SIZES),
    "kling-3.0-omni": KlingModel(_LONG_SECONDS, _ALL_SIZES, is_omni=True, takes_several_shots=True),
    "kling-o1": KlingModel(_SHORT_SECONDS, _HD_SIZES, is_omni=True),
    "kling-2.6": KlingModel(_SHORT_SECONDS, _HD_SIZES),
    "kling-v3": KlingModel(_LONG_SECONDS, _ALL_SIZES, is_older=True),
    "kling-v2-6": KlingModel(_SHORT_SECONDS, _HD_SIZES, is_older=True),
    "kling-v2-5-turbo": KlingModel(_SHORT_SECONDS, _HD_SIZES, is_older=True),
}
TEXT_TO_VIDEO_PATH = "/v1/videos/text2video"
_PATHS_BY_KIND: Mapping[str, str] = {"text2video": TEXT_TO_VIDEO_PATH, "image2video": "/v1/videos/image2video"}
"""Paths of the older version by their last part. Each path has its own tasks."""
_MODES_BY_TIER = {"720p": "std", "1080p": "pro", "4k": "4k"}
_OLD_TEXT_FIELDS = ("negative_prompt", "camera_control")
_REJECTED_FIELDS = (
    "image", "image_tail", "first_frame", "last_frame", "contents", "settings", "element_list", "voice_list",
    "static_mask", "dynamic_masks", "shot_type", "multi_prompt", "mode",
)  # fmt: skip
_SOUND_FIELDS = ("sound", "audio")
_EMPTY_VALUES = (None, False, "", "off", "false")
"""Values that request nothing."""
_STATES: dict[str, TaskState] = {
    "submitted": "queued",
    "processing": "processing",
    "succeed": "completed",
    "succeeded": "completed",
    "failed": "failed",
}
_STATUSES_BY_CODE: Mapping[int, int] = {
    **dict.fromkeys((1000, 1001, 1002, 1003, 1004), 401),
    **dict.fromkeys((1100, 1101, 1102), 402),
    **dict.fromkeys((1103, 1304), 403),
    **dict.fromkeys((1200, 1201), 400),
    **dict.fromkeys((1202, 1203), 404),
    **dict.fromkeys((1302, 1303), 429),
    **dict.fromkeys((5000, 5001, 5002), 500),
}
"""Error codes -> HTTP statuses. Kling's own status is ambiguous: 429 can mean an account without credit."""
_OK_STATUS = 200
_BLOCK_CODES = (1300, 1301)
_BLOCK_PHRASES = ("risk control", "风控")
"""Texts in the message of a task that failed because of a content filter."""


class KlingVideoBackend(VideoBackend):
    """Videos from Kling. In the older version a task's id is prefixed with the last part of its path."""

    __slots__ = ()

    def submit(self, spec: VideoSpec) -> ProviderRequest:
        model = find_model(MODELS, spec.model)
        _check_spec(spec, model)
        return _build_older_request(spec, model) if model.is_older else _build_request(spec, model)

    def parse_submit_answer(self, raw: bytes, secrets: Secrets) -> TaskStatus:
        value = parse_object(raw)
        if _parse_code(value):
            raise self.parse_error_answer(_OK_STATUS, raw, secrets)
        data = value.get("data")
        if not isinstance(data, dict):
            raise ProviderBadResponse("The provider's answer has no task")
        if "task_id" not in data:
            return attrs.evolve(_parse_task(data, secrets), id=parse_id(data.get("id")))
        return attrs.evolve(_parse_task(data, secrets), id=f"{_parse_kind(data)}:{parse_id(data['task_id'])}")

    def parse_error_answer(
        self, status: int, raw: bytes, secrets: Secrets, *, provider_retry_after_s: float | None = None
    ) -> ProviderError:
        value = loads_or_none(raw)
        code = _parse_code(value)
        if code in _BLOCK_CODES:
            return ContentBlocked(build_verdict(BLOCKED_TEXT, find_message(value, secrets), secrets))
        return parse_code_error(
            status, raw, secrets, code=code, statuses=_STATUSES_BY_CODE, provider_retry_after_s=provider_retry_after_s
        )

    def poll(self, task: ProviderTask) -> ProviderRequest:
        kind, _, older_id = task.id.partition(":")
        if kind in _PATHS_BY_KIND:
            return ProviderRequest(
                method="GET", path=f"{_PATHS_BY_KIND[kind]}/{quote(older_id, safe='')}", repeatable=True
            )
        return ProviderRequest(method="GET", path=f"/tasks?task_ids={quote(task.id, safe='')}", repeatable=True)

    def parse_poll_answer(self, raw: bytes, secrets: Secrets) -> TaskStatus:
        """Parse the task's state. Raises ``ProviderError`` for an unsuccessful answer, which has no state."""
        value = parse_object(raw)
        if _parse_code(value):
            raise make_reported_error(value, secrets)
        data = value.get("data")
        task = data[0] if isinstance(data, list) and len(data) == 1 else data
        if not isinstance(task, dict) or not ("status" in task or "task_status" in task):
            raise ProviderBadResponse("The provider's answer does not contain the task")
        return _parse_task(task, secrets)

    def find_content(self, task: ProviderTask, variant: Variant) -> ContentLocation | ProviderRequest | None:
        """Return the video's URL, which is public and valid for thirty days.

        Returns None for another variant, and for a task without a clue.
        """
        return ContentLocation(url=task.clue) if variant == "video" and task.clue is not None else None


def _check_spec(spec: VideoSpec, model: KlingModel) -> None:
    check_size_and_seconds(spec, model.sizes, model.seconds)
    for name in _list_rejected_fields(model):
        if spec.extra.get(name) not in _EMPTY_VALUES:
            raise InvalidRequest(f"'{name}' is not supported", param=name)
    for name in _SOUND_FIELDS:
        if spec.extra.get(name) not in _EMPTY_VALUES:
            raise InvalidRequest(f"'{name}' is not supported: audio is priced separately", param=name)


def _list_rejected_fields(model: KlingModel) -> Iterator[str]:
    yield from _REJECTED_FIELDS
    yield "multi_shot" if model.is_older else "negative_prompt"  # replaces the prompt; is part of the prompt


def _build_request(spec: VideoSpec, model: KlingModel) -> ProviderRequest:
    settings: Body = {}
    if spec.size is not None:
        ratio, settings["resolution"] = model.sizes[spec.size]
        if spec.reference is None:
            settings["aspect_ratio"] = ratio
    if spec.seconds is not None:
        settings["duration"] = spec.seconds
    wants_several_shots = parse_field(spec.extra.get("multi_shot"))
    if model.takes_several_shots and isinstance(wants_several_shots, bool):
        settings["multi_shot"] = wants_several_shots
    body: Body = {"settings": settings} if settings else {}
    if spec.reference is None and not model.is_omni:
        return ProviderRequest({"prompt": spec.prompt, **body}, path=f"/text-to-video/{spec.model}", starts_task=True)
    contents: list[Body] = [{"type": "prompt", "text": spec.prompt}]
    if spec.reference is not None:
        contents.append({"type": "first_frame", "url": _build_image(spec.reference)})
    path = "omni-video" if model.is_omni else "image-to-video"
    return ProviderRequest({"contents": contents, **body}, path=f"/{path}/{spec.model}", starts_task=True)


def _build_older_request(spec: VideoSpec, model: KlingModel) -> ProviderRequest:
    kind = "text2video" if spec.reference is None else "image2video"
    body: Body = {"model_name": spec.model, "prompt": spec.prompt, "external_task_id": f"{kind}-{spec.mark}"}
    body |= {name: spec.extra[name] for name in _OLD_TEXT_FIELDS if spec.extra.get(name) not in (None, "")}
    cfg_scale = parse_field(spec.extra.get("cfg_scale"))
    if cfg_scale is not None and not spec.model.startswith("kling-v2"):  # those do not know the field
        body["cfg_scale"] = cfg_scale
    if spec.size is not None:
        ratio, tier = model.sizes[spec.size]
        body["mode"] = _MODES_BY_TIER[tier]
        if spec.reference is None:
            body["aspect_ratio"] = ratio
    if spec.seconds is not None:
        body["duration"] = str(spec.seconds)
    if spec.reference is not None:
        body["image"] = _build_image(spec.reference)
    return ProviderRequest(body, path=_PATHS_BY_KIND[kind], starts_task=True)


def _build_image(reference: Reference) -> str | InlineUpload:
    if reference.upload is not None:
        return InlineUpload(reference.upload)
    url = reference.url or ""
    if not url.startswith("data:"):
        return url
    _, _, data = url.partition(";base64,")
    if not data:
        raise InvalidRequest("'input_reference' must be a data: URL of an image in base64", param="input_reference")
    return data


def _parse_code(value: object) -> int:
    code: Any = value.get("code") if isinstance(value, dict) else None
    return code if type(code) is int else 0


def _parse_kind(task: Body) -> str:
    kind = as_text(as_object(task.get("task_info")).get("external_task_id")).partition("-")[0]
    return kind if kind in _PATHS_BY_KIND else "text2video"


def _parse_task(task: Body, secrets: Secrets) -> TaskStatus:
    status = task.get("status", task.get("task_status"))
    state = _STATES.get(status) if isinstance(status, str) else None
    if state == "failed":
        message = task.get("message", task.get("task_status_msg"))
        is_block = isinstance(message, str) and any(phrase in message.lower() for phrase in _BLOCK_PHRASES)
        return TaskStatus(state, error=build_error("content_filter" if is_block else None, message, secrets))
    if state != "completed":
        return TaskStatus(state)
    url = next(_list_urls(task), None)
    if url is None:
        raise ProviderBadResponse("The provider's task is done, and has no video")
    return TaskStatus(state, progress=100, clue=url)


def _list_urls(task: Body) -> Iterator[str]:
    videos = as_object(task.get("task_result")).get("videos")
    for output in [*list_objects(task.get("outputs")), *list_objects(videos)]:
        url = find_url(output.get("url"))
        if output.get("type", "video") == "video" and url is not None:
            yield url
