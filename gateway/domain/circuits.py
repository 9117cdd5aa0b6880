"""Circuit breakers of one channel, or of one of its keys: one for each kind of call, and for each account in it.

A kind of call (``Place``) is a wire language and the provider's name of a model. A failed call counts for the account
that made it. It counts for everybody only by distinct accounts: one account's failures in a row count once. So one
account that sends what a model fails at is kept away from that model, and nobody else is. A circuit trips for everybody
when as many accounts in a row have failed as would trip it for one, or when it has tripped for ``ENOUGH_ACCOUNTS``.

Where a provider fails at several kinds of call and answers none in between, the whole channel trips, for an account and
then for everybody, by the same rule. A circuit exists only while there is something to remember: an empty mapping says
that all is well.
"""

import math

import attrs

from gateway.domain.circuit_breaker import BreakerSettings, CircuitBreaker

Place = tuple[str, str]
"""A wire language, and the provider's own name of a model."""
Tripped = tuple[Place, int | None, CircuitBreaker]
"""A breaker that is not "up": of which calls, of which account (None: everybody's), and itself."""
WHOLE: Place = ("", "")
"""The place of whatever concerns every kind of call."""
ENOUGH_ACCOUNTS = 2
"""For whom a circuit has tripped when it trips for everybody."""
SAME_PROMPTS = 5
"""Failures in a row at one prompt that count once: clients send it again, and the server may be well."""
MOST_PLACES = 256
"""Circuits of one channel: callers of an open channel make up the names of models."""
MOST_ACCOUNTS = 64
"""Accounts that are remembered in one circuit."""
FORGET_S = 600.0
"""How long after the end of its cooldown a circuit is remembered that nobody calls."""
_NEVER = -math.inf


@attrs.define(eq=False)
class Circuit:
    """One kind of call.

    Attributes:
        shared: for everybody.
        accounts: for one account, by its id.
        failed_at: when a call failed last.
        tried_by: the account whose call failed as the last trial for everybody.
        prompts: what was asked in the last failed call of each account, and how often it had failed by then.
    """

    shared: CircuitBreaker
    accounts: dict[int, CircuitBreaker] = attrs.field(factory=dict)
    failed_at: float = _NEVER
    tried_by: int | None = None
    prompts: dict[int, tuple[int, int]] = attrs.field(factory=dict)

    def get_own(self, account: int) -> CircuitBreaker:
        """The breaker of ``account``; one that has never failed begins here."""
        own = self.accounts.get(account)
        if own is None:
            if len(self.accounts) >= MOST_ACCOUNTS:
                dropped = next((one for one, known in self.accounts.items() if known.state == "up"), None)
                dropped = next(iter(self.accounts)) if dropped is None else dropped
                del self.accounts[dropped]
                self.prompts.pop(dropped, None)
            own = self.accounts[account] = CircuitBreaker()
        return own

    def is_repeated(self, account: int, prompt: int | None) -> bool:
        """Whether a call of ``account`` failed at what the one before it failed at; remembers it for the next one."""
        before, times = self.prompts.pop(account, (None, 0))
        if prompt is None:
            return False
        times = times + 1 if prompt == before else 0
        self.prompts[account] = prompt, times
        return times % SAME_PROMPTS != 0

    def count_cooling(self, now: float) -> int:
        """Accounts that it has tripped for, and not long ago."""
        return sum(own.state == "down" and own.until > now for own in self.accounts.values())

    def is_idle(self, now: float, keep_s: float) -> bool:
        """Whether it says nothing any more."""
        ends = [breaker.until for breaker in (self.shared, *self.accounts.values()) if breaker.state != "up"]
        if ends:
            return now > max(ends) + FORGET_S and now > self.failed_at + FORGET_S
        return now > self.failed_at + keep_s


@attrs.define(eq=False)
class StartedAttempt:
    """The breakers that a call was begun under, each with its epoch of that moment."""

    generations: list[tuple[CircuitBreaker, int]] = attrs.field(factory=list)

    def find_generation(self, breaker: CircuitBreaker) -> int:
        """The epoch to report with; a breaker that was not there yet was in its first."""
        return next((generation for known, generation in self.generations if known is breaker), 0)


@attrs.frozen
class Failure:
    """A call that failed.

    Attributes:
        at: when.
        rules: of the breakers that it counts for.
        reason: for people.
        dice: spreads the cooldowns.
        rest_s: how long the provider asks to be left alone: no second failure is needed.
        streak: as ``Circuits.find_streak`` had it when the same call was noted as answered, if it was.
        prompt: a digest of what was asked, if that may be why it failed; see ``SAME_PROMPTS``.
    """

    at: float
    rules: BreakerSettings
    reason: str
    rng: float
    provider_retry_after_s: float = 0.0
    streak: tuple[int, int] | None = None
    prompt: int | None = None

    def trip(self, breaker: CircuitBreaker) -> None:
        """Take ``breaker`` down."""
        breaker.trip(
            self.at, self.rules, reason=self.reason, rng=self.rng, provider_retry_after_s=self.provider_retry_after_s
        )

    def count_own(self, breaker: CircuitBreaker) -> bool:
        """Count it for the account whose call it was. True if that trips it."""
        if self.provider_retry_after_s:
            self.trip(breaker)
            return True
        streak = self.streak[1] if self.streak else None
        rules, reason, rng = self.rules, self.reason, self.rng
        return breaker.record_failure(breaker.generation, self.at, rules, reason=reason, rng=rng, streak=streak)

    def count_shared(self, breaker: CircuitBreaker) -> bool:
        """Count it for everybody, as the first in a row of one account. True if that trips it."""
        rules = attrs.evolve(self.rules, failures=max(ENOUGH_ACCOUNTS, self.rules.failures), ratio=math.inf)
        streak = self.streak[0] if self.streak else None
        trips, breaker.trips = breaker.trips, 0  # also shortly after a cooldown one account is not enough
        reason, rng = self.reason, self.rng
        tripped = breaker.record_failure(breaker.generation, self.at, rules, reason=reason, rng=rng, streak=streak)
        breaker.trips += trips
        return tripped


class Circuits(dict[Place, Circuit]):
    """Every circuit of a channel, or of a key, that remembers something.

    Args:
        whole: the breaker of all of it, for everybody.
        several: kinds of call that must have failed before the whole trips.
        part: which part of their places tells these kinds apart: 0 the wire language, 1 the model.

    Attributes:
        answered_at: when a call was answered last, since there is something to remember.
    """

    def __init__(self, whole: CircuitBreaker, *, several: int, part: int) -> None:
        super().__init__()
        self.whole = whole
        self.answered_at = _NEVER
        self._several = several
        self._part = part

    def concerns(self, place: Place) -> bool:
        """Whether anything here may be in the way of a call."""
        return place in self or WHOLE in self

    def list_breakers(self, place: Place, account: int) -> list[CircuitBreaker]:
        """Those that a call of ``account`` depends on, but for that of the whole."""
        found = []
        if (circuit := self.get(place)) is not None:
            found.append(circuit.shared)
            if (own := circuit.accounts.get(account)) is not None:
                found.append(own)
        if (whole := self.get(WHOLE)) is not None and (own := whole.accounts.get(account)) is not None:
            found.append(own)
        return found

    def wait_s(self, place: Place, account: int, now: float) -> float | None:
        """Seconds until a call may be made: 0 now, None while a trial is under way and nobody knows."""
        if not self.concerns(place):
            return 0.0
        longest = 0.0
        for breaker in self.list_breakers(place, account):
            wait = breaker.wait_s(now)
            if wait is None:
                return None
            longest = max(longest, wait)
        return longest

    def find_share(self, place: Place, account: int, now: float, rules: BreakerSettings) -> float:
        """The part of its usual calls that a circuit should get."""
        return min((one.share(now, rules) for one in self.list_breakers(place, account)), default=1.0)

    def begin(self, place: Place, account: int, now: float, *, tries: bool) -> StartedAttempt:
        """A call is made; ``tries`` False: in spite of what is in its way, as no trial."""
        breakers = self.list_breakers(place, account)
        return StartedAttempt(
            [(one, one.begin(now) if tries and one.state != "up" else one.generation) for one in breakers]
        )

    def find_streak(self, place: Place, account: int) -> tuple[int, int]:
        """Failures in a row: for everybody, and of ``account``."""
        circuit = self.get(place)
        if circuit is None:
            return 0, 0
        own = circuit.accounts.get(account)
        return circuit.shared.failures, own.failures if own else 0

    def record_success(
        self, place: Place, account: int, begun: StartedAttempt, now: float, rules: BreakerSettings
    ) -> bool:
        """A call was answered well. True if that ends a cooldown."""
        self.answered_at = now
        ended = False
        for breaker in self.list_breakers(place, account):
            generation = begun.find_generation(breaker)
            if generation != breaker.generation:
                continue
            ended |= breaker.state != "up"
            breaker.recover(now)  # a call that was made in spite of a cooldown
            breaker.record_success(generation, now, rules)
        if (circuit := self.get(place)) is not None:
            circuit.prompts.pop(account, None)
        return ended

    def record_failure(
        self, place: Place, account: int, begun: StartedAttempt, failure: Failure
    ) -> CircuitBreaker | None:
        """A call failed. Returns the breaker that this trips, that of the most callers; None if it trips none."""
        circuit = self._get_circuit(place)
        own = circuit.get_own(account)
        if begun.find_generation(own) != own.generation or own.state == "down":
            return None
        circuit.failed_at = failure.at
        if circuit.is_repeated(account, failure.prompt) and own.state == "up":
            return None
        begins = not (own.failures or own.trips or (failure.streak and failure.streak[1]))
        tripped = own if failure.count_own(own) else None
        if self._count_shared(circuit, account, begun, failure, begins=begins):
            tripped = circuit.shared
        if tripped is None:
            return None
        return self._trip_whole(account, failure) or tripped

    def _count_shared(
        self, circuit: Circuit, account: int, begun: StartedAttempt, failure: Failure, *, begins: bool
    ) -> bool:
        """Whether the failure of one account trips the circuit for everybody."""
        shared = circuit.shared
        if begun.find_generation(shared) != shared.generation or shared.state == "down":
            return False
        if shared.state == "trial":
            if circuit.tried_by == account:  # one account's failing trials do not make everybody wait for longer
                shared.trips = max(0, shared.trips - 1)
            circuit.tried_by = account
            failure.trip(shared)
            return True
        if circuit.count_cooling(failure.at) >= ENOUGH_ACCOUNTS:
            failure.trip(shared)
            return True
        return begins and failure.count_shared(shared)

    def _trip_whole(self, account: int, failure: Failure) -> CircuitBreaker | None:
        """A circuit of ``account`` has tripped: if several have, and nothing was answered, all of it does."""
        kinds = set()
        for place, circuit in self.items():
            known = circuit.accounts.get(account)
            if place != WHOLE and circuit.failed_at > self.answered_at and known is not None and known.state != "up":
                kinds.add(place[self._part])
        if len(kinds) < self._several:
            return None
        circuit = self._get_circuit(WHOLE)
        own = circuit.get_own(account)
        if own.state == "down":
            return None
        circuit.failed_at = failure.at
        failure.trip(own)
        if circuit.count_cooling(failure.at) < ENOUGH_ACCOUNTS or self.whole.state == "down":
            return own
        failure.trip(self.whole)
        return self.whole

    def abandon(self, begun: StartedAttempt) -> None:
        """A call ended without a verdict."""
        for breaker, generation in begun.generations:
            breaker.abandon(generation)

    def let_try(self, now: float) -> None:
        """There is news of the provider: whatever cools down may be tried now."""
        for circuit in self.values():
            for breaker in (circuit.shared, *circuit.accounts.values()):
                if breaker.state == "down":
                    breaker.until = min(breaker.until, now)

    @property
    def answered_lately(self) -> bool:
        """Whether a call was answered after one failed last."""
        return self.answered_at >= max((circuit.failed_at for circuit in self.values()), default=_NEVER)

    def list_tripped(self) -> list[Tripped]:
        """What does not pass every call."""
        found: list[Tripped] = []
        for place, circuit in self.items():
            if place != WHOLE and circuit.shared.state != "up":
                found.append((place, None, circuit.shared))
            found += [(place, account, own) for account, own in circuit.accounts.items() if own.state != "up"]
        return found

    def tidy(self, now: float, keep_s: float) -> None:
        """Forget what says nothing any more; ``keep_s``: how long a failure is remembered."""
        for place in [place for place, circuit in self.items() if circuit.is_idle(now, keep_s)]:
            del self[place]

    def _get_circuit(self, place: Place) -> Circuit:
        circuit = self.get(place)
        if circuit is None:
            if len(self) >= MOST_PLACES:
                well = (one for one, known in self.items() if not _is_tripped(known))
                del self[next(well, None) or next(iter(self))]
            circuit = self[place] = Circuit(self.whole if place == WHOLE else CircuitBreaker())
        return circuit


def _is_tripped(circuit: Circuit) -> bool:
    return any(breaker.state != "up" for breaker in (circuit.shared, *circuit.accounts.values()))
