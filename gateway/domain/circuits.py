"""Circuit breakers of one channel, or of one of its keys: one per kind of request, and one per account within it.

A kind of request (``EndpointKey``) is an API format and the provider's name of a model. A failure counts against the
account that sent the request. Consecutive failures of one account count only once for all accounts. So if an account's
prompts make a model fail, only that account loses the model. A circuit trips for all accounts in two cases: as many
accounts in a row have failed as failures in a row trip it for one account (at least ``ENOUGH_ACCOUNTS``), or it is open
for ``ENOUGH_ACCOUNTS`` accounts immediately.

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
WHOLE: EndpointKey = ("", "")
"""The key under which the circuit of the whole channel is stored."""
ENOUGH_ACCOUNTS = 2
"""A circuit that is open for this many accounts trips for all."""
SAME_PROMPTS = 5
"""This many consecutive failures of the same prompt count as one: clients retry, and the prompt may be the cause."""
MOST_PLACES = 256
"""The maximum number of circuits per channel. A channel that serves any model name would otherwise grow endlessly."""
MOST_ACCOUNTS = 64
"""The maximum number of accounts per circuit."""
FORGET_S = 600.0
"""How long an unused circuit is kept after its cooldown."""
_NEVER = -math.inf


@attrs.define(eq=False)
class Circuit:
    """The breakers of one kind of request.

    Attributes:
        tried_by: the account whose request failed as the last trial of ``shared``.
        prompts: for each account, the digest of its last failed prompt, and how often that has failed again.
    """

    shared: CircuitBreaker
    accounts: dict[int, CircuitBreaker] = attrs.field(factory=dict)
    failed_at: float = _NEVER
    tried_by: int | None = None
    prompts: dict[int, tuple[int, int]] = attrs.field(factory=dict)

    def get_own(self, account: int) -> CircuitBreaker:
        """Return the breaker of ``account``. Create it if needed; with ``MOST_ACCOUNTS``, an old breaker is dropped."""
        own = self.accounts.get(account)
        if own is None:
            if len(self.accounts) >= MOST_ACCOUNTS:
                dropped = next((one for one, known in self.accounts.items() if known.state == "closed"), None)
                dropped = next(iter(self.accounts)) if dropped is None else dropped
                del self.accounts[dropped]
                self.prompts.pop(dropped, None)
            own = self.accounts[account] = CircuitBreaker()
        return own

    def is_repeated(self, account: int, prompt: int | None) -> bool:
        """Record a failed prompt. Return whether to ignore it as a repetition; each ``SAME_PROMPTS``-th one counts."""
        before, times = self.prompts.pop(account, (None, 0))
        if prompt is None:
            return False
        times = times + 1 if prompt == before else 0
        self.prompts[account] = prompt, times
        return times % SAME_PROMPTS != 0

    def count_cooling_down(self, now: float) -> int:
        """Return the number of accounts whose breaker is in its cooldown."""
        return sum(own.state == "open" and own.until > now for own in self.accounts.values())

    def is_idle(self, now: float, keep_s: float) -> bool:
        """Return whether the circuit may be dropped: its failures and cooldowns are long past."""
        ends = [breaker.until for breaker in (self.shared, *self.accounts.values()) if breaker.state != "closed"]
        if ends:
            return now > max(ends) + FORGET_S and now > self.failed_at + FORGET_S
        return now > self.failed_at + keep_s


@attrs.define(eq=False)
class StartedAttempt:
    """The breakers that a request passed, each with its generation at the start of the request."""

    generations: list[tuple[CircuitBreaker, int]] = attrs.field(factory=list)

    def find_generation(self, breaker: CircuitBreaker) -> int:
        """Return the breaker's generation when the request started; 0 if the breaker did not exist yet."""
        return next((generation for known, generation in self.generations if known is breaker), 0)


@frozen
class Failure:
    """A failed request.

    Attributes:
        provider_retry_after_s: the wait that the provider asks for; above 0, a single failure trips the breaker.
        streak: the result of ``Circuits.find_streak`` when the same request was recorded as a success, if it was.
        prompt: a digest of the prompt if the prompt may be the cause; see ``SAME_PROMPTS``.
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
        rules = attrs.evolve(self.rules, failures=max(ENOUGH_ACCOUNTS, self.rules.failures), ratio=math.inf)
        streak = self.streak[0] if self.streak else None
        trips, breaker.trips = breaker.trips, 0  # else one failure would be enough right after a cooldown
        reason, rng = self.reason, self.rng
        tripped = breaker.record_failure(breaker.generation, self.at, rules, reason=reason, rng=rng, streak=streak)
        breaker.trips += trips
        return tripped


class Circuits(dict[EndpointKey, Circuit]):
    """The circuits of a channel or key, by kind of request. Only circuits with state exist.

    Args:
        whole: the breaker of the whole channel or key, for all accounts.
        several: the number of kinds of request that must fail before the whole channel or key trips.
        part: the part of ``EndpointKey`` that distinguishes these kinds: 0 for the API format, 1 for the model.
    """

    def __init__(self, whole: CircuitBreaker, *, several: int, part: int) -> None:
        super().__init__()
        self.whole = whole
        self.answered_at = _NEVER
        self._several = several
        self._part = part

    def has_breaker(self, endpoint_key: EndpointKey) -> bool:
        """Return whether any breaker may delay such a request."""
        return endpoint_key in self or WHOLE in self

    def list_breakers(self, endpoint_key: EndpointKey, account: int) -> list[CircuitBreaker]:
        """Return the breakers that a request of ``account`` must pass, without the shared breaker of the channel."""
        found = []
        if (circuit := self.get(endpoint_key)) is not None:
            found.append(circuit.shared)
            if (own := circuit.accounts.get(account)) is not None:
                found.append(own)
        if (whole := self.get(WHOLE)) is not None and (own := whole.accounts.get(account)) is not None:
            found.append(own)
        return found

    def wait_s(self, endpoint_key: EndpointKey, account: int, now: float) -> float | None:
        """Return the seconds until a request may pass: 0 for now, None while a trial runs."""
        if not self.has_breaker(endpoint_key):
            return 0.0
        longest = 0.0
        for breaker in self.list_breakers(endpoint_key, account):
            wait = breaker.wait_s(now)
            if wait is None:
                return None
            longest = max(longest, wait)
        return longest

    def find_share(self, endpoint_key: EndpointKey, account: int, now: float, rules: BreakerSettings) -> float:
        """Return the share of its usual requests that a circuit should get, up to 1; less after a recovery."""
        return min((one.share(now, rules) for one in self.list_breakers(endpoint_key, account)), default=1.0)

    def start_attempt(self, endpoint_key: EndpointKey, account: int, now: float, *, tries: bool) -> StartedAttempt:
        """Start a request. With ``tries`` False, the request ignores open breakers and does not count as a trial."""
        breakers = self.list_breakers(endpoint_key, account)
        return StartedAttempt(
            [(one, one.start_attempt(now) if tries and one.state != "closed" else one.generation) for one in breakers]
        )

    def find_streak(self, endpoint_key: EndpointKey, account: int) -> tuple[int, int]:
        """Return the number of failures in a row: of all accounts, and of ``account``."""
        circuit = self.get(endpoint_key)
        if circuit is None:
            return 0, 0
        own = circuit.accounts.get(account)
        return circuit.shared.failures, own.failures if own else 0

    def record_success(
        self, endpoint_key: EndpointKey, account: int, begun: StartedAttempt, now: float, rules: BreakerSettings
    ) -> bool:
        self.answered_at = now
        ended = False
        for breaker in self.list_breakers(endpoint_key, account):
            generation = begun.find_generation(breaker)
            if generation != breaker.generation:
                continue
            ended |= breaker.state != "closed"
            breaker.recover(now)  # only matters if the request was sent despite a cooldown
            breaker.record_success(generation, now, rules)
        if (circuit := self.get(endpoint_key)) is not None:
            circuit.prompts.pop(account, None)
        return ended

    def record_failure(
        self, endpoint_key: EndpointKey, account: int, begun: StartedAttempt, failure: Failure
    ) -> CircuitBreaker | None:
        """Record a failure. Return the breaker with the widest scope that it trips, or None."""
        circuit = self._get_circuit(endpoint_key)
        own = circuit.get_own(account)
        if begun.find_generation(own) != own.generation or own.state == "open":
            return None
        circuit.failed_at = failure.at
        if circuit.is_repeated(account, failure.prompt) and own.state == "closed":
            return None
        begins = not (own.failures or own.trips or (failure.streak and failure.streak[1]))
        tripped = own if failure.count_for_account(own) else None
        if self._count_for_all(circuit, account, begun, failure, begins=begins):
            tripped = circuit.shared
        if tripped is None:
            return None
        return self._trip_whole(account, failure) or tripped

    def _count_for_all(
        self, circuit: Circuit, account: int, begun: StartedAttempt, failure: Failure, *, begins: bool
    ) -> bool:
        shared = circuit.shared
        if begun.find_generation(shared) != shared.generation or shared.state == "open":
            return False
        if shared.state == "half_open":
            if circuit.tried_by == account:  # an account's repeated failed trials must not lengthen the wait for all
                shared.trips = max(0, shared.trips - 1)
            circuit.tried_by = account
            failure.trip(shared)
            return True
        if circuit.count_cooling_down(failure.at) >= ENOUGH_ACCOUNTS:
            failure.trip(shared)
            return True
        return begins and failure.count_for_all(shared)

    def _trip_whole(self, account: int, failure: Failure) -> CircuitBreaker | None:
        """Trip the whole channel or key if several kinds of request failed for ``account`` without a success since."""
        kinds = set()
        for endpoint_key, circuit in self.items():
            known = circuit.accounts.get(account)
            if (
                endpoint_key != WHOLE
                and circuit.failed_at > self.answered_at
                and known is not None
                and known.state != "closed"
            ):
                kinds.add(endpoint_key[self._part])
        if len(kinds) < self._several:
            return None
        circuit = self._get_circuit(WHOLE)
        own = circuit.get_own(account)
        if own.state == "open":
            return None
        circuit.failed_at = failure.at
        failure.trip(own)
        if circuit.count_cooling_down(failure.at) < ENOUGH_ACCOUNTS or self.whole.state == "open":
            return own
        failure.trip(self.whole)
        return self.whole

    def abandon(self, begun: StartedAttempt) -> None:
        """End a request without a result."""
        for breaker, generation in begun.generations:
            breaker.abandon(generation)

    def end_cooldowns(self, now: float) -> None:
        """End every cooldown: the next request is a trial."""
        for circuit in self.values():
            for breaker in (circuit.shared, *circuit.accounts.values()):
                if breaker.state == "open":
                    breaker.until = min(breaker.until, now)

    @property
    def no_failure_since_success(self) -> bool:
        """Whether no failure has been recorded since the last success; True also if nothing was recorded at all."""
        return self.answered_at >= max((circuit.failed_at for circuit in self.values()), default=_NEVER)

    def list_tripped(self) -> list[Tripped]:
        """Return the breakers that are open or half open, without the shared breaker of the channel."""
        found: list[Tripped] = []
        for endpoint_key, circuit in self.items():
            if endpoint_key != WHOLE and circuit.shared.state != "closed":
                found.append((endpoint_key, None, circuit.shared))
            found += [
                (endpoint_key, account, own) for account, own in circuit.accounts.items() if own.state != "closed"
            ]
        return found

    def tidy(self, now: float, keep_s: float) -> None:
        """Drop idle circuits. ``keep_s`` is how long a failure is remembered that tripped no breaker."""
        for endpoint_key in [endpoint_key for endpoint_key, circuit in self.items() if circuit.is_idle(now, keep_s)]:
            del self[endpoint_key]

    def _get_circuit(self, endpoint_key: EndpointKey) -> Circuit:
        circuit = self.get(endpoint_key)
        if circuit is None:
            if len(self) >= MOST_PLACES:
                well = (one for one, known in self.items() if not _is_tripped(known))
                del self[next(well, None) or next(iter(self))]
            circuit = self[endpoint_key] = Circuit(self.whole if endpoint_key == WHOLE else CircuitBreaker())
        return circuit


def _is_tripped(circuit: Circuit) -> bool:
    return any(breaker.state != "closed" for breaker in (circuit.shared, *circuit.accounts.values()))
