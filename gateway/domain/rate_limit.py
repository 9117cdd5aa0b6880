"""Rate limits of an account, a key, a channel or a limit's subject: requests and tokens per minute, requests at once.

Rates use the generic cell rate algorithm (GCRA; ITU-T I.371, annex A). The whole state of a bucket is one float, its
theoretical arrival time (``tat``), in seconds of a monotonic clock, passed as ``now_s``. A bucket whose ``tat`` has
passed is empty; the time by which ``tat`` is ahead of ``now_s`` is its debt. Every unit moves ``tat`` ahead by ``60 /
limit`` seconds. A cost passes if the debt then is at most ``burst`` units. There are two exceptions: an empty bucket
accepts a larger cost (``compute_wait_s``), and a correction may add to the debt (``correct_all``).

A caller's burst is a whole minute's units, unless its ``burst`` for requests is smaller: with a limit of ten, ten
requests may start at once, and the next one six seconds later. A channel's burst is a tenth of its limit, at least one
unit, so requests reach the provider smoothly: apart from the exceptions, at most limit plus burst in any minute.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Protocol

import attrs

from gateway.frozen import frozen, quick_frozen

MINUTE_S = 60.0
MAX_RETRY_AFTER_S = 3_600
"""The longest ``Retry-After`` sent to a client; the wait itself may be longer."""

FULL_WAIT_S = 1.0
"""The wait reported when too many requests run at once; when one of them ends is unknown."""

_SLACK_S = 1e-6  # tolerates float rounding: a client that waits exactly as long as ``Retry-After`` says must pass


@frozen
class Limits:
    """The limits of one subject; None means unlimited.

    ``burst`` is the number of requests that may start at once; None means as many as ``rpm``.
    """

    rpm: int | None = None
    tpm: int | None = None
    max_concurrency: int | None = None
    burst: int | None = None

    @property
    def any(self) -> bool:
        return self.rpm is not None or self.tpm is not None or self.max_concurrency is not None

    def find_request_burst(self, rpm: int) -> int:
        return rpm if self.burst is None else min(self.burst, rpm)


NO_LIMITS = Limits()


def compute_smooth_burst(limit: int) -> int:
    """Return the burst of a channel: a tenth of its limit, at least one."""
    return max(1, limit // 10)


def compute_reserve(burst: int) -> int:
    """Return how many of ``burst`` places low-priority requests leave free: a quarter, at least one, but never all."""
    return max(1, burst // 4) if burst > 1 else 0


def compute_wait_s(tat: float, rate: tuple[int, int], cost: int, now_s: float) -> float:
    """Return the seconds until ``cost`` units would pass; 0 if they pass now. Changes nothing.

    ``rate`` is the limit and the burst. A cost of the burst or more passes only an empty bucket: a single large prompt
    passes, and is then a debt. A cost of 0 (not known yet) passes while the debt is at most the burst.
    """
    if tat <= now_s:
        return 0.0
    limit, burst = rate
    headroom_s = (burst - cost) * MINUTE_S / limit if cost < burst else 0.0
    wait_s = tat - now_s - headroom_s
    return wait_s if wait_s > _SLACK_S else 0.0


def spend(tat: float, limit: int, cost: int, now_s: float) -> float:
    """Return the bucket's ``tat`` after taking ``cost`` units; ``compute_wait_s`` says whether they may pass."""
    return max(tat, now_s) + cost * MINUTE_S / limit


def change_limit(tat: float, old_limit: int, new_limit: int, now_s: float) -> float:
    """Return the bucket's ``tat`` under ``new_limit``. A change never lengthens the wait.

    A raised limit keeps the units owed, so the wait shrinks: a limit raised from 1 to 100,000 must not leave a wait of
    an hour. A lowered limit keeps the seconds: a tenth of a large limit, legitimately used, would be hours under a
    small one.
    """
    if new_limit <= old_limit:
        return tat
    return now_s + (tat - now_s) * old_limit / new_limit


def compute_remaining(tat: float, limit: int, burst: int, now_s: float) -> int:
    """Return the largest cost, up to ``burst``, that would pass now."""
    debt_s = tat - now_s - _SLACK_S
    if debt_s <= 0:
        return burst
    remaining_count = burst - debt_s * limit / MINUTE_S
    return int(remaining_count) if remaining_count > 0 else 0


def compute_reset_s(tat: float, now_s: float) -> float:
    """Return the seconds until the bucket is empty."""
    return tat - now_s if tat > now_s else 0.0


def compute_retry_after_s(wait: float) -> int:
    """Return a wait for ``Retry-After``: whole seconds, rounded up, from 1 to 3,600."""
    return max(1, min(math.ceil(min(wait, MAX_RETRY_AFTER_S) - _SLACK_S), MAX_RETRY_AFTER_S))


@quick_frozen
class RateLimitWindow:
    """One limit: units per minute, the units that would pass now, and the seconds until the bucket is empty."""

    limit: int
    remaining: int
    reset_s: float


@quick_frozen
class RateLimitStatus:
    """A caller's strictest windows, for the ``x-ratelimit-*`` headers. None: unlimited."""

    requests: RateLimitWindow | None = None
    tokens: RateLimitWindow | None = None


@frozen
class SubjectUse:
    """What one subject has used of its limits.

    ``running`` is the number of concurrent requests. A field is None if the subject has no such limit.
    """

    subject: "RateLimitSubject"
    requests: RateLimitWindow | None
    tokens: RateLimitWindow | None
    running: int | None


class GcraBucket:
    """The bucket for one rate of one subject. ``undo_spend`` restores the ``tat`` before the last spend."""

    __slots__ = ("former_tat", "limit", "tat")

    def __init__(self, limit: int, now_s: float) -> None:
        self.tat = self.former_tat = now_s
        self.limit = limit

    def set_limit(self, limit: int, now_s: float) -> None:
        if limit != self.limit:
            self.tat = change_limit(self.tat, self.limit, limit, now_s)
            self.limit = limit


Rate = tuple[GcraBucket, int, int]
"""A bucket, its limit, and its burst."""


def spend_all(rates: Iterable[Rate], cost: int, now_s: float) -> RateLimitWindow | None:
    """Take ``cost`` units from every bucket and return the strictest window.

    Return None, and take nothing, if one bucket refuses. The strictest window has the fewest units left; among equals,
    the longest reset. The loop combines ``compute_wait_s``, ``spend`` and ``compute_remaining``: it runs for every rate
    of every request.
    """
    cost_s = cost * MINUTE_S
    strictest_limit, min_remaining, latest_tat = 0, 0, 0.0
    for bucket, limit, burst in rates:
        tat = bucket.tat
        new_tat = (tat if tat > now_s else now_s) + cost_s / limit  # noqa: FURB136 - max() is a call, for every bucket
        debt_s = new_tat - now_s - _SLACK_S
        burst_left = burst
        if debt_s > 0:
            burst_left = int(burst - debt_s * limit / MINUTE_S)
            if burst_left <= 0:  # otherwise the debt, cost included, is below the burst: no need to check
                if compute_wait_s(tat, (limit, burst), cost, now_s):
                    undo_spend(rates, bucket)
                    return None
                burst_left = 0
        bucket.former_tat, bucket.tat = tat, new_tat
        if (
            not strictest_limit
            or burst_left < min_remaining
            or (
                burst_left == min_remaining
                and (new_tat > latest_tat or (new_tat == latest_tat and limit < strictest_limit))
            )
        ):
            strictest_limit, min_remaining, latest_tat = limit, burst_left, new_tat
    return RateLimitWindow(strictest_limit, min_remaining, latest_tat - now_s)


def undo_spend(rates: Iterable[Rate], until: GcraBucket | None = None) -> None:
    """Undo the last take of every bucket before ``until``. Only valid right after that take."""
    for bucket, _, _ in rates:
        if bucket is until:
            return
        bucket.tat = bucket.former_tat


def correct_all(rates: Iterable[Rate], tokens: int, now_s: float) -> None:
    """Add ``tokens``, the real units minus the estimate, to every bucket.

    If the estimate was too low, the difference becomes debt from now on. If it was too high, the debt shrinks, at most
    to empty and never to a credit. A correction that comes after its estimate has drained reduces the debt of other
    requests, so that minute may exceed the limit by the units that were not needed earlier. After a change of the
    limit, the correction is counted at the larger limit, like the debt.
    """
    tokens_s = tokens * MINUTE_S
    for bucket, limit, _ in rates:
        since = now_s if tokens > 0 and bucket.tat < now_s else bucket.tat
        tat = since + tokens_s / max(limit, bucket.limit)
        bucket.tat = tat if tat > now_s else now_s  # noqa: FURB136


@frozen
class RateLimitSubject:
    """An account, a key, a channel or a limit's subject, and its current limits.

    ``id`` is a number, the name of a channel, or the name of a limit, ``|`` and the subject.
    """

    kind: Literal["key", "account", "channel", "limit"]
    id: int | str
    limits: Limits


@frozen
class LimitExceeded:
    """The limit that refused a request, its subject, and the wait in seconds."""

    subject: RateLimitSubject
    what: Literal["requests per minute", "tokens per minute", "concurrent requests"]
    limit: int
    wait_s: float
    burst: int | None = None

    @property
    def message(self) -> str:
        owner_text = {"key": "This key's", "account": "The account's", "channel": "The channel's"}.get(
            self.subject.kind, f"The {str(self.subject.id).partition('|')[0]!r}"
        )
        if self.what == "concurrent requests":
            limit_name = self.what if self.limit != 1 else self.what.removesuffix("s")
            return f"{owner_text} limit of {self.limit} {limit_name} is reached"
        limit_name = self.what if self.limit != 1 else self.what.replace("s ", " ", 1)
        burst_text = f" ({self.burst} at once)" if self.burst is not None and self.burst < self.limit else ""
        limit = f"{self.limit} {limit_name}{burst_text}"
        return f"{owner_text} limit of {limit} is reached; retry in {compute_retry_after_s(self.wait_s)} s"


@attrs.define(eq=False)
class RateLimitPermit:
    """Permission for one request. ``tokens`` is the estimate that was taken, and ``holder`` is data of the limiter."""

    tokens: int
    limit_status: RateLimitStatus
    holder: Any = attrs.field(default=None, repr=False)
    released: bool = False


class RateLimiter(Protocol):
    """Holds the buckets. A caller's ``subjects`` are usually the same object in every call."""

    async def take(self, subjects: Sequence[RateLimitSubject], tokens: int) -> RateLimitPermit:
        """Take one request, ``tokens`` tokens and one concurrent request from every subject, or nothing at all.

        The subjects are distinct. Their limits apply from this request on. When a limit changes, its bucket keeps its
        state (``change_limit``); when it is removed, nothing more is taken, so the bucket drains.

        Raises ``RateLimited`` with the longest wait. Raises ``Overloaded`` if the server that counts does not answer,
        and ``rate_limits.when_down`` is "closed".
        """
        ...

    def take_now(self, subjects: Sequence[RateLimitSubject], tokens: int) -> RateLimitPermit | None:
        """Take as ``take`` does, without waiting. Return None, and take nothing, if ``take`` has to be awaited."""
        ...

    async def take_part(self, subjects: Sequence[RateLimitSubject], tokens: int) -> RateLimitPermit:
        """Take as ``take`` does for one part of a session, but no concurrent request: the session has one already."""
        ...

    async def check(self, subjects: Sequence[RateLimitSubject]) -> None:
        """Raise ``RateLimited`` if ``take`` would refuse even a request without tokens. Takes nothing."""
        ...

    def check_spare(self, subjects: Sequence[RateLimitSubject], tokens: int) -> None:
        """Raise ``RateLimited`` if a low-priority request would use the reserve (``compute_reserve``). Take nothing."""
        ...

    async def list_use(self, subjects: Sequence[RateLimitSubject]) -> Sequence[SubjectUse]:
        """Return what each subject has used now. Takes nothing.

        If a server counts and does not answer, its last answer is returned.
        """
        ...

    def release(self, permit: RateLimitPermit, tokens: int) -> None:
        """End a request that used ``tokens``. A second call changes nothing. Never waits."""
        ...
