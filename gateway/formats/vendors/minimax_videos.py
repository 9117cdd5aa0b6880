"""Videos of MiniMax, Hailuo: tasks, in two versions of a language.

platform.minimax.io/docs/api-reference:
    video-generation-t2v, -i2v, -query, -download (``files/retrieve``): Hailuo 2.3 and older. Whatever goes wrong, its
        status is 200, and ``base_resp`` has a code; errorcode says what the codes mean.
    video-generation-v2-create, -v2-query, -v2-delete: H3, with statuses that are what they say, and errors in the shape
        of the convention, whose text ends with such a code. A task that waits can be stopped, and one that has ended
        forgotten; of one that runs either wish is refused, and does no harm.

A model is told a resolution, and H3 a shape besides. A picture to start from gives the video its shape. Nobody says how
many pixels 768P and 480P have: sizes stand for them, with 2K as 1440 lines and 768P of Hailuo as 1366x768.

Left out: 512P, which needs a picture, and whose size nobody says; S2V-01, which needs a subject; last frames, reference
videos and sound, templates, for which the convention has no words; ``extra.prompt_expansion_mode`` of H3 Max; progress,
which is not told. There is no word to make a video anew by another prompt (``video_regeneration`` makes it larger).
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import attrs
import orjson

from gateway.domain.video import Reference
from gateway.errors import ContentBlocked, InvalidRequest, ProviderBadResponse, ProviderError
from gateway.formats.content_filter import build_block, parse_words
from gateway.formats.image_backend import ProviderCall
from gateway.formats.image_data import is_web_url
from gateway.formats.image_task import parse_field
from gateway.formats.openai.errors import Secrets
from gateway.formats.request_body import Body, Inline, build_data_url
from gateway.formats.video_backend import (
    MAX_ID_CHARS,
    ContentLocation,
    ProviderTask,
    TaskState,
    TaskStatus,
    Variant,
    VideoSpec,
    build_error,
    parse_id,
    parse_object,
    parse_video_fault,
)

_H3 = "MiniMax-H3"
_RATIOS = {"16:9": (16, 9), "9:16": (9, 16), "1:1": (1, 1), "4:3": (4, 3), "3:4": (3, 4), "21:9": (21, 9)}
_LINES = {"768P": 768, "2K": 1440, "480P": 480}
_FULL = "1080P"
_FULL_SECONDS = 6
"""The only length of videos of that resolution."""


def _list_sizes(*tiers: str) -> Mapping[str, tuple[str, str]]:
    """Sides are even numbers, as films have them."""
    return MappingProxyType(
        {
            f"{_side(_LINES[tier], width, height)}x{_side(_LINES[tier], height, width)}": (tier, ratio)
            for tier in tiers
            for ratio, (width, height) in _RATIOS.items()
        },
    )


def _side(lines: int, this: int, other: int) -> int:
    return lines if this <= other else round(lines * this / other / 2) * 2


@attrs.frozen
class HailuoModel:
    """What a model takes.

    Attributes:
        seconds: the first is the length of whoever names none.
        sizes: each with its resolution and its shape.
        pictures: whether it can start from a picture; ``needs``: it cannot do without.
    """

    seconds: tuple[int, ...]
    sizes: Mapping[str, tuple[str, str]]
    images: bool = True
    needs: bool = False


_HAILUO = HailuoModel((6, 10), MappingProxyType({"1366x768": ("768P", ""), "1920x1080": (_FULL, "")}))
_FIRST = HailuoModel((6,), MappingProxyType({"1280x720": ("720P", "")}))
MODELS: Mapping[str, HailuoModel] = MappingProxyType(
    {
        "MiniMax-H3": HailuoModel((5, 4, *range(6, 16)), _list_sizes("768P", "2K")),
        "MiniMax-H3-Max": HailuoModel((5, *range(6, 16)), _list_sizes("768P", "480P")),
        "MiniMax-Hailuo-2.3": _HAILUO,
        "MiniMax-Hailuo-2.3-Fast": attrs.evolve(_HAILUO, needs=True),
        "MiniMax-Hailuo-02": _HAILUO,
        "T2V-01": attrs.evolve(_FIRST, images=False),
        "T2V-01-Director": attrs.evolve(_FIRST, images=False),
        "I2V-01": attrs.evolve(_FIRST, needs=True),
        "I2V-01-Director": attrs.evolve(_FIRST, needs=True),
        "I2V-01-live": attrs.evolve(_FIRST, needs=True),
    },
)
TASKS = "/v1/video_generation"
_QUERY = "/v1/query/video_generation?task_id="
_FILE = "/v1/files/retrieve?file_id="
_TASKS_2 = "/v2/video_generation"
_QUERY_2 = "/v2/query/video_generation/"
_FLAGS = ("prompt_optimizer", "fast_pretreatment")
_FLAGS_2 = ("aigc_watermark",)
_UNSAYABLE = ("first_frame_image", "last_frame_image", "subject_reference", "content")
_STATES: dict[str, TaskState] = {
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
_ENDINGS = MappingProxyType(
    {"cancelled": "The provider cancelled the task", "expired": "The provider let the task expire"},
)
"""``expired`` is told on platform.minimaxi.com, "video-generation-v2-delete", as a state in which a task has ended."""
_STATUS = MappingProxyType(
    {
        **dict.fromkeys((1004, 2049), 401),
        **dict.fromkeys((1008, 2056), 402),
        **dict.fromkeys((1002, 1039, 1041, 2045), 429),
        **dict.fromkeys((1042, 2013), 400),
        **dict.fromkeys((1000, 1001, 1024, 1033), 500),
    },
)
"""What each code means."""
_BLOCKS = (1026, 1027)
"""What was asked for, and what came of it."""
_GOOD = 200
_CODE_IN_TEXT = re.compile(r"\((\d{4})\)\s*\Z", re.ASCII)
_MOST_SECONDS = 600
_MAX_URL = 4_096


class MiniMaxVideoBackend:
    """A clue is a file's id, for which an address is asked; H3 gives a new one each time."""

    __slots__ = ()

    takes_urls = True

    def submit(self, shot: VideoSpec) -> ProviderCall:
        """One video, in the version of its model. Raises ``InvalidRequest``."""
        model = MODELS.get(shot.model)
        if model is None:
            raise InvalidRequest(f"The provider's models are {', '.join(MODELS)}", param="model")
        _check(shot, model)
        return _build_2(shot, model) if _is_2(shot.model) else _write(shot, model)

    def parse_submitted(self, raw: bytes, secrets: Secrets) -> TaskStatus:
        """A task. Raises what its code says where that is no success."""
        value = parse_object(raw)
        if _parse_code(value) or "error" in value:
            raise _find_fault(_GOOD, raw, secrets)
        return TaskStatus("queued", parse_id(_read_text(value.get("task_id"))))

    def parse_refused(
        self, status: int, raw: bytes, secrets: Secrets, *, provider_retry_after_s: float | None = None
    ) -> ProviderError:
        """By its code, where there is one."""
        return _find_fault(status, raw, secrets, provider_retry_after_s=provider_retry_after_s)

    def poll(self, task: ProviderTask) -> ProviderCall:
        """Ask after it."""
        path = _QUERY_2 if _is_2(task.model) else _QUERY
        return ProviderCall(method="GET", path=path + quote(task.id, safe=""), passing=True)

    def parse_polled(self, raw: bytes, secrets: Secrets) -> TaskStatus:
        """What has become of it. An error is no verdict, except where it is the filter's."""
        value = parse_object(raw)
        task = value.get("task")
        return _parse_task_2(task, secrets) if isinstance(task, dict) else _parse_task(value, secrets)

    def find_content(self, task: ProviderTask, variant: Variant) -> ContentLocation | ProviderCall | None:
        """Its address is asked for: it is good for some hours."""
        if variant != "video" or task.clue is None:
            return None
        if _is_2(task.model):
            return self.poll(task)
        return ProviderCall(method="GET", path=_FILE + quote(task.clue, safe=""), passing=True)

    def read_content(self, raw: bytes, secrets: Secrets) -> ContentLocation:
        """An address for everybody."""
        value = parse_object(raw)
        if _parse_code(value):
            raise ProviderBadResponse(_build_words(value, secrets))
        task = value.get("task")
        holder = task.get("content") if isinstance(task, dict) else value.get("file")
        url = _find_url(holder.get("url") or holder.get("download_url")) if isinstance(holder, dict) else None
        if url is None:
            raise ProviderBadResponse("The provider does not say where its video is")
        return ContentLocation(url=url)

    def remix(self, task: ProviderTask, shot: VideoSpec) -> ProviderCall | None:  # noqa: ARG002 - nothing is offered
        """No words for it."""
        return None

    def cancel(self, task: ProviderTask) -> ProviderCall | None:
        """Of H3, one that waits."""
        return self.delete(task)

    def delete(self, task: ProviderTask) -> ProviderCall | None:
        """Of H3, one that has ended."""
        if not _is_2(task.model):
            return None
        return ProviderCall(method="DELETE", path=f"{_TASKS_2}/{quote(task.id, safe='')}", passing=True)


def _is_2(model: str) -> bool:
    return model.startswith(_H3)


def _check(shot: VideoSpec, model: HailuoModel) -> None:
    """Raise ``InvalidRequest`` for what the model does not make, or the convention says in other words."""
    if shot.reference is not None and not model.images:
        raise InvalidRequest("The model takes no picture to start from", param="input_reference")
    if shot.reference is None and model.needs:
        raise InvalidRequest("The model needs a picture to start from", param="input_reference")
    if shot.size is not None and shot.size not in model.sizes:
        raise InvalidRequest(f"'size' must be one of {', '.join(model.sizes)}", param="size")
    if shot.seconds is not None and shot.seconds not in model.seconds:
        allowed = ", ".join(map(str, sorted(model.seconds)))
        raise InvalidRequest(f"'seconds' must be one of {allowed}", param="seconds")
    stray = next((name for name in _UNSAYABLE if shot.extra.get(name) not in (None, "")), None)
    if stray is not None:
        raise InvalidRequest(f"'{stray}' is not taken: a picture to start from is 'input_reference'", param=stray)


def _write(shot: VideoSpec, model: HailuoModel) -> ProviderCall:
    said: Body = {"model": shot.model, "prompt": shot.prompt, **_parse_flags(shot.extra, _FLAGS)}
    if shot.size is not None:
        said["resolution"] = model.sizes[shot.size][0]
    if shot.seconds is not None:
        if said.get("resolution") == _FULL and shot.seconds != _FULL_SECONDS:
            raise InvalidRequest(f"'seconds' must be {_FULL_SECONDS} for videos of that size", param="seconds")
        said["duration"] = shot.seconds
    if shot.reference is not None:
        said["first_frame_image"] = _build_image(shot.reference)
    return ProviderCall(said, path=TASKS, begins=True)


def _build_2(shot: VideoSpec, model: HailuoModel) -> ProviderCall:
    """Length, resolution and, without a picture, a shape are to be said here."""
    resolution, ratio = model.sizes[shot.size or next(iter(model.sizes))]
    content: list[Body] = [{"type": "text", "text": shot.prompt}]
    if shot.reference is not None:
        image = {"type": "image_url", "image_url": {"url": _build_image(shot.reference)}, "role": "first_frame"}
        content.append(image)
    said: Body = {
        "model": shot.model,
        "content": content,
        "resolution": resolution,
        "ratio": ratio if shot.reference is None else "adaptive",
        "duration": shot.seconds or model.seconds[0],
        **_parse_flags(shot.extra, _FLAGS_2),
    }
    return ProviderCall(said, path=_TASKS_2, begins=True)


def _parse_flags(extra: Body, names: tuple[str, ...]) -> Body:
    return {name: parse_field(extra[name]) for name in names if extra.get(name) not in (None, "")}


def _build_image(reference: Reference) -> str | Inline:
    """An address, which may be a ``data:`` URL."""
    return build_data_url(reference.upload) if reference.upload is not None else reference.url or ""


def _parse_task(value: Body, secrets: Secrets) -> TaskStatus:
    code, word = _parse_code(value), value.get("status")
    if word == "Fail" or code in _BLOCKS:
        base = value.get("base_resp")
        message = base.get("status_msg") if code and isinstance(base, dict) else None
        return TaskStatus("failed", error=build_error(code or None, message, secrets))
    if code or not isinstance(word, str):
        raise ProviderBadResponse(_build_words(value, secrets))
    state = _STATES.get(word)
    if state != "completed":
        return TaskStatus(state)
    clue = _read_text(value.get("file_id"))
    if clue is None:
        raise ProviderBadResponse("The provider's task is done, and has no video")
    return TaskStatus(state, progress=100, clue=clue)


def _parse_task_2(task: Body, secrets: Secrets) -> TaskStatus:
    word = task.get("status")
    if not isinstance(word, str):
        raise ProviderBadResponse("The provider's answer says nothing of the task")
    state = _STATES.get(word)
    if state == "failed":
        error = task.get("error")
        told = error if isinstance(error, dict) else {}
        message = told.get("message") or _ENDINGS.get(word)
        return TaskStatus(state, error=build_error(told.get("code"), message, secrets))
    if state != "completed":
        return TaskStatus(state)
    content = task.get("content")
    url = _find_url(content.get("url")) if isinstance(content, dict) else None
    if url is None:
        raise ProviderBadResponse("The provider's task is done, and has no video")
    return TaskStatus(state, progress=100, clue=url, seconds=_parse_seconds(task.get("duration")))


def _parse_seconds(value: object) -> str | None:
    return str(value) if type(value) is int and 0 < value <= _MOST_SECONDS else None


def _read_text(value: object) -> str | None:
    """An id, which some answers have as a number."""
    text = str(value) if type(value) is int and value > 0 else value
    return text if isinstance(text, str) and 0 < len(text) <= MAX_ID_CHARS else None


def _find_url(value: object) -> str | None:
    return value if isinstance(value, str) and len(value) <= _MAX_URL and is_web_url(value) else None


def _parse_code(value: object) -> int:
    """The code of an answer; 0, success, also where there is none."""
    if not isinstance(value, dict):
        return 0
    base: Any = value.get("base_resp")
    code = base.get("status_code") if isinstance(base, dict) else None
    if type(code) is int:
        return code
    error: Any = value.get("error")
    message = error.get("message") if isinstance(error, dict) else None
    found = _CODE_IN_TEXT.search(message[-16:]) if isinstance(message, str) else None
    return int(found[1]) if found else 0


def _build_words(value: object, secrets: Secrets) -> str:
    return f"The provider reported an error: {parse_words(value, secrets) or 'it gave no reason'}"


def _find_fault(
    status: int, raw: bytes, secrets: Secrets, *, provider_retry_after_s: float | None = None
) -> ProviderError:
    """Of H3 the status is what counts, and 422 is the filter's; of the others, whose status is good, the code."""
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        value = None
    code = _parse_code(value)
    kind = value.get("error") if isinstance(value, dict) else None
    sensitive = isinstance(kind, dict) and kind.get("type") == "unprocessable_entity_error"
    if code in _BLOCKS or sensitive:
        return ContentBlocked(build_block(parse_words(value, secrets), secrets).message)
    if status == _GOOD and code not in _STATUS:
        fault = ProviderBadResponse(_build_words(value, secrets))
        fault.declined = bool(code)
        return fault
    return parse_video_fault(_STATUS.get(code, status), raw, secrets, provider_retry_after_s=provider_retry_after_s)
