"""Videos of Alibaba Cloud Model Studio (DashScope): tasks, which are begun and asked after until they end.

Tasks are as those of its pictures (``formats/vendors/dashscope_images.py``). What is asked, with which fields:
    Wan 2.6 and older, by words      alibabacloud.com/help/en/model-studio/legacy-wan-text-to-video-api-reference
    Wan 2.6 and older, by a picture  .../legacy-image-to-video-api-reference
    Wan 2.7                          .../text-to-video-api-reference and .../image-to-video-general-api-reference
Errors: .../error-code. A model that starts from a picture makes a video of its shape: it is told the tier of a size.
A video's address is good for a day, and so is its task: afterwards that is ``UNKNOWN``, which says nothing of its end.

Not taken: ``audio``, which changes the price, and what there is to start from beside a picture. Left out: models that
start from videos or from two pictures (``…-r2v``, ``…-kf2v``, ``…-s2v``, ``…-vace``, ``…-animate-…``, ``…-videoedit``),
and Wan 3.0 and HappyHorse, whose pages were not at hand.
"""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, Literal
from urllib.parse import quote

import attrs
import orjson

from gateway.domain.video import BLOCKED_CODE, MAX_SECONDS, Reference, VideoError
from gateway.errors import (
    ContentBlocked,
    InvalidRequest,
    ProviderAuthError,
    ProviderBadResponse,
    ProviderError,
    ProviderRateLimited,
)
from gateway.formats.image_backend import ProviderCall
from gateway.formats.image_data import is_web_url
from gateway.formats.image_task import parse_field
from gateway.formats.openai.errors import Secrets, mask
from gateway.formats.request_body import Body, Inline, build_data_url
from gateway.formats.video_backend import (
    ContentLocation,
    ProviderTask,
    TaskStatus,
    Variant,
    VideoSpec,
    build_error,
    find_refusal,
    parse_id,
    parse_object,
    parse_video_fault,
)

SYNTHESIS = "/api/v1/services/aigc/video-generation/video-synthesis"
TASKS = "/api/v1/tasks"
_AS_TASK = ("X-DashScope-Async", "enable")
_UNDER_WAY: Mapping[str, Literal["queued", "processing"]] = MappingProxyType(
    {"PENDING": "queued", "RUNNING": "processing"},
)
_PARAMETERS = ("prompt_extend", "shot_type", "watermark", "seed")
"""What a caller may say beside the convention's fields, and ``negative_prompt``."""
_UNSAYABLE: Mapping[str, object] = MappingProxyType(
    {"audio": True, "audio_url": None, "template": None, "img_url": None, "media": None},
)
"""What is not taken, and what is made all the same."""
_INFRINGES = "IPInfringementSuspect"
_OUR_TROUBLE = ("InvalidApiKey", "AccessDenied", "Arrearage", "AllocationQuota", "Workspace.AccessDenied")
_CALLERS_FAULT = ("InvalidParameter", "InvalidURL", "BadRequest")
_NEVER_BLOCKS = (401, 402, 429)
_BLOCKED = "The provider's safety filter blocked the video, or what was asked for"
_NO_REASON = "The provider gave no reason"
_MOST_WORDS = 300
_LONGEST_URL = 4_096

Tier = Literal["480P", "720P", "1080P"]
Sizes = Mapping[str, tuple[Tier, str]]
"""Each with the words for it: a tier and an aspect ratio."""


@attrs.frozen
class WanModel:
    """How a model is spoken to, and what it makes.

    Attributes:
        seconds: lengths; the first is what it makes that is told none. One alone is not said: it cannot be changed.
        sizes: the first is what it makes that is told none.
        told: a size as such (``1280*720``), or as its tier, with the aspect ratio or without.
        picture: where its picture stands; None: it takes none, else it needs one.
    """

    seconds: tuple[int, ...]
    sizes: Sizes
    told: Literal["size", "ratio", "tier"] = "size"
    image: Literal["img_url", "media"] | None = None


_OLD_SIZES: Sizes = MappingProxyType(
    {
        "1920x1080": ("1080P", "16:9"), "1080x1920": ("1080P", "9:16"), "1440x1440": ("1080P", "1:1"),
        "1632x1248": ("1080P", "4:3"), "1248x1632": ("1080P", "3:4"),
        "1280x720": ("720P", "16:9"), "720x1280": ("720P", "9:16"), "960x960": ("720P", "1:1"),
        "1088x832": ("720P", "4:3"), "832x1088": ("720P", "3:4"),
        "832x480": ("480P", "16:9"), "480x832": ("480P", "9:16"), "624x624": ("480P", "1:1"),
    }
)  # fmt: skip
_NEW_SIZES: Sizes = MappingProxyType(
    {
        "1920x1080": ("1080P", "16:9"), "1080x1920": ("1080P", "9:16"), "1440x1440": ("1080P", "1:1"),
        "1648x1248": ("1080P", "4:3"), "1248x1648": ("1080P", "3:4"),
        "1280x720": ("720P", "16:9"), "720x1280": ("720P", "9:16"), "960x960": ("720P", "1:1"),
        "1104x832": ("720P", "4:3"), "832x1104": ("720P", "3:4"),
    }
)  # fmt: skip


def _pick(*tiers: Tier) -> Sizes:
    """The older models' sizes of some tiers, in their order."""
    return MappingProxyType(
        {size: words for tier in tiers for size, words in _OLD_SIZES.items() if words[0] == tier},
    )


_FROM_2_TO_15 = (5, *range(2, 5), *range(6, 16))
_BY_IMAGE = WanModel(_FROM_2_TO_15, _pick("1080P", "720P"), "tier", "img_url")
_NEW = WanModel(_FROM_2_TO_15, _NEW_SIZES, "ratio")
_NEW_BY_IMAGE = WanModel(_FROM_2_TO_15, _NEW_SIZES, "tier", "media")
MODELS: Mapping[str, WanModel] = MappingProxyType(
    {
        "wan2.7-t2v*": _NEW,
        "wan2.7-i2v*": _NEW_BY_IMAGE,
        "wan2.6-t2v*": WanModel((5, 10, 15), _pick("1080P", "720P")),
        "wan2.6-i2v-us": attrs.evolve(_BY_IMAGE, seconds=(5, 10, 15)),
        "wan2.6-i2v*": _BY_IMAGE,
        "wan2.5-t2v*": WanModel((5, 10), _pick("1080P", "720P", "480P")),
        "wan2.5-i2v*": attrs.evolve(_BY_IMAGE, seconds=(5, 10), sizes=_pick("1080P", "720P", "480P")),
        "wan2.2-t2v-plus": WanModel((5,), _pick("1080P", "480P")),
        "wan2.2-i2v-flash": attrs.evolve(_BY_IMAGE, seconds=(5,), sizes=_pick("720P", "480P", "1080P")),
        "wan2.2-i2v-plus": attrs.evolve(_BY_IMAGE, seconds=(5,), sizes=_pick("1080P", "480P")),
        "wan*2.1-t2v-turbo": WanModel((5,), _pick("720P", "480P")),
        "wan*2.1-t2v-plus": WanModel((5,), _pick("720P")),
        "wan*2.1-i2v-turbo": attrs.evolve(_BY_IMAGE, seconds=(5, 3, 4), sizes=_pick("720P", "480P")),
        "wan*2.1-i2v-plus": attrs.evolve(_BY_IMAGE, seconds=(5,), sizes=_pick("720P")),
    },
)
"""By globs of models, the first that matches. Any other is spoken to as the newest are."""


def _find_model(name: str) -> WanModel:
    known = next((model for glob, model in MODELS.items() if fnmatchcase(name, glob)), None)
    return known or (_NEW_BY_IMAGE if "-i2v" in name else _NEW)


class DashScopeVideoBackend:
    """``VideoBackend``; see there. Paths are behind the server's root."""

    __slots__ = ()

    takes_urls = True

    def submit(self, shot: VideoSpec) -> ProviderCall:
        """How to begin a task."""
        model = _find_model(shot.model)
        _check(shot, model)
        said: Body = {"prompt": shot.prompt}
        if shot.extra.get("negative_prompt") is not None:
            said["negative_prompt"] = shot.extra["negative_prompt"]
        if shot.reference is not None:
            image = _build_image(shot.reference)
            said |= {"img_url": image} if model.image == "img_url" else _build_media(image)
        parameters = _build_parameters(shot, model)
        return ProviderCall(
            {"model": shot.model, "input": said, "parameters": parameters},
            path=SYNTHESIS,
            begins=True,
            headers=(_AS_TASK,),
        )

    def parse_submitted(self, raw: bytes, secrets: Secrets) -> TaskStatus:
        """The task's id, and whether it waits. Raises the fault that an error under 200 is."""
        value = parse_object(raw)
        output = _find_output(value)
        if "task_id" not in output and _parse_code(value):
            raise _find_fault(value, secrets)
        return TaskStatus(_find_state(output.get("task_status")), id=parse_id(output.get("task_id")))

    def parse_refused(
        self, status: int, raw: bytes, secrets: Secrets, *, provider_retry_after_s: float | None = None
    ) -> ProviderError:
        """The fault. An account in arrears is told so under 400."""
        try:
            value = orjson.loads(raw)
        except orjson.JSONDecodeError:
            value = None
        code = _parse_code(value) if isinstance(value, dict) else ""
        if code in {"Arrearage", _INFRINGES} and status not in _NEVER_BLOCKS:
            return _find_fault(value, secrets)
        return parse_video_fault(status, raw, secrets, provider_retry_after_s=provider_retry_after_s)

    def poll(self, task: ProviderTask) -> ProviderCall:
        """How to ask after a task."""
        return ProviderCall(method="GET", path=_find_path(task), passing=True)

    def parse_polled(self, raw: bytes, secrets: Secrets) -> TaskStatus:
        """What is said of it."""
        value = parse_object(raw)
        output = _find_output(value)
        status = output.get("task_status")
        if not isinstance(status, str):
            raise ProviderBadResponse(f"The provider said nothing of the task: {_parse_message(value, secrets)}")
        if status == "SUCCEEDED":
            usage = value.get("usage")
            told: Body = usage if isinstance(usage, dict) else {}
            clue = _parse_address(output.get("video_url"))
            return TaskStatus("completed", clue=clue, seconds=_parse_seconds(told), size=_parse_size(told))
        if status == "FAILED":
            return TaskStatus("failed", error=_build_failure(output, secrets))
        if status == "CANCELED":
            return TaskStatus("failed", error=build_error(None, "The task was cancelled at the provider", secrets))
        return TaskStatus(_find_state(status))

    def find_content(self, task: ProviderTask, variant: Variant) -> ContentLocation | ProviderCall | None:
        """The address that was told of it; where none was, the task is asked."""
        if variant != "video":
            return None
        return ContentLocation(url=task.clue) if task.clue else self.poll(task)

    def read_content(self, raw: bytes, secrets: Secrets) -> ContentLocation:  # noqa: ARG002 - there is nothing to mask
        """The address in what is said of a task."""
        return ContentLocation(url=_parse_address(_find_output(parse_object(raw)).get("video_url")))

    def remix(self, task: ProviderTask, shot: VideoSpec) -> ProviderCall | None:  # noqa: ARG002
        """None: there is no such thing."""
        return None

    def cancel(self, task: ProviderTask) -> ProviderCall | None:
        """How to stop it, which is done only while it waits."""
        return ProviderCall(path=f"{_find_path(task)}/cancel", passing=True)

    def delete(self, task: ProviderTask) -> ProviderCall | None:  # noqa: ARG002
        """None: tasks are forgotten after a day."""
        return None


def _check(shot: VideoSpec, model: WanModel) -> None:
    """Raise ``InvalidRequest`` for what ``model`` does not make."""
    if shot.reference is not None and model.image is None:
        raise InvalidRequest("The model takes no picture to start from", param="input_reference")
    if shot.reference is None and model.image is not None:
        raise InvalidRequest("The model needs a picture to start from", param="input_reference")
    if shot.size is not None and shot.size not in model.sizes:
        raise InvalidRequest(f"'size' must be one of {', '.join(model.sizes)}", param="size")
    if shot.seconds is not None and shot.seconds not in model.seconds:
        allowed = ", ".join(map(str, sorted(model.seconds)))
        raise InvalidRequest(f"'seconds' must be one of {allowed}", param="seconds")
    for name, usual in _UNSAYABLE.items():
        if parse_field(shot.extra.get(name)) not in (None, "", usual):
            raise InvalidRequest(f"'{name}' is not taken", param=name)


def _build_parameters(shot: VideoSpec, model: WanModel) -> Body:
    said: Body = {}
    if shot.size is not None:
        tier, ratio = model.sizes[shot.size]
        if model.told == "size":
            said["size"] = shot.size.replace("x", "*")
        else:
            said["resolution"] = tier
        if model.told == "ratio":
            said["ratio"] = ratio
    if shot.seconds is not None and len(model.seconds) > 1:
        said["duration"] = shot.seconds
    for name in _PARAMETERS:
        if shot.extra.get(name) is not None:
            said[name] = parse_field(shot.extra[name])
    return said


def _build_image(reference: Reference) -> Inline | str:
    """A picture as it is sent. What is kept at the provider (``oss://``) is not its caller's to name."""
    if reference.upload is not None:
        return build_data_url(reference.upload)
    url = reference.url or ""
    if not url.startswith("data:image/") and not is_web_url(url):
        message = "'input_reference' must be a picture: a file, an address or a data: URL"
        raise InvalidRequest(message, param="input_reference")
    return url


def _build_media(image: Inline | str) -> Body:
    return {"media": [{"type": "first_frame", "url": image}]}


def _find_path(task: ProviderTask) -> str:
    return f"{TASKS}/{quote(task.id, safe='')}"


def _find_output(value: Body) -> Body:
    found = value.get("output")
    return found if isinstance(found, dict) else {}


def _find_state(status: object) -> Literal["queued", "processing"] | None:
    return _UNDER_WAY.get(status) if isinstance(status, str) else None


def _parse_code(said: Body) -> str:
    code = said.get("code")
    return code if isinstance(code, str) else ""


def _parse_message(said: Body, secrets: Secrets) -> str:
    message = said.get("message")
    return mask(message, secrets)[:_MOST_WORDS] if isinstance(message, str) and message else _NO_REASON


def _build_failure(output: Body, secrets: Secrets) -> VideoError:
    if _parse_code(output).startswith(_INFRINGES):
        return VideoError(BLOCKED_CODE, _parse_message(output, secrets))
    return build_error(output.get("code"), output.get("message"), secrets)


def _find_fault(said: Body, secrets: Secrets) -> ProviderError:
    """The fault that ``{"code", "message"}`` is."""
    code, message = _parse_code(said), _parse_message(said, secrets)
    if code.startswith(_INFRINGES):
        return ContentBlocked(f"{_BLOCKED}: {message}")
    if code.startswith(_OUR_TROUBLE):
        return ProviderAuthError("The provider refused the gateway's credentials", should_retry=False)
    limited = code.startswith("Throttling")
    status = 429 if limited else 400 if code.startswith(_CALLERS_FAULT) else 500
    fault = find_refusal(code, message, secrets, status)
    if isinstance(fault, ProviderRateLimited):
        fault.retry_after_s = 1
    return fault


def _parse_address(found: object) -> str:
    if not isinstance(found, str) or len(found) > _LONGEST_URL or not is_web_url(found):
        raise ProviderBadResponse("The provider's task has no video with a usable address")
    return found


def _parse_seconds(usage: Body) -> str | None:
    """How long the video is: what went in is in ``duration`` as well, and what is not said may be 0."""
    named: Iterable[Any] = map(usage.get, ("output_video_duration", "video_duration", "duration"))
    return next((str(int(value)) for value in named if _is_length(value)), None)


def _is_length(value: object) -> bool:
    """Whether it is a number of whole seconds; 10.0 is one."""
    if not isinstance(value, int | float) or type(value) is bool:
        return False
    return 0 < value <= MAX_SECONDS and value == int(value)


def _parse_size(usage: Body) -> str | None:
    named = (usage.get(name) for name in ("size", "video_ratio"))
    found = (value.replace("*", "x") for value in named if isinstance(value, str))
    return next((size for size in found if size in _OLD_SIZES or size in _NEW_SIZES), None)
