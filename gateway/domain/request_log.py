"""The row that every request leaves behind, and the port that stores it."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple, overload

import attrs

from gateway.domain.frozen import frozen
from gateway.domain.usage import UsageSource

Ending = Literal["completed", "refused", "upstream_failed", "client_closed", "interrupted", "failed"]
"""How a request ended: answered whole; refused by a check; the provider failed; the caller left; the gateway was
stopped under it; a bug of ours."""

UNHARMED: tuple[Ending, ...] = ("completed", "client_closed")
"""Nothing went wrong: it was answered, or its caller did not wait for that. Every other ending is a failure."""

INTERRUPTED_STATUS = 500
"""The status of a row whose call was cut off by a stop or a crash; what its caller saw of it is not known."""
ID_PREFIX = "req_"
"""Of a request's id; 24 hexadecimal digits follow."""
MAX_ERROR = 300
ANSWERED = "ok"
"""The outcome of an attempt that was answered; every other is a fault's public code."""

_TRIED = re.compile(r"([^=:]+)=([^=:]+):([0-9]{1,15})")
_NOT_IN_A_CODE = re.compile(r"[^A-Za-z0-9._-]")
_CODE_CHARS = 64
_ID = re.compile(r"req_[0-9a-f]{24}", re.ASCII)
_LARGE = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_SMALL = str.maketrans(_LARGE, _LARGE.lower())
_LEFT_STATUS = 499


def _clean(outcome: str) -> str:
    return _NOT_IN_A_CODE.sub("_", outcome[:_CODE_CHARS]) or "_"


@attrs.frozen
class FailedAttempt:
    """One attempt of a call: its channel, its outcome (``ok`` or a fault's public code) and how long it took.

    In a provider's own code what is not usual in one becomes ``_``: it goes into rows and headers.
    """

    channel: str
    outcome: str = attrs.field(converter=_clean)
    ms: int


def build_tried(tried: Iterable[FailedAttempt]) -> str:
    """Attempts as a row keeps them: ``up0=upstream_timeout:120000,up1=ok:85``.

    Neither names of channels (``caller.NAME_SHAPE``) nor outcomes have such signs.
    """
    return ",".join(f"{one.channel}={one.outcome}:{one.ms}" for one in tried)


def parse_tried(text: str) -> tuple[FailedAttempt, ...]:
    """The attempts that ``build_tried`` wrote; what is none is left out."""
    found = map(_TRIED.fullmatch, text.split(","))
    return tuple(FailedAttempt(one[1], one[2], int(one[3])) for one in found if one)


def build_error(message: str) -> str:
    """What a row keeps of a fault's message: its beginning, on one line, and nothing that cannot be shown."""
    return "".join(mark if mark.isprintable() else " " for mark in message[:MAX_ERROR])


def is_request_id(text: str) -> bool:
    """Whether ``text`` is the id of a request, there or not."""
    return _ID.fullmatch(text) is not None


def fold(text: str) -> str:
    """``text`` with the letters of ASCII made small: as far as that, case does not count in what is searched for."""
    return text.translate(_SMALL)


@frozen
class RequestRecord:
    """One request, written once when it has ended. Times are Unix milliseconds and durations milliseconds.

    ``first_byte_ms`` is from the request's arrival to the first byte towards the caller, None where none was sent.
    ``error_code`` is the public code of the fault, None where there was none. ``settled_ms`` decides the day on which
    the cost was spent. ``reserved_nanos`` was held while it ran; ``overrun_nanos`` of the cost are above a cap.
    ``images`` were made, ``duration_ms`` of sound made or heard, ``characters`` spoken.
    ``tried`` is the trail of a call that took more than one attempt (``parse_tried``), and empty for every other: the
    row itself says how the one ended.
    ``error`` is what its caller was told was wrong, at most ``MAX_ERROR`` characters; empty where nothing was.
    A field that is added needs a default: the journal of the version before does not have it.
    """

    id: str
    started_ms: int
    settled_ms: int
    operation: str
    account_id: int
    account: str
    key_id: int
    key_name: str
    model: str
    channel: str | None
    status: int
    ending: Ending
    error_code: str | None
    stream: bool
    attempts: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    usage_source: UsageSource
    cost_nanos: int
    reserved_nanos: int
    overrun_nanos: int
    first_byte_ms: int | None
    total_ms: int
    client_request_id: str | None = None
    tried: str = ""
    images: int = 0
    duration_ms: int = 0
    characters: int = 0
    error: str = ""


class RequestStart(NamedTuple):
    """What is known of a call when it is about to be made, and all that is if nothing is ever heard of it again.

    The fields are those of its row. One that is added needs a default, as it does there.
    """

    id: str
    started_ms: int
    operation: str
    account_id: int
    account: str
    key_id: int
    key_name: str
    model: str
    channel: str | None
    stream: bool
    reserved_nanos: int
    client_request_id: str | None = None

    def interrupt(self) -> RequestRecord:
        """Its row: cut off by a stop or a crash, in its first attempt."""
        return RequestRecord(
            **self._asdict(),
            settled_ms=self.started_ms,
            status=INTERRUPTED_STATUS,
            ending="interrupted",
            error_code=None,
            attempts=1,
            prompt_tokens=0,
            completion_tokens=0,
            cached_tokens=0,
            usage_source="none",
            cost_nanos=0,
            overrun_nanos=0,
            first_byte_ms=None,
            total_ms=0,
        )


Verdict = Literal["ok", "error"]


def went_wrong(row: RequestRecord) -> bool:
    """Whether it failed or was refused; a caller who left is nobody's failure."""
    return row.ending not in UNHARMED


@attrs.frozen
class RequestFilter:
    """Which rows to list; None does not restrict.

    Attributes:
        status: of HTTP.
        verdict: "error": those that ``went_wrong``; "ok": the others.
        since_ms: settled then or later, Unix milliseconds.
        until_ms: settled before.
        text: a request's id, or a part of its error's code or text, wherever capitals are.
        after: a row's sequence: only later ones, the oldest of them first.
        before: a row's sequence: only earlier ones.
    """

    key_id: int | None = None
    model: str | None = None
    status: int | None = None
    channel: str | None = None
    after: int | None = None
    account_id: int | None = None
    ending: Ending | None = None
    verdict: Verdict | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    text: str | None = None
    before: int | None = None

    @property
    def request_id(self) -> str | None:
        """The one request that can match, where ``text`` is its id."""
        return self.text if self.text is not None and is_request_id(self.text) else None

    @property
    def asks_for_failures(self) -> bool:
        """Whether only rows that ``went_wrong`` can match: they are few, and found by an index of their own.

        A row has a status of 400 and above, or an error, only where a fault ended it; or 499 where its caller left.
        """
        return (
            self.verdict == "error"
            or (self.text is not None and self.request_id is None)
            or (self.ending is not None and self.ending not in UNHARMED)
            or (self.status is not None and self.status >= 400 and self.status != _LEFT_STATUS)  # noqa: PLR2004 - HTTP
        )

    def matches(self, stored: "StoredRequest") -> bool:
        """Whether a row is wanted."""
        row = stored.row
        return (
            self.key_id in {None, row.key_id}
            and self.model in {None, row.model}
            and self.status in {None, row.status}
            and self.channel in {None, row.channel}
            and self.account_id in {None, row.account_id}
            and self.ending in {None, row.ending}
            and self.verdict in {None, "error" if went_wrong(row) else "ok"}
            and (self.since_ms is None or row.settled_ms >= self.since_ms)
            and (self.until_ms is None or row.settled_ms < self.until_ms)
            and (self.after is None or stored.sequence > self.after)
            and (self.before is None or stored.sequence < self.before)
            and (self.text is None or self._finds(row))
        )

    def _finds(self, row: RequestRecord) -> bool:
        if self.request_id is not None:
            return row.id == self.request_id
        wanted = fold(self.text or "")
        return wanted in fold(row.error) or wanted in fold(row.error_code or "")


@attrs.frozen
class StoredRequest:
    """A row with its place in the order of writing."""

    sequence: int
    row: RequestRecord


@attrs.frozen
class RequestPage(Sequence[StoredRequest]):
    """Rows that were found, the oldest first, and how far was looked: among millions only so many at a time.

    Attributes:
        more: there may be others.
        next: what to give as ``before``, or with ``after`` as ``after``, to go on; with ``after`` always.
        searched_ms: where ``more``, the time up to which was looked, Unix milliseconds.
        newest: the sequence of the newest row of all; 0 where there is none.
    """

    rows: tuple[StoredRequest, ...] = ()
    more: bool = False
    next: int | None = None
    searched_ms: int | None = None
    newest: int = 0

    @overload
    def __getitem__(self, index: int) -> StoredRequest: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[StoredRequest, ...]: ...
    def __getitem__(self, index: int | slice) -> StoredRequest | tuple[StoredRequest, ...]:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[StoredRequest]:
        return iter(self.rows)
