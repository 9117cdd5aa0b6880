"""Why a request leaves a step of a route: the error of its last attempt, or what prevents an attempt there."""

from gateway import errors
from gateway.domain.content_filter import is_block_code
from gateway.domain.route import Cause
from gateway.routing.channel_state import RATE_LIMITS, Obstacle

_CAUSES_BY_ERROR: tuple[tuple[type[errors.GatewayError], Cause], ...] = (
    (errors.QuotaExceeded, "budget"),
    (errors.UnsupportedByProvider, "unsupported"),
    (errors.ProviderRateLimited, "rate_limited"),
    (errors.ContextExceeded, "context"),
)
"""The causes of errors by their class; the first that matches counts."""


def find_cause(error: errors.GatewayError) -> Cause | None:
    """Return the cause for which a request leaves a step after ``error``; None if no other step may follow."""
    is_final = isinstance(error, errors.ProviderError) and not error.retryable
    if is_final and not isinstance(error, errors.ProviderRejected):
        return None  # cancelled, shutting down, or a provider may have begun a video that another would begin again
    for kind, cause in _CAUSES_BY_ERROR:
        if isinstance(error, kind):
            return cause
    if is_block_code(error.public_code):
        return "content"
    if isinstance(error, errors.ProviderAuthError):
        return "credit" if error.out_of_credit else "unavailable"
    if isinstance(error, errors.ProviderTimeout):
        return "unavailable" if error.phase == "connect" else "timeout"
    # A provider that lacks the model or the path answers 404 or 501, which another one may have.
    return "invalid" if is_final else "unavailable"


def find_obstacle_cause(obstacles: set[Obstacle]) -> Cause:
    """Return why a step has no free channel. ``obstacles`` are those of its channels, empty without channels."""
    return "rate_limited" if obstacles and obstacles <= RATE_LIMITS else "unavailable"
