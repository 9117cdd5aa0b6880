"""Videos of Veo in the Gemini API: long-running operations, polled by name until they are done.

Sources: ai.google.dev/gemini-api/docs/veo ("Veo API parameters and specifications", "Handling asynchronous operations",
"Limitations": a video is kept for two days) and .../docs/deprecations (Veo 2 and 3 were shut down on 30 June 2026).
Details missing there follow github.com/googleapis/python-genai
(``google/genai/models.py``, ``_GenerateVideosParameters_to_mldev``, ``_Image_to_mldev``): an image is
``bytesBase64Encoded``, and an answer's videos are in ``response.generateVideoResponse.generatedSamples``. Messages of
refusals: docs.cloud.google.com, "Responsible AI for Veo".

Not supported: a last frame, further images and extending a video, which the OpenAI API format cannot express; progress,
cancelling and deleting, which are not documented for these operations; videos inside the answer (``encodedVideo``),
which this API is not documented to send.
"""

import re
from collections.abc import Mapping
from urllib.parse import quote

import attrs

from gateway.domain.video import Reference
from gateway.errors import ContentBlocked, InvalidRequest, ProviderBadResponse, ProviderError, ProviderRejected
from gateway.formats.errors.openai import Secrets
from gateway.formats.images.backend import ProviderRequest
from gateway.formats.images.image_data import find_url
from gateway.formats.images.task import parse_field
from gateway.formats.videos.backend import (
    ContentLocation,
    ProviderTask,
    TaskStatus,
    Variant,
    VideoBackend,
    VideoSpec,
    build_error,
    parse_object,
    parse_video_error,
)
from gateway.formats.wire.json_values import as_list, as_object
from gateway.formats.wire.request_body import Body, InlineUpload

SECONDS = (8, 4, 6)
"""Lengths of Veo 3.1 in seconds; the first is the default."""
SIZES: Mapping[str, tuple[str, str]] = {
    "1280x720": ("16:9", "720p"),
    "720x1280": ("9:16", "720p"),
    "1920x1080": ("16:9", "1080p"),
    "1080x1920": ("9:16", "1080p"),
    "3840x2160": ("16:9", "4k"),
    "2160x3840": ("9:16", "4k"),
}
"""Sizes -> ``aspectRatio`` and ``resolution``."""
_DEFAULT_RESOLUTION = "720p"
_MAX_SECONDS = 8
"""The only length in seconds of videos larger than ``_DEFAULT_RESOLUTION``."""
_STRING_FIELDS = ("negativePrompt", "personGeneration")
_NUMBER_FIELDS = ("seed",)
_REJECTED_FIELDS = ("lastFrame", "referenceImages", "video", "image")
_OPERATION_NAME_PATTERN = re.compile(
    r"(?:models/[A-Za-z0-9][A-Za-z0-9._-]{0,127}/)?operations/[A-Za-z0-9_-]{1,256}\Z", re.ASCII
)
_BLOCK_PHRASES = ("usage guidelines", "responsible ai practices", "safety filters")
_HTTP_ERROR_STATUSES = range(400, 600)


class GeminiVideoBackend(VideoBackend):
    """Videos of Veo in the Gemini API. A task's id is the operation's name with ``~`` for each ``/``."""

    __slots__ = ()

    takes_urls = False
    name_pattern = _OPERATION_NAME_PATTERN

    def submit(self, spec: VideoSpec) -> ProviderRequest:
        rejected_field = next((name for name in _REJECTED_FIELDS if spec.extra.get(name) not in (None, "")), None)
        if rejected_field is not None:
            raise InvalidRequest(
                f"'{rejected_field}' is not supported: set 'input_reference' for the first image", param=rejected_field
            )
        instance: Body = {"prompt": spec.prompt}
        if spec.reference is not None:
            instance["image"] = _build_image(spec.reference)
        body: Body = {"instances": [instance]}
        if parameters := self.build_parameters(spec):
            body["parameters"] = parameters
        return ProviderRequest(body, starts_task=True)

    def build_parameters(self, spec: VideoSpec) -> Body:
        return _build_parameters(spec)

    def parse_submit_answer(self, raw: bytes, secrets: Secrets) -> TaskStatus:
        value = parse_object(raw)
        if "name" not in value:
            raise _find_error(value, raw, secrets)
        name = value["name"]
        if not isinstance(name, str) or not self.name_pattern.match(name):
            raise ProviderBadResponse("The provider gave its task no usable id")
        return attrs.evolve(self._parse_operation(value, secrets), id=name.replace("/", "~"))

    def parse_error_answer(
        self, status: int, raw: bytes, secrets: Secrets, *, provider_retry_after_s: float | None = None
    ) -> ProviderError:
        """Parse Google's error object. Only the message distinguishes a block by a content filter."""
        error = parse_video_error(status, raw, secrets, provider_retry_after_s=provider_retry_after_s)
        if type(error) is ProviderRejected and _mentions_content_filter(error.message):
            return ContentBlocked(error.message)
        return error

    def poll(self, task: ProviderTask) -> ProviderRequest:
        operation_name = "/".join(quote(name_part, safe="") for name_part in task.id.split("~"))
        return ProviderRequest(method="GET", path=f"/{operation_name}", repeatable=True)

    def parse_poll_answer(self, raw: bytes, secrets: Secrets) -> TaskStatus:
        value = parse_object(raw)
        if "name" not in value and "done" not in value:
            raise ProviderBadResponse("The provider's answer does not contain the task")
        return self._parse_operation(value, secrets)

    def _parse_operation(self, value: Body, secrets: Secrets) -> TaskStatus:
        if value.get("done") is not True:
            return TaskStatus("processing")
        error, response = value.get("error"), value.get("response")
        if isinstance(error, dict):
            return _build_failure(
                error.get("message"), secrets, is_block=_mentions_content_filter(error.get("message"))
            )
        if not isinstance(response, dict):
            raise ProviderBadResponse("The provider's task is done, but has neither a result nor an error")
        return self.parse_response(response, secrets)

    def parse_response(self, response: Body, secrets: Secrets) -> TaskStatus:
        result = as_object(response.get("generateVideoResponse"))
        samples = as_list(result.get("generatedSamples"))
        url = find_url(as_object(as_object(samples[0]).get("video")).get("uri")) if samples else None
        return TaskStatus("completed", progress=100, clue=url) if url else self.parse_filtered(result, secrets)

    def parse_filtered(self, result: Body, secrets: Secrets) -> TaskStatus:
        reasons = [text for text in as_list(result.get("raiMediaFilteredReasons")) if isinstance(text, str)]
        count = result.get("raiMediaFilteredCount")
        return _build_failure(" ".join(reasons), secrets, is_block=bool(reasons) or (type(count) is int and count > 0))

    def find_content(self, task: ProviderTask, variant: Variant) -> ContentLocation | ProviderRequest | None:
        if variant != "video" or task.clue is None:
            return None
        return ContentLocation(url=task.clue, is_signed=True)


def _build_image(reference: Reference) -> Body:
    if reference.upload is not None:
        return {"bytesBase64Encoded": InlineUpload(reference.upload), "mimeType": reference.upload.media_type}
    url_prefix, _, data = (reference.url or "").partition(";base64,")
    if not url_prefix.startswith("data:image/") or not data:
        raise InvalidRequest("'input_reference' must be a file, or a data: URL of an image", param="input_reference")
    media_type = url_prefix.removeprefix("data:")
    return {"bytesBase64Encoded": data, "mimeType": "image/jpeg" if media_type == "image/jpg" else media_type}


def _build_parameters(spec: VideoSpec) -> Body:
    parameters: Body = {name: spec.extra[name] for name in _STRING_FIELDS if spec.extra.get(name) is not None}
    parameters |= {name: parse_field(spec.extra[name]) for name in _NUMBER_FIELDS if spec.extra.get(name) is not None}
    resolution = _DEFAULT_RESOLUTION
    if spec.size is not None:
        if spec.size not in SIZES:
            raise InvalidRequest(f"'size' must be one of {', '.join(SIZES)}", param="size")
        parameters["aspectRatio"], resolution = SIZES[spec.size]
        parameters["resolution"] = resolution
    if spec.seconds is not None:
        if spec.seconds not in SECONDS:
            raise InvalidRequest(f"'seconds' must be one of {', '.join(map(str, SECONDS))}", param="seconds")
        if resolution != _DEFAULT_RESOLUTION and spec.seconds != _MAX_SECONDS:
            raise InvalidRequest(f"'seconds' must be {_MAX_SECONDS} for videos of that size", param="seconds")
        parameters["durationSeconds"] = spec.seconds
    return parameters


def _build_failure(message: object, secrets: Secrets, *, is_block: bool) -> TaskStatus:
    error = build_error("content_filter" if is_block else None, message, secrets)
    return TaskStatus("failed", error=error)


def _mentions_content_filter(message: object) -> bool:
    return isinstance(message, str) and any(phrase in message.lower() for phrase in _BLOCK_PHRASES)


def _find_error(value: Body, raw: bytes, secrets: Secrets) -> ProviderError:
    code = as_object(value.get("error")).get("code")
    if type(code) is int and code in _HTTP_ERROR_STATUSES:
        return GeminiVideoBackend().parse_error_answer(code, raw, secrets)
    return ProviderBadResponse("The provider gave its task no usable id")
