"""Admission by one of several gateways while the server of their rate limits is away."""

from collections.abc import Callable, Iterator
from typing import Literal

from gateway.billing.rate_limiter import InMemoryRateLimiter
from gateway.cluster.limits.batch import REQUESTS, TOKENS
from gateway.cluster.limits.subject import SharedCaller, SharedSubject, divide_limit
from gateway.domain.rate_limit import (
    FULL_WAIT_S,
    MINUTE_S,
    LimitExceeded,
    RateLimitPermit,
    RateLimitStatus,
    RateLimitSubject,
    compute_reserve,
)
from gateway.errors import Overloaded, RateLimited

WhenDown = Literal["share", "open", "closed"]
RECENT_S = 2.0
"""How long the server's last count of requests at other gateways is used: an answer may only be late."""


class LocalFallbackLimiter:
    """Admits by this gateway's own count: its share of each limit (``share``), the whole (``open``), or nothing.

    A rate starts from its debt when the server last answered: the debt in seconds is the same for a share of the rate.
    Usage admitted here is reported when the server is back, which would otherwise admit the same amount again.

    ``clock``: monotonic seconds. ``count_gateways``: returns how many gateways share the limits.
    """

    def __init__(self, clock: Callable[[], float], when_down: WhenDown, count_gateways: Callable[[], int]) -> None:
        self._clock = clock
        self._when_down = when_down
        self._count_gateways = count_gateways
        self._limiter = InMemoryRateLimiter(clock)
        self._used: dict[SharedSubject, RateLimitSubject] = {}
        self._absence = 0
        self._ahead_of_clock = 0.0
        self._since = float("-inf")

    def begin_absence(self, ahead_of_clock: float) -> None:
        """Begin anew; until now the server decided, whose clock is ``ahead_of_clock``."""
        self._absence += 1
        self._since = self._clock()
        self._ahead_of_clock = ahead_of_clock

    def take(self, caller: SharedCaller, tokens: int, *, places: bool) -> RateLimitPermit:
        if places:
            self._check_places(caller, lambda _: 0)
        elif self._when_down == "closed":
            raise _make_closed()
        shares = self._find_shares(caller)
        permit = self._limiter.take_now(shares, tokens)
        self._used.update(zip(caller.shared, shares, strict=True))
        return permit

    async def check(self, caller: SharedCaller) -> None:
        self._check_places(caller, lambda _: 0)
        await self._limiter.check(self._find_shares(caller))

    def check_spare(self, caller: SharedCaller, tokens: int) -> None:
        """Raise ``RateLimited`` or ``Overloaded`` if a low-priority request would take capacity left for others."""
        self._check_places(caller, compute_reserve)
        self._limiter.check_spare(self._find_shares(caller), tokens)

    def release(self, permit: RateLimitPermit, tokens: int) -> None:
        self._limiter.release(permit, tokens)

    @property
    def has_unreported(self) -> bool:
        """Whether usage was recorded here since the last ``list_unreported``."""
        return bool(self._used)

    def list_unreported(self) -> Iterator[tuple[str, int, int, int]]:
        """Yield the usage that is still owed to the server, once each: name, rate, units and limit."""
        now, used = self._clock(), self._used
        self._used = {}
        for subject, share in used.items():
            debts, limits = self._limiter.find_debts(share), subject.buckets.limits
            for what, rate, debt, part, whole in (
                (REQUESTS, subject.requests, debts[0], share.limits.rpm, limits.rpm),
                (TOKENS, subject.tokens, debts[1], share.limits.tpm, limits.tpm),
            ):
                since = max(now, rate.bucket.tat - self._ahead_of_clock, rate.reported)
                if part is not None and whole is not None and debt > since:
                    rate.reported = debt
                    if units := round((debt - since) * part / MINUTE_S):
                        yield subject.name, what, units, whole

    def _find_shares(self, caller: SharedCaller) -> tuple[RateLimitSubject, ...]:
        shares = caller.find_shares(self._count())
        if caller.absence != self._absence:
            caller.absence, ahead = self._absence, self._ahead_of_clock
            debts = [(its.buckets.requests.tat - ahead, its.buckets.tokens.tat - ahead) for its in caller.shared]
            self._limiter.raise_debts(shares, debts)
        return shares

    def _count(self) -> int:
        return self._count_gateways() if self._when_down == "share" else 1

    def _check_places(self, caller: SharedCaller, spare: Callable[[int], int]) -> None:
        if self._when_down == "closed":
            raise _make_closed()
        recent = self._clock() < self._since + RECENT_S
        for subject, shared in zip(caller.subjects, caller.shared, strict=True):
            whole = subject.limits.max_concurrency
            most = divide_limit(whole, self._count())
            if whole is None or most is None:
                continue
            if shared.mine >= most - spare(most) or (recent and shared.buckets.running >= whole - spare(whole)):
                refusal = LimitExceeded(subject, "concurrent requests", most, FULL_WAIT_S)
                raise RateLimited(refusal.message, limit_status=RateLimitStatus())


def _make_closed() -> Overloaded:
    return Overloaded("The rate limits cannot be read at the moment; retry in a second", retry_after_s=1)
