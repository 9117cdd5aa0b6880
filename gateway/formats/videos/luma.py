"""Videos of Luma (Ray): generations that start from text or from an image, polled until they end.

docs.agents.lumalabs.ai, whose types are in the package ``luma-agents`` (github.com/lumalabs/luma-agents-python):
``GenerationCreateParams``, ``VideoOptionsParam``, ``Generation`` and ``GenerationFailureCode``. URLs in an answer are
valid for one hour; each later answer has new ones. This API replaces the Dream Machine API (docs.lumalabs.ai), which
has other keys and models and is not supported.

A model accepts a resolution and an aspect ratio, which a size represents, because the pixels are not documented. A
video that starts from an image has the image's aspect ratio. Rejected: ``hdr`` and ``exr_export``, which change the
price, and features that the OpenAI API format cannot express: further frames, editing and reframing. Cancelling,
deleting and progress are not documented.
"""

from collections.abc import Mapping

import attrs

from gateway.domain.video import Reference
from gateway.errors import InvalidRequest, ProviderBadResponse
from gateway.formats.errors.openai import Secrets
from gateway.formats.images.backend import ProviderRequest
from gateway.formats.images.image_data import is_web_url
from gateway.formats.images.task import parse_field
from gateway.formats.vendor_models import find_model
from gateway.formats.videos.backend import (
    ContentLocation,
    ProviderTask,
    TaskState,
    TaskStatus,
    VideoBackend,
    VideoSpec,
    build_error,
    build_task_path,
    check_fixed_fields,
    check_size_and_seconds,
    parse_id,
    parse_object,
    parse_video_url,
)
from gateway.formats.videos.sizes import VideoSizes, list_video_sizes
from gateway.formats.wire.json_values import list_objects
from gateway.formats.wire.request_body import Body, InlineUpload
from gateway.frozen import frozen

GENERATIONS_PATH = "/generations"
_TIERS = {"720p": 720, "540p": 540, "360p": 360, "1080p": 1080}
"""Resolutions -> pixels of the shorter side, the default first."""
_RATIOS = {"16:9": (16, 9), "9:16": (9, 16), "1:1": (1, 1), "4:3": (4, 3), "3:4": (3, 4), "21:9": (21, 9)}
_LOOP_SECONDS = 5
"""The only length in seconds of a looping video."""
_FIXED_FIELDS: Mapping[str, object] = dict.fromkeys(("hdr", "exr_export"), False) | dict.fromkeys(
    ("type", "source", "style", "image_ref", "keyframes", "start_frame", "end_frame", "edit", "video"), None
)
"""Fields that are rejected unless they have the value given here, which applies anyway."""
_STATES: Mapping[str, TaskState] = {"queued": "queued", "processing": "processing"}


@frozen
class LumaModel:
    """Options of a model: lengths (default first) and sizes."""

    seconds: tuple[int, ...]
    sizes: VideoSizes


MODELS: Mapping[str, LumaModel] = {"ray-3.2": LumaModel((5, 10), list_video_sizes(_TIERS, _RATIOS))}


class LumaVideoBackend(VideoBackend):
    """Videos from Luma."""

    __slots__ = ()

    def submit(self, spec: VideoSpec) -> ProviderRequest:
        model = find_model(MODELS, spec.model)
        check_size_and_seconds(spec, model.sizes, model.seconds)
        check_fixed_fields(spec.extra, _FIXED_FIELDS)
        body: Body = {"model": spec.model, "type": "video", "prompt": spec.prompt}
        options: Body = {}
        if spec.size is not None:
            ratio, options["resolution"] = model.sizes[spec.size]
            if spec.reference is None:
                body["aspect_ratio"] = ratio
        if spec.seconds is not None:
            options["duration"] = f"{spec.seconds}s"
        if spec.reference is not None:
            options |= {"keyframes": [_build_image(spec.reference)], "keyframe_indexes": [0]}
        if parse_field(spec.extra.get("loop")) is True:
            _check_loop(spec)
            options["loop"] = True
        return ProviderRequest(body | {"video": options} if options else body, path=GENERATIONS_PATH, starts_task=True)

    def parse_submit_answer(self, raw: bytes, secrets: Secrets) -> TaskStatus:
        value = parse_object(raw)
        return attrs.evolve(_parse_generation(value, secrets), id=parse_id(value.get("id")))

    def poll(self, task: ProviderTask) -> ProviderRequest:
        return ProviderRequest(method="GET", path=build_task_path(GENERATIONS_PATH, task), repeatable=True)

    def parse_poll_answer(self, raw: bytes, secrets: Secrets) -> TaskStatus:
        return _parse_generation(parse_object(raw), secrets)

    def parse_content_location(self, raw: bytes, secrets: Secrets) -> ContentLocation:  # noqa: ARG002 - there is nothing to mask
        return ContentLocation(url=_parse_address(parse_object(raw)))


def _check_loop(spec: VideoSpec) -> None:
    if spec.reference is not None or spec.seconds not in (None, _LOOP_SECONDS):
        raise InvalidRequest(
            f"'loop' is only for videos of {_LOOP_SECONDS} seconds without a first image", param="loop"
        )


def _build_image(reference: Reference) -> Body:
    """Return a reference image in the provider's form.

    Raises ``InvalidRequest`` unless it is a file, a web URL or a ``data:`` URL of an image in base64.
    """
    if reference.upload is not None:
        return {"data": InlineUpload(reference.upload), "media_type": reference.upload.media_type}
    url = reference.url or ""
    if is_web_url(url):
        return {"url": url}
    url_prefix, _, data = url.partition(";base64,")
    if not url_prefix.startswith("data:image/") or not data:
        message = "'input_reference' must be an image: a file, an address or a data: URL"
        raise InvalidRequest(message, param="input_reference")
    return {"data": data, "media_type": url_prefix.removeprefix("data:")}


def _parse_generation(value: Body, secrets: Secrets) -> TaskStatus:
    state = value.get("state")
    if not isinstance(state, str):
        raise ProviderBadResponse("The provider's answer does not contain the task")
    if state == "completed":
        return TaskStatus("completed", progress=100, clue=_parse_address(value))
    if state == "failed":
        return TaskStatus("failed", error=build_error(value.get("failure_code"), value.get("failure_reason"), secrets))
    return TaskStatus(_STATES.get(state))


def _parse_address(value: Body) -> str:
    outputs = [output for output in list_objects(value.get("output")) if output.get("type", "video") == "video"]
    return parse_video_url(outputs[0].get("url") if outputs else None)
