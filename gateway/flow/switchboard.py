"""How every channel stands: its breaker and its keys', its calls under way, its requests a minute.

All of it is in memory and changes on the event loop alone. A call is made under a ``Lease``, and what became of it is
said to the lease: that moves the breakers.
"""

import random
from collections.abc import Callable, Iterable, Mapping

import attrs
import structlog

from gateway.domain.channel import Channel
from gateway.domain.fault import UpstreamFault
from gateway.domain.health import DEFAULT_RULES, Rules
from gateway.domain.rate import take
from gateway.flow.line import FAILED, Lease, Line, list_keys

log = structlog.stdlib.get_logger(__name__)

KEY_PATIENCE = 12
"""A key that was refused stays refused until somebody does something: it rests so many times as long as a channel."""


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


class Switchboard:
    """Knows how every channel stands.

    Args:
        clock: seconds of a monotonic clock.
        dice: a number from 0 to below 1.

    Attributes:
        settings: how calls are spread.
        lines: every channel that there is, by its name; another object whenever one of them has changed.
        running: calls under way.
        retrying: those of them that are not their request's first, and not answered yet.
    """

    def __init__(self, clock: Callable[[], float], dice: Callable[[], float] = random.random) -> None:
        self._clock = clock
        self._dice = dice
        self.lines: Mapping[str, Line] = {}
        self.settings = DEFAULT_SETTINGS
        self.running = 0
        self.retrying = 0

    def use(self, channels: Iterable[Channel]) -> None:
        """Offer exactly these. One that was there before keeps how it stands, unless it leads elsewhere now."""
        lines: dict[str, Line] = {}
        before, self.lines = self.lines, lines
        for former in before.values():
            former.offered = False
        for channel in channels:
            line = before.get(channel.name)
            if line is None or line.channel.base_url != channel.base_url or line.channel.provider != channel.provider:
                line = Line(channel, list_keys(channel, ()))
            else:
                # In its place, not beside it: calls under way end at this line, and free a slot of it.
                line.replace(channel, self._clock())
            line.offered = channel.status == "active"
            lines[channel.name] = line

    @property
    def any_open(self) -> bool:
        """Whether a channel could be called now, or is being tried, for all its breaker knows."""
        now = self._clock()
        return any(not line.breaker.wait_s(now) and line.channel.status == "active" for line in self.lines.values())

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
        now, rpm = self._clock(), line.channel.rpm
        key = line.keys[0] if len(line.keys) == 1 else line.pick_key(model, now)
        if rpm is not None:
            line.tat = take(line.tat, rpm, 1, now)
        line.running += 1
        self.running += 1
        if retry:
            self.retrying += 1
        breaker, keys = line.breaker, key.breaker
        epoch = breaker.epoch if breaker.state == "up" else breaker.begin(now)
        key_epoch = keys.epoch if keys.state == "up" else keys.begin(now)
        return Lease(line, key, model, retry, epoch, key_epoch, now)

    def note_answered(self, lease: Lease) -> None:
        """The call was answered; to be said once, at its first event or with the whole of it.

        From there a retry is a call like any other, however long its stream goes on.
        """
        now = self._clock()
        if lease.retry:
            lease.retry = False
            self.retrying -= 1
        lease.first_byte_ms = round((now - lease.began) * 1000)
        lease.streak = lease.line.breaker.failures
        self._note_well(lease, now)
        if lease.key.breaker.trips:  # else there is nothing to note: see KeyLine
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
        lease.ended, line = True, lease.line
        if lease.first_byte_ms is not None:
            line.count(lease.first_byte_ms)
        line.running -= lease.places
        self.running -= 1
        if lease.retry:
            self.retrying -= 1
        if line.breaker.state == "trial":
            line.breaker.abandon(lease.epoch)
        if lease.key.breaker.state == "trial":
            lease.key.breaker.abandon(lease.key_epoch)
