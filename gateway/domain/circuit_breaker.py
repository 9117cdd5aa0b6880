"""A circuit breaker with three states, for a channel, one of its keys or one of its models.

Times are seconds of a monotonic clock; random numbers are between 0 and 1. The caller passes both.

=========  =========  =========
state      happening  becomes
=========  =========  =========
closed     answered   closed
closed     failed     closed
closed     tripped    open
open       tripped    open
open       rested     half_open
open       recovered  closed
half_open  answered   closed
half_open  tripped    open
half_open  abandoned  open
=========  =========  =========

"tripped": too many failures, or one that needs no second. "rested": the cooldown is over; one request may pass, and
another if that takes longer than ``TRIAL_S``. "recovered": a probe succeeded. "abandoned": the client of the trial
disconnected; the next request is a trial again.
"""

import math
from collections.abc import Mapping
from typing import Literal

import attrs

from gateway.frozen import frozen

State = Literal["closed", "open", "half_open"]
Happening = Literal["answered", "failed", "tripped", "rested", "recovered", "abandoned"]

MOVES: Mapping[tuple[State, Happening], State] = {
    ("closed", "answered"): "closed",
    ("closed", "failed"): "closed",
    ("closed", "tripped"): "open",
    ("open", "tripped"): "open",
    ("open", "rested"): "half_open",
    ("open", "recovered"): "closed",
    ("half_open", "answered"): "closed",
    ("half_open", "tripped"): "open",
    ("half_open", "abandoned"): "open",
}
"""Every transition; any other cannot happen."""

LEAST_SHARE = 0.1
"""The part of its usual requests that a channel gets right after it has recovered."""
TRIAL_S = 15.0
"""How long one trial runs alone. An answer may take half an hour, and a hanging provider sends none: then another
request may try."""
JITTER = 0.2
"""A cooldown is shorter or longer by up to this part, so that many gateways do not retry at once."""
_FOREVER_AGO = float("-inf")


@frozen
class BreakerSettings:
    """When a breaker trips, and for how long.

    Attributes:
        failures: failures in a row that trip it.
        ratio: part of failures in the last ``window_s`` seconds that trips it.
        least_calls: requests in that time below which the ratio is ignored.
        cooldown_s: after the first trip; it doubles with each further one.
        max_cooldown_s: the longest cooldown, whatever the provider asks for.
        longest_own_s: the longest cooldown that no provider asked for.
        ramp_s: until a recovered channel gets its whole share.
    """

    failures: int = 3
    ratio: float = 0.5
    least_calls: int = 20
    window_s: float = 30.0
    cooldown_s: float = 5.0
    max_cooldown_s: float = 300.0
    longest_own_s: float = math.inf
    ramp_s: float = 10.0


DEFAULT_RULES = BreakerSettings()


@attrs.define
class _Counts:
    """Requests of the current and the previous half of the window: the whole last half, none older than two."""

    began: float = _FOREVER_AGO
    calls: int = 0
    failures: int = 0
    calls_before: int = 0
    failures_before: int = 0

    def add(self, now: float, half_s: float, *, failed: bool) -> None:
        age = now - self.began
        if age >= half_s:
            follows = age < 2 * half_s
            self.calls_before, self.failures_before = (self.calls, self.failures) if follows else (0, 0)
            self.calls = self.failures = 0
            self.began = self.began + half_s if follows else now
        self.calls += 1
        self.failures += failed

    def take_back(self) -> None:
        """Uncount one success."""
        if self.calls > self.failures:
            self.calls -= 1
        elif self.calls_before > self.failures_before:
            self.calls_before -= 1

    def is_bad(self, rules: BreakerSettings) -> bool:
        calls = self.calls + self.calls_before
        return calls >= rules.least_calls and (self.failures + self.failures_before) >= rules.ratio * calls


@attrs.define
class CircuitBreaker:
    """One breaker.

    Attributes:
        state: see the table above.
        until: end of the cooldown.
        trips: in a row, without a success in between.
        generation: the number of trips ever. The result of a request that started in an earlier generation is ignored.
        reason: the last failure, for people.
        up_since: when it recovered; minus infinity if it was never open.
        tries: trials in progress.
        next_try_at: when another trial may start beside them.
        tripped_at: when it tripped last.
        rest_until: until when the provider asked for no requests, at most ``max_cooldown_s``.
    """

    state: State = "closed"
    until: float = 0.0
    trips: int = 0
    generation: int = 0
    failures: int = 0
    reason: str | None = None
    up_since: float = _FOREVER_AGO
    tries: int = 0
    next_try_at: float = 0.0
    tripped_at: float = _FOREVER_AGO
    rest_until: float = _FOREVER_AGO
    _counts: _Counts = attrs.field(factory=_Counts, init=False)

    def wait_s(self, now: float) -> float | None:
        """Return the seconds until a request may pass: 0 for now, None while a trial runs."""
        if self.state == "closed":
            return 0.0
        if self.state == "half_open":
            return None if now < self.next_try_at else 0.0
        return max(0.0, self.until - now)

    def share(self, now: float, rules: BreakerSettings) -> float:
        """Return the part of its usual requests that it should get, from ``LEAST_SHARE`` to 1."""
        age = now - self.up_since
        return 1.0 if age >= rules.ramp_s else max(LEAST_SHARE, age / rules.ramp_s)

    def begin(self, now: float) -> int:
        """Start a request after ``wait_s`` returned 0. Returns the generation to report the result with."""
        if self.state == "open":
            self._move("rested")
            self.tries = 0
        if self.state == "half_open":
            self.tries += 1
            self.next_try_at = now + TRIAL_S
        return self.generation

    def record_success(self, generation: int, now: float, rules: BreakerSettings) -> None:
        """Record a success of a request of ``generation``."""
        if generation != self.generation:
            return
        self.failures = 0
        if self.state == "half_open":
            self.up_since = now
            self._counts = _Counts()
            self._move("answered")
        elif self.state == "closed":  # and stays closed
            counts, half_s = self._counts, rules.window_s / 2
            if now - counts.began < half_s:  # as in ``add``, without a call
                counts.calls += 1
            else:
                counts.add(now, half_s, failed=False)
        else:
            return
        if self.trips and now - self.up_since >= rules.ramp_s:
            self.trips = 0
            self.reason = None

    def record_failure(
        self, generation: int, now: float, rules: BreakerSettings, *, reason: str, rng: float, streak: int | None = None
    ) -> bool:
        """Record a failure of a request of ``generation``. Returns True if it trips the breaker.

        ``streak``: the failures in a row before the same request was recorded as a success. A channel that starts
        every stream and finishes none has not recovered in between.
        """
        if generation != self.generation or self.state == "open":
            return False
        if streak is not None:
            self.failures = max(self.failures, streak)
            self._counts.take_back()
        self.reason = reason
        self.failures += 1
        self._counts.add(now, rules.window_s / 2, failed=True)
        # One failure is enough right after a recovery.
        enough = 1 if self.trips else rules.failures
        if self.state == "closed" and self.failures < enough and not self._counts.is_bad(rules):
            self._move("failed")
            return False
        self.trip(now, rules, reason=reason, rng=rng)
        return True

    def trip(
        self, now: float, rules: BreakerSettings, *, reason: str, rng: float, provider_retry_after_s: float = 0.0
    ) -> None:
        """Open the breaker for its cooldown or ``provider_retry_after_s``, the longer; at most ``max_cooldown_s``."""
        self._move("tripped")
        self.generation += 1
        self.trips += 1
        self.failures = 0
        self.reason = reason
        self._counts = _Counts()
        own = min(rules.cooldown_s * 2 ** min(self.trips - 1, 30), rules.longest_own_s, rules.max_cooldown_s)
        own *= 1 + JITTER * (2 * rng - 1)
        self.until = now + min(max(own, provider_retry_after_s), rules.max_cooldown_s)
        self.tripped_at = now
        self.rest_until = now + min(provider_retry_after_s, rules.max_cooldown_s)

    def abandon(self, generation: int) -> None:
        """End a request of ``generation`` without a result: its client disconnected. A trial is free again."""
        if generation != self.generation or self.state != "half_open":
            return
        self.tries -= 1
        if not self.tries:
            self._move("abandoned")

    def recover(self, now: float) -> None:
        """Close the breaker after a successful probe, with a reduced share. Only a success resets ``trips``."""
        if self.state == "open":
            self._move("recovered")
            self.up_since = now

    def _move(self, happening: Happening) -> None:
        self.state = MOVES[self.state, happening]
