"""Videos of Kling: tasks, in two languages that the same server speaks.

kling.ai/document-api (every page also with ``.md`` behind it):
    api/get-started/authentication, error-codes
    api/video/3-0-omni/text-to-video, image-to-video, video-omni; 3-0-turbo/…; 2-6/…; o1/video-omni: the model is in
        the path, what is wanted stands in ``settings``, and ``GET /tasks`` asks after every task. An API key alone.
    api/video/3-0-omni/text-to-video/legacy, image-to-video/legacy: ``POST /v1/videos/text2video`` and ``image2video``,
        with a ``model_name``, and each path asks after its own tasks; which of them it was is not in the answer, so it
        is said to the provider as part of an id of our own, which every answer repeats. Also for an AccessKey.
    guides/capability-map/video: lengths and resolutions. Models before ``kling-v2-5-turbo`` ended on 15 September 2026.

A model is told a resolution and a shape, and nobody says how many pixels a square has: sizes stand for both. With a
picture to start from, its shape is the video's. A video's length costs more with sound, which is therefore not to be
had; models that always have it have it. A failed task costs nothing.

Left out: models whose pages were not at hand (``/text-to-video/kling-2.5-turbo``, ``kling-v3-omni`` and
``kling-video-o1`` of the older language); last frames, elements, voices, masks and storyboards, for which the
convention has no words; progress, cancelling and deleting, which are not described; the length that an answer tells,
which is no whole number.
"""

from collections.abc import Iterator, Mapping
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
from gateway.formats.request_body import Body, Inline
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
    parse_video_fault,
)

_LONGER = (5, 3, 4, *range(6, 16))
_SHORTER = (5, 10)
"""The first is the length of whoever names none."""
_RATIOS = {"16:9": (16, 9), "9:16": (9, 16), "1:1": (1, 1)}
_TIERS = {"720p": 720, "1080p": 1080, "4k": 2160}
"""Pixels of the shorter side."""


def _list_sizes(tiers: tuple[str, ...]) -> Mapping[str, tuple[str, str]]:
    return MappingProxyType(
        {
            f"{_TIERS[tier] * width // min(width, height)}x{_TIERS[tier] * height // min(width, height)}": (ratio, tier)
            for tier in tiers
            for ratio, (width, height) in _RATIOS.items()
        },
    )


_HD = _list_sizes(("720p", "1080p"))
_ALL = _list_sizes(("720p", "1080p", "4k"))


@attrs.frozen
class KlingModel:
    """What a model takes.

    Attributes:
        sizes: each with its shape and its resolution.
        older: it is called in the older language.
        omni: everything is asked of one path, in ``contents``.
        shots: whether it can be told to make several shots, or one.
    """

    seconds: tuple[int, ...]
    sizes: Mapping[str, tuple[str, str]]
    older: bool = False
    omni: bool = False
    shots: bool = False


MODELS: Mapping[str, KlingModel] = MappingProxyType(
    {
        "kling-3.0": KlingModel(_LONGER, _ALL, shots=True),
        "kling-3.0-turbo": KlingModel(_LONGER, _HD),
        "kling-3.0-omni": KlingModel(_LONGER, _ALL, omni=True, shots=True),
        "kling-o1": KlingModel(_SHORTER, _HD, omni=True),
        "kling-2.6": KlingModel(_SHORTER, _HD),
        "kling-v3": KlingModel(_LONGER, _ALL, older=True),
        "kling-v2-6": KlingModel(_SHORTER, _HD, older=True),
        "kling-v2-5-turbo": KlingModel(_SHORTER, _HD, older=True),
    },
)
TEXT = "/v1/videos/text2video"
_PLACES = MappingProxyType({"text2video": TEXT, "image2video": "/v1/videos/image2video"})
"""Of the older language, each for its own tasks."""
_MODES = {"720p": "std", "1080p": "pro", "4k": "4k"}
_OLDER_TEXTS = ("negative_prompt", "camera_control")
_UNSAYABLE = (
    "image", "image_tail", "first_frame", "last_frame", "contents", "settings", "element_list", "voice_list",
    "static_mask", "dynamic_masks", "shot_type", "multi_prompt", "mode",
)  # fmt: skip
_SOUNDS = ("sound", "audio")
_NOTHING = (None, False, "", "off", "false")
"""Values that ask for nothing."""
_STATES: dict[str, TaskState] = {
    "submitted": "queued",
    "processing": "processing",
    "succeed": "completed",
    "succeeded": "completed",
    "failed": "failed",
}
_STATUS = MappingProxyType(
    {
        **dict.fromkeys((1000, 1001, 1002, 1003, 1004), 401),
        **dict.fromkeys((1100, 1101, 1102), 402),
        **dict.fromkeys((1103, 1304), 403),
        **dict.fromkeys((1200, 1201), 400),
        **dict.fromkeys((1202, 1203), 404),
        **dict.fromkeys((1302, 1303), 429),
        **dict.fromkeys((5000, 5001, 5002), 500),
    },
)
"""What each code means; theirs is 429 for an account with nothing left too."""
_GOOD = 200
_BLOCKS = (1300, 1301)
_RISK = ("risk control", "风控")
"""In the reason of a task that failed."""
_MAX_URL = 4_096


class KlingVideoBackend:
    """``VideoBackend``; see there. The id of a task of the older language has its path's last word before it."""

    __slots__ = ()

    takes_urls = True

    def submit(self, shot: VideoSpec) -> ProviderCall:
        """One video, in the language of its model. Raises ``InvalidRequest``."""
        model = MODELS.get(shot.model)
        if model is None:
            raise InvalidRequest(f"The provider's models are {', '.join(MODELS)}", param="model")
        _check(shot, model)
        return _build_older(shot, model) if model.older else _write(shot, model)

    def parse_submitted(self, raw: bytes, secrets: Secrets) -> TaskStatus:
        """A task in either language. Raises what its code says where that is no success."""
        value = parse_object(raw)
        code = _parse_code(value)
        if code:
            raise _find_fault(_GOOD, raw, secrets)
        data = value.get("data")
        if not isinstance(data, dict):
            raise ProviderBadResponse("The provider's answer has no task")
        if "task_id" not in data:
            return attrs.evolve(_parse_task(data, secrets), id=parse_id(data.get("id")))
        return attrs.evolve(_parse_task(data, secrets), id=f"{_parse_kind(data)}:{parse_id(data['task_id'])}")

    def parse_refused(
        self, status: int, raw: bytes, secrets: Secrets, *, provider_retry_after_s: float | None = None
    ) -> ProviderError:
        """By its code, where there is one."""
        return _find_fault(status, raw, secrets, provider_retry_after_s=provider_retry_after_s)

    def poll(self, task: ProviderTask) -> ProviderCall:
        """Ask after it."""
        kind, _, older_id = task.id.partition(":")
        if kind in _PLACES:
            return ProviderCall(method="GET", path=f"{_PLACES[kind]}/{quote(older_id, safe='')}", passing=True)
        return ProviderCall(method="GET", path=f"/tasks?task_ids={quote(task.id, safe='')}", passing=True)

    def parse_polled(self, raw: bytes, secrets: Secrets) -> TaskStatus:
        """What has become of it. An answer that is no success is no verdict."""
        value = parse_object(raw)
        if _parse_code(value):
            raise ProviderBadResponse(_build_words(value, secrets))
        data = value.get("data")
        task = data[0] if isinstance(data, list) and len(data) == 1 else data
        if not isinstance(task, dict) or not ("status" in task or "task_status" in task):
            raise ProviderBadResponse("The provider's answer says nothing of the task")
        return _parse_task(task, secrets)

    def find_content(self, task: ProviderTask, variant: Variant) -> ContentLocation | ProviderCall | None:
        """At an address for everybody, which is good for thirty days."""
        return ContentLocation(url=task.clue) if variant == "video" and task.clue is not None else None

    def read_content(self, raw: bytes, secrets: Secrets) -> ContentLocation:  # noqa: ARG002 - nothing is asked
        """Never: the place is known."""
        raise ProviderBadResponse("The provider was not asked where its video is")

    def remix(self, task: ProviderTask, shot: VideoSpec) -> ProviderCall | None:  # noqa: ARG002 - nothing is offered
        """No words for it."""
        return None

    def cancel(self, task: ProviderTask) -> ProviderCall | None:  # noqa: ARG002 - nothing is offered
        """Not described."""
        return None

    def delete(self, task: ProviderTask) -> ProviderCall | None:  # noqa: ARG002 - nothing is offered
        """Not described; videos are gone after thirty days."""
        return None


def _check(shot: VideoSpec, model: KlingModel) -> None:
    """Raise ``InvalidRequest`` for what the model does not make, or the convention says in other words."""
    if shot.size is not None and shot.size not in model.sizes:
        raise InvalidRequest(f"'size' must be one of {', '.join(model.sizes)}", param="size")
    if shot.seconds is not None and shot.seconds not in model.seconds:
        allowed = ", ".join(map(str, sorted(model.seconds)))
        raise InvalidRequest(f"'seconds' must be one of {allowed}", param="seconds")
    for name in _list_unsayable(model):
        if shot.extra.get(name) not in _NOTHING:
            raise InvalidRequest(f"'{name}' is not taken", param=name)
    for name in _SOUNDS:
        if shot.extra.get(name) not in _NOTHING:
            raise InvalidRequest(f"'{name}' is not taken: sound has a price of its own", param=name)


def _list_unsayable(model: KlingModel) -> Iterator[str]:
    yield from _UNSAYABLE
    yield "multi_shot" if model.older else "negative_prompt"  # takes the prompt's place; is part of it


def _write(shot: VideoSpec, model: KlingModel) -> ProviderCall:
    settings: Body = {}
    if shot.size is not None:
        ratio, settings["resolution"] = model.sizes[shot.size]
        if shot.reference is None:
            settings["aspect_ratio"] = ratio
    if shot.seconds is not None:
        settings["duration"] = shot.seconds
    several = parse_field(shot.extra.get("multi_shot"))
    if model.shots and isinstance(several, bool):
        settings["multi_shot"] = several
    said: Body = {"settings": settings} if settings else {}
    if shot.reference is None and not model.omni:
        return ProviderCall({"prompt": shot.prompt, **said}, path=f"/text-to-video/{shot.model}", begins=True)
    contents: list[Body] = [{"type": "prompt", "text": shot.prompt}]
    if shot.reference is not None:
        contents.append({"type": "first_frame", "url": _build_image(shot.reference)})
    path = "omni-video" if model.omni else "image-to-video"
    return ProviderCall({"contents": contents, **said}, path=f"/{path}/{shot.model}", begins=True)


def _build_older(shot: VideoSpec, model: KlingModel) -> ProviderCall:
    kind = "text2video" if shot.reference is None else "image2video"
    said: Body = {"model_name": shot.model, "prompt": shot.prompt, "external_task_id": f"{kind}-{shot.mark}"}
    said |= {name: shot.extra[name] for name in _OLDER_TEXTS if shot.extra.get(name) not in (None, "")}
    freedom = parse_field(shot.extra.get("cfg_scale"))
    if freedom is not None and not shot.model.startswith("kling-v2"):  # those do not know the field
        said["cfg_scale"] = freedom
    if shot.size is not None:
        ratio, tier = model.sizes[shot.size]
        said["mode"] = _MODES[tier]
        if shot.reference is None:
            said["aspect_ratio"] = ratio
    if shot.seconds is not None:
        said["duration"] = str(shot.seconds)
    if shot.reference is not None:
        said["image"] = _build_image(shot.reference)
    return ProviderCall(said, path=_PLACES[kind], begins=True)


def _build_image(reference: Reference) -> str | Inline:
    """An address, or base64 without anything before it."""
    if reference.upload is not None:
        return Inline(reference.upload)
    url = reference.url or ""
    if not url.startswith("data:"):
        return url
    _, _, data = url.partition(";base64,")
    if not data:
        raise InvalidRequest("'input_reference' must be a data: URL of a picture in base64", param="input_reference")
    return data


def _parse_code(value: object) -> int:
    """The code of an answer; 0, success, also where there is none."""
    code: Any = value.get("code") if isinstance(value, dict) else None
    return code if type(code) is int else 0


def _parse_kind(data: Body) -> str:
    """Which path a task is from, by the id that was given to it."""
    info = data.get("task_info")
    ours = info.get("external_task_id") if isinstance(info, dict) else None
    kind = ours.partition("-")[0] if isinstance(ours, str) else ""
    return kind if kind in _PLACES else "text2video"


def _parse_task(task: Body, secrets: Secrets) -> TaskStatus:
    word = task.get("status", task.get("task_status"))
    state = _STATES.get(word) if isinstance(word, str) else None
    if state == "failed":
        message = task.get("message", task.get("task_status_msg"))
        risky = isinstance(message, str) and any(words in message.lower() for words in _RISK)
        return TaskStatus(state, error=build_error("content_filter" if risky else None, message, secrets))
    if state != "completed":
        return TaskStatus(state)
    url = next(_list_urls(task), None)
    if url is None:
        raise ProviderBadResponse("The provider's task is done, and has no video")
    return TaskStatus(state, progress=100, clue=url)


def _list_urls(task: Body) -> Iterator[str]:
    result = task.get("task_result")
    older = result.get("videos") if isinstance(result, dict) else None
    outputs = task.get("outputs")
    for output in [*_objects(outputs), *_objects(older)]:
        url = output.get("url")
        if output.get("type", "video") == "video" and isinstance(url, str) and len(url) <= _MAX_URL and is_web_url(url):
            yield url


def _objects(value: object) -> list[Body]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _build_words(value: object, secrets: Secrets) -> str:
    return f"The provider reported an error: {parse_words(value, secrets) or 'it gave no reason'}"


def _find_fault(
    status: int, raw: bytes, secrets: Secrets, *, provider_retry_after_s: float | None = None
) -> ProviderError:
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        value = None
    code = _parse_code(value)
    if code in _BLOCKS:
        return ContentBlocked(build_block(parse_words(value, secrets), secrets).message)
    if status == _GOOD and code not in _STATUS:
        fault = ProviderBadResponse(_build_words(value, secrets))
        fault.declined = bool(code)
        return fault
    return parse_video_fault(_STATUS.get(code, status), raw, secrets, provider_retry_after_s=provider_retry_after_s)
