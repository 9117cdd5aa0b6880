"""The steps of a route: which one a request enters, after which cause, and which are passed over."""

from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.price import ONE_PPM
from gateway.domain.route import CAUSES, Cause, ModelShare, Route, RouteStep, StepCondition
from gateway.errors import (
    ContextExceeded,
    GatewayError,
    GroupNotAllowed,
    InvalidRequest,
    ModelNotAllowed,
    ModelNotFound,
    NoHealthyChannel,
    ProviderAuthError,
    ProviderBadResponse,
    ProviderError,
    ProviderRateLimited,
    ProviderRejected,
    ProviderTimeout,
    RequestCancelled,
    ShuttingDown,
    UnsupportedByProvider,
)
from gateway.formats.chat.anthropic.request import parse_messages_inference
from gateway.formats.embeddings.openai import parse_embeddings_inference
from gateway.routing.causes import find_cause
from gateway.routing.load_balancer import RetrySettings
from gateway.routing.step_list import StepList
from gateway.upstream.interface import StaleConnection
from gateway.videos.provider_api import SubmitOutcomeUnknown
from tests.support.called_functions import list_called
from tests.support.routing_calls import CALLER, RULES, RouterScenario, call_of, caller_of, channel, priced
from tests.support.table_rows import table_rows


def _out_of_credit() -> ProviderError:
    error = ProviderAuthError("no credit")
    error.out_of_credit = True
    return error


def _missing_model() -> ProviderError:
    error = ProviderRejected("no such model", status=404)
    error.retryable = True
    return error


ERRORS: dict[Cause, ProviderError] = {
    "unavailable": ProviderBadResponse("down"),
    "timeout": ProviderTimeout("late"),
    "rate_limited": ProviderRateLimited("slow down", status=429),
    "credit": _out_of_credit(),
    "context": ContextExceeded("too long", status=400),
    "unsupported": UnsupportedByProvider("no tools"),
    "content": ProviderRejected("blocked", status=400, code="content_filter"),
    "invalid": ProviderRejected("wrong", status=400),
}
THREE = RetrySettings(RULES, max_attempts=3, least_retries=99)


def step(*models: str, **more: object) -> RouteStep:
    return RouteStep(tuple(ModelShare(model) for model in models), **more)  # type: ignore[arg-type]  # by keyword


def scenario(*steps: RouteStep, **more: Any) -> RouterScenario:
    """A route ``fast`` over one channel for each of the models ``a``, ``b`` and ``c``."""
    ups = [channel(f"up-{model}", model) for model in "abc"]
    return RouterScenario(*ups, routes=[Route("fast", steps)], settings=THREE, **more)


def walk(router: RouterScenario, *errors: ProviderError) -> list[str]:
    """The channels that are tried for the route where the attempts fail with ``errors``, the last again and again."""
    targets, attempt = router.begin(call_of("fast"))
    tried, failures = [attempt.channel.name], list(errors)
    while True:
        error = failures.pop(0) if len(failures) > 1 else failures[0]
        router.fail(attempt, error)
        following = targets.next(attempt) if targets.prepare_retry(attempt, error) else None
        if following is None:
            return tried
        attempt = following
        tried.append(attempt.channel.name)


@table_rows(("cause", "error"), ERRORS.items())
def test_an_error_has_one_cause(cause: Cause, error: ProviderError) -> None:
    assert find_cause(error) == cause


@pytest.mark.parametrize(
    "error",
    [
        SubmitOutcomeUnknown(ProviderTimeout("late", phase="headers")),
        RequestCancelled("cancelled", phase="cancel"),
        ShuttingDown("stopping", phase="shutdown"),
    ],
)
def test_nothing_follows_a_video_that_may_have_been_begun_or_an_end_from_outside(error: ProviderError) -> None:
    assert find_cause(error) is None
    every = step("b", causes=CAUSES)
    assert walk(scenario(step("a"), every), error) == ["up-a"]


def test_a_missing_model_and_a_broken_connection_are_unavailable() -> None:
    assert find_cause(_missing_model()) == "unavailable"
    assert find_cause(ProviderTimeout("no connection", phase="connect")) == "unavailable"
    assert find_cause(ProviderAuthError("wrong key")) == "unavailable"


@table_rows(("cause", "error"), ERRORS.items())
def test_a_step_is_tried_only_after_a_cause_that_it_takes(cause: Cause, error: ProviderError) -> None:
    others: tuple[Cause, ...] = tuple(other for other in CAUSES if other != cause)
    assert walk(scenario(step("a"), step("b", causes=others), step("c", causes=(cause,))), error)[:2] == [
        "up-a",
        "up-c",
    ]


@pytest.mark.parametrize("cause", ["content", "invalid"])
def test_content_and_mistakes_go_nowhere_by_default(cause: Cause) -> None:
    assert walk(scenario(step("a"), step("b"), step("c")), ERRORS[cause]) == ["up-a"]


@pytest.mark.parametrize("cause", ["unavailable", "timeout", "rate_limited", "credit", "context", "unsupported"])
def test_every_step_is_tried_once_in_order(cause: Cause) -> None:
    assert walk(scenario(step("a"), step("b"), step("c")), ERRORS[cause]) == ["up-a", "up-b", "up-c"]


def test_a_step_with_many_channels_leaves_an_attempt_to_each_later_one() -> None:
    ups = [channel(f"up-{number}", "a") for number in range(9)]
    route = Route("fast", (step("a"), step("b"), step("c")), max_attempts=5)
    router = RouterScenario(*ups, channel("up-b", "b"), channel("up-c", "c"), routes=[route], settings=THREE)
    tried = walk(router, ERRORS["unavailable"])
    assert [name in {"up-b", "up-c"} for name in tried] == [False] * 3 + [True] * 2


def test_one_channel_may_serve_several_steps_unless_it_cannot_be_reached() -> None:
    route = Route("fast", (step("a"), step("b")))
    router = RouterScenario(channel("up", "a", "b"), routes=[route], settings=THREE)
    assert walk(router, ERRORS["rate_limited"]) == ["up", "up"]
    unreachable = ProviderBadResponse("refused", phase="connect")
    router = RouterScenario(channel("up", "a", "b"), routes=[route], settings=THREE)
    assert walk(router, unreachable) == ["up"]


def test_a_step_uses_only_the_channels_that_it_names() -> None:
    ups = [channel("azure-1", "a"), channel("openai", "a"), channel("azure-2", "a")]
    router = RouterScenario(*ups, routes=[Route("fast", (step("a", channels=("azure-*",)),))])
    assert set(router.names("fast")) == {"azure-1", "azure-2"}


def test_a_step_whose_channels_are_down_is_passed_over_and_on_record() -> None:
    router = scenario(step("a"), step("b"))
    router.trip("up-a", 100)
    targets, attempt = router.begin(call_of("fast"))
    assert attempt.channel.name == "up-b"
    assert isinstance(targets, StepList)
    assert [(passed.step, passed.cause, passed.channel) for passed in targets.passed] == [(1, "unavailable", "-")]


def test_a_route_hides_the_model_of_its_name_and_is_listed() -> None:
    ups = [channel("up-a", "a"), channel("up-b", "b")]
    router = RouterScenario(*ups, routes=[Route("a", (step("a"), step("b"))), Route("fast", (step("b"),))])
    assert {model.id: model.owned_by for model in router.list_models(CALLER)} == {
        "a": "gateway",
        "b": "system",
        "fast": "gateway",
    }
    assert router.names("a") == ["up-a", "up-b"]


def test_a_key_needs_the_name_of_the_route_and_not_those_of_its_models() -> None:
    router = scenario(step("a"))
    assert router.names("fast", caller_of(models=("fast",))) == ["up-a"]
    with pytest.raises(ModelNotAllowed):
        router.names("fast", caller_of(models=("a",)))
    assert [model.id for model in router.list_models(caller_of(models=("a",)))] == ["a"]


def test_a_route_without_any_channel_is_not_found() -> None:
    with pytest.raises(ModelNotFound, match="No channel serves a step of the route 'fast'"):
        scenario(step("z")).begin(call_of("fast"))


def test_what_is_unpriced_is_no_step_of_a_caller_who_needs_prices() -> None:
    router = scenario(step("a"), step("b"), prices=[priced("b", 1)], unpriced="refuse")
    assert router.names("fast") == ["up-b"]


@table_rows(
    ("condition", "more", "expected"),
    [
        (StepCondition(max_prompt_tokens=0), {}, "up-b"),
        (StepCondition(max_prompt_tokens=9), {}, "up-a"),
        (StepCondition(min_prompt_tokens=9), {}, "up-b"),
        (StepCondition(stream=True), {"stream": True}, "up-a"),
        (StepCondition(stream=True), {}, "up-b"),
        (StepCondition(tools=False), {"tools": [{"type": "function", "function": {"name": "f"}}]}, "up-b"),
        (StepCondition(images=False), {"messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}]}]}, "up-b"),
        (StepCondition(images=True), {}, "up-b"),
    ],
)  # fmt: skip
def test_a_step_that_does_not_fit_is_passed_over(
    condition: StepCondition, more: dict[str, object], expected: str
) -> None:
    _, attempt = scenario(step("a", condition=condition), step("b")).begin(call_of("fast", **more))
    assert attempt.channel.name == expected


def test_a_request_that_fits_no_step_is_told_why() -> None:
    router = scenario(step("a", condition=StepCondition(images=True)))
    with pytest.raises(InvalidRequest, match="step 1: the request has no images"):
        router.begin(call_of("fast"))


def test_a_step_that_only_takes_another_cause_is_not_entered_for_an_unfit_one() -> None:
    unfit = step("a", condition=StepCondition(images=True))
    with pytest.raises(InvalidRequest, match="step 1: unsupported"):
        scenario(unfit, step("b", causes=("rate_limited",))).begin(call_of("fast"))


def test_weights_hold_over_requests_and_a_conversation_stays() -> None:
    canary = RouteStep((ModelShare("a", 9), ModelShare("b", 1)))
    router = scenario(canary)
    firsts = [router.route(CALLER, call_of("fast")).rank()[0].model for _ in range(2_000)]
    assert 130 < firsts.count("b") < 270
    stays = {router.route(CALLER, call_of("fast", prompt_cache_key="chat 7")).rank()[0].model for _ in range(50)}
    assert len(stays) == 1


def test_the_other_model_of_a_step_follows_the_first() -> None:
    router = scenario(RouteStep((ModelShare("a", 9), ModelShare("b", 1))), step("c"))
    assert sorted(walk(router, ERRORS["unavailable"])[:2]) in (["up-a", "up-b"], ["up-a", "up-c"], ["up-b", "up-c"])


def test_a_deadline_ends_the_chain() -> None:
    route = Route("fast", (step("a"), step("b")), deadline_s=5)
    router = RouterScenario(channel("up-a", "a"), channel("up-b", "b"), routes=[route], settings=THREE)
    targets, attempt = router.begin(call_of("fast", stream=True))
    assert attempt.timeouts.first_byte_s == 5
    router.time += 3
    router.fail(attempt, ERRORS["unavailable"])
    assert targets.prepare_retry(attempt, ERRORS["unavailable"])
    second = targets.next(attempt)
    assert second is not None
    assert second.timeouts.first_byte_s == pytest.approx(2)
    router.time += 2
    assert not targets.prepare_retry(second, ERRORS["timeout"])


PRICES = st.lists(st.integers(0, 9), min_size=3, max_size=3)


@settings(max_examples=60)
@given(PRICES, st.integers(0, 10))
def test_only_affordable_steps_are_left_and_the_first_needs_the_cause(prices: list[int], room: int) -> None:
    """A prompt of some tokens at 0 to 9 nano-USD each, and room for ``room`` times these tokens."""
    router = scenario(
        step("a"), step("b"), step("c"), prices=[priced(model, one) for model, one in zip("abc", prices, strict=True)]
    )
    inference = call_of("fast", max_tokens=1)
    targets = router.route(CALLER, inference)
    assert isinstance(targets, StepList)
    targets.rank()
    tokens = inference.max_prompt_tokens
    left = targets.keep_affordable(room * tokens)
    cheap = [model for model, one in zip("abc", prices, strict=True) if one <= room]
    expected = cheap if len(cheap) < 3 else []
    assert [target.model for target in targets.targets if left] == expected
    assert all(target.find_reservation(inference) <= room * tokens for target in left)


def test_the_step_that_costs_too_much_needs_a_later_one_that_takes_the_cause() -> None:
    prices = [priced("a", 9), priced("b", 1)]
    for causes, expected in ((("budget",), ["b"]), (("rate_limited",), [])):
        router = scenario(step("a"), step("b", causes=causes), prices=prices)
        targets = router.route(CALLER, call_of("fast", max_tokens=1))
        targets.rank()
        assert [target.model for target in targets.keep_affordable(ONE_PPM // 10_000)] == expected


def test_a_request_insists_on_the_first_step_and_not_on_the_last_that_was_looked_at() -> None:
    router = scenario(step("a"), step("b"), step("c", causes=("rate_limited",)))
    for name in ("up-a", "up-b", "up-c"):
        router.trip(name, 100)
    targets = router.route(CALLER, call_of("fast"))
    assert isinstance(targets, StepList)
    ranked = [target.model for target in targets.rank()]
    attempt = targets.start("1", 99)
    assert (ranked, attempt.channel.name, targets.step, targets.passed) == (["a", "b", "c"], "up-a", 1, [])
    assert [target.model for target in targets.list_ahead()] == ["a", "b", "c"]


def test_what_is_reserved_covers_only_the_steps_ahead() -> None:
    router = scenario(step("a"), step("b"), step("c"))
    router.trip("up-a", 100)
    assert [target.model for target in router.route(CALLER, call_of("fast")).rank()] == ["b", "c"]


def test_a_stale_connection_does_not_leave_its_step_or_use_up_an_attempt() -> None:
    router = scenario(step("a"), step("b"), step("c"))
    stale, down = StaleConnection("closed", phase="headers"), ERRORS["unavailable"]
    assert walk(router, stale, down) == ["up-a", "up-a", "up-b", "up-c"]


def test_a_route_with_one_attempt_has_one() -> None:
    route = Route("fast", (step("a"), step("b")), max_attempts=1)
    router = RouterScenario(channel("up-a", "a"), channel("up-b", "b"), routes=[route], settings=THREE)
    assert walk(router, ERRORS["unavailable"]) == ["up-a"]


def test_no_attempt_begins_after_the_deadline() -> None:
    route = Route("fast", (step("a"), step("b")), deadline_s=5)
    router = RouterScenario(channel("up-a", "a"), channel("up-b", "b"), routes=[route], settings=THREE)
    targets, attempt = router.begin(call_of("fast"))
    router.fail(attempt, ERRORS["unavailable"])
    assert targets.prepare_retry(attempt, ERRORS["unavailable"])
    router.time += 5  # the retry has waited for the retry budget
    assert targets.next(attempt) is None


def test_what_continues_something_goes_to_the_step_that_has_it_whatever_causes_this_takes() -> None:
    router = scenario(step("a"), step("b", causes=("rate_limited",)))
    pinned = attrs.evolve(call_of("fast"), channel="up-b")
    assert router.begin(pinned)[1].channel.name == "up-b"


def test_a_line_of_a_batch_waits_for_a_full_step_and_passes_over_one_that_is_down() -> None:
    ups = [channel("up-a", "a", max_concurrency=1), channel("up-b", "b")]
    router = RouterScenario(*ups, routes=[Route("fast", (step("a"), step("b")))], settings=THREE)
    targets = router.route(CALLER, call_of("fast"))
    first = targets.targets[0]
    busy = router.board.acquire(first.state, first.endpoint_key, 1, retry=False)
    with pytest.raises(NoHealthyChannel, match="step 1 of the route 'fast' is full"):
        targets.leave_room()
    assert targets.busy
    router.board.release(busy)
    router.trip("up-a", 100)
    targets.leave_room()
    assert targets.start("1", 99).channel.name == "up-b"


def test_a_step_between_that_costs_too_much_is_on_record() -> None:
    prices = [priced("a", 1), priced("b", 9), priced("c", 1)]
    router = scenario(step("a"), step("b"), step("c"), prices=prices)
    inference = call_of("fast", max_tokens=1)
    targets = router.route(CALLER, inference)
    assert isinstance(targets, StepList)
    targets.rank()
    assert targets.drop_unaffordable(2 * inference.max_prompt_tokens)
    attempt = targets.start("1", 99)
    router.fail(attempt, ERRORS["unavailable"])
    assert targets.prepare_retry(attempt, ERRORS["unavailable"])
    following = targets.next(attempt)
    assert following is not None
    assert following.channel.name == "up-c"
    assert [(passed.step, passed.cause) for passed in targets.passed] == [(2, "budget")]


def test_who_may_not_use_any_step_is_told_why() -> None:
    ups = [channel("up-a", "a", groups=("staff",)), channel("up-b", "b", provider="anthropic")]
    router = RouterScenario(*ups, routes=[Route("fast", (step("a"),)), Route("vectors", (step("b"),))])
    with pytest.raises(GroupNotAllowed):
        router.route(caller_of("guests", "guests"), call_of("fast"))
    with pytest.raises(GatewayError, match="'b'"):
        router.route(CALLER, parse_embeddings_inference({"model": "vectors", "input": "hi"}))


@pytest.mark.parametrize("steps", [("openai",), ("openai", "custom"), ("openai", "anthropic")])
def test_the_gateway_counts_tokens_if_no_step_can(steps: tuple[str, ...]) -> None:
    ups = [channel(f"up-{number}", f"m{number}", provider=provider) for number, provider in enumerate(steps)]
    route = Route("fast", tuple(step(f"m{number}") for number in range(len(steps))))
    router = RouterScenario(*ups, routes=[route])
    inference = attrs.evolve(
        parse_messages_inference({"model": "fast", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}),
        operation="count_tokens",
    )
    names = [target.channel.provider for target in router.route(CALLER, inference).targets]
    assert names == (["anthropic"] if "anthropic" in steps else [])
    for up in ups:
        router.trip(up.name, 100)
    assert not router.route(CALLER, inference).targets


def test_a_route_with_one_step_takes_at_most_eight_calls_more_than_its_model() -> None:
    router = scenario(step("a"))

    def count(model: str) -> int:
        inference = call_of(model)

        def route_one() -> None:
            targets = router.route(CALLER, inference)
            targets.rank()
            router.board.release(targets.start("1", 99).slot)

        route_one()
        return len(list_called(route_one))

    plain, routed = count("a"), count("fast")
    assert routed - plain <= 8
