"""Rate meters in memory: one process, lost with it."""

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
    burst,
    correct_all,
    put_back,
    remaining,
    reset_s,
    retry_after_s,
    take_all,
    wait_s,
)
from gateway.errors import RateLimited

_FEWEST_TO_SWEEP = 1_024


class _Meters:
    """The meters of one subject: what runs, and its two rates."""

    __slots__ = ("limits", "requests", "running", "tokens")

    def __init__(self, limits: Limits, now: float) -> None:
        self.running = 0
        self.requests = GcraBucket(limits.rpm or 1, now)
        self.tokens = GcraBucket(limits.tpm or 1, now)
        self.limits = limits

    def use(self, limits: Limits, now: float) -> None:
        """Go by ``limits`` from now on."""
        self.limits = limits
        if limits.rpm is not None:
            self.requests.use(limits.rpm, now)
        if limits.tpm is not None:
            self.tokens.use(limits.tpm, now)

    def is_at_rest(self, now: float) -> bool:
        """Whether they say nothing."""
        return not self.running and self.requests.tat <= now and self.tokens.tat <= now


@attrs.define(eq=False)
class _CallerBuckets:
    """A caller's meters, found once: those of its subjects, and of these what is limited."""

    subjects: Sequence[RateLimitSubject]
    meters: tuple[_Meters, ...]
    places: tuple[tuple[_Meters, int], ...]
    requests: tuple[Rate, ...]
    tokens: tuple[Rate, ...]


class InMemoryRateLimiter:
    """``domain.rate.Counters`` in a dictionary. Nothing waits in ``take``, so on the event loop it is atomic.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._meters: dict[tuple[str, int], _Meters] = {}
        # By the identity of the subjects, which a seat keeps alive. All are forgotten when a limit of any changes.
        self._seats: dict[int, _CallerBuckets] = {}
        self._sweep_at = _FEWEST_TO_SWEEP

    async def take(self, subjects: Sequence[RateLimitSubject], tokens: int) -> RateLimitPermit:
        """One request, ``tokens`` tokens and one place of every subject, or ``RateLimited`` and nothing."""
        return self.take_now(subjects, tokens)

    def take_now(self, subjects: Sequence[RateLimitSubject], tokens: int) -> RateLimitPermit:
        """The same, which never waits."""
        now = self._clock()
        seat = self._seats.get(id(subjects)) or self._find_seat(subjects, now)
        for meters, most in seat.places:
            if meters.running >= most:
                raise _refuse(seat, tokens, now)
        requests = spent = None
        if seat.requests:
            requests = take_all(seat.requests, 1, now)
            if requests is None:
                raise _refuse(seat, tokens, now)
        if seat.tokens:
            spent = take_all(seat.tokens, tokens, now)
            if spent is None:
                put_back(seat.requests)
                raise _refuse(seat, tokens, now)
        for meters in seat.meters:
            meters.running += 1
        return RateLimitPermit(tokens, RateLimitStatus(requests, spent), seat)

    async def check(self, subjects: Sequence[RateLimitSubject]) -> None:
        """Raise ``RateLimited`` where ``take`` would, be the tokens none."""
        now = self._clock()
        seat = self._find_seat(subjects, now)
        if _list_refusals(seat, 0, now):
            raise _refuse(seat, 0, now)

    def give_back(self, turn: RateLimitPermit, tokens: int) -> None:
        """Free the places of ``turn`` and count the ``tokens`` it used, once."""
        if turn.given_back:
            return
        turn.given_back = True
        seat: _CallerBuckets = turn.seat
        for meters in seat.meters:
            meters.running -= 1
        if tokens != turn.tokens:
            correct_all(seat.tokens, tokens - turn.tokens, self._clock())

    def _find_seat(self, subjects: Sequence[RateLimitSubject], now: float) -> _CallerBuckets:
        """The seat of some subjects, with their meters under their limits of this moment."""
        seat = self._seats.get(id(subjects))
        if seat is not None:
            return seat
        if max(len(self._meters), len(self._seats)) >= self._sweep_at:
            self._sweep(now)
        meters = tuple([self._find(subject, now) for subject in subjects])
        limited = [(its, subject.limits) for its, subject in zip(meters, subjects, strict=True)]
        seat = self._seats[id(subjects)] = _CallerBuckets(
            subjects,
            meters,
            tuple([(its, most) for its, limits in limited if (most := limits.max_concurrency) is not None]),
            tuple([(its.requests, rpm, burst(rpm)) for its, limits in limited if (rpm := limits.rpm) is not None]),
            tuple([(its.tokens, tpm, burst(tpm)) for its, limits in limited if (tpm := limits.tpm) is not None]),
        )
        return seat

    def _find(self, subject: RateLimitSubject, now: float) -> _Meters:
        """The subject's meters under its limits of this moment."""
        who = subject.kind, subject.id
        meters = self._meters.get(who)
        if meters is None:
            meters = self._meters[who] = _Meters(subject.limits, now)
        elif meters.limits != subject.limits:
            meters.use(subject.limits, now)
            self._seats.clear()  # others may sit at these meters under the limits before
        return meters

    def _sweep(self, now: float) -> None:
        """Forget every seat, and the meters that say nothing: at rest, and nothing running.

        Done when their number has doubled since the last time, so it costs each newcomer the look at two others; and
        before a request looks its own up, which say nothing yet where they are new.
        """
        self._seats.clear()
        self._meters = {who: meters for who, meters in self._meters.items() if not meters.is_at_rest(now)}
        self._sweep_at = max(_FEWEST_TO_SWEEP, 2 * len(self._meters))


def _refuse(seat: _CallerBuckets, tokens: int, now: float) -> RateLimited:
    """What stands in the way, with the longest wait; something does."""
    refusal = max(_list_refusals(seat, tokens, now), key=lambda refusal: refusal.wait_s)
    return RateLimited(
        refusal.message,
        standing=RateLimitStatus(_tell(seat.requests, now), _tell(seat.tokens, now)),
        retry_after_s=retry_after_s(refusal.wait_s),
    )


def _list_refusals(seat: _CallerBuckets, tokens: int, now: float) -> list[LimitExceeded]:
    """Every limit that is in the way of one more request, a subject's after the other's."""
    refusals: list[LimitExceeded] = []
    for subject, meters in zip(seat.subjects, seat.meters, strict=True):
        most, rpm, tpm = subject.limits.max_concurrency, subject.limits.rpm, subject.limits.tpm
        if most is not None and meters.running >= most:
            refusals.append(LimitExceeded(subject, "requests at once", most, FULL_WAIT_S))
        if rpm is not None and (wait := wait_s(meters.requests.tat, rpm, 1, now)):
            refusals.append(LimitExceeded(subject, "requests a minute", rpm, wait))
        if tpm is not None and (wait := wait_s(meters.tokens.tat, tpm, tokens, now)):
            refusals.append(LimitExceeded(subject, "tokens a minute", tpm, wait))
    return refusals


def _tell(rates: Iterable[Rate], now: float) -> RateLimitWindow | None:
    """How the strictest of some meters stands; see ``take_all``."""
    stand = [(remaining(meter.tat, limit, now), -meter.tat, limit) for meter, limit, _ in rates]
    if not stand:
        return None
    left, minus_tat, limit = min(stand)
    return RateLimitWindow(limit, left, reset_s(-minus_tat, now))
