"""Decaying averages: they stay between what was observed, and forget by requests and by time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.usage import Usage
from gateway.routing.performance import HALF_LIFE_REQUESTS, HALF_LIFE_S, DecayingRatio, Performance

WAITS = st.floats(0.001, 1_000)
PAUSES = st.floats(0, 1_000)


@given(st.lists(st.tuples(WAITS, PAUSES), min_size=1, max_size=50))
def test_an_average_stays_between_the_least_and_the_most_that_was_observed(observed: list[tuple[float, float]]) -> None:
    ratio, now = DecayingRatio(), 5_000.0
    for wait_s, pause_s in observed:
        now += pause_s
        ratio.add(wait_s, 1, now)
    mean = ratio.find(now)
    assert mean is not None
    waits = [wait_s for wait_s, _ in observed]
    assert min(waits) * (1 - 1e-9) <= mean <= max(waits) * (1 + 1e-9)
    assert 1 <= ratio.count(now) <= len(observed)


@given(st.integers(1, 200), WAITS, WAITS)
def test_half_of_an_average_is_gone_after_so_many_other_requests(before: int, old_s: float, new_s: float) -> None:
    ratio = DecayingRatio()
    for _ in range(before):
        ratio.add(old_s, 1, 0)
    for _ in range(HALF_LIFE_REQUESTS):
        ratio.add(new_s, 1, 0)
    mean = ratio.find(0)
    assert mean is not None
    assert abs(mean - new_s) <= abs(old_s - new_s) * 0.5 + 1e-6


@given(st.integers(1, 100), WAITS, PAUSES)
def test_time_alone_changes_no_average_and_makes_it_count_for_less(
    requests: int, wait_s: float, pause_s: float
) -> None:
    ratio = DecayingRatio()
    for _ in range(requests):
        ratio.add(wait_s, 1, 0)
    full = ratio.count(0)
    assert ratio.count(HALF_LIFE_S) == pytest.approx(full / 2)
    mean = ratio.find(pause_s)
    assert mean is None or mean == pytest.approx(wait_s)
    assert ratio.find(100 * HALF_LIFE_S) is None


def test_a_new_observation_outweighs_those_of_an_hour_ago() -> None:
    ratio = DecayingRatio()
    for _ in range(1_000):
        ratio.add(9.0, 1, 0)
    ratio.add(1.0, 1, 3_600)
    assert ratio.find(3_600) == pytest.approx(1.0, rel=0.1)


@given(st.lists(st.tuples(st.integers(1, 1_000_000), WAITS), min_size=1, max_size=20))
def test_a_rate_weighs_each_observation_by_its_length(observed: list[tuple[int, float]]) -> None:
    rate = DecayingRatio()
    for tokens, seconds in observed:
        rate.add(tokens, seconds, 0)
    each = [tokens / seconds for tokens, seconds in observed]
    assert min(each) * (1 - 1e-9) <= (rate.find(0) or 0) <= max(each) * (1 + 1e-9)


def test_a_clock_that_was_set_back_loses_nothing() -> None:
    ratio = DecayingRatio()
    ratio.add(1.0, 1, 1_000)
    ratio.add(3.0, 1, 10)
    assert ratio.find(5) == pytest.approx(2.0, rel=0.05)


def test_streams_and_whole_answers_are_kept_apart() -> None:
    performance = Performance()
    performance.note_answered(0.5, 1, streams=True)
    performance.note_answered(5.0, 1, streams=False)
    performance.note_failed(1)
    assert performance.first_event_s.find(1) == pytest.approx(0.5)
    assert performance.answer_s.find(1) == pytest.approx(5.0)
    assert performance.failed_share.find(1) == pytest.approx(1 / 3, rel=0.05)


def test_an_end_counts_tokens_price_and_what_was_cached() -> None:
    performance = Performance()
    performance.note_end(Usage(100, 50, cached_tokens=80), 1_500, 2.0, 1)
    assert performance.tokens_per_s.find(1) == pytest.approx(25)
    assert performance.cached_share.find(1) == pytest.approx(0.8)
    assert performance.nanos_per_token.find(1) == pytest.approx(10)
    performance.note_end(Usage(), 0, 2.0, 1)
    assert performance.tokens_per_s.count(1) == 1


def test_nothing_is_known_before_the_first_observation() -> None:
    performance = Performance()
    assert performance.failed_share.find(0) is None
    assert performance.tokens_per_s.find(0) is None
