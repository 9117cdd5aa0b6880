"""Rate meters in memory: one process, lost with it."""

from collections.abc import Callable, Sequence

from gateway.domain.fault import RateLimited
from gateway.domain.rate import (
    FULL_WAIT_S,
    NO_LIMITS,
    Allowance,
    Limits,
    Refusal,
    Standing,
    Subject,
    Turn,
    change_limit,
    correct,
    look_ahead,
    remaining,
    reset_s,
    retry_after_s,
    wait_s,
)

_FEWEST_TO_SWEEP = 1_024
_Strictness = tuple[int, float, int]
"""What remains, minus the ``tat``, the limit: the least is the strictest, of two that are alike the longer to rest."""
_Step = tuple[_Strictness | None, _Strictness | None]
"""Of the requests, and of the tokens; None is unlimited."""


class _Meters:
    """The meters of one subject: what runs, and for each rate its ``tat`` and the limit under which that was owed."""

    __slots__ = ("limits", "requests_tat", "rpm", "running", "tokens_tat", "tpm")

    def __init__(self, now: float) -> None:
        self.running = 0
        self.requests_tat = self.tokens_tat = now
        self.rpm = self.tpm = 1
        self.limits = NO_LIMITS

    def use(self, limits: Limits, now: float) -> None:
        """Go by ``limits`` from now on."""
        self.limits = limits
        rpm, tpm = limits.rpm, limits.tpm
        if rpm is not None and rpm != self.rpm:
            self.requests_tat = change_limit(self.requests_tat, self.rpm, rpm, now)
            self.rpm = rpm
        if tpm is not None and tpm != self.tpm:
            self.tokens_tat = change_limit(self.tokens_tat, self.tpm, tpm, now)
            self.tpm = tpm

    def look_ahead(self, tokens: int, now: float) -> "_Step | None":
        """How its rates stand after one more request; None where a limit is in the way."""
        limits = self.limits
        if limits.max_concurrency is not None and self.running >= limits.max_concurrency:
            return None
        requests = spent = None
        if limits.rpm is not None:
            step = look_ahead(self.requests_tat, limits.rpm, 1, now)
            if step is None:
                return None
            requests = (step[1], -step[0], limits.rpm)
        if limits.tpm is not None:
            step = look_ahead(self.tokens_tat, limits.tpm, tokens, now)
            if step is None:
                return None
            spent = (step[1], -step[0], limits.tpm)
        return requests, spent


class MemoryCounters:
    """``domain.rate.Counters`` in a dictionary. Nothing waits in ``take``, so on the event loop it is atomic.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._meters: dict[tuple[str, int], _Meters] = {}
        self._sweep_at = _FEWEST_TO_SWEEP

    async def take(self, subjects: Sequence[Subject], tokens: int) -> Turn:
        """One request, ``tokens`` tokens and one place of every subject, or ``RateLimited`` and nothing."""
        now = self._clock()
        if len(self._meters) >= self._sweep_at:
            self._sweep(now)
        ahead: list[tuple[_Meters, _Step]] = []
        for subject in subjects:
            meters = self._meters.get((subject.kind, subject.id))
            if meters is None or meters.limits is not subject.limits:
                meters = self._find(subject, now)
            step = meters.look_ahead(tokens, now)
            if step is None:
                raise self._refuse(subjects, tokens, now)
            ahead.append((meters, step))
        requests = spent = None
        for meters, step in ahead:
            meters.running += 1
            of_requests, of_tokens = step
            if of_requests is not None:
                meters.requests_tat = -of_requests[1]
                requests = of_requests if requests is None else min(requests, of_requests)
            if of_tokens is not None:
                meters.tokens_tat = -of_tokens[1]
                spent = of_tokens if spent is None else min(spent, of_tokens)
        return Turn(tuple(subjects), tokens, Standing(_make_allowance(requests, now), _make_allowance(spent, now)))

    async def check(self, subjects: Sequence[Subject]) -> None:
        """Raise ``RateLimited`` where ``take`` would, be the tokens none."""
        now = self._clock()
        if len(self._meters) >= self._sweep_at:
            self._sweep(now)
        for subject in subjects:
            if self._find(subject, now).look_ahead(0, now) is None:
                raise self._refuse(subjects, 0, now)

    def give_back(self, turn: Turn, tokens: int) -> None:
        """Free the places of ``turn`` and count the ``tokens`` it used, once."""
        if turn.given_back:
            return
        turn.given_back = True
        now = self._clock()
        for subject in turn.subjects:
            meters = self._meters[subject.kind, subject.id]
            meters.running -= 1
            tpm = subject.limits.tpm
            if tpm is not None and tokens != turn.tokens:
                meters.tokens_tat = correct(meters.tokens_tat, max(tpm, meters.tpm), tokens - turn.tokens, now)

    def _find(self, subject: Subject, now: float) -> _Meters:
        """The subject's meters under its limits of this moment."""
        meters = self._meters.get((subject.kind, subject.id))
        if meters is None:
            meters = self._meters[subject.kind, subject.id] = _Meters(now)
        if meters.limits is not subject.limits:
            meters.use(subject.limits, now)
        return meters

    def _refuse(self, subjects: Sequence[Subject], tokens: int, now: float) -> RateLimited:
        """What stands in the way, with the longest wait; something does."""
        found = [(subject, self._find(subject, now)) for subject in subjects]
        refusals = [_find_refusal(subject, meters, tokens, now) for subject, meters in found]
        refusal = max(filter(None, refusals), key=lambda refusal: refusal.wait_s)
        return RateLimited(
            refusal.message,
            standing=_read_standing(found, now),
            retry_after_s=retry_after_s(refusal.wait_s),
        )

    def _sweep(self, now: float) -> None:
        """Forget the meters that say nothing: at rest, and nothing running.

        Done when their number has doubled since the last time, so it costs each newcomer the look at two others; and
        before a request looks its own up, which say nothing yet where they are new.
        """
        self._meters = {
            who: meters
            for who, meters in self._meters.items()
            if meters.running or meters.requests_tat > now or meters.tokens_tat > now
        }
        self._sweep_at = max(_FEWEST_TO_SWEEP, 2 * len(self._meters))


def _find_refusal(subject: Subject, meters: _Meters, tokens: int, now: float) -> Refusal | None:
    """The limit of ``subject`` with the longest wait, or None where one more request may pass."""
    limits = subject.limits
    refusal: Refusal | None = None
    if limits.max_concurrency is not None and meters.running >= limits.max_concurrency:
        refusal = Refusal(subject, "requests at once", limits.max_concurrency, FULL_WAIT_S)
    if limits.rpm is not None:
        wait = wait_s(meters.requests_tat, limits.rpm, 1, now)
        if wait > (refusal.wait_s if refusal else 0):
            refusal = Refusal(subject, "requests a minute", limits.rpm, wait)
    if limits.tpm is not None:
        wait = wait_s(meters.tokens_tat, limits.tpm, tokens, now)
        if wait > (refusal.wait_s if refusal else 0):
            refusal = Refusal(subject, "tokens a minute", limits.tpm, wait)
    return refusal


def _read_standing(found: Sequence[tuple[Subject, _Meters]], now: float) -> Standing:
    requests: list[_Strictness] = []
    tokens: list[_Strictness] = []
    for subject, meters in found:
        limits = subject.limits
        if limits.rpm is not None:
            requests.append((remaining(meters.requests_tat, limits.rpm, now), -meters.requests_tat, limits.rpm))
        if limits.tpm is not None:
            tokens.append((remaining(meters.tokens_tat, limits.tpm, now), -meters.tokens_tat, limits.tpm))
    return Standing(_make_allowance(min(requests, default=None), now), _make_allowance(min(tokens, default=None), now))


def _make_allowance(rate: _Strictness | None, now: float) -> Allowance | None:
    if rate is None:
        return None
    left, minus_tat, limit = rate
    return Allowance(limit, left, reset_s(-minus_tat, now))
