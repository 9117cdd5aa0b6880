"""OpenAI's response headers for the state of a caller's rate limits.

Source: the OpenAI API reference, "Rate limits in headers". A reset is a duration in the form of Go's ``time.Duration``:
``20ms``, ``1.5s``, ``6m0s``, ``1h0m0.25s``; clients accept only that form.
"""

import math
from functools import lru_cache

from gateway.domain.rate_limit import RateLimitStatus

_MS_PER_S = 1_000
_S_PER_MINUTE = 60
_MINUTES_PER_HOUR = 60
_MAX_RESET_S = 99 * 3_600  # upper limit of reported resets


def build_limits(status: RateLimitStatus) -> dict[str, str]:
    """Build ``x-ratelimit-{limit,remaining,reset}-{requests,tokens}`` for the configured rate limits.

    ``limit`` is per minute. ``remaining`` is the amount that would pass now, at most the burst. ``reset`` is the time
    until the full burst is available again, rounded up to milliseconds.
    """
    headers: dict[str, str] = {}
    for unit, window in (("requests", status.requests), ("tokens", status.tokens)):
        if window is not None:
            # Rounded before ceil: the float 0.009 is slightly more than 9 ms and would become 10 ms.
            ms = math.ceil(round(min(window.reset_s, _MAX_RESET_S) * _MS_PER_S, 3))
            headers |= _build_window(unit, window.limit, window.remaining, ms)
    return headers


@lru_cache(256)
def _build_window(unit: str, limit: int, remaining: int, reset_ms: int) -> dict[str, str]:
    """Build the headers of one limit. Most requests have the same as an earlier one; do not change the result."""
    return {
        f"x-ratelimit-limit-{unit}": str(limit),
        f"x-ratelimit-remaining-{unit}": str(remaining),
        f"x-ratelimit-reset-{unit}": _build_duration(reset_ms),
    }


def _build_duration(ms: int) -> str:
    """Format milliseconds like Go: the largest unit first, no unit left out after it, no trailing zeros."""
    if ms < _MS_PER_S:
        return f"{ms}ms" if ms else "0s"
    whole, ms = divmod(ms, _MS_PER_S)
    minutes, s = divmod(whole, _S_PER_MINUTE)
    text = f"{s}.{ms:03}".rstrip("0") + "s" if ms else f"{s}s"
    if not minutes:
        return text
    hours, minutes = divmod(minutes, _MINUTES_PER_HOUR)
    return f"{hours}h{minutes}m{text}" if hours else f"{minutes}m{text}"
