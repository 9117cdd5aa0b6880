"""A channel that may serve a call, and one attempt over it: what it may use, what that costs, and what is sent."""

from typing import Any

import attrs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.capability import UNKNOWN_CAPABILITY, Capability
from gateway.domain.channel import Channel, Timeouts
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.price import ONE_PPM, Price
from gateway.domain.upload import Content, FilePiece
from gateway.domain.usage import Usage
from gateway.errors import UnsupportedByProvider
from gateway.formats.audio.speech import parse_speech_inference
from gateway.formats.chat.openai.chat import parse_chat_inference
from gateway.formats.images.backend import ProviderRequest
from gateway.formats.images.openai import parse_images_inference
from gateway.formats.registry import make_translator
from gateway.formats.translator import ResponseIdentity
from gateway.formats.wire.request_body import Form, build_data_url
from gateway.providers.base import Endpoint
from gateway.providers.registry import PROVIDERS
from gateway.routing.load_balancer import DEFAULT_SETTINGS, LoadBalancer
from gateway.routing.target import Attempt, Target
from tests.support.image_calls import image_call, upload
from tests.support.image_providers import draw
from tests.support.table_rows import table_rows

PRICE = Price("m", 1_000_000, output_nanos_per_million=2_000_000, image_nanos=500)
"""A nano a token that is read, two for one that is written, 500 for a picture."""
IMAGE_BACKEND = Endpoint("replicate_images", "/predictions")
MESSAGES = [{"role": "user", "content": "hi"}]
DEEP_LEVELS = 300


def target(provider: str = "custom", wire: str = "openai_chat", model: str = "m", **more: Any) -> Target:
    """Of a channel ``up`` of its own."""
    fields = {name: more.pop(name) for name in tuple(more) if name in {"headers", "base_url", "proxy", "timeouts"}}
    channel = Channel("up", provider, fields.pop("base_url", "http://up/v1"), ("key-of-up",), ("m",), **fields)
    board = LoadBalancer(lambda: 0.0, settings=DEFAULT_SETTINGS, shared=None)
    board.set_channels([channel])
    endpoint = PROVIDERS[provider].find_endpoint((wire,), model)  # type: ignore[arg-type]
    assert endpoint is not None
    return Target(board.channels["up"], endpoint, model, **more)


def attempt(inference: InferenceRequest, *args: Any, **more: Any) -> Attempt:
    chosen = target(*args, **more)
    slot = LoadBalancer(lambda: 0.0, settings=DEFAULT_SETTINGS, shared=None).acquire(
        chosen.state, chosen.endpoint_key, 1, retry=False
    )
    translator = make_translator(inference, chosen.endpoint.wire, ResponseIdentity("answer-1", chosen.model, 99))
    return Attempt(chosen, chosen.channel, slot, translator)


def images(**more: Any) -> InferenceRequest:
    return parse_images_inference({"model": "m", "prompt": "a cat", **more})


def chat(**more: Any) -> InferenceRequest:
    return parse_chat_inference({"model": "m", "messages": MESSAGES, **more})


# What it may use


@table_rows(
    ("count", "most", "calls"),
    [(1, None, 1), (10, None, 1), (1, 1, 1), (4, 4, 1), (5, 4, 2), (8, 4, 2), (9, 4, 3), (3, 1, 3), (10, 1, 10)],
)
def test_every_call_that_images_take_reads_the_prompt(count: int, most: int | None, calls: int) -> None:
    inference = images(n=count)
    bound = target(capability=Capability("m", max_n=most)).bound(inference)
    assert bound.prompt_tokens == inference.max_prompt_tokens * calls
    assert attrs.evolve(bound, prompt_tokens=inference.max_prompt_tokens) == inference.need


@given(st.integers(1, 10), st.none() | st.integers(1, 10))
def test_no_bound_is_below_the_need_and_the_images_are_those_that_were_asked_for(count: int, most: int | None) -> None:
    inference, chosen = images(n=count), BARE
    bound = attrs.evolve(chosen, capability=Capability("m", max_n=most)).bound(inference)
    assert bound.prompt_tokens >= inference.need.prompt_tokens
    assert (bound.images, bound.completion_tokens) == (count, inference.need.completion_tokens)
    assert attrs.evolve(chosen, price=PRICE).cost(bound) >= attrs.evolve(chosen, price=PRICE).cost(inference.need)


BARE = target()


def test_what_is_no_image_is_bound_by_its_need_whatever_is_known_of_images() -> None:
    inference = chat(n=5, max_tokens=7)
    assert target(capability=Capability("m", max_n=1)).bound(inference) == inference.need


def test_where_nobody_knows_how_many_a_model_makes_the_need_is_the_bound() -> None:
    inference = images(n=10)
    assert target(capability=UNKNOWN_CAPABILITY).bound(inference) == target().bound(inference) == inference.need


# What that costs


@table_rows(
    ("usage", "multiplier_ppm", "nanos"),
    [
        (Usage(10, 5, images=2), ONE_PPM, 10 + 10 + 1_000),
        (Usage(10, 5, images=2), 1_500_000, 1_530),
        (Usage(1), 1, 1),  # a part of a nano is one: no charge is lost
        (Usage(10, 5, images=2), 0, 0),
        (Usage(), ONE_PPM, 0),
    ],
)
def test_a_cost_is_price_by_usage_by_multiplier(usage: Usage, multiplier_ppm: int, nanos: int) -> None:
    assert target(price=PRICE, multiplier_ppm=multiplier_ppm).cost(usage) == nanos


def test_what_has_no_price_costs_nothing() -> None:
    assert target(multiplier_ppm=9 * ONE_PPM).cost(Usage(10**6, 10**6, images=10)) == 0


def test_an_options_channel_is_its_lines() -> None:
    chosen = target()
    assert chosen.channel is chosen.state.channel


# What is sent


def test_a_plan_has_the_channels_key_address_and_timers() -> None:
    inference = chat()
    made = attempt(inference, timeouts=Timeouts(total_s=7.0), proxy="http://proxy:1", headers=(("X-Team", "a"),))
    http_request = made.build_request(inference)
    assert (http_request.method, http_request.url, http_request.proxy, http_request.timeouts.total_s) == (
        "POST",
        "http://up/v1/chat/completions",
        "http://proxy:1",
        7.0,
    )
    assert http_request.headers == {
        "Content-Type": "application/json",
        "Accept": "application/json",
        "Accept-Encoding": "identity",
        "Authorization": "Bearer key-of-up",
        "X-Team": "a",
    }
    assert made.identity == ResponseIdentity("answer-1", "m", 99)


@table_rows(
    ("inference", "wire", "accept"),
    [
        (chat(), "openai_chat", "application/json"),
        (chat(stream=True), "openai_chat", "text/event-stream"),
        (parse_speech_inference({"model": "m", "input": "hi", "voice": "alloy"}), "openai_speech", "*/*"),
        (
            parse_speech_inference({"model": "m", "input": "hi", "voice": "alloy", "stream_format": "sse"}),
            "openai_speech",
            "text/event-stream",
        ),
        (images(stream=True), "openai_images", "text/event-stream"),
    ],
)
def test_what_may_come_back_is_what_the_caller_waits_for(inference: InferenceRequest, wire: str, accept: str) -> None:
    assert attempt(inference, wire=wire).build_request(inference).headers["Accept"] == accept


def test_the_attempt_is_over_the_channel_as_it_was_when_it_began() -> None:
    inference = chat()
    made = attempt(inference)
    made.target.state.replace(attrs.evolve(made.channel, base_url="http://elsewhere/v1", api_keys=("other",)), 0.0)
    http_request = made.build_request(inference)
    assert (http_request.url, http_request.headers["Authorization"]) == (
        "http://up/v1/chat/completions",
        "Bearer key-of-up",
    )


@table_rows(
    ("inference", "provider", "wire", "param"),
    [
        (chat(n=2), "anthropic", "anthropic_messages", "n"),
        (chat(messages=[{"role": "user", "content": [{"type": "input_audio"}]}]), "anthropic", "anthropic_messages",
         "messages[0].content[0].input_audio"),
        (chat(logit_bias={"1": 1}), "gemini", "gemini_generate", "logit_bias"),
    ],
)  # fmt: skip
def test_what_a_language_has_no_words_for_is_not_expressible_and_names_the_field(
    inference: InferenceRequest, provider: str, wire: str, param: str
) -> None:
    with pytest.raises(UnsupportedByProvider) as caught:
        attempt(inference, provider, wire).build_request(inference)
    assert (caught.value.status, caught.value.param, caught.value.public_code) == (400, param, "invalid_request")


def nest(levels: int) -> Any:
    """What can be read as JSON, and not be written."""
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def test_what_is_nested_too_deeply_is_not_expressible_neither_whole_nor_as_an_ask() -> None:
    inference = chat(metadata=nest(DEEP_LEVELS))
    with pytest.raises(UnsupportedByProvider, match="nested too deeply"):
        attempt(inference).build_request(inference)
    painting = images()
    made = attempt(painting, wire="openai_images")
    with pytest.raises(UnsupportedByProvider, match="nested too deeply"):
        made.build_provider_request(ProviderRequest({"prompt": nest(DEEP_LEVELS)}))


# One request on the way to pictures


def test_an_ask_without_a_path_goes_to_the_endpoint_in_the_vendors_words() -> None:
    inference = images(size="1024x768")
    made = attempt(inference, "together", "openai_images", "x/y")
    http_request = made.build_provider_request(ProviderRequest({"model": "x/y", "prompt": "a cat", "size": "1024x768"}))
    assert (http_request.method, http_request.url) == ("POST", "http://up/v1/images/generations")
    assert http_request.headers["Content-Type"] == "application/json"
    assert orjson.loads(as_bytes(http_request.body)) == {
        "model": "x/y",
        "prompt": "a cat",
        "width": 1024,
        "height": 768,
    }


def as_bytes(body: bytes | Content | None) -> bytes:
    assert isinstance(body, bytes)
    return body


def test_an_ask_after_a_task_has_a_path_of_its_own_and_no_body() -> None:
    made = attempt(images(), "replicate", "replicate_images", "owner/name")
    http_request = made.build_provider_request(ProviderRequest(method="GET", path="/predictions/abc", repeatable=True))
    assert (http_request.method, http_request.url, http_request.body) == ("GET", "http://up/v1/predictions/abc", None)
    assert "Content-Type" not in http_request.headers
    assert http_request.headers["Authorization"] == "Bearer key-of-up"


def test_the_path_of_a_rooted_endpoint_is_the_servers() -> None:
    base = "http://up/compatible-mode/v1"
    made = attempt(images(), "dashscope", "dashscope_images", "wan2.2-t2i-flash", base_url=base)
    assert (
        made.build_provider_request(ProviderRequest(path="/api/v1/tasks/1", method="GET")).url
        == "http://up/api/v1/tasks/1"
    )


@table_rows(
    ("base", "host", "url"),
    [
        ("https://api.bfl.ai/v1", "api.us1.bfl.ai", "https://api.us1.bfl.ai/v1/get_result?id=1"),
        ("https://api.bfl.ai/v1", None, "https://api.bfl.ai/v1/get_result?id=1"),
        ("https://relay.example/v1", "api.us1.bfl.ai", "https://relay.example/v1/get_result?id=1"),
        ("http://api.bfl.ai/v1", "api.us1.bfl.ai", "http://api.bfl.ai/v1/get_result?id=1"),
    ],
)
def test_a_poll_goes_to_another_server_only_in_the_channels_domain(base: str, host: str | None, url: str) -> None:
    """A key is for the vendor whose address the operator gave: not for one that an answer names."""
    made = attempt(images(), "bfl", "bfl_images", "flux-2-pro", base_url=base)
    http_request = made.build_provider_request(
        ProviderRequest(path="/get_result?id=1", method="GET", repeatable=True, host=host)
    )
    assert (http_request.url, http_request.headers["x-key"]) == (url, "key-of-up")


def test_what_an_ask_says_in_its_headers_is_said_and_the_channels_own_go_over_it() -> None:
    made = attempt(images(), "replicate", "replicate_images", "o/n", headers=(("prefer", "ours"),))
    provider_request = ProviderRequest({}, headers=(("Prefer", "wait"), ("X-DashScope-Async", "enable")))
    headers = made.build_provider_request(provider_request).headers
    assert (headers["X-DashScope-Async"], headers["prefer"], "Prefer" in headers) == ("enable", "ours", False)


def test_a_form_ends_its_parts_with_the_answers_id_and_leaves_its_files_where_they_are() -> None:
    made = attempt(images(), wire="openai_edits")
    source = upload(draw())
    http_request = made.build_provider_request(ProviderRequest(Form({"model": "m", "n": 2}, (("image", source),))))
    assert http_request.headers["Content-Type"] == "multipart/form-data; boundary=gateway-answer-1"
    assert isinstance(http_request.body, Content)
    (piece,) = [piece for piece in http_request.body.pieces if isinstance(piece, FilePiece)]
    assert (piece.upload is source, piece.base64) == (True, False)
    text = b"".join(piece for piece in http_request.body.pieces if isinstance(piece, bytes))
    assert b'name="n"\r\n\r\n2\r\n' in text


def test_a_file_in_a_json_body_stays_where_it_is_too() -> None:
    made = attempt(images(), "replicate", "replicate_images", "owner/name")
    source = upload(draw())
    body = made.build_provider_request(ProviderRequest({"input": {"image": build_data_url(source)}})).body
    assert isinstance(body, Content)
    assert [piece.upload is source and piece.base64 for piece in body.pieces if isinstance(piece, FilePiece)] == [True]


def test_images_that_a_image_backend_gets_are_not_said_in_one_body() -> None:
    inference = image_call()
    with pytest.raises(UnsupportedByProvider):
        attempt(inference, "replicate", "replicate_images", "owner/name").build_request(inference)


def test_an_ask_is_planned_as_often_as_it_is_tried() -> None:
    """Also where the vendor's words change the body: what is asked again is what was asked."""
    made = attempt(images(), "together", "openai_images", "x/y")
    provider_request = ProviderRequest({"prompt": "a cat", "size": "64x64"})
    first = made.build_provider_request(provider_request)
    assert made.build_provider_request(provider_request) == first
