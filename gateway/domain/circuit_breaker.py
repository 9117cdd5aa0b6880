"""A circuit breaker with three states, for a channel, one of its keys or one of its models.

Times are seconds of a monotonic clock; random numbers are between 0 and 1. Both are arguments.

=========  =========  =========
state      event      becomes
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

"tripped": too many failures, or a single sufficient one. "rested": the cooldown is over; one request may pass as a
trial, and another if that takes longer than ``TRIAL_S``. "recovered": a probe or a request sent despite the cooldown
succeeded. "abandoned": the client of the trial disconnected; the next request is a trial again.
"""

import math
from collections.abc import Mapping
from typing import Literal

import attrs

from gateway.frozen import frozen

State = Literal["closed", "open", "half_open"]
BreakerEvent = Literal["answered", "failed", "tripped", "rested", "recovered", "abandoned"]

TRANSITIONS: Mapping[tuple[State, BreakerEvent], State] = {
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
"""Every valid transition; no other can happen."""

MIN_SHARE = 0.1
"""The share of its usual requests that a channel gets right after its recovery."""
TRIAL_S = 15.0
"""How long one trial runs before another request may become a trial. A trial may never end, or take half an hour."""
JITTER = 0.2
"""The fraction by which a cooldown is randomly shortened or lengthened, so that many gateways do not retry at once."""
_FOREVER_AGO = float("-inf")


@frozen
class BreakerSettings:
    """When a breaker trips, and for how long.

    Attributes:
        failures: the number of consecutive failures that trips the breaker.
        ratio: the share of failed requests that trips the breaker, of at least ``min_calls`` in about the last
            ``window_s`` seconds.
        cooldown_s: the cooldown after the first trip; each further trip doubles it.
        max_cooldown_s: the longest cooldown, whatever the provider asks for.
        max_own_pause_s: the longest cooldown unless the provider asks for a longer one, before jitter.
        ramp_s: the time in which the share of requests rises to 1 after a recovery.
    """

    failures: int = 3
    ratio: float = 0.5
    min_calls: int = 20
    window_s: float = 30.0
    cooldown_s: float = 5.0
    max_cooldown_s: float = 300.0
    max_own_pause_s: float = math.inf
    ramp_s: float = 10.0


DEFAULT_RULES = BreakerSettings()


@attrs.define
class _Counts:
    """Counts of requests and failures in the current and the previous half of the window."""

    started: float = _FOREVER_AGO
    calls: int = 0
    failures: int = 0
    calls_before: int = 0
    failures_before: int = 0

    def add(self, now_s: float, half_s: float, *, failed: bool) -> None:
        age = now_s - self.started
        if age >= half_s:
            is_next_period = age < 2 * half_s
            self.calls_before, self.failures_before = (self.calls, self.failures) if is_next_period else (0, 0)
            self.calls = self.failures = 0
            self.started = self.started + half_s if is_next_period else now_s
        self.calls += 1
        self.failures += failed

    def forget_success(self) -> None:
        if self.calls > self.failures:
            self.calls -= 1
        elif self.calls_before > self.failures_before:
            self.calls_before -= 1

    def is_bad(self, rules: BreakerSettings) -> bool:
        calls = self.calls + self.calls_before
        return calls >= rules.min_calls and (self.failures + self.failures_before) >= rules.ratio * calls


@attrs.define
class CircuitBreaker:
    """The circuit breaker of a channel, or of one of its keys or models.

    Attributes:
        until: when the cooldown ends; it has no meaning unless the breaker is "open".
        trips: the number of trips since the breaker last stayed closed for ``ramp_s``.
        generation: the number of trips ever. The result of a request that started in an earlier generation is ignored.
        failures: the number of failures in a row.
        trial_count: the number of trials in progress.
        reason: a description of the last failure, for people.
        up_since: when the breaker last recovered; minus infinity if never.
        next_try_at: when another trial may start next to those in progress.
        provider_pause_until: end of the pause that the provider asked for, at most ``max_cooldown_s`` after the trip.
    """

    state: State = "closed"
    until: float = 0.0
    trips: int = 0
    generation: int = 0
    failures: int = 0
    reason: str | None = None
    up_since: float = _FOREVER_AGO
    trial_count: int = 0
    next_try_at: float = 0.0
    tripped_at: float = _FOREVER_AGO
    provider_pause_until: float = _FOREVER_AGO
    _counts: _Counts = attrs.field(factory=_Counts, init=False)

    def find_wait_s(self, now_s: float) -> float | None:
        """Return the seconds until a request may pass: 0 for now, None while a trial runs."""
        if self.state == "closed":
            return 0.0
        if self.state == "half_open":
            return None if now_s < self.next_try_at else 0.0
        return max(0.0, self.until - now_s)

    def share(self, now_s: float, rules: BreakerSettings) -> float:
        """Return the share of its usual requests that the channel should get, from ``MIN_SHARE`` to 1."""
        age = now_s - self.up_since
        return 1.0 if age >= rules.ramp_s else max(MIN_SHARE, age / rules.ramp_s)

    def start_attempt(self, now_s: float) -> int:
        """Start a request after ``find_wait_s`` returned 0. Return the generation, to be passed with the result."""
        if self.state == "open":
            self._move("rested")
            self.trial_count = 0
        if self.state == "half_open":
            self.trial_count += 1
            self.next_try_at = now_s + TRIAL_S
        return self.generation

    def record_success(self, generation: int, now_s: float, rules: BreakerSettings) -> None:
        if generation != self.generation:
            return
        self.failures = 0
        if self.state == "half_open":
            self.up_since = now_s
            self._counts = _Counts()
            self._move("answered")
        elif self.state == "closed":  # no transition
            counts, half_s = self._counts, rules.window_s / 2
            if now_s - counts.started < half_s:  # the fast path of ``add``, inlined
                counts.calls += 1
            else:
                counts.add(now_s, half_s, failed=False)
        else:
            return
        if self.trips and now_s - self.up_since >= rules.ramp_s:
            self.trips = 0
            self.reason = None

    def record_failure(
        self,
        generation: int,
        now_s: float,
        rules: BreakerSettings,
        *,
        reason: str,
        rng: float,
        streak: int | None = None,
    ) -> bool:
        """Record the failure of a request that started in ``generation``. Return whether it trips the breaker.

        ``streak`` is the number of failures in a row before this request was recorded as a success, if it was. A
        channel that starts every stream but finishes none has not recovered.
        """
        if generation != self.generation or self.state == "open":
            return False
        if streak is not None:
            self.failures = max(self.failures, streak)
            self._counts.forget_success()
        self.reason = reason
        self.failures += 1
        self._counts.add(now_s, rules.window_s / 2, failed=True)
        # One failure is enough right after a recovery.
        needed_failures = 1 if self.trips else rules.failures
        if self.state == "closed" and self.failures < needed_failures and not self._counts.is_bad(rules):
            self._move("failed")
            return False
        self.trip(now_s, rules, reason=reason, rng=rng)
        return True

    def trip(
        self, now_s: float, rules: BreakerSettings, *, reason: str, rng: float, provider_retry_after_s: float = 0.0
    ) -> None:
        """Open the breaker for the longer of cooldown and ``provider_retry_after_s``, at most ``max_cooldown_s``."""
        self._move("tripped")
        self.generation += 1
        self.trips += 1
        self.failures = 0
        self.reason = reason
        self._counts = _Counts()
        own_pause_s = min(rules.cooldown_s * 2 ** min(self.trips - 1, 30), rules.max_own_pause_s, rules.max_cooldown_s)
        own_pause_s *= 1 + JITTER * (2 * rng - 1)
        self.until = now_s + min(max(own_pause_s, provider_retry_after_s), rules.max_cooldown_s)
        self.tripped_at = now_s
        self.provider_pause_until = now_s + min(provider_retry_after_s, rules.max_cooldown_s)

    def abandon(self, generation: int) -> None:
        """End a request without a result: its client disconnected. If it was the last trial, another may start."""
        if generation != self.generation or self.state != "half_open":
            return
        self.trial_count -= 1
        if not self.trial_count:
            self._move("abandoned")

    def recover(self, now_s: float) -> None:
        """Close an open breaker, with a reduced share: a probe or request has succeeded. Does not reset ``trips``."""
        if self.state == "open":
            self._move("recovered")
            self.up_since = now_s

    def _move(self, event: BreakerEvent) -> None:
        self.state = TRANSITIONS[self.state, event]
