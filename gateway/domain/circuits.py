"""Circuit breakers of one channel, or of one of its keys: one per kind of request, and one per account within it.

A kind of request (``EndpointKey``) is an API format and the provider's name of a model. A failure counts against the
account that sent the request. Consecutive failures of one account count only once for all accounts. So if an account's
prompts make a model fail, only that account loses the model. A circuit trips for all accounts in two cases: if
``BreakerSettings.failures`` accounts in a row have failed (but at least ``MIN_ACCOUNTS_TO_TRIP``), or if the circuit is
open for ``MIN_ACCOUNTS_TO_TRIP`` accounts at the same time. After its cooldown, one failed trial opens it again.

If a provider fails at several kinds of request without a success in between, the whole channel trips: first for the
account, then for all. A circuit exists only while it has state: an empty mapping means that nothing has failed
recently.
"""

import math

import attrs

from gateway.domain.circuit_breaker import BreakerSettings, CircuitBreaker
from gateway.frozen import frozen

EndpointKey = tuple[str, str]
"""An API format, and the provider's name of a model."""
Tripped = tuple[EndpointKey, int | None, CircuitBreaker]
"""A breaker that is not "closed": its kind of request, its account (None: all accounts), and the breaker."""
ALL_ENDPOINTS: EndpointKey = ("", "")
"""The key under which the circuit of the whole channel is stored."""
MIN_ACCOUNTS_TO_TRIP = 2
"""A circuit that is open for this many accounts trips for all."""
SAME_PROMPTS_PER_FAILURE = 5
"""This many consecutive failures of the same prompt count as one: clients retry, and the prompt may be the cause."""
MAX_CIRCUITS = 256
"""The maximum number of circuits per channel. A channel that serves any model name would otherwise grow endlessly."""
MAX_ACCOUNTS = 64
"""The maximum number of accounts per circuit."""
FORGET_S = 600.0
"""How long an unused circuit is kept after its cooldown."""
_NEVER = -math.inf


@attrs.define(eq=False)
class Circuit:
    """The breakers of one kind of request.

    Attributes:
        last_trial_account: the account whose request failed as the last trial of ``shared``.
        prompts: for each account, the digest of its last failed prompt, and how often that has failed again.
    """

    shared: CircuitBreaker
    accounts: dict[int, CircuitBreaker] = attrs.field(factory=dict)
    failed_at: float = _NEVER
    last_trial_account: int | None = None
    prompts: dict[int, tuple[int, int]] = attrs.field(factory=dict)

    def get_own(self, account_id: int) -> CircuitBreaker:
        """Return the breaker of an account, a new one if needed. Beyond ``MAX_ACCOUNTS``, an old breaker is dropped."""
        own_breaker = self.accounts.get(account_id)
        if own_breaker is None:
            if len(self.accounts) >= MAX_ACCOUNTS:
                dropped_id = next(
                    (account_id for account_id, breaker in self.accounts.items() if breaker.state == "closed"), None
                )
                dropped_id = next(iter(self.accounts)) if dropped_id is None else dropped_id
                del self.accounts[dropped_id]
                self.prompts.pop(dropped_id, None)
            own_breaker = self.accounts[account_id] = CircuitBreaker()
        return own_breaker

    def record_prompt(self, account_id: int, prompt: int | None) -> bool:
        """Record the prompt of a failed request.

        Return whether to ignore the failure as a repetition. Every ``SAME_PROMPTS_PER_FAILURE``-th repetition counts.
        """
        earlier_prompt, repetitions = self.prompts.pop(account_id, (None, 0))
        if prompt is None:
            return False
        repetitions = repetitions + 1 if prompt == earlier_prompt else 0
        self.prompts[account_id] = prompt, repetitions
        return repetitions % SAME_PROMPTS_PER_FAILURE != 0

    def count_cooling_down(self, now_s: float) -> int:
        """Return the number of accounts whose breaker is in its cooldown."""
        return sum(breaker.state == "open" and breaker.until > now_s for breaker in self.accounts.values())

    def is_idle(self, now_s: float, keep_s: float) -> bool:
        """Return whether the circuit may be dropped: its failures and cooldowns are long past."""
        end_times = [breaker.until for breaker in (self.shared, *self.accounts.values()) if breaker.state != "closed"]
        if end_times:
            return now_s > max(end_times) + FORGET_S and now_s > self.failed_at + FORGET_S
        return now_s > self.failed_at + keep_s


@attrs.define(eq=False)
class StartedAttempt:
    """The breakers that a request passed, each with its generation at the start of the request."""

    generations: list[tuple[CircuitBreaker, int]] = attrs.field(factory=list)

    def find_generation(self, breaker: CircuitBreaker) -> int:
        """Return the breaker's generation when the request started; 0 if the breaker did not exist yet."""
        return next((generation for known_breaker, generation in self.generations if known_breaker is breaker), 0)


@frozen
class Failure:
    """A failed request.

    Attributes:
        provider_retry_after_s: the wait that the provider asks for; above 0, a single failure trips the breaker.
        streak: the result of ``Circuits.find_streak`` when the same request was recorded as a success, if it was.
        prompt: a digest of the prompt if the prompt may be the cause; see ``SAME_PROMPTS_PER_FAILURE``.
    """

    at: float
    rules: BreakerSettings
    reason: str
    rng: float
    provider_retry_after_s: float = 0.0
    streak: tuple[int, int] | None = None
    prompt: int | None = None

    def trip(self, breaker: CircuitBreaker) -> None:
        breaker.trip(
            self.at, self.rules, reason=self.reason, rng=self.rng, provider_retry_after_s=self.provider_retry_after_s
        )

    def count_for_account(self, breaker: CircuitBreaker) -> bool:
        """Count the failure against its account. Return whether it trips the account's breaker."""
        if self.provider_retry_after_s:
            self.trip(breaker)
            return True
        streak = self.streak[1] if self.streak else None
        rules, reason, rng = self.rules, self.reason, self.rng
        return breaker.record_failure(breaker.generation, self.at, rules, reason=reason, rng=rng, streak=streak)

    def count_for_all(self, breaker: CircuitBreaker) -> bool:
        """Count an account's first failure in a row for all accounts. Return whether it trips the shared breaker."""
        rules = attrs.evolve(self.rules, failures=max(MIN_ACCOUNTS_TO_TRIP, self.rules.failures), ratio=math.inf)
        streak = self.streak[0] if self.streak else None
        trips, breaker.trips = breaker.trips, 0  # else one failure would be enough right after a cooldown
        reason, rng = self.reason, self.rng
        tripped = breaker.record_failure(breaker.generation, self.at, rules, reason=reason, rng=rng, streak=streak)
        breaker.trips += trips
        return tripped


class Circuits(dict[EndpointKey, Circuit]):
    """The circuits of a channel or key, by kind of request. Only circuits with state exist.

    Args:
        breaker: the breaker of the whole channel or key, for all accounts.
        kinds_to_trip: the number of kinds of request that must fail before the whole channel or key trips.
        kind_index: the part of ``EndpointKey`` that distinguishes these kinds: 0 for the API format, 1 for the model.
    """

    def __init__(self, breaker: CircuitBreaker, *, kinds_to_trip: int, kind_index: int) -> None:
        super().__init__()
        self.whole = breaker
        self.answered_at = _NEVER
        self._kinds_to_trip = kinds_to_trip
        self._kind_index = kind_index

    def has_breaker(self, endpoint_key: EndpointKey) -> bool:
        """Return whether any breaker may delay a request of this kind."""
        return endpoint_key in self or ALL_ENDPOINTS in self

    def list_breakers(self, endpoint_key: EndpointKey, account_id: int) -> list[CircuitBreaker]:
        """Return the breakers that a request of ``account_id`` must pass, without the shared breaker of the channel."""
        breakers = []
        if (circuit := self.get(endpoint_key)) is not None:
            breakers.append(circuit.shared)
            if (own_breaker := circuit.accounts.get(account_id)) is not None:
                breakers.append(own_breaker)
        if (channel_circuit := self.get(ALL_ENDPOINTS)) is not None and (
            own_breaker := channel_circuit.accounts.get(account_id)
        ) is not None:
            breakers.append(own_breaker)
        return breakers

    def find_wait_s(self, endpoint_key: EndpointKey, account_id: int, now_s: float) -> float | None:
        """Return the seconds until a request may pass: 0 for now, None while a trial runs."""
        if not self.has_breaker(endpoint_key):
            return 0.0
        max_pause_s = 0.0
        for breaker in self.list_breakers(endpoint_key, account_id):
            wait_s = breaker.find_wait_s(now_s)
            if wait_s is None:
                return None
            max_pause_s = max(max_pause_s, wait_s)
        return max_pause_s

    def find_share(self, endpoint_key: EndpointKey, account_id: int, now_s: float, rules: BreakerSettings) -> float:
        """Return the share of the usual requests of this kind and account to send: 1, or less after a recovery."""
        return min(
            (breaker.share(now_s, rules) for breaker in self.list_breakers(endpoint_key, account_id)), default=1.0
        )

    def start_attempt(
        self, endpoint_key: EndpointKey, account_id: int, now_s: float, *, as_trial: bool
    ) -> StartedAttempt:
        """Start a request. With ``as_trial`` False, the request ignores open breakers and does not count as a trial."""
        breakers = self.list_breakers(endpoint_key, account_id)
        return StartedAttempt(
            [
                (
                    breaker,
                    breaker.start_attempt(now_s) if as_trial and breaker.state != "closed" else breaker.generation,
                )
                for breaker in breakers
            ]
        )

    def find_streak(self, endpoint_key: EndpointKey, account_id: int) -> tuple[int, int]:
        """Return the number of failures in a row: of all accounts, and of ``account_id``."""
        circuit = self.get(endpoint_key)
        if circuit is None:
            return 0, 0
        own_breaker = circuit.accounts.get(account_id)
        return circuit.shared.failures, own_breaker.failures if own_breaker else 0

    def record_success(
        self, endpoint_key: EndpointKey, account_id: int, attempt: StartedAttempt, now_s: float, rules: BreakerSettings
    ) -> bool:
        self.answered_at = now_s
        has_ended = False
        for breaker in self.list_breakers(endpoint_key, account_id):
            generation = attempt.find_generation(breaker)
            if generation != breaker.generation:
                continue
            has_ended |= breaker.state != "closed"
            breaker.recover(now_s)  # only matters if the request was sent despite a cooldown
            breaker.record_success(generation, now_s, rules)
        if (circuit := self.get(endpoint_key)) is not None:
            circuit.prompts.pop(account_id, None)
        return has_ended

    def record_failure(
        self, endpoint_key: EndpointKey, account_id: int, attempt: StartedAttempt, failure: Failure
    ) -> CircuitBreaker | None:
        """Record a failure. Return the breaker with the widest scope that it trips, or None."""
        circuit = self._get_circuit(endpoint_key)
        own_breaker = circuit.get_own(account_id)
        if attempt.find_generation(own_breaker) != own_breaker.generation or own_breaker.state == "open":
            return None
        circuit.failed_at = failure.at
        if circuit.record_prompt(account_id, failure.prompt) and own_breaker.state == "closed":
            return None
        is_first_failure = not (own_breaker.failures or own_breaker.trips or (failure.streak and failure.streak[1]))
        tripped_breaker = own_breaker if failure.count_for_account(own_breaker) else None
        if self._count_for_all(circuit, account_id, attempt, failure, is_first_failure=is_first_failure):
            tripped_breaker = circuit.shared
        if tripped_breaker is None:
            return None
        return self._trip_whole(account_id, failure) or tripped_breaker

    def _count_for_all(
        self, circuit: Circuit, account_id: int, attempt: StartedAttempt, failure: Failure, *, is_first_failure: bool
    ) -> bool:
        shared_breaker = circuit.shared
        if attempt.find_generation(shared_breaker) != shared_breaker.generation or shared_breaker.state == "open":
            return False
        if shared_breaker.state == "half_open":
            if (
                circuit.last_trial_account == account_id
            ):  # an account's repeated failed trials must not lengthen the wait for all
                shared_breaker.trips = max(0, shared_breaker.trips - 1)
            circuit.last_trial_account = account_id
            failure.trip(shared_breaker)
            return True
        if circuit.count_cooling_down(failure.at) >= MIN_ACCOUNTS_TO_TRIP:
            failure.trip(shared_breaker)
            return True
        return is_first_failure and failure.count_for_all(shared_breaker)

    def _trip_whole(self, account_id: int, failure: Failure) -> CircuitBreaker | None:
        """Trip the whole channel or key for an account with failures of several kinds of request and no success since.

        If it is now open for ``MIN_ACCOUNTS_TO_TRIP`` accounts, trip it for all. Return the breaker with the widest
        scope that has tripped; None if none has.
        """
        kinds = set()
        for endpoint_key, circuit in self.items():
            known_breaker = circuit.accounts.get(account_id)
            if (
                endpoint_key != ALL_ENDPOINTS
                and circuit.failed_at > self.answered_at
                and known_breaker is not None
                and known_breaker.state != "closed"
            ):
                kinds.add(endpoint_key[self._kind_index])
        if len(kinds) < self._kinds_to_trip:
            return None
        circuit = self._get_circuit(ALL_ENDPOINTS)
        own_breaker = circuit.get_own(account_id)
        if own_breaker.state == "open":
            return None
        circuit.failed_at = failure.at
        failure.trip(own_breaker)
        if circuit.count_cooling_down(failure.at) < MIN_ACCOUNTS_TO_TRIP or self.whole.state == "open":
            return own_breaker
        failure.trip(self.whole)
        return self.whole

    def abandon(self, attempt: StartedAttempt) -> None:
        """End a request without a result."""
        for breaker, generation in attempt.generations:
            breaker.abandon(generation)

    def end_cooldowns(self, now_s: float) -> None:
        """End the cooldowns of these circuits: the next request of each is a trial."""
        for circuit in self.values():
            for breaker in (circuit.shared, *circuit.accounts.values()):
                if breaker.state == "open":
                    breaker.until = min(breaker.until, now_s)

    @property
    def no_failure_since_success(self) -> bool:
        """Whether no failure has been recorded since the last success; True also if nothing was recorded at all."""
        return self.answered_at >= max((circuit.failed_at for circuit in self.values()), default=_NEVER)

    def list_tripped(self) -> list[Tripped]:
        """Return the breakers that are open or half open, without the shared breaker of the channel."""
        entries: list[Tripped] = []
        for endpoint_key, circuit in self.items():
            if endpoint_key != ALL_ENDPOINTS and circuit.shared.state != "closed":
                entries.append((endpoint_key, None, circuit.shared))
            entries += [
                (endpoint_key, account_id, breaker)
                for account_id, breaker in circuit.accounts.items()
                if breaker.state != "closed"
            ]
        return entries

    def tidy(self, now_s: float, keep_s: float) -> None:
        """Drop idle circuits. ``keep_s`` is how long a failure is remembered that tripped no breaker."""
        for endpoint_key in [endpoint_key for endpoint_key, circuit in self.items() if circuit.is_idle(now_s, keep_s)]:
            del self[endpoint_key]

    def _get_circuit(self, endpoint_key: EndpointKey) -> Circuit:
        circuit = self.get(endpoint_key)
        if circuit is None:
            if len(self) >= MAX_CIRCUITS:
                healthy_keys = (key for key, breakers in self.items() if not _is_tripped(breakers))
                del self[next(healthy_keys, None) or next(iter(self))]
            circuit = self[endpoint_key] = Circuit(self.whole if endpoint_key == ALL_ENDPOINTS else CircuitBreaker())
        return circuit


def _is_tripped(circuit: Circuit) -> bool:
    return any(breaker.state != "closed" for breaker in (circuit.shared, *circuit.accounts.values()))
