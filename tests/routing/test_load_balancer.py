"""How channels stand: what keeps a call away from one, what became of calls, and what a reload leaves as it is."""

from collections.abc import Sequence
from typing import Any

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from structlog.testing import capture_logs

from gateway import errors
from gateway.domain.channel import Channel
from gateway.domain.circuit_breaker import TRIAL_S, BreakerSettings
from gateway.routing.channel_state import FULL_WAIT_S, MAX_RATE_LIMITS, TRIAL_WAIT_S, ChannelSlot, KeyState
from gateway.routing.load_balancer import KEY_COOLDOWNS, REFUSED_S, LoadBalancer, RetrySettings
from tests.support.table_rows import table_rows

START = 1_000.0
CHAT = "openai_chat"
RULES = BreakerSettings(failures=3, cooldown_s=10, max_cooldown_s=300, ramp_s=10)


def channel(name: str = "up", *keys: str, **more: Any) -> Channel:
    return Channel(name, more.pop("provider", "custom"), f"http://{name}/v1", keys or ("key-1",), ("m",), **more)


class BalancerScenario(LoadBalancer):
    """A switchboard whose clock is turned by hand, and whose dice leave every cooldown as it is."""

    def __init__(self, *channels: Channel, **more: Any) -> None:
        self.time = START
        super().__init__(lambda: self.time, lambda: 0.5, settings=RetrySettings(RULES, **more), shared=None)
        self.set_channels(channels or [channel()])

    def call(
        self, name: str = "up", model: str = "m", *, account: int = 1, wire: str = CHAT, **more: Any
    ) -> ChannelSlot:
        return self.acquire(self.channels[name], (wire, model), account, **{"retry": False, **more})

    def obstacle(
        self, name: str = "up", model: str = "m", *, account: int = 1, wire: str = CHAT
    ) -> tuple[str, float] | None:
        return self.channels[name].find_obstacle((wire, model), account, self.time)

    def meet(self, *faults: errors.ProviderError, name: str = "up", model: str = "m", **more: Any) -> None:
        """Calls one after the other, each of which meets a fault."""
        prompt = more.pop("prompt", None)
        for error in faults:
            slot = self.call(name, model, **more)
            self.record_failure(slot, error, prompt)
            self.release(slot)

    def succeed(self, name: str = "up", model: str = "m", **more: Any) -> ChannelSlot:
        slot = self.call(name, model, **more)
        self.record_success(slot)
        self.release(slot)
        return slot


def broken() -> errors.ProviderError:
    return errors.ProviderBadResponse("it broke")


def out_of_reach() -> errors.ProviderError:
    return errors.ProviderBadResponse("it could not be reached", phase="connect")


def limited(provider_retry_after_s: float | None = None) -> errors.ProviderError:
    error = errors.ProviderRateLimited("slow down", status=429)
    error.provider_retry_after_s = provider_retry_after_s
    return error


def busy(provider_retry_after_s: float) -> errors.ProviderError:
    error = errors.ProviderBadResponse("it is overloaded")
    error.provider_retry_after_s = provider_retry_after_s
    return error


def refused() -> errors.ProviderError:
    return errors.ProviderRejected("no such thing", status=400)


# What keeps a call away


def test_nothing_is_in_the_way_of_a_channel_that_is_well() -> None:
    assert BalancerScenario().obstacle() is None


def test_a_channel_has_no_more_calls_at_once_than_it_may() -> None:
    board = BalancerScenario(channel(max_concurrency=2))
    first, _ = board.call(), board.call()
    assert board.obstacle() == ("full", FULL_WAIT_S)
    board.release(first)
    assert board.obstacle() is None


def test_a_channel_has_no_more_calls_a_minute_than_it_may() -> None:
    board = BalancerScenario(channel(rpm=60))
    passed = 0
    for _ in range(40):
        while board.obstacle() is None:
            board.succeed()
            passed += 1
        kind, wait = board.obstacle() or ("", 0.0)
        assert (kind, 0 < wait <= 1) == ("rate", True)
        board.time += wait
    assert passed <= 60 * (board.time - START) / 60 + 6 + 1
    assert passed >= 39


def test_calls_that_are_over_count_towards_the_minute() -> None:
    board = BalancerScenario(channel(rpm=1))
    board.succeed()
    assert board.obstacle() == ("rate", 60.0)


def test_in_its_cooldown_a_channel_is_left_alone_and_then_one_call_tries() -> None:
    board = BalancerScenario()
    board.meet(out_of_reach(), out_of_reach(), out_of_reach())
    assert board.obstacle() == ("cooling_down", 10.0)
    board.time += 10
    assert board.obstacle() is None
    trial = board.call()
    assert board.obstacle() == ("recovering", TRIAL_WAIT_S)
    board.record_success(trial)
    assert board.obstacle() is None
    board.release(trial)
    assert board.obstacle() is None


def test_a_trial_that_hangs_does_not_keep_all_others_away() -> None:
    board = BalancerScenario()
    board.meet(*[out_of_reach()] * 3)
    board.time += 10
    hanging = board.call()
    board.time += TRIAL_S
    board.succeed()
    assert board.obstacle() is None
    board.release(hanging)
    assert (board.obstacle(), board.channels["up"].breaker.state) == (None, "closed")


def test_a_trial_whose_caller_leaves_is_open_to_the_next() -> None:
    board = BalancerScenario()
    board.meet(*[out_of_reach()] * 3)
    board.time += 10
    board.release(board.call())
    assert board.obstacle() is None
    board.succeed()
    assert board.channels["up"].breaker.state == "closed"


def test_a_trial_that_could_not_be_said_leaves_the_trial_to_the_next() -> None:
    board = BalancerScenario()
    board.meet(*[out_of_reach()] * 3)
    board.time += 10
    board.meet(errors.UnsupportedByProvider("no words for it"))
    assert (board.obstacle(), board.channels["up"].breaker.state) == (None, "open")


@table_rows(
    ("error", "state"),
    [
        (out_of_reach(), "open"),
        (errors.ProviderTimeout("too late", phase="connect"), "open"),
        (refused(), "closed"),
        (limited(), "closed"),
        (errors.ProviderAuthError("not with this key"), "closed"),
        (errors.ShuttingDown("stopped"), "open"),
    ],
)
def test_a_trial_that_is_answered_in_whatever_way_finds_the_channel_well(
    error: errors.ProviderError, state: str
) -> None:
    board = BalancerScenario(channel("up", "key-1", "key-2"))
    board.meet(*[out_of_reach()] * 3)
    board.time += 10
    board.meet(error)
    assert board.channels["up"].breaker.state == state


# What is held against a channel


@table_rows("error", [refused(), errors.UnsupportedByProvider("no words for it"), errors.ShuttingDown("stopped")])
def test_what_is_nobodys_fault_is_held_against_nobody(error: errors.ProviderError) -> None:
    board = BalancerScenario()
    board.meet(*[error] * 50)
    assert board.obstacle() is None
    assert board.channels["up"].breaker.failures == 0


def test_a_refusal_is_an_answer_and_ends_a_row_of_failures() -> None:
    board = BalancerScenario()
    for _ in range(5):
        board.meet(broken(), broken(), refused())
    assert board.obstacle() is None


def test_a_provider_that_asks_to_be_left_alone_is_at_once() -> None:
    board = BalancerScenario()
    board.meet(busy(42.0))
    assert board.obstacle() == ("cooling_down", 42.0)


def test_it_is_left_alone_up_to_the_cap() -> None:
    board = BalancerScenario()
    board.meet(busy(86_400.0))
    assert board.obstacle() == ("cooling_down", 300.0)


def test_failures_of_calls_made_before_the_trip_are_not_held_against_it_again() -> None:
    board = BalancerScenario()
    slots = [board.call() for _ in range(8)]
    for slot in slots:
        board.record_failure(slot, busy(20.0))
        board.release(slot)
    assert [breaker.trips for *_, breaker in board.channels["up"].list_tripped()] == [1]
    assert board.obstacle() == ("cooling_down", 20.0)


def test_a_failure_after_the_first_byte_counts_too() -> None:
    board = BalancerScenario()
    for _ in range(RULES.min_calls):
        slot = board.call()
        board.record_success(slot)
        board.record_failure(slot, broken())
        board.release(slot)
        if board.obstacle():
            break
    assert board.obstacle() == ("cooling_down", 10.0)


def test_a_model_that_fails_again_and_again_is_tried_as_often_as_a_channel_is_probed() -> None:
    """Here a cooldown is 10 s, and grows for a channel that is out of reach."""
    board = BalancerScenario()
    for waits in ([10.0] * 5, [10.0, 20.0, 40.0]):
        fault = broken if waits[-1] == 10.0 else out_of_reach
        for wait in waits:
            while board.obstacle() is None:
                board.meet(fault())
            assert board.obstacle() == ("cooling_down", wait)
            board.time += wait


# Keys


def turn(board: BalancerScenario, calls: int, model: str = "m") -> list[str]:
    return [board.succeed(model=model).key.key for _ in range(calls)]


def test_keys_take_turns() -> None:
    assert turn(BalancerScenario(channel("up", "a", "b", "c")), 7) == ["a", "b", "c", "a", "b", "c", "a"]


def test_a_channel_without_a_key_has_an_empty_one() -> None:
    board = BalancerScenario(Channel("up", "custom", "http://up"))
    assert turn(board, 2) == ["", ""]


def test_a_key_that_is_refused_is_skipped_at_once_and_the_channel_is_not_to_blame() -> None:
    board = BalancerScenario(channel("up", "a", "b", "c"))
    board.meet(errors.ProviderAuthError("not with this key"))
    assert turn(board, 4) == ["b", "c", "b", "c"]
    breaker = board.channels["up"].breaker
    assert (breaker.state, breaker.failures, breaker.trips) == ("closed", 0, 0)


def test_a_refused_key_is_tried_again_soon_by_one_call_and_then_later_and_later() -> None:
    board = BalancerScenario(channel("up", "a"))
    waits = []
    for _ in range(9):
        board.meet(errors.ProviderAuthError("not with this key"))
        kind, wait = board.obstacle() or ("", 0.0)
        assert kind == "refused"
        waits.append(wait)
        board.time += wait
    assert waits == [1, 2, 4, 8, 16, 32, 64, RULES.cooldown_s * KEY_COOLDOWNS, RULES.cooldown_s * KEY_COOLDOWNS]
    trial = board.call()
    assert board.obstacle() == ("refused", TRIAL_WAIT_S)
    board.record_success(trial)
    board.release(trial)
    assert board.obstacle() is None


def test_a_refused_key_is_left_for_the_others_meanwhile() -> None:
    board = BalancerScenario(channel("up", "a", "b"))
    board.meet(errors.ProviderAuthError("not with this key"))
    board.time += REFUSED_S - 0.1
    assert turn(board, 2) == ["b", "b"]
    board.time += 0.1
    trials = turn(board, 2)
    assert sorted(trials) == ["a", "b"]


def test_where_every_key_is_refused_the_keys_are_in_the_way_until_the_first_may_be_tried() -> None:
    board = BalancerScenario(channel("up", "a", "b"))
    board.meet(errors.ProviderAuthError("not with this key"))
    board.time += 0.5
    board.meet(errors.ProviderAuthError("nor with that"))
    assert board.obstacle() == ("refused", 0.5)
    board.time += 0.5
    board.call()
    assert board.obstacle() == ("refused", 0.5)  # the one key is being tried, the other rests longer


def test_a_key_refused_to_many_calls_at_once_trips_once() -> None:
    board = BalancerScenario(channel("up", "a"))
    slots = [board.call() for _ in range(5)]
    for slot in slots:
        board.record_failure(slot, errors.ProviderAuthError("no"))
        board.release(slot)
    assert [breaker.trips for *_, breaker in board.channels["up"].keys[0].circuits.list_tripped()] == [1]


def test_a_rate_limit_is_of_one_key_and_one_model() -> None:
    board = BalancerScenario(channel("up", "a", "b"))
    board.meet(limited(7.0))
    assert turn(board, 2) == ["b", "b"]
    assert sorted(turn(board, 2, "other")) == ["a", "b"]
    board.meet(limited(30.0))
    assert (board.obstacle(), board.obstacle(model="other")) == (("keys", 7.0), None)
    board.time += 7
    assert board.obstacle() is None
    assert turn(board, 2) == ["a", "a"]


@table_rows(("asked", "waits"), [(None, 10.0), (0.5, 0.5), (86_400.0, 300.0)])
def test_a_rate_limit_lasts_as_long_as_the_provider_says_or_a_cooldown(asked: float | None, waits: float) -> None:
    board = BalancerScenario()
    board.meet(limited(asked))
    assert board.obstacle() == ("keys", waits)


def test_a_longer_limit_is_not_cut_short_by_a_shorter_one() -> None:
    board = BalancerScenario()
    slots = [board.call() for _ in range(2)]
    for slot, provider_retry_after_s in zip(slots, (60.0, 1.0), strict=True):
        board.record_failure(slot, limited(provider_retry_after_s))
        board.release(slot)
    assert board.obstacle() == ("keys", 60.0)


def test_a_key_remembers_no_more_limits_than_it_may_and_forgets_the_oldest() -> None:
    key = KeyState("a")
    for number in range(MAX_RATE_LIMITS + 1):
        key.record_limit(f"m{number}", 1, START + 60, START)
    key.record_limit("m1", 1, START + 90, START)
    assert len(key.rate_limit_hits) == MAX_RATE_LIMITS
    assert [key.find_limit_s(model, 1, START) for model in ("m0", "m1", "m2")] == [0.0, 90.0, 60.0]


def test_a_limit_that_has_passed_is_forgotten() -> None:
    key = KeyState("a")
    key.record_limit("m", 1, START, START)
    assert (key.find_limit_s("m", 1, START), key.rate_limit_hits) == (0.0, {})


def test_trouble_of_the_channel_during_the_trial_of_a_key_leaves_the_key_to_the_next() -> None:
    board = BalancerScenario(channel("up", "a"))
    board.meet(errors.ProviderAuthError("no"))
    board.time += 10 * KEY_COOLDOWNS
    board.meet(broken())
    assert board.obstacle() is None
    assert [breaker.state for *_, breaker in board.channels["up"].keys[0].circuits.list_tripped()] == ["open"]


def test_a_key_is_not_shown() -> None:
    board = BalancerScenario(channel("up", "sk-secret-key"))
    with capture_logs() as logs:
        board.meet(errors.ProviderAuthError("no"), name="up")
    slot = ChannelSlot(
        board.channels["up"], board.channels["up"].keys[0], (CHAT, "m"), 1, retry=False, generation=0, key_generation=0
    )
    assert "sk-secret-key" not in repr([board.channels, slot, logs])
    assert [(line["event"], line["reason"]) for line in logs] == [("key_tripped", "key 1 of 1")]


# Leases


def test_a_lease_ends_once() -> None:
    board = BalancerScenario()
    slot = board.call(retry=True)
    assert (board.running, board.retrying, board.channels["up"].running) == (1, 1, 1)
    for _ in range(3):
        board.release(slot)
    assert (board.running, board.retrying, board.channels["up"].running) == (0, 0, 0)


def test_a_retry_that_is_answered_is_a_call_like_any_other() -> None:
    board = BalancerScenario()
    slot = board.call(retry=True)
    board.record_success(slot)
    assert (board.running, board.retrying) == (1, 0)
    board.release(slot)
    assert (board.running, board.retrying) == (0, 0)


@table_rows(
    ("running", "retrying", "may"),
    [(0, 0, True), (3, 2, True), (3, 3, False), (15, 3, False), (16, 3, True), (50, 9, True), (50, 10, False)],
)
def test_retries_are_a_part_of_all_calls_and_a_few_always(running: int, retrying: int, may: bool) -> None:
    board = BalancerScenario(retry_ratio=0.2, least_retries=3)
    for number in range(running):
        board.call(retry=number < retrying)
    assert board.may_retry() == may


def test_without_a_budget_there_are_no_retries() -> None:
    assert not BalancerScenario(retry_ratio=0.0, least_retries=0).may_retry()


# A reload


def test_a_channel_that_stays_keeps_how_it_stands() -> None:
    board = BalancerScenario(channel("up", "a", "b"))
    board.meet(errors.ProviderAuthError("not with a"), limited(60.0), name="up")
    board.meet(*[out_of_reach()] * 3, model="other")
    running = ChannelSlot(
        board.channels["up"], board.channels["up"].keys[0], (CHAT, "m"), 1, retry=False, generation=0, key_generation=0
    )
    line = running.state
    board.set_channels([channel("up", "a", "b", weight=7, max_concurrency=9), channel("new")])
    assert board.channels["up"] is line
    assert (line.channel.weight, line.breaker.trips, board.obstacle()) == (7, 1, ("cooling_down", 10.0))
    assert (line.keys[0].find_wait_s((CHAT, "m"), 1, board.time), line.keys[1].find_limit_s("m", 1, board.time)) == (
        1,
        60,
    )
    assert line.keys[1].find_limit_s("x", 1, board.time) == 0


@table_rows("change", [{"base_url": "http://elsewhere/v1"}, {"provider": "vllm"}])
def test_a_channel_that_leads_elsewhere_begins_anew(change: dict[str, Any]) -> None:
    board = BalancerScenario()
    board.meet(*[out_of_reach()] * 3)
    board.set_channels([attrs.evolve(channel(), **change)])
    assert board.obstacle() is None
    assert board.channels["up"].breaker.trips == 0


def test_a_key_that_stays_keeps_how_it_stands_wherever_it_stands_now() -> None:
    board = BalancerScenario(channel("up", "a", "b"))
    board.meet(errors.ProviderAuthError("not with a"))
    board.set_channels([channel("up", "c", "b", "a")])
    assert turn(board, 4) == ["c", "b", "c", "b"]


def test_a_new_key_in_the_place_of_a_refused_one_is_used_at_once() -> None:
    board = BalancerScenario(channel("up", "bad"))
    board.meet(errors.ProviderAuthError("no"))
    assert board.obstacle() is not None
    board.set_channels([channel("up", "good")])
    assert turn(board, 1) == ["good"]


@table_rows(
    "after",
    [
        [],
        [channel("up", "other-key")],
        [attrs.evolve(channel(), base_url="http://elsewhere")],
        [channel("up", max_concurrency=1)],
    ],
    ids=["removed", "another key", "elsewhere", "smaller"],
)
def test_calls_under_way_at_a_channel_that_changes_end_cleanly(after: Sequence[Channel]) -> None:
    board = BalancerScenario(channel("up", max_concurrency=5))
    line, slots = board.channels["up"], [board.call(retry=True) for _ in range(3)]
    board.set_channels(after)
    assert (board.running, board.retrying) == (3, 3)
    for slot, end in zip(slots, (broken(), errors.ProviderAuthError("no"), None), strict=True):
        if end is None:
            board.record_success(slot)
        else:
            board.record_failure(slot, end)
        board.release(slot)
    assert (board.running, board.retrying, line.running) == (0, 0, 0)
    assert all(left.running == 0 for left in board.channels.values())


def test_calls_under_way_count_towards_the_new_limit_of_their_channel() -> None:
    board = BalancerScenario(channel("up"))
    slots = [board.call() for _ in range(3)]
    board.set_channels([channel("up", max_concurrency=2)])
    assert board.obstacle() == ("full", FULL_WAIT_S)
    board.release(slots[0])
    board.release(slots[1])
    assert board.obstacle() is None


def test_trouble_on_the_way_to_the_old_address_is_not_held_against_the_new() -> None:
    board = BalancerScenario()
    slots = [board.call() for _ in range(5)]
    board.set_channels([attrs.evolve(channel(), base_url="http://elsewhere")])
    for slot in slots:
        board.record_failure(slot, broken())
        board.release(slot)
    assert board.obstacle() is None


def test_a_raised_rate_is_of_use_at_once() -> None:
    board = BalancerScenario(channel(rpm=1))
    board.succeed()
    board.set_channels([channel(rpm=6_000)])
    assert board.obstacle() is None


def test_a_lifted_rate_is_no_obstacle() -> None:
    board = BalancerScenario(channel(rpm=1))
    board.succeed()
    board.set_channels([channel()])
    assert board.obstacle() is None


def test_channels_are_offered_as_they_were_given() -> None:
    board = BalancerScenario(channel("a"), channel("b"))
    board.set_channels([channel("b"), channel("c")])
    assert list(board.channels) == ["b", "c"]


def test_a_key_that_was_refused_is_not_rested_for_once_other_headers_go_with_it() -> None:
    board = BalancerScenario(channel(headers=(("x-key", "wrong"),)))
    board.meet(errors.ProviderAuthError("no"))
    board.set_channels([channel(headers=(("x-key", "wrong"),), priority=3)])
    assert board.obstacle() == ("refused", REFUSED_S)
    board.set_channels([channel(headers=(("x-key", "right"),))])
    assert board.obstacle() is None


def test_a_line_is_offered_until_its_channel_is_disabled_removed_or_leads_elsewhere() -> None:
    board = BalancerScenario(channel("a"), channel("b"), channel("c"), channel("d"))
    channels = dict(board.channels)
    elsewhere = attrs.evolve(channel("d"), base_url="http://elsewhere")
    board.set_channels([channel("a", priority=5), channel("b", status="disabled"), elsewhere])
    assert {name for name, line in channels.items() if line.offered} == {"a"}


# Whether anything can be called


def test_one_channel_that_may_be_well_is_enough() -> None:
    board = BalancerScenario(channel("a"), channel("b", status="disabled"))
    well = board.any_open
    board.meet(*[out_of_reach()] * 3, name="a")
    assert (well, board.any_open) == (True, False)  # the other is well, and disabled
    board.time += 10
    assert board.any_open
    board.call("a")
    assert board.any_open


def test_without_channels_nothing_is_open() -> None:
    board = BalancerScenario()
    board.set_channels([])
    assert not board.any_open


# Probes


def test_a_probe_that_finds_a_channel_well_opens_it_before_its_cooldown_is_over() -> None:
    board = BalancerScenario()
    board.meet(*[out_of_reach()] * 3)
    line = board.channels["up"]
    board.note_probe_answered(line, line.breaker.generation)
    assert board.obstacle() is None


def test_a_probe_that_finds_it_ill_lets_it_rest_for_longer() -> None:
    board = BalancerScenario()
    board.meet(*[out_of_reach()] * 3)
    line = board.channels["up"]
    board.note_probe_failed(line, line.breaker.generation, out_of_reach())
    assert board.obstacle() == ("cooling_down", 10.0)  # a probe within the cooldown makes it no longer
    board.time += 10
    board.note_probe_failed(line, line.breaker.generation, out_of_reach())
    assert board.obstacle() == ("cooling_down", 20.0)
    board.note_probe_failed(line, line.breaker.generation, busy(200.0))
    assert board.obstacle() == ("cooling_down", 200.0)


def test_a_probe_that_comes_too_late_says_nothing() -> None:
    board = BalancerScenario()
    line = board.channels["up"]
    board.meet(*[out_of_reach()] * 3)
    begun = line.breaker.generation
    board.time += 10
    board.meet(out_of_reach())
    board.note_probe_answered(line, begun)
    board.note_probe_failed(line, begun, broken())
    assert (board.obstacle(), line.breaker.trips) == (("cooling_down", 20.0), 2)
    board.time += 20
    board.call()
    board.note_probe_answered(line, line.breaker.generation)
    board.note_probe_failed(line, line.breaker.generation, broken())
    assert (line.breaker.state, line.breaker.trips) == ("half_open", 2)


def test_what_happens_to_a_channel_is_in_the_log_once() -> None:
    board = BalancerScenario()
    with capture_logs() as logs:
        board.meet(*[out_of_reach()] * 3)
        board.time += 10
        board.succeed()
        board.meet(limited(5.0))
    assert [(line["event"], line["channel"]) for line in logs] == [
        ("channel_tripped", "up"),
        ("channel_recovered", "up"),
        ("key_limited", "up"),
    ]
    assert (logs[0]["error"], logs[0]["cooldown_s"]) == ("it could not be reached", 10.0)


# Anything, in any order

FAULTS = [
    broken,
    out_of_reach,
    refused,
    limited,
    lambda: busy(5.0),
    lambda: errors.ProviderAuthError("no"),
    lambda: errors.UnsupportedByProvider("no"),
]
CHANNELS = [
    channel("a", "1", "2", max_concurrency=3),
    channel("a", "2"),
    attrs.evolve(channel("a", "1"), base_url="http://elsewhere"),
    channel("b", "1", rpm=600),
]


class Exchange(RuleBasedStateMachine):
    """Calls, their ends, reloads and time: no counter goes wrong, and no limit is passed."""

    def __init__(self) -> None:
        super().__init__()
        self.board = BalancerScenario(*CHANNELS[2:])
        self.slots: list[ChannelSlot] = []

    @rule(seconds=st.sampled_from([0.1, 3.0, 15.0, 200.0]))
    def wait(self, seconds: float) -> None:
        self.board.time += seconds

    @rule(
        name=st.sampled_from("ab"),
        model=st.sampled_from("mn"),
        retry=st.booleans(),
        account=st.sampled_from([1, 2]),
        insisting=st.booleans(),
    )
    def call(self, name: str, model: str, retry: bool, account: int, insisting: bool) -> None:
        if name not in self.board.channels:
            return
        line = self.board.channels[name]
        insisting = insisting and line.find_insisting_s((CHAT, model), account, self.board.time) is not None
        if insisting or self.board.obstacle(name, model, account=account) is None:
            self.slots.append(self.board.call(name, model, retry=retry, account=account, insisting=insisting))
            line = self.board.channels[name]
            assert line.channel.max_concurrency is None or line.running <= line.channel.max_concurrency

    @precondition(lambda self: self.slots)
    @rule(data=st.data(), fault=st.none() | st.sampled_from(FAULTS))
    def hear(self, data: st.DataObject, fault: Any) -> None:
        slot = data.draw(st.sampled_from(self.slots))
        if fault is None:
            self.board.record_success(slot)
        else:
            self.board.record_failure(slot, fault())

    @precondition(lambda self: self.slots)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(self.slots))
        self.slots.remove(slot)
        self.board.release(slot)

    @rule(data=st.data())
    def reload(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(CHANNELS), unique_by=lambda one: one.name))
        self.board.set_channels(chosen)

    @invariant()
    def what_runs_is_what_was_not_ended(self) -> None:
        board = self.board
        assert board.running == len(self.slots)
        assert 0 <= board.retrying <= board.running
        assert board.retrying == sum(slot.retry for slot in self.slots)
        for line in board.channels.values():
            assert line.running == sum(slot.state is line for slot in self.slots)

    @invariant()
    def every_wait_ends(self) -> None:
        for name in self.board.channels:
            kind, wait = self.board.obstacle(name) or ("none", 1.0)
            assert 0 < wait <= RULES.max_cooldown_s, kind

    @invariant()
    def what_is_plain_to_see_is_true(self) -> None:
        for line in self.board.channels.values():
            for model in "mn":
                place = (CHAT, model)
                for account in (1, 2):
                    assert not line.is_free(place) or line.find_obstacle(place, account, self.board.time) is None

    @invariant()
    def an_answer_changes_nothing_of_a_key_that_has_not_tripped(self) -> None:
        for line in self.board.channels.values():
            for key in line.keys:
                breaker = key.breaker
                assert breaker.trips or (breaker.state, breaker.failures, breaker.reason) == ("closed", 0, None)

    @invariant()
    def no_trial_is_counted_twice_or_lost(self) -> None:
        for line in self.board.channels.values():
            for circuits in (line.circuits, *(key.circuits for key in line.keys)):
                for *_, breaker in circuits.list_tripped():
                    assert breaker.trial_count >= (breaker.state == "half_open")

    def teardown(self) -> None:
        for slot in self.slots:
            self.board.release(slot)
        assert (self.board.running, self.board.retrying) == (0, 0)
        self.board.time += 10**6
        for name in self.board.channels:
            assert self.board.obstacle(name) is None


Exchange.TestCase.settings = settings(stateful_step_count=30)
TestExchange = Exchange.TestCase
