"""Videos of Runway: tasks that are begun by words or by a picture, and asked after until they end.

docs.dev.runwayml.com/api, whose schema is github.com/runwayml/openapi (``openapi.json``): where what is asked, with
which fields, what a task's states are and what a refusal looks like. docs.dev.runwayml.com/assets/inputs (pictures by
https addresses or ``data:`` URLs), .../errors/task-failures (``SAFETY.…``) and .../errors/errors. What an account
without credits is told: github.com/runwayml/sdk-node/issues/28. The addresses in an answer are good for a day or two;
every later answer has new ones.

Not taken: ``audio``, ``outputFormat`` and ``proresProfile``, which change the price, ``contentModeration``, which is
the business of whoever answers for the account, and whatever else there is to start from. Left out: models that are
told their size in other words (``hailuo3``, ``grok_imagine_1_5``, ``happyhorse_1_0``, ``wan3``, ``h3_max``), those that
start from videos, and what a 400 says when a filter objects before there is a task: that is not described.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import attrs
import orjson

from gateway.domain.video import Reference
from gateway.errors import InvalidRequest, ProviderAuthError, ProviderBadResponse, ProviderError, ProviderRejected
from gateway.formats.image_backend import ProviderCall
from gateway.formats.image_data import is_web_url
from gateway.formats.image_task import parse_field
from gateway.formats.openai.errors import Secrets
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
    parse_sides,
    parse_video_fault,
)

BY_WORDS = "/text_to_video"
BY_IMAGE = "/image_to_video"
TASKS = "/tasks"
_VERSION = ("X-Runway-Version", "2024-11-06")
"""Which interface is meant; every request says it."""
_WAITING = ("PENDING", "THROTTLED")
_NO_CREDITS = "not have enough credits"
_LONGEST_URL = 4_096
_SEED = ("seed",)
_SHADES = ("seed", "negativePrompt")
"""What a caller may say beside the convention's fields."""
_ALIASES = (("negative_prompt", "negativePrompt"),)
"""What it is called elsewhere."""
_UNSAYABLE: Mapping[str, object] = MappingProxyType(
    {
        "audio": True,
        "outputFormat": "mp4",
        "proresProfile": None,
        "contentModeration": None,
        "promptImage": None,
        "references": None,
        "referenceAudio": None,
        "referenceVideos": None,
    },
)
"""What is not taken, and what is made all the same."""


@attrs.frozen
class RunwayModel:
    """What a model makes.

    Attributes:
        seconds: lengths; the first is what is said where nobody says one.
        sizes: from words; none: it needs a picture.
        picture_sizes: from a picture, beside these.
        shades: which of the fields of its own it has.
    """

    seconds: tuple[int, ...]
    sizes: tuple[str, ...] = ()
    image_sizes: tuple[str, ...] = ()
    shades: tuple[str, ...] = _SEED


_FROM_2_TO_10 = (5, 2, 3, 4, 6, 7, 8, 9, 10)
_FROM_3_TO_10 = (5, 3, 4, 6, 7, 8, 9, 10)
_FROM_4_TO_15 = (5, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
_VEO_SECONDS = (8, 4, 6)
_TWO = ("1280x720", "720x1280")
_VEO_SIZES = (*_TWO, "1920x1080", "1080x1920")
_GEN4_SIZES = ("1104x832", "960x960", "832x1104", "1584x672")
_SMALL = (
    "1280x720", "720x1280", "960x960", "1112x834", "834x1112", "1470x630",
    "864x496", "496x864", "640x640", "752x560", "560x752", "992x432",
)  # fmt: skip
_LARGE = (
    "1920x1080", "1080x1920", "1440x1440", "1664x1248", "1248x1664", "2206x946",
    "3840x2160", "2160x3840", "3840x3840", "3840x2880", "2880x3840", "3840x1646",
)  # fmt: skip
MODELS: Mapping[str, RunwayModel] = MappingProxyType(
    {
        "gen4.5": RunwayModel(_FROM_2_TO_10, _TWO, _GEN4_SIZES),
        "gen4_turbo": RunwayModel(_FROM_2_TO_10, (), (*_TWO, *_GEN4_SIZES)),
        "veo3.1": RunwayModel(_VEO_SECONDS, _VEO_SIZES, shades=_SHADES),
        "veo3.1_fast": RunwayModel(_VEO_SECONDS, _VEO_SIZES, shades=_SHADES),
        "seedance2": RunwayModel(_FROM_4_TO_15, (*_SMALL, *_LARGE)),
        "seedance2_fast": RunwayModel(_FROM_4_TO_15, _SMALL),
        "seedance2_mini": RunwayModel(_FROM_4_TO_15, _SMALL),
        "gemini_omni_flash": RunwayModel(_FROM_3_TO_10, _TWO, shades=()),
    },
)
"""Any other model is told whatever its caller says, in the words that all of these share."""


class RunwayVideoBackend:
    """``VideoBackend``; see there."""

    __slots__ = ()

    takes_urls = True

    def submit(self, shot: VideoSpec) -> ProviderCall:
        """How to begin a task, at the place of those that start from a picture or of those that do not."""
        _check_fields(shot.extra)
        model = MODELS.get(shot.model)
        if model is not None:
            _check(shot, model)
        said: Body = {"model": shot.model, "promptText": shot.prompt}
        if shot.reference is not None:
            said["promptImage"] = [{"uri": _build_image(shot.reference), "position": "first"}]
        if shot.size is not None:
            said["ratio"] = "{}:{}".format(*parse_sides(shot.size))
        if shot.seconds is not None:
            said["duration"] = shot.seconds
        told = {**{name: shot.extra.get(alias) for alias, name in _ALIASES}, **shot.extra}
        for name in _SHADES if model is None else model.shades:
            if told.get(name) is not None:
                said[name] = told[name] if name == "negativePrompt" else parse_field(told[name])
        return ProviderCall(
            said, path=BY_WORDS if shot.reference is None else BY_IMAGE, begins=True, headers=(_VERSION,)
        )

    def parse_submitted(self, raw: bytes, secrets: Secrets) -> TaskStatus:  # noqa: ARG002 - there is nothing to mask
        """The task's id; nothing is said of its state yet."""
        return TaskStatus("queued", id=parse_id(parse_object(raw).get("id")))

    def parse_refused(
        self, status: int, raw: bytes, secrets: Secrets, *, provider_retry_after_s: float | None = None
    ) -> ProviderError:
        """The fault, with the field at fault where one is told; want of credits is no fault of the caller's."""
        fault = parse_video_fault(status, _spell_out(raw), secrets, provider_retry_after_s=provider_retry_after_s)
        if isinstance(fault, ProviderRejected) and _NO_CREDITS in fault.message:
            return ProviderAuthError("The provider's account has nothing left", should_retry=False)
        return fault

    def poll(self, task: ProviderTask) -> ProviderCall:
        """How to ask after a task."""
        return ProviderCall(method="GET", path=_find_path(task), passing=True, headers=(_VERSION,))

    def parse_polled(self, raw: bytes, secrets: Secrets) -> TaskStatus:
        """What is said of it. The code of a failure is dotted: its first word says whose."""
        value = parse_object(raw)
        status = value.get("status")
        if not isinstance(status, str):
            raise ProviderBadResponse("The provider's answer says nothing of a task")
        if status in _WAITING:
            return TaskStatus("queued")
        if status == "RUNNING":
            return TaskStatus("processing", progress=_parse_share(value.get("progress")))
        if status == "SUCCEEDED":
            return TaskStatus("completed", clue=_parse_address(value.get("output")))
        if status == "FAILED":
            return TaskStatus("failed", error=build_error(value.get("failureCode"), value.get("failure"), secrets))
        if status == "CANCELLED":
            return TaskStatus("failed", error=build_error(None, "The task was cancelled at the provider", secrets))
        return TaskStatus()

    def find_content(self, task: ProviderTask, variant: Variant) -> ContentLocation | ProviderCall | None:
        """The address that was told of it; where none was, the task is asked."""
        if variant != "video":
            return None
        return ContentLocation(url=task.clue) if task.clue else self.poll(task)

    def read_content(self, raw: bytes, secrets: Secrets) -> ContentLocation:  # noqa: ARG002 - there is nothing to mask
        """The address in what is said of a task."""
        return ContentLocation(url=_parse_address(parse_object(raw).get("output")))

    def remix(self, task: ProviderTask, shot: VideoSpec) -> ProviderCall | None:  # noqa: ARG002
        """None: there is no such thing."""
        return None

    def cancel(self, task: ProviderTask) -> ProviderCall | None:
        """How to stop it; afterwards it is not found any more."""
        return ProviderCall(method="DELETE", path=_find_path(task), passing=True, headers=(_VERSION,))

    def delete(self, task: ProviderTask) -> ProviderCall | None:
        """The same words: what is done depends on whether it has ended."""
        return self.cancel(task)


def _check_fields(extra: Body) -> None:
    """Raise ``InvalidRequest`` for a wish that is not passed on: one that is dropped is missed."""
    for name, usual in _UNSAYABLE.items():
        if parse_field(extra.get(name)) not in (None, "", usual):
            raise InvalidRequest(f"'{name}' is not taken", param=name)


def _check(shot: VideoSpec, model: RunwayModel) -> None:
    """Raise ``InvalidRequest`` for what ``model`` does not make."""
    if shot.reference is None and not model.sizes:
        raise InvalidRequest("The model needs a picture to start from", param="input_reference")
    sizes = model.sizes if shot.reference is None else (*model.sizes, *model.image_sizes)
    if shot.size is not None and shot.size not in sizes:
        raise InvalidRequest(f"'size' must be one of {', '.join(sizes)}", param="size")
    if shot.seconds is not None and shot.seconds not in model.seconds:
        allowed = ", ".join(map(str, sorted(model.seconds)))
        raise InvalidRequest(f"'seconds' must be one of {allowed}", param="seconds")


def _build_image(reference: Reference) -> Inline | str:
    """A picture as it is sent. What is kept at the provider (``runway://``) is not its caller's to name."""
    if reference.upload is not None:
        return build_data_url(reference.upload)
    url = reference.url or ""
    if not url.startswith("data:image/") and not (url.startswith("https://") and is_web_url(url)):
        message = "'input_reference' must be a picture: a file, an https address or a data: URL"
        raise InvalidRequest(message, param="input_reference")
    return url


def _find_path(task: ProviderTask) -> str:
    return f"{TASKS}/{quote(task.id, safe='')}"


def _parse_address(output: object) -> str:
    """The first of several: a task makes one video."""
    url: Any = output[0] if isinstance(output, list) and output else None
    if not isinstance(url, str) or len(url) > _LONGEST_URL or not is_web_url(url):
        raise ProviderBadResponse("The provider's task has no video with a usable address")
    return url


def _parse_share(value: object) -> int | None:
    """Percent of a number from 0 to 1."""
    return int(value * 100) if isinstance(value, int | float) and type(value) is not bool and 0 <= value <= 1 else None


def _spell_out(raw: bytes) -> bytes:
    """A refusal with the first of its ``issues`` in its words: else a caller hears only that something is wrong."""
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return raw
    error: Any = value.get("error") if isinstance(value, dict) else None
    issues: Any = value.get("issues") if isinstance(value, dict) else None
    first = issues[0] if isinstance(issues, list) and issues else None
    if not isinstance(error, str) or not isinstance(first, dict) or not isinstance(first.get("message"), str):
        return raw
    path = first.get("path")
    place = ".".join(str(part) for part in path if isinstance(part, str | int)) if isinstance(path, list) else ""
    return orjson.dumps({"error": ": ".join(filter(None, (error, place, first["message"])))})
