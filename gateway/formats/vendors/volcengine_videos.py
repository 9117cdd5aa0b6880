"""Videos of Volcengine Ark (Seedance), and of BytePlus ModelArk: tasks, asked after until they end.

Begin  volcengine.com/docs/82379/1520757, docs.byteplus.com/en/docs/ModelArk/1520757 (fields, lengths, a table of sizes)
Ask    volcengine.com/docs/82379/1521309 (states, answers)
Stop   volcengine.com/docs/82379/1521720: DELETE takes a task out of the queue, refuses one that runs and forgets one
       that has ended.
Errors volcengine.com/docs/82379/1299023

The price is by pixels and seconds, and it is not only the fields that say these: a prompt with ``--dur 12`` in it means
it, so such a prompt is refused. Not taken: ``generate_audio``, ``service_tier``, ``draft``, ``frames``, ``tools`` and
``output_format``, which change the price or what is made, ``callback_url``, ``priority``, and ``return_last_frame``.
Left out: a last frame, several pictures, videos and sounds to start from, and ids of endpoints (``ep-…``) in place of
models, for what is behind them is not told.
"""

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, Literal
from urllib.parse import quote

import attrs

from gateway.domain.video import MAX_SECONDS, Reference
from gateway.errors import InvalidRequest, ProviderBadResponse, ProviderError
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
    parse_id,
    parse_object,
    parse_video_fault,
)

TASKS = "/contents/generations/tasks"
_UNDER_WAY: Mapping[str, Literal["queued", "processing"]] = MappingProxyType(
    {"queued": "queued", "running": "processing"},
)
_STOPPED: Mapping[str, str] = MappingProxyType(
    {"cancelled": "The task was cancelled at the provider", "expired": "The provider gave the task up after its time"},
)
_SHADES = ("seed", "camera_fixed", "watermark")
"""What a caller may say beside the convention's fields."""
_UNSAYABLE: Mapping[str, object] = MappingProxyType(
    {
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
    },
)
"""What is not taken, and what is made all the same."""
_COMMAND = re.compile(
    "--[\\s\u200b-\u200f\u2060\ufeff]*(resolution|rs|ratio|rt|duration|dur|frames|framespersecond|fps)(?![a-z])",
    re.IGNORECASE,
)
_NO_REASON = "The provider gave no reason"
_MOST_WORDS = 300
_LONGEST_URL = 4_096

Sizes = Mapping[str, tuple[str, str]]
"""Each with the words for it: a resolution and a ratio."""
_RATIOS = ("16:9", "9:16", "1:1", "4:3", "3:4", "21:9")


def _tell_sizes(*tiers: tuple[str, str]) -> Sizes:
    """From resolutions, each with its sizes in the order of ``_RATIOS``."""
    return MappingProxyType(
        {size: (tier, ratio) for tier, sizes in tiers for size, ratio in zip(sizes.split(), _RATIOS, strict=True)},
    )


_480 = ("480p", "864x496 496x864 640x640 752x560 560x752 992x432")
_720 = ("720p", "1280x720 720x1280 960x960 1112x834 834x1112 1470x630")
_1080 = ("1080p", "1920x1080 1080x1920 1440x1440 1664x1248 1248x1664 2206x946")
_4K = ("4k", "3840x2160 2160x3840 2880x2880 3326x2494 2494x3326 4398x1886")
_FIRST_480 = ("480p", "864x480 480x864 640x640 736x544 544x736 960x416")
_FIRST_720 = ("720p", "1248x704 704x1248 960x960 1120x832 832x1120 1504x640")
_FIRST_1080 = ("1080p", "1920x1088 1088x1920 1440x1440 1664x1248 1248x1664 2176x928")
_LATEST_480 = ("480p", "854x480 480x854 640x640 752x560 560x752 992x432")


@attrs.frozen
class SeedanceModel:
    """What a model makes.

    Attributes:
        seconds: lengths; the first is what is said where nobody says one.
        sizes: the first are those of the resolution it makes that is told none.
        pictures: whether it takes a picture to start from.
        words: whether it does without.
        cuts: whether it cuts a picture to the ratio it is told; else it makes the picture's.
    """

    seconds: tuple[int, ...]
    sizes: Sizes
    images: bool = True
    words: bool = True
    cuts: bool = True


def _from_to(first: int, last: int) -> tuple[int, ...]:
    """Lengths, 5 seconds before all others."""
    return (5, *(seconds for seconds in range(first, last + 1) if seconds != 5))  # noqa: PLR2004


_FIRST = SeedanceModel(_from_to(2, 12), _tell_sizes(_FIRST_1080, _FIRST_720, _FIRST_480))
_LITE = attrs.evolve(_FIRST, sizes=_tell_sizes(_FIRST_720, _FIRST_480, _FIRST_1080))
_SECOND = SeedanceModel(_from_to(4, 15), _tell_sizes(_720, _480))
MODELS: Mapping[str, SeedanceModel] = MappingProxyType(
    {
        "*seedance-2-5*": SeedanceModel(_from_to(4, 30), _tell_sizes(_720, _LATEST_480), cuts=False),
        "*seedance-2-0-fast*": _SECOND,
        "*seedance-2-0-mini*": _SECOND,
        "*seedance-2-0*": attrs.evolve(_SECOND, sizes=_tell_sizes(_720, _480, _1080, _4K)),
        "*seedance-1-5-pro*": SeedanceModel(_from_to(4, 12), _tell_sizes(_720, _480, _1080)),
        "*seedance-1-0-pro*": _FIRST,
        "*seedance-1-0-lite-t2v*": attrs.evolve(_LITE, images=False),
        "*seedance-1-0-lite-i2v*": attrs.evolve(_LITE, words=False),
    },
)
"""By globs of models, the first that matches."""


def _find_model(name: object) -> SeedanceModel | None:
    if not isinstance(name, str):
        return None
    return next((model for glob, model in MODELS.items() if fnmatchcase(name, glob)), None)


class VolcengineVideoBackend:
    """``VideoBackend``; see there."""

    __slots__ = ()

    takes_urls = True

    def submit(self, shot: VideoSpec) -> ProviderCall:
        """How to begin a task."""
        _check_prompt(shot.prompt)
        _check_fields(shot.extra)
        model = _find_model(shot.model)
        if model is not None:
            _check(shot, model)
        content: list[Body] = [{"type": "text", "text": shot.prompt}]
        if shot.reference is not None:
            image = {"url": _build_image(shot.reference)}
            content.append({"type": "image_url", "image_url": image, "role": "first_frame"})
        said: Body = {"model": shot.model, "content": content, **_build_size(shot, model)}
        if shot.seconds is not None:
            said["duration"] = shot.seconds
        for name in _SHADES:
            if shot.extra.get(name) is not None:
                said[name] = parse_field(shot.extra[name])
        return ProviderCall(said, path=TASKS, begins=True)

    def parse_submitted(self, raw: bytes, secrets: Secrets) -> TaskStatus:  # noqa: ARG002 - there is nothing to mask
        """The task's id, and no more is said."""
        return TaskStatus("queued", id=parse_id(parse_object(raw).get("id")))

    def parse_refused(
        self, status: int, raw: bytes, secrets: Secrets, *, provider_retry_after_s: float | None = None
    ) -> ProviderError:
        """The fault; errors have the convention's shape."""
        return parse_video_fault(status, raw, secrets, provider_retry_after_s=provider_retry_after_s)

    def poll(self, task: ProviderTask) -> ProviderCall:
        """How to ask after a task."""
        return ProviderCall(method="GET", path=_find_path(task), passing=True)

    def parse_polled(self, raw: bytes, secrets: Secrets) -> TaskStatus:
        """What is said of it."""
        value = parse_object(raw)
        status = value.get("status")
        error: Any = value.get("error")
        told: Body = error if isinstance(error, dict) else {}
        if not isinstance(status, str):
            raise ProviderBadResponse(f"The provider said nothing of the task: {_parse_message(told, secrets)}")
        if status == "succeeded":
            clue = _parse_address(_find_content(value).get("video_url"))
            return TaskStatus(
                "completed", clue=clue, seconds=_parse_seconds(value.get("duration")), size=_parse_size(value)
            )
        if status == "failed":
            return TaskStatus("failed", error=build_error(told.get("code"), told.get("message"), secrets))
        if status in _STOPPED:
            return TaskStatus("failed", error=build_error(None, _STOPPED[status], secrets))
        return TaskStatus(_UNDER_WAY.get(status))

    def find_content(self, task: ProviderTask, variant: Variant) -> ContentLocation | ProviderCall | None:
        """The address that was told of it, which is good for a day; where none was, the task is asked."""
        if variant != "video":
            return None
        return ContentLocation(url=task.clue) if task.clue else self.poll(task)

    def read_content(self, raw: bytes, secrets: Secrets) -> ContentLocation:  # noqa: ARG002 - there is nothing to mask
        """The address in what is said of a task."""
        return ContentLocation(url=_parse_address(_find_content(parse_object(raw)).get("video_url")))

    def remix(self, task: ProviderTask, shot: VideoSpec) -> ProviderCall | None:  # noqa: ARG002
        """None: there is no such thing."""
        return None

    def cancel(self, task: ProviderTask) -> ProviderCall | None:
        """How to take it out of the queue; one that runs is not stopped."""
        return ProviderCall(method="DELETE", path=_find_path(task), passing=True)

    def delete(self, task: ProviderTask) -> ProviderCall | None:
        """The same words: what is done depends on whether it has ended."""
        return self.cancel(task)


def _check_prompt(prompt: str) -> None:
    """Raise ``InvalidRequest`` for a prompt that commands a length or a size, which nobody would pay for."""
    found = _COMMAND.search(prompt)
    if found is not None:
        message = f"'prompt' must not have '--{found[1]}' in it: the length is said as 'seconds', the size as 'size'"
        raise InvalidRequest(message, param="prompt")


def _check_fields(extra: Body) -> None:
    """Raise ``InvalidRequest`` for a wish that is not passed on: one that is dropped is missed."""
    for name, usual in _UNSAYABLE.items():
        if parse_field(extra.get(name)) not in (None, "", usual):
            raise InvalidRequest(f"'{name}' is not taken", param=name)


def _check(shot: VideoSpec, model: SeedanceModel) -> None:
    """Raise ``InvalidRequest`` for what ``model`` does not make."""
    if shot.reference is not None and not model.images:
        raise InvalidRequest("The model takes no picture to start from", param="input_reference")
    if shot.reference is None and not model.words:
        raise InvalidRequest("The model needs a picture to start from", param="input_reference")
    if shot.seconds is not None and shot.seconds not in model.seconds:
        raise InvalidRequest(
            f"'seconds' must be {min(model.seconds)} to {max(model.seconds)}",
            param="seconds",
        )


def _build_size(shot: VideoSpec, model: SeedanceModel | None) -> Body:
    if shot.size is None:
        return {}
    sizes = model.sizes if model is not None else {}
    if shot.size not in sizes:
        allowed = f"must be one of {', '.join(sizes)}" if sizes else "is left to this model"
        raise InvalidRequest(f"'size' {allowed}", param="size")
    resolution, ratio = sizes[shot.size]
    keeps = shot.reference is not None and model is not None and not model.cuts
    return {"resolution": resolution, "ratio": "adaptive" if keeps else ratio}


def _build_image(reference: Reference) -> Inline | str:
    """A picture as it is sent. What is kept at the provider (``asset://``) is not its caller's to name."""
    if reference.upload is not None:
        return build_data_url(reference.upload)
    url = reference.url or ""
    if not url.startswith("data:image/") and not is_web_url(url):
        message = "'input_reference' must be a picture: a file, an address or a data: URL"
        raise InvalidRequest(message, param="input_reference")
    return url


def _find_path(task: ProviderTask) -> str:
    return f"{TASKS}/{quote(task.id, safe='')}"


def _find_content(value: Body) -> Body:
    found = value.get("content")
    return found if isinstance(found, dict) else {}


def _parse_message(said: Body, secrets: Secrets) -> str:
    message = said.get("message")
    return mask(message, secrets)[:_MOST_WORDS] if isinstance(message, str) and message else _NO_REASON


def _parse_address(found: object) -> str:
    if not isinstance(found, str) or len(found) > _LONGEST_URL or not is_web_url(found):
        raise ProviderBadResponse("The provider's task has no video with a usable address")
    return found


def _parse_seconds(value: object) -> str | None:
    return str(value) if type(value) is int and 0 < value <= MAX_SECONDS else None


def _parse_size(value: Body) -> str | None:
    """The size that a resolution and a ratio are, of the model that is named with them."""
    model = _find_model(value.get("model"))
    told = (value.get("resolution"), value.get("ratio"))
    return next((size for size, words in model.sizes.items() if words == told), None) if model is not None else None
