"""The rate limiter of one process, in memory."""

from collections.abc import Callable, Iterable, Sequence

import attrs

from gateway.billing.rate_buckets import (
    CallerBuckets,
    SubjectBuckets,
    build_caller,
    build_refusal,
    list_refusals,
    list_use,
)
from gateway.domain.rate_limit import (
    RateLimitPermit,
    RateLimitStatus,
    RateLimitSubject,
    SubjectUse,
    compute_reserve,
    correct_all,
    spend_all,
    undo_spend,
)

_MIN_SUBJECTS_TO_SWEEP = 1_024


class InMemoryRateLimiter:
    """A ``RateLimiter`` in memory. ``clock`` is monotonic. ``take`` never awaits, so it is atomic on the event loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._subjects: dict[tuple[str, int | str], SubjectBuckets] = {}
        # By the id() of the subjects, which stays unique because the value references them. Any change of a limit
        # clears the cache.
        self._callers: dict[int, CallerBuckets] = {}
        self._sweep_size = _MIN_SUBJECTS_TO_SWEEP

    async def take(self, subjects: Sequence[RateLimitSubject], tokens: int) -> RateLimitPermit:
        return self.take_now(subjects, tokens)

    def take_now(self, subjects: Sequence[RateLimitSubject], tokens: int) -> RateLimitPermit:
        now_s = self._clock()
        caller = self._callers.get(id(subjects)) or self._find_caller(subjects, now_s)
        for buckets, max_running in caller.capacities:
            if buckets.running >= max_running:
                raise build_refusal(caller, tokens, now_s)
        request_window = token_window = None
        if caller.requests:
            request_window = spend_all(caller.requests, 1, now_s)
            if request_window is None:
                raise build_refusal(caller, tokens, now_s)
        if caller.tokens:
            token_window = spend_all(caller.tokens, tokens, now_s)
            if token_window is None:
                undo_spend(caller.requests)
                raise build_refusal(caller, tokens, now_s)
        for buckets in caller.buckets:
            buckets.running += 1
        return RateLimitPermit(tokens, RateLimitStatus(request_window, token_window), caller)

    async def take_part(self, subjects: Sequence[RateLimitSubject], tokens: int) -> RateLimitPermit:
        now_s = self._clock()
        caller = self._callers.get(id(subjects)) or self._find_caller(subjects, now_s)
        request_window = spend_all(caller.requests, 1, now_s) if caller.requests else None
        if caller.requests and request_window is None:
            raise build_refusal(caller, tokens, now_s, running=False)
        token_window = spend_all(caller.tokens, tokens, now_s) if caller.tokens else None
        if caller.tokens and token_window is None:
            undo_spend(caller.requests)
            raise build_refusal(caller, tokens, now_s, running=False)
        return RateLimitPermit(tokens, RateLimitStatus(request_window, token_window), attrs.evolve(caller, buckets=()))

    async def check(self, subjects: Sequence[RateLimitSubject]) -> None:
        now_s = self._clock()
        caller = self._find_caller(subjects, now_s)
        if list_refusals(caller, 0, now_s):
            raise build_refusal(caller, 0, now_s)

    def check_spare(self, subjects: Sequence[RateLimitSubject], tokens: int) -> None:
        now_s = self._clock()
        caller = self._find_caller(subjects, now_s)
        if list_refusals(caller, tokens, now_s, spare=compute_reserve):
            raise build_refusal(caller, tokens, now_s, spare=compute_reserve)

    async def list_use(self, subjects: Sequence[RateLimitSubject]) -> Sequence[SubjectUse]:
        now_s = self._clock()
        return list_use(self._find_caller(subjects, now_s), now_s)

    def release(self, permit: RateLimitPermit, tokens: int) -> None:
        if permit.released:
            return
        permit.released = True
        caller: CallerBuckets = permit.holder
        for buckets in caller.buckets:
            buckets.running -= 1
        if tokens != permit.tokens:
            correct_all(caller.tokens, tokens - permit.tokens, self._clock())

    def raise_debts(self, subjects: Sequence[RateLimitSubject], debts: Iterable[tuple[float, float]]) -> None:
        """Raise each subject's debts to at least ``debts``: the ``tat`` of requests and of tokens, by this clock."""
        for buckets, (requests, tokens) in zip(self._find_caller(subjects, self._clock()).buckets, debts, strict=True):
            buckets.requests.tat = max(buckets.requests.tat, requests)
            buckets.tokens.tat = max(buckets.tokens.tat, tokens)

    def find_debts(self, subject: RateLimitSubject) -> tuple[float, float]:
        """Return the ``tat`` of the subject's requests and of its tokens."""
        buckets = self._find_buckets(subject, self._clock())
        return buckets.requests.tat, buckets.tokens.tat

    def _find_caller(self, subjects: Sequence[RateLimitSubject], now_s: float) -> CallerBuckets:
        caller = self._callers.get(id(subjects))
        if caller is not None:
            return caller
        if max(len(self._subjects), len(self._callers)) >= self._sweep_size:
            self._sweep(now_s)
        buckets = tuple([self._find_buckets(subject, now_s) for subject in subjects])
        caller = self._callers[id(subjects)] = build_caller(subjects, buckets)
        return caller

    def _find_buckets(self, subject: RateLimitSubject, now_s: float) -> SubjectBuckets:
        subject_key = subject.kind, subject.id
        buckets = self._subjects.get(subject_key)
        if buckets is None:
            buckets = self._subjects[subject_key] = SubjectBuckets(subject.limits, now_s)
        elif buckets.limits != subject.limits:
            buckets.set_limits(subject.limits, now_s)
            self._callers.clear()  # other callers may hold these buckets under the old limits
        return buckets

    def _sweep(self, now_s: float) -> None:
        """Drop all cached callers and the idle buckets. Call it before buckets are looked up, not while they are."""
        self._callers.clear()
        self._subjects = {
            subject_key: buckets for subject_key, buckets in self._subjects.items() if not buckets.is_idle(now_s)
        }
        self._sweep_size = max(_MIN_SUBJECTS_TO_SWEEP, 2 * len(self._subjects))
