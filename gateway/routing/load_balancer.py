"""The live state of all channels: circuit breakers, keys, running requests, requests per minute.

The state is in memory and changes only on the event loop. Each attempt holds a ``ChannelSlot``, which records the
attempt's outcome and updates the circuit breakers.
"""

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Literal

import attrs
import structlog

from gateway.deferred import defer_function
from gateway.domain.api_format import Wire
from gateway.domain.channel import Channel
from gateway.domain.circuit_breaker import DEFAULT_RULES, BreakerSettings, CircuitBreaker
from gateway.domain.circuits import EndpointKey, Failure, StartedAttempt
from gateway.domain.rate_limit import spend
from gateway.domain.route import BalanceStrategy
from gateway.errors import ProviderError
from gateway.frozen import frozen
from gateway.routing.channel_state import FAILED_MS, ChannelSlot, ChannelState, KeyState, LastError, list_keys

if TYPE_CHECKING:  # needed only by gateways that share limits, balance by measurement, or have a channel with a queue
    from gateway.cluster.limits.channels import SharedChannelLimits
    from gateway.routing.channel_queue import Ticket
    from gateway.routing.measured_balance import MeasuredBalance

log = structlog.stdlib.get_logger(__name__)

KEY_COOLDOWNS = 12
"""The maximum cooldown of a key, as a multiple of a channel's first cooldown."""
REFUSED_S = 1.0
"""The first cooldown of a rejected key. It doubles with each rejection."""
PROBE_EVERY_S = 5.0
"""How often a tripped channel is probed. Probes do not cover single models, whose first cooldowns are as short."""
_NOTHING_BEGUN = StartedAttempt()
AffinityMode = Literal["off", "header", "auto"]
"""``routing.affinity``. "header": only conversations that the client names, by a header or a field, are kept."""
# Imported when something balances by measurement.
_make_measured_balance = defer_function("routing.measured_balance:MeasuredBalance")


@frozen
class RetrySettings:
    """Settings for retries, failover, the affinity of conversations, and balancing.

    Attributes:
        retry_ratio: maximum share of retries among the running requests.
        least_retries: number of retries allowed regardless of the ratio, so that a single request can fail over.
        affinity, affinity_s: which conversations stay on their channel, and for how long after their last answer; see
            ``affinity.py``.
        failover_after_s: first-byte timeout of a stream while another channel could serve the request.
        balance: how channels of the same priority are chosen; "weight": by weight and load, without measurements.
        allow_prefer: whether clients may choose ``balance`` by a header.
    """

    rules: BreakerSettings = DEFAULT_RULES
    max_attempts: int = 3
    retry_ratio: float = 0.2
    least_retries: int = 3
    failover_after_s: float = 15.0
    affinity: AffinityMode = "auto"
    affinity_s: float = 600.0
    balance: BalanceStrategy = "weight"
    allow_prefer: bool = False


DEFAULT_SETTINGS = RetrySettings()


class LoadBalancer:
    """Keeps the state of every channel.

    A failed connection counts for the whole channel. A rejected key and every other failure count first for the model
    and API format of the request (``domain/circuits.py``).

    Args:
        clock: returns seconds of a monotonic clock.
        rng: returns a random number from 0 to below 1.
        settings: a reload of the configuration replaces them.
        shared: the channel limits shared with other gateways; None in a single process.
        unix_clock: returns Unix seconds, for the times of errors.

    Attributes:
        channels: the channel states by name. The mapping is replaced whenever the channels change.
        running: the number of running attempts.
        retrying: the number of running retries that are not answered yet.
        changes: a counter of events that may make a channel unavailable. While it is unchanged, an available channel
            stays available.
        failed: set by every failed attempt; ``ChannelProber`` waits for it.
        measured_balance: measures every attempt from the first request that is balanced by measurement; None before.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        rng: Callable[[], float] = random.random,
        *,
        settings: RetrySettings,
        shared: "SharedChannelLimits | None",
        unix_clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._unix_clock = unix_clock
        self._rng = rng
        self.channels: Mapping[str, ChannelState] = {}
        self.settings = settings
        self.shared = shared
        self.running = 0
        self.retrying = 0
        self.changes = 0
        self.failed = asyncio.Event()
        self.measured_balance: MeasuredBalance | None = None

    def measure(self) -> "MeasuredBalance":
        """Start measuring, unless started already. Return the object that chooses channels by the measurements."""
        if self.measured_balance is None:
            self.measured_balance = _make_measured_balance()
        return self.measured_balance

    @property
    def remembers_failures(self) -> bool:
        """Whether a circuit breaker is not closed, or has failures that still count."""
        return any(
            state.breaker.state != "closed" or state.circuits or any(key.circuits for key in state.keys)
            for state in self.channels.values()
        )

    def set_channels(self, channels: Iterable[Channel]) -> None:
        """Replace the channels. A known channel keeps its state unless its base URL or provider has changed.

        The requests in the queue of a changed or removed channel are dismissed.
        """
        self.changes += 1
        channel_states: dict[str, ChannelState] = {}
        before, self.channels = self.channels, channel_states
        for former_state in before.values():
            former_state.offered = False
        for channel in channels:
            state = before.get(channel.name)
            if (
                state is None
                or state.channel.base_url != channel.base_url
                or state.channel.provider != channel.provider
            ):
                state = ChannelState(channel, list_keys(channel, ()))
            else:
                # Keep the object, because running attempts release their places in it.
                if state.queue is not None and state.channel != channel:
                    state.queue.dismiss(state.queue.tickets)
                state.replace(channel, self._clock())
            state.offered = channel.serving
            if channel.queue is not None or state.queue is not None:
                state.update_queue(self._clock)
            channel_states[channel.name] = state
        for former_state in before.values():
            if not former_state.offered and former_state.queue is not None:
                former_state.queue.dismiss(former_state.queue.tickets)

    @property
    def any_open(self) -> bool:
        now_s = self._clock()
        return any(state.offered and state.may_be_healthy(now_s) for state in self.channels.values())

    @property
    def now(self) -> float:
        return self._clock()

    def draw_random(self) -> tuple[float, float]:
        return self._rng(), self._rng()

    def may_retry(self) -> bool:
        """Return whether the retry budget allows another retry: if everything is down, retries only add load."""
        settings = self.settings
        return self.retrying < max(settings.least_retries, settings.retry_ratio * self.running)

    def note_missing(self, state: ChannelState, wire: Wire) -> None:
        state.missing |= {wire}
        self.channels = dict(self.channels)  # a new object invalidates caches that depend on the channels

    def acquire(
        self,
        state: ChannelState,
        endpoint_key: EndpointKey,
        account_id: int,
        *,
        retry: bool,
        insisting: bool = False,
        preferred_key: KeyState | None = None,
    ) -> ChannelSlot:
        """Take a place on a channel.

        ``insisting`` uses the channel despite its failures, and ``retry`` counts the request as a retry.
        ``preferred_key`` is used if it is available; None stands for any key.
        """
        now_s, rpm = self._clock(), state.channel.rpm
        key = state.keys[0] if len(state.keys) == 1 else state.pick_key(endpoint_key, account_id, now_s, preferred_key)
        if rpm is not None:
            state.tat = spend(state.tat, rpm, 1, now_s)
        state.running += 1
        self.running += 1
        self.changes += 1
        if state.queue is not None:
            state.queue.note_started(endpoint_key[1])
        if retry:
            self.retrying += 1
        elif insisting:
            state.note_insisting(account_id, now_s)
        breaker, key_breaker, as_trial = state.breaker, key.breaker, not insisting
        generation = breaker.start_attempt(now_s) if as_trial and breaker.state != "closed" else breaker.generation
        key_generation = (
            key_breaker.start_attempt(now_s) if as_trial and key_breaker.state != "closed" else key_breaker.generation
        )
        slot = ChannelSlot(state, key, endpoint_key, account_id, retry, generation, key_generation, now_s, insisting)
        if state.circuits:
            slot.started = state.circuits.start_attempt(endpoint_key, account_id, now_s, as_trial=as_trial)
        if key.circuits:
            slot.key_started = key.circuits.start_attempt(endpoint_key, account_id, now_s, as_trial=as_trial)
        return slot

    def enter_queue(self, state: ChannelState, ticket: "Ticket") -> bool:
        """Let a request wait for a place on a channel; return False if its queue is full, or it has none.

        The request may get a place at once.
        """
        if state.queue is None or not state.queue.enter(ticket):
            return False
        self.grant_places(state)
        return True

    def leave_queue(self, state: ChannelState, ticket: "Ticket") -> None:
        """End a request's wait. If it has got a place already, the next request gets that place."""
        if ticket.granted:
            state.running -= 1
        elif state.queue is not None:
            state.queue.leave(ticket)
        self.grant_places(state)

    def grant_places(self, state: ChannelState) -> None:
        """Give a channel's free places to the requests that wait for them."""
        if state.grant_places():
            self.changes += 1

    def dismiss_waiting(self) -> None:
        """Dismiss all requests that wait in a queue, because the gateway shuts down."""
        for state in self.channels.values():
            if state.queue is not None:
                state.queue.dismiss(state.queue.tickets)

    def record_success(self, slot: ChannelSlot) -> None:
        """Record that the provider has begun to answer. The attempt no longer counts against the retry budget."""
        now_s = self._clock()
        if slot.retry:
            slot.retry = False
            self.retrying -= 1
        slot.first_byte_ms = round((now_s - slot.began) * 1000)
        state, key = slot.state, slot.key
        if state.breaker.state == "closed" and not state.circuits:  # the usual case, in fewer calls
            slot.streak = (0, 0)
            state.breaker.record_success(slot.generation, now_s, self.settings.rules)
        else:
            slot.streak = state.circuits.find_streak(slot.endpoint_key, slot.account_id) if state.circuits else (0, 0)
            self._record_healthy(slot, now_s)
        if key.breaker.trips or key.circuits or key.test_error:  # otherwise nothing to record, see ``KeyState``
            self._record_key_healthy(slot, now_s)
        if slot.performance is not None:
            slot.performance.note_answered(now_s - slot.began, now_s, streams=slot.streams)

    def record_failure(self, slot: ChannelSlot, error: ProviderError, prompt: int | None = None) -> None:
        """Record a failure, before or after the first byte. ``prompt`` is a digest of the prompt."""
        self.changes += 1
        self.failed.set()
        if error.failure_scope != "nobody":
            slot.first_byte_ms = FAILED_MS
            if slot.performance is not None:
                slot.performance.note_failed(self._clock())
            self._note_error(slot.state, slot.key if error.failure_scope in {"key", "model"} else None, error)
        if error.answered:
            self._record_healthy(slot, self._clock())
        match error.failure_scope:
            case "model":
                self._limit_key(slot, error)
            case "key":
                self._record_key_refused(slot, error)
            case "channel" if error.phase == "connect":
                self._record_unreachable(slot, error)
            case "channel":
                self._record_failing(slot, error, prompt)
            case "nobody":
                if error.answered:
                    self._record_key_healthy(slot, self._clock())
        slot.state.dismiss_blocked(self._clock())

    def note_probe_answered(self, state: ChannelState, generation: int) -> None:
        """Record a successful probe that began in ``generation`` of the channel's circuit breaker.

        The breaker recovers if it is still open since then. After failed probes the cooldowns of models end, too.
        """
        now_s = state.probed_at = self._clock()
        if state.breaker.state == "open" and state.breaker.generation == generation:
            state.breaker.recover(now_s)
            log.info("channel_recovered", channel=state.channel.name, reason="probe")
        if state.probe_failed:  # if no probe failed, a success says nothing about tripped models
            state.probe_failed = False
            state.circuits.end_cooldowns(now_s)

    def note_probe_failed(self, state: ChannelState, generation: int, error: ProviderError) -> None:
        """Record a failed probe that began in ``generation`` of the channel's circuit breaker.

        If that is still open, a longer cooldown begins once the last one has ended, or if the provider names a pause.
        """
        self.changes += 1
        breaker, now_s = state.breaker, self._clock()
        state.probed_at, state.probe_failed = now_s, True
        self._note_error(state, None, error)
        if (
            breaker.state == "open"
            and breaker.generation == generation
            and (now_s >= breaker.until or error.provider_retry_after_s)
        ):
            breaker.trip(
                now_s,
                self.settings.rules,
                reason=error.message,
                rng=self._rng(),
                provider_retry_after_s=error.provider_retry_after_s or 0.0,
            )

    def tidy(self) -> None:
        for state in self.channels.values():
            state.tidy(self._clock(), self.settings.rules.window_s)

    def _note_error(self, state: ChannelState, key: KeyState | None, error: ProviderError) -> None:
        last_error = LastError(error.message, int(self._unix_clock()))
        state.last_error = last_error
        if key is not None:
            key.last_error = last_error

    def _record_healthy(self, slot: ChannelSlot, now_s: float) -> None:
        state, rules = slot.state, self.settings.rules
        breaker = state.breaker
        former_state = breaker.state
        if former_state == "open" and breaker.generation == slot.generation:  # sent despite the cooldown
            breaker.recover(now_s)
        breaker.record_success(slot.generation, now_s, rules)
        if former_state != breaker.state:
            log.info("channel_recovered", channel=state.channel.name)
        if state.circuits:
            started_attempt = slot.started or _NOTHING_BEGUN
            if state.circuits.record_success(slot.endpoint_key, slot.account_id, started_attempt, now_s, rules):
                log.info("circuit_recovered", channel=state.channel.name, model=slot.endpoint_key[1])

    def _record_key_healthy(self, slot: ChannelSlot, now_s: float) -> None:
        key, rules = slot.key, self.settings.rules
        key.test_error = None
        if key.breaker.trips:
            if key.breaker.generation == slot.key_generation:
                key.breaker.recover(now_s)
            key.breaker.record_success(slot.key_generation, now_s, rules)
        if key.circuits:
            key.circuits.record_success(
                slot.endpoint_key, slot.account_id, slot.key_started or _NOTHING_BEGUN, now_s, rules
            )

    def _record_unreachable(self, slot: ChannelSlot, error: ProviderError) -> None:
        now_s, breaker = self._clock(), slot.state.breaker
        if breaker.record_failure(slot.generation, now_s, self.settings.rules, reason=error.message, rng=self._rng()):
            self._log_tripped(slot, breaker, now_s)

    def _record_failing(self, slot: ChannelSlot, error: ProviderError, prompt: int | None) -> None:
        rules = self.settings.rules
        failure = Failure(
            self._clock(),
            attrs.evolve(rules, max_own_pause_s=max(rules.cooldown_s, PROBE_EVERY_S)),
            error.message,
            self._rng(),
            provider_retry_after_s=error.provider_retry_after_s or 0.0,
            streak=slot.streak,
            prompt=prompt if error.may_be_prompt else None,
        )
        circuits = slot.state.circuits
        tripped_breaker = circuits.record_failure(
            slot.endpoint_key, slot.account_id, slot.started or _NOTHING_BEGUN, failure
        )
        if tripped_breaker is not None:
            self._log_tripped(slot, tripped_breaker, failure.at)

    def _log_tripped(self, slot: ChannelSlot, breaker: CircuitBreaker, now_s: float) -> None:
        state, cooldown_s = slot.state, round(breaker.until - now_s, 1)
        if breaker is state.breaker:
            log.warning("channel_tripped", channel=state.channel.name, error=breaker.reason, cooldown_s=cooldown_s)
            return
        endpoint_key, account_id = next(
            (endpoint_key, account_id)
            for endpoint_key, account_id, tripped_breaker in state.list_tripped()
            if tripped_breaker is breaker
        )
        log.warning(
            "circuit_tripped",
            channel=state.channel.name,
            model=endpoint_key[1] or "all",
            account=account_id,
            error=breaker.reason,
            cooldown_s=cooldown_s,
        )

    def _limit_key(self, slot: ChannelSlot, error: ProviderError) -> None:
        now_s, rules, model = self._clock(), self.settings.rules, slot.endpoint_key[1]
        wait_s = min(error.provider_retry_after_s or rules.cooldown_s, rules.max_cooldown_s)
        slot.key.record_limit(model, slot.account_id, now_s + wait_s, now_s)
        log.warning("key_limited", channel=slot.state.channel.name, model=model, cooldown_s=round(wait_s, 1))

    def _record_key_refused(self, slot: ChannelSlot, error: ProviderError) -> None:
        rules, key = self.settings.rules, slot.key
        rules = attrs.evolve(
            rules,
            failures=1,
            cooldown_s=min(REFUSED_S, rules.cooldown_s),
            max_cooldown_s=min(rules.max_cooldown_s, rules.cooldown_s * KEY_COOLDOWNS),
        )
        now_s = self._clock()
        if key.breaker.state == "half_open" and key.breaker.generation == slot.key_generation:
            key.breaker.trip(now_s, rules, reason=error.message, rng=self._rng())
        failure = Failure(now_s, rules, error.message, self._rng())
        tripped_breaker = key.circuits.record_failure(
            slot.endpoint_key, slot.account_id, slot.key_started or _NOTHING_BEGUN, failure
        )
        if tripped_breaker is None:
            return
        number = next((number for number, key_state in enumerate(slot.state.keys, 1) if key_state is key), 0)
        log.warning(
            "key_tripped",
            channel=slot.state.channel.name,
            model=None if tripped_breaker is key.breaker else slot.endpoint_key[1],
            error=error.message,
            reason=f"key {number} of {len(slot.state.keys)}",
            cooldown_s=round(tripped_breaker.until - now_s, 1),
        )

    def release(self, slot: ChannelSlot) -> None:
        """Release a slot. An attempt without a recorded outcome counts neither as success nor as failure."""
        if slot.ended:
            return
        slot.ended, state = True, slot.state
        if slot.shared is not None:
            slot.shared.release(slot)
        if slot.first_byte_ms is not None:
            state.calls += 1
            state.failures += slot.first_byte_ms == FAILED_MS
            state.recent.add(slot.first_byte_ms)
        state.running -= slot.places
        self.running -= 1
        if state.queue is not None:
            state.queue.note_ended(self._clock() - slot.began)
            self.grant_places(state)
        if slot.retry:
            self.retrying -= 1
        if slot.insisting:
            return
        if state.breaker.state == "half_open":
            state.breaker.abandon(slot.generation)
        if slot.key.breaker.state == "half_open":
            slot.key.breaker.abandon(slot.key_generation)
        if slot.started is not None or slot.key_started is not None:
            _abandon_circuits(slot)


def _abandon_circuits(slot: ChannelSlot) -> None:
    if slot.started is not None:
        slot.state.circuits.abandon(slot.started)
    if slot.key_started is not None:
        slot.key.circuits.abandon(slot.key_started)
