"""The rate limiter of one process, in memory."""

from collections.abc import Callable, Iterable, Sequence

import attrs

from gateway.domain.rate_limit import (
    FULL_WAIT_S,
    GcraBucket,
    LimitExceeded,
    Limits,
    Rate,
    RateLimitPermit,
    RateLimitStatus,
    RateLimitSubject,
    RateLimitWindow,
    correct_all,
    find_spare,
    put_back,
    remaining,
    reset_s,
    retry_after_s,
    take_all,
    wait_s,
)
from gateway.errors import RateLimited

_FEWEST_TO_SWEEP = 1_024


class _SubjectBuckets:
    """The buckets of one subject, and its requests in progress."""

    __slots__ = ("limits", "requests", "running", "tokens")

    def __init__(self, limits: Limits, now: float) -> None:
        self.running = 0
        self.requests = GcraBucket(limits.rpm or 1, now)
        self.tokens = GcraBucket(limits.tpm or 1, now)
        self.limits = limits

    def use(self, limits: Limits, now: float) -> None:
        """Apply ``limits`` from now on."""
        self.limits = limits
        if limits.rpm is not None:
            self.requests.use(limits.rpm, now)
        if limits.tpm is not None:
            self.tokens.use(limits.tpm, now)

    def is_idle(self, now: float) -> bool:
        """Return whether they remember nothing."""
        return not self.running and self.requests.tat <= now and self.tokens.tat <= now


@attrs.define(eq=False)
class _CallerBuckets:
    """A caller's buckets, looked up once: those of its subjects, and the limited ones among them."""

    subjects: Sequence[RateLimitSubject]
    buckets: tuple[_SubjectBuckets, ...]
    capacities: tuple[tuple[_SubjectBuckets, int], ...]
    requests: tuple[Rate, ...]
    tokens: tuple[Rate, ...]


class InMemoryRateLimiter:
    """The ``RateLimiter`` in a dictionary. ``take`` never awaits, so it is atomic on the event loop.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._subjects: dict[tuple[str, int], _SubjectBuckets] = {}
        # By the identity of the subjects, which the value keeps alive. A change of any limit drops all.
        self._callers: dict[int, _CallerBuckets] = {}
        self._sweep_at = _FEWEST_TO_SWEEP

    async def take(self, subjects: Sequence[RateLimitSubject], tokens: int) -> RateLimitPermit:
        return self.take_now(subjects, tokens)

    def take_now(self, subjects: Sequence[RateLimitSubject], tokens: int) -> RateLimitPermit:
        now = self._clock()
        caller = self._callers.get(id(subjects)) or self._find_caller(subjects, now)
        for buckets, most in caller.capacities:
            if buckets.running >= most:
                raise _refuse(caller, tokens, now)
        requests = spent = None
        if caller.requests:
            requests = take_all(caller.requests, 1, now)
            if requests is None:
                raise _refuse(caller, tokens, now)
        if caller.tokens:
            spent = take_all(caller.tokens, tokens, now)
            if spent is None:
                put_back(caller.requests)
                raise _refuse(caller, tokens, now)
        for buckets in caller.buckets:
            buckets.running += 1
        return RateLimitPermit(tokens, RateLimitStatus(requests, spent), caller)

    async def take_part(self, subjects: Sequence[RateLimitSubject], tokens: int) -> RateLimitPermit:
        now = self._clock()
        caller = self._callers.get(id(subjects)) or self._find_caller(subjects, now)
        requests = take_all(caller.requests, 1, now) if caller.requests else None
        if caller.requests and requests is None:
            raise _refuse(caller, tokens, now, running=False)
        spent = take_all(caller.tokens, tokens, now) if caller.tokens else None
        if caller.tokens and spent is None:
            put_back(caller.requests)
            raise _refuse(caller, tokens, now, running=False)
        return RateLimitPermit(tokens, RateLimitStatus(requests, spent), attrs.evolve(caller, buckets=()))

    async def check(self, subjects: Sequence[RateLimitSubject]) -> None:
        now = self._clock()
        caller = self._find_caller(subjects, now)
        if _list_refusals(caller, 0, now):
            raise _refuse(caller, 0, now)

    def check_spare(self, subjects: Sequence[RateLimitSubject], tokens: int) -> None:
        now = self._clock()
        caller = self._find_caller(subjects, now)
        if _list_refusals(caller, tokens, now, spare=find_spare):
            raise _refuse(caller, tokens, now, spare=find_spare)

    def give_back(self, turn: RateLimitPermit, tokens: int) -> None:
        if turn.given_back:
            return
        turn.given_back = True
        caller: _CallerBuckets = turn.seat
        for buckets in caller.buckets:
            buckets.running -= 1
        if tokens != turn.tokens:
            correct_all(caller.tokens, tokens - turn.tokens, self._clock())

    def _find_caller(self, subjects: Sequence[RateLimitSubject], now: float) -> _CallerBuckets:
        """Return the buckets of these subjects under their present limits."""
        caller = self._callers.get(id(subjects))
        if caller is not None:
            return caller
        if max(len(self._subjects), len(self._callers)) >= self._sweep_at:
            self._sweep(now)
        buckets = tuple([self._find(subject, now) for subject in subjects])
        limited = [(its, subject.limits) for its, subject in zip(buckets, subjects, strict=True)]
        caller = self._callers[id(subjects)] = _CallerBuckets(
            subjects,
            buckets,
            tuple([(its, most) for its, limits in limited if (most := limits.max_concurrency) is not None]),
            tuple(
                [
                    (its.requests, rpm, limits.find_request_burst(rpm))
                    for its, limits in limited
                    if (rpm := limits.rpm) is not None
                ]
            ),
            tuple([(its.tokens, tpm, tpm) for its, limits in limited if (tpm := limits.tpm) is not None]),
        )
        return caller

    def _find(self, subject: RateLimitSubject, now: float) -> _SubjectBuckets:
        """Return the subject's buckets under its present limits."""
        who = subject.kind, subject.id
        buckets = self._subjects.get(who)
        if buckets is None:
            buckets = self._subjects[who] = _SubjectBuckets(subject.limits, now)
        elif buckets.limits != subject.limits:
            buckets.use(subject.limits, now)
            self._callers.clear()  # other callers may hold these buckets under the old limits
        return buckets

    def _sweep(self, now: float) -> None:
        """Drop every cached caller, and idle buckets.

        It runs when their number has doubled, so each new bucket costs two looks; and before a request looks up its
        own, which are idle while they are new.
        """
        self._callers.clear()
        self._subjects = {who: buckets for who, buckets in self._subjects.items() if not buckets.is_idle(now)}
        self._sweep_at = max(_FEWEST_TO_SWEEP, 2 * len(self._subjects))


def _refuse(
    caller: _CallerBuckets, tokens: int, now: float, spare: Callable[[int], int] = lambda _: 0, *, running: bool = True
) -> RateLimited:
    """Return the error with the longest wait. At least one limit must refuse."""
    refusal = max(_list_refusals(caller, tokens, now, spare, running=running), key=lambda refusal: refusal.wait_s)
    return RateLimited(
        refusal.message,
        standing=RateLimitStatus(_find_strictest(caller.requests, now), _find_strictest(caller.tokens, now)),
        retry_after_s=retry_after_s(refusal.wait_s),
    )


def _list_refusals(
    caller: _CallerBuckets, tokens: int, now: float, spare: Callable[[int], int] = lambda _: 0, *, running: bool = True
) -> list[LimitExceeded]:
    """Return every limit that refuses one more request, by subject.

    ``spare``: what must be left of each. ``running``: also the limits of concurrency.
    """
    refusals: list[LimitExceeded] = []
    for subject, buckets in zip(caller.subjects, caller.buckets, strict=True):
        limits = subject.limits
        most, rpm, tpm = limits.max_concurrency, limits.rpm, limits.tpm
        if running and most is not None and buckets.running >= most - spare(most):
            refusals.append(LimitExceeded(subject, "concurrent requests", most, FULL_WAIT_S))
        if rpm is not None:
            burst = limits.find_request_burst(rpm)
            if wait := wait_s(buckets.requests.tat, (rpm, burst), 1 + spare(burst), now):
                refusals.append(LimitExceeded(subject, "requests per minute", rpm, wait, burst))
        if tpm is not None and (wait := wait_s(buckets.tokens.tat, (tpm, tpm), tokens + spare(tpm), now)):
            refusals.append(LimitExceeded(subject, "tokens per minute", tpm, wait))
    return refusals


def _find_strictest(rates: Iterable[Rate], now: float) -> RateLimitWindow | None:
    """Return the window of the strictest bucket; see ``take_all``."""
    stand = [(remaining(bucket.tat, limit, most, now), -bucket.tat, limit) for bucket, limit, most in rates]
    if not stand:
        return None
    left, minus_tat, limit = min(stand)
    return RateLimitWindow(limit, left, reset_s(-minus_tat, now))
