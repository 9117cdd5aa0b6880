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
COUNT_VALID_S = 2.0
"""How long the server's last count of requests at other gateways is still used: its answer may just be late."""


class LocalFallbackLimiter:
    """Admits by this gateway's own count: its share of each limit (``share``), the whole (``open``), or nothing.

    A rate starts from its debt when the server last answered: the debt in seconds is the same for a share of the rate.
    Usage admitted here is reported when the server is back. Otherwise the server would admit the same amount again.

    ``clock``: monotonic seconds. ``count_gateways``: returns how many gateways share the limits.
    """

    def __init__(self, clock: Callable[[], float], when_down: WhenDown, count_gateways: Callable[[], int]) -> None:
        self._clock = clock
        self._when_down = when_down
        self._count_gateways = count_gateways
        self._limiter = InMemoryRateLimiter(clock)
        self._used_shares: dict[SharedSubject, RateLimitSubject] = {}
        self._absence = 0
        self._ahead_s = 0.0
        self._absent_since_s = float("-inf")

    def begin_absence(self, ahead_s: float) -> None:
        """Begin to admit by this gateway's own count, because the server no longer answers.

        ``ahead_s``: by how many seconds the server's clock is ahead of this one.
        """
        self._absence += 1
        self._absent_since_s = self._clock()
        self._ahead_s = ahead_s

    def take(self, caller: SharedCaller, tokens: int, *, counts_running: bool) -> RateLimitPermit:
        if counts_running:
            self._check_places(caller, lambda _: 0)
        elif self._when_down == "closed":
            raise _make_closed_error()
        shares = self._find_shares(caller)
        permit = self._limiter.take_now(shares, tokens)
        self._used_shares.update(zip(caller.shared_subjects, shares, strict=True))
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
        """Whether usage was recorded here since the last ``take_unreported_usage``."""
        return bool(self._used_shares)

    def take_unreported_usage(self) -> Iterator[tuple[str, int, int, int]]:
        """Yield the usage that the server does not know yet, once: name, dimension, units and limit."""
        now_s, used_shares = self._clock(), self._used_shares
        self._used_shares = {}
        for subject, share in used_shares.items():
            debts, limits = self._limiter.find_debts(share), subject.buckets.limits
            for dimension, rate, debt, share_limit, whole_limit in (
                (REQUESTS, subject.requests, debts[0], share.limits.rpm, limits.rpm),
                (TOKENS, subject.tokens, debts[1], share.limits.tpm, limits.tpm),
            ):
                start = max(now_s, rate.bucket.tat - self._ahead_s, rate.reported)
                if share_limit is not None and whole_limit is not None and debt > start:
                    rate.reported = debt
                    if units := round((debt - start) * share_limit / MINUTE_S):
                        yield subject.name, dimension, units, whole_limit

    def _find_shares(self, caller: SharedCaller) -> tuple[RateLimitSubject, ...]:
        shares = caller.find_shares(self._count_sharing())
        if caller.absence != self._absence:
            caller.absence, ahead_s = self._absence, self._ahead_s
            debts = [
                (shared_subject.buckets.requests.tat - ahead_s, shared_subject.buckets.tokens.tat - ahead_s)
                for shared_subject in caller.shared_subjects
            ]
            self._limiter.raise_debts(shares, debts)
        return shares

    def _count_sharing(self) -> int:
        return self._count_gateways() if self._when_down == "share" else 1

    def _check_places(self, caller: SharedCaller, compute_spare: Callable[[int], int]) -> None:
        if self._when_down == "closed":
            raise _make_closed_error()
        is_recent = self._clock() < self._absent_since_s + COUNT_VALID_S
        for subject, shared_subject in zip(caller.subjects, caller.shared_subjects, strict=True):
            whole_limit = subject.limits.max_concurrency
            max_running = divide_limit(whole_limit, self._count_sharing())
            if whole_limit is None or max_running is None:
                continue
            if shared_subject.own_running >= max_running - compute_spare(max_running) or (
                is_recent and shared_subject.buckets.running >= whole_limit - compute_spare(whole_limit)
            ):
                refusal = LimitExceeded(subject, "concurrent requests", max_running, FULL_WAIT_S)
                raise RateLimited(refusal.message, limit_status=RateLimitStatus())


def _make_closed_error() -> Overloaded:
    return Overloaded("The rate limits cannot be read at the moment; retry in a second", retry_after_s=1)
