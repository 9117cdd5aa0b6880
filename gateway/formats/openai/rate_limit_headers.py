"""How a caller stands at its rate limits, in the convention's headers.

Source: the OpenAI API reference, "Rate limits in headers". A reset is a duration in the form of Go's
``time.Duration``: ``20ms``, ``1.5s``, ``6m0s``, ``1h0m0.25s``; the clients that read it take that form only.
"""

import math

from gateway.domain.rate_limit import RateLimitStatus

_MS_PER_S = 1_000
_S_PER_MINUTE = 60
_MINUTES_PER_HOUR = 60
_MAX_RESET_S = 99 * 3_600  # a debt of absurd size is told as this


def build_limits(standing: RateLimitStatus) -> dict[str, str]:
    """``x-ratelimit-{limit,remaining,reset}-{requests,tokens}``, for the rates that are limited.

    The limit is a minute's, the remaining what would pass at this moment (at most the burst), the reset the time until
    nothing is owed any more, in milliseconds rounded up.
    """
    headers: dict[str, str] = {}
    for unit, allowance in (("requests", standing.requests), ("tokens", standing.tokens)):
        if allowance is not None:
            headers[f"x-ratelimit-limit-{unit}"] = str(allowance.limit)
            headers[f"x-ratelimit-remaining-{unit}"] = str(allowance.remaining)
            headers[f"x-ratelimit-reset-{unit}"] = _build_duration(allowance.reset_s)
    return headers


def _build_duration(seconds: float) -> str:
    """Seconds as Go prints a duration: the largest unit first, no unit left out after it, no trailing zeros."""
    # Rounded first, or 9 ms would be 10 for what a float makes of 0.009.
    ms = math.ceil(round(min(seconds, _MAX_RESET_S) * _MS_PER_S, 3))
    if ms < _MS_PER_S:
        return f"{ms}ms" if ms else "0s"
    whole, ms = divmod(ms, _MS_PER_S)
    minutes, s = divmod(whole, _S_PER_MINUTE)
    text = f"{s}.{ms:03}".rstrip("0") + "s" if ms else f"{s}s"
    if not minutes:
        return text
    hours, minutes = divmod(minutes, _MINUTES_PER_HOUR)
    return f"{hours}h{minutes}m{text}" if hours else f"{minutes}m{text}"
