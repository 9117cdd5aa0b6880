"""The rate limit buckets of subjects and callers, and the windows and refusals derived from them."""

from collections.abc import Callable, Iterable, Sequence

import attrs

from gateway.domain import rate_limit
from gateway.errors import RateLimited


class SubjectBuckets:
    """The buckets of one subject, and its requests in progress."""

    __slots__ = ("limits", "requests", "running", "tokens")

    def __init__(self, limits: rate_limit.Limits, now_s: float) -> None:
        self.running = 0
        self.requests = rate_limit.GcraBucket(limits.rpm or 1, now_s)
        self.tokens = rate_limit.GcraBucket(limits.tpm or 1, now_s)
        self.limits = limits

    def set_limits(self, limits: rate_limit.Limits, now_s: float) -> None:
        self.limits = limits
        if limits.rpm is not None:
            self.requests.set_limit(limits.rpm, now_s)
        if limits.tpm is not None:
            self.tokens.set_limit(limits.tpm, now_s)

    def is_idle(self, now_s: float) -> bool:
        """Return whether the buckets are empty and no request is running, so they may be dropped."""
        return not self.running and self.requests.tat <= now_s and self.tokens.tat <= now_s


@attrs.define(eq=False)
class CallerBuckets:
    """A caller's buckets, cached: the buckets of its subjects, and those among them that have a limit."""

    subjects: Sequence[rate_limit.RateLimitSubject]
    buckets: tuple[SubjectBuckets, ...]
    capacities: tuple[tuple[SubjectBuckets, int], ...]
    requests: tuple[rate_limit.Rate, ...]
    tokens: tuple[rate_limit.Rate, ...]


def build_caller(subjects: Sequence[rate_limit.RateLimitSubject], buckets: tuple[SubjectBuckets, ...]) -> CallerBuckets:
    """Build a caller's buckets with its current limits. ``buckets`` has one entry per subject."""
    limits_by_buckets = [
        (subject_buckets, subject.limits) for subject_buckets, subject in zip(buckets, subjects, strict=True)
    ]
    return CallerBuckets(
        subjects,
        buckets,
        tuple(
            [
                (subject_buckets, max_concurrency)
                for subject_buckets, limits in limits_by_buckets
                if (max_concurrency := limits.max_concurrency) is not None
            ]
        ),
        tuple(
            [
                (subject_buckets.requests, rpm, limits.find_request_burst(rpm))
                for subject_buckets, limits in limits_by_buckets
                if (rpm := limits.rpm) is not None
            ]
        ),
        tuple(
            [
                (subject_buckets.tokens, tpm, tpm)
                for subject_buckets, limits in limits_by_buckets
                if (tpm := limits.tpm) is not None
            ]
        ),
    )


def build_refusal(
    caller: CallerBuckets, tokens: int, now_s: float, spare: Callable[[int], int] = lambda _: 0, *, running: bool = True
) -> RateLimited:
    """Return the error with the longest wait. At least one limit must refuse."""
    refusal = max(list_refusals(caller, tokens, now_s, spare, running=running), key=lambda refusal: refusal.wait_s)
    return RateLimited(
        refusal.message,
        limit_status=rate_limit.RateLimitStatus(
            find_strictest_window(caller.requests, now_s), find_strictest_window(caller.tokens, now_s)
        ),
        retry_after_s=rate_limit.compute_retry_after_s(refusal.wait_s),
    )


def list_refusals(
    caller: CallerBuckets, tokens: int, now_s: float, spare: Callable[[int], int] = lambda _: 0, *, running: bool = True
) -> list[rate_limit.LimitExceeded]:
    """Return every limit that refuses one more request. ``spare`` returns how much must stay free of a limit.

    ``running``: whether limits of concurrent requests count.
    """
    refusals: list[rate_limit.LimitExceeded] = []
    for subject, buckets in zip(caller.subjects, caller.buckets, strict=True):
        limits = subject.limits
        max_concurrency, rpm, tpm = limits.max_concurrency, limits.rpm, limits.tpm
        if running and max_concurrency is not None and buckets.running >= max_concurrency - spare(max_concurrency):
            refusals.append(
                rate_limit.LimitExceeded(subject, "concurrent requests", max_concurrency, rate_limit.FULL_WAIT_S)
            )
        if rpm is not None:
            burst = limits.find_request_burst(rpm)
            if wait := rate_limit.compute_wait_s(buckets.requests.tat, (rpm, burst), 1 + spare(burst), now_s):
                refusals.append(rate_limit.LimitExceeded(subject, "requests per minute", rpm, wait, burst))
        if tpm is not None and (
            wait := rate_limit.compute_wait_s(buckets.tokens.tat, (tpm, tpm), tokens + spare(tpm), now_s)
        ):
            refusals.append(rate_limit.LimitExceeded(subject, "tokens per minute", tpm, wait))
    return refusals


def find_strictest_window(rates: Iterable[rate_limit.Rate], now_s: float) -> rate_limit.RateLimitWindow | None:
    """Return the window of the strictest bucket; see ``spend_all``. None without a bucket."""
    candidates = [
        (rate_limit.compute_remaining(bucket.tat, limit, burst, now_s), -bucket.tat, limit)
        for bucket, limit, burst in rates
    ]
    if not candidates:
        return None
    remaining, minus_tat, limit = min(candidates)
    return rate_limit.RateLimitWindow(limit, remaining, rate_limit.compute_reset_s(-minus_tat, now_s))


def list_use(caller: CallerBuckets, now_s: float) -> list[rate_limit.SubjectUse]:
    """Return what each subject of ``caller`` has used of its limits."""
    return [
        rate_limit.SubjectUse(
            subject,
            _find_window(buckets.requests, limits.rpm, limits.find_request_burst(limits.rpm or 0), now_s),
            _find_window(buckets.tokens, limits.tpm, limits.tpm or 0, now_s),
            None if limits.max_concurrency is None else buckets.running,
        )
        for subject, limits, buckets in (
            (subject, subject.limits, buckets) for subject, buckets in zip(caller.subjects, caller.buckets, strict=True)
        )
    ]


def _find_window(
    bucket: rate_limit.GcraBucket, limit: int | None, burst: int, now_s: float
) -> rate_limit.RateLimitWindow | None:
    return None if limit is None else find_strictest_window(((bucket, limit, burst),), now_s)
