"""The local state of a subject whose limits are shared."""

from collections.abc import Sequence

import attrs

from gateway.billing.rate_buckets import CallerBuckets, SubjectBuckets
from gateway.cluster.limits.units_ahead import UnitsAhead
from gateway.domain.rate_limit import Limits, RateLimitPermit, RateLimitSubject
from gateway.frozen import frozen


class SharedSubject:
    """A subject: its buckets as the server last reported them, and its requests at this gateway.

    The buckets' times are those of the server's clock.
    """

    __slots__ = ("buckets", "name", "own_running", "requests", "tokens")

    def __init__(self, subject: RateLimitSubject) -> None:
        self.name = f"{subject.kind}:{subject.id}"
        self.buckets = SubjectBuckets(subject.limits, 0.0)
        self.requests = UnitsAhead(self.buckets.requests)
        self.tokens = UnitsAhead(self.buckets.tokens)
        self.own_running = 0

    def update(self, requests: float, tokens: float, running_count: int) -> None:
        self.buckets.requests.tat, self.buckets.tokens.tat, self.buckets.running = requests, tokens, running_count


@attrs.define(eq=False)
class SharedCaller:
    """A caller's subjects, looked up once.

    Attributes:
        shared_subjects: one for each of ``subjects``, in the same order.
        limited: whether any subject has a limit.
        concurrency_limits: the subjects with a limit of concurrent requests, and that limit.
        named_limits: names and limits, as sent to the server.
        share_count: the number of gateways for which ``shares`` are computed.
        absence: the absence of the server for which the debts of ``shares`` are known.
    """

    subjects: Sequence[RateLimitSubject]
    shared_subjects: tuple[SharedSubject, ...]
    buckets: CallerBuckets
    limited: bool
    concurrency_limits: tuple[tuple[SharedSubject, int], ...]
    named_limits: tuple[tuple[str, Limits], ...]
    share_count: int = 0
    shares: tuple[RateLimitSubject, ...] = ()
    absence: int = 0

    def find_shares(self, gateways: int) -> tuple[RateLimitSubject, ...]:
        """Return ``subjects`` with a share of each rate limit, and without limits of concurrent requests."""
        if self.share_count != gateways:
            self.share_count = gateways
            self.shares = tuple([_find_share(subject, gateways) for subject in self.subjects])
        return self.shares


@frozen
class PermitHolder:
    """The resources of a permit.

    Attributes:
        counted_subjects: the subjects whose running requests include the permit's.
        local_permit: the permit of the local limiter; None if the server has decided.
    """

    caller: SharedCaller
    counted_subjects: tuple[SharedSubject, ...]
    local_permit: RateLimitPermit | None = None


def _find_share(subject: RateLimitSubject, gateways: int) -> RateLimitSubject:
    limits = subject.limits
    share = Limits(
        divide_limit(limits.rpm, gateways),
        divide_limit(limits.tpm, gateways),
        None,
        divide_limit(limits.burst, gateways),
    )
    return RateLimitSubject(subject.kind, subject.id, share)


def divide_limit(limit: int | None, gateways: int) -> int | None:
    """Return the share of a limit that one of ``gateways`` has: at least 1; None without a limit."""
    return None if limit is None else max(1, limit // gateways)
