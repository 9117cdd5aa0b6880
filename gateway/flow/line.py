"""One channel as it stands, its keys, and the leave for one call over it with one of them."""

import math
from collections.abc import Hashable
from typing import Literal

import attrs

from gateway.domain.channel import Channel
from gateway.domain.figures import Recent
from gateway.domain.health import Breaker
from gateway.domain.rate import change_limit, take, wait_s

Obstacle = Literal["cooling", "trial", "full", "rate", "keys"]
"""Why a channel cannot take a call now: it is in its cooldown; one call is trying whether it is well again; it has as
many calls as it may; as many a minute; none of its keys may be used for the model."""

TRIAL_WAIT_S = 1.0
FULL_WAIT_S = 1.0
"""What is told of a wait that nobody knows the end of."""
RECENT_CALLS = 512
"""Of which every channel's figures are made."""
FAILED = -1
"""Among them, in the place of how long its first byte took: a call that failed."""
MOST_LIMITED = 1_000
"""Models a key's rate limits are remembered for; beyond it the oldest is forgotten, and asked again too soon."""


@attrs.frozen(eq=False)
class Envelope:
    """Where calls of one kind go over a channel, and with which headers: the same for each of them."""

    channel: Channel
    url: str
    headers: dict[str, str] = attrs.field(repr=False)


@attrs.define(eq=False)
class KeyLine:
    """One key of a channel. ``limited``: model -> when the provider's rate limit for it ends.

    ``breaker``: trouble with a key trips it at once, so that its calls need not be counted: until it has tripped, an
    answer changes nothing.
    ``envelopes``: of calls made with it, by what they are; see ``flow/attempt.py``.
    """

    key: str = attrs.field(repr=False)
    breaker: Breaker = attrs.field(factory=Breaker)
    limited: dict[str, float] = attrs.field(factory=dict)
    envelopes: dict[Hashable, Envelope] = attrs.field(factory=dict, repr=False)

    def keep(self, kind: Hashable, envelope: Envelope) -> None:
        """Remember the envelope of a kind of calls."""
        if len(self.envelopes) >= MOST_LIMITED:
            self.envelopes.clear()
        self.envelopes[kind] = envelope

    def wait_s(self, model: str, now: float) -> float | None:
        """Seconds until it may be used for ``model``; None where nobody knows."""
        wait = self.breaker.wait_s(now)
        until = self.limited.get(model)
        if wait is None or until is None:
            return wait
        if until <= now:
            del self.limited[model]
            return wait
        return max(wait, until - now)

    def limit(self, model: str, until: float) -> None:
        """The provider wants no more of ``model`` before ``until``."""
        self.limited[model] = max(until, self.limited.pop(model, until))
        if len(self.limited) > MOST_LIMITED:
            del self.limited[next(iter(self.limited))]


@attrs.define(eq=False)
class Line:
    """One channel as it stands.

    Attributes:
        offered: whether calls may be made over it: it was neither disabled nor removed, and leads where it led.
        running: calls under way.
        tat: of its requests a minute; see ``domain/rate.py``.
        turn: which key is the next one's.
        calls: answered or failed, since it is known; what was the caller's mistake, or was left, is neither.
        failures: those of them that failed.
        recent: of the last ``RECENT_CALLS``, milliseconds to the first byte (of an answer that is not streamed: to the
            whole of it), or ``FAILED``.
    """

    channel: Channel
    keys: tuple[KeyLine, ...]
    breaker: Breaker = attrs.field(factory=Breaker)
    offered: bool = False
    running: int = 0
    tat: float = 0.0
    turn: int = 0
    calls: int = 0
    failures: int = 0
    recent: Recent = attrs.field(factory=lambda: Recent(RECENT_CALLS))

    def count(self, first_byte_ms: int) -> None:
        """A call has ended that says something of the channel; ``FAILED`` where it failed."""
        self.calls += 1
        if first_byte_ms == FAILED:
            self.failures += 1
        self.recent.add(first_byte_ms)

    def replace(self, channel: Channel, now: float) -> None:
        """``channel`` in the place of the one before it. Keys that stay keep how they stand.

        Unless other headers go with them: those may have been what was refused, or all there is to sign with.
        """
        before, after = self.channel.rpm, channel.rpm
        if before is not None and after is not None:
            self.tat = change_limit(self.tat, before, after, now)
        self.keys = list_keys(channel, self.keys if channel.headers == self.channel.headers else ())
        self.channel = channel
        self.turn = 0

    def is_free(self, model: str) -> bool:
        """Whether it is plain to see that nothing is in the way: the usual line, with its usual key, when all is well.

        False says nothing.
        """
        key, most = self.keys[self.turn], self.channel.max_concurrency
        return (
            self.offered
            and self.breaker.state == "up"
            and (most is None or self.running < most)
            and self.channel.rpm is None
            and key.breaker.state == "up"
            and model not in key.limited
        )

    def find_obstacle(self, model: str, now: float) -> tuple[Obstacle, float] | None:
        """What is in the way of a call now, and for how many seconds; None where nothing is."""
        wait = self.breaker.wait_s(now)
        if wait is None:
            return "trial", TRIAL_WAIT_S
        if wait > 0:
            return "cooling", wait
        return self._find_limit(now) or self._find_key_trouble(model, now)

    def _find_limit(self, now: float) -> tuple[Obstacle, float] | None:
        most, rpm = self.channel.max_concurrency, self.channel.rpm
        if most is not None and self.running >= most:
            return "full", FULL_WAIT_S
        if rpm is not None and (wait := wait_s(self.tat, rpm, 1, now)):
            return "rate", wait
        return None

    def _find_key_trouble(self, model: str, now: float) -> tuple[Obstacle, float] | None:
        nearest = math.inf
        for key in self.keys:
            wait = key.wait_s(model, now)
            if wait == 0.0:
                return None
            nearest = min(nearest, TRIAL_WAIT_S if wait is None else wait)
        return "keys", nearest

    def pick_key(self, model: str, now: float) -> KeyLine:
        """The next key in turn that may be used; one may, ``find_obstacle`` having found nothing."""
        for step in range(len(self.keys)):
            key = self.keys[(self.turn + step) % len(self.keys)]
            if key.wait_s(model, now) == 0.0:
                self.turn = (self.turn + step + 1) % len(self.keys)
                return key
        raise AssertionError("a key that may be used was found a moment ago")


@attrs.define(eq=False)
class Lease:
    """Leave for one call over one channel with one key. ``end`` it once, whatever became of the call.

    ``streak``: failures of the channel in a row when the call was answered; None where it was not. ``places``: of the
    channel's, taken by the call. ``first_byte_ms``: what the channel's figures will have of it; None: nothing.
    """

    line: Line
    key: KeyLine
    model: str
    retry: bool
    epoch: int
    key_epoch: int
    began: float = 0.0
    streak: int | None = None
    places: int = 1
    ended: bool = False
    first_byte_ms: int | None = None

    def widen(self, more: int) -> int:
        """Take up to ``more`` places for parts of the call that are made at once; returns how many there were.

        Every part is a request to the provider and counts as one, whether or not there was a place for it.
        """
        line, rpm, most = self.line, self.line.channel.rpm, self.line.channel.max_concurrency
        if rpm is not None:
            line.tat = take(line.tat, rpm, more, line.tat)
        taken = more if most is None else min(more, max(0, most - line.running))
        line.running += taken
        self.places += taken
        return taken


def list_keys(channel: Channel, before: tuple[KeyLine, ...]) -> tuple[KeyLine, ...]:
    """The keys of a channel; one that it had before stands as it stood."""
    known = {line.key: line for line in before}
    return tuple(known.get(key) or KeyLine(key) for key in channel.api_keys or ("",))
