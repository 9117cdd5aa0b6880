"""Videos of Veo at Google's own API: long-running operations, which are asked after by name until they are done.

ai.google.dev/gemini-api/docs/veo ("Veo API parameters and specifications", "Handling asynchronous operations",
"Limitations": a video is kept for two days) and .../docs/deprecations (Veo 2 and 3 were shut down on 30 June 2026).
What the page leaves to the client libraries is as github.com/googleapis/python-genai has it for this API
(``google/genai/models.py``, ``_GenerateVideosParameters_to_mldev``, ``_Image_to_mldev``): a picture is
``bytesBase64Encoded``, and an answer's videos are in ``response.generateVideoResponse.generatedSamples``. Words of
refusals: docs.cloud.google.com, "Responsible AI for Veo".

Left out: a last frame, further pictures and the lengthening of videos, for which the convention has no words; progress,
cancelling and deleting, which are not described for these operations; videos that stand in the answer themselves
(``encodedVideo``), which this API is not said to send.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import attrs

from gateway.domain.video import Reference
from gateway.errors import (
    ContentBlocked,
    InvalidRequest,
    ProviderBadResponse,
    ProviderError,
    ProviderRejected,
)
from gateway.formats.image_backend import ProviderCall
from gateway.formats.image_data import is_web_url
from gateway.formats.image_task import parse_field
from gateway.formats.openai.errors import Secrets
from gateway.formats.request_body import Body, Inline
from gateway.formats.video_backend import (
    ContentLocation,
    ProviderTask,
    TaskStatus,
    Variant,
    VideoSpec,
    build_error,
    parse_object,
    parse_video_fault,
)

SECONDS = (8, 4, 6)
"""Lengths of Veo 3.1; the first is that of whoever names none."""
SIZES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "1280x720": ("16:9", "720p"),
        "720x1280": ("9:16", "720p"),
        "1920x1080": ("16:9", "1080p"),
        "1080x1920": ("9:16", "1080p"),
        "3840x2160": ("16:9", "4k"),
        "2160x3840": ("9:16", "4k"),
    },
)
"""``aspectRatio`` and ``resolution`` of each."""
_SMALL = "720p"
_WHOLE = 8
"""Seconds: the only length of videos that are larger than ``_SMALL``."""
_TEXTS = ("negativePrompt", "personGeneration")
_NUMBERS = ("seed",)
_UNSAYABLE = ("lastFrame", "referenceImages", "video", "image")
_NAME = re.compile(r"(?:models/[A-Za-z0-9][A-Za-z0-9._-]{0,127}/)?operations/[A-Za-z0-9_-]{1,256}\Z", re.ASCII)
_BLOCKS = ("usage guidelines", "responsible ai practices", "safety filters")
_MAX_URL = 4_096
_HTTP = range(400, 600)


class GeminiVideoBackend:
    """``VideoBackend``; see there. A task's id is its operation's name with ``~`` for every ``/``."""

    __slots__ = ()

    takes_urls = False

    def submit(self, shot: VideoSpec) -> ProviderCall:
        """One video. Raises ``InvalidRequest``."""
        stray = next((name for name in _UNSAYABLE if shot.extra.get(name) not in (None, "")), None)
        if stray is not None:
            raise InvalidRequest(f"'{stray}' is not taken: a picture to start from is 'input_reference'", param=stray)
        instance: Body = {"prompt": shot.prompt}
        if shot.reference is not None:
            instance["image"] = _build_image(shot.reference)
        said: Body = {"instances": [instance]}
        parameters = _build_parameters(shot)
        if parameters:
            said["parameters"] = parameters
        return ProviderCall(said, begins=True)

    def parse_submitted(self, raw: bytes, secrets: Secrets) -> TaskStatus:
        """An operation; it may have come to its end already."""
        value = parse_object(raw)
        if "name" not in value:
            raise _find_error(value, raw, secrets)
        name = value["name"]
        if not isinstance(name, str) or not _NAME.match(name):
            raise ProviderBadResponse("The provider gave its task no usable id")
        return attrs.evolve(_parse_operation(value, secrets), id=name.replace("/", "~"))

    def parse_refused(
        self, status: int, raw: bytes, secrets: Secrets, *, provider_retry_after_s: float | None = None
    ) -> ProviderError:
        """Google's error object; a block is said in words alone."""
        fault = parse_video_fault(status, raw, secrets, provider_retry_after_s=provider_retry_after_s)
        if type(fault) is ProviderRejected and _is_block(fault.message):
            return ContentBlocked(fault.message)
        return fault

    def poll(self, task: ProviderTask) -> ProviderCall:
        """Ask after the operation."""
        name = "/".join(quote(part, safe="") for part in task.id.split("~"))
        return ProviderCall(method="GET", path=f"/{name}", passing=True)

    def parse_polled(self, raw: bytes, secrets: Secrets) -> TaskStatus:
        """What has become of it."""
        value = parse_object(raw)
        if "name" not in value and "done" not in value:
            raise ProviderBadResponse("The provider's answer says nothing of the task")
        return _parse_operation(value, secrets)

    def find_content(self, task: ProviderTask, variant: Variant) -> ContentLocation | ProviderCall | None:
        """At an address that wants the key."""
        if variant != "video" or task.clue is None:
            return None
        return ContentLocation(url=task.clue, signed=True)

    def read_content(self, raw: bytes, secrets: Secrets) -> ContentLocation:  # noqa: ARG002 - nothing is asked
        """Never: the place is known."""
        raise ProviderBadResponse("The provider was not asked where its video is")

    def remix(self, task: ProviderTask, shot: VideoSpec) -> ProviderCall | None:  # noqa: ARG002 - nothing is offered
        """A video is lengthened here, not made anew."""
        return None

    def cancel(self, task: ProviderTask) -> ProviderCall | None:  # noqa: ARG002 - nothing is offered
        """Not described."""
        return None

    def delete(self, task: ProviderTask) -> ProviderCall | None:  # noqa: ARG002 - nothing is offered
        """Not described; videos are gone after two days."""
        return None


def _build_image(reference: Reference) -> Body:
    if reference.upload is not None:
        return {"bytesBase64Encoded": Inline(reference.upload), "mimeType": reference.upload.media_type}
    head, _, data = (reference.url or "").partition(";base64,")
    if not head.startswith("data:image/") or not data:
        raise InvalidRequest("'input_reference' must be a file, or a data: URL of a picture", param="input_reference")
    media_type = head.removeprefix("data:")
    return {"bytesBase64Encoded": data, "mimeType": "image/jpeg" if media_type == "image/jpg" else media_type}


def _build_parameters(shot: VideoSpec) -> Body:
    said: Body = {name: shot.extra[name] for name in _TEXTS if shot.extra.get(name) is not None}
    said |= {name: parse_field(shot.extra[name]) for name in _NUMBERS if shot.extra.get(name) is not None}
    tier = _SMALL
    if shot.size is not None:
        if shot.size not in SIZES:
            raise InvalidRequest(f"'size' must be one of {', '.join(SIZES)}", param="size")
        said["aspectRatio"], tier = SIZES[shot.size]
        said["resolution"] = tier
    if shot.seconds is not None:
        if shot.seconds not in SECONDS:
            raise InvalidRequest(f"'seconds' must be one of {', '.join(map(str, SECONDS))}", param="seconds")
        if tier != _SMALL and shot.seconds != _WHOLE:
            raise InvalidRequest(f"'seconds' must be {_WHOLE} for videos of that size", param="seconds")
        said["durationSeconds"] = shot.seconds
    return said


def _parse_operation(value: Body, secrets: Secrets) -> TaskStatus:
    if value.get("done") is not True:
        return TaskStatus("processing")
    error, response = value.get("error"), value.get("response")
    if isinstance(error, dict):
        return _build_failure(error.get("message"), secrets, blocked=_is_block(error.get("message")))
    if not isinstance(response, dict):
        raise ProviderBadResponse("The provider's task is done, and nothing is said of how")
    made: Any = response.get("generateVideoResponse")
    made = made if isinstance(made, dict) else {}
    url = _find_url(made.get("generatedSamples"))
    if url is not None:
        return TaskStatus("completed", progress=100, clue=url)
    reasons = made.get("raiMediaFilteredReasons")
    told = [text for text in reasons if isinstance(text, str)] if isinstance(reasons, list) else []
    count = made.get("raiMediaFilteredCount")
    return _build_failure(" ".join(told), secrets, blocked=bool(told) or (type(count) is int and count > 0))


def _build_failure(message: object, secrets: Secrets, *, blocked: bool) -> TaskStatus:
    error = build_error("content_filter" if blocked else None, message, secrets)
    return TaskStatus("failed", error=error)


def _find_url(samples: object) -> str | None:
    first: Any = samples[0] if isinstance(samples, list) and samples else None
    video = first.get("video") if isinstance(first, dict) else None
    url = video.get("uri") if isinstance(video, dict) else None
    return url if isinstance(url, str) and len(url) <= _MAX_URL and is_web_url(url) else None


def _is_block(message: object) -> bool:
    return isinstance(message, str) and any(words in message.lower() for words in _BLOCKS)


def _find_error(value: Body, raw: bytes, secrets: Secrets) -> ProviderError:
    """The fault of an answer that is no operation, though its status was a good one."""
    error = value.get("error")
    code = error.get("code") if isinstance(error, dict) else None
    if type(code) is int and code in _HTTP:
        return GeminiVideoBackend().parse_refused(code, raw, secrets)
    return ProviderBadResponse("The provider gave its task no usable id")
