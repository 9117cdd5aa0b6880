"""The breaker: every move it makes, and that it makes no other, whatever happens in whatever order."""

import itertools
import math
import random
import re
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.domain import circuit_breaker as health
from gateway.domain.circuit_breaker import JITTER, MIN_SHARE, TRANSITIONS, TRIAL_S, BreakerSettings, CircuitBreaker
from tests.support.table_rows import table_rows

NOW = 1_000.0
STEADY = BreakerSettings(failures=3, cooldown_s=8, max_cooldown_s=100, ramp_s=10)
"""Rules whose ratio says nothing below 20 calls."""
ONLY_RATIO = attrs.evolve(STEADY, failures=10**9)
EVEN = 0.5
"""Dice that leave a cooldown as it is."""


def well() -> CircuitBreaker:
    return CircuitBreaker()


def tripped(rules: BreakerSettings = STEADY, now: float = NOW, **more: Any) -> CircuitBreaker:
    breaker = CircuitBreaker()
    breaker.trip(now, rules, reason="broke", rng=EVEN, **more)
    return breaker


def on_trial() -> tuple[CircuitBreaker, int]:
    """A breaker that lets one call try, and that call's epoch."""
    breaker = tripped()
    return breaker, breaker.start_attempt(NOW)


def fail(
    breaker: CircuitBreaker, generation: int, now: float = NOW, rules: BreakerSettings = STEADY, rng: float = EVEN
) -> bool:
    return breaker.record_failure(generation, now, rules, reason="broke", rng=rng)


def look(breaker: CircuitBreaker) -> dict[str, Any]:
    """All that it knows."""
    return attrs.asdict(breaker)


# The table


def test_the_table_in_the_docstring_is_the_table_that_counts() -> None:
    drawn = re.findall(r"^(\w+) +(\w+) +(\w+)$", (health.__doc__ or "").split("=======\n", 2)[2], re.MULTILINE)
    assert {(state, happening): becomes for state, happening, becomes in drawn} == dict(TRANSITIONS)
    assert len(drawn) == len(TRANSITIONS)


@table_rows("happening", sorted({happening for _, happening in TRANSITIONS}))
def test_every_happening_is_explained(happening: str) -> None:
    explained = {"tripped", "rested", "recovered", "abandoned"}
    assert happening in explained | {"answered", "failed"}
    assert (f'"{happening}"' in (health.__doc__ or "")) == (happening in explained)


def test_every_state_can_be_reached_and_left() -> None:
    states = {state for state, _ in TRANSITIONS}
    assert states == set(TRANSITIONS.values()) == {"closed", "open", "half_open"}
    assert all(any(becomes != state for (of, _), becomes in TRANSITIONS.items() if of == state) for state in states)


# Every move by example


def test_up_answered_up() -> None:
    breaker = well()
    breaker.record_success(breaker.start_attempt(NOW), NOW, STEADY)
    assert (breaker.state, breaker.find_wait_s(NOW)) == ("closed", 0.0)


def test_up_failed_up() -> None:
    breaker = well()
    assert not fail(breaker, breaker.start_attempt(NOW))
    assert (breaker.state, breaker.failures, breaker.reason) == ("closed", 1, "broke")


def test_up_tripped_down_at_one_failure_too_many() -> None:
    breaker = well()
    assert [fail(breaker, breaker.start_attempt(NOW)) for _ in range(3)] == [False, False, True]
    assert (breaker.state, breaker.trips, breaker.generation, breaker.find_wait_s(NOW)) == ("open", 1, 1, 8.0)


def test_a_call_answered_well_in_between_begins_the_count_anew() -> None:
    breaker = well()
    for _ in range(5):
        fail(breaker, 0)
        fail(breaker, 0)
        breaker.record_success(0, NOW, STEADY)
    assert (breaker.state, breaker.failures) == ("closed", 0)


def test_down_tripped_down_for_longer() -> None:
    breaker = tripped()
    breaker.trip(NOW + 2, STEADY, reason="still ill", rng=EVEN)
    assert (breaker.state, breaker.find_wait_s(NOW + 2), breaker.reason) == ("open", 16.0, "still ill")


def test_down_rested_trial_and_nobody_knows_how_long() -> None:
    breaker = tripped()
    assert breaker.find_wait_s(NOW + 7.5) == 0.5
    assert breaker.find_wait_s(NOW + 8) == 0.0
    assert breaker.state == "open"
    breaker.start_attempt(NOW)
    assert (breaker.state, breaker.find_wait_s(NOW + 8)) == ("half_open", None)


def test_down_recovered_up_carefully() -> None:
    breaker = tripped()
    breaker.recover(NOW + 1)
    assert (breaker.state, breaker.find_wait_s(NOW + 1), breaker.share(NOW + 1, STEADY)) == ("closed", 0.0, MIN_SHARE)
    assert breaker.trips == 1
    assert fail(breaker, breaker.start_attempt(NOW), NOW + 1)  # one failure is enough now
    assert (breaker.state, breaker.trips) == ("open", 2)


def test_trial_answered_up() -> None:
    breaker, generation = on_trial()
    breaker.record_success(generation, NOW + 9, STEADY)
    assert (breaker.state, breaker.up_since, breaker.trips) == ("closed", NOW + 9, 1)


def test_trial_tripped_down_by_one_failure() -> None:
    breaker, generation = on_trial()
    assert fail(breaker, generation, NOW + 9)
    assert (breaker.state, breaker.trips, breaker.find_wait_s(NOW + 9)) == ("open", 2, 16.0)


def test_trial_abandoned_down_and_open_to_the_next() -> None:
    breaker, generation = on_trial()
    breaker.abandon(generation)
    assert (breaker.state, breaker.find_wait_s(NOW + 9)) == ("open", 0.0)
    assert breaker.start_attempt(NOW) == generation
    assert breaker.state == "half_open"


def test_a_trial_that_takes_long_lets_another_try_beside_it() -> None:
    breaker, generation = on_trial()
    assert breaker.find_wait_s(NOW + TRIAL_S - 0.1) is None
    assert breaker.find_wait_s(NOW + TRIAL_S) == 0.0
    assert breaker.start_attempt(NOW + TRIAL_S) == generation
    assert breaker.find_wait_s(NOW + TRIAL_S) is None
    breaker.record_success(generation, NOW + TRIAL_S + 1, STEADY)
    assert (breaker.state, breaker.find_wait_s(NOW + TRIAL_S + 1)) == ("closed", 0.0)


def test_of_two_trials_the_last_that_is_left_opens_it_to_the_next() -> None:
    breaker, generation = on_trial()
    breaker.start_attempt(NOW + TRIAL_S)
    breaker.abandon(generation)
    between = breaker.state
    breaker.abandon(generation)
    assert (between, breaker.state, breaker.find_wait_s(NOW + TRIAL_S)) == ("half_open", "open", 0.0)
    breaker.start_attempt(NOW + TRIAL_S)
    breaker.abandon(generation)
    assert breaker.state == "open"


@table_rows("state", ["closed", "half_open"])
def test_a_probe_tells_nothing_of_what_is_not_down(state: str) -> None:
    breaker = well() if state == "closed" else on_trial()[0]
    before = look(breaker)
    breaker.recover(NOW)
    assert look(breaker) == before


def test_a_call_that_is_left_while_all_is_well_says_nothing() -> None:
    breaker = well()
    fail(breaker, 0)
    before = look(breaker)
    breaker.abandon(breaker.start_attempt(NOW))
    assert look(breaker) == before


# Cooldowns


def test_the_cooldown_doubles_up_to_the_cap() -> None:
    breaker, waits = well(), []
    for _ in range(70):
        breaker.trip(NOW, STEADY, reason="broke", rng=EVEN)
        waits.append(breaker.find_wait_s(NOW))
    assert waits == [8, 16, 32, 64, *[100] * 66]


@given(
    trips=st.integers(1, 2_000),
    rng=st.floats(0, 1, exclude_max=True),
    cooldown=st.floats(0.01, 1e4),
    cap=st.floats(0.01, 1e4),
)
def test_jitter_stays_within_its_bounds_and_the_cap(trips: int, rng: float, cooldown: float, cap: float) -> None:
    rules, breaker = attrs.evolve(STEADY, cooldown_s=cooldown, max_cooldown_s=cap), CircuitBreaker(trips=trips - 1)
    breaker.trip(0.0, rules, reason="broke", rng=rng)
    plain = min(math.ldexp(cooldown, min(trips - 1, 40)), cap)
    wait = breaker.until
    assert plain * (1 - JITTER) * 0.999 <= wait <= min(plain * (1 + JITTER) * 1.001, cap)


def test_the_dice_decide_how_long() -> None:
    waits = []
    for rng in (0.0, 0.25, 0.5, 0.75):
        breaker = well()
        breaker.trip(0.0, STEADY, reason="broke", rng=rng)
        waits.append(breaker.until)
    assert waits == pytest.approx([6.4, 7.2, 8.0, 8.8])


@table_rows(("asked", "waits"), [(0.0, 8.0), (3.0, 8.0), (50.0, 50.0), (86_400.0, 100.0), (1e300, 100.0)])
def test_a_provider_that_asks_for_longer_is_obeyed_up_to_the_cap(asked: float, waits: float) -> None:
    assert tripped(provider_retry_after_s=asked).find_wait_s(NOW) == waits


# The ratio


@given(st.lists(st.booleans(), max_size=60))
def test_the_ratio_trips_from_the_least_number_of_calls_on(failed: list[bool]) -> None:
    breaker, failures = well(), 0
    for number, bad in enumerate(failed, 1):
        failures += bad
        if not bad:
            breaker.record_success(0, NOW, ONLY_RATIO)
        elif fail(breaker, 0, rules=ONLY_RATIO):
            assert number >= ONLY_RATIO.min_calls
            assert failures >= ONLY_RATIO.ratio * number
            return
        else:
            assert number < ONLY_RATIO.min_calls or failures < ONLY_RATIO.ratio * number
        assert breaker.state == "closed"


@given(st.lists(st.tuples(st.floats(0, 20), st.booleans()), max_size=80))
def test_the_ratio_looks_back_half_a_window_to_a_whole_one(calls: list[tuple[float, bool]]) -> None:
    """Of the calls behind a trip none is older than the window; none of the last half was left out."""
    rules = attrs.evolve(ONLY_RATIO, min_calls=4, window_s=30)
    breaker, now, seen = well(), 0.0, list[tuple[float, bool]]()
    for gap, bad in calls:
        now += gap
        seen.append((now, bad))
        if not bad:
            breaker.record_success(0, now, rules)
            continue
        trips = fail(breaker, 0, now, rules)
        verdicts = set()
        for first in [index for index, (at, _) in enumerate(seen) if now - at <= rules.window_s]:
            if first and now - seen[first - 1][0] < rules.window_s / 2:
                continue  # a call of the last half would be left out
            counted = [was_bad for _, was_bad in seen[first:]]
            verdicts.add(len(counted) >= rules.min_calls and sum(counted) >= rules.ratio * len(counted))
        assert trips in verdicts
        if trips:
            return


def test_what_happened_before_a_trip_is_not_held_against_it_afterwards() -> None:
    breaker = well()
    for _ in range(20):
        fail(breaker, 0, rules=ONLY_RATIO)
    assert (breaker.state, breaker.trips) == ("open", 1)
    breaker.record_success(breaker.start_attempt(NOW), NOW + 9, ONLY_RATIO)
    breaker.record_success(1, NOW + 9 + ONLY_RATIO.ramp_s, ONLY_RATIO)
    assert breaker.trips == 0
    assert not fail(breaker, 1, NOW + 20, ONLY_RATIO)


# After it has come up again


def test_its_share_grows_from_the_least_to_the_whole() -> None:
    breaker = tripped()
    breaker.recover(NOW)
    shares = [breaker.share(NOW + age, STEADY) for age in (0, 0.5, 1, 2.5, 5, 9.9, 10, 10**6)]
    assert shares == pytest.approx([0.1, 0.1, 0.1, 0.25, 0.5, 0.99, 1, 1])
    assert well().share(NOW, STEADY) == 1.0


@given(st.lists(st.floats(0, 100), min_size=2), st.floats(0, 50))
def test_a_share_never_shrinks_while_it_is_up(ages: list[float], ramp: float) -> None:
    rules, breaker = attrs.evolve(STEADY, ramp_s=ramp), tripped()
    breaker.recover(NOW)
    shares = [breaker.share(NOW + age, rules) for age in sorted(ages)]
    assert shares == sorted(shares)
    assert all(MIN_SHARE <= share <= 1 for share in shares)


def test_a_success_after_the_ramp_forgets_the_trips_and_one_before_it_does_not() -> None:
    breaker, generation = on_trial()
    breaker.record_success(generation, NOW + 9, STEADY)
    breaker.record_success(generation, NOW + 18.9, STEADY)
    assert (breaker.trips, breaker.reason) == (1, "broke")
    breaker.record_success(generation, NOW + 19, STEADY)
    assert (breaker.trips, breaker.reason) == (0, None)
    assert [fail(breaker, generation, NOW + 20) for _ in range(3)] == [False, False, True]
    assert breaker.find_wait_s(NOW + 20) == 8.0  # the first cooldown again


# What is late


def test_a_call_of_an_earlier_generation_says_nothing() -> None:
    breaker = well()
    late = breaker.start_attempt(NOW)
    breaker.trip(NOW, STEADY, reason="broke", rng=EVEN)
    for state in ("open", "half_open", "closed"):
        assert breaker.state == state
        before = look(breaker)
        breaker.record_success(late, NOW + 9, STEADY)
        assert not fail(breaker, late, NOW + 9)
        breaker.abandon(late)
        assert look(breaker) == before
        if state == "open":
            generation = breaker.start_attempt(NOW)
        else:
            breaker.record_success(generation, NOW + 9, STEADY)


def test_failures_of_calls_that_were_under_way_together_trip_it_once() -> None:
    breaker = well()
    generations = [breaker.start_attempt(NOW) for _ in range(10)]
    assert [fail(breaker, generation) for generation in generations].count(True) == 1
    assert (breaker.trips, breaker.find_wait_s(NOW)) == (1, 8.0)


# Anything, in any order


class BreakerMachine(RuleBasedStateMachine):
    """One breaker, calls under way through it, a clock turned by hand, and a probe that comes by."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.rng = NOW, random.Random(5)  # noqa: S311 - jitter, not secrets
        self.breaker = CircuitBreaker()
        self.calls: list[tuple[int, bool]] = []  # epoch, whether it was to find out how a breaker is
        self.generations = itertools.count(1)
        self.tried_at = NOW  # the last call

    @initialize(
        failures=st.integers(1, 4),
        least=st.integers(1, 5),
        ramp=st.sampled_from([0.0, 3.0]),
        cap=st.sampled_from([1.0, 30.0]),
    )
    def choose_rules(self, failures: int, least: int, ramp: float, cap: float) -> None:
        self.settings = BreakerSettings(
            failures, min_calls=least, window_s=10, cooldown_s=2, max_cooldown_s=cap, ramp_s=ramp
        )

    @property
    def trials(self) -> list[tuple[int, bool]]:
        """Calls under way whose end decides whether it is well again."""
        breaker = self.breaker
        return [call for call in self.calls if call[1] and call[0] == breaker.generation and breaker.state != "closed"]

    def check_trip(self, trips: int, asked: float = 0.0) -> None:
        """It has tripped just now."""
        breaker, rules = self.breaker, self.settings
        assert (breaker.state, breaker.trips, breaker.generation) == ("open", trips + 1, next(self.generations))
        plain = min(rules.cooldown_s * 2**trips, rules.max_cooldown_s)
        wait = breaker.find_wait_s(self.now) or 0.0
        assert min(max(plain * (1 - JITTER), asked), rules.max_cooldown_s) <= wait + 1e-6
        assert wait <= min(max(plain * (1 + JITTER), asked), rules.max_cooldown_s) + 1e-6

    @rule(seconds=st.sampled_from([0.1, 1.0, 2.0, 5.0, 40.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.breaker.find_wait_s(self.now) == 0)
    @rule()
    def begin(self) -> None:
        tries = self.breaker.state != "closed"
        if self.breaker.state == "half_open":
            assert self.now - self.tried_at >= TRIAL_S
        self.tried_at = self.now
        self.calls.append((self.breaker.start_attempt(self.now), tries))
        assert self.breaker.state == ("half_open" if tries else "closed")

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from(self.calls))
        before, due = look(self.breaker), self.now - self.breaker.up_since >= self.settings.ramp_s
        self.breaker.record_success(call[0], self.now, self.settings)
        if call[0] != before["generation"]:
            assert look(self.breaker) == before
            return
        assert self.breaker.state == "closed"
        if before["state"] == "closed":
            assert self.breaker.trips == (0 if due else before["trips"])

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from(self.calls))
        before = look(self.breaker)
        did = self.breaker.record_failure(call[0], self.now, self.settings, reason="broke", rng=self.rng.random())
        if call[0] != before["generation"]:
            assert not did
            assert look(self.breaker) == before
        elif did:
            self.check_trip(before["trips"])
        else:
            assert before["state"] == self.breaker.state == "closed"
            assert before["trips"] == 0
            assert self.breaker.failures < self.settings.failures

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """A call is over, whatever was said of it."""
        call = data.draw(st.sampled_from(self.calls))
        before, tries = look(self.breaker), call in self.trials
        self.calls.remove(call)
        self.breaker.abandon(call[0])
        if tries:
            state = "half_open" if self.trials else "open"
            before |= {"state": state, "trial_count": before["trial_count"] - 1}
        assert look(self.breaker) == before

    @precondition(lambda self: self.breaker.state != "open")
    @rule(asked=st.sampled_from([0.5, 10.0, 10**6]))
    def ask_for_rest(self, asked: float) -> None:
        """A call of this epoch met a provider that wants to be left alone."""
        trips = self.breaker.trips
        self.breaker.trip(self.now, self.settings, reason="busy", rng=self.rng.random(), provider_retry_after_s=asked)
        self.check_trip(trips, asked)

    @precondition(lambda self: self.breaker.state == "open")
    @rule(found_well=st.booleans())
    def probe(self, found_well: bool) -> None:
        trips = self.breaker.trips
        if found_well:
            self.breaker.recover(self.now)
            assert (self.breaker.state, self.breaker.trips) == ("closed", trips)
        else:
            self.breaker.trip(self.now, self.settings, reason="ill", rng=self.rng.random())
            self.check_trip(trips)

    @invariant()
    def on_trial_as_long_as_there_are_trials(self) -> None:
        assert bool(self.trials) == (self.breaker.state == "half_open")
        assert self.breaker.state != "half_open" or self.breaker.trial_count == len(self.trials)

    @invariant()
    def never_down_for_longer_than_the_cap(self) -> None:
        wait = self.breaker.find_wait_s(self.now)
        if self.breaker.state == "open" and hasattr(self, "rules"):
            assert wait is not None
            assert 0 <= wait <= self.settings.max_cooldown_s + 1e-6

    @invariant()
    def open_while_up_and_closed_on_trial_for_its_time(self) -> None:
        expected = {"closed": 0.0, "half_open": None if self.now - self.tried_at < TRIAL_S else 0.0}
        assert self.breaker.state == "open" or self.breaker.find_wait_s(self.now) == expected[self.breaker.state]

    @invariant()
    def a_share_is_a_share(self) -> None:
        if hasattr(self, "rules"):
            assert MIN_SHARE <= self.breaker.share(self.now, self.settings) <= 1


BreakerMachine.TestCase.settings = settings(stateful_step_count=40)
TestClinic = BreakerMachine.TestCase
