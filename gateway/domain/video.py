"""Durable video jobs and their states.

    created -> submitting -> queued -> processing -> fetching -> completed    failed
                   o-^
                   o-------------------------^
                               o--------------------------^
                               o-----------o--------------------------^
      o------------o-----------o-----------o------------o-------------------------^

Invariants: a job and its reservation are stored before a provider gets the request; the provider is asked to create the
video once; the end is stored together with its charge, or the release of its reservation.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal

import attrs

from gateway.domain.content_filter import is_block_code
from gateway.domain.request_log import Outcome, RequestRecord
from gateway.domain.upload import Upload
from gateway.frozen import frozen

VideoState = Literal["created", "submitting", "queued", "processing", "fetching", "completed", "failed"]
"""The states, in this order: only stored; a provider is being asked; queued at the provider; in progress there; the
file is being fetched; completed; failed."""
StatusWords = Literal["spec", "openai"]
"""The status of a job in progress: ``processing``, or ``in_progress`` as in the OpenAI API."""

TRANSITIONS: Mapping[VideoState, tuple[VideoState, ...]] = {
    "created": ("submitting", "failed"),
    "submitting": ("submitting", "queued", "processing", "failed"),
    "queued": ("processing", "fetching", "completed", "failed"),
    "processing": ("fetching", "completed", "failed"),
    "fetching": ("completed", "failed"),
    "completed": (),
    "failed": (),
}
"""Allowed transitions. ``submitting`` follows itself if a channel has refused and another one is asked."""

ENDED_STATES: tuple[VideoState, ...] = ("completed", "failed")
UNACCEPTED_STATES: tuple[VideoState, ...] = ("created", "submitting")
"""States without a known task at a provider."""

MAX_PROMPT_CHARS = 32_000
MAX_SECONDS = 600
FIRST_WAIT_S = 2.0
MAX_WAIT_S = 15.0
MIN_HINT_S = 0.5
MAX_HINT_S = 300.0
"""The longest wait that a provider may ask for, so that the end is not noticed too late."""
MAX_FAILING_S = 60.0
_ID = re.compile(r"video_[0-9a-f]{32}", re.ASCII)
_FULL_PERCENT = 100
_MAX_UNFINISHED_PERCENT = 99


def is_video_id(text: str) -> bool:
    """Return whether ``text`` has the form of a video job's id."""
    return _ID.fullmatch(text) is not None


def compute_wait_s(polls: int) -> float:
    """Return the wait in seconds after ``polls`` polls that found a job in progress: 2, 4, 8, then 15."""
    return min(FIRST_WAIT_S * 2.0 ** min(polls, 10), MAX_WAIT_S)


def find_poll_after_ms(age_ms: int) -> int:
    """Return the poll interval in ms to suggest to a client for a job of that age: 2 s, 4 s, 8 s, then 15 s."""
    polls, passed_s = 0, compute_wait_s(0)
    while passed_s * 1000 <= age_ms and compute_wait_s(polls) < MAX_WAIT_S:
        polls += 1
        passed_s += compute_wait_s(polls)
    return round(compute_wait_s(polls) * 1000)


def find_failing_wait_s(failures: int) -> float:
    """Return the wait in seconds after that many failed polls in a row: 2, 4, 8, 16, 32, then 60."""
    return min(FIRST_WAIT_S * 2.0 ** min(failures - 1, 10), MAX_FAILING_S)


@frozen(eq=False)
class Reference:
    """An image to start from: an uploaded file, or a URL, which may be a ``data:`` URL."""

    upload: Upload | None = None
    url: str | None = attrs.field(default=None, repr=False)

    @property
    def is_remote(self) -> bool:
        return self.url is not None and not self.url.startswith("data:")


@frozen
class VideoRequest:
    """The part of a video request that every provider needs; the rest is in the request's body.

    Attributes:
        remix_of: the job to remix; None for a new video.
        webhook_url: the URL that is notified of the end, in the client's ``status_words``.
    """

    prompt: str = attrs.field(repr=False)
    seconds: int | None = None
    size: str | None = None
    reference: Reference | None = None
    remix_of: "VideoJob | None" = None
    webhook_url: str | None = None
    status_words: StatusWords = "spec"


@frozen
class VideoJob:
    """One stored job. Times are Unix milliseconds; unknown texts are empty.

    Attributes:
        receipt: the row of the request that created the job, with the job's owner and time; complete once the job ends.
        size: the requested size, or the model's default.
        seconds: the requested length, or the model's default.
        held_nanos: the amount reserved until the job ends.
        deadline_ms: the time after which an unfinished job fails.
        upstream_id: the provider's id of the task.
        key_print: a fingerprint of the channel's key that knows the task.
        clue: the provider's reference to the video, in its own format.
        media_id: the id of the kept file, which has ``media_bytes`` and the type ``media_type``.
        owner: the process that works on the job; empty if none does.
        lease_until_ms: when the claim of that process expires.
        polls: the number of polls in a row that found the job in progress. ``failures`` is the number of polls in a row
            that failed.
        status_words: the status words for the client that created the job.
    """

    id: str
    receipt: RequestRecord
    prompt: str = attrs.field(repr=False)
    size: str = ""
    seconds: str = ""
    remixed_from: str | None = None
    state: VideoState = "created"
    progress: int = 0
    updated_ms: int = 0
    deadline_ms: int = 0
    completed_ms: int | None = None
    expires_ms: int | None = None
    error_code: str | None = None
    error_message: str | None = None
    held_nanos: int = 0
    cost_nanos: int = 0
    channel: str = ""
    provider: str = ""
    wire: str = ""
    upstream_model: str = ""
    upstream_id: str | None = None
    key_print: str = ""
    clue: str | None = attrs.field(default=None, repr=False)
    media_id: str | None = None
    media_bytes: int = 0
    media_type: str = ""
    owner: str = ""
    lease_until_ms: int = 0
    due_ms: int | None = None
    polls: int = 0
    failures: int = 0
    webhook_url: str | None = attrs.field(default=None, repr=False)
    status_words: StatusWords = "spec"

    @property
    def account_id(self) -> int:
        return self.receipt.account_id

    @property
    def key_id(self) -> int:
        return self.receipt.key_id

    @property
    def model(self) -> str:
        return self.receipt.model

    @property
    def created_ms(self) -> int:
        return self.receipt.started_ms

    @property
    def ended(self) -> bool:
        return self.state in ENDED_STATES

    @property
    def outcome(self) -> Outcome | None:
        """The outcome of its request; None until the job has ended."""
        if self.state != "failed":
            return "completed" if self.state == "completed" else None
        if self.error_code == CANCELLED_ERROR.code:
            return "cancelled"
        if is_block_code(self.error_code):
            return "blocked"
        return "interrupted" if self.receipt.outcome == "interrupted" else "failed"

    @property
    def useless_from_ms(self) -> int | None:
        """When the job becomes useless: its video expires, or it failed; None if the job has not ended."""
        return (self.completed_ms if self.expires_ms is None else self.expires_ms) if self.ended else None

    def move(self, state: VideoState, now_ms: int, **changes: Any) -> "VideoJob":
        """Return the job in another state. Raises ``ValueError`` if ``TRANSITIONS`` does not allow it."""
        if state not in TRANSITIONS[self.state]:
            raise ValueError(f"a job that is {self.state} does not become {state}")
        return attrs.evolve(self, state=state, updated_ms=now_ms, **changes)

    def report_progress(self, progress: int | None, now_ms: int, **changes: Any) -> "VideoJob":
        """Return the job in the same state with new progress (None: unchanged).

        Progress never decreases, and is below 100 before the end.
        """
        best_known = self.progress if progress is None else max(self.progress, min(progress, _MAX_UNFINISHED_PERCENT))
        return attrs.evolve(self, progress=best_known, updated_ms=now_ms, **changes)

    def complete(self, now_ms: int, expires_ms: int) -> "VideoJob":
        return self.move(
            "completed", now_ms, progress=_FULL_PERCENT, completed_ms=now_ms, expires_ms=expires_ms, **_RELEASED_FIELDS
        )

    def fail(self, error: "VideoError", now_ms: int) -> "VideoJob":
        fields = {"error_code": error.code, "error_message": error.message, "completed_ms": now_ms}
        return self.move("failed", now_ms, **fields, **_RELEASED_FIELDS)

    def release(self, due_ms: int) -> "VideoJob":
        """Return the job without an owner; processes may claim it again from ``due_ms`` (Unix ms) on."""
        return attrs.evolve(self, owner="", lease_until_ms=0, due_ms=due_ms)


_RELEASED_FIELDS: Mapping[str, Any] = {"owner": "", "lease_until_ms": 0, "due_ms": None}


@frozen
class VideoError:
    """Why a job failed, in words for the client."""

    code: str
    message: str


BLOCKED_CODE = "content_policy_violation"
FAILED_CODE = "upstream_error"
"""The provider failed to make the video."""
SUBMIT_UNKNOWN_ERROR = VideoError(
    "submit_unknown", "It is unknown whether the provider accepted the job; the gateway does not submit a job twice"
)
INTERRUPTED_ERROR = VideoError("interrupted", "The gateway was stopped before the provider was asked")
TIMEOUT_ERROR = VideoError("timeout", "The provider has not finished the job in time")
CHANNEL_GONE_ERROR = VideoError("channel_gone", "The channel on which the job was made is no more")
CANCELLED_ERROR = VideoError("cancelled", "The job was cancelled")
ANSWER_UNUSABLE_CODE = "provider_answer_unusable"
"""The code of a job whose provider repeatedly answers without a usable status."""
CONTENT_LOST_ERROR = VideoError(
    "content_lost", "The provider finished the job, but its video could not be fetched in time"
)


@frozen
class VideoRules:
    """Limits from the settings.

    If ``keep`` is False, videos are passed through. ``max_open`` is the limit of an account's open jobs.
    """

    keep: bool = True
    keep_days: float = 7.0
    deadline_h: float = 24.0
    max_open: int = 1_000


@frozen
class Claim:
    """The due jobs that a process wants to claim.

    ``max_jobs`` limits all of them, and ``max_per_channel`` those of one channel. No jobs of ``full_channels`` are
    claimed. If ``fetching`` is true, only jobs whose file is to be fetched are claimed, otherwise all others.
    ``channels`` are the channels of this node's share; None in a single process.
    """

    process: str
    now_ms: int
    duration_ms: int
    max_jobs: int
    max_per_channel: int
    fetching: bool = False
    full_channels: frozenset[str] = frozenset()
    channels: frozenset[str] | None = None


@frozen
class VideoFilter:
    """A filter for jobs. None does not restrict. ``after`` is a job id: list only the jobs that follow it."""

    account_id: int | None = None
    after: str | None = None
    newest_first: bool = True
    live: bool = False
    """List only jobs that have not ended."""
    state: VideoState | None = None
    search: str = ""
    """List only jobs whose id or model contains this text, in any case."""
