"""Answers that are read to their end though their clients have left: ``billing.abandoned = "drain"``.

The request goes on as it is, with its attempt, its lease and its reservation; only what is written to the client goes
nowhere. What the provider says at the end is charged. Each drain has a bound of bytes and one of time, and there is a
bound for their number; beyond it, the call of a client that leaves is broken off.
"""

import asyncio

from gateway.errors import ProviderTimeout
from gateway.proxy.attempt import Visit

MIB = 1024 * 1024


class DrainService:
    """The drains under way.

    Attributes:
        most: so many at a time.
        most_bytes: of a stream, counted from when its client left; a whole answer has the relay's own bound.
        longest_s: the longest that one takes; the channel's total timeout may be shorter.
        visits: those whose clients have left.
    """

    def __init__(self) -> None:
        self.most = 64
        self.most_bytes = 64 * MIB
        self.longest_s = 60.0
        self.visits: set[Visit] = set()

    def begin(self, visit: Visit, total_s: float, first_byte_at: float | None) -> "DrainedStream | None":
        """The client of ``visit`` has left; None if there are too many drains.

        ``total_s``: the channel's total timeout; ``first_byte_at``: when the client was answered, None if it was not.
        """
        if len(self.visits) >= self.most:
            return None
        return DrainedStream(self, visit, min(total_s, self.longest_s), first_byte_at)


class DrainedStream:
    """One answer that is read for nobody, until ``end``.

    Attributes:
        first_byte_at: when its client was answered (loop time); None if it had left before.
    """

    __slots__ = ("_drains", "_timer", "_visit", "first_byte_at")

    def __init__(self, drains: DrainService, visit: Visit, longest_s: float, first_byte_at: float | None) -> None:
        self._drains = drains
        self._visit = visit
        self.first_byte_at = first_byte_at
        self._timer = asyncio.get_running_loop().call_later(longest_s, self._give_up)
        drains.visits.add(visit)
        visit.drain(drains.most_bytes, self._give_up)

    def _give_up(self) -> None:
        """A bound is reached. The provider is not blamed: it would have had more time with a client."""
        fault = ProviderTimeout("The client left, and the provider's answer took too long", phase="drain")
        fault.failure_scope = "nobody"
        self._visit.abort(fault)

    def end(self) -> None:
        """The call is settled."""
        self._timer.cancel()
        self._drains.visits.discard(self._visit)
