"""Rate limits of an account or a key: requests per minute, tokens per minute, concurrent requests.

The generic cell rate algorithm (GCRA; ITU-T I.371, annex A): the whole state of a bucket is one float, its theoretical
arrival time (``tat``), in seconds of a monotonic clock that the caller passes as ``now``. A bucket whose ``tat`` is
past is empty; what it is ahead of ``now`` is its debt. Every unit moves it ``60 / limit`` seconds ahead, and at most
``burst`` units may be owed at a time. A caller's burst is a whole minute's units, unless its ``burst`` is smaller: ten
requests of a limit of ten may start at once, and the next one six seconds later. A channel's burst is a tenth of its
limit: requests reach the provider smoothly, at most 110 % of the limit in any minute.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Protocol

import attrs

from gateway.frozen import frozen, quick_frozen

MINUTE_S = 60.0
MAX_RETRY_AFTER_S = 3_600
"""The longest wait that a client is given; a debt may be longer."""

FULL_WAIT_S = 1.0
"""The wait that a client is given if too many requests run at once; when one ends is unknown."""

_SLACK_S = 1e-6  # rounding of the clock's floats: a wait of a whole second must suffice if the header says so


@frozen
class Limits:
    """Requests per minute, tokens per minute, concurrent requests; None is unlimited.

    ``burst``: the requests that may start at once, if fewer than ``rpm``; None: ``rpm``.
    """

    rpm: int | None = None
    tpm: int | None = None
    max_concurrency: int | None = None
    burst: int | None = None

    @property
    def any(self) -> bool:
        return self.rpm is not None or self.tpm is not None or self.max_concurrency is not None

    def find_request_burst(self, rpm: int) -> int:
        """Return how many requests may start at once."""
        return rpm if self.burst is None else min(self.burst, rpm)


NO_LIMITS = Limits()


def find_smooth_burst(limit: int) -> int:
    """Return the burst of a channel: a tenth of its limit, at least one."""
    return max(1, limit // 10)


def find_spare(most: int) -> int:
    """Return how many of ``most`` places requests of low priority leave to others: a quarter, but never all."""
    return max(1, most // 4) if most > 1 else 0


def wait_s(tat: float, rate: tuple[int, int], cost: int, now: float) -> float:
    """Return the seconds until ``cost`` units would pass; 0 for now. Changes nothing. ``rate`` is limit and burst.

    A cost above the burst passes only an empty bucket: a single large prompt passes, and is then a debt. A cost of 0
    (nothing is known yet) passes while no more than the burst is owed.
    """
    if tat <= now:
        return 0.0
    limit, most = rate
    headroom_s = (most - cost) * MINUTE_S / limit if cost < most else 0.0
    wait = tat - now - headroom_s
    return wait if wait > _SLACK_S else 0.0


def take(tat: float, limit: int, cost: int, now: float) -> float:
    """Return the bucket's ``tat`` after ``cost`` units; ``wait_s`` decides whether they may pass."""
    return max(tat, now) + cost * MINUTE_S / limit


def change_limit(tat: float, old: int, new: int, now: float) -> float:
    """Return the bucket's ``tat`` under a ``new`` limit: the smaller debt, by units or by seconds.

    A raised limit keeps the units owed, so their seconds shrink (else a limit raised from 1 to 100,000 would leave an
    hour's wait, now for millions of units). A lowered limit keeps the seconds (else a tenth of a large limit, rightly
    used, would be hours under a small one). So a change never makes a debt grow.
    """
    if new <= old:
        return tat
    return now + (tat - now) * old / new


def remaining(tat: float, limit: int, most: int, now: float) -> int:
    """Return the largest cost, up to the burst ``most``, that would pass now."""
    debt_s = tat - now - _SLACK_S
    if debt_s <= 0:
        return most
    left = most - debt_s * limit / MINUTE_S
    return int(left) if left > 0 else 0


def reset_s(tat: float, now: float) -> float:
    """Return the seconds until the bucket is empty."""
    return tat - now if tat > now else 0.0


def retry_after_s(wait: float) -> int:
    """Return a wait as ``Retry-After``: whole seconds, rounded up, from 1 to an hour."""
    return max(1, min(math.ceil(min(wait, MAX_RETRY_AFTER_S) - _SLACK_S), MAX_RETRY_AFTER_S))


@quick_frozen
class RateLimitWindow:
    """One limit: units a minute, the units that would pass now, seconds until the bucket is empty.

    ``remaining`` never exceeds the burst: more would not pass at once.
    """

    limit: int
    remaining: int
    reset_s: float


@quick_frozen
class RateLimitStatus:
    """The windows of a caller for ``x-ratelimit-*`` headers: of each rate the one with the fewest remaining.

    None: unlimited.
    """

    requests: RateLimitWindow | None = None
    tokens: RateLimitWindow | None = None


class GcraBucket:
    """One rate of one subject: its ``tat``, and the limit under which it is owed.

    ``before``: the ``tat`` before the last take.
    """

    __slots__ = ("before", "limit", "tat")

    def __init__(self, limit: int, now: float) -> None:
        self.tat = self.before = now
        self.limit = limit

    def use(self, limit: int, now: float) -> None:
        """Apply ``limit`` from now on."""
        if limit != self.limit:
            self.tat = change_limit(self.tat, self.limit, limit, now)
            self.limit = limit


Rate = tuple[GcraBucket, int, int]
"""A bucket, its limit, and its burst."""


def take_all(rates: Iterable[Rate], cost: int, now: float) -> RateLimitWindow | None:
    """Take ``cost`` units from every bucket and return the strictest window.

    None: one bucket refused, and nothing is taken.

    The strictest has the fewest remaining, of equals the longer reset. This is ``wait_s``, ``take`` and ``remaining``
    of all buckets in one pass, because every request does it for each of its rates.
    """
    cost_s = cost * MINUTE_S
    strictest, fewest, latest = 0, 0, 0.0
    for meter, limit, most in rates:
        tat = meter.tat
        after = (tat if tat > now else now) + cost_s / limit  # noqa: FURB136 - max() is a call, for every bucket
        debt_s = after - now - _SLACK_S
        left = most
        if debt_s > 0:
            left = int(most - debt_s * limit / MINUTE_S)
            if left <= 0:  # else less than a burst is owed, the cost included: no need to check
                if wait_s(tat, (limit, most), cost, now):
                    put_back(rates, meter)
                    return None
                left = 0
        meter.before, meter.tat = tat, after
        if not strictest or left < fewest or (left == fewest and (after, -limit) > (latest, -strictest)):
            strictest, fewest, latest = limit, left, after
    return RateLimitWindow(strictest, fewest, latest - now)


def put_back(rates: Iterable[Rate], until: GcraBucket | None = None) -> None:
    """Undo the last take, a moment ago, of every bucket before ``until``."""
    for meter, _, _ in rates:
        if meter is until:
            return
        meter.tat = meter.before


def correct_all(rates: Iterable[Rate], tokens: int, now: float) -> None:
    """Add ``tokens``, the real units minus the estimate, to every bucket.

    Too few were taken: the rest is owed from now on. Too many: the debt shrinks, at least to empty and never to
    credit. In the long run the real units count. A correction after its estimate was worked off may reduce the debt of
    other requests, and that minute may see that much more, which was waited for before. If the limit has changed, the
    correction counts at the larger one, as the debt does.
    """
    tokens_s = tokens * MINUTE_S
    for meter, limit, _ in rates:
        since = now if tokens > 0 and meter.tat < now else meter.tat
        tat = since + tokens_s / max(limit, meter.limit)
        meter.tat = tat if tat > now else now  # noqa: FURB136


@frozen
class RateLimitSubject:
    """An account, a key or a channel, and its present limits. ``id`` is a number, or the name of a channel."""

    kind: Literal["key", "account", "channel"]
    id: int | str
    limits: Limits


@frozen
class LimitExceeded:
    """The limit that refuses, its subject, and the wait in seconds."""

    subject: RateLimitSubject
    what: Literal["requests per minute", "tokens per minute", "concurrent requests"]
    limit: int
    wait_s: float
    burst: int | None = None

    @property
    def message(self) -> str:
        whose = {"key": "This key's", "account": "The account's", "channel": "The channel's"}[self.subject.kind]
        if self.what == "concurrent requests":
            what = self.what if self.limit != 1 else self.what.removesuffix("s")
            return f"{whose} limit of {self.limit} {what} is reached"
        what = self.what if self.limit != 1 else self.what.replace("s ", " ", 1)
        at_once = f" ({self.burst} at once)" if self.burst is not None and self.burst < self.limit else ""
        return f"{whose} limit of {self.limit} {what}{at_once} is reached; retry in {retry_after_s(self.wait_s)} s"


@attrs.define(eq=False)
class RateLimitPermit:
    """Permission for one request, and the windows right after it was taken.

    ``tokens`` is the estimate that was taken from every token bucket. ``holder`` is the limiter's own reference to the
    buckets.
    """

    tokens: int
    limit_status: RateLimitStatus
    holder: Any = attrs.field(default=None, repr=False)
    given_back: bool = False


class RateLimiter(Protocol):
    """Holds the buckets. ``subjects`` are a caller's, mostly the same object as the last time."""

    async def take(self, subjects: Sequence[RateLimitSubject], tokens: int) -> RateLimitPermit:
        """Take one request, ``tokens`` tokens and one concurrent request of every subject; all of it or nothing.

        Subjects are distinct. Their limits apply from this request on: a bucket keeps its state (``change_limit``),
        and one whose limit was removed works off its debt. Raises ``RateLimited`` with the longest wait.
        """
        ...

    def take_now(self, subjects: Sequence[RateLimitSubject], tokens: int) -> RateLimitPermit | None:
        """Like ``take`` if it need not wait. None if it has to be awaited; then nothing is taken."""
        ...

    async def take_part(self, subjects: Sequence[RateLimitSubject], tokens: int) -> RateLimitPermit:
        """Like ``take``, for a part of a session that has its own permit: the concurrency is not taken again."""
        ...

    async def check(self, subjects: Sequence[RateLimitSubject]) -> None:
        """Raise ``RateLimited`` if ``take`` would for any number of tokens. Takes nothing."""
        ...

    def check_spare(self, subjects: Sequence[RateLimitSubject], tokens: int) -> None:
        """Raise ``RateLimited`` if a request would take what requests of low priority leave to others.

        Takes nothing. See ``find_spare``.
        """
        ...

    def give_back(self, permit: RateLimitPermit, tokens: int) -> None:
        """End a request that used ``tokens``: release its concurrency, and correct the estimate.

        Never waits. Call it once for every permit; a second call changes nothing.
        """
        ...
