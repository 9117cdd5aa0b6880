"""Which channel serves a call next: priorities are strict, weights hold, load is evened out, callers stay."""

import heapq
import random
from collections import Counter
from collections.abc import Sequence

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.selection import Candidate, choose
from tests.support.table_rows import table_rows

DICE = [((one + 0.5) / 60, (other + 0.5) / 60) for one in range(60) for other in range(60)]
"""Throws that lie evenly over everything two dice can show."""
THROWS = st.tuples(*[st.floats(0, 1, exclude_max=True)] * 2)


def make(name: str, **more: float) -> Candidate[str]:
    return Candidate(name, name, **more)  # type: ignore[arg-type]


CANDIDATES = st.lists(
    st.builds(
        Candidate,
        item=st.uuids().map(str),
        name=st.sampled_from("abcdef"),
        is_certain=st.booleans(),
        priority=st.integers(-2, 2),
        weight=st.sampled_from([0.1, 1.0, 3.0, 10_000.0]),
        running=st.integers(0, 50),
    ),
    max_size=6,
    unique_by=lambda candidate: candidate.name,
)


def choose_all(candidates: Sequence[Candidate[str]]) -> dict[str, float]:
    """The part of the calls that each of them gets, where all keep the load they have."""
    got = Counter(choose(candidates, None, rng) for rng in DICE)
    return {candidate.name: got[candidate.name] / len(DICE) for candidate in candidates}


def test_where_there_is_none_none_is_chosen() -> None:
    assert choose([], None, (0.0, 0.0)) is None
    assert choose([], "caller", (0.0, 0.0)) is None


@given(CANDIDATES, st.none() | st.text(max_size=3), THROWS)
def test_a_sure_one_goes_before_any_other_and_then_the_highest_priority(
    candidates: list[Candidate[str]], affinity_key: str | None, rng: tuple[float, float]
) -> None:
    taken = choose(candidates, affinity_key, rng)
    if not candidates:
        assert taken is None
        return
    (chosen,) = [candidate for candidate in candidates if candidate.item == taken]
    assert chosen.is_certain == any(candidate.is_certain for candidate in candidates)
    peers = [candidate.priority for candidate in candidates if candidate.is_certain == chosen.is_certain]
    assert chosen.priority == max(peers)


def test_a_lower_priority_is_not_asked_however_busy_the_higher_is() -> None:
    busy = [make("busy", priority=1, running=10_000), make("idle", weight=10_000)]
    assert choose_all(busy) == {"busy": 1.0, "idle": 0.0}


# Weights


@table_rows("weights", [(1, 1), (3, 1), (9, 1), (1, 1, 1), (5, 3, 2), (1, 0.1), (10_000, 1)])
def test_idle_channels_get_calls_by_their_weight(weights: tuple[float, ...]) -> None:
    shares = choose_all([make(str(number), weight=weight) for number, weight in enumerate(weights)])
    assert list(shares.values()) == pytest.approx([weight / sum(weights) for weight in weights], abs=0.01)


def serve(weights: Sequence[float], at_once: int, calls: int = 6_000) -> list[float]:
    """The part of the calls that each channel gets, so many being under way at a time; how long each takes varies."""
    rng = random.Random(11)  # noqa: S311 - loads, not secrets
    channels = [make(str(number), weight=weight) for number, weight in enumerate(weights)]
    under_way: list[tuple[float, int]] = []
    got: Counter[int] = Counter()
    for number in range(calls):
        while len(under_way) >= at_once:
            _, ended = heapq.heappop(under_way)
            channels[ended] = attrs.evolve(channels[ended], running=channels[ended].running - 1)
        taken = int(choose(channels, None, (rng.random(), rng.random())) or 0)
        channels[taken] = attrs.evolve(channels[taken], running=channels[taken].running + 1)
        got[taken] += 1
        heapq.heappush(under_way, (number + rng.expovariate(1 / at_once), taken))
    return [got[number] / calls for number in range(len(weights))]


@table_rows(("at_once", "off"), [(1, 0.02), (3, 0.09), (20, 0.03), (100, 0.02)])
@table_rows("weights", [(1, 1, 1), (3, 1), (5, 3, 2), (1, 0.1)])
def test_weights_hold_at_any_load(weights: tuple[float, ...], at_once: int, off: float) -> None:
    """As far as they can: of three calls at once one channel cannot have a quarter."""
    expected = [weight / sum(weights) for weight in weights]
    assert serve(weights, at_once) == pytest.approx(expected, abs=off)


# Load


def pile_up(channels: int, calls: int, *, looks: bool) -> int:
    """How much more the fullest has than the emptiest, where no call ends."""
    rng, running = random.Random(3), [0] * channels  # noqa: S311 - loads, not secrets
    for _ in range(calls):
        standing = [make(str(at), running=count if looks else 0) for at, count in enumerate(running)]
        running[int(choose(standing, None, (rng.random(), rng.random())) or 0)] += 1
    return max(running) - min(running)


def test_two_choices_even_out_what_chance_alone_does_not() -> None:
    assert pile_up(10, 2_000, looks=True) <= 6
    assert pile_up(10, 2_000, looks=False) >= 30


@given(
    st.integers(0, 40), st.integers(0, 40), st.sampled_from([0.1, 1.0, 3.0]), st.sampled_from([0.1, 1.0, 3.0]), THROWS
)
def test_of_two_the_one_that_is_fuller_for_its_weight_is_never_filled_further(
    one: int, other: int, weight: float, other_weight: float, rng: tuple[float, float]
) -> None:
    channels = [make("one", running=one, weight=weight), make("other", running=other, weight=other_weight)]
    taken = choose(channels, None, rng)
    load = {channel.name: (channel.running, channel.running + 1, channel.weight) for channel in channels}
    left = "other" if taken == "one" else "one"
    now, _, heavy = load[str(taken)]
    _, then, light = load[left]
    assert then * heavy > now * light * (1 - 1e-9)  # the other would be fuller with it than this one was without


@given(CANDIDATES, st.none() | st.text(max_size=3), THROWS)
def test_the_order_of_the_list_and_the_dice_decide_nothing_for_a_caller_that_stays(
    candidates: list[Candidate[str]], affinity_key: str | None, rng: tuple[float, float]
) -> None:
    if affinity_key is not None:
        assert choose(candidates, affinity_key, rng) == choose(candidates[::-1], affinity_key, (0.0, 0.0))
    elif len(candidates) == 1:
        assert choose(candidates, None, rng) == candidates[0].item


# Callers that stay

CALLERS = [f"7:caller-{number}" for number in range(3_000)]


def home(candidates: Sequence[Candidate[str]], caller: str) -> str | None:
    return choose(candidates, caller, (0.5, 0.5))


@given(CANDIDATES, st.text(max_size=5), st.integers(0, 10_000), THROWS)
def test_a_caller_stays_whatever_the_load(
    candidates: list[Candidate[str]], caller: str, running: int, rng: tuple[float, float]
) -> None:
    busy = [attrs.evolve(candidate, running=running) for candidate in candidates]
    assert choose(busy, caller, rng) == home(candidates, caller)


@given(CANDIDATES, st.lists(st.text(max_size=5), max_size=10))
def test_only_the_callers_of_a_removed_channel_move(candidates: list[Candidate[str]], callers: list[str]) -> None:
    for gone in candidates:
        left = [candidate for candidate in candidates if candidate is not gone]
        for caller in callers:
            before = home(candidates, caller)
            assert before == gone.item or home(left, caller) == before


@given(CANDIDATES, st.lists(st.text(max_size=5), max_size=10), st.data())
def test_callers_move_only_towards_the_channel_whose_weight_grows(
    candidates: list[Candidate[str]], callers: list[str], data: st.DataObject
) -> None:
    if not candidates:
        return
    heavier = data.draw(st.sampled_from(candidates))
    after = [attrs.evolve(one, weight=one.weight * 2) if one is heavier else one for one in candidates]
    for caller in callers:
        assert home(after, caller) in {home(candidates, caller), heavier.item}


@table_rows("weights", [(1, 1, 1), (5, 3, 2), (9, 1), (1, 0.1)])
def test_callers_spread_over_channels_by_weight(weights: tuple[float, ...]) -> None:
    channels = [make(f"channel {number}", weight=weight) for number, weight in enumerate(weights)]
    got = Counter(home(channels, caller) for caller in CALLERS)
    shares = [got[channel.name] / len(CALLERS) for channel in channels]
    assert shares == pytest.approx([weight / sum(weights) for weight in weights], abs=0.03)


def test_the_callers_of_a_removed_channel_spread_over_all_that_are_left() -> None:
    channels = [make(f"channel {number}") for number in range(4)]
    moved = [caller for caller in CALLERS if home(channels, caller) == "channel 0"]
    got = Counter(home(channels[1:], caller) for caller in moved)
    assert len(got) == 3
    assert min(got.values()) > 0.25 * len(moved)


def test_a_callers_place_is_the_same_in_every_process() -> None:
    channels = [make(name) for name in ("openai", "azure", "backup")]
    assert [home(channels, caller) for caller in CALLERS[:8]] == [
        "azure", "openai", "backup", "backup", "backup", "azure", "openai", "openai",
    ]  # fmt: skip


@table_rows("caller", ["", "\0", "\ud800", "日本", "x" * 10_000])
def test_a_caller_may_say_anything(caller: str) -> None:
    assert home([make("a"), make("b")], caller) in {"a", "b"}


@table_rows("affinity_key", [None, "a caller"])
def test_what_a_channel_that_has_just_come_up_does_not_get_goes_to_the_next_priority(affinity_key: str | None) -> None:
    warm = Candidate("first", "first", priority=1, weight=0.25, share=0.25)
    cold = Candidate("second", "second")
    points = [(n + 0.5) / 1_000 for n in range(1_000)]
    chosen = [choose([warm, cold], affinity_key, (0.5, point)) for point in points]
    assert chosen.count("first") == 250
    assert [choose([warm], affinity_key, (0.5, point)) for point in points] == ["first"] * 1_000
    well = attrs.evolve(warm, share=1.0)
    assert {choose([well, cold], affinity_key, (0.5, point)) for point in points} == {"first"}


@given(THROWS)
def test_what_only_may_offer_the_model_is_not_asked_to_spare_one_that_has_just_come_up(
    rng: tuple[float, float],
) -> None:
    warm = Candidate("sure", "sure", priority=1, weight=0.1, share=0.1)
    assert choose([warm, Candidate("guess", "guess", is_certain=False)], None, rng) == "sure"
    chosen = choose([warm, make("spare"), Candidate("guess", "guess", is_certain=False)], None, rng)
    assert chosen == ("sure" if rng[1] < 0.1 else "spare")
