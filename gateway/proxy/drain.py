"""Draining: reading answers to their end after their clients have disconnected.

Answers are drained with ``billing.abandoned = "drain"``. With other settings, they are if they go on in the background,
if equal requests wait for them, or, with "charge", if only the provider can measure what it has read.

The request continues with its attempt and its reservation, and the usage that the provider reports at the end is
charged. A drain has limits of bytes and time. Beyond a number of drains, a request ends when its client disconnects.
"""

import asyncio

from gateway.errors import ProviderTimeout
from gateway.routing.target import Attempt

MIB = 1024 * 1024


class DrainService:
    """The drains in progress, and their limits.

    ``max_bytes``: limit for the rest of a stream. ``longest_s``: time limit of a drain; the channel's total timeout may
    be shorter.
    """

    def __init__(self) -> None:
        self.max_drains = 64
        self.max_bytes = 64 * MIB
        self.longest_s = 60.0
        self.attempts: set[Attempt] = set()

    def begin(
        self, attempt: Attempt, total_s: float, first_byte_at: float | None, *, whole: bool
    ) -> "DrainedStream | None":
        """Drain an attempt whose client has disconnected. Return None if there are too many drains.

        ``total_s`` is the channel's total timeout. ``first_byte_at`` is the loop time at which the client was sent the
        first byte, or None before that. With ``whole``, ``longest_s`` does not apply.
        """
        if len(self.attempts) >= self.max_drains:
            return None
        return DrainedStream(self, attempt, total_s if whole else min(total_s, self.longest_s), first_byte_at)


class DrainedStream:
    """One answer that is read without a client, until ``end`` is called."""

    __slots__ = ("_attempt", "_drains", "_timer", "first_byte_at")

    def __init__(self, drains: DrainService, attempt: Attempt, longest_s: float, first_byte_at: float | None) -> None:
        self._drains = drains
        self._attempt = attempt
        self.first_byte_at = first_byte_at
        self._timer = asyncio.get_running_loop().call_later(longest_s, self._give_up)
        drains.attempts.add(attempt)
        attempt.drain(drains.max_bytes, self._give_up)

    def _give_up(self) -> None:
        """End the attempt, which has reached a limit.

        It is no failure of the channel: for a connected client, the attempt would have had more time.
        """
        self._attempt.abort(make_drain_error())

    def end(self) -> None:
        self._timer.cancel()
        self._drains.attempts.discard(self._attempt)


def make_drain_error() -> ProviderTimeout:
    """Return the error of an answer that is not read to its end, because its client has left."""
    error = ProviderTimeout("The client left, and the provider's answer took too long", phase="drain")
    error.failure_scope = "nobody"
    return error
