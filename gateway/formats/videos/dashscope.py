"""Videos of Alibaba Cloud Model Studio (DashScope): tasks, polled until they end.

Tasks work as for images (``formats/images/dashscope.py``). Fields:
    Wan 2.6 and older, from text      alibabacloud.com/help/en/model-studio/legacy-wan-text-to-video-api-reference
    Wan 2.6 and older, from an image  .../legacy-image-to-video-api-reference
    Wan 2.7                           .../text-to-video-api-reference and .../image-to-video-general-api-reference
Errors: .../error-code. A model that starts from an image gives the video the image's aspect ratio, so it gets only the
resolution of a size. A video's URL and its task are valid for one day. Afterwards the task's state is ``UNKNOWN``,
which does not reveal how the task ended.

Rejected: ``audio``, which changes the price, and inputs other than an image. Not supported: models that start from
videos or from two images (``…-r2v``, ``…-kf2v``, ``…-s2v``, ``…-vace``, ``…-animate-…``, ``…-videoedit``), and Wan 3.0
and HappyHorse, whose documentation was not available.
"""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal

import attrs

from gateway.domain.video import BLOCKED_CODE, MAX_SECONDS, VideoError
from gateway.errors import ContentBlocked, ProviderBadResponse, ProviderError, ProviderRateLimited
from gateway.formats.errors.openai import Secrets, make_credentials_error, write_reason
from gateway.formats.images.backend import ProviderRequest
from gateway.formats.images.dashscope import ACCOUNT_ERROR_CODES
from gateway.formats.images.task import parse_field
from gateway.formats.videos.backend import (
    BLOCKED_TEXT,
    ContentLocation,
    ProviderTask,
    TaskStatus,
    VideoBackend,
    VideoSpec,
    build_error,
    build_reference,
    build_task_path,
    check_fixed_fields,
    check_reference,
    check_size_and_seconds,
    make_refusal_error,
    parse_id,
    parse_message,
    parse_object,
    parse_video_error,
    parse_video_url,
)
from gateway.formats.wire.json_values import as_object, as_text, loads_or_none
from gateway.formats.wire.request_body import Body
from gateway.frozen import frozen

SYNTHESIS_PATH = "/api/v1/services/aigc/video-generation/video-synthesis"
TASKS_PATH = "/api/v1/tasks"
_TASK_HEADER = ("X-DashScope-Async", "enable")
_OPEN_STATES: Mapping[str, Literal["queued", "processing"]] = {"PENDING": "queued", "RUNNING": "processing"}
_PARAMETER_NAMES = ("prompt_extend", "shot_type", "watermark", "seed")
"""Vendor fields that a client may set, in addition to ``negative_prompt`` and the OpenAI API format."""
_FIXED_FIELDS: Mapping[str, object] = {
    "audio": True,
    "audio_url": None,
    "template": None,
    "img_url": None,
    "media": None,
}
"""Fields that are rejected unless they have the value given here, which applies anyway."""
_INFRINGEMENT_CODE = "IPInfringementSuspect"
_CLIENT_ERROR_CODES = ("InvalidParameter", "InvalidURL", "BadRequest")
_NON_FILTER_STATUSES = (401, 402, 429)


SizeTier = Literal["480P", "720P", "1080P"]
WanSizes = Mapping[str, tuple[SizeTier, str]]
"""Sizes -> tier and aspect ratio."""


@frozen
class WanModel:
    """The request form and the output options of a model.

    Attributes:
        seconds: lengths, the default first. A single length is fixed and not sent.
        sizes: sizes, the default first.
        size_form: how a size is sent: literally (``1280*720``), or as its tier with or without the aspect ratio.
        image_field: field of the input image, which is then required; None if images are not accepted.
    """

    seconds: tuple[int, ...]
    sizes: WanSizes
    size_form: Literal["size", "ratio", "tier"] = "size"
    image_field: Literal["img_url", "media"] | None = None


_OLD_SIZES: WanSizes = {
    "1920x1080": ("1080P", "16:9"), "1080x1920": ("1080P", "9:16"), "1440x1440": ("1080P", "1:1"),
    "1632x1248": ("1080P", "4:3"), "1248x1632": ("1080P", "3:4"),
    "1280x720": ("720P", "16:9"), "720x1280": ("720P", "9:16"), "960x960": ("720P", "1:1"),
    "1088x832": ("720P", "4:3"), "832x1088": ("720P", "3:4"),
    "832x480": ("480P", "16:9"), "480x832": ("480P", "9:16"), "624x624": ("480P", "1:1"),
}  # fmt: skip
_NEW_SIZES: WanSizes = {
    "1920x1080": ("1080P", "16:9"), "1080x1920": ("1080P", "9:16"), "1440x1440": ("1080P", "1:1"),
    "1648x1248": ("1080P", "4:3"), "1248x1648": ("1080P", "3:4"),
    "1280x720": ("720P", "16:9"), "720x1280": ("720P", "9:16"), "960x960": ("720P", "1:1"),
    "1104x832": ("720P", "4:3"), "832x1104": ("720P", "3:4"),
}  # fmt: skip


def _pick_sizes(*tiers: SizeTier) -> WanSizes:
    return {size: resolution for tier in tiers for size, resolution in _OLD_SIZES.items() if resolution[0] == tier}


_SECONDS_2_TO_15 = (5, *range(2, 5), *range(6, 16))
_IMAGE_MODEL = WanModel(_SECONDS_2_TO_15, _pick_sizes("1080P", "720P"), "tier", "img_url")
_NEWEST_MODEL = WanModel(_SECONDS_2_TO_15, _NEW_SIZES, "ratio")
_NEWEST_IMAGE_MODEL = WanModel(_SECONDS_2_TO_15, _NEW_SIZES, "tier", "media")
MODELS: Mapping[str, WanModel] = {
    "wan2.7-t2v*": _NEWEST_MODEL,
    "wan2.7-i2v*": _NEWEST_IMAGE_MODEL,
    "wan2.6-t2v*": WanModel((5, 10, 15), _pick_sizes("1080P", "720P")),
    "wan2.6-i2v-us": attrs.evolve(_IMAGE_MODEL, seconds=(5, 10, 15)),
    "wan2.6-i2v*": _IMAGE_MODEL,
    "wan2.5-t2v*": WanModel((5, 10), _pick_sizes("1080P", "720P", "480P")),
    "wan2.5-i2v*": attrs.evolve(_IMAGE_MODEL, seconds=(5, 10), sizes=_pick_sizes("1080P", "720P", "480P")),
    "wan2.2-t2v-plus": WanModel((5,), _pick_sizes("1080P", "480P")),
    "wan2.2-i2v-flash": attrs.evolve(_IMAGE_MODEL, seconds=(5,), sizes=_pick_sizes("720P", "480P", "1080P")),
    "wan2.2-i2v-plus": attrs.evolve(_IMAGE_MODEL, seconds=(5,), sizes=_pick_sizes("1080P", "480P")),
    "wan*2.1-t2v-turbo": WanModel((5,), _pick_sizes("720P", "480P")),
    "wan*2.1-t2v-plus": WanModel((5,), _pick_sizes("720P")),
    "wan*2.1-i2v-turbo": attrs.evolve(_IMAGE_MODEL, seconds=(5, 3, 4), sizes=_pick_sizes("720P", "480P")),
    "wan*2.1-i2v-plus": attrs.evolve(_IMAGE_MODEL, seconds=(5,), sizes=_pick_sizes("720P")),
}
"""Models by globs of their names; the first match counts. Other models are called like the newest ones."""


def _find_model(name: str) -> WanModel:
    known_model = next((model for model_pattern, model in MODELS.items() if fnmatchcase(name, model_pattern)), None)
    return known_model or (_NEWEST_IMAGE_MODEL if "-i2v" in name else _NEWEST_MODEL)


class DashScopeVideoBackend(VideoBackend):
    """Videos from DashScope. Paths are below the server's root."""

    __slots__ = ()

    def submit(self, spec: VideoSpec) -> ProviderRequest:
        model = _find_model(spec.model)
        check_reference(spec, takes_image=model.image_field is not None, needs_image=model.image_field is not None)
        check_size_and_seconds(spec, model.sizes, model.seconds)
        check_fixed_fields(spec.extra, _FIXED_FIELDS)
        source: Body = {"prompt": spec.prompt}
        if spec.extra.get("negative_prompt") is not None:
            source["negative_prompt"] = spec.extra["negative_prompt"]
        if spec.reference is not None:
            image = build_reference(spec.reference)
            is_url_field = model.image_field == "img_url"
            source |= {"img_url": image} if is_url_field else {"media": [{"type": "first_frame", "url": image}]}
        body = {"model": spec.model, "input": source, "parameters": _build_parameters(spec, model)}
        return ProviderRequest(body, path=SYNTHESIS_PATH, starts_task=True, headers=(_TASK_HEADER,))

    def parse_submit_answer(self, raw: bytes, secrets: Secrets) -> TaskStatus:
        value = parse_object(raw)
        output = as_object(value.get("output"))
        if "task_id" not in output and as_text(value.get("code")):
            raise _find_error(value, secrets)
        return TaskStatus(_find_state(output.get("task_status")), id=parse_id(output.get("task_id")))

    def parse_error_answer(
        self, status: int, raw: bytes, secrets: Secrets, *, provider_retry_after_s: float | None = None
    ) -> ProviderError:
        """Parse an error as in the base class, but find an account in arrears and an infringement by their codes."""
        value = as_object(loads_or_none(raw))
        if as_text(value.get("code")) in {"Arrearage", _INFRINGEMENT_CODE} and status not in _NON_FILTER_STATUSES:
            return _find_error(value, secrets)
        return parse_video_error(status, raw, secrets, provider_retry_after_s=provider_retry_after_s)

    def poll(self, task: ProviderTask) -> ProviderRequest:
        return ProviderRequest(method="GET", path=build_task_path(TASKS_PATH, task), repeatable=True)

    def parse_poll_answer(self, raw: bytes, secrets: Secrets) -> TaskStatus:
        value = parse_object(raw)
        output = as_object(value.get("output"))
        status = output.get("task_status")
        if not isinstance(status, str):
            raise ProviderBadResponse(f"The provider said nothing of the task: {parse_message(value, secrets)}")
        if status == "SUCCEEDED":
            usage = as_object(value.get("usage"))
            clue = parse_video_url(output.get("video_url"))
            return TaskStatus("completed", clue=clue, seconds=_parse_seconds(usage), size=_parse_size(usage))
        if status == "FAILED":
            return TaskStatus("failed", error=_build_failure(output, secrets))
        if status == "CANCELED":
            return TaskStatus("failed", error=build_error(None, "The task was cancelled at the provider", secrets))
        return TaskStatus(_find_state(status))

    def parse_content_location(self, raw: bytes, secrets: Secrets) -> ContentLocation:  # noqa: ARG002 - there is nothing to mask
        return ContentLocation(url=parse_video_url(as_object(parse_object(raw).get("output")).get("video_url")))

    def cancel(self, task: ProviderTask) -> ProviderRequest | None:
        return ProviderRequest(path=f"{build_task_path(TASKS_PATH, task)}/cancel", repeatable=True)


def _build_parameters(spec: VideoSpec, model: WanModel) -> Body:
    parameters: Body = {}
    if spec.size is not None:
        tier, ratio = model.sizes[spec.size]
        if model.size_form == "size":
            parameters["size"] = spec.size.replace("x", "*")
        else:
            parameters["resolution"] = tier
        if model.size_form == "ratio":
            parameters["ratio"] = ratio
    if spec.seconds is not None and len(model.seconds) > 1:
        parameters["duration"] = spec.seconds
    for name in _PARAMETER_NAMES:
        if spec.extra.get(name) is not None:
            parameters[name] = parse_field(spec.extra[name])
    return parameters


def _find_state(status: object) -> Literal["queued", "processing"] | None:
    return _OPEN_STATES.get(status) if isinstance(status, str) else None


def _build_failure(output: Body, secrets: Secrets) -> VideoError:
    if as_text(output.get("code")).startswith(_INFRINGEMENT_CODE):
        return VideoError(BLOCKED_CODE, write_reason(output.get("message"), None, secrets))
    return build_error(output.get("code"), output.get("message"), secrets)


def _find_error(value: Body, secrets: Secrets) -> ProviderError:
    code, message = as_text(value.get("code")), write_reason(value.get("message"), None, secrets)
    if code.startswith(_INFRINGEMENT_CODE):
        return ContentBlocked(f"{BLOCKED_TEXT}: {message}")
    if code.startswith(ACCOUNT_ERROR_CODES):
        return make_credentials_error(code[:100], message)
    is_rate_limit = code.startswith("Throttling")
    status = 429 if is_rate_limit else 400 if code.startswith(_CLIENT_ERROR_CODES) else 500
    error = make_refusal_error(code, message, secrets, status)
    if isinstance(error, ProviderRateLimited):
        error.retry_after_s = 1
    return error


def _parse_seconds(usage: Body) -> str | None:
    """Return the video's length in seconds; None if unknown. ``duration`` comes last, because it includes the input."""
    lengths: Iterable[Any] = map(usage.get, ("output_video_duration", "video_duration", "duration"))
    return next((str(int(length)) for length in lengths if _is_whole_length(length)), None)


def _is_whole_length(value: object) -> bool:
    if not isinstance(value, int | float) or type(value) is bool:
        return False
    return 0 < value <= MAX_SECONDS and value == int(value)


def _parse_size(usage: Body) -> str | None:
    size_texts = (usage.get(name) for name in ("size", "video_ratio"))
    candidates = (size_text.replace("*", "x") for size_text in size_texts if isinstance(size_text, str))
    return next((size for size in candidates if size in _OLD_SIZES or size in _NEW_SIZES), None)
