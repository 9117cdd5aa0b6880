"""The live state of one channel and of its keys, and the slot that an attempt holds on them."""

import math
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Literal, Protocol

import attrs

from gateway.deferred import load
from gateway.domain.api_format import Wire
from gateway.domain.channel import Channel
from gateway.domain.circuit_breaker import BreakerSettings, CircuitBreaker, State
from gateway.domain.circuits import ALL_ENDPOINTS, Circuits, EndpointKey, StartedAttempt, Tripped
from gateway.domain.http_request import RequestTemplate
from gateway.domain.rate_limit import (
    RateLimitPermit,
    change_limit,
    compute_reserve,
    compute_smooth_burst,
    compute_wait_s,
    spend,
)
from gateway.domain.statistics import RingBuffer
from gateway.frozen import frozen

if TYPE_CHECKING:  # imported once a channel has a queue, or if the gateway balances by measurement
    from gateway.routing.channel_queue import ChannelQueue
    from gateway.routing.performance import Performance

Obstacle = Literal["cooling_down", "recovering", "full", "rate", "keys", "refused"]
"""Why a channel is unavailable, in this order: it is in its cooldown; a trial request is running; its maximum
concurrency is reached; its requests per minute are used up; the provider rate-limits every key for the model; the
provider has rejected at least one key, and no other key is usable."""
FAILURE_OBSTACLES = frozenset({"cooling_down", "recovering", "refused"})
"""Obstacles caused by failures. A few requests are sent despite them if no other channel serves the model; see
``find_insisting_s``."""
RATE_LIMITS = frozenset({"rate", "keys"})
"""Obstacles of rate limits: of the channel's own, or of its provider's."""

TRIAL_WAIT_S = 1.0
FULL_WAIT_S = 1.0
"""The wait to report if the real one is unknown."""
MAX_OUTPUT_LIMITS = 1_000
"""Maximum number of models per channel whose output limit is kept."""
RECENT_CALLS = 512
"""The number of requests in a channel's statistics."""
FAILED_MS = -1
"""Recorded for a failed attempt instead of its milliseconds to the first byte."""
INSISTING_RPM = 60
"""Requests per minute that one account may send despite failures, if no other channel serves the model."""
ALL_INSISTING_RPM = 600
"""The same limit for all accounts together."""
MAX_INSISTING_ACCOUNTS = 1_000
"""Maximum number of accounts whose rate of such requests is kept."""
WORKING_AFTER_SUCCESS_S = 10.0
"""How long after a success a channel counts as working although one account's requests fail."""
MODELS_TO_TRIP = 3
"""The number of failing models that trips the whole channel."""
WIRES_TO_TRIP = 2
"""The number of API formats with rejections that trips the whole key."""
MAX_RATE_LIMITS = 1_000
"""Maximum number of rate limits kept for a key, and of request templates."""
_INSISTING_RATE = INSISTING_RPM, compute_smooth_burst(INSISTING_RPM)
_ALL_INSISTING_RATE = ALL_INSISTING_RPM, compute_smooth_burst(ALL_INSISTING_RPM)


@frozen
class ProviderRateLimitHit:
    """A provider's rejection for its rate limit of a model.

    Attributes:
        ends_at: when requests may go on, on the loop's clock.
        account_id: the account that hit the limit; None if several did.
    """

    ends_at: float
    account_id: int | None


@frozen
class LastError:
    """The newest failure of a channel or a key. ``at_s`` is in Unix seconds."""

    message: str
    at_s: int


@attrs.define(eq=False)
class KeyState:
    """One API key of a channel.

    A single rejection trips a circuit, so successes need not be recorded while none has tripped.

    Attributes:
        rate_limit_hits: the provider's rate limits in force, by model.
        templates: templates of requests sent with the key, by kind; see ``routing/target.py``.
        measured: what was measured, by the provider's names of models; empty unless something balances by it.
        test_error: why the last test with the key failed; None if it passed or a request has succeeded since.
        test_refused: whether the provider rejected the key in that test.
    """

    key: str = attrs.field(repr=False)
    breaker: CircuitBreaker = attrs.field(factory=CircuitBreaker)
    rate_limit_hits: dict[str, ProviderRateLimitHit] = attrs.field(factory=dict)
    templates: dict[Hashable, RequestTemplate] = attrs.field(factory=dict, repr=False)
    measured: "dict[str, Performance]" = attrs.field(factory=dict, repr=False)
    test_error: str | None = None
    test_refused: bool = False
    last_error: LastError | None = None
    circuits: Circuits = attrs.field(init=False)

    @circuits.default
    def _make_circuits(self) -> Circuits:
        return Circuits(self.breaker, kinds_to_trip=WIRES_TO_TRIP, kind_index=0)

    def store_template(self, kind: Hashable, template: RequestTemplate) -> None:
        if len(self.templates) >= MAX_RATE_LIMITS:
            self.templates.clear()
        self.templates[kind] = template

    def find_wait_s(self, endpoint_key: EndpointKey, account_id: int, now_s: float) -> float | None:
        """Return the seconds until the key may be used, ignoring rate limits. None while a trial runs."""
        wait_s = self.breaker.find_wait_s(now_s)
        if wait_s is None or not self.circuits:
            return wait_s
        circuits_wait_s = self.circuits.find_wait_s(endpoint_key, account_id, now_s)
        return None if circuits_wait_s is None else max(wait_s, circuits_wait_s)

    def find_limit_s(self, model: str, account_id: int, now_s: float) -> float:
        """Return the seconds until the provider's rate limit on ``model`` for an account ends; 0 without a limit."""
        hit = self.rate_limit_hits.get(model)
        if hit is None or hit.account_id not in {None, account_id}:
            return 0.0
        if hit.ends_at <= now_s:
            del self.rate_limit_hits[model]
            return 0.0
        return hit.ends_at - now_s

    def record_limit(self, model: str, account_id: int, until: float, now_s: float) -> None:
        """Record a rate limit until ``until``: for ``account_id``, or if another account has it already, for all."""
        earlier_hit = self.rate_limit_hits.pop(model, None)
        if earlier_hit is not None and earlier_hit.ends_at > now_s:
            until = max(until, earlier_hit.ends_at)
            limited_account_id = account_id if earlier_hit.account_id == account_id else None
        else:
            limited_account_id = account_id
        self.rate_limit_hits[model] = ProviderRateLimitHit(until, limited_account_id)
        if len(self.rate_limit_hits) > MAX_RATE_LIMITS:
            del self.rate_limit_hits[next(iter(self.rate_limit_hits))]


@frozen
class TestResult:
    """The result of a channel's last test.

    ``at_s`` is in Unix seconds. ``took_ms`` is the time until the answer or the failure. ``error`` is None if the test
    passed. ``successes`` is the number of the channel's successful requests until then.
    """

    at_s: int
    took_ms: int
    error: str | None
    successes: int


@attrs.define(eq=False)
class ChannelState:
    """The live state of one channel.

    Attributes:
        offered: the channel exists, is enabled and not held, and still has the same base URL and provider.
        running: the number of places taken by attempts, and by requests of the queue that are about to use them.
        queue: the requests that wait for a place; None: a full channel is skipped.
        tat: the state of its requests-per-minute limit; see ``domain/rate_limit.py``.
        calls: the number of successes and failures; client errors and cancelled requests do not count.
        recent: of the last ``RECENT_CALLS``, the milliseconds to the first byte (to the end if not streamed), or
            ``FAILED_MS``.
        missing: API formats whose endpoint the server turned out to lack.
        output_limits: maximum output tokens by model, as named by the provider when it refused a higher limit.
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
    test: TestResult | None = None
    last_error: LastError | None = None
    missing: frozenset[Wire] = frozenset()
    output_limits: dict[str, int] = attrs.field(factory=dict)
    queue: "ChannelQueue | None" = None
    circuits: Circuits = attrs.field(init=False)
    _insisting: float = attrs.field(default=0.0, init=False)
    _insisting_by_account: dict[int, float] = attrs.field(factory=dict, init=False)

    @circuits.default
    def _make_circuits(self) -> Circuits:
        return Circuits(self.breaker, kinds_to_trip=MODELS_TO_TRIP, kind_index=1)

    def replace(self, channel: Channel, now_s: float) -> None:
        """Replace the channel's configuration. Keys keep their state unless they or the headers have changed.

        What the server's errors have shown (``missing``, ``output_limits``) is forgotten.
        """
        before, after = self.channel.rpm, channel.rpm
        if before is not None and after is not None:
            self.tat = change_limit(self.tat, before, after, now_s)
        self.keys = list_keys(channel, self.keys if channel.headers == self.channel.headers else ())
        self.channel = channel
        self.missing = frozenset()
        self.output_limits = {}
        self.turn = 0

    def update_queue(self, clock: Callable[[], float]) -> None:
        """Make, change or remove the queue as the channel's settings say. ``clock`` is monotonic."""
        settings, places = self.channel.queue, self.channel.max_concurrency
        if settings is None or places is None:
            self.queue = None
        elif self.queue is None:
            self.queue = load("routing.channel_queue:ChannelQueue")(settings, places, clock)
        else:
            self.queue.settings, self.queue.places = settings, places

    def grant_places(self) -> bool:
        """Give free places to requests of the queue, and return whether any got one."""
        queue, before = self.queue, self.running
        while queue is not None and (ticket := queue.take_next(self.running)) is not None:
            self.running += 1
            ticket.wake()
        return self.running != before

    def dismiss_blocked(self, now_s: float) -> None:
        """Dismiss the waiting requests that lack more than a place: a circuit has opened, or keys are unusable."""
        if self.queue is not None:
            blocked_tickets = [
                ticket
                for ticket in self.queue.tickets
                if self.find_obstacle_beyond_places(ticket.endpoint_key, ticket.account, now_s) is not None
            ]
            self.queue.dismiss(blocked_tickets)

    def learn_limit(self, model: str, limit: int) -> None:
        """Record a model's maximum of output tokens. If needed, drop the model whose limit was recorded longest ago."""
        self.output_limits.pop(model, None)
        if len(self.output_limits) >= MAX_OUTPUT_LIMITS:
            del self.output_limits[next(iter(self.output_limits))]
        self.output_limits[model] = limit

    def is_free(self, endpoint_key: EndpointKey) -> bool:
        """Return True if the channel is clearly available; a quick check. If False, ``find_obstacle`` decides."""
        key, max_concurrency = self.keys[self.turn], self.channel.max_concurrency
        return (
            self.offered
            and self.breaker.state == "closed"
            and (not self.circuits or not self.circuits.has_breaker(endpoint_key))
            and (max_concurrency is None or self.running < max_concurrency)
            and self.queue is None
            and self.channel.rpm is None
            and key.breaker.state == "closed"
            and (not key.circuits or not key.circuits.has_breaker(endpoint_key))
            and endpoint_key[1] not in key.rate_limit_hits
        )

    @property
    def has_spare(self) -> bool:
        """Whether a low-priority request may take a place: the last places are reserved for others."""
        max_concurrency = self.channel.max_concurrency
        return max_concurrency is None or self.running < max_concurrency - compute_reserve(max_concurrency)

    def may_start_batch(self, model: str) -> bool:
        """Return whether a low-priority request need not wait in the queue; True without a queue."""
        return self.queue is None or self.queue.may_start(model, self.running, is_batch=True)

    def find_obstacle(self, endpoint_key: EndpointKey, account_id: int, now_s: float) -> tuple[Obstacle, float] | None:
        """Return why the channel is unavailable, and for how many seconds; None if it is available."""
        for wait_s in (self.breaker.find_wait_s(now_s), self.circuits.find_wait_s(endpoint_key, account_id, now_s)):
            if wait_s is None:
                return "recovering", TRIAL_WAIT_S
            if wait_s > 0:
                return "cooling_down", wait_s
        return self._find_limit(endpoint_key, now_s) or self._find_key_trouble(endpoint_key, account_id, now_s)

    def find_obstacle_beyond_places(
        self, endpoint_key: EndpointKey, account_id: int, now_s: float
    ) -> tuple[Obstacle, float] | None:
        """Return an obstacle other than a missing place, and its seconds; None if the channel lacks at most a place."""
        obstacle = self.find_obstacle(endpoint_key, account_id, now_s)
        if obstacle is None or obstacle[0] != "full":
            return obstacle
        return self._find_rate_limit(now_s) or self._find_key_trouble(endpoint_key, account_id, now_s)

    def _find_limit(self, endpoint_key: EndpointKey, now_s: float) -> tuple[Obstacle, float] | None:
        max_concurrency, queue = self.channel.max_concurrency, self.queue
        if queue is not None and not queue.may_start(endpoint_key[1], self.running):
            return "full", queue.estimate_wait_s()
        if max_concurrency is not None and self.running >= max_concurrency:
            return "full", FULL_WAIT_S
        return None if self.channel.rpm is None else self._find_rate_limit(now_s)

    def _find_rate_limit(self, now_s: float) -> tuple[Obstacle, float] | None:
        rpm = self.channel.rpm
        if rpm is not None and (wait_s := compute_wait_s(self.tat, (rpm, compute_smooth_burst(rpm)), 1, now_s)):
            return "rate", wait_s
        return None

    def _find_key_trouble(
        self, endpoint_key: EndpointKey, account_id: int, now_s: float
    ) -> tuple[Obstacle, float] | None:
        obstacle: Obstacle = "keys"
        min_wait_s = math.inf
        for key in self.keys:
            limit_s = key.find_limit_s(endpoint_key[1], account_id, now_s)
            wait_s = key.find_wait_s(endpoint_key, account_id, now_s)
            if not limit_s:
                if wait_s == 0.0:
                    return None
                obstacle = "refused"
            min_wait_s = min(min_wait_s, max(limit_s, TRIAL_WAIT_S if wait_s is None else wait_s))
        return obstacle, min_wait_s

    def find_share(self, endpoint_key: EndpointKey, account_id: int, now_s: float, rules: BreakerSettings) -> float:
        """Return the share of its usual requests that the channel should get while it warms up; 1 if it does not."""
        share = self.breaker.share(now_s, rules)
        return min(share, self.circuits.find_share(endpoint_key, account_id, now_s, rules)) if self.circuits else share

    def find_affected_account(self, endpoint_key: EndpointKey) -> int:
        """Return an account for which this model is rate limited, or tripped since the last success; 0 without one."""
        for circuits in (self.circuits, *(key.circuits for key in self.keys)):
            tripped = [] if circuits.no_failure_since_success else circuits.list_tripped()
            for tripped_endpoint, account_id, _ in tripped:
                if account_id is not None and tripped_endpoint in {endpoint_key, ALL_ENDPOINTS}:
                    return account_id
        hits = (key.rate_limit_hits.get(endpoint_key[1]) for key in self.keys)
        return next((hit.account_id or 0 for hit in hits if hit is not None), 0)

    def list_failing(self, endpoint_key: EndpointKey, account_id: int) -> list[CircuitBreaker]:
        """Return the channel's own circuit breakers that are not "closed" for this model."""
        breakers = [self.breaker, *self.circuits.list_breakers(endpoint_key, account_id)]
        return [breaker for breaker in breakers if breaker.state != "closed"]

    def find_insisting_s(self, endpoint_key: EndpointKey, account_id: int, now_s: float) -> float | None:
        """Return the seconds until a request may be sent despite failures; None if it may not."""
        if not self.offered or self._find_limit(endpoint_key, now_s) is not None:
            return None
        if all(key.find_limit_s(endpoint_key[1], account_id, now_s) for key in self.keys):
            return None
        own_s = compute_wait_s(self._insisting_by_account.get(account_id, 0.0), _INSISTING_RATE, 1, now_s)
        return max(own_s, compute_wait_s(self._insisting, _ALL_INSISTING_RATE, 1, now_s))

    def note_insisting(self, account_id: int, now_s: float) -> None:
        self._insisting = spend(self._insisting, ALL_INSISTING_RPM, 1, now_s)
        self._insisting_by_account[account_id] = spend(
            self._insisting_by_account.pop(account_id, 0.0), INSISTING_RPM, 1, now_s
        )
        if len(self._insisting_by_account) > MAX_INSISTING_ACCOUNTS:
            del self._insisting_by_account[next(iter(self._insisting_by_account))]

    def pick_key(
        self, endpoint_key: EndpointKey, account_id: int, now_s: float, preferred_key: KeyState | None = None
    ) -> KeyState:
        """Return ``preferred_key`` if available, else the next available key, or the one with the shortest wait.

        Keys take turns: the next search begins after the key that this one has found.
        """
        if (
            preferred_key is not None
            and preferred_key in self.keys
            and preferred_key.find_wait_s(endpoint_key, account_id, now_s) == 0.0
        ):
            is_free = not preferred_key.find_limit_s(endpoint_key[1], account_id, now_s)
            if is_free:
                return preferred_key
        count, turn = len(self.keys), self.turn
        min_wait_s, best_index = math.inf, turn
        for step in range(count):
            number = (turn + step) % count
            key = self.keys[number]
            wait_s = key.find_wait_s(endpoint_key, account_id, now_s)
            wait_s = max(
                TRIAL_WAIT_S if wait_s is None else wait_s, key.find_limit_s(endpoint_key[1], account_id, now_s)
            )
            if wait_s < min_wait_s:
                min_wait_s, best_index = wait_s, number
            if not wait_s:
                break
        self.turn = (best_index + 1) % count
        return self.keys[best_index]

    def list_tripped(self) -> list[Tripped]:
        return self.circuits.list_tripped() if self.circuits else []

    @property
    def state(self) -> State:
        """The state of the channel as a whole.

        If its own breaker is closed, the breaker of the whole channel for one account decides, else those of its
        models, if it names each model and all have tripped: "open" if any is open. One account's breaker counts only
        if its last failure came more than ``WORKING_AFTER_SUCCESS_S`` after the channel's last success.
        """
        if self.breaker.state != "closed" or not self.circuits:
            return self.breaker.state
        working_until_s = self.circuits.answered_at + WORKING_AFTER_SUCCESS_S
        tripped_states = {
            endpoint_key[1]: breaker.state
            for endpoint_key, account_id, breaker in self.list_tripped()
            if account_id is None or self.circuits[endpoint_key].failed_at > working_until_s
        }
        if ALL_ENDPOINTS[1] in tripped_states:
            return tripped_states[ALL_ENDPOINTS[1]]
        names = {self.channel.upstream_model(model) for model in self.channel.models}
        if not names or self.channel.sync or self.channel.patterns or not names <= tripped_states.keys():
            return "closed"
        return "open" if "open" in tripped_states.values() else "half_open"

    def may_be_healthy(self, now_s: float) -> bool:
        """Return whether the channel's circuit breakers allow any request."""
        if self.breaker.state != "closed":
            return not self.breaker.find_wait_s(now_s)
        return self.state != "open" or any(breaker.until <= now_s for *_, breaker in self.list_tripped())

    def is_probe_due(self, now_s: float, interval_s: float) -> bool:
        """Return whether an open channel is to be probed, after ``interval_s`` and the provider's ``Retry-After``."""
        if self.breaker.state == "open":
            tripped_breakers = [self.breaker]
        else:
            tripped_breakers = [breaker for *_, breaker in self.list_tripped() if breaker.state == "open"]
        if not tripped_breakers or now_s < self.probed_at + interval_s:
            return False
        return any(
            now_s >= tripped_breaker.tripped_at + interval_s and now_s >= tripped_breaker.provider_pause_until
            for tripped_breaker in tripped_breakers
        )

    def tidy(self, now_s: float, keep_s: float) -> None:
        for circuits in (self.circuits, *(key.circuits for key in self.keys)):
            if circuits:
                circuits.tidy(now_s, keep_s)


class SharedLimits(Protocol):
    """Channel limits shared by several gateways; see ``cluster/limits/channels.py``."""

    async def widen(self, slot: "ChannelSlot", parts: int, places: int) -> int:
        """Count ``parts`` more requests of an attempt, and take up to ``places`` places. Return the number taken."""
        ...

    def release(self, slot: "ChannelSlot") -> None: ...


@attrs.define(eq=False)
class ChannelSlot:
    """An attempt's use of a channel and a key. Release it with ``LoadBalancer.release``.

    Attributes:
        generation: the generation of the channel's breaker at the start; ``key_generation`` that of the key's.
        insisting: the channel is used despite its failures, and the attempt is no trial.
        started: the channel's circuits at the start; ``key_started`` those of the key.
        streak: the failures in a row before the provider answered, of all accounts and of this one; None if it has not
            answered.
        places: the number of places taken of the channel's concurrency.
        first_byte_ms: the value for the statistics; None: the attempt does not count.
        shared: the limits shared with other gateways, if any; ``permits`` are the slot's permits there.
        performance: the measurements to which the attempt is added; None: it is not measured.
        streams: whether the answer is a stream; set only with ``performance``.
    """

    state: ChannelState
    key: KeyState
    endpoint_key: EndpointKey
    account_id: int
    retry: bool
    generation: int
    key_generation: int
    began: float = 0.0
    insisting: bool = False
    started: StartedAttempt | None = None
    key_started: StartedAttempt | None = None
    streak: tuple[int, int] | None = None
    places: int = 1
    ended: bool = False
    first_byte_ms: int | None = None
    shared: "SharedLimits | None" = None
    permits: tuple[RateLimitPermit, ...] = ()
    performance: "Performance | None" = None
    streams: bool = False

    async def widen(self, requested_places: int) -> int:
        """Take up to ``requested_places`` places for concurrent parts; return their number. Each counts in ``rpm``."""
        state, rpm, max_concurrency = self.state, self.state.channel.rpm, self.state.channel.max_concurrency
        if rpm is not None:
            state.tat = spend(state.tat, rpm, requested_places, state.tat)
        local_places = (
            requested_places
            if max_concurrency is None
            else min(requested_places, max(0, max_concurrency - state.running))
        )
        state.running += local_places
        self.places += local_places
        if self.shared is not None:
            granted_places = await self.shared.widen(self, requested_places, local_places)
            state.running -= local_places - granted_places
            self.places -= local_places - granted_places
            state.grant_places()
            return granted_places
        return local_places


def list_keys(channel: Channel, before: tuple[KeyState, ...]) -> tuple[KeyState, ...]:
    """Return the states of a channel's usable keys, or of one empty key. Keys in ``before`` keep their state."""
    key_states = {state.key: state for state in before}
    return tuple(key_states.get(key) or KeyState(key) for key in channel.usable_keys or ("",))
