"""The interface of video backends: build the requests that get videos from a provider, and parse its answers. No I/O.

A job outlives a process, so a ``VideoBackend`` has no state: arguments carry everything about a task. The functions are
helpers that the backends share.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Literal
from urllib.parse import quote

import attrs
import orjson

from gateway.domain.video import BLOCKED_CODE, FAILED_CODE, Reference, VideoError
from gateway.errors import ContentBlocked, InvalidRequest, ProviderBadResponse, ProviderError
from gateway.formats.errors.content_filter import NON_FILTER_STATUSES, build_verdict, find_block_message, is_block
from gateway.formats.errors.openai import Secrets, mask, write_reason
from gateway.formats.errors.vendor import parse_reason, parse_worded_error
from gateway.formats.images.backend import ProviderRequest
from gateway.formats.images.image_data import find_url, is_web_url
from gateway.formats.images.task import parse_field
from gateway.formats.wire.json_values import loads_or_none
from gateway.formats.wire.request_body import Body, InlineUpload, build_data_url
from gateway.frozen import frozen

TaskState = Literal["queued", "processing", "completed", "failed"]
Variant = Literal["video", "thumbnail", "spritesheet"]

MAX_ID_CHARS = 512
_TASK_ID_PATTERN = re.compile(r"[A-Za-z0-9._:=~-]{1,512}\Z")
_SIZE_PATTERN = re.compile(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})\Z", re.ASCII)
_IP_ADDRESS_PATTERN = re.compile(r"\b[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?::[0-9]{1,5})?\b")
_MAX_MESSAGE_CHARS = 500
_MAX_CODE_CHARS = 100
_MAX_REASON_CHARS = 300
_OK_STATUS = 200
BLOCKED_TEXT = "The provider's safety filter blocked the video or its prompt"


@frozen(eq=False)
class VideoSpec:
    """A request for a video.

    Attributes:
        mark: the gateway's job id.
        seconds: length of the video; None if the client set none and the model's default is unknown.
        size: size of the video, such as ``1280x720``; None if the client set none and the default is unknown.
        extra: the other fields of the client's body, named as in the OpenAI API format or by the provider.
    """

    model: str
    prompt: str = attrs.field(repr=False)
    mark: str
    seconds: int | None = None
    size: str | None = None
    reference: Reference | None = None
    extra: Body = attrs.field(factory=dict, repr=False)


@frozen
class ProviderTask:
    """A task at a provider: its id, the provider's model name, and the last ``clue`` (see ``TaskStatus``)."""

    id: str
    model: str
    clue: str | None = attrs.field(default=None, repr=False)


@frozen
class TaskStatus:
    """The status of a task as parsed from an answer.

    Attributes:
        state: None if unknown; the task is then assumed to be running.
        id: the provider's task id; None except in the answer to a submit.
        progress: percentage; None if the provider reports none.
        clue: the location of a completed task's video, in a form that only its backend reads.
        seconds: length of the video; None if the provider reports none.
        size: size of the video; None if the provider reports none.
    """

    state: TaskState | None = None
    id: str | None = None
    progress: int | None = None
    error: VideoError | None = None
    clue: str | None = attrs.field(default=None, repr=False)
    seconds: str | None = None
    size: str | None = None


@frozen
class ContentLocation:
    """The location of a file: a ``path`` below the channel's base URL, or a ``url``.

    Attributes:
        is_signed: whether the channel's key is sent along if the file is on the channel's own server.
    """

    path: str | None = None
    url: str | None = attrs.field(default=None, repr=False)
    is_signed: bool = False


class VideoBackend(ABC):
    """One provider's video API. Every method depends only on its arguments.

    By default a task's ``clue`` is the URL of its video, and remix, cancel and delete are unsupported.
    """

    __slots__ = ()

    takes_urls = True
    """Whether the provider fetches a reference image from its URL; otherwise the gateway fetches and sends the file."""
    inline_videos = False
    """Whether the status answer of a completed task contains the video, which ``read_video`` decodes."""

    @abstractmethod
    def submit(self, spec: VideoSpec) -> ProviderRequest:
        """Return the request that starts a task. Raises ``InvalidRequest`` naming an unsupported field."""

    @abstractmethod
    def parse_submit_answer(self, raw: bytes, secrets: Secrets) -> TaskStatus:
        """Parse a successful (2xx) answer to a submit into a status with an ``id``. Raises ``ProviderError``."""

    def parse_error_answer(
        self, status: int, raw: bytes, secrets: Secrets, *, provider_retry_after_s: float | None = None
    ) -> ProviderError:
        return parse_video_error(status, raw, secrets, provider_retry_after_s=provider_retry_after_s)

    @abstractmethod
    def poll(self, task: ProviderTask) -> ProviderRequest: ...

    @abstractmethod
    def parse_poll_answer(self, raw: bytes, secrets: Secrets) -> TaskStatus: ...

    def find_content(self, task: ProviderTask, variant: Variant) -> ContentLocation | ProviderRequest | None:
        """Return the location of a completed task's file, or the request that gets it; None for a missing variant."""
        if variant != "video":
            return None
        return ContentLocation(url=task.clue) if task.clue else self.poll(task)

    def parse_content_location(self, raw: bytes, secrets: Secrets) -> ContentLocation:  # noqa: ARG002
        raise ProviderBadResponse("The provider was not asked where its video is")

    def read_video(self, raw: bytes) -> bytes:  # noqa: ARG002
        """Return the video in a successful (2xx) answer. Raises ``ProviderBadResponse`` if it has no video."""
        raise ProviderBadResponse("The provider was not asked for its video")

    def remix(self, task: ProviderTask, spec: VideoSpec) -> ProviderRequest | None:  # noqa: ARG002
        """Return the request that remakes a video with another prompt, answered like a submit; None if unsupported."""
        return None

    def cancel(self, task: ProviderTask) -> ProviderRequest | None:  # noqa: ARG002
        return None

    def delete(self, task: ProviderTask) -> ProviderRequest | None:  # noqa: ARG002
        return None


def check_size_and_seconds(spec: VideoSpec, sizes: Collection[str], seconds: Collection[int]) -> None:
    """Raise ``InvalidRequest`` for a size or a duration that a model does not support."""
    if spec.size is not None and spec.size not in sizes:
        raise InvalidRequest(f"'size' must be one of {', '.join(sizes)}", param="size")
    if spec.seconds is not None and spec.seconds not in seconds:
        lengths = ", ".join(map(str, sorted(seconds)))
        raise InvalidRequest(f"'seconds' must be one of {lengths}", param="seconds")


def check_reference(spec: VideoSpec, *, takes_image: bool = True, needs_image: bool = False) -> None:
    """Raise ``InvalidRequest`` for an unsupported reference image, or a missing one that the model requires."""
    if spec.reference is not None and not takes_image:
        raise InvalidRequest("The model takes no first image", param="input_reference")
    if spec.reference is None and needs_image:
        raise InvalidRequest("The model needs a first image", param="input_reference")


def check_fixed_fields(extra_fields: Body, fixed_fields: Mapping[str, object]) -> None:
    """Raise ``InvalidRequest`` for a provider's field whose value differs from that in ``fixed_fields``.

    If the gateway dropped such an option, the client would miss its effect. If the gateway forwarded the option, costs
    could arise that are not charged.
    """
    for name, fixed_value in fixed_fields.items():
        if parse_field(extra_fields.get(name)) not in (None, "", fixed_value):
            raise InvalidRequest(f"'{name}' is not supported", param=name)


def build_reference(reference: Reference) -> InlineUpload | str:
    """Return a reference image in the form that is sent: a file, a web URL or a ``data:`` URL.

    Raises ``InvalidRequest`` for anything else: clients may not name files stored at the provider.
    """
    if reference.upload is not None:
        return build_data_url(reference.upload)
    url = reference.url or ""
    if not url.startswith("data:image/") and not is_web_url(url):
        message = "'input_reference' must be an image: a file, an address or a data: URL"
        raise InvalidRequest(message, param="input_reference")
    return url


def build_task_path(base_path: str, task: ProviderTask) -> str:
    """Return the path of a task. ``base_path`` is the path of all tasks."""
    return f"{base_path}/{quote(task.id, safe='')}"


def parse_video_url(value: object) -> str:
    """Return ``value`` if it is a usable web URL, else raise ``ProviderBadResponse``."""
    url = find_url(value)
    if url is None:
        raise ProviderBadResponse("The provider's task has no video with a usable address")
    return url


def parse_message(value: Body, secrets: Secrets) -> str:
    """Return the masked ``message`` and ``code`` of an error, or a sentence that the provider gave no reason."""
    message = value.get("message")
    return write_reason(
        message[: 2 * _MAX_REASON_CHARS] if isinstance(message, str) else None, value.get("code"), secrets
    )


def parse_id(task_id: object) -> str:
    """Return ``task_id`` as a task id. Raises ``ProviderBadResponse`` if it cannot be used in a path."""
    if not isinstance(task_id, str) or not _TASK_ID_PATTERN.match(task_id) or task_id.strip(".") == "":
        raise ProviderBadResponse("The provider gave its task no usable id")
    return task_id


def parse_object(raw: bytes) -> Body:
    """Parse an answer's JSON object. Raises ``ProviderBadResponse`` for anything else."""
    value = loads_or_none(raw)
    if not isinstance(value, dict):
        raise ProviderBadResponse("The provider's answer is not a JSON object")
    return value


def parse_progress(value: object) -> int | None:
    """Return ``value`` if it is an integer from 0 to 100, else None."""
    return value if type(value) is int and 0 <= value <= 100 else None  # noqa: PLR2004


def parse_sides(size: str) -> tuple[int, int]:
    """Parse ``1280x720`` into width and height. Raises ``InvalidRequest``."""
    match = _SIZE_PATTERN.match(size)
    if match is None:
        raise InvalidRequest("'size' must be width and height as in 1280x720", param="size")
    return int(match[1]), int(match[2])


def build_error(code: object, message: object, secrets: Secrets) -> VideoError:
    """Build the masked error of a failed task; a content filter block has its own error code."""
    code_text = str(code) if type(code) is int else code if isinstance(code, str) else ""
    masked_message = (
        _IP_ADDRESS_PATTERN.sub("[masked]", mask(message, secrets))[:_MAX_MESSAGE_CHARS]
        if isinstance(message, str)
        else ""
    )
    if is_block(code_text, masked_message):
        return VideoError(BLOCKED_CODE, masked_message or BLOCKED_TEXT)
    return VideoError(
        FAILED_CODE,
        write_reason(masked_message[: _MAX_MESSAGE_CHARS - _MAX_CODE_CHARS], code_text[: _MAX_CODE_CHARS - 3], secrets),
    )


def parse_video_error(
    status: int, raw: bytes, secrets: Secrets, *, provider_retry_after_s: float | None = None
) -> ProviderError:
    """Convert an unsuccessful answer (not 2xx), in any of the usual shapes, into an error.

    A safety block becomes ``ContentBlocked``; ``ImageBlocked`` is only for images and has another code.
    """
    if status not in NON_FILTER_STATUSES:
        is_filtered, message = find_block_message(loads_or_none(raw))
        if is_filtered:
            return ContentBlocked(build_verdict(BLOCKED_TEXT, message, secrets))
    return parse_worded_error(status, raw, secrets, provider_retry_after_s=provider_retry_after_s)


def make_refusal_error(code: str, message: str, secrets: Secrets, status: int) -> ProviderError:
    """Return the error for a rejection in an answer with status 200, as if the answer had ``status``."""
    error = parse_video_error(status, orjson.dumps({"error": {"code": code, "message": message}}), secrets)
    error.declined = True
    return error


def make_reported_error(value: object, secrets: Secrets) -> ProviderBadResponse:
    """Return the error for a failure that an answer with status 200 reports."""
    return ProviderBadResponse(f"The provider reported an error: {parse_reason(value, secrets)}")


def parse_code_error(
    status: int,
    raw: bytes,
    secrets: Secrets,
    *,
    code: int,
    statuses: Mapping[int, int],
    provider_retry_after_s: float | None = None,
) -> ProviderError:
    """Convert an answer with a numeric error ``code`` into an error. ``statuses`` maps codes to HTTP statuses."""
    if status == _OK_STATUS and code not in statuses:
        error = make_reported_error(loads_or_none(raw), secrets)
        error.declined = bool(code)
        return error
    return parse_video_error(statuses.get(code, status), raw, secrets, provider_retry_after_s=provider_retry_after_s)
