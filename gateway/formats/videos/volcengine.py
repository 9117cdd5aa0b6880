"""Videos of Volcengine Ark (Seedance), and of BytePlus ModelArk: tasks, polled until they end.

Create volcengine.com/docs/82379/1520757, docs.byteplus.com/en/docs/ModelArk/1520757 (fields, lengths, a table of sizes)
Poll   volcengine.com/docs/82379/1521309 (states, answers)
Delete volcengine.com/docs/82379/1521720: DELETE removes a waiting task from the queue, is rejected for a running one
and deletes one that has ended.
Errors volcengine.com/docs/82379/1299023

The price depends on pixels and seconds, and the prompt can set them too: ``--dur 12`` in a prompt sets the length, so
such a prompt is rejected. Rejected fields: ``generate_audio``, ``service_tier``, ``draft``, ``frames``, ``tools`` and
``output_format``, which change the price or the result, ``callback_url``, ``priority``, and ``return_last_frame``. Not
supported: a last frame, several images, input videos and sounds, and ids of endpoints (``ep-…``) instead of models,
because the model behind them is unknown.
"""

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Literal

import attrs

from gateway.domain.video import MAX_SECONDS
from gateway.errors import InvalidRequest, ProviderBadResponse
from gateway.formats.errors.openai import Secrets
from gateway.formats.images.backend import ProviderRequest
from gateway.formats.images.task import parse_field
from gateway.formats.videos.backend import (
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
    parse_id,
    parse_message,
    parse_object,
    parse_video_url,
)
from gateway.formats.wire.json_values import as_object
from gateway.formats.wire.request_body import Body
from gateway.frozen import frozen

TASKS_PATH = "/contents/generations/tasks"
_OPEN_STATES: Mapping[str, Literal["queued", "processing"]] = {"queued": "queued", "running": "processing"}
_STOP_MESSAGES_BY_STATE: Mapping[str, str] = {
    "cancelled": "The task was cancelled at the provider",
    "expired": "The provider gave the task up after its time",
}
_EXTRA_FIELDS = ("seed", "camera_fixed", "watermark")
"""Fields that a client may set beside those of the OpenAI API format."""
_FIXED_FIELDS: Mapping[str, object] = {
    "generate_audio": True,
    "service_tier": "default",
    "draft": False,
    "frames": None,
    "tools": None,
    "output_format": "mp4",
    "callback_url": None,
    "priority": 0,
    "return_last_frame": False,
    "content": None,
}
"""Fields that are rejected unless they have the value given here, which applies anyway."""
_COMMAND_PATTERN = re.compile(
    "--[\\s\u200b-\u200f\u2060\ufeff]*(resolution|rs|ratio|rt|duration|dur|frames|framespersecond|fps)(?![a-z])",
    re.IGNORECASE,
)

SeedanceSizes = Mapping[str, tuple[str, str]]
"""Sizes -> resolution and aspect ratio."""
_RATIOS = ("16:9", "9:16", "1:1", "4:3", "3:4", "21:9")


def _map_sizes(*tiers: tuple[str, str]) -> SeedanceSizes:
    return {size: (tier, ratio) for tier, sizes in tiers for size, ratio in zip(sizes.split(), _RATIOS, strict=True)}


_480P_SIZES = ("480p", "864x496 496x864 640x640 752x560 560x752 992x432")
_720P_SIZES = ("720p", "1280x720 720x1280 960x960 1112x834 834x1112 1470x630")
_1080P_SIZES = ("1080p", "1920x1080 1080x1920 1440x1440 1664x1248 1248x1664 2206x946")
_4K_SIZES = ("4k", "3840x2160 2160x3840 2880x2880 3326x2494 2494x3326 4398x1886")
_FIRST_480P_SIZES = ("480p", "864x480 480x864 640x640 736x544 544x736 960x416")
_FIRST_720P_SIZES = ("720p", "1248x704 704x1248 960x960 1120x832 832x1120 1504x640")
_FIRST_1080P_SIZES = ("1080p", "1920x1088 1088x1920 1440x1440 1664x1248 1248x1664 2176x928")
_LATEST_480P_SIZES = ("480p", "854x480 480x854 640x640 752x560 560x752 992x432")


@frozen
class SeedanceModel:
    """Options of a model. Defaults come first in ``seconds`` and ``sizes``.

    Attributes:
        takes_image: whether the model can start from an image.
        takes_text: whether the model can start from text alone.
        crops_image: whether the model crops an image to the requested ratio. If not, the video has the image's ratio.
    """

    seconds: tuple[int, ...]
    sizes: SeedanceSizes
    takes_image: bool = True
    takes_text: bool = True
    crops_image: bool = True


def _list_seconds(min_seconds: int, max_seconds: int) -> tuple[int, ...]:
    return (5, *(seconds for seconds in range(min_seconds, max_seconds + 1) if seconds != 5))  # noqa: PLR2004


_FIRST_MODEL = SeedanceModel(_list_seconds(2, 12), _map_sizes(_FIRST_1080P_SIZES, _FIRST_720P_SIZES, _FIRST_480P_SIZES))
_LITE_MODEL = attrs.evolve(_FIRST_MODEL, sizes=_map_sizes(_FIRST_720P_SIZES, _FIRST_480P_SIZES, _FIRST_1080P_SIZES))
_SECOND_MODEL = SeedanceModel(_list_seconds(4, 15), _map_sizes(_720P_SIZES, _480P_SIZES))
MODELS: Mapping[str, SeedanceModel] = {
    "*seedance-2-5*": SeedanceModel(
        _list_seconds(4, 30), _map_sizes(_720P_SIZES, _LATEST_480P_SIZES), crops_image=False
    ),
    "*seedance-2-0-fast*": _SECOND_MODEL,
    "*seedance-2-0-mini*": _SECOND_MODEL,
    "*seedance-2-0*": attrs.evolve(_SECOND_MODEL, sizes=_map_sizes(_720P_SIZES, _480P_SIZES, _1080P_SIZES, _4K_SIZES)),
    "*seedance-1-5-pro*": SeedanceModel(_list_seconds(4, 12), _map_sizes(_720P_SIZES, _480P_SIZES, _1080P_SIZES)),
    "*seedance-1-0-pro*": _FIRST_MODEL,
    "*seedance-1-0-lite-t2v*": attrs.evolve(_LITE_MODEL, takes_image=False),
    "*seedance-1-0-lite-i2v*": attrs.evolve(_LITE_MODEL, takes_text=False),
}
"""Models by globs of their names; the first match counts."""


def _find_model(name: object) -> SeedanceModel | None:
    if not isinstance(name, str):
        return None
    return next((model for model_pattern, model in MODELS.items() if fnmatchcase(name, model_pattern)), None)


class VolcengineVideoBackend(VideoBackend):
    """Videos from Volcengine."""

    __slots__ = ()

    def submit(self, spec: VideoSpec) -> ProviderRequest:
        _check_prompt(spec.prompt)
        check_fixed_fields(spec.extra, _FIXED_FIELDS)
        model = _find_model(spec.model)
        if model is not None:
            _check_spec(spec, model)
        content: list[Body] = [{"type": "text", "text": spec.prompt}]
        if spec.reference is not None:
            image = {"url": build_reference(spec.reference)}
            content.append({"type": "image_url", "image_url": image, "role": "first_frame"})
        body: Body = {"model": spec.model, "content": content, **_build_size(spec, model)}
        if spec.seconds is not None:
            body["duration"] = spec.seconds
        for name in _EXTRA_FIELDS:
            if spec.extra.get(name) is not None:
                body[name] = parse_field(spec.extra[name])
        return ProviderRequest(body, path=TASKS_PATH, starts_task=True)

    def parse_submit_answer(self, raw: bytes, secrets: Secrets) -> TaskStatus:  # noqa: ARG002 - there is nothing to mask
        return TaskStatus("queued", id=parse_id(parse_object(raw).get("id")))

    def poll(self, task: ProviderTask) -> ProviderRequest:
        return ProviderRequest(method="GET", path=build_task_path(TASKS_PATH, task), repeatable=True)

    def parse_poll_answer(self, raw: bytes, secrets: Secrets) -> TaskStatus:
        value = parse_object(raw)
        status = value.get("status")
        error = as_object(value.get("error"))
        if not isinstance(status, str):
            raise ProviderBadResponse(f"The provider said nothing of the task: {parse_message(error, secrets)}")
        if status == "succeeded":
            clue = parse_video_url(as_object(value.get("content")).get("video_url"))
            return TaskStatus(
                "completed", clue=clue, seconds=_parse_seconds(value.get("duration")), size=_parse_size(value)
            )
        if status == "failed":
            return TaskStatus("failed", error=build_error(error.get("code"), error.get("message"), secrets))
        if status in _STOP_MESSAGES_BY_STATE:
            return TaskStatus("failed", error=build_error(None, _STOP_MESSAGES_BY_STATE[status], secrets))
        return TaskStatus(_OPEN_STATES.get(status))

    def parse_content_location(self, raw: bytes, secrets: Secrets) -> ContentLocation:  # noqa: ARG002 - there is nothing to mask
        return ContentLocation(url=parse_video_url(as_object(parse_object(raw).get("content")).get("video_url")))

    def cancel(self, task: ProviderTask) -> ProviderRequest | None:
        return ProviderRequest(method="DELETE", path=build_task_path(TASKS_PATH, task), repeatable=True)

    def delete(self, task: ProviderTask) -> ProviderRequest | None:
        """Return the request to delete a task: the same as ``cancel``, which deletes a task that has ended."""
        return self.cancel(task)


def _check_prompt(prompt: str) -> None:
    """Raise ``InvalidRequest`` for a prompt that sets a length or a size, which would not be charged."""
    match = _COMMAND_PATTERN.search(prompt)
    if match is not None:
        message = f"'prompt' must not have '--{match[1]}' in it: the length is said as 'seconds', the size as 'size'"
        raise InvalidRequest(message, param="prompt")


def _check_spec(spec: VideoSpec, model: SeedanceModel) -> None:
    check_reference(spec, takes_image=model.takes_image, needs_image=not model.takes_text)
    if spec.seconds is not None and spec.seconds not in model.seconds:
        raise InvalidRequest(f"'seconds' must be {min(model.seconds)} to {max(model.seconds)}", param="seconds")


def _build_size(spec: VideoSpec, model: SeedanceModel | None) -> Body:
    if spec.size is None:
        return {}
    sizes = model.sizes if model is not None else {}
    if spec.size not in sizes:
        rule = f"must be one of {', '.join(sizes)}" if sizes else "is left to this model"
        raise InvalidRequest(f"'size' {rule}", param="size")
    resolution, ratio = sizes[spec.size]
    keeps_reference_size = spec.reference is not None and model is not None and not model.crops_image
    return {"resolution": resolution, "ratio": "adaptive" if keeps_reference_size else ratio}


def _parse_seconds(value: object) -> str | None:
    return str(value) if type(value) is int and 0 < value <= MAX_SECONDS else None


def _parse_size(value: Body) -> str | None:
    """Return the size that the answer's model has for the answer's resolution and ratio; None if it is unknown."""
    model = _find_model(value.get("model"))
    reported_resolution_and_ratio = (value.get("resolution"), value.get("ratio"))
    return (
        next(
            (
                size
                for size, resolution_and_ratio in model.sizes.items()
                if resolution_and_ratio == reported_resolution_and_ratio
            ),
            None,
        )
        if model is not None
        else None
    )
