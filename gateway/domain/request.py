"""The row that every request leaves behind, and the port that stores it."""

import re
from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

import attrs

from gateway.domain.usage import UsageSource

Ending = Literal["completed", "refused", "upstream_failed", "client_closed", "interrupted", "failed"]
"""How a request ended: answered whole; refused by a check; the provider failed; the caller left; the gateway was
stopped under it; a bug of ours."""

ID_PREFIX = "req_"
"""Of a request's id; 24 hexadecimal digits follow."""
MAX_ERROR = 300
ANSWERED = "ok"
"""The outcome of an attempt that was answered; every other is a fault's public code."""

_TRIED = re.compile(r"([^=:]+)=([^=:]+):([0-9]{1,15})")
_NOT_IN_A_CODE = re.compile(r"[^A-Za-z0-9._-]")
_CODE_CHARS = 64


def _clean(outcome: str) -> str:
    return _NOT_IN_A_CODE.sub("_", outcome[:_CODE_CHARS]) or "_"


@attrs.frozen
class Tried:
    """One attempt of a call: its channel, its outcome (``ok`` or a fault's public code) and how long it took.

    In a provider's own code what is not usual in one becomes ``_``: it goes into rows and headers.
    """

    channel: str
    outcome: str = attrs.field(converter=_clean)
    ms: int


def write_tried(tried: Iterable[Tried]) -> str:
    """Attempts as a row keeps them: ``up0=upstream_timeout:120000,up1=ok:85``.

    Neither names of channels (``caller.NAME_SHAPE``) nor outcomes have such signs.
    """
    return ",".join(f"{one.channel}={one.outcome}:{one.ms}" for one in tried)


def read_tried(text: str) -> tuple[Tried, ...]:
    """The attempts that ``write_tried`` wrote; what is none is left out."""
    found = map(_TRIED.fullmatch, text.split(","))
    return tuple(Tried(one[1], one[2], int(one[3])) for one in found if one)


@attrs.frozen
class RequestRow:
    """One request, written once when it has ended. Times are Unix milliseconds and durations milliseconds.

    ``first_byte_ms`` is from the request's arrival to the first byte towards the caller, None where none was sent.
    ``error_code`` is the public code of the fault, None where there was none. ``settled_ms`` decides the day on which
    the cost was spent. ``reserved_nanos`` was held while it ran; ``overrun_nanos`` of the cost are above a cap.
    ``images`` were made, ``duration_ms`` of sound made or heard, ``characters`` spoken.
    ``tried`` is the trail of a call that took more than one attempt (``read_tried``), and empty for every other: the
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


@attrs.frozen
class RequestFilter:
    """Which rows to list; None does not restrict. ``after`` is a row's sequence: only later ones."""

    key_id: int | None = None
    model: str | None = None
    status: int | None = None
    channel: str | None = None
    after: int | None = None


@attrs.frozen
class StoredRequest:
    """A row with its place in the order of writing."""

    sequence: int
    row: RequestRow


class RequestLog(Protocol):
    """Where request rows are found, in the order they were written; ``domain/ledger.py`` has the port that writes."""

    async def list_requests(self, wanted: RequestFilter, limit: int) -> Sequence[StoredRequest]:
        """The newest ``limit`` rows that match, oldest of them first; with ``after``, the oldest ones after it."""
        ...
