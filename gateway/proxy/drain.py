"""Answers that are read to their end although their clients have left: ``billing.abandoned = "drain"``.

The request goes on with its attempt and its reservation; only what is written to the client is dropped. The usage that
the provider reports at the end is charged. A drain is bounded in bytes and in time, and the number of drains is
bounded; beyond it, the request of a client that leaves is ended.
"""

import asyncio

from gateway.errors import ProviderTimeout
from gateway.routing.target import Attempt

MIB = 1024 * 1024


class DrainService:
    """The drains under way.

    Attributes:
        most: maximum number of drains.
        most_bytes: maximum of bytes of a stream after its client has left; ``MAX_ANSWER_BYTES`` bounds a whole answer.
        longest_s: maximum seconds of a drain; the channel's total timeout may be shorter.
        attempts: those whose clients have left.
    """

    def __init__(self) -> None:
        self.most = 64
        self.most_bytes = 64 * MIB
        self.longest_s = 60.0
        self.attempts: set[Attempt] = set()

    def begin(
        self, attempt: Attempt, total_s: float, first_byte_at: float | None, *, whole: bool
    ) -> "DrainedStream | None":
        """Drain an attempt whose client has left; None if there are too many drains.

        ``total_s``: the channel's total timeout. ``first_byte_at``: when the first byte was sent to the client (loop
        time); None if none was. ``whole``: whether ``longest_s`` does not bound it.
        """
        if len(self.attempts) >= self.most:
            return None
        return DrainedStream(self, attempt, total_s if whole else min(total_s, self.longest_s), first_byte_at)


class DrainedStream:
    """One answer that is read without a client, until ``end``.

    ``first_byte_at``: when the first byte was sent to the client (loop time); None if it had left before.
    """

    __slots__ = ("_attempt", "_drains", "_timer", "first_byte_at")

    def __init__(self, drains: DrainService, attempt: Attempt, longest_s: float, first_byte_at: float | None) -> None:
        self._drains = drains
        self._attempt = attempt
        self.first_byte_at = first_byte_at
        self._timer = asyncio.get_running_loop().call_later(longest_s, self._give_up)
        drains.attempts.add(attempt)
        attempt.drain(drains.most_bytes, self._give_up)

    def _give_up(self) -> None:
        """End the attempt at a bound. The channel has not failed: with a client it would have had more time."""
        error = ProviderTimeout("The client left, and the provider's answer took too long", phase="drain")
        error.failure_scope = "nobody"
        self._attempt.abort(error)

    def end(self) -> None:
        """Forget the drain: the request is settled."""
        self._timer.cancel()
        self._drains.attempts.discard(self._attempt)
