"""A call becomes a route: who may serve it, at the price of its moment, and who is next when one fails."""

from typing import Any

import attrs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import errors
from gateway.domain.account import Account, ApiKey, Caller
from gateway.domain.capability import UNKNOWN_CAPABILITY, Capability
from gateway.domain.channel import Channel
from gateway.domain.image import ImageRequest
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.model_info import ModelInfo
from gateway.domain.operation import Operation
from gateway.domain.price import ONE_PPM, Price, PriceList
from gateway.domain.rate_limit import compute_smooth_burst
from gateway.domain.usage import Usage
from gateway.formats.chat.anthropic.request import parse_count_inference, parse_messages_inference
from gateway.formats.embeddings.openai import parse_embeddings_inference
from gateway.formats.images.openai import parse_images_inference
from gateway.routing.channel_state import ALL_INSISTING_RPM, INSISTING_RPM
from gateway.routing.load_balancer import RetrySettings
from gateway.routing.pricing_policy import PricingPolicy
from gateway.routing.target import Attempt
from gateway.routing.unsupported_operation import UnsupportedOperation
from tests.support.routing_calls import CALLER, MESSAGES, RULES, RouterScenario, call_of, caller_of, channel, priced
from tests.support.table_rows import table_rows

CHAT = "openai_chat"


def broken() -> errors.ProviderError:
    return errors.ProviderBadResponse("it broke")


def busy(provider_retry_after_s: float) -> errors.ProviderError:
    error = errors.ProviderBadResponse("it is overloaded")
    error.provider_retry_after_s = provider_retry_after_s
    return error


def limited() -> errors.ProviderError:
    return errors.ProviderRateLimited("slow down", status=429)


def not_found() -> errors.ProviderError:
    error = errors.ProviderRejected("no such model", status=404)
    error.retryable = True
    return error


def other_account(number: int) -> Caller:
    return Caller(Account(number, f"account-{number}"), ApiKey(number, number, "k", b"", ""))


def sent(attempt: Attempt, inference: InferenceRequest) -> dict[str, Any]:
    """The body that an attempt sends."""
    body = attempt.build_request(inference).body
    assert isinstance(body, bytes)
    value: dict[str, Any] = orjson.loads(body)
    return value


# Who may serve it


def test_every_channel_that_offers_the_model_is_an_option() -> None:
    assert RouterScenario(channel("b", "m"), channel("x", "other"), channel("a", "m")).names() == ["b", "a"]


def test_a_disabled_channel_is_none() -> None:
    assert RouterScenario(channel("a", "m", status="disabled"), channel("b", "m")).names() == ["b"]


def test_a_channel_whose_list_is_not_known_yet_comes_after_those_that_are_sure() -> None:
    early = channel("early", sync=True, priority=9)
    floor = RouterScenario(early, channel("sure", "m"))
    assert floor.walk(broken()) == ["sure", "early"]
    floor.catalog.apply_listing(early, [ModelInfo("m", 1, "v")])
    assert floor.walk(broken()) == ["early", "sure"]
    floor.catalog.apply_listing(early, [])
    floor.catalog.apply_listing(early, [])
    assert floor.names() == ["sure"]


def test_a_channel_whose_list_is_not_known_yet_is_not_asked_for_what_it_would_not_keep() -> None:
    with pytest.raises(errors.ModelNotFound):
        RouterScenario(channel("early", "gpt-*", sync=True)).options()


def test_a_model_nobody_serves_is_not_found_and_the_message_says_where_to_look() -> None:
    with pytest.raises(errors.ModelNotFound, match="GET /v1/models") as caught:
        RouterScenario(channel("a", "m")).options(call_of("nope"))
    assert (caught.value.status, caught.value.should_retry) == (404, False)


@table_rows(
    ("inference", "provider", "operation"),
    [
        (parse_embeddings_inference({"model": "m", "input": "a"}), "anthropic", "embeddings"),
        (InferenceRequest("completions", "m", {}), "gemini", "completions"),
        (InferenceRequest("rerank", "m", {}), "openai", "rerank"),
    ],
)
def test_an_operation_that_no_channel_of_the_model_takes_is_refused_with_one_that_works(
    inference: InferenceRequest, provider: str, operation: str
) -> None:
    with pytest.raises(UnsupportedOperation) as caught:
        RouterScenario(channel("a", "m", provider=provider)).options(inference)
    assert (caught.value.status, caught.value.param, caught.value.should_retry) == (400, "model", False)
    path = f"/v1/{operation}"
    assert caught.value.message == f"The endpoint {path} does not serve the model 'm'; POST /v1/chat/completions does"


WRONG_ENDPOINTS = [
    ("openai", "gpt-image-1", "videos", "/v1/images/generations"),
    ("openai", "sora-2", "images", "/v1/videos"),
    ("openai", "gpt-6-luna", "images", "/v1/chat/completions"),
    ("openai", "text-embedding-3-small", "images", "/v1/embeddings"),
    ("openai", "whisper-1", "videos", "/v1/audio/transcriptions"),
    ("openai", "gpt-4o-mini-tts", "rerank", "/v1/audio/speech"),
    ("gemini", "gemini-embedding-001", "rerank", "/v1/embeddings"),
    ("gemini", "veo-3.1-generate-preview", "speech", "/v1/videos"),
    ("openrouter", "openai/gpt-image-2", "transcriptions", "/v1/images/generations"),
    ("minimax", "MiniMax-Hailuo-2.3", "chat", "/v1/videos"),
    ("minimax", "MiniMax-Hailuo-2.3", "count_tokens", "/v1/videos"),
    ("minimax", "MiniMax-Hailuo-2.3", "messages", "/v1/videos"),
    ("kling", "kling-v2-5-turbo", "images", "/v1/videos"),
    ("demo", "demo-embedding", "images", "/v1/embeddings"),
    ("demo", "demo-embedding", "messages", "/v1/embeddings"),
    ("demo", "demo-embedding", "generate_content", "/v1beta/models/{model}:embedContent"),
    ("demo", "demo-chat", "embed_contents", "/v1beta/models/{model}:generateContent"),
    ("demo", "demo-chat", "embeddings", "/v1/chat/completions"),
    ("gemini", "gemini-3-pro", "speech", "/v1/chat/completions"),
    ("anthropic", "claude-5", "embed_contents", "/v1beta/models/{model}:generateContent"),
]


@table_rows(("provider", "model", "operation", "path"), WRONG_ENDPOINTS)
def test_the_endpoint_that_is_named_is_the_one_the_model_is_for(
    provider: str, model: str, operation: Operation, path: str
) -> None:
    with pytest.raises(UnsupportedOperation) as caught:
        RouterScenario(channel("a", model, provider=provider)).options(InferenceRequest(operation, model, {}))
    assert caught.value.message.endswith(f"; POST {path} does")


def test_only_channels_that_take_the_operation_are_options() -> None:
    floor = RouterScenario(channel("claude", "m", provider="anthropic"), channel("a", "m"))
    assert [
        target.channel.name for target in floor.options(parse_embeddings_inference({"model": "m", "input": "a"}))
    ] == ["a"]


def test_counting_where_nobody_counts_has_no_options_and_is_not_refused() -> None:
    floor, inference = RouterScenario(channel("a", "m")), parse_count_inference({"model": "m", "messages": MESSAGES})
    route = floor.route(CALLER, inference)
    assert (list(route.targets), route.rank()) == ([], [])
    with pytest.raises(errors.ModelNotFound):
        floor.options(attrs.evolve(inference, model="nope"))
    with pytest.raises(errors.ModelNotAllowed):
        floor.options(inference, caller_of(models=("other",)))


def test_counting_goes_to_those_that_count() -> None:
    floor = RouterScenario(channel("a", "m"), channel("claude", "m", provider="anthropic"))
    (target,) = floor.options(parse_count_inference({"model": "m", "messages": MESSAGES}))
    assert (target.channel.name, target.endpoint.wire) == ("claude", "anthropic_count_tokens")


def test_counting_is_estimated_where_those_that_count_cannot_now() -> None:
    floor, inference = (
        RouterScenario(channel("claude", "m", provider="anthropic")),
        parse_count_inference({"model": "m", "messages": MESSAGES}),
    )
    for _ in range(RULES.failures):
        floor.walk(broken(), inference)
    assert floor.route(CALLER, inference).rank() == []


# What is sent


def test_an_alias_reaches_the_provider_under_its_own_name() -> None:
    inference = call_of("ours")
    _, attempt = RouterScenario(channel("a", model_map=(("ours", "theirs"),))).begin(inference)
    http_request = attempt.build_request(inference)
    assert http_request.url == "http://a/v1/chat/completions"
    assert http_request.headers["Authorization"] == "Bearer key-of-a"
    assert sent(attempt, inference)["model"] == "theirs"
    assert inference.body["model"] == "ours"


def test_embeddings_go_to_their_own_path() -> None:
    inference = parse_embeddings_inference({"model": "m", "input": "a"})
    _, attempt = RouterScenario(channel("a", "m")).begin(inference)
    assert attempt.build_request(inference).url == "http://a/v1/embeddings"


def test_a_channel_without_a_key_sends_none() -> None:
    _, attempt = RouterScenario(channel("a", "m", keys=())).begin()
    assert "Authorization" not in attempt.build_request(call_of()).headers


def test_every_attempt_is_made_with_the_key_of_its_turn() -> None:
    floor, keys = RouterScenario(channel("a", "m", keys=("one", "two"))), []
    for _ in range(3):
        _, attempt = floor.begin()
        keys.append(attempt.build_request(call_of()).headers["Authorization"])
    assert keys == ["Bearer one", "Bearer two", "Bearer one"]


def test_what_is_sent_has_the_vendors_quirks() -> None:
    inference = call_of(max_completion_tokens=7, messages=[{"role": "developer", "content": "be brief"}, *MESSAGES])
    _, attempt = RouterScenario(channel("a", "m", provider="deepseek")).begin(inference)
    body = sent(attempt, inference)
    assert (body["max_tokens"], body["messages"][0]["role"]) == (7, "system")
    assert "max_completion_tokens" not in body
    assert (inference.body["max_completion_tokens"], inference.body["messages"][0]["role"]) == (7, "developer")


def test_the_next_attempt_is_not_sent_the_quirks_of_the_one_before() -> None:
    inference = call_of(max_completion_tokens=7)
    floor = RouterScenario(channel("a", "m", provider="deepseek", priority=1), channel("b", "m"))
    route, first = floor.begin(inference)
    assert "max_tokens" in sent(first, inference)
    floor.fail(first, broken())
    assert route.prepare_retry(first, broken())
    second = route.next(first)
    assert second is not None
    assert sent(second, inference) == inference.body


def test_a_channel_of_another_language_is_spoken_to_in_that() -> None:
    inference = call_of(stream=True)
    _, attempt = RouterScenario(channel("a", "m", provider="gemini")).begin(inference)
    http_request = attempt.build_request(inference)
    assert http_request.url.startswith("http://a/v1/models/m:streamGenerateContent")
    assert sent(attempt, inference)["contents"] == [{"role": "user", "parts": [{"text": "hi"}]}]


FEATURES = {"anthropic-beta": "context-1m-2025-08-07", "anthropic-version": "2024-01-01"}


@table_rows(("provider", "reported"), [("anthropic", FEATURES), ("deepseek", FEATURES), ("custom", {}), ("gemini", {})])
def test_a_callers_features_go_with_a_body_in_anthropics_language_only(provider: str, reported: dict[str, str]) -> None:
    body = {"model": "m", "max_tokens": 5, "messages": MESSAGES}
    inference = attrs.evolve(parse_messages_inference(body, "context-1m-2025-08-07"), version="2024-01-01")
    _, attempt = RouterScenario(channel("a", "m", provider=provider)).begin(inference)
    headers = attempt.build_request(inference).headers
    assert {name: value for name, value in headers.items() if name.startswith("anthropic")} == reported


def test_where_a_caller_names_no_version_the_vendors_own_is_sent() -> None:
    inference = parse_messages_inference({"model": "m", "max_tokens": 5, "messages": MESSAGES})
    _, attempt = RouterScenario(channel("a", "m", provider="anthropic")).begin(inference)
    headers = attempt.build_request(inference).headers
    assert headers["anthropic-version"] == "2023-06-01"
    assert "anthropic-beta" not in headers


def test_a_channels_own_headers_are_laid_over_a_callers_features() -> None:
    inference = parse_messages_inference({"model": "m", "max_tokens": 5, "messages": MESSAGES}, "context-1m-2025-08-07")
    _, attempt = RouterScenario(channel("a", "m", provider="anthropic", headers=(("Anthropic-Beta", "ours"),))).begin(
        inference
    )
    assert {name.lower(): value for name, value in attempt.build_request(inference).headers.items()}[
        "anthropic-beta"
    ] == "ours"


# Who is next


def test_a_channel_that_failed_is_not_tried_again() -> None:
    tried = RouterScenario(*[channel(name, "m") for name in "abcd"]).walk(broken())
    assert sorted(tried) == list("abcd")


def test_one_priority_is_exhausted_before_the_next() -> None:
    floor = RouterScenario(
        channel("last", "m", priority=-1),
        channel("b1", "m"),
        channel("first", "m", priority=5),
        channel("b2", "m", weight=9),
    )
    tried = floor.walk(broken())
    assert (tried[0], set(tried[1:3]), tried[3]) == ("first", {"b1", "b2"}, "last")


@given(
    st.lists(st.tuples(st.integers(-2, 2), st.booleans()), min_size=1, max_size=7), st.randoms(use_true_random=False)
)
def test_whoever_is_tried_no_better_one_was_left(kinds: list[tuple[int, bool]], chance: Any) -> None:
    channels = {
        f"c{number}": channel(f"c{number}", *(["m"] if sure else []), sync=not sure, priority=priority)
        for number, (priority, sure) in enumerate(kinds)
    }
    floor = RouterScenario(*channels.values())
    floor.throws = iter(chance.random, None)
    tried = [channels[name] for name in floor.walk(broken())]
    assert len(tried) == len(channels)
    ranks = [(not one.sync, one.priority) for one in tried]
    assert ranks == sorted(ranks, reverse=True)


def test_a_channel_that_is_down_or_full_is_passed_over() -> None:
    floor = RouterScenario(
        channel("down", "m", priority=9),
        channel("full", "m", priority=8, max_concurrency=1),
        channel("rate", "m", priority=7, rpm=1),
        channel("well", "m"),
    )
    floor.trip("down", 60)
    assert [floor.begin()[1].channel.name for _ in range(3)] == ["full", "rate", "well"]


@table_rows("error", [errors.ProviderAuthError("not with this key"), limited()])
def test_trouble_with_a_key_leaves_the_channels_other_key(error: errors.ProviderError) -> None:
    floor = RouterScenario(channel("a", "m", keys=("one", "two"), priority=1), channel("b", "m"))
    route, first = floor.begin()
    floor.fail(first, error)
    assert route.prepare_retry(first, error)
    second = route.next(first)
    assert second is not None
    assert (second.channel.name, first.slot.key.key, second.slot.key.key) == ("a", "one", "two")
    floor.fail(second, error)
    assert route.prepare_retry(second, error)
    third = route.next(second)
    assert third is not None
    assert third.channel.name == "b"


def test_trouble_with_the_channel_takes_its_other_keys_along() -> None:
    assert RouterScenario(channel("a", "m", keys=("one", "two"))).walk(broken()) == ["a"]


def test_the_only_key_of_a_channel_is_the_channel() -> None:
    assert RouterScenario(channel("a", "m", priority=1), channel("b", "m")).walk(limited()) == ["a", "b"]


def test_what_one_provider_does_not_have_another_may() -> None:
    assert RouterScenario(channel("a", "m", priority=1), channel("b", "m")).walk(not_found()) == ["a", "b"]


def test_what_is_the_callers_mistake_is_its_answer() -> None:
    assert RouterScenario(channel("a", "m", priority=1), channel("b", "m")).walk(
        errors.ProviderRejected("no", status=400)
    ) == ["a"]


@table_rows("most", [1, 2, 3, 5])
def test_no_more_attempts_are_made_than_may(most: int) -> None:
    floor = RouterScenario(
        *[channel(f"c{number}", "m") for number in range(4)], settings=RetrySettings(RULES, most, 1.0, 99)
    )
    assert len(floor.walk(broken())) == min(most, 4)


def test_every_attempt_but_the_first_is_a_retry() -> None:
    floor = RouterScenario(channel("a", "m"), channel("b", "m"))
    route, first = floor.begin()
    assert (floor.board.running, floor.board.retrying) == (1, 0)
    floor.fail(first, broken())
    assert route.prepare_retry(first, broken())
    route.next(first)
    assert (floor.board.running, floor.board.retrying) == (1, 1)


def test_a_channel_that_fills_up_before_its_turn_is_not_taken() -> None:
    floor = RouterScenario(channel("a", "m", priority=1), channel("b", "m", max_concurrency=1))
    route, first = floor.begin()
    floor.fail(first, broken())
    assert route.prepare_retry(first, broken())
    floor.board.acquire(floor.board.channels["b"], (CHAT, "m"), 1, retry=False)
    assert route.next(first) is None


@table_rows("left", [[], [channel("b", "m", status="disabled")]])
def test_a_channel_that_goes_while_the_first_is_tried_is_not_the_second(left: list[Channel]) -> None:
    first_of_all = channel("a", "m", priority=1)
    floor = RouterScenario(first_of_all, channel("b", "m"))
    route, first = floor.begin()
    floor.use(first_of_all, *left)
    floor.fail(first, errors.ProviderBadResponse("broke"))
    assert not route.prepare_retry(first, errors.ProviderBadResponse("broke"))
    assert route.next(first) is None


def test_a_channel_that_goes_between_ranking_and_its_turn_is_not_taken() -> None:
    floor = RouterScenario(channel("a", "m", priority=1), channel("b", "m"))
    route = floor.route(CALLER, call_of())
    assert route.rank()[0].channel.name == "a"
    floor.use(channel("b", "m"))
    assert route.start("x", 0).channel.name == "b"


def test_an_answer_keeps_its_id_and_its_time_over_all_attempts() -> None:
    floor = RouterScenario(channel("a", "m"), channel("b", model_map=(("m", "theirs"),)))
    route, first = floor.begin()
    floor.fail(first, broken())
    assert route.prepare_retry(first, broken())
    second = route.next(first)
    assert second is not None
    identity = second.translator.identity
    assert (identity.id, identity.now_s, identity.model) == ("1", 99, second.target.model)


# What a language has no words for


def test_a_channel_without_words_for_it_leaves_it_to_the_next() -> None:
    floor, inference = (
        RouterScenario(channel("claude", "m", provider="anthropic", priority=1), channel("a", "m")),
        call_of(logit_bias={"1": 1}),
    )
    route, first = floor.begin(inference)
    with pytest.raises(errors.UnsupportedByProvider) as caught:
        first.build_request(inference)
    error = caught.value
    assert (error.status, error.param, error.public_code) == (400, "logit_bias", "invalid_request")
    floor.fail(first, error)
    assert route.prepare_retry(first, error)
    second = route.next(first)
    assert second is not None
    assert (second.channel.name, sent(second, inference)["logit_bias"]) == ("a", {"1": 1})


def test_where_nobody_has_words_for_it_the_answer_names_the_field() -> None:
    floor, inference = (
        RouterScenario(*[channel(name, "m", provider="anthropic") for name in "abc"]),
        call_of(logit_bias={"1": 1}),
    )
    route, attempt = floor.begin(inference)
    faults: list[errors.UnsupportedByProvider] = []
    while True:
        with pytest.raises(errors.UnsupportedByProvider) as caught:
            attempt.build_request(inference)
        faults.append(caught.value)
        floor.fail(attempt, caught.value)
        following = route.next(attempt) if route.prepare_retry(attempt, caught.value) else None
        if following is None:
            break
        attempt = following
    assert [(error.status, error.param) for error in faults] == [(400, "logit_bias")] * 3


def test_what_was_not_sent_is_neither_an_attempt_nor_a_retry() -> None:
    mute = [channel(f"mute{number}", "m", priority=9) for number in range(5)]
    floor = RouterScenario(
        *mute, channel("a", "m"), settings=RetrySettings(RULES, max_attempts=1, retry_ratio=0, least_retries=0)
    )
    route, attempt = floor.begin()
    for _ in mute:
        error = errors.UnsupportedByProvider("no words for it", param="n")
        floor.fail(attempt, error)
        assert route.prepare_retry(attempt, error)
        following = route.next(attempt)
        assert following is not None
        attempt = following
    assert (attempt.channel.name, floor.board.running, floor.board.retrying) == ("a", 1, 0)
    floor.fail(attempt, broken())
    assert not route.prepare_retry(attempt, broken())  # it was the one attempt that may be made


def test_a_channel_without_words_for_it_is_as_well_as_before() -> None:
    floor = RouterScenario(channel("a", "m"))
    for _ in range(10):
        floor.walk(errors.UnsupportedByProvider("no words for it"))
    assert floor.board.channels["a"].find_obstacle((CHAT, "m"), 1, floor.time) is None


# Nobody can at the moment


def count_calls(floor: RouterScenario, caller: Caller = CALLER) -> int:
    """How many calls of ``caller`` pass at once; each of them fails."""
    for number in range(1_000):
        try:
            attempt = floor.route(caller, call_of()).start("1", 99)
        except errors.NoHealthyChannel as fault:
            assert (fault.status, fault.retry_after_s, fault.should_retry) == (503, 1, None)  # noqa: PT017 - counted
            return number
        floor.fail(attempt, broken())
    pytest.fail("nothing bounds them")


@table_rows("channels", [1, 3])
def test_where_all_are_down_calls_are_still_tried_at_a_bounded_rate(channels: int) -> None:
    floor = RouterScenario(*[channel(f"c{number}", "m") for number in range(channels)])
    for number in range(channels):
        floor.trip(f"c{number}", 300.0)
    assert count_calls(floor) == channels * compute_smooth_burst(INSISTING_RPM)
    passed = 0
    for _ in range(60):
        floor.time += 1
        passed += count_calls(floor)
    assert passed == 60 * channels * INSISTING_RPM // 60
    assert all(line.breaker.state == "open" for line in floor.board.channels.values())


def test_one_account_that_calls_without_end_leaves_others_their_turns_at_a_channel_that_is_down() -> None:
    floor = RouterScenario(channel("up", "m"))
    floor.trip("up", 300.0)
    passed = 0
    for _ in range(50):
        count_calls(floor)
        floor.time += 1
        passed += count_calls(floor, other_account(2))
    assert passed >= 50


def test_all_accounts_together_are_bounded_too() -> None:
    floor = RouterScenario(channel("up", "m"))
    floor.trip("up", 300.0)
    passed = sum(count_calls(floor, other_account(number)) for number in range(2, 100))
    assert passed == compute_smooth_burst(ALL_INSISTING_RPM)


def test_one_such_call_that_is_answered_ends_the_cooldown() -> None:
    floor = RouterScenario(channel("up", "m"))
    floor.trip("up", 300.0)
    _, attempt = floor.begin()
    floor.board.record_success(attempt.slot)
    floor.board.release(attempt.slot)
    assert floor.board.channels["up"].state == "closed"
    assert floor.board.channels["up"].is_free((CHAT, "m"))


def test_where_another_channel_serves_one_that_is_down_is_left_alone() -> None:
    floor = RouterScenario(channel("ill", "m", priority=1), channel("well", "m"))
    floor.trip("ill", 300.0)
    assert {floor.begin()[1].channel.name for _ in range(20)} == {"well"}


def find_refusal(floor: RouterScenario) -> tuple[int, str | None, int | None]:
    """The status, code and wait of the next request, which no channel takes."""
    with pytest.raises(errors.NoHealthyChannel) as caught:
        floor.begin()
    return caught.value.status, caught.value.public_code, caught.value.retry_after_s


def test_while_every_channel_waits_for_a_rate_limit_a_request_gets_429() -> None:
    floor = RouterScenario(channel("own", "m", rpm=1), channel("theirs", "m"))
    attempts = [floor.begin()[1] for _ in range(2)]
    error = limited()
    error.provider_retry_after_s = 33.0
    floor.fail(next(attempt for attempt in attempts if attempt.channel.name == "theirs"), error)
    assert find_refusal(floor) == (429, "rate_limit_exceeded", 33)


def test_a_rate_limit_of_one_channel_does_not_hide_that_another_is_full() -> None:
    floor = RouterScenario(channel("limited", "m", rpm=1), channel("full", "m", max_concurrency=1))
    assert {floor.begin()[1].channel.name for _ in range(2)} == {"limited", "full"}
    assert find_refusal(floor) == (503, "no_available_channel", 1)


def test_a_long_wait_tells_the_client_libraries_not_to_retry() -> None:
    floor = RouterScenario(channel("off", "m", rpm=1), channel("full", "m", max_concurrency=1))
    floor.trip("full", 300.0)
    floor.board.channels["full"].offered = False
    floor.begin()
    with pytest.raises(errors.NoHealthyChannel) as caught:
        floor.begin()
    assert (caught.value.status, caught.value.retry_after_s, caught.value.should_retry) == (503, 60, False)


@table_rows(("more", "reported"), [({"max_concurrency": 1}, 1), ({"rpm": 1}, 60), ({"rpm": 60}, 1)])
def test_a_full_channel_tells_when_it_has_room(more: dict[str, Any], reported: int) -> None:
    floor = RouterScenario(channel("a", "m", **more))
    for _ in range(7):
        try:
            floor.begin()
        except errors.NoHealthyChannel as fault:
            assert fault.retry_after_s == reported  # noqa: PT017 - how many pass before is not the point
            break
    else:
        pytest.fail("it never filled up")


def test_where_every_key_is_limited_for_a_model_only_that_model_waits() -> None:
    floor = RouterScenario(channel("a", "m", "n"))
    error = limited()
    error.provider_retry_after_s = 33.0
    floor.fail(floor.begin()[1], error)
    with pytest.raises(errors.NoHealthyChannel) as caught:
        floor.begin()
    assert caught.value.retry_after_s == 33
    assert floor.begin(call_of("n"))[1].channel.name == "a"


def test_a_provider_that_asks_for_rest_is_not_asked_by_the_next_call() -> None:
    floor = RouterScenario(channel("a", "m", priority=1), channel("b", "m"))
    floor.fail(floor.begin()[1], busy(20.0))
    assert floor.begin()[1].channel.name == "b"
    floor.time += 20
    assert floor.begin()[1].channel.name == "a"
    assert floor.begin()[1].channel.name == "b"  # one call at a time tries it


# Ranking


def test_the_first_of_the_ranking_is_taken_if_it_still_can_be() -> None:
    floor = RouterScenario(*[channel(name, "m") for name in "abc"])
    floor.throws = iter([0.9, 0.1, 0.0, 0.0, 0.4, 0.4])
    route = floor.route(CALLER, call_of())
    ranked = route.rank()
    assert ranked[0].channel.name == "c"
    assert {target.channel.name for target in ranked} == set("abc")
    assert route.start("1", 99).target is ranked[0]


def test_the_first_of_the_ranking_is_left_where_it_went_down_since() -> None:
    floor = RouterScenario(channel("a", "m", priority=1), channel("b", "m"))
    route = floor.route(CALLER, call_of())
    assert route.rank()[0].channel.name == "a"
    line = floor.board.channels["a"]
    while line.breaker.state == "closed":
        slot = floor.board.acquire(line, ("openai_chat", "m"), 1, retry=False)
        floor.board.record_failure(slot, errors.ProviderBadResponse("refused", phase="connect"))
        floor.board.release(slot)
    assert route.start("1", 99).channel.name == "b"


def test_a_ranking_takes_nothing() -> None:
    floor = RouterScenario(channel("a", "m", max_concurrency=1, rpm=1))
    for _ in range(5):
        floor.route(CALLER, call_of()).rank()
    assert floor.board.running == 0
    assert floor.begin()[1].channel.name == "a"


# Callers that stay


def test_calls_with_the_same_prompt_stay_where_they_are_as_long_as_they_can() -> None:
    floor = RouterScenario(*[channel(name, "m") for name in "abcd"])
    inference = call_of(prompt_cache_key="session-1")
    homes = {floor.begin(inference)[1].channel.name for _ in range(20)}
    assert len(homes) == 1
    (home,) = homes
    floor.trip(home, 60)
    (away,) = {floor.begin(inference)[1].channel.name for _ in range(20)}
    assert away != home
    floor.time += 60
    assert floor.begin(inference)[1].channel.name == home


def test_what_two_accounts_call_the_same_is_not_the_same() -> None:
    floor = RouterScenario(*[channel(f"c{number}", "m") for number in range(16)])
    homes = set()
    for account in range(20):
        caller = Caller(Account(account, "x"), CALLER.key)
        homes.add(floor.route(caller, call_of(user="me")).start("1", 99).channel.name)
    assert len(homes) > 4


def test_calls_without_such_a_word_spread() -> None:
    floor = RouterScenario(*[channel(name, "m") for name in "abcd"])
    assert len({floor.begin()[1].channel.name for _ in range(20)}) == 4


def test_a_channel_that_has_just_come_up_gets_few_calls() -> None:
    floor = RouterScenario(channel("old", "m"), channel("new", "m"))
    floor.trip("new", 10)
    floor.time += 10
    floor.board.note_probe_answered(floor.board.channels["new"], 1)
    got = []
    for number in range(200):
        floor.throws = iter([number / 200, 0.5])
        _, attempt = floor.begin()
        got.append(attempt.channel.name)
        floor.board.release(attempt.slot)
    assert 0.05 <= got.count("new") / len(got) <= 0.15


# Prices


@table_rows(
    ("prices", "nanos"),
    [
        ([], None),
        ([priced("ours", 1)], 1),
        ([priced("theirs", 2)], 2),
        ([priced("ours", 1), priced("theirs", 8)], 8),
        ([priced("ours", 1), priced("t*", 8)], 8),
        ([priced("ours", 1, "custom"), priced("theirs", 8)], 8),
        ([priced("ours", 1), priced("ours", 3, "custom")], 3),
        ([priced("ours", 1, "openai"), priced("theirs", 2)], 2),
        ([priced("ours", 1, "openai"), priced("theirs", 2, "custom")], 2),
        ([priced("ours", 1, "openai"), priced("theirs", 2, "openai")], None),
        ([priced("other", 1)], None),
    ],
)
def test_the_price_is_that_of_the_model_that_answers(prices: list[Price], nanos: int | None) -> None:
    floor = RouterScenario(channel("a", model_map=(("ours", "theirs"),)), prices=prices)
    (target,) = floor.options(call_of("ours"))
    assert target.price == (None if nanos is None else next(price for price in prices if cost(price) == nanos))
    assert target.cost(Usage(10)) == 10 * (nanos or 0)


def cost(price: Price) -> int:
    """Nano-USD a token."""
    return price.input_nanos_per_million // ONE_PPM


def test_every_channel_has_its_own_price_of_a_model() -> None:
    floor = RouterScenario(
        channel("a", "m"),
        channel("b", "m", provider="openai"),
        channel("c", "m"),
        prices=[priced("m", 1), priced("m", 5, "openai")],
    )
    assert [target.cost(Usage(1)) for target in floor.options()] == [1, 5, 1]


@table_rows(
    ("channel_ppm", "groups", "group", "ppm"),
    [
        (ONE_PPM, {}, None, ONE_PPM),
        (ONE_PPM, {"vip": 800_000}, None, ONE_PPM),
        (ONE_PPM, {"vip": 800_000}, "vip", 800_000),
        (ONE_PPM, {"vip": 800_000}, "lab", ONE_PPM),
        (1_200_000, {"vip": 800_000}, "vip", 960_000),
        (1_200_000, {}, "vip", 1_200_000),
        (1_500_000, {"vip": 0}, "vip", 0),
        (0, {"vip": 5_000_000}, "vip", 0),
        (1, {"vip": 1}, "vip", 1),  # a part in a million of it, rounded up: no charge is lost
        (333_333, {"vip": 333_333}, "vip", 111_111),
        (100 * ONE_PPM, {"vip": 100 * ONE_PPM}, "vip", 10_000 * ONE_PPM),
    ],
)
def test_the_multipliers_of_channel_and_group_count_both(
    channel_ppm: int, groups: dict[str, int], group: str | None, ppm: int
) -> None:
    floor = RouterScenario(channel("a", "m", multiplier_ppm=channel_ppm), prices=[priced("m", 7)], groups=groups)
    (target,) = floor.options(caller=caller_of(group))
    assert target.multiplier_ppm == ppm
    assert target.cost(Usage(1_000)) == -(-7_000 * ppm // ONE_PPM)


def test_a_price_that_changes_is_for_later_calls() -> None:
    floor = RouterScenario(channel("a", "m"), prices=[priced("m", 1)])
    (early,) = floor.options()
    floor.pricing = PricingPolicy(PriceList([priced("m", 9)]))
    (late,) = floor.options()
    assert (early.cost(Usage(1)), late.cost(Usage(1))) == (1, 9)


# Models without a price


def test_a_model_without_a_price_costs_nothing_where_none_is_required() -> None:
    (target,) = RouterScenario(channel("a", "m")).options()
    assert (target.price, target.cost(Usage(10**6, 10**6))) == (None, 0)


def test_where_a_price_is_required_a_model_without_one_is_hidden_and_refused() -> None:
    floor = RouterScenario(channel("a", "m", "free"), prices=[priced("m", 0)], unpriced="refuse")
    assert [listed.id for listed in floor.list_models(CALLER)] == ["m"]
    assert floor.get_model(CALLER, "m").id == "m"
    assert floor.names() == ["a"]
    with pytest.raises(errors.ModelNotFound):
        floor.get_model(CALLER, "free")
    with pytest.raises(errors.ModelNotPriced) as caught:
        floor.options(call_of("free"))
    assert (caught.value.status, caught.value.param, caught.value.should_retry) == (403, "model", False)
    assert "has no price" in caught.value.message


def test_where_a_price_is_required_only_channels_with_one_are_tried() -> None:
    free = [channel(f"c{number}", "m", priority=9) for number in range(4)]
    paid = channel("paid", "m", provider="openai")
    floor = RouterScenario(*free, paid, prices=[priced("m", 1, "openai")], unpriced="refuse")
    assert floor.walk(broken()) == ["paid"]
    assert [listed.id for listed in floor.list_models(CALLER)] == ["m"]


def test_where_a_price_is_required_that_of_the_providers_name_will_do() -> None:
    up = channel("a", "other", model_map=(("ours", "theirs"),))
    floor = RouterScenario(up, prices=[priced("theirs", 1)], unpriced="refuse")
    assert [listed.id for listed in floor.list_models(CALLER)] == ["ours"]
    assert floor.names("ours") == ["a"]


# Restrictions


def test_a_key_reaches_the_channels_of_its_group_and_those_for_everyone() -> None:
    floor = RouterScenario(
        channel("vips", "m", groups=("vip",)), channel("all", "m"), channel("lab", "m", groups=("lab",))
    )
    assert floor.names() == ["all"]
    assert floor.names(caller=caller_of("vip")) == ["vips", "all"]
    assert floor.names(caller=caller_of("lab", "vip", "lab")) == ["all", "lab"]


@table_rows("group", [None, "lab"])
def test_a_model_that_only_others_may_use_is_refused_for_its_group_and_not_unknown(group: str | None) -> None:
    floor = RouterScenario(channel("vips", "m", groups=("vip",)), channel("all", "x"))
    with pytest.raises(errors.GroupNotAllowed) as caught:
        floor.options(caller=caller_of(group))
    assert (caught.value.status, caught.value.param, caught.value.should_retry) == (403, "model", False)
    assert ("without a group" if group is None else "'lab'") in caught.value.message
    assert [listed.id for listed in floor.list_models(caller_of(group))] == ["x"]
    with pytest.raises(errors.ModelNotFound):
        floor.get_model(caller_of(group), "m")
    with pytest.raises(errors.ModelNotFound):
        floor.options(call_of("nobody's"), caller_of(group))


def test_a_group_that_the_account_may_not_use_reaches_nothing_and_sees_nothing() -> None:
    floor = RouterScenario(channel("all", "m"))
    with pytest.raises(errors.GroupNotAllowed, match="'lab'"):
        floor.options(caller=caller_of("lab", "vip"))
    assert floor.list_models(caller_of("lab", "vip")) == []


def test_a_key_is_refused_models_it_may_not_use_whether_or_not_there_are_any() -> None:
    floor = RouterScenario(channel("a", "m", "n"))
    only = caller_of(models=("m*",))
    assert floor.names(caller=only) == ["a"]
    for model in ("n", "nobody's"):
        with pytest.raises(errors.ModelNotAllowed):
            floor.options(call_of(model), only)
    with pytest.raises(errors.ModelNotFound):
        floor.options(call_of("m2"), only)


def test_the_list_is_what_routing_finds_options_for() -> None:
    channels = [
        channel("a", "m", "free"),
        channel("vips", "m", "x", groups=("vip",)),
        channel("alias", "y", model_map=(("ours", "y"),)),
    ]
    prices = [priced("m", 1), priced("x", 1), priced("y", 1)]
    for unpriced in ("free", "refuse"):
        floor = RouterScenario(*channels, prices=prices, unpriced=unpriced)
        for caller in (CALLER, caller_of("vip"), caller_of("lab"), caller_of(None, models=("m", "o*"))):
            listed = {found.id for found in floor.list_models(caller)}
            assert listed == {
                model for model in ("m", "free", "x", "y", "ours", "z") if has_options(floor, caller, model)
            }


def has_options(floor: RouterScenario, caller: Caller, model: str) -> bool:
    try:
        return bool(floor.options(call_of(model), caller))
    except (errors.ModelNotFound, errors.ModelNotAllowed, errors.ModelNotPriced, errors.GroupNotAllowed):
        return False


# What a model can be asked for


def image(model: str = "m", **more: Any) -> InferenceRequest:
    return parse_images_inference({"model": model, "prompt": "a cat", **more})


def edit(model: str = "m", *, sources: int = 1, masked: bool = False, **more: Any) -> InferenceRequest:
    inference = attrs.evolve(image(model, **more), operation="image_edits")
    assert inference.image is not None
    return attrs.evolve(inference, image=attrs.evolve(inference.image, sources=sources, masked=masked))


def image_backend(name: str, theirs: str = "org/painter", provider: str = "custom", **more: Any) -> Channel:
    """A channel that has the model ``m`` as ``theirs``."""
    return channel(name, "m", provider=provider, model_map=(("m", theirs),), **more)


def gallery() -> RouterScenario:
    """Three who paint: in three sizes and ten at once; in presets, one at a time; and of whom nobody knows anything."""
    return RouterScenario(
        image_backend("openai", "gpt-image-1", "openai"),
        image_backend("alibaba", "qwen-image", "dashscope"),
        image_backend("unknown"),
    )


def refuse(floor: RouterScenario, inference: InferenceRequest) -> errors.InvalidRequest:
    with pytest.raises(errors.InvalidRequest) as caught:
        floor.options(inference)
    error = caught.value
    assert (error.status, error.public_code) == (400, "invalid_request")
    assert f"The model {inference.model!r} cannot do this: " in error.message
    return error


@table_rows(
    ("inference", "able"),
    [
        (image(), ["openai", "alibaba", "unknown"]),
        (image(size="auto"), ["openai", "alibaba", "unknown"]),
        (image(size="1024x1024"), ["openai", "unknown"]),
        (image(size="1328x1328"), ["alibaba", "unknown"]),
        (image(size="1x1"), ["unknown"]),
        (image(n=2), ["openai", "unknown"]),
        (image(n=2, size="1328x1328"), ["unknown"]),
        (edit(), ["openai", "unknown"]),
        (edit(sources=16, masked=True), ["openai", "unknown"]),
    ],
)
def test_only_those_that_can_are_asked_for_a_image(inference: InferenceRequest, able: list[str]) -> None:
    floor = gallery()
    assert [target.channel.name for target in floor.options(inference)] == able
    assert sorted(floor.walk(broken(), inference)) == sorted(able)


def test_one_that_cannot_is_not_asked_though_it_goes_first_and_the_able_one_is_full() -> None:
    floor = RouterScenario(
        image_backend("small", "qwen-image", "dashscope", priority=9), image_backend("able", max_concurrency=1)
    )
    assert floor.begin(image(n=2))[1].channel.name == "able"
    with pytest.raises(errors.NoHealthyChannel):
        floor.begin(image(n=2))
    assert floor.begin(image())[1].channel.name == "small"


def test_what_a_model_can_do_with_images_is_nothing_to_those_who_talk_to_it() -> None:
    floor = gallery()
    floor.models = (Capability("*", max_n=1, sizes=(), edits=False),)
    assert {target.capability for target in floor.options(call_of(n=3))} == {UNKNOWN_CAPABILITY}


SMALL = image_backend("small", "qwen-image", "dashscope")
PRESETS = "1024x1024 1536x1024 1024x1536 1664x928 1472x1104 1328x1328 1104x1472 928x1664"


@table_rows(
    ("other", "inference", "param", "message"),
    [
        (image_backend("a", "gpt-image-1", "openai"), image(size="1x1"), "size", f"'size' must be one of {PRESETS}"),
        (image_backend("a", "qwen-image-2.0", "dashscope"), image(n=7), "n", "'n' must be 1 to 6"),
        (image_backend("a", "gpt-image-1", "openai"), edit(sources=17), "image", "it takes at most 16 images"),
    ],
)
def test_where_nobody_can_the_field_is_named_with_all_that_any_of_them_allows(
    other: Channel, inference: InferenceRequest, param: str, message: str
) -> None:
    for channels in ((SMALL, other), (other, SMALL)):
        error = refuse(RouterScenario(*channels), inference)
        assert error.param == param
        assert sort_words(error.message.partition("this: ")[2]) == sort_words(message)


def sort_words(text: str) -> list[str]:
    return sorted(text.replace(",", "").split())


@table_rows(
    ("inference", "param", "message"),
    [(edit(masked=True), "mask", "it takes no mask"), (edit(sources=4), "image", "it takes at most 3 images")],
)
def test_where_some_do_not_edit_at_all_it_is_not_said_that_none_does(
    inference: InferenceRequest, param: str, message: str
) -> None:
    floor = RouterScenario(
        image_backend("mute", "z-image", "dashscope"), image_backend("edits", "gemini-2.5-flash-image", "gemini")
    )
    error = refuse(floor, inference)
    assert (error.param, error.message) == (param, f"The model 'm' cannot do this: {message}")


def test_where_nobody_edits_the_model_is_at_fault() -> None:
    error = refuse(
        RouterScenario(image_backend("a", "z-image", "dashscope"), image_backend("b", "wan2.2-t2i", "dashscope")),
        edit(),
    )
    assert (error.param, error.message) == ("model", "The model 'm' cannot do this: it does not edit images")


def test_many_images_are_for_those_that_make_them_at_once_or_may_be_asked_often() -> None:
    one_by_one = image_backend("qwen", "qwen-image", "dashscope", fan_out=True)
    assert [
        target.channel.name for target in RouterScenario(one_by_one, image_backend("all")).options(image(n=10))
    ] == ["qwen", "all"]
    error = refuse(RouterScenario(one_by_one), image(n=10, size="1x1"))
    assert error.param == "size"
    assert refuse(RouterScenario(attrs.evolve(one_by_one, fan_out=False)), image(n=2)).message.endswith("'n' must be 1")


def test_a_image_that_nobody_who_has_a_price_can_make_is_refused_for_what_they_lack() -> None:
    floor = RouterScenario(
        image_backend("paid", "qwen-image", "dashscope"),
        image_backend("free"),
        prices=[priced("m", 1, "dashscope")],
        unpriced="refuse",
    )
    assert refuse(floor, image(n=2)).param == "n"
    assert [target.channel.name for target in floor.options(image())] == ["paid"]


# What the configuration says of it


OURS = ("1024x1024", "2048x2048")


@table_rows(
    ("entry", "inference", "able"),
    [
        (Capability("m", sizes=OURS), image(size="1536x1024"), []),
        (Capability("m", sizes=OURS), image(size="2048x2048"), ["openai", "unknown"]),
        (Capability("m", max_n=1), image(n=2), []),
        (Capability("m", max_n=1), image(size="1536x1024"), ["openai", "unknown"]),
        (Capability("m", edits=False), edit(), []),
        (Capability("m", masks=False), edit(masked=True), []),
        (Capability("m", masks=False), edit(), ["openai", "unknown"]),
        (Capability("m", sizes=("1x1",)), image(size="1x1"), ["openai", "unknown"]),
        (Capability("org/*", max_n=1), image(n=2), ["openai"]),
        (Capability("gpt-image-1", max_n=1), image(n=2), ["unknown"]),
        (Capability("GPT-*", max_n=1), image(n=2), ["openai", "unknown"]),
        (Capability("*", max_n=2), image(n=3), []),
        (Capability("*", max_n=2), image(size="1x1"), ["unknown"]),
        (Capability("other*", max_n=1), image(n=3), ["openai", "unknown"]),
    ],
)
def test_what_the_configuration_says_of_a_model_is_laid_over_what_is_known_of_it(
    entry: Capability, inference: InferenceRequest, able: list[str]
) -> None:
    """Field by field: of what it does not speak, the vendor's own limits stay."""
    floor = RouterScenario(image_backend("openai", "gpt-image-1", "openai"), image_backend("unknown"))
    floor.models = (entry,)
    if able:
        assert [target.channel.name for target in floor.options(inference)] == able
    else:
        refuse(floor, inference)


def test_a_glob_for_everything_leaves_what_a_vendor_knows_of_one_model() -> None:
    floor = RouterScenario(image_backend("openai", "gpt-image-1", "openai"))
    (before,) = floor.options(image())
    floor.models = (Capability("*", max_n=2),)
    (after,) = floor.options(image())
    assert after.capability == attrs.evolve(before.capability, name="*", max_n=2)
    assert (after.capability.response_formats, after.capability.streams) == ((), True)


@table_rows(
    ("names", "most"),
    [
        (["*", "org/*", "org/painter", "m"], 4),
        (["*", "org/*", "org/painter"], 3),
        (["*", "org/*"], 2),
        (["*"], 1),
        (["m*", "org/painter"], 2),
        (["org/*", "?"], 1),
        (["org/painter", "m"], 2),
        (["no", "such"], None),
    ],
)
def test_a_name_goes_before_a_glob_the_callers_before_the_providers_and_a_longer_glob_before_a_shorter(
    names: list[str], most: int | None
) -> None:
    floor = RouterScenario(image_backend("up"))
    floor.models = tuple(Capability(name, max_n=number) for number, name in enumerate(names, 1))
    for models in (floor.models, floor.models[::-1]):
        floor.models = models
        (target,) = floor.options(image())
        assert target.capability.max_n == most


def test_what_is_said_anew_is_for_later_calls() -> None:
    floor = RouterScenario(image_backend("up"))
    (early,) = floor.options(image(n=2))
    floor.models = (Capability("m", max_n=1),)
    assert early.capability == UNKNOWN_CAPABILITY
    assert refuse(floor, image(n=2)).param == "n"


LIMITS = st.none() | st.integers(1, 4)
TABLED = st.none() | st.sets(st.sampled_from(["64x64", "512x512", "1024x1024"]), min_size=1).map(sorted).map(tuple)
ABLE = st.tuples(LIMITS, TABLED, st.booleans())


@given(st.lists(ABLE, min_size=1, max_size=4), st.integers(1, 6), st.sampled_from([None, "64x64", "512x512", "9x9"]))
def test_who_is_left_can_do_it_and_what_is_told_where_nobody_is_helps(
    kinds: list[tuple[int | None, tuple[str, ...] | None, bool]], count: int, size: str | None
) -> None:
    names = [f"org/p{number}" for number in range(len(kinds))]
    floor = RouterScenario(
        *(image_backend(name[-2:], name, fan_out=fan_out) for name, (_, _, fan_out) in zip(names, kinds, strict=True))
    )
    floor.models = tuple(
        Capability(name, max_n=most, sizes=sizes) for name, (most, sizes, _) in zip(names, kinds, strict=True)
    )
    inference = attrs.evolve(image(), image=ImageRequest("a cat", count=count, size=size))

    def can(kind: tuple[int | None, tuple[str, ...] | None, bool]) -> bool:
        most, sizes, fan_out = kind
        return (fan_out or most is None or count <= most) and (size is None or sizes is None or size in sizes)

    able = [name[-2:] for name, kind in zip(names, kinds, strict=True) if can(kind)]
    if able:
        assert [target.channel.name for target in floor.options(inference)] == able
        return
    error = refuse(floor, inference)
    lacking = [kind for kind in kinds if error.param == "size" or size is None or kind[1] is None or size in kind[1]]
    listed = error.message.partition(" must be ")[2]
    if error.param == "size":
        assert set(sort_words(listed.removeprefix("one of "))) == {
            one for _, sizes, _ in lacking for one in sizes or ()
        }
    else:
        most = max(most for most, _, _ in lacking if most is not None)
        assert listed == ("1" if most == 1 else f"1 to {most}")


def test_what_was_found_once_is_found_anew_when_anything_of_it_changes() -> None:
    floor = RouterScenario(channel("up", "m"), prices=[Price("m", input_nanos_per_million=5)], groups={"half": 500_000})
    half = caller_of("half")
    (first,) = floor.options()
    assert floor.options()[0] is first  # remembered
    assert floor.options(caller=half)[0].multiplier_ppm == 500_000
    floor.pricing = PricingPolicy(PriceList([Price("m", input_nanos_per_million=7)]), {"half": 250_000})
    (dearer,) = floor.options()
    assert dearer.price is not None
    assert (dearer.price.input_nanos_per_million, floor.options(caller=half)[0].multiplier_ppm) == (7, 250_000)
    floor.use(channel("up", "m"), channel("second", "m"))
    assert floor.names() == ["up", "second"]
    floor.use(channel("second", "m"))
    assert floor.names() == ["second"]
    floor.use(channel("second", "other"))
    with pytest.raises(errors.ModelNotFound):
        floor.names()


def test_a_listing_that_brings_a_model_is_seen_at_once() -> None:
    synced = attrs.evolve(channel("up"), sync=True)
    floor = RouterScenario(synced)
    floor.catalog.apply_listing(synced, [ModelInfo("m", 1, "them")])
    assert floor.names() == ["up"]
    with pytest.raises(errors.ModelNotFound):
        floor.names("new")
    floor.catalog.apply_listing(synced, [ModelInfo("m", 1, "them"), ModelInfo("new", 1, "them")])
    assert floor.names("new") == ["up"]


def test_who_may_not_is_told_so_though_others_may() -> None:
    floor = RouterScenario(channel("up", "m"))
    assert floor.names() == ["up"]
    with pytest.raises(errors.ModelNotAllowed):
        floor.names(caller=caller_of(models=("other",)))
    assert floor.names(caller=caller_of(models=("m*",))) == ["up"]
