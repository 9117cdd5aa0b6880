"""Balancing by measurement: most requests go to the better channel, some to others, and traffic follows a change."""

import heapq
import random
from collections import Counter
from collections.abc import Sequence
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.route import BalanceStrategy, ModelShare, Route, RouteStep
from gateway.domain.usage import Usage
from gateway.errors import ProviderTimeout
from gateway.routing.load_balancer import RetrySettings
from gateway.routing.measured_balance import (
    EXPLORED_SHARE,
    HYSTERESIS,
    Score,
    compute_chances,
    compute_score,
    pick_by_measurements,
)
from gateway.routing.performance import Performance
from gateway.routing.selection import Candidate
from gateway.routing.target import Attempt
from tests.support.routing_calls import CALLER, RULES, RouterScenario, call_of, channel

THROWS = st.tuples(*[st.floats(0, 1, exclude_max=True)] * 2)
BEST = (EXPLORED_SHARE, 0.0)
"""Numbers with which no request explores."""


def make(name: str, running: int = 0, **more: float) -> Candidate[str]:
    return Candidate(name, name, running=running, **more)  # type: ignore[arg-type]


def pick(
    scores: dict[str, Score], candidates: Sequence[Candidate[str]], rng: tuple[float, float], last: str | None = None
) -> str:
    return pick_by_measurements(lambda candidate: scores[candidate.name], last, candidates, rng).name


# One choice


@given(st.floats(0.01, 100), st.floats(0.01, 100), st.integers(0, 20), st.integers(0, 20))
def test_the_lower_score_for_its_load_wins(one: float, two: float, first: int, second: int) -> None:
    candidates = [make("one", first), make("two", second)]
    costs = one * (first + 1), two * (second + 1)
    expected = {"one"} if costs[0] < costs[1] else {"two"} if costs[1] < costs[0] else {"one", "two"}
    assert pick({"one": Score(one, 1.0), "two": Score(two, 1.0)}, candidates, BEST) in expected


@given(THROWS, st.sampled_from(["one", "two", None]))
def test_whatever_the_numbers_are_one_of_them_is_picked(rng: tuple[float, float], last: str | None) -> None:
    scores = {"one": Score(1.0, 1.0), "two": Score(None, 0.02), "three": Score(3.0, 0.5)}
    assert pick(scores, [make(name) for name in scores], rng, last) in scores


def test_one_request_in_twenty_explores() -> None:
    scores = {"good": Score(1.0, 1.0), "bad": Score(100.0, 1.0)}
    draws = [(number + 0.5) / 1_000 for number in range(1_000)]
    got = Counter(pick(scores, [make("good"), make("bad")], (draw, 0.5)) for draw in draws)
    assert got["bad"] == pytest.approx(1_000 * EXPLORED_SHARE / 2, abs=2)


def test_the_last_channel_stays_until_another_is_clearly_better() -> None:
    candidates = [make("last"), make("other")]
    slightly, clearly = 1 - HYSTERESIS / 2, 1 - HYSTERESIS * 2
    for rng in (BEST, (0.99, 0.0)):
        assert pick({"last": Score(1.0, 1), "other": Score(slightly, 1)}, candidates, rng, "last") == "last"
        assert pick({"last": Score(1.0, 1), "other": Score(clearly, 1)}, candidates, rng, "last") == "other"


def test_a_channel_that_is_not_measured_is_tried_and_not_flooded() -> None:
    scores = {"known": Score(7.0, 1.0), "new": Score(None, 1.0)}
    for rng in (BEST, (0.99, 0.0)):
        assert pick(scores, [make("known"), make("new")], rng, "known") == "new"
        assert pick(scores, [make("known"), make("new", 2)], rng, "new") == "known"


def test_a_channel_that_warms_up_gets_less() -> None:
    scores = {"warming": Score(1.0, 1.0), "usual": Score(2.0, 1.0)}
    assert pick(scores, [make("warming", share=0.2), make("usual")], BEST) == "usual"
    assert pick(scores, [make("warming", share=0.9), make("usual")], BEST) == "warming"


SCORES = st.builds(Score, st.none() | st.floats(0.01, 100), st.sampled_from([1.0, 0.5, 0.02]))
NAMES = ("one", "two", "three", "four")


@given(
    st.lists(st.tuples(SCORES, st.sampled_from([1.0, 2.0, 5.0]), st.integers(0, 3)), min_size=1, max_size=4),
    st.sampled_from([*NAMES, None]),
)
def test_the_chances_are_the_shares_that_are_picked(channels: list[tuple[Score, float, int]], last: str | None) -> None:
    named = list(zip(NAMES, channels, strict=False))
    candidates = [make(name, running, weight=weight) for name, (_, weight, running) in named]
    scores = {name: score for name, (score, _, _) in named}
    chances = compute_chances(candidates, [scores[candidate.name] for candidate in candidates], last)
    assert sum(chances) == pytest.approx(1.0)
    if len(candidates) == 1:
        return
    steps = 200
    grid = [((x + 0.5) / steps, (y + 0.5) / 40) for x in range(steps) for y in range(40)]
    got = Counter(pick(scores, candidates, rng, last) for rng in grid)
    for candidate, chance in zip(candidates, chances, strict=True):
        assert got[candidate.name] / len(grid) == pytest.approx(chance, abs=0.04)


# Scores


def perform(waits: Sequence[float] = (), failures: int = 0, ends: Sequence[tuple[Usage, int]] = ()) -> Performance:
    performance = Performance()
    for wait_s in waits:
        performance.note_answered(wait_s, 0, streams=True)
    for _ in range(failures):
        performance.note_failed(0)
    for usage, nanos in ends:
        performance.note_end(usage, nanos, 2.0, 0)
    return performance


def test_scores() -> None:
    score = partial(compute_score, now_s=0.0)
    quick = perform([0.5, 0.5], ends=[(Usage(10, 100), 110)])
    assert score([quick], "latency", streams=True).amount == pytest.approx(0.5)
    assert score([quick], "latency", streams=False).amount is None
    assert score([quick], "throughput", streams=True).amount == pytest.approx(1 / 50)
    dear = perform(ends=[(Usage(10, 100), 110_000)])
    assert score([dear], "cost", streams=True).amount == pytest.approx(1_000)
    free = score([perform(ends=[(Usage(10, 100), 0)])], "cost", streams=True)
    assert free.amount is not None
    assert 0 < free.amount < 100
    assert score([], "cost", streams=True) == Score(None, 1.0)


def test_failures_make_a_channel_worse_than_its_speed_says() -> None:
    flaky = compute_score([perform([0.5] * 5, failures=15)], "latency", 0.0, streams=True)
    assert flaky.success_share == pytest.approx(0.25, abs=0.05)
    assert compute_score([perform(failures=9)], "latency", 0.0, streams=True).success_share > 0


def test_the_keys_of_a_channel_count_together() -> None:
    keys = [perform([1.0] * 10), perform([3.0] * 10)]
    assert compute_score(keys, "latency", 0.0, streams=True).amount == pytest.approx(2.0)


# Traffic


class Traffic:
    """Requests that arrive one after another at channels which take so many seconds for each."""

    def __init__(self, router: RouterScenario, seconds: dict[str, float], every_s: float) -> None:
        self.router = router
        self.seconds = seconds
        self.every_s = every_s
        self.noise = random.Random(5)  # noqa: S311 - durations, not secrets
        self.running: list[tuple[float, int, Attempt]] = []
        self.sent = 0

    def send(self, requests: int) -> list[str]:
        """Send so many requests; return their channels."""
        names = []
        for _ in range(requests):
            self.router.time += self.every_s
            arrival = self.router.time
            while self.running and self.running[0][0] <= arrival:
                self.router.time, _, attempt = heapq.heappop(self.running)
                self.end(attempt)
            self.router.time = arrival
            targets = self.router.route(CALLER, call_of())
            targets.rank()
            attempt = targets.start("1", 99)
            names.append(attempt.channel.name)
            took_s = self.seconds[attempt.channel.name] * self.noise.uniform(0.8, 1.2)
            self.sent += 1
            heapq.heappush(self.running, (arrival + took_s, self.sent, attempt))
        return names

    def end(self, attempt: Attempt) -> None:
        self.router.board.record_success(attempt.slot)
        self.router.board.release(attempt.slot)


def balanced(balance: BalanceStrategy, *names: str) -> RouterScenario:
    ups = [channel(name, "m") for name in names]
    return RouterScenario(*ups, settings=RetrySettings(RULES, balance=balance))


@pytest.mark.parametrize("every_s", [0.02, 0.5, 10.0])
def test_most_go_to_the_quick_one_and_when_speeds_swap_the_traffic_follows(every_s: float) -> None:
    """The load is 1 to 25 requests at once; the two channels take 0.5 and 4 seconds."""
    router = balanced("latency", "one", "two")
    traffic = Traffic(router, {"one": 0.5, "two": 4.0}, every_s)
    traffic.send(200)
    got = Counter(traffic.send(1_000))
    assert 0.75 < got["one"] / 1_000 < 1
    assert got["two"] >= 10
    traffic.seconds = {"one": 4.0, "two": 0.5}
    traffic.send(300)
    got = Counter(traffic.send(1_000))
    assert 0.75 < got["two"] / 1_000 < 1
    assert got["one"] >= 10


def test_after_a_swap_no_channel_gets_a_herd() -> None:
    """In a second 50 requests arrive. A herd would be 200 of them at once on a channel that takes 4 seconds."""
    router = balanced("latency", "one", "two")
    traffic = Traffic(router, {"one": 0.5, "two": 4.0}, 0.02)
    traffic.send(1_000)
    traffic.seconds = {"one": 4.0, "two": 0.5}
    most = 0
    for _ in range(1_000):
        traffic.send(1)
        most = max(most, *(state.running for state in router.board.channels.values()))
    assert most < 120


def test_equal_channels_share_a_load() -> None:
    traffic = Traffic(balanced("latency", "one", "two", "three"), dict.fromkeys(("one", "two", "three"), 1.0), 0.02)
    got = Counter(traffic.send(3_000))
    assert min(got.values()) > 700


def test_a_channel_that_fails_quickly_gets_little() -> None:
    router = balanced("latency", "good", "bad")
    router.board.settings = RetrySettings(balance="latency")
    names = []
    for _ in range(400):
        router.time += 1
        targets = router.route(CALLER, call_of())
        targets.rank()
        attempt = targets.start("1", 99)
        names.append(attempt.channel.name)
        if attempt.channel.name == "bad":
            router.fail(attempt, ProviderTimeout("too slow", phase="headers"))
        else:
            router.board.record_success(attempt.slot)
            router.board.release(attempt.slot)
    assert 1 <= names.count("bad") < 60


def answer(router: RouterScenario, attempt: Attempt, nanos: int) -> None:
    assert attempt.slot.performance is not None
    attempt.slot.performance.note_end(Usage(100, 100), nanos, 1.0, router.time)
    router.board.record_success(attempt.slot)
    router.board.release(attempt.slot)


def ask(router: RouterScenario, inference: InferenceRequest, costs: dict[str, int]) -> str:
    router.time += 1
    targets = router.route(CALLER, inference)
    router.keep_conversation(targets, inference, {})
    targets.rank()
    attempt = targets.start("1", 99)
    answer(router, attempt, costs[attempt.channel.name])
    if targets.affinity is not None:
        targets.affinity.note_answered(attempt, router.time)
    return attempt.channel.name


def test_cost_prefers_what_is_cheaper_as_paid() -> None:
    router = balanced("cost", "cheap", "dear")
    names = [ask(router, call_of(), {"cheap": 1_000_000, "dear": 2_000_000}) for _ in range(200)]
    assert 0 < names.count("dear") < 30


def test_a_conversation_that_continues_stays_whatever_was_measured() -> None:
    router = balanced("cost", "cheap", "dear")
    costs = {"cheap": 1_000_000, "dear": 9_000_000}
    for _ in range(50):
        ask(router, call_of(), costs)
    turns = [{"role": "user", "content": "begin"}]
    homes = set()
    while ask(router, call_of(messages=turns), costs) != "dear":
        turns = [{"role": "user", "content": f"begin {router.time}"}]
    for number in range(20):
        turns += [{"role": "assistant", "content": "a"}, {"role": "user", "content": str(number)}]
        homes.add(ask(router, call_of(messages=turns), costs))
    assert homes == {"dear"}


def run_route(step: RouteStep, count: int, costs: dict[str, int]) -> list[str]:
    ups = [channel("of-a", "a"), channel("of-b", "b")]
    router = RouterScenario(*ups, settings=RetrySettings(RULES), routes=[Route("fast", (step,))])
    return [ask(router, call_of("fast"), costs) for _ in range(count)]


def test_the_models_of_a_balanced_step_compete() -> None:
    step = RouteStep((ModelShare("a"), ModelShare("b")), balance="cost")
    got = run_route(step, 300, {"of-a": 1_000_000, "of-b": 3_000_000})
    assert 0 < got.count("of-b") < 60


def test_without_a_balance_the_models_of_a_step_share_by_weight() -> None:
    step = RouteStep((ModelShare("a", 3), ModelShare("b")))
    ups = [channel("of-a", "a"), channel("of-b", "b")]
    router = RouterScenario(*ups, settings=RetrySettings(RULES), routes=[Route("fast", (step,))])
    names = []
    for _ in range(300):
        targets = router.route(CALLER, call_of("fast"))
        targets.rank()
        names.append(targets.start("1", 99).channel.name)
    assert router.board.measured_balance is None
    assert 0.15 < names.count("of-b") / 300 < 0.35


def test_by_weight_nothing_is_measured() -> None:
    router = balanced("weight", "one", "two")
    for _ in range(10):
        targets = router.route(CALLER, call_of())
        targets.rank()
        attempt = targets.start("1", 99)
        assert attempt.slot.performance is None
        router.board.record_success(attempt.slot)
        router.board.release(attempt.slot)
    assert router.board.measured_balance is None
    assert not any(key.measured for state in router.board.channels.values() for key in state.keys)


def test_one_channel_is_not_measured() -> None:
    router = balanced("latency", "only")
    targets = router.route(CALLER, call_of())
    targets.rank()
    assert targets.start("1", 99).slot.performance is None


def test_the_wish_of_a_caller_precedes_the_setting() -> None:
    router = balanced("weight", "cheap", "dear")
    names = []
    for _ in range(200):
        router.time += 1
        targets = router.route(CALLER, call_of())
        targets.preferred = "cost"
        targets.rank()
        attempt = targets.start("1", 99)
        names.append(attempt.channel.name)
        answer(router, attempt, 1_000_000 if attempt.channel.name == "cheap" else 3_000_000)
    assert 0 < names.count("dear") < 40
