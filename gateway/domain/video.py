"""Videos: jobs that outlive whoever asked for them, their states, and the port that stores them.

    created -> submitting -> queued -> processing -> fetching -> completed    failed
                   o-^
                   o-------------------------^
                               o--------------------------^
                               o-----------o--------------------------^
      o------------o-----------o-----------o------------o-------------------------^

What holds, whatever happens: a job and what is held for it are on record before its provider is asked; the provider is
asked to begin it once; and how it ended is on record together with its charge, or the release of what was held.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

import attrs

from gateway.domain.request_log import RequestRecord
from gateway.domain.upload import Upload

VideoState = Literal["created", "submitting", "queued", "processing", "fetching", "completed", "failed"]
"""On record only; a provider is being asked to begin; it has not begun; it is at work; its file is being fetched."""
StatusWords = Literal["spec", "openai"]
"""How a job that is under way is called: ``processing``, or ``in_progress`` as the convention has it."""

TRANSITIONS: Mapping[VideoState, tuple[VideoState, ...]] = MappingProxyType(
    {
        "created": ("submitting", "failed"),
        "submitting": ("submitting", "queued", "processing", "failed"),
        "queued": ("processing", "fetching", "completed", "failed"),
        "processing": ("fetching", "completed", "failed"),
        "fetching": ("completed", "failed"),
        "completed": (),
        "failed": (),
    },
)
"""From where a job goes where. ``submitting`` follows itself where a channel has refused, and another one is asked."""

ENDED: tuple[VideoState, ...] = ("completed", "failed")
UNSENT: tuple[VideoState, ...] = ("created", "submitting")
"""Without a task at the provider that anybody knows of."""

MAX_PROMPT_CHARS = 32_000
MAX_SECONDS = 600
FIRST_WAIT_S = 2.0
LONGEST_WAIT_S = 15.0
SHORTEST_HINT_S = 0.5
LONGEST_HINT_S = 300.0
"""A provider may ask to be asked later, but not so late that nobody would hear of the end."""
LONGEST_FAILING_S = 60.0
_ID = re.compile(r"video_[0-9a-f]{32}", re.ASCII)
_FULL = 100
_NEARLY_FULL = 99


def is_video_id(text: str) -> bool:
    """Whether ``text`` has the shape of a job's id."""
    return _ID.fullmatch(text) is not None


def find_wait_s(polls: int) -> float:
    """Seconds to wait after so many answers that the job goes on: 2, 4, 8, then 15."""
    return min(FIRST_WAIT_S * 2.0 ** min(polls, 10), LONGEST_WAIT_S)


def find_poll_after_ms(age_ms: int) -> int:
    """What a caller is told to wait who asks after a job of that age: 2 s, 4 s, 8 s, then 15 s."""
    polls, passed_s = 0, find_wait_s(0)
    while passed_s * 1000 <= age_ms and find_wait_s(polls) < LONGEST_WAIT_S:
        polls += 1
        passed_s += find_wait_s(polls)
    return round(find_wait_s(polls) * 1000)


def find_failing_wait_s(failures: int) -> float:
    """Seconds to wait after so many answers in a row that were none: 2, 4, 8, 16, 32, then 60."""
    return min(FIRST_WAIT_S * 2.0 ** min(failures - 1, 10), LONGEST_FAILING_S)


@attrs.frozen(eq=False)
class Reference:
    """A picture to start from: a file that came with the call, or an address, which may be a ``data:`` URL."""

    upload: Upload | None = None
    url: str | None = attrs.field(default=None, repr=False)

    @property
    def is_remote(self) -> bool:
        """Whether it has to be fetched from somewhere."""
        return self.url is not None and not self.url.startswith("data:")


@attrs.frozen
class VideoRequest:
    """What of a call for a video every provider must know; the rest stands in the call's body.

    Attributes:
        seconds: how long; None where the caller left it open.
        size: ``1280x720``; None where the caller left it open.
        remix_of: the job whose video is to be made anew; None where none is.
        webhook_url: where the end is to be told; ``status_words``: in the words of whoever asks.
    """

    prompt: str = attrs.field(repr=False)
    seconds: int | None = None
    size: str | None = None
    reference: Reference | None = None
    remix_of: "VideoJob | None" = None
    webhook_url: str | None = None
    status_words: StatusWords = "spec"


@attrs.frozen
class VideoJob:
    """One job, as it is on record. Times are Unix milliseconds; texts are empty where nobody said.

    Attributes:
        receipt: the row of the call that asked for it, as it stands until the job ends: whose it is, and when it came.
        size: as it was asked for, or as the model makes it where nobody asked.
        seconds: the same for its length.
        held_nanos: set aside until it ends.
        cost_nanos: what it costs once it is completed.
        deadline_ms: after it, a job that has not ended fails.
        channel: where it is made; the name of the channel.
        provider: that channel's, and ``wire`` its language, ``upstream_model`` its name of the model.
        upstream_id: the provider's id of the task.
        key_print: which of the channel's keys knows the task: a fingerprint.
        clue: what the provider said of where the video is, in its language's own words.
        media_id: of the file that is kept, with its size and kind in ``media_bytes`` and ``media_type``.
        owner: the process that works on it now; empty: none.
        lease_until_ms: until when that process is believed to be alive.
        due_ms: when it is to be looked at next; None once it has ended.
        polls: answers in a row that it goes on; ``failures``: answers in a row that were none.
        status_words: those of whoever submitted it.
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
        """Whose it is."""
        return self.receipt.account_id

    @property
    def key_id(self) -> int:
        """The API key that asked for it."""
        return self.receipt.key_id

    @property
    def model(self) -> str:
        """The model, as the caller named it."""
        return self.receipt.model

    @property
    def created_ms(self) -> int:
        """When the call for it came."""
        return self.receipt.started_ms

    @property
    def ended(self) -> bool:
        """Whether nothing more becomes of it."""
        return self.state in ENDED

    @property
    def over_ms(self) -> int | None:
        """When nothing is left of it to be had: its video expires, or it failed; None where it has not ended."""
        return (self.completed_ms if self.expires_ms is None else self.expires_ms) if self.ended else None

    def move(self, state: VideoState, now_ms: int, **changes: Any) -> "VideoJob":
        """The job in another state. Raises ``ValueError`` where ``TRANSITIONS`` does not lead there."""
        if state not in TRANSITIONS[self.state]:
            raise ValueError(f"a job that is {self.state} does not become {state}")
        return attrs.evolve(self, state=state, updated_ms=now_ms, **changes)

    def go_on(self, progress: int | None, now_ms: int, **changes: Any) -> "VideoJob":
        """The job in the same state, further on. Its progress never goes back, and is not full before its end."""
        known = self.progress if progress is None else max(self.progress, min(progress, _NEARLY_FULL))
        return attrs.evolve(self, progress=known, updated_ms=now_ms, **changes)

    def complete(self, now_ms: int, expires_ms: int) -> "VideoJob":
        """The job with its video."""
        return self.move(
            "completed",
            now_ms,
            progress=_FULL,
            completed_ms=now_ms,
            expires_ms=expires_ms,
            **_LET_GO,
        )

    def fail(self, error: "VideoError", now_ms: int) -> "VideoJob":
        """The job without one, and why."""
        told = {"error_code": error.code, "error_message": error.message, "completed_ms": now_ms}
        return self.move("failed", now_ms, **told, **_LET_GO)

    def let_go(self, due_ms: int) -> "VideoJob":
        """Nobody works on it until then."""
        return attrs.evolve(self, owner="", lease_until_ms=0, due_ms=due_ms)


_LET_GO: Mapping[str, Any] = MappingProxyType({"owner": "", "lease_until_ms": 0, "due_ms": None})


@attrs.frozen
class VideoError:
    """Why a job failed, in words that may be shown to its caller."""

    code: str
    message: str


BLOCKED_CODE = "content_policy_violation"
FAILED_CODE = "upstream_error"
"""The provider could not make it."""
SUBMIT_UNKNOWN = VideoError(
    "submit_unknown", "Whether the provider took the job is not known, and it is not asked twice"
)
INTERRUPTED = VideoError("interrupted", "The gateway was stopped before the provider was asked")
TIMEOUT = VideoError("timeout", "The provider has not finished the job in time")
CHANNEL_GONE = VideoError("channel_gone", "The channel on which the job was made is no more")
CANCELLED = VideoError("cancelled", "The job was cancelled")
CONTENT_LOST = VideoError("content_lost", "The provider finished the job, and its video could not be fetched in time")


@attrs.frozen
class VideoRules:
    """What the settings say.

    Attributes:
        keep: whether videos are fetched and kept; else they pass through.
        keep_days: how long they are there.
        deadline_h: after which a job that has not ended fails.
        max_open: jobs of an account that have not ended, at the most.
    """

    keep: bool = True
    keep_days: float = 7.0
    deadline_h: float = 24.0
    max_open: int = 1_000


@attrs.frozen
class Claim:
    """Which due jobs a process takes on.

    Attributes:
        owner: the process.
        lease_ms: how long it is believed to be alive without another word.
        most: jobs, and ``each`` of them of one channel.
        fetching: those whose file is to be fetched; else all others.
        full: channels of which none are to be taken.
    """

    owner: str
    now_ms: int
    lease_ms: int
    most: int
    each: int
    fetching: bool = False
    full: frozenset[str] = frozenset()


@attrs.frozen
class VideoFilter:
    """Which jobs to list; None does not restrict. ``after`` is the id of a job: only those that follow it."""

    account_id: int | None = None
    after: str | None = None
    newest_first: bool = True
    live: bool = False
    """Only those that have not ended."""
    state: VideoState | None = None
