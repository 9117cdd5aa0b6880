"""How every channel stands: its breaker and its keys', its calls under way, its requests a minute.

All of it is in memory and changes on the event loop alone. A call is made under a ``Lease``, and what became of it is
said to the lease: that moves the breakers.
"""

import random
from collections.abc import Callable, Iterable, Mapping

import attrs
import structlog

from gateway.domain.channel import Channel
from gateway.domain.circuit_breaker import DEFAULT_RULES, BreakerSettings, CircuitBreaker
from gateway.domain.circuits import Circuits, Failure, Place, StartedAttempt
from gateway.domain.rate_limit import take
from gateway.errors import ProviderError
from gateway.routing.channel_state import FAILED, ChannelState, Lease, list_keys

log = structlog.stdlib.get_logger(__name__)

KEY_PATIENCE = 12
"""A key that is refused again and again rests at most so many times as long as a channel does at first."""
REFUSED_S = 1.0
"""How long a key rests that was refused once; twice as long each time."""
PROBE_EVERY_S = 5.0
"""How often a channel that has tripped is probed; what no probe can tell of, a kind of calls, is tried as often."""
_NOTHING_BEGUN = StartedAttempt()


@attrs.frozen
class RetrySettings:
    """How calls are spread, and how often they are tried again.

    Attributes:
        rules: of the breakers.
        max_attempts: channels tried for one call.
        retry_ratio: retries among all calls under way, at most.
        least_retries: that are let through whatever the ratio: one caller alone must be able to fail over.
        failover_after_s: that a stream's first event is waited for, where another channel could serve the call.
    """

    rules: BreakerSettings = DEFAULT_RULES
    max_attempts: int = 3
    retry_ratio: float = 0.2
    least_retries: int = 3
    failover_after_s: float = 15.0


DEFAULT_SETTINGS = RetrySettings()


class LoadBalancer:
    """Knows how every channel stands.

    What a failure counts for: a connection that cannot be made concerns the whole channel. A refused key and everything
    else concern calls of their kind first (``domain/circuits.py``).

    Args:
        clock: seconds of a monotonic clock.
        dice: a number from 0 to below 1.

    Attributes:
        settings: how calls are spread.
        lines: every channel that there is, by its name; another object whenever one of them has changed.
        running: calls under way.
        changes: counts what may have made a channel unavailable; while it stands still, an available one stays so.
        retrying: those of them that are not their request's first, and not answered yet.
    """

    def __init__(self, clock: Callable[[], float], rng: Callable[[], float] = random.random) -> None:
        self._clock = clock
        self._dice = rng
        self.lines: Mapping[str, ChannelState] = {}
        self.settings = DEFAULT_SETTINGS
        self.running = 0
        self.retrying = 0
        self.changes = 0

    def use(self, channels: Iterable[Channel]) -> None:
        """Offer exactly these. One that was there before keeps how it stands, unless it leads elsewhere now."""
        self.changes += 1
        lines: dict[str, ChannelState] = {}
        before, self.lines = self.lines, lines
        for former in before.values():
            former.offered = False
        for channel in channels:
            line = before.get(channel.name)
            if line is None or line.channel.base_url != channel.base_url or line.channel.provider != channel.provider:
                line = ChannelState(channel, list_keys(channel, ()))
            else:
                # In its place, not beside it: calls under way end at this line, and free a slot of it.
                line.replace(channel, self._clock())
            line.offered = channel.status == "active"
            lines[channel.name] = line

    @property
    def any_open(self) -> bool:
        """Whether a channel could be called now, or is being tried, for all its breaker knows."""
        now = self._clock()
        return any(line.channel.status == "active" and line.may_be_well(now) for line in self.lines.values())

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

    def lease(self, line: ChannelState, place: Place, account: int, *, retry: bool, insisting: bool = False) -> Lease:
        """Make a call of ``account`` over ``line``, which has no obstacle; or ``insisting``, in spite of failures."""
        now, rpm = self._clock(), line.channel.rpm
        key = line.keys[0] if len(line.keys) == 1 else line.pick_key(place, account, now)
        if rpm is not None:
            line.tat = take(line.tat, rpm, 1, now)
        line.running += 1
        self.running += 1
        self.changes += 1
        if retry:
            self.retrying += 1
        elif insisting:
            line.retry_until_stored(account, now)
        breaker, keys, tries = line.breaker, key.breaker, not insisting
        generation = breaker.begin(now) if tries and breaker.state != "up" else breaker.generation
        key_generation = keys.begin(now) if tries and keys.state != "up" else keys.generation
        lease = Lease(line, key, place, account, retry, generation, key_generation, now, insisting)
        if line.circuits:
            lease.begun = line.circuits.begin(place, account, now, tries=tries)
        if key.circuits:
            lease.key_begun = key.circuits.begin(place, account, now, tries=tries)
        return lease

    def record_success(self, lease: Lease) -> None:
        """The call was answered; to be said once, at its first event or with the whole of it.

        From there a retry is a call like any other, however long its stream goes on.
        """
        now = self._clock()
        if lease.retry:
            lease.retry = False
            self.retrying -= 1
        lease.first_byte_ms = round((now - lease.began) * 1000)
        lease.streak = lease.line.circuits.find_streak(lease.place, lease.account) if lease.line.circuits else (0, 0)
        self._note_well(lease, now)
        self._note_key_well(lease, now)

    def record_failure(self, lease: Lease, fault: ProviderError, prompt: int | None = None) -> None:
        """The call failed, before its first byte or after it. ``prompt``: a digest of what was asked."""
        self.changes += 1
        if fault.failure_scope != "nobody":
            lease.first_byte_ms = FAILED
        if fault.answered:
            self._note_well(lease, self._clock())
        match fault.failure_scope:
            case "model":
                self._limit_key(lease, fault)
            case "key":
                self._note_refused(lease, fault)
            case "channel" if fault.phase == "connect":
                self._note_out_of_reach(lease, fault)
            case "channel":
                self._note_ill(lease, fault, prompt)
            case "nobody":
                if fault.answered:
                    self._note_key_well(lease, self._clock())

    def note_probe_answered(self, line: ChannelState, generation: int) -> None:
        """A probe, begun in ``generation`` of the channel's breaker, found the channel well."""
        now = line.probed_at = self._clock()
        if line.breaker.state == "down" and line.breaker.generation == generation:
            line.breaker.recover(now)
            log.info("channel_recovered", channel=line.channel.name, reason="probe")
        if line.probe_failed:  # else it was well all the time, and what failed fails still
            line.probe_failed = False
            line.circuits.let_try(now)

    def note_probe_failed(self, line: ChannelState, generation: int, fault: ProviderError) -> None:
        """A probe, begun in ``generation``, found it as it was: once its cooldown is over, it rests on, for longer."""
        self.changes += 1
        breaker, now = line.breaker, self._clock()
        line.probed_at, line.probe_failed = now, True
        if (
            breaker.state == "down"
            and breaker.generation == generation
            and (now >= breaker.until or fault.provider_retry_after_s)
        ):
            breaker.trip(
                now,
                self.settings.rules,
                reason=fault.message,
                rng=self._dice(),
                provider_retry_after_s=fault.provider_retry_after_s or 0.0,
            )

    def tidy(self) -> None:
        """Forget failures that say nothing any more."""
        for line in self.lines.values():
            line.tidy(self._clock(), self.settings.rules.window_s)

    def _note_well(self, lease: Lease, now: float) -> None:
        line, rules = lease.line, self.settings.rules
        breaker = line.breaker
        was = breaker.state
        if was == "down" and breaker.generation == lease.generation:  # a call that was made in spite of the cooldown
            breaker.recover(now)
        breaker.record_success(lease.generation, now, rules)
        if was != breaker.state:
            log.info("channel_recovered", channel=line.channel.name)
        if line.circuits:
            begun = lease.begun or _NOTHING_BEGUN
            if line.circuits.record_success(lease.place, lease.account, begun, now, rules):
                log.info("circuit_recovered", channel=line.channel.name, model=lease.place[1])

    def _note_key_well(self, lease: Lease, now: float) -> None:
        key, rules = lease.key, self.settings.rules
        if key.breaker.trips:  # else there is nothing to note: see KeyLine
            if key.breaker.generation == lease.key_generation:
                key.breaker.recover(now)
            key.breaker.record_success(lease.key_generation, now, rules)
        if key.circuits:
            key.circuits.record_success(lease.place, lease.account, lease.key_begun or _NOTHING_BEGUN, now, rules)

    def _note_out_of_reach(self, lease: Lease, fault: ProviderError) -> None:
        now, breaker = self._clock(), lease.line.breaker
        if breaker.record_failure(lease.generation, now, self.settings.rules, reason=fault.message, rng=self._dice()):
            self._tell_tripped(lease, breaker, now)

    def _note_ill(self, lease: Lease, fault: ProviderError, prompt: int | None) -> None:
        rules = self.settings.rules
        failure = Failure(
            self._clock(),
            attrs.evolve(rules, longest_own_s=max(rules.cooldown_s, PROBE_EVERY_S)),
            fault.message,
            self._dice(),
            provider_retry_after_s=fault.provider_retry_after_s or 0.0,
            streak=lease.streak,
            prompt=prompt if fault.may_be_prompt else None,
        )
        circuits = lease.line.circuits
        tripped = circuits.record_failure(lease.place, lease.account, lease.begun or _NOTHING_BEGUN, failure)
        if tripped is not None:
            self._tell_tripped(lease, tripped, failure.at)

    def _tell_tripped(self, lease: Lease, breaker: CircuitBreaker, now: float) -> None:
        line, cooldown_s = lease.line, round(breaker.until - now, 1)
        if breaker is line.breaker:
            log.warning("channel_tripped", channel=line.channel.name, error=breaker.reason, cooldown_s=cooldown_s)
            return
        place, account = next((place, account) for place, account, known in line.list_tripped() if known is breaker)
        log.warning(
            "circuit_tripped",
            channel=line.channel.name,
            model=place[1] or "all",
            account=account,
            error=breaker.reason,
            cooldown_s=cooldown_s,
        )

    def _limit_key(self, lease: Lease, fault: ProviderError) -> None:
        now, rules, model = self._clock(), self.settings.rules, lease.place[1]
        wait = min(fault.provider_retry_after_s or rules.cooldown_s, rules.max_cooldown_s)
        lease.key.limit(model, lease.account, now + wait, now)
        log.warning("key_limited", channel=lease.line.channel.name, model=model, cooldown_s=round(wait, 1))

    def _note_refused(self, lease: Lease, fault: ProviderError) -> None:
        rules, key = self.settings.rules, lease.key
        rules = attrs.evolve(
            rules,
            failures=1,
            cooldown_s=min(REFUSED_S, rules.cooldown_s),
            max_cooldown_s=min(rules.max_cooldown_s, rules.cooldown_s * KEY_PATIENCE),
        )
        now = self._clock()
        if key.breaker.state == "trial" and key.breaker.generation == lease.key_generation:
            key.breaker.trip(now, rules, reason=fault.message, rng=self._dice())
        failure = Failure(now, rules, fault.message, self._dice())
        tripped = key.circuits.record_failure(lease.place, lease.account, lease.key_begun or _NOTHING_BEGUN, failure)
        if tripped is None:
            return
        number = next((number for number, known in enumerate(lease.line.keys, 1) if known is key), 0)
        log.warning(
            "key_tripped",
            channel=lease.line.channel.name,
            model=None if tripped is key.breaker else lease.place[1],
            error=fault.message,
            reason=f"key {number} of {len(lease.line.keys)}",
            cooldown_s=round(tripped.until - now, 1),
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
        if lease.insisting:
            return
        if line.breaker.state == "trial":
            line.breaker.abandon(lease.generation)
        if lease.key.breaker.state == "trial":
            lease.key.breaker.abandon(lease.key_generation)
        _abandon(line.circuits, lease.begun)
        _abandon(lease.key.circuits, lease.key_begun)


def _abandon(circuits: Circuits, begun: StartedAttempt | None) -> None:
    if begun is not None:
        circuits.abandon(begun)
