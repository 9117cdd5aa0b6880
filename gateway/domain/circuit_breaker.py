"""How a channel, or one of its keys, is doing: a breaker with three states, moved by what became of its calls.

Times are seconds of a monotonic clock that the caller reads; dice are numbers from 0 to 1 that the caller throws.

=======  ===========  =======
state    happening    becomes
=======  ===========  =======
up       answered     up
up       failed       up
up       tripped      down
down     tripped      down
down     rested       trial
down     recovered    up
trial    answered     up
trial    tripped      down
trial    abandoned    down
=======  ===========  =======

"tripped" is one failure too many, or trouble that needs no second one; "rested": the cooldown is over, and one call is
let through, and one more whenever that has taken ``TRIAL_S``; "recovered": a probe found it well; "abandoned": the
trial's caller left, and the next call is one again.
"""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import attrs

State = Literal["up", "down", "trial"]
Happening = Literal["answered", "failed", "tripped", "rested", "recovered", "abandoned"]

MOVES: Mapping[tuple[State, Happening], State] = MappingProxyType(
    {
        ("up", "answered"): "up",
        ("up", "failed"): "up",
        ("up", "tripped"): "down",
        ("down", "tripped"): "down",
        ("down", "rested"): "trial",
        ("down", "recovered"): "up",
        ("trial", "answered"): "up",
        ("trial", "tripped"): "down",
        ("trial", "abandoned"): "down",
    },
)
"""Every move there is; what is not here cannot happen."""

LEAST_SHARE = 0.1
"""Of its usual part of the calls, what a channel gets right after it has come up again."""
TRIAL_S = 15.0
"""How long one call tries alone. A whole answer may take half an hour, and from a provider that hangs none ever comes:
then another call may try beside it."""
JITTER = 0.2
"""A cooldown is up to this part shorter or longer, so that many gateways do not knock at once."""
_FOREVER_AGO = float("-inf")


@attrs.frozen
class BreakerSettings:
    """When a breaker trips, and for how long.

    Attributes:
        failures: in a row, that trip it.
        ratio: of failures among the calls of the last ``window_s`` seconds, that trips it.
        least_calls: in that time, below which the ratio says nothing.
        cooldown_s: after the first trip; twice as long after each further one.
        max_cooldown_s: the longest cooldown, whatever a provider asks for.
        longest_own_s: the longest that no provider has asked for.
        ramp_s: until a channel that has come up again gets its whole share.
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
    """Calls of the running half of the window and of the half before it: all of the last half, none older than two."""

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
        """A call that was counted as answered well was not."""
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
        state: see the module's table.
        until: end of the cooldown.
        trips: in a row, without a call answered well in between.
        epoch: counts the trips there ever were. What became of a call that was begun in an earlier epoch says nothing.
        reason: what the last failure was, for people.
        up_since: when it came up again; forever ago where it never was down.
        tries: calls under way that try whether it is well again.
        next_try_at: when another may try beside them.
        tripped_at: when it tripped last.
        rest_until: until when the provider asked to be left alone, within the cap.
    """

    state: State = "up"
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
        """Seconds until a call may be made: 0 now, None while a trial is under way and nobody knows."""
        if self.state == "up":
            return 0.0
        if self.state == "trial":
            return None if now < self.next_try_at else 0.0
        return max(0.0, self.until - now)

    def share(self, now: float, rules: BreakerSettings) -> float:
        """The part of its usual calls that it should get, from ``LEAST_SHARE`` to 1."""
        age = now - self.up_since
        return 1.0 if age >= rules.ramp_s else max(LEAST_SHARE, age / rules.ramp_s)

    def begin(self, now: float) -> int:
        """A call is made, ``wait_s`` having been 0. Returns the epoch to report with."""
        if self.state == "down":
            self._move("rested")
            self.tries = 0
        if self.state == "trial":
            self.tries += 1
            self.next_try_at = now + TRIAL_S
        return self.generation

    def record_success(self, generation: int, now: float, rules: BreakerSettings) -> None:
        """A call of ``generation`` was answered well."""
        if generation != self.generation:
            return
        self.failures = 0
        if self.state == "trial":
            self.up_since = now
            self._counts = _Counts()
            self._move("answered")
        elif self.state == "up":  # and stays so
            self._counts.add(now, rules.window_s / 2, failed=False)
        else:
            return
        if self.trips and now - self.up_since >= rules.ramp_s:
            self.trips = 0
            self.reason = None

    def record_failure(
        self,
        generation: int,
        now: float,
        rules: BreakerSettings,
        *,
        reason: str,
        rng: float,
        streak: int | None = None,
    ) -> bool:
        """A call of ``generation`` failed. True where that trips it.

        ``streak``: the failures there were in a row when the same call was noted as answered, if it was: a channel
        that begins every stream and finishes none is not well between them.
        """
        if generation != self.generation or self.state == "down":
            return False
        if streak is not None:
            self.failures = max(self.failures, streak)
            self._counts.take_back()
        self.reason = reason
        self.failures += 1
        self._counts.add(now, rules.window_s / 2, failed=True)
        # Right after it came up again one failure is enough: it is not well yet.
        enough = 1 if self.trips else rules.failures
        if self.state == "up" and self.failures < enough and not self._counts.is_bad(rules):
            self._move("failed")
            return False
        self.trip(now, rules, reason=reason, rng=rng)
        return True

    def trip(
        self, now: float, rules: BreakerSettings, *, reason: str, rng: float, provider_retry_after_s: float = 0.0
    ) -> None:
        """Take it down for its cooldown, or for ``provider_retry_after_s`` where a provider asks for longer; never
        above the cap.
        """
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
        """A call of ``generation`` ended without a verdict: its caller left. A trial is open to the next call again."""
        if generation != self.generation or self.state != "trial":
            return
        self.tries -= 1
        if not self.tries:
            self._move("abandoned")

    def recover(self, now: float) -> None:
        """A probe has found it well: it may be called again, carefully. Only a call answered well forgets its trips."""
        if self.state == "down":
            self._move("recovered")
            self.up_since = now

    def _move(self, happening: Happening) -> None:
        self.state = MOVES[self.state, happening]
