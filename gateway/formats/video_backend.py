"""How videos are had from one provider: what to ask, and what the answers mean. Sans-IO, and without a memory.

A job outlives processes, so a ``VideoBackend`` keeps nothing: everything it needs to know of a task is handed to it.
Who asks, waits and keeps records is ``videos/jobs.py`` and ``videos/provider_api.py``.
"""

import re
from typing import Literal, Protocol

import attrs
import orjson

from gateway.domain.video import BLOCKED_CODE, FAILED_CODE, Reference, VideoError
from gateway.errors import ContentBlocked, InvalidRequest, ProviderBadResponse, ProviderError
from gateway.formats.content_filter import NEVER_BLOCKS, build_verdict, find_blocked, is_block, parse_worded_fault
from gateway.formats.image_backend import ProviderCall
from gateway.formats.openai.errors import Secrets, mask
from gateway.formats.request_body import Body

TaskState = Literal["queued", "processing", "completed", "failed"]
Variant = Literal["video", "thumbnail", "spritesheet"]

MAX_ID_CHARS = 512
_ID = re.compile(r"[A-Za-z0-9._:=~-]{1,512}\Z")
_SIZE = re.compile(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})\Z", re.ASCII)
_ADDRESS = re.compile(r"\b[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?::[0-9]{1,5})?\b")
_MAX_MESSAGE = 500
_NO_REASON = "The provider gave no reason"
_BLOCKED = "The provider's safety filter blocked the video, or what was asked for"


@attrs.frozen(eq=False)
class VideoSpec:
    """What a provider is asked to make.

    Attributes:
        model: the provider's own name of it.
        mark: our id of the job.
        seconds, size: None where the caller left it open, and nothing is known of what the model does then.
        extra: what else stands in the caller's body, under the convention's or the provider's names.
    """

    model: str
    prompt: str = attrs.field(repr=False)
    mark: str
    seconds: int | None = None
    size: str | None = None
    reference: Reference | None = None
    extra: Body = attrs.field(factory=dict, repr=False)


@attrs.frozen
class ProviderTask:
    """A task as it is known here: its provider's id, its model there, and the last ``clue`` (see ``TaskStatus``)."""

    id: str
    model: str
    clue: str | None = attrs.field(default=None, repr=False)


@attrs.frozen
class TaskStatus:
    """What an answer says of a task.

    Attributes:
        state: None where it is in none that is known: then it goes on.
        id: the provider's; only of an answer to a submit.
        progress: in percent; None where nothing is said of it.
        error: of a task that failed.
        clue: of a task that is completed, in words of the filmmaker's own: where its video is.
        seconds, size: of the video, where the provider says what they are.
    """

    state: TaskState | None = None
    id: str | None = None
    progress: int | None = None
    error: VideoError | None = None
    clue: str | None = attrs.field(default=None, repr=False)
    seconds: str | None = None
    size: str | None = None


@attrs.frozen
class ContentLocation:
    """Where a file is.

    Attributes:
        path: behind the channel's base URL (or the server's root, where the endpoint is ``rooted``), to be asked with
            the channel's key; None where there is a ``url``.
        url: an address as the provider wrote it.
        signed: it is asked with the channel's key as well, as long as it is at the channel's own server.
    """

    path: str | None = None
    url: str | None = attrs.field(default=None, repr=False)
    signed: bool = False


class VideoBackend(Protocol):
    """One provider's language of videos. Every method is a function of what it is given."""

    takes_urls: bool
    """Whether a reference may be an address for the provider to fetch; else it is fetched here, and sent along."""

    def submit(self, shot: VideoSpec) -> ProviderCall:
        """How to begin a task. Raises ``InvalidRequest`` naming what cannot be said."""
        ...

    def parse_submitted(self, raw: bytes, secrets: Secrets) -> TaskStatus:
        """A good answer (2xx) to it: a task with an ``id``.

        Raises ``ProviderBadResponse`` where it has none; an ``ProviderError`` where it is a refusal in disguise.
        """
        ...

    def parse_refused(
        self, status: int, raw: bytes, secrets: Secrets, *, provider_retry_after_s: float | None = None
    ) -> ProviderError:
        """Any other answer, to whatever was asked: the fault it is."""
        ...

    def poll(self, task: ProviderTask) -> ProviderCall:
        """How to ask after a task."""
        ...

    def parse_polled(self, raw: bytes, secrets: Secrets) -> TaskStatus:
        """A good answer (2xx) to that. Raises ``ProviderBadResponse`` where it says nothing of a task."""
        ...

    def find_content(self, task: ProviderTask, variant: Variant) -> ContentLocation | ProviderCall | None:
        """Where the file of a completed task is, or what to ask to learn it; None where there is no such variant."""
        ...

    def read_content(self, raw: bytes, secrets: Secrets) -> ContentLocation:
        """A good answer (2xx) to that question. Raises ``ProviderBadResponse`` where it tells no place."""
        ...

    def remix(self, task: ProviderTask, shot: VideoSpec) -> ProviderCall | None:
        """How to make the video of a task anew by another prompt; answered as a submit is. None: it cannot be done."""
        ...

    def cancel(self, task: ProviderTask) -> ProviderCall | None:
        """How to stop a task that has not ended; None where that is not offered."""
        ...

    def delete(self, task: ProviderTask) -> ProviderCall | None:
        """How to have a task that has ended forgotten, and its files; None where that is not offered."""
        ...


def parse_id(found: object) -> str:
    """A task's id. Raises ``ProviderBadResponse`` where it is none that may stand in a path, percent-encoded or not."""
    if not isinstance(found, str) or not _ID.match(found) or found.strip(".") == "":
        raise ProviderBadResponse("The provider gave its task no usable id")
    return found


def parse_object(raw: bytes) -> Body:
    """An answer's JSON object. Raises ``ProviderBadResponse``."""
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise ProviderBadResponse("The provider's answer is not a JSON object")
    return value


def parse_progress(value: object) -> int | None:
    """Percent: an integer from 0 to 100, or None where it is none."""
    return value if type(value) is int and 0 <= value <= 100 else None  # noqa: PLR2004


def parse_sides(size: str) -> tuple[int, int]:
    """Width and height of ``1280x720``. Raises ``InvalidRequest``."""
    found = _SIZE.match(size)
    if found is None:
        raise InvalidRequest("'size' must be width and height as in 1280x720", param="size")
    return int(found[1]), int(found[2])


def build_error(code: object, message: object, secrets: Secrets) -> VideoError:
    """Why a task failed, masked; a filter's verdict has a code of its own."""
    said = str(code) if type(code) is int else code if isinstance(code, str) else ""
    words = _ADDRESS.sub("[masked]", mask(message, secrets))[:_MAX_MESSAGE] if isinstance(message, str) else ""
    if is_block(said, words):
        return VideoError(
            BLOCKED_CODE, words or "The provider's safety filter blocked the video, or what was asked for"
        )
    return VideoError(FAILED_CODE, words or _NO_REASON)


def parse_video_fault(
    status: int, raw: bytes, secrets: Secrets, *, provider_retry_after_s: float | None = None
) -> ProviderError:
    """A provider's answer outside 2xx -> the fault it is, in whichever of the usual shapes.

    A block is a ``ContentBlocked``: pictures have another code for it.
    """
    if status not in NEVER_BLOCKS:
        try:
            blocked, message = find_blocked(orjson.loads(raw))
        except orjson.JSONDecodeError:
            blocked, message = False, None
        if blocked:
            return ContentBlocked(build_verdict(_BLOCKED, message, secrets))
    return parse_worded_fault(status, raw, secrets, provider_retry_after_s=provider_retry_after_s)


def find_refusal(code: str, message: str, secrets: Secrets, status: int) -> ProviderError:
    """A refusal that came under 200, as if it had come under ``status``."""
    fault = parse_video_fault(status, orjson.dumps({"error": {"code": code, "message": message}}), secrets)
    fault.declined = True
    return fault
