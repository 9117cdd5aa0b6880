"""Videos of Runway: tasks that start from text or from an image, polled until they end.

docs.dev.runwayml.com/api, whose schema is github.com/runwayml/openapi (``openapi.json``): paths, fields, the states of
a task, rejections. docs.dev.runwayml.com/assets/inputs (images by https addresses or ``data:`` URLs),
.../errors/task-failures (``SAFETY.…``) and .../errors/errors. The answer to an account without credits:
github.com/runwayml/sdk-node/issues/28. Addresses in an answer are valid for a day or two; each later answer has new
ones.

Rejected: ``audio``, ``outputFormat`` and ``proresProfile``, which change the price, ``contentModeration``, which only
the owner of the account may change, and other inputs to start from. Not supported: models with other size fields
(``hailuo3``, ``grok_imagine_1_5``, ``happyhorse_1_0``, ``wan3``, ``h3_max``), models that start from videos, and the
400 of a filter before there is a task, which is not documented.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from gateway.domain.video import Reference
from gateway.errors import InvalidRequest, ProviderAuthError, ProviderBadResponse, ProviderError, ProviderRejected
from gateway.formats.errors.openai import Secrets
from gateway.formats.images.backend import ProviderRequest
from gateway.formats.images.image_data import is_web_url
from gateway.formats.images.task import parse_field
from gateway.formats.videos.backend import (
    ContentLocation,
    ProviderTask,
    TaskStatus,
    VideoBackend,
    VideoSpec,
    build_error,
    build_task_path,
    check_fixed_fields,
    check_reference,
    check_size_and_seconds,
    parse_id,
    parse_object,
    parse_sides,
    parse_video_error,
    parse_video_url,
)
from gateway.formats.wire.json_values import as_list, as_object, loads_or_none
from gateway.formats.wire.request_body import Body, InlineUpload, build_data_url
from gateway.frozen import frozen

TEXT_TO_VIDEO_PATH = "/text_to_video"
IMAGE_TO_VIDEO_PATH = "/image_to_video"
TASKS_PATH = "/tasks"
_VERSION_HEADER = ("X-Runway-Version", "2024-11-06")
"""The API version, sent with every request."""
_QUEUED_STATES = ("PENDING", "THROTTLED")
_EXHAUSTED_CREDIT_PHRASE = "not have enough credits"

_SEED_FIELDS = ("seed",)
_EXTRA_FIELDS = ("seed", "negativePrompt")
"""Fields that a client may set beside those of the OpenAI API format."""
_FIELD_ALIASES = (("negative_prompt", "negativePrompt"),)
"""Other providers' names of fields in ``_EXTRA_FIELDS``, with Runway's names."""
_FIXED_FIELDS: Mapping[str, object] = {
    "audio": True,
    "outputFormat": "mp4",
    "proresProfile": None,
    "contentModeration": None,
    "promptImage": None,
    "references": None,
    "referenceAudio": None,
    "referenceVideos": None,
}
"""Fields that are rejected unless they have the value given here, which applies anyway."""


@frozen
class RunwayModel:
    """Options of a model.

    Attributes:
        seconds: lengths of a video, the default first.
        sizes: sizes of a video from text; empty if the model requires an image.
        image_sizes: further sizes of a video that starts from an image.
        extra_fields: the supported fields of ``_EXTRA_FIELDS``.
    """

    seconds: tuple[int, ...]
    sizes: tuple[str, ...] = ()
    image_sizes: tuple[str, ...] = ()
    extra_fields: tuple[str, ...] = _SEED_FIELDS


_SECONDS_2_TO_10 = (5, 2, 3, 4, 6, 7, 8, 9, 10)
_SECONDS_3_TO_10 = (5, 3, 4, 6, 7, 8, 9, 10)
_SECONDS_4_TO_15 = (5, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
_VEO_SECONDS = (8, 4, 6)
_HD_SIZES = ("1280x720", "720x1280")
_VEO_SIZES = (*_HD_SIZES, "1920x1080", "1080x1920")
_GEN4_SIZES = ("1104x832", "960x960", "832x1104", "1584x672")
_SMALL_SIZES = (
    "1280x720", "720x1280", "960x960", "1112x834", "834x1112", "1470x630",
    "864x496", "496x864", "640x640", "752x560", "560x752", "992x432",
)  # fmt: skip
_LARGE_SIZES = (
    "1920x1080", "1080x1920", "1440x1440", "1664x1248", "1248x1664", "2206x946",
    "3840x2160", "2160x3840", "3840x3840", "3840x2880", "2880x3840", "3840x1646",
)  # fmt: skip
MODELS: Mapping[str, RunwayModel] = {
    "gen4.5": RunwayModel(_SECONDS_2_TO_10, _HD_SIZES, _GEN4_SIZES),
    "gen4_turbo": RunwayModel(_SECONDS_2_TO_10, (), (*_HD_SIZES, *_GEN4_SIZES)),
    "veo3.1": RunwayModel(_VEO_SECONDS, _VEO_SIZES, extra_fields=_EXTRA_FIELDS),
    "veo3.1_fast": RunwayModel(_VEO_SECONDS, _VEO_SIZES, extra_fields=_EXTRA_FIELDS),
    "seedance2": RunwayModel(_SECONDS_4_TO_15, (*_SMALL_SIZES, *_LARGE_SIZES)),
    "seedance2_fast": RunwayModel(_SECONDS_4_TO_15, _SMALL_SIZES),
    "seedance2_mini": RunwayModel(_SECONDS_4_TO_15, _SMALL_SIZES),
    "gemini_omni_flash": RunwayModel(_SECONDS_3_TO_10, _HD_SIZES, extra_fields=()),
}
"""Any other model gets the length, the size and all of ``_EXTRA_FIELDS`` as the client sets them, unchecked."""


class RunwayVideoBackend(VideoBackend):
    """Videos from Runway."""

    __slots__ = ()

    def submit(self, spec: VideoSpec) -> ProviderRequest:
        check_fixed_fields(spec.extra, _FIXED_FIELDS)
        model = MODELS.get(spec.model)
        if model is not None:
            _check_spec(spec, model)
        body: Body = {"model": spec.model, "promptText": spec.prompt}
        if spec.reference is not None:
            body["promptImage"] = [{"uri": _build_image(spec.reference), "position": "first"}]
        if spec.size is not None:
            body["ratio"] = "{}:{}".format(*parse_sides(spec.size))
        if spec.seconds is not None:
            body["duration"] = spec.seconds
        extra_fields = {**{name: spec.extra.get(alias) for alias, name in _FIELD_ALIASES}, **spec.extra}
        for name in _EXTRA_FIELDS if model is None else model.extra_fields:
            if extra_fields.get(name) is not None:
                body[name] = extra_fields[name] if name == "negativePrompt" else parse_field(extra_fields[name])
        return ProviderRequest(
            body,
            path=TEXT_TO_VIDEO_PATH if spec.reference is None else IMAGE_TO_VIDEO_PATH,
            starts_task=True,
            headers=(_VERSION_HEADER,),
        )

    def parse_submit_answer(self, raw: bytes, secrets: Secrets) -> TaskStatus:  # noqa: ARG002 - there is nothing to mask
        return TaskStatus("queued", id=parse_id(parse_object(raw).get("id")))

    def parse_error_answer(
        self, status: int, raw: bytes, secrets: Secrets, *, provider_retry_after_s: float | None = None
    ) -> ProviderError:
        """Parse an error as in the base class, but name the invalid field and recognize an account without credit."""
        error = parse_video_error(status, _add_issue(raw), secrets, provider_retry_after_s=provider_retry_after_s)
        if isinstance(error, ProviderRejected) and _EXHAUSTED_CREDIT_PHRASE in error.message:
            credit_error = ProviderAuthError(
                f"The provider's account has nothing left: {error.message}", should_retry=False
            )
            credit_error.out_of_credit = True
            return credit_error
        return error

    def poll(self, task: ProviderTask) -> ProviderRequest:
        return ProviderRequest(
            method="GET", path=build_task_path(TASKS_PATH, task), repeatable=True, headers=(_VERSION_HEADER,)
        )

    def parse_poll_answer(self, raw: bytes, secrets: Secrets) -> TaskStatus:
        """Parse the task's state.

        Raises ``ProviderBadResponse`` for an answer without a state, and for a task that succeeded without a video.
        """
        value = parse_object(raw)
        status = value.get("status")
        if not isinstance(status, str):
            raise ProviderBadResponse("The provider's answer says nothing of a task")
        if status in _QUEUED_STATES:
            return TaskStatus("queued")
        if status == "RUNNING":
            return TaskStatus("processing", progress=_parse_progress(value.get("progress")))
        if status == "SUCCEEDED":
            return TaskStatus("completed", clue=_parse_address(value.get("output")))
        if status == "FAILED":
            return TaskStatus("failed", error=build_error(value.get("failureCode"), value.get("failure"), secrets))
        if status == "CANCELLED":
            return TaskStatus("failed", error=build_error(None, "The task was cancelled at the provider", secrets))
        return TaskStatus()

    def parse_content_location(self, raw: bytes, secrets: Secrets) -> ContentLocation:  # noqa: ARG002 - there is nothing to mask
        return ContentLocation(url=_parse_address(parse_object(raw).get("output")))

    def cancel(self, task: ProviderTask) -> ProviderRequest | None:
        """Return the request to cancel a task, after which the task no longer exists."""
        return ProviderRequest(
            method="DELETE", path=build_task_path(TASKS_PATH, task), repeatable=True, headers=(_VERSION_HEADER,)
        )

    def delete(self, task: ProviderTask) -> ProviderRequest | None:
        """Return the request to delete a task: the same as ``cancel``, which deletes a task that has ended."""
        return self.cancel(task)


def _check_spec(spec: VideoSpec, model: RunwayModel) -> None:
    check_reference(spec, needs_image=not model.sizes)
    sizes = model.sizes if spec.reference is None else (*model.sizes, *model.image_sizes)
    check_size_and_seconds(spec, sizes, model.seconds)


def _build_image(reference: Reference) -> InlineUpload | str:
    """Return a reference image in the provider's form.

    Raises ``InvalidRequest`` unless it is a file, an https URL or a ``data:`` URL of an image.
    """
    if reference.upload is not None:
        return build_data_url(reference.upload)
    url = reference.url or ""
    if not url.startswith("data:image/") and not (url.startswith("https://") and is_web_url(url)):
        message = "'input_reference' must be an image: a file, an https address or a data: URL"
        raise InvalidRequest(message, param="input_reference")
    return url


def _parse_address(output: object) -> str:
    return parse_video_url(output[0] if isinstance(output, list) and output else None)


def _parse_progress(value: object) -> int | None:
    return int(value * 100) if isinstance(value, int | float) and type(value) is not bool and 0 <= value <= 1 else None


def _add_issue(raw: bytes) -> bytes:
    """Return a rejection with the first of its ``issues`` added to the message.

    The message alone only says that something is wrong. A rejection without a message or issues is returned unchanged.
    """
    value = as_object(loads_or_none(raw))
    error: Any = value.get("error")
    issue = as_object(next(iter(as_list(value.get("issues"))), None))
    if not isinstance(error, str) or not isinstance(issue.get("message"), str):
        return raw
    path = ".".join(str(part) for part in as_list(issue.get("path")) if isinstance(part, str | int))
    return orjson.dumps({"error": ": ".join(filter(None, (error, path, issue["message"])))})
