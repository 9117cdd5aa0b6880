"""Circuits: which failures keep whose calls away from what, and that nothing else is kept away."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain import circuits
from gateway.domain.circuit_breaker import BreakerSettings, CircuitBreaker
from tests.support.table_rows import table_rows

NOW = 1_000.0
RULES = BreakerSettings(failures=3, cooldown_s=8, max_cooldown_s=100, ramp_s=10)
M: circuits.EndpointKey = ("chat", "m")
A, B, C = 1, 2, 3


class CircuitScenario:
    """The circuits of a channel; its clock is turned by hand."""

    def __init__(self, *, several: int = 3, part: int = 1) -> None:
        self.now = NOW
        self.whole = CircuitBreaker()
        self.circuits = circuits.Circuits(self.whole, kinds_to_trip=several, kind_index=part)

    def begin(
        self, endpoint_key: circuits.EndpointKey = M, account: int = A, *, tries: bool = True
    ) -> circuits.StartedAttempt:
        return self.circuits.start_attempt(endpoint_key, account, self.now, as_trial=tries)

    def hear(
        self,
        begun: circuits.StartedAttempt,
        endpoint_key: circuits.EndpointKey = M,
        account: int = A,
        *,
        provider_retry_after_s: float = 0.0,
        prompt: int | None = None,
    ) -> CircuitBreaker | None:
        failure = circuits.Failure(
            self.now, RULES, "it broke", 0.5, provider_retry_after_s=provider_retry_after_s, prompt=prompt
        )
        return self.circuits.record_failure(endpoint_key, account, begun, failure)

    def fail(self, times: int = 1, endpoint_key: circuits.EndpointKey = M, account: int = A, **more: int) -> None:
        """Calls one after the other, each of which fails."""
        for _ in range(times):
            self.hear(self.begin(endpoint_key, account), endpoint_key, account, **more)

    def answer(
        self, endpoint_key: circuits.EndpointKey = M, account: int = A, begun: circuits.StartedAttempt | None = None
    ) -> None:
        begun = begun or self.begin(endpoint_key, account)
        self.circuits.record_success(endpoint_key, account, begun, self.now, RULES)

    def find_wait_s(self, endpoint_key: circuits.EndpointKey = M, account: int = A) -> float | None:
        return self.circuits.find_wait_s(endpoint_key, account, self.now)

    def open_to(self, endpoint_key: circuits.EndpointKey = M) -> list[int]:
        """The accounts whose calls pass."""
        return [account for account in (A, B, C) if self.find_wait_s(endpoint_key, account) == 0.0]


def test_one_account_that_fails_at_a_model_is_kept_away_from_that_model_alone() -> None:
    scene = CircuitScenario()
    scene.fail(3)
    assert scene.find_wait_s() == 8.0
    assert scene.find_wait_s(("chat", "n")) == scene.find_wait_s(("embeddings", "m")) == 0.0
    assert scene.open_to() == [B, C]
    assert scene.whole.state == "closed"


def test_two_accounts_for_whom_it_has_tripped_are_enough_for_everybody() -> None:
    scene = CircuitScenario()
    scene.fail(3, account=A)
    scene.fail(3, account=B)
    assert scene.open_to() == []


def test_as_many_accounts_in_a_row_as_would_trip_it_for_one_trip_it_for_everybody() -> None:
    scene = CircuitScenario()
    for account in (A, B):
        scene.fail(account=account)
    assert scene.open_to() == [A, B, C]
    scene.fail(account=C)
    assert scene.open_to() == []


def test_however_often_one_account_fails_its_failures_in_a_row_count_once_for_everybody() -> None:
    scene = CircuitScenario()
    for _ in range(50):
        scene.fail(3)
        scene.now += 100
    scene.fail(account=B)
    assert scene.circuits[M].shared.state == "closed"
    assert B in scene.open_to()


def test_an_answer_to_anybody_ends_the_row_of_accounts() -> None:
    scene = CircuitScenario()
    scene.fail(account=A)
    scene.fail(account=B)
    scene.answer(account=C)
    scene.fail(account=C)
    assert scene.open_to() == [A, B, C]


def test_one_account_that_alternates_good_and_bad_calls_shuts_nobody_else_out() -> None:
    scene = CircuitScenario()
    for number in range(200):
        if scene.find_wait_s() == 0.0:
            (scene.answer if number % 3 == 0 else scene.fail)()
        scene.now += 0.05
    assert scene.circuits[M].accounts[A].generation > 0, "it trips for that account"
    assert scene.circuits[M].shared.generation == 0


def test_an_account_that_takes_every_trial_does_not_make_the_others_wait_for_longer() -> None:
    scene = CircuitScenario()
    scene.fail(3, account=A)
    scene.fail(3, account=B)
    waits = []
    for _ in range(6):
        shared, own = scene.circuits[M].shared, scene.circuits[M].accounts[A]
        scene.now = max(shared.until, own.until)
        scene.fail(account=A)
        waits.append(shared.until - scene.now)
    assert waits == [16.0] + [16.0] * 5, "its own cooldown alone grows"
    assert scene.circuits[M].accounts[A].until - scene.now == 100.0


def test_a_provider_that_asks_for_rest_has_it_from_that_account_at_the_first_word() -> None:
    scene = CircuitScenario()
    scene.hear(scene.begin(), provider_retry_after_s=42.0)
    assert (scene.find_wait_s(), scene.open_to()) == (42.0, [B, C])


def test_the_same_prompt_again_says_little() -> None:
    scene = CircuitScenario()
    scene.fail(circuits.SAME_PROMPTS_PER_FAILURE, prompt=7)
    assert scene.open_to() == [A, B, C]
    scene.fail(prompt=8)
    scene.fail(prompt=9)
    assert scene.open_to() == [B, C]


def test_a_server_that_fails_at_one_prompt_again_and_again_is_not_asked_for_ever() -> None:
    scene = CircuitScenario()
    scene.fail(2 * circuits.SAME_PROMPTS_PER_FAILURE, prompt=7)
    assert scene.open_to() == [A, B, C]
    scene.fail(prompt=7)
    assert scene.open_to() == [B, C]


def test_a_failing_prompt_between_others_counts_once_each_time() -> None:
    scene = CircuitScenario()
    for prompt in (7, 8, 7):
        scene.fail(prompt=prompt)
    assert scene.open_to() == [B, C]


# The whole of it


def test_several_models_that_fail_and_none_that_answers_trip_the_whole_for_that_account() -> None:
    scene = CircuitScenario()
    for model in ("m", "n"):
        scene.fail(3, ("chat", model))
    assert scene.find_wait_s(("chat", "other")) == 0.0
    scene.fail(3, ("embeddings", "o"))
    assert scene.find_wait_s(("chat", "other")) == 8.0
    assert scene.open_to(("chat", "other")) == [B, C]
    assert scene.whole.state == "closed"


def test_that_happening_to_two_accounts_trips_it_for_everybody() -> None:
    scene = CircuitScenario()
    for account in (A, B):
        for model in "mno":
            scene.fail(3, ("chat", model), account)
    assert scene.whole.state == "open"


def test_where_another_model_answers_in_between_the_whole_is_well() -> None:
    scene = CircuitScenario()
    for model in "mnopq":
        scene.fail(3, ("chat", model))
        scene.now += 0.1
        scene.answer(("chat", "good"), B)
        scene.now += 0.1
    assert scene.open_to(("chat", "other")) == [A, B, C]


def test_one_model_that_fails_in_several_languages_is_one_model() -> None:
    scene = CircuitScenario()
    for wire in "abcde":
        scene.fail(3, (wire, "m"))
    assert scene.find_wait_s(("f", "other")) == 0.0


def test_what_is_told_apart_by_language_is() -> None:
    scene = CircuitScenario(several=2, part=0)
    for model in "mno":
        scene.fail(3, ("a", model))
    assert scene.find_wait_s(("c", "m")) == 0.0
    scene.fail(3, ("b", "m"))
    assert scene.find_wait_s(("c", "m")) == 8.0


# Trials, and calls in spite of a cooldown


def test_after_its_cooldown_one_call_tries_and_an_answer_opens_it() -> None:
    scene = CircuitScenario()
    scene.fail(3)
    scene.now += 8
    trial = scene.begin()
    assert scene.find_wait_s() is None
    scene.answer(begun=trial)
    assert scene.find_wait_s() == 0.0


def test_a_trial_that_ends_without_a_verdict_is_open_to_the_next() -> None:
    scene = CircuitScenario()
    scene.fail(3)
    scene.now += 8
    scene.circuits.abandon(scene.begin())
    assert scene.find_wait_s() == 0.0


def test_an_answer_to_a_call_made_in_spite_of_a_cooldown_ends_it() -> None:
    scene = CircuitScenario()
    scene.fail(3)
    begun = scene.begin(tries=False)
    assert scene.find_wait_s() == 8.0
    scene.answer(begun=begun)
    assert scene.find_wait_s() == 0.0


def test_a_failure_of_such_a_call_changes_nothing() -> None:
    scene = CircuitScenario()
    scene.fail(3)
    assert scene.hear(scene.begin(tries=False)) is None
    assert scene.find_wait_s() == 8.0


def test_a_call_begun_before_the_trip_says_nothing() -> None:
    scene = CircuitScenario()
    early = [scene.begin() for _ in range(9)]
    for begun in early:
        scene.hear(begun)
    assert (scene.find_wait_s(), scene.circuits[M].accounts[A].trips) == (8.0, 1)
    scene.answer(begun=early[0])
    assert scene.find_wait_s() == 8.0


def test_after_news_of_the_provider_whatever_cools_down_may_be_tried() -> None:
    scene = CircuitScenario()
    scene.fail(3)
    scene.circuits.end_cooldowns(scene.now)
    assert scene.find_wait_s() == 0.0
    scene.begin()
    assert scene.find_wait_s() is None


# Memory


def test_made_up_models_and_many_accounts_take_bounded_memory() -> None:
    scene = CircuitScenario()
    for number in range(3 * circuits.MAX_CIRCUITS):
        scene.fail(1 + number % 3, ("chat", f"made-up-{number}"))
    assert len(scene.circuits) == circuits.MAX_CIRCUITS
    for account in range(3 * circuits.MAX_ACCOUNTS):
        scene.fail(account=account)
        scene.answer(account=account)
    assert len(scene.circuits[M].accounts) == circuits.MAX_ACCOUNTS
    for account in range(3 * circuits.MAX_ACCOUNTS):
        scene.fail(account=account, prompt=5)
    assert len(scene.circuits[M].prompts) <= circuits.MAX_ACCOUNTS


def test_what_has_tripped_is_remembered_before_what_has_not() -> None:
    scene = CircuitScenario()
    scene.fail(3)
    for number in range(2 * circuits.MAX_CIRCUITS):
        scene.fail(1, ("chat", f"made-up-{number}"))
    assert scene.find_wait_s() == 8.0


@table_rows(("failures", "after_s"), [(1, 31.0), (3, 9 + circuits.FORGET_S)])
def test_old_failures_are_forgotten(failures: int, after_s: float) -> None:
    scene = CircuitScenario()
    scene.fail(failures)
    scene.circuits.tidy(scene.now + after_s - 2, RULES.window_s)
    assert M in scene.circuits
    scene.circuits.tidy(scene.now + after_s, RULES.window_s)
    assert not scene.circuits


# Anything, in any order

MODELS = ["m", "n", "o", "p"]


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(MODELS), st.sampled_from(["fail", "answer", "leave", "wait"])), max_size=60))
def test_whatever_one_account_does_nobody_else_notices(deeds: Sequence[tuple[str, str]]) -> None:
    scene = CircuitScenario()
    for model, deed in deeds:
        place = ("chat", model)
        if deed == "wait":
            scene.now += 7.0
        elif scene.find_wait_s(place) == 0.0:
            begun = scene.begin(place)
            if deed == "fail":
                scene.hear(begun, place)
            elif deed == "answer":
                scene.answer(place, begun=begun)
            scene.circuits.abandon(begun)
        assert scene.whole.state == "closed"
        for other in MODELS:
            assert scene.find_wait_s(("chat", other), B) == 0.0


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.sampled_from([A, B, C]), st.sampled_from(MODELS), st.sampled_from(["fail", "answer", "leave"])),
        max_size=80,
    )
)
def test_every_wait_ends_and_nobody_is_kept_away_for_ever(deeds: Sequence[tuple[int, str, str]]) -> None:
    scene = CircuitScenario()
    for account, model, deed in deeds:
        place = ("chat", model)
        if scene.find_wait_s(place, account) == 0.0:
            begun = scene.begin(place, account)
            if deed == "fail":
                scene.hear(begun, place, account)
            elif deed == "answer":
                scene.answer(place, account, begun)
            scene.circuits.abandon(begun)
        scene.now += 3.0
    scene.now += RULES.max_cooldown_s * 1.2
    for account in (A, B, C):
        for model in MODELS:
            assert scene.find_wait_s(("chat", model), account) == 0.0
    assert all(endpoint_key == circuits.ALL_ENDPOINTS or endpoint_key[0] == "chat" for endpoint_key in scene.circuits)
