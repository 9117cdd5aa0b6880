"""Rate meters in memory: one process, lost with it."""

from collections.abc import Callable, Sequence

from gateway.domain.fault import RateLimited
from gateway.domain.rate import (
    FULL_WAIT_S,
    Allowance,
    Refusal,
    Standing,
    Subject,
    Turn,
    change_limit,
    correct,
    remaining,
    reset_s,
    retry_after_s,
    take,
    wait_s,
)

_FEWEST_TO_SWEEP = 1_024
_Strictness = tuple[int, float, int]
"""What remains, minus the ``tat``, the limit: the least is the strictest, of two that are alike the longer to rest."""


class _Meters:
    """The meters of one subject: what runs, and for each rate its ``tat`` and the limit under which that was owed."""

    __slots__ = ("requests_tat", "rpm", "running", "tokens_tat", "tpm")

    def __init__(self, now: float) -> None:
        self.running = 0
        self.requests_tat = self.tokens_tat = now
        self.rpm = self.tpm = 1


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
        found = self._check(subjects, tokens, now)
        for subject, meters in found:
            meters.running += 1
            if subject.limits.rpm is not None:
                meters.requests_tat = take(meters.requests_tat, meters.rpm, 1, now)
            if subject.limits.tpm is not None:
                meters.tokens_tat = take(meters.tokens_tat, meters.tpm, tokens, now)
        return Turn(tuple(subjects), tokens, _read_standing(found, now))

    async def check(self, subjects: Sequence[Subject]) -> None:
        """Raise ``RateLimited`` where ``take`` would, be the tokens none."""
        self._check(subjects, 0, self._clock())

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

    def _check(self, subjects: Sequence[Subject], tokens: int, now: float) -> list[tuple[Subject, _Meters]]:
        """The meters of the subjects. Raises ``RateLimited`` with the longest wait."""
        found = [(subject, self._get(subject, now)) for subject in subjects]
        refusal: Refusal | None = None
        for subject, meters in found:
            other = _find_refusal(subject, meters, tokens, now)
            if other and (refusal is None or other.wait_s > refusal.wait_s):
                refusal = other
        if refusal is not None:
            raise RateLimited(
                refusal.message,
                standing=_read_standing(found, now),
                retry_after_s=retry_after_s(refusal.wait_s),
            )
        return found

    def _get(self, subject: Subject, now: float) -> _Meters:
        """The subject's meters under its limits of this moment."""
        meters = self._meters.get((subject.kind, subject.id))
        if meters is None:
            if len(self._meters) >= self._sweep_at:
                self._sweep(now)
            meters = self._meters[subject.kind, subject.id] = _Meters(now)
        rpm, tpm = subject.limits.rpm, subject.limits.tpm
        if rpm is not None and rpm != meters.rpm:
            meters.requests_tat = change_limit(meters.requests_tat, meters.rpm, rpm, now)
            meters.rpm = rpm
        if tpm is not None and tpm != meters.tpm:
            meters.tokens_tat = change_limit(meters.tokens_tat, meters.tpm, tpm, now)
            meters.tpm = tpm
        return meters

    def _sweep(self, now: float) -> None:
        """Forget the meters that say nothing: at rest, and nothing running.

        Done when their number has doubled since the last time, so it costs each newcomer the look at two others.
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
    return Standing(_find_strictest(requests, now), _find_strictest(tokens, now))


def _find_strictest(rates: Sequence[_Strictness], now: float) -> Allowance | None:
    if not rates:
        return None
    left, minus_tat, limit = min(rates)
    return Allowance(limit, left, reset_s(-minus_tat, now))
