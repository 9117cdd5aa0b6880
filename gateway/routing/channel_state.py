"""One channel as it stands, its keys, and the leave for one call over it with one of them."""

import math
from collections.abc import Hashable
from typing import Literal

import attrs

from gateway.domain.channel import Channel
from gateway.domain.circuit_breaker import BreakerSettings, CircuitBreaker, State
from gateway.domain.circuits import WHOLE, Circuits, Place, StartedAttempt, Tripped
from gateway.domain.http_request import RequestTemplate
from gateway.domain.rate_limit import change_limit, take, wait_s
from gateway.domain.statistics import RingBuffer

Obstacle = Literal["cooling", "trial", "full", "rate", "keys", "refused"]
"""Why a channel cannot take a call now: it is in its cooldown; one call is trying whether it is well again; it has as
many calls as it may; as many a minute; its provider limits the rate of each of its keys for the model; or refused its
keys."""
AFTER_FAILURES = frozenset({"cooling", "trial", "refused"})
"""Obstacles in spite of which a few calls are made where no other channel serves: see ``ChannelState.may_insist``."""

TRIAL_WAIT_S = 1.0
FULL_WAIT_S = 1.0
"""What is told of a wait that nobody knows the end of."""
RECENT_CALLS = 512
"""Of which every channel's figures are made."""
FAILED = -1
"""Among them, in the place of how long its first byte took: a call that failed."""
INSISTING_RPM = 60
"""Calls a minute of one account that are made over a channel in its cooldown, where no other serves the model."""
ALL_INSISTING_RPM = 600
"""Those of all accounts together."""
MOST_INSISTING = 1_000
"""Accounts whose rate is remembered."""
HEARD_S = 10.0
"""How long an answer says that a channel is well, though the calls of one account fail."""
SEVERAL_MODELS = 3
"""That a provider must fail at before its channel trips as a whole."""
SEVERAL_WIRES = 2
"""In which a key must be refused before it trips as a whole."""
MOST_LIMITED = 1_000
"""Models a key's rate limits are remembered for; beyond it the oldest is forgotten, and asked again too soon."""


@attrs.frozen
class RateLimit:
    """Until when a provider wants no more calls of a model, and whose calls it said so to (None: several accounts')."""

    until: float
    account: int | None


@attrs.define(eq=False)
class KeyState:
    """One key of a channel. ``limited``: model -> the provider's rate limit for it.

    ``breaker``: of the key as a whole; ``circuits``: of the kinds of calls that it was refused for. Trouble with a key
    trips these at once, so that its calls need not be counted: until one has tripped, an answer changes nothing.
    ``templates``: of requests sent with it, by their kind; see ``routing/target.py``.
    """

    key: str = attrs.field(repr=False)
    breaker: CircuitBreaker = attrs.field(factory=CircuitBreaker)
    limited: dict[str, RateLimit] = attrs.field(factory=dict)
    templates: dict[Hashable, RequestTemplate] = attrs.field(factory=dict, repr=False)
    circuits: Circuits = attrs.field(init=False)

    @circuits.default
    def _make_circuits(self) -> Circuits:
        return Circuits(self.breaker, several=SEVERAL_WIRES, part=0)

    def keep(self, kind: Hashable, template: RequestTemplate) -> None:
        """Cache the template of a kind of requests."""
        if len(self.templates) >= MOST_LIMITED:
            self.templates.clear()
        self.templates[kind] = template

    def wait_s(self, place: Place, account: int, now: float) -> float | None:
        """Seconds until calls may be made with it; None where nobody knows. A rate limit is no part of it."""
        wait = self.breaker.wait_s(now)
        if wait is None or not self.circuits:
            return wait
        kind_s = self.circuits.wait_s(place, account, now)
        return None if kind_s is None else max(wait, kind_s)

    def find_limit_s(self, model: str, account: int, now: float) -> float:
        """Seconds until the provider's rate limit for ``model`` ends; 0 if there is none."""
        limit = self.limited.get(model)
        if limit is None or limit.account not in {None, account}:
            return 0.0
        if limit.until <= now:
            del self.limited[model]
            return 0.0
        return limit.until - now

    def limit(self, model: str, account: int, until: float, now: float) -> None:
        """The provider wants no more of ``model`` before ``until``: of this account, or of all where it told two."""
        before = self.limited.pop(model, None)
        if before is not None and before.until > now:
            until = max(until, before.until)
            whose = account if before.account == account else None
        else:
            whose = account
        self.limited[model] = RateLimit(until, whose)
        if len(self.limited) > MOST_LIMITED:
            del self.limited[next(iter(self.limited))]


@attrs.define(eq=False)
class ChannelState:
    """One channel as it stands.

    Attributes:
        offered: whether calls may be made over it: it was neither disabled nor removed, and leads where it led.
        running: calls under way.
        tat: of its requests a minute; see ``domain/rate_limit.py``.
        turn: which key is the next one's.
        calls: answered or failed, since it is known; what was the caller's mistake, or was left, is neither.
        failures: those of them that failed.
        recent: of the last ``RECENT_CALLS``, milliseconds to the first byte (of an answer that is not streamed: to the
            whole of it), or ``FAILED``.
        breaker: of the channel as a whole, which trips on what concerns all of it.
        circuits: of the kinds of calls that failed.
        probed_at: when it was probed last.
        probe_failed: whether that failed.
    """

    channel: Channel
    keys: tuple[KeyState, ...]
    breaker: CircuitBreaker = attrs.field(factory=CircuitBreaker)
    offered: bool = False
    running: int = 0
    tat: float = 0.0
    turn: int = 0
    calls: int = 0
    failures: int = 0
    recent: RingBuffer = attrs.field(factory=lambda: RingBuffer(RECENT_CALLS))
    probed_at: float = -math.inf
    probe_failed: bool = False
    circuits: Circuits = attrs.field(init=False)
    _insisting: float = attrs.field(default=0.0, init=False)
    _insisting_of: dict[int, float] = attrs.field(factory=dict, init=False)

    @circuits.default
    def _make_circuits(self) -> Circuits:
        return Circuits(self.breaker, several=SEVERAL_MODELS, part=1)

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

    def is_free(self, place: Place) -> bool:
        """Whether it is plain to see that nothing is in the way: the usual line, with its usual key, when all is well.

        False says nothing.
        """
        key, most = self.keys[self.turn], self.channel.max_concurrency
        return (
            self.offered
            and self.breaker.state == "up"
            and (not self.circuits or not self.circuits.concerns(place))
            and (most is None or self.running < most)
            and self.channel.rpm is None
            and key.breaker.state == "up"
            and (not key.circuits or not key.circuits.concerns(place))
            and place[1] not in key.limited
        )

    def find_obstacle(self, place: Place, account: int, now: float) -> tuple[Obstacle, float] | None:
        """What is in the way of a call now, and for how many seconds; None where nothing is."""
        for wait in (self.breaker.wait_s(now), self.circuits.wait_s(place, account, now)):
            if wait is None:
                return "trial", TRIAL_WAIT_S
            if wait > 0:
                return "cooling", wait
        return self._find_limit(now) or self._find_key_trouble(place, account, now)

    def _find_limit(self, now: float) -> tuple[Obstacle, float] | None:
        most, rpm = self.channel.max_concurrency, self.channel.rpm
        if most is not None and self.running >= most:
            return "full", FULL_WAIT_S
        if rpm is not None and (wait := wait_s(self.tat, rpm, 1, now)):
            return "rate", wait
        return None

    def _find_key_trouble(self, place: Place, account: int, now: float) -> tuple[Obstacle, float] | None:
        kind: Obstacle = "keys"
        nearest = math.inf
        for key in self.keys:
            limit_s = key.find_limit_s(place[1], account, now)
            wait = key.wait_s(place, account, now)
            if not limit_s:
                if wait == 0.0:
                    return None
                kind = "refused"
            nearest = min(nearest, max(limit_s, TRIAL_WAIT_S if wait is None else wait))
        return kind, nearest

    def find_share(self, place: Place, account: int, now: float, rules: BreakerSettings) -> float:
        """The part of its usual calls of a kind that it should get."""
        share = self.breaker.share(now, rules)
        return min(share, self.circuits.find_share(place, account, now, rules)) if self.circuits else share

    def find_witness(self, place: Place) -> int:
        """The account whose failures say how calls of a kind fare, no call having been answered since; 0: none's."""
        for circuits in (self.circuits, *(key.circuits for key in self.keys)):
            tripped = [] if circuits.answered_lately else circuits.list_tripped()
            for found, account, _ in tripped:
                if account is not None and found in {place, WHOLE}:
                    return account
        limits = (key.limited.get(place[1]) for key in self.keys)
        return next((limit.account or 0 for limit in limits if limit is not None), 0)

    def list_ill(self, place: Place, account: int) -> list[CircuitBreaker]:
        """The breakers of the channel, not of its keys, that calls of a kind depend on, and that are not "up"."""
        found = [self.breaker, *self.circuits.list_breakers(place, account)]
        return [breaker for breaker in found if breaker.state != "up"]

    def find_insisting_s(self, place: Place, account: int, now: float) -> float | None:
        """Seconds until a call may be made in spite of failures, where no other channel serves it; None: not at all.

        A rate limit is no failure: whoever tells one is not called.
        """
        if not self.offered or self._find_limit(now) is not None:
            return None
        if all(key.find_limit_s(place[1], account, now) for key in self.keys):
            return None
        own_s = wait_s(self._insisting_of.get(account, 0.0), INSISTING_RPM, 1, now)
        return max(own_s, wait_s(self._insisting, ALL_INSISTING_RPM, 1, now))

    def retry_until_stored(self, account: int, now: float) -> None:
        """Such a call is made."""
        self._insisting = take(self._insisting, ALL_INSISTING_RPM, 1, now)
        self._insisting_of[account] = take(self._insisting_of.pop(account, 0.0), INSISTING_RPM, 1, now)
        if len(self._insisting_of) > MOST_INSISTING:
            del self._insisting_of[next(iter(self._insisting_of))]

    def pick_key(self, place: Place, account: int, now: float) -> KeyState:
        """The next key in turn that may be used; where none may, the one that may soonest."""
        count, turn = len(self.keys), self.turn
        nearest, chosen = math.inf, turn
        for step in range(count):
            number = (turn + step) % count
            key = self.keys[number]
            wait = key.wait_s(place, account, now)
            wait = max(TRIAL_WAIT_S if wait is None else wait, key.find_limit_s(place[1], account, now))
            if wait < nearest:
                nearest, chosen = wait, number
            if not wait:
                break
        self.turn = (chosen + 1) % count
        return self.keys[chosen]

    def list_tripped(self) -> list[Tripped]:
        """The kinds of calls that it does not take at the moment, and whose (None: anybody's)."""
        return self.circuits.list_tripped() if self.circuits else []

    @property
    def state(self) -> State:
        """How it stands as a whole: "down" also if each model that it serves by name has tripped.

        What has tripped for one account alone says so only if no other call was answered meanwhile.
        """
        if self.breaker.state != "up" or not self.circuits:
            return self.breaker.state
        heard_s = self.circuits.answered_at + HEARD_S
        tripped = {
            place[1]: breaker.state
            for place, account, breaker in self.list_tripped()
            if account is None or self.circuits[place].failed_at > heard_s
        }
        if WHOLE[1] in tripped:
            return tripped[WHOLE[1]]
        names = {self.channel.upstream_model(model) for model in self.channel.models}
        if not names or self.channel.sync or self.channel.patterns or not names <= tripped.keys():
            return "up"
        return "down" if "down" in tripped.values() else "trial"

    def may_be_well(self, now: float) -> bool:
        """Whether any calls could be made over it, or are being tried, for all that is known of its failures."""
        if self.breaker.state != "up":
            return not self.breaker.wait_s(now)
        return self.state != "down" or any(breaker.until <= now for *_, breaker in self.list_tripped())

    def is_probe_due(self, now: float, every_s: float) -> bool:
        """Whether a probe may tell something new: it has tripped, and was neither tripped nor probed a moment ago.

        Who asks to be left alone is left alone.
        """
        if self.breaker.state == "down":
            tripped = [self.breaker]
        else:
            tripped = [breaker for *_, breaker in self.list_tripped() if breaker.state == "down"]
        if not tripped or now < self.probed_at + every_s:
            return False
        return any(now >= one.tripped_at + every_s and now >= one.rest_until for one in tripped)

    def tidy(self, now: float, keep_s: float) -> None:
        """Forget failures that say nothing any more."""
        for circuits in (self.circuits, *(key.circuits for key in self.keys)):
            if circuits:
                circuits.tidy(now, keep_s)


@attrs.define(eq=False)
class Lease:
    """Leave for one call over one channel with one key. ``end`` it once, whatever became of the call.

    ``place``, ``account``: of which kind it is, and whose. ``insisting``: it is made in spite of failures, and is no
    trial. ``begun``, ``key_begun``: the circuits that were there. ``streak``: of failures in a row when the call was
    answered; None where it was not. ``places``: of the channel's, taken by the call. ``first_byte_ms``: what the
    channel's figures will have of it; None: nothing.
    """

    line: ChannelState
    key: KeyState
    place: Place
    account: int
    retry: bool
    generation: int
    key_generation: int
    began: float = 0.0
    insisting: bool = False
    begun: StartedAttempt | None = None
    key_begun: StartedAttempt | None = None
    streak: tuple[int, int] | None = None
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


def list_keys(channel: Channel, before: tuple[KeyState, ...]) -> tuple[KeyState, ...]:
    """The keys of a channel; one that it had before stands as it stood."""
    known = {line.key: line for line in before}
    return tuple(known.get(key) or KeyState(key) for key in channel.api_keys or ("",))
