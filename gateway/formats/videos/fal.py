"""Videos of models at fal: requests in a queue, polled until they are completed.

fal.ai/docs/documentation/model-apis/inference/queue and fal.ai/docs/inference-api/queue/…: ``POST /OWNER/APP/PATH``
adds a request, ``GET /OWNER/APP/requests/ID/status`` polls it, ``GET …/requests/ID`` returns the model's answer, ``PUT
…/requests/ID/cancel`` cancels it. The state of a failed request is also COMPLETED, with ``error`` and ``error_type``
(github.com/fal-ai/fal, ``fal_client/client.py``, ``Completed``). The retention of answers depends on the account's
payload storage settings.

Each model has its own fields; for those in ``MODELS`` see fal.ai/models/OWNER/MODEL/llms.txt. The variant that starts
from an image has the path ``image-to-video`` below the model. Sound costs extra and is on by default. Turning it off is
rejected, because the price would differ.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import attrs

from gateway.errors import ProviderBadResponse
from gateway.formats.errors.openai import Secrets
from gateway.formats.images.backend import ProviderRequest
from gateway.formats.images.task import parse_field
from gateway.formats.vendor_models import find_model
from gateway.formats.videos.backend import (
    ContentLocation,
    ProviderTask,
    TaskState,
    TaskStatus,
    Variant,
    VideoBackend,
    VideoSpec,
    build_error,
    build_reference,
    check_fixed_fields,
    check_size_and_seconds,
    parse_id,
    parse_object,
    parse_video_url,
)
from gateway.formats.videos.sizes import VideoSizes, list_video_sizes
from gateway.formats.wire.json_values import as_object
from gateway.formats.wire.request_body import Body
from gateway.frozen import frozen

REQUESTS_PATH = "/requests"
_IMAGE_TO_VIDEO_PATH = "image-to-video"
_ANSWER_CLUE = "answer"
"""The clue of every completed request. The video's URL is in the request's answer."""
_NAMESPACES = ("workflows", "comfy")
"""First parts of model names that precede the owner."""
_WIDE_RATIOS = {"16:9": (16, 9), "9:16": (9, 16)}
_ALL_RATIOS = _WIDE_RATIOS | {"4:3": (4, 3), "3:4": (3, 4), "21:9": (21, 9), "9:21": (9, 21)}
_HD_LINES = {"720p": 720, "1080p": 1080}
_VEO_SECONDS = (8, 4, 6)
_VEO_FIELDS = ("negative_prompt", "seed")
_FIXED_FIELDS: Mapping[str, object] = (
    {"generate_audio": True}
    | dict.fromkeys(("enable_safety_checker", "safety_tolerance", "sync_mode", "image_url", "end_image_url"), None)
    | dict.fromkeys(("duration", "resolution", "aspect_ratio"), None)
)
"""Fields that are rejected unless they have the value given here, which applies anyway."""
_STATES: Mapping[str, TaskState] = {"IN_QUEUE": "queued", "IN_PROGRESS": "processing"}


@frozen
class FalVideoModel:
    """Options of a model: lengths (default first), sizes, and the model fields that a client may set."""

    seconds: tuple[int, ...]
    sizes: VideoSizes
    extra_fields: tuple[str, ...]


_VEO_MODEL = FalVideoModel(_VEO_SECONDS, list_video_sizes(_HD_LINES, _WIDE_RATIOS), _VEO_FIELDS)
MODELS: Mapping[str, FalVideoModel] = {
    "fal-ai/veo3.1": attrs.evolve(_VEO_MODEL, sizes=list_video_sizes(_HD_LINES | {"4k": 2160}, _WIDE_RATIOS)),
    "fal-ai/veo3.1/lite": _VEO_MODEL,
    "fal-ai/veo3": _VEO_MODEL,
    "fal-ai/veo3/fast": _VEO_MODEL,
    "fal-ai/luma-dream-machine/ray-2-flash": FalVideoModel(
        (5, 9), list_video_sizes({"540p": 540, **_HD_LINES}, _ALL_RATIOS), ("loop",)
    ),
}


class FalVideoBackend(VideoBackend):
    """Videos from fal's queue."""

    __slots__ = ()

    def submit(self, spec: VideoSpec) -> ProviderRequest:
        model = find_model(MODELS, spec.model)
        check_size_and_seconds(spec, model.sizes, model.seconds)
        check_fixed_fields(spec.extra, _FIXED_FIELDS)
        body: Body = {"prompt": spec.prompt}
        if spec.size is not None:
            body["aspect_ratio"], body["resolution"] = model.sizes[spec.size]
        if spec.seconds is not None:
            body["duration"] = f"{spec.seconds}s"
        for name in model.extra_fields:
            if spec.extra.get(name) not in (None, ""):
                body[name] = spec.extra[name] if name == "negative_prompt" else parse_field(spec.extra[name])
        if spec.reference is None:
            return ProviderRequest(body, path=f"/{spec.model}", starts_task=True)
        body["image_url"] = build_reference(spec.reference)
        return ProviderRequest(body, path=f"/{spec.model}/{_IMAGE_TO_VIDEO_PATH}", starts_task=True)

    def parse_submit_answer(self, raw: bytes, secrets: Secrets) -> TaskStatus:  # noqa: ARG002 - there is nothing to mask
        return TaskStatus("queued", id=parse_id(parse_object(raw).get("request_id")))

    def poll(self, task: ProviderTask) -> ProviderRequest:
        return ProviderRequest(method="GET", path=f"{_build_path(task)}/status", repeatable=True)

    def parse_poll_answer(self, raw: bytes, secrets: Secrets) -> TaskStatus:
        value = parse_object(raw)
        state = value.get("status")
        if not isinstance(state, str):
            raise ProviderBadResponse("The provider's answer says nothing of a task")
        if state != "COMPLETED":
            return TaskStatus(_STATES.get(state))
        if value.get("error") or value.get("error_type"):
            return TaskStatus("failed", error=build_error(value.get("error_type"), value.get("error"), secrets))
        return TaskStatus("completed", progress=100, clue=_ANSWER_CLUE)

    def find_content(self, task: ProviderTask, variant: Variant) -> ContentLocation | ProviderRequest | None:
        """Return the request for the model's answer, which has the video's public URL; None for another variant."""
        return ProviderRequest(method="GET", path=_build_path(task), repeatable=True) if variant == "video" else None

    def parse_content_location(self, raw: bytes, secrets: Secrets) -> ContentLocation:  # noqa: ARG002 - there is nothing to mask
        video: Any = as_object(parse_object(raw).get("video"))
        return ContentLocation(url=parse_video_url(video.get("url")))

    def cancel(self, task: ProviderTask) -> ProviderRequest | None:
        """Return the request that cancels a task. A running task may continue, because it is only asked to stop."""
        return ProviderRequest(method="PUT", path=f"{_build_path(task)}/cancel", repeatable=True)


def _build_path(task: ProviderTask) -> str:
    """Return the path of a task. It is below the app (``OWNER/APP``), even if the model's name has more parts."""
    model_parts = task.model.split("/")
    app = "/".join(quote(part, safe="") for part in model_parts[: 3 if model_parts[0] in _NAMESPACES else 2])
    return f"/{app}{REQUESTS_PATH}/{quote(task.id, safe='')}"
