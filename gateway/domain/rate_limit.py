"""Rate limits of an account or a key: requests a minute, tokens a minute, requests at once.

The arithmetic is the generic cell rate algorithm (ITU-T I.371, annex A): the whole state of a meter is one float,
its theoretical arrival time (``tat``), in seconds of a monotonic clock that the caller reads and passes as ``now``.
A meter whose ``tat`` is past is at rest; what it is ahead of ``now`` is the debt still to be worked off. Every unit
puts it ``60 / limit`` seconds ahead, and a tenth of the limit may be owed at a time: units pass smoothly, and over
any minute at most ``limit + burst(limit)`` of them.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Protocol

import attrs

from gateway.domain.frozen import frozen

MINUTE_S = 60.0
MAX_RETRY_AFTER_S = 3_600
"""The longest wait that a caller is told; a debt may be longer."""

FULL_WAIT_S = 1.0
"""What a caller is told to wait where too many requests run at once: nobody knows when one of them will end."""

_SLACK_S = 1e-6  # rounding of the clock's floats; a whole second's wait must suffice when a whole second was told


@attrs.frozen
class Limits:
    """Requests a minute, tokens a minute, requests at once; None is unlimited."""

    rpm: int | None = None
    tpm: int | None = None
    max_concurrency: int | None = None

    @property
    def any(self) -> bool:
        """Whether anything is limited at all."""
        return self.rpm is not None or self.tpm is not None or self.max_concurrency is not None


NO_LIMITS = Limits()


def burst(limit: int) -> int:
    """How many units may pass at once from a meter at rest: a tenth of the limit, at least one."""
    return max(1, limit // 10)


def wait_s(tat: float, limit: int, cost: int, now: float) -> float:
    """Seconds until ``cost`` units would pass; 0 where they would now. Changes nothing.

    A cost above the burst passes only at rest: a single large prompt is let through, and is then a debt. A cost of 0
    (nothing is known of it yet) passes while no more than the burst is owed.
    """
    if tat <= now:
        return 0.0
    most = burst(limit)
    headroom_s = (most - cost) * MINUTE_S / limit if cost < most else 0.0
    wait = tat - now - headroom_s
    return wait if wait > _SLACK_S else 0.0


def take(tat: float, limit: int, cost: int, now: float) -> float:
    """The meter's ``tat`` after ``cost`` units were let through; whether they may pass is ``wait_s``'s business."""
    return max(tat, now) + cost * MINUTE_S / limit


def change_limit(tat: float, old: int, new: int, now: float) -> float:
    """The meter's ``tat`` under a ``new`` limit: the kinder reading of its debt, in units or in seconds.

    Raised: the units owed stay, so their seconds shrink (else raising a limit from 1 to 100,000 would leave an hour's
    wait, now for millions of units). Lowered: the seconds stay (else a tenth of a large limit, rightly used, would be
    hours under a small one). Neither reading of a debt ever grows by a change.
    """
    if new <= old:
        return tat
    return now + (tat - now) * old / new


def remaining(tat: float, limit: int, now: float) -> int:
    """The largest cost up to the burst that would pass now."""
    most = burst(limit)
    debt_s = tat - now - _SLACK_S
    if debt_s <= 0:
        return most
    left = most - debt_s * limit / MINUTE_S
    return int(left) if left > 0 else 0


def reset_s(tat: float, now: float) -> float:
    """Seconds until the meter is at rest."""
    return tat - now if tat > now else 0.0


def retry_after_s(wait: float) -> int:
    """A wait as ``Retry-After`` says it: whole seconds rounded up, from 1 to an hour."""
    return max(1, min(math.ceil(min(wait, MAX_RETRY_AFTER_S) - _SLACK_S), MAX_RETRY_AFTER_S))


@frozen
class RateLimitWindow:
    """How one limit stands: units a minute, what would pass at this moment, seconds until the meter is at rest.

    ``remaining`` never exceeds the burst, a tenth of ``limit``: more would not pass at once.
    """

    limit: int
    remaining: int
    reset_s: float


@frozen
class RateLimitStatus:
    """How a caller stands: for each of the two rates the allowance with the fewest remaining; None is unlimited."""

    requests: RateLimitWindow | None = None
    tokens: RateLimitWindow | None = None


class GcraBucket:
    """One rate of one subject: its ``tat``, and the limit under which that was owed. ``before``: the last taking."""

    __slots__ = ("before", "limit", "tat")

    def __init__(self, limit: int, now: float) -> None:
        self.tat = self.before = now
        self.limit = limit

    def use(self, limit: int, now: float) -> None:
        """Go by ``limit`` from now on."""
        if limit != self.limit:
            self.tat = change_limit(self.tat, self.limit, limit, now)
            self.limit = limit


Rate = tuple[GcraBucket, int, int]
"""A meter, the limit under which it is asked, and its burst."""


def take_all(rates: Iterable[Rate], cost: int, now: float) -> RateLimitWindow | None:
    """Let ``cost`` units through every meter, and tell how the strictest stands then; None where one refuses.

    Then nothing is taken. The strictest is that with the fewest remaining, of two that are alike the longer to rest.
    ``wait_s``, ``take`` and ``remaining`` of all meters in one go, which every request makes for each of its rates.
    """
    cost_s = cost * MINUTE_S
    told, fewest, latest = 0, 0, 0.0
    for meter, limit, most in rates:
        tat = meter.tat
        after = (tat if tat > now else now) + cost_s / limit  # noqa: FURB136 - max() is a call, for every meter
        debt_s = after - now - _SLACK_S
        left = most
        if debt_s > 0:
            left = int(most - debt_s * limit / MINUTE_S)
            if left <= 0:  # else less is owed than a burst, the cost counted in: no need to ask
                if wait_s(tat, limit, cost, now):
                    put_back(rates, meter)
                    return None
                left = 0
        meter.before, meter.tat = tat, after
        if not told or left < fewest or (left == fewest and (after, -limit) > (latest, -told)):
            told, fewest, latest = limit, left, after
    return RateLimitWindow(told, fewest, latest - now)


def put_back(rates: Iterable[Rate], until: GcraBucket | None = None) -> None:
    """Undo the last taking, which was a moment ago, for every meter that comes before ``until``."""
    for meter, _, _ in rates:
        if meter is until:
            return
        meter.tat = meter.before


def correct_all(rates: Iterable[Rate], tokens: int, now: float) -> None:
    """Post ``tokens`` to every meter: real units minus the estimate that was taken.

    Too little was taken: the rest is owed from now on. Too much: the debt shrinks, to rest at the least and never to
    credit. What is counted in the long run are the real units. A correction that comes after its estimate was worked
    off may relieve the debt of others, and the minute in which it comes may see that much more: it was waited for.
    Where the limit is another by now it counts at the larger one, as the debt does.
    """
    tokens_s = tokens * MINUTE_S
    for meter, limit, _ in rates:
        since = now if tokens > 0 and meter.tat < now else meter.tat
        tat = since + tokens_s / max(limit, meter.limit)
        meter.tat = tat if tat > now else now  # noqa: FURB136


@attrs.frozen
class RateLimitSubject:
    """Who is metered, and under which limits at this moment."""

    kind: Literal["key", "account"]
    id: int
    limits: Limits


@attrs.frozen
class LimitExceeded:
    """Which limit of whom stands in the way, and for how many seconds."""

    subject: RateLimitSubject
    what: Literal["requests a minute", "tokens a minute", "requests at once"]
    limit: int
    wait_s: float

    @property
    def message(self) -> str:
        """One sentence for the caller."""
        whose = "This key's" if self.subject.kind == "key" else "The account's"
        what = self.what if self.limit != 1 else self.what.replace("s ", " ", 1)
        return f"{whose} limit of {self.limit} {what} is reached"


@attrs.define(eq=False)
class RateLimitPermit:
    """Leave for one request: how its subjects stood right after it was taken, and what was.

    ``tokens`` is the estimate that was taken from every tokens-a-minute meter. ``seat`` is the counters' own: from
    which meters.
    """

    tokens: int
    standing: RateLimitStatus
    seat: Any = attrs.field(default=None, repr=False)
    given_back: bool = False


class RateLimiter(Protocol):
    """Where the meters live. ``subjects`` are a caller's, and mostly the very same object as the last time."""

    async def take(self, subjects: Sequence[RateLimitSubject], tokens: int) -> RateLimitPermit:
        """One request, ``tokens`` tokens and one place of every subject; all of it or nothing.

        Subjects are distinct. Their limits hold from this request on: a meter keeps its state (``change_limit``), and
        one whose limit is lifted works off its debt meanwhile. Raises ``RateLimited`` with the longest wait.
        """
        ...

    def take_now(self, subjects: Sequence[RateLimitSubject], tokens: int) -> RateLimitPermit | None:
        """``take`` where it need not wait; None, and nothing is taken, where it has to be awaited."""
        ...

    async def check(self, subjects: Sequence[RateLimitSubject]) -> None:
        """Raise ``RateLimited`` where ``take`` would whatever the tokens are; takes nothing."""
        ...

    def give_back(self, turn: RateLimitPermit, tokens: int) -> None:
        """The request has ended and used ``tokens``: free its places, and count what it used, not the estimate.

        Never waits; a second time changes nothing. To be called once for every turn, whatever became of the request.
        """
        ...
