"""How every channel stands: its breaker and its keys', its calls under way, its requests a minute.

All of it is in memory and changes on the event loop alone. A call is made under a ``Lease``, and what became of it is
said to the lease: that moves the breakers.
"""

import math
import random
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Literal

import attrs
import structlog

from gateway.domain.channel import Channel
from gateway.domain.fault import UpstreamFault
from gateway.domain.figures import Recent
from gateway.domain.health import DEFAULT_RULES, Breaker, Rules
from gateway.domain.rate import change_limit, take, wait_s

log = structlog.stdlib.get_logger(__name__)

Obstacle = Literal["cooling", "trial", "full", "rate", "keys"]
"""Why a channel cannot take a call now: it is in its cooldown; one call is trying whether it is well again; it has as
many calls as it may; as many a minute; none of its keys may be used for the model."""

KEY_PATIENCE = 12
"""A key that was refused stays refused until somebody does something: it rests so many times as long as a channel."""
TRIAL_WAIT_S = 1.0
FULL_WAIT_S = 1.0
"""What is told of a wait that nobody knows the end of."""
RECENT_CALLS = 512
"""Of which every channel's figures are made."""
FAILED = -1
"""Among them, in the place of how long its first byte took: a call that failed."""
MOST_LIMITED = 1_000
"""Models a key's rate limits are remembered for; beyond it the oldest is forgotten, and asked again too soon."""


@attrs.frozen
class Settings:
    """How calls are spread, and how often they are tried again.

    Attributes:
        rules: of the breakers.
        max_attempts: channels tried for one call.
        retry_ratio: retries among all calls under way, at most.
        least_retries: that are let through whatever the ratio: one caller alone must be able to fail over.
    """

    rules: Rules = DEFAULT_RULES
    max_attempts: int = 3
    retry_ratio: float = 0.2
    least_retries: int = 3


DEFAULT_SETTINGS = Settings()


@attrs.frozen(eq=False)
class Envelope:
    """Where calls of one kind go over a channel, and with which headers: the same for each of them."""

    channel: Channel
    url: str
    headers: dict[str, str] = attrs.field(repr=False)


@attrs.define(eq=False)
class KeyLine:
    """One key of a channel. ``limited``: model -> when the provider's rate limit for it ends.

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
    running: int = 0
    tat: float = 0.0
    turn: int = 0
    calls: int = 0
    failures: int = 0
    recent: Recent = attrs.field(factory=lambda: Recent(RECENT_CALLS))

    def count(self, first_byte_ms: int) -> None:
        """A call has ended that says something of the channel; ``FAILED`` where it failed."""
        self.calls += 1
        self.failures += first_byte_ms == FAILED
        self.recent.add(first_byte_ms)

    def replace(self, channel: Channel, now: float) -> None:
        """``channel`` in the place of the one before it. Keys that stay keep how they stand.

        Unless other headers go with them: those may have been what was refused, or all there is to sign with.
        """
        before, after = self.channel.rpm, channel.rpm
        if before is not None and after is not None:
            self.tat = change_limit(self.tat, before, after, now)
        self.keys = _list_keys(channel, self.keys if channel.headers == self.channel.headers else ())
        self.channel = channel
        self.turn = 0

    def is_free(self, model: str) -> bool:
        """Whether it is plain to see that nothing is in the way: the usual line, with its usual key, when all is well.

        False says nothing.
        """
        channel, key = self.channel, self.keys[self.turn]
        return (
            self.breaker.state == "up"
            and (channel.max_concurrency is None or self.running < channel.max_concurrency)
            and channel.rpm is None
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
        key = self.keys[self.turn]
        if key.breaker.state == "up" and model not in key.limited:
            self.turn = (self.turn + 1) % len(self.keys)
            return key
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
    streak: int | None = None
    places: int = 1
    ended: bool = False
    began: float = 0.0
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


class Switchboard:
    """Knows how every channel stands.

    Args:
        clock: seconds of a monotonic clock.
        dice: a number from 0 to below 1.

    Attributes:
        settings: how calls are spread.
        running: calls under way.
        retrying: those of them that are not their request's first, and not answered yet.
    """

    def __init__(self, clock: Callable[[], float], dice: Callable[[], float] = random.random) -> None:
        self._clock = clock
        self._dice = dice
        self._lines: dict[str, Line] = {}
        self.settings = DEFAULT_SETTINGS
        self.running = 0
        self.retrying = 0

    @property
    def lines(self) -> Mapping[str, Line]:
        """Every channel that is offered, by its name."""
        return self._lines

    def use(self, channels: Iterable[Channel]) -> None:
        """Offer exactly these. One that was there before keeps how it stands, unless it leads elsewhere now."""
        before, self._lines = self._lines, {}
        for channel in channels:
            line = before.get(channel.name)
            if line is None or line.channel.base_url != channel.base_url or line.channel.provider != channel.provider:
                line = Line(channel, _list_keys(channel, ()))
            else:
                # In its place, not beside it: calls under way end at this line, and free a slot of it.
                line.replace(channel, self._clock())
            self._lines[channel.name] = line

    @property
    def any_open(self) -> bool:
        """Whether a channel could be called now, or is being tried, for all its breaker knows."""
        now = self._clock()
        return any(not line.breaker.wait_s(now) and line.channel.status == "active" for line in self._lines.values())

    def offers(self, line: Line) -> bool:
        """Whether calls may still be made over ``line``: it was neither disabled nor removed since it was looked up."""
        return line.channel.status == "active" and self._lines.get(line.channel.name) is line

    @property
    def now(self) -> float:
        """The switchboard's time, for the lines."""
        return self._clock()

    def throw(self) -> tuple[float, float]:
        """Two dice."""
        return self._dice(), self._dice()

    def may_retry(self) -> bool:
        """Whether one more call may be a retry. With everything down retries would only be more load."""
        settings = self.settings
        return self.retrying < max(settings.least_retries, settings.retry_ratio * self.running)

    def lease(self, line: Line, model: str, *, retry: bool) -> Lease:
        """Make a call over ``line``, which has no obstacle."""
        now = self._clock()
        key = line.pick_key(model, now)
        if line.channel.rpm is not None:
            line.tat = take(line.tat, line.channel.rpm, 1, now)
        line.running += 1
        self.running += 1
        self.retrying += retry
        breaker, keys = line.breaker, key.breaker
        epoch = breaker.epoch if breaker.state == "up" else breaker.begin(now)
        key_epoch = keys.epoch if keys.state == "up" else keys.begin(now)
        return Lease(line, key, model, retry, epoch, key_epoch, began=now)

    def note_answered(self, lease: Lease) -> None:
        """The call was answered; to be said once, at its first event or with the whole of it.

        From there a retry is a call like any other, however long its stream goes on.
        """
        now = self._clock()
        self.retrying -= lease.retry
        lease.retry = False
        lease.first_byte_ms = round((now - lease.began) * 1000)
        lease.streak = lease.line.breaker.failures
        self._note_well(lease, now)
        lease.key.breaker.note_answered(lease.key_epoch, now, self.settings.rules)

    def note_failed(self, lease: Lease, fault: UpstreamFault) -> None:
        """The call failed, before its first byte or after it."""
        if fault.blame != "nobody":
            lease.first_byte_ms = FAILED
        if fault.answered:
            self._note_well(lease, self._clock())
        match fault.blame:
            case "model":
                self._limit_key(lease, fault)
            case "key":
                self._trip_key(lease, fault)
            case "channel":
                self._note_ill(lease, fault)
            case "nobody":
                if fault.answered:
                    lease.key.breaker.note_answered(lease.key_epoch, self._clock(), self.settings.rules)

    def note_probe_answered(self, line: Line, epoch: int) -> None:
        """A probe, begun in ``epoch``, found the channel well."""
        if line.breaker.state == "down" and line.breaker.epoch == epoch:
            line.breaker.recover(self._clock())
            log.info("channel_recovered", channel=line.channel.name, reason="probe")

    def note_probe_failed(self, line: Line, epoch: int, fault: UpstreamFault) -> None:
        """A probe, begun in ``epoch``, found it as it was: it rests on, for longer."""
        breaker, now = line.breaker, self._clock()
        if breaker.state == "down" and breaker.epoch == epoch:
            breaker.trip(now, self.settings.rules, reason=fault.message, dice=self._dice(), rest_s=fault.rest_s or 0.0)

    def _note_well(self, lease: Lease, now: float) -> None:
        breaker = lease.line.breaker
        trial = breaker.state == "trial" and breaker.epoch == lease.epoch
        breaker.note_answered(lease.epoch, now, self.settings.rules)
        if trial:
            log.info("channel_recovered", channel=lease.line.channel.name)

    def _note_ill(self, lease: Lease, fault: UpstreamFault) -> None:
        now, rules, breaker = self._clock(), self.settings.rules, lease.line.breaker
        if lease.epoch != breaker.epoch or breaker.state == "down":
            return
        if fault.rest_s:  # it asks to be left alone: no second failure is needed
            breaker.trip(now, rules, reason=fault.message, dice=self._dice(), rest_s=fault.rest_s)
        elif not breaker.note_failed(
            lease.epoch,
            now,
            rules,
            reason=fault.message,
            dice=self._dice(),
            streak=lease.streak,
        ):
            return
        log.warning(
            "channel_tripped",
            channel=lease.line.channel.name,
            error=breaker.reason,
            cooldown_s=round(breaker.until - now, 1),
        )

    def _limit_key(self, lease: Lease, fault: UpstreamFault) -> None:
        rules = self.settings.rules
        wait = min(fault.rest_s or rules.cooldown_s, rules.max_cooldown_s)
        lease.key.limit(lease.model, self._clock() + wait)
        log.warning("key_limited", channel=lease.line.channel.name, model=lease.model, cooldown_s=round(wait, 1))

    def _trip_key(self, lease: Lease, fault: UpstreamFault) -> None:
        now, rules, breaker = self._clock(), self.settings.rules, lease.key.breaker
        if lease.key_epoch != breaker.epoch or breaker.state == "down":
            return
        patient = attrs.evolve(rules, cooldown_s=rules.cooldown_s * KEY_PATIENCE)
        breaker.trip(now, patient, reason=fault.message, dice=self._dice())
        number = next((number for number, key in enumerate(lease.line.keys, 1) if key is lease.key), 0)
        log.warning(
            "key_tripped",
            channel=lease.line.channel.name,
            error=fault.message,
            reason=f"key {number} of {len(lease.line.keys)}",
            cooldown_s=round(breaker.until - now, 1),
        )

    def end(self, lease: Lease) -> None:
        """The call is over; what nobody has said of it is no verdict."""
        if lease.ended:
            return
        lease.ended = True
        if lease.first_byte_ms is not None:
            lease.line.count(lease.first_byte_ms)
        lease.line.running -= lease.places
        self.running -= 1
        self.retrying -= lease.retry
        if lease.line.breaker.state == "trial":
            lease.line.breaker.abandon(lease.epoch)
        if lease.key.breaker.state == "trial":
            lease.key.breaker.abandon(lease.key_epoch)


def _list_keys(channel: Channel, before: tuple[KeyLine, ...]) -> tuple[KeyLine, ...]:
    known = {line.key: line for line in before}
    return tuple(known.get(key) or KeyLine(key) for key in channel.api_keys or ("",))
