"""Sinks: receivers to which the rows of requests are delivered, in the order in which they were stored."""

from gateway.frozen import frozen

BEHIND_AFTER_S = 600
"""A sink is behind if a request waits for it this long."""
LOSS_SHOWN_S = 86_400
"""How long an alert stands for requests that a sink has lost."""


@frozen
class SinkState:
    """The stored progress of a sink. Times are Unix milliseconds, None if there is none.

    Attributes:
        cursor: ``newest`` or ``next`` of a page of the request log; all requests before it are dealt with.
        delivered: the number of delivered requests.
        lost: the number of requests that were deleted before their delivery, or that the receiver refused.
        lost_ms: when the last one was lost.
        waiting_ms: when the oldest request that is not delivered was settled, as far as it is known.
        delivered_ms: when the receiver last accepted requests.
        error: why the last attempt failed; empty if it did not.
    """

    name: str
    cursor: str
    delivered: int = 0
    lost: int = 0
    lost_ms: int | None = None
    waiting_ms: int | None = None
    delivered_ms: int | None = None
    error: str = ""

    def find_lag_s(self, now_s: float) -> float:
        """Return for how long the oldest request that is not delivered has waited, in seconds; 0 if none waits."""
        return 0.0 if self.waiting_ms is None else max(0.0, now_s - self.waiting_ms / 1000)
