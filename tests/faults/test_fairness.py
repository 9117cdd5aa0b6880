"""One caller, or one model, that fails: who else notices. And the tries that a channel gets which serves alone."""

import asyncio
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from gateway.routing.target_list import MAX_PAUSE_S
from gateway.server.context import SERVICES
from tests.support.fast_provider import Reaction, Seen, SwiftUpstream, dead, failing, hanging, well
from tests.support.fault_scene import healthy, site
from tests.support.gateway import CHAT, HELLO, KEY, RunningGateway, channel
from tests.support.image_providers import draw
from tests.support.scripted_upstream import RST, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

OTHER = "sk-test-key-of-somebody-else"
ACCOUNTS = {
    "account": [{"name": "acme"}, {"name": "other"}],
    "key": [{"name": "test", "account": "acme", "secret": KEY}, {"name": "other", "account": "other", "secret": OTHER}],
}
USUAL: dict[str, Any] = {"routing": {}}
"""With the settings of a gateway that nobody has changed."""


async def ask(gateway: RunningGateway, key: str = KEY, path: str = CHAT, **body: Any) -> tuple[int, int, bytes]:
    """Status, attempts, body."""
    headers = {"Authorization": f"Bearer {key}"}
    async with gateway.client.post(gateway.url + path, json={**HELLO, **body}, headers=headers) as response:
        return response.status, int(response.headers.get("x-gateway-attempts", "0")), await response.read()


def says(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def spoiled(seen: Seen) -> Reaction:
    """What one caller can make of a provider, by what it says and by the models it names."""
    body = orjson.loads(seen.body)
    word = str(body["messages"][0]["content"]).partition(" ")[0]
    spoilt: dict[str, Callable[[Seen], Reaction]] = {
        "crash": failing(500),
        "reset": dead,
        "denied": failing(401),
        "poor": failing(402),
        "limit": failing(429, None, Retry_After="3600"),
        "busy": failing(503, None, Retry_After="3600"),
        "html": lambda _: Reaction(answer(b"<html>", content_type="text/html")),
        "garbage": lambda _: Reaction(b"WHAT 200 OK\r\n\r\n"),
        "missing": failing(404),
        "empty": lambda _: Reaction(answer({})),
    }
    return spoilt.get(word, well)(seen)


WORDS = ["crash", "reset", "denied", "poor", "limit", "busy", "html", "garbage", "missing", "empty"]


@pytest.mark.parametrize("open_to_all", [False, True])
async def test_one_caller_does_all_it_may_and_others_never_notice(
    standing_with: StartGateway, open_to_all: bool
) -> None:
    """Neither at other models nor at the same, on the only channel there is."""
    async with SwiftUpstream(spoiled) as up:
        models = ["*"] if open_to_all else ["m", "n", "o"]
        gateway = await standing_with(site(channel(up.base_url, models=models), **ACCOUNTS, **USUAL))
        for number in range(6):
            for word in WORDS:
                for model in ("m", "n", "o", f"made-up-{number}") if open_to_all else ("m", "n"):
                    await ask(gateway, model=model, messages=says(f"{word} {number}"), stream=number % 2 == 0)
            for model in ("m", "n", "o"):
                for stream in (False, True):
                    status, attempts, body = await ask(gateway, OTHER, model=model, stream=stream)
                    assert (status, attempts) == (200, 1), body


async def test_a_model_that_is_broken_leaves_the_others_of_its_channel_alone(standing_with: StartGateway) -> None:
    def broken(seen: Seen) -> Reaction:
        return (failing(502) if b'"broken"' in seen.body else well)(seen)

    async with SwiftUpstream(broken) as up, SwiftUpstream() as spare:
        models = ["m", "broken"]
        ups = channel(up.base_url, models=models), healthy(spare, models=["broken", "m"])
        gateway = await standing_with(site(*ups, **USUAL))
        for number in range(10):
            assert (await ask(gateway, model="broken", messages=says(str(number))))[0] == 200
            assert (await ask(gateway))[:2] == (200, 1)
        line = gateway.app[SERVICES].routing.load_balancer.channels["up"]
        assert line.state == "closed"
        assert [(place, breaker.state) for place, _, breaker in line.list_tripped()] == [
            (("openai_chat", "broken"), "open")
        ]
        assert len([seen for seen in up.seen if b'"broken"' in seen.body]) == 3, "once it has tripped it is left alone"


async def test_an_endpoint_that_does_not_work_leaves_the_others_alone(standing_with: StartGateway) -> None:
    def without_embeddings(seen: Seen) -> Reaction:
        return failing(503)(seen) if b'"input"' in seen.body else well(seen)

    async with SwiftUpstream(without_embeddings) as up:
        gateway = await standing_with(site(channel(up.base_url), **USUAL))
        for _ in range(8):
            assert (await ask(gateway, path="/v1/embeddings", input="x"))[0] != 200
        assert gateway.app[SERVICES].routing.load_balancer.channels["up"].list_tripped()
        assert (await ask(gateway))[:2] == (200, 1)


async def test_a_lone_key_that_was_refused_once_is_used_again_at_once_and_for_good(standing_with: StartGateway) -> None:
    async with SwiftUpstream(once(failing(401))) as up:
        gateway = await standing_with(site(channel(up.base_url), **USUAL))
        assert (await ask(gateway))[0] == 502
        assert [(await ask(gateway))[0] for _ in range(10)] == [200] * 10


async def test_where_the_only_channel_is_dead_a_bounded_number_of_calls_looks_for_it(
    standing_with: StartGateway,
) -> None:
    """And the first that is answered opens it for everybody, long before its cooldown is over."""
    async with SwiftUpstream(dead) as up:
        routing = {"routing": {"cooldown_s": 300}}
        gateway = await standing_with(site(channel(up.base_url), **ACCOUNTS, **routing))
        statuses = [(await ask(gateway, messages=says(str(number))))[0] for number in range(40)]
        assert statuses[:3] == [502, 502, 502]
        assert statuses.count(503) > 20
        assert statuses.count(502) >= 6
        up.behaviour = well
        assert (await ask(gateway, OTHER))[0] == 200
        async with asyncio.timeout(10):
            while (await ask(gateway))[0] != 200:  # noqa: ASYNC110 - a turn that time gives has no event
                await asyncio.sleep(0.1)
        assert [(await ask(gateway))[0] for _ in range(20)] == [200] * 20


# Tries of a channel that serves alone


def once(reaction: Callable[[Seen], Reaction]) -> Callable[[Seen], Reaction]:
    left = [reaction]

    def react(seen: Seen) -> Reaction:
        behaviour = left.pop() if left else well
        return behaviour(seen)

    return react


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "failure",
    [dead, failing(500), failing(502), failing(503), failing(504), failing(529), failing(429, Retry_After="0.05"),
     failing(503, Retry_After="0.05"), failing(529, Retry_After="0.05")],
    ids=["reset", "500", "502", "503", "504", "529", "429 soon", "503 soon", "529 soon"],
)  # fmt: skip
async def test_a_passing_failure_of_the_only_channel_is_nothing_its_caller_hears_of(
    standing_with: StartGateway, failure: Callable[[Seen], Reaction], stream: bool
) -> None:
    async with SwiftUpstream(once(failure)) as up:
        gateway = await standing_with(site(channel(up.base_url), **USUAL))
        status, attempts, body = await ask(gateway, stream=stream)
        assert (status, attempts, len(up.seen)) == (200, 2, 2), body
        (row,) = await gateway.rows(1)
        assert (row.attempts, row.cost_nanos > 0) == (2, True)


@pytest.mark.parametrize(
    "failure",
    [failing(400), failing(401), failing(404), failing(422), failing(429), failing(501),
     failing(503, Retry_After=str(MAX_PAUSE_S + 1)), failing(429, Retry_After="30")],
    ids=["400", "401", "404", "422", "429", "501", "503 later", "429 later"],
)  # fmt: skip
async def test_what_will_not_be_better_in_a_moment_is_not_tried_again(
    standing_with: StartGateway, failure: Callable[[Seen], Reaction]
) -> None:
    async with SwiftUpstream(once(failure)) as up:
        gateway = await standing_with(site(channel(up.base_url), **USUAL))
        assert (await ask(gateway))[0] != 200
        assert len(up.seen) == 1


async def test_it_is_tried_once_more_and_not_for_ever(standing_with: StartGateway) -> None:
    async with SwiftUpstream(failing(503)) as up:
        gateway = await standing_with(site(channel(up.base_url), routing={"max_attempts": 9}))
        assert (await ask(gateway))[:2] == (502, 2)


async def test_without_room_for_retries_there_is_none(standing_with: StartGateway) -> None:
    async with SwiftUpstream(failing(503)) as up:
        gateway = await standing_with(site(channel(up.base_url), routing={"max_attempts": 1}))
        assert (await ask(gateway))[:2] == (502, 1)


@pytest.mark.parametrize("failure", [[RST], [answer({"error": {"message": "no"}}, 500)]], ids=["reset", "500"])
@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/images/generations", {"prompt": "a cat"}), ("/v1/audio/speech", {"input": "hello", "voice": "alloy"})],
    ids=["image", "speech"],
)
async def test_what_may_have_been_made_is_not_asked_for_twice(
    standing_with: StartGateway, path: str, body: dict[str, str], failure: list[Any]
) -> None:
    async with ScriptedUpstream(failure) as up:
        gateway = await standing_with(site(channel(up.base_url), **USUAL))
        assert (await ask(gateway, path=path, **body))[0] == 502
        assert len(up.received) == 1


async def test_an_image_that_the_provider_says_it_has_not_made_is_asked_for_again(standing_with: StartGateway) -> None:
    limit = answer({"error": {"message": "slow"}}, 429, retry_after="0.05")
    image = answer({"created": 1, "data": [{"b64_json": b64encode(draw()).decode()}]})
    async with ScriptedUpstream([limit], [image]) as up:
        gateway = await standing_with(site(channel(up.base_url), **USUAL))
        status, attempts, _ = await ask(gateway, path="/v1/images/generations", prompt="x", response_format="b64_json")
        assert (status, attempts, len(up.received)) == (200, 2, 2)


# Flapping


FLAPS = [dead, failing(500), failing(502), failing(503, Retry_After="0.01"), failing(429, Retry_After="0.01")]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("channels", ["alone", "with a fallback"])
@pytest.mark.parametrize("flap", FLAPS, ids=["reset", "500", "502", "503", "429"])
async def test_a_provider_that_flaps_is_passed_every_time(
    standing_with: StartGateway, flap: Callable[[Seen], Reaction], channels: str, stream: bool
) -> None:
    """It answers, fails, answers, fails: sixty calls and not one that fails."""

    def flapping(seen: Seen) -> Reaction:
        return (flap if seen.number % 2 else well)(seen)

    async with SwiftUpstream(flapping) as up, SwiftUpstream() as spare:
        ups = [channel(up.base_url), *([healthy(spare)] if channels != "alone" else [])]
        gateway = await standing_with(site(*ups, **USUAL))
        heard = [await ask(gateway, stream=stream) for _ in range(60)]
        assert [(status, b"error" in body) for status, _, body in heard] == [(200, False)] * 60


@pytest.mark.parametrize("stream", [False, True])
async def test_after_an_outage_its_calls_are_the_providers_again(standing_with: StartGateway, stream: bool) -> None:
    """A fallback serves meanwhile; the cooldowns do not grow with the outage."""
    async with SwiftUpstream(failing(503)) as up, SwiftUpstream() as spare:
        gateway = await standing_with(
            site(channel(up.base_url), healthy(spare), routing={"cooldown_s": 0.02, "warm_up_s": 0})
        )
        for number in range(30):
            assert (await ask(gateway, messages=says(str(number)), stream=stream))[0] == 200
            await asyncio.sleep(0.01)
        assert 3 < len(up.seen) < 30, "it is tried now and then"
        up.behaviour = well
        async with asyncio.timeout(6.5):
            before = len(up.seen)
            while len(up.seen) < before + 3:
                assert (await ask(gateway, stream=stream))[0] == 200
                await asyncio.sleep(0.01)


async def test_a_stream_that_does_not_begin_is_left_for_another_channel_in_time(standing_with: StartGateway) -> None:
    async with SwiftUpstream(hanging) as up, SwiftUpstream() as spare:
        slow, quick = channel(up.base_url), healthy(spare)
        del slow["first_byte_timeout_s"], slow["total_timeout_s"]
        gateway = await standing_with(site(slow, quick, routing={"failover_after_s": 0.1}))
        assert (await ask(gateway, stream=True))[:2] == (200, 2)


# A prompt that is too long

TOO_LONG = [
    {
        "error": {
            "message": "x",
            "type": "invalid_request_error",
            "param": "messages",
            "code": "context_length_exceeded",
        }
    },
    {"error": {"message": "This model's maximum context length is 4096 tokens. However, you requested 5000."}},
    {"error": {"message": "prompt is too long: 208310 tokens > 200000 maximum"}},
    {"error": {"message": "The input token count (1100000) exceeds the maximum number of tokens allowed (1048576)."}},
    {"error": {"message": "the request exceeds the available context size. try increasing the context size"}},
]


@pytest.mark.parametrize("body", TOO_LONG, ids=["OpenAI", "vLLM", "Anthropic", "Gemini", "llama.cpp"])
async def test_a_prompt_that_is_too_long_goes_to_another_channel_once(
    standing_with: StartGateway, body: dict[str, Any]
) -> None:
    async with SwiftUpstream(failing(400, body)) as small, SwiftUpstream() as large:
        gateway = await standing_with(site(channel(small.base_url), healthy(large), **USUAL))
        for _ in range(8):
            assert (await ask(gateway))[:2] == (200, 2), "it is held against nobody"


async def test_what_two_channels_say_is_the_answer_whatever_a_third_would(standing_with: StartGateway) -> None:
    async with (
        SwiftUpstream(failing(400, TOO_LONG[0])) as one,
        SwiftUpstream(failing(400, TOO_LONG[1])) as two,
        SwiftUpstream() as three,
    ):
        ups = channel(one.base_url, priority=2), healthy(two, priority=1), channel(three.base_url, "third")
        gateway = await standing_with(site(*ups, **USUAL))
        status, attempts, body = await ask(gateway)
        assert (status, attempts, len(three.seen)) == (400, 2, 0)
        assert orjson.loads(body)["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("then", [failing(500), dead, failing(401)], ids=["500", "reset", "401"])
async def test_that_a_prompt_is_too_long_is_told_though_the_larger_channel_fails(
    standing_with: StartGateway, then: Callable[[Seen], Reaction]
) -> None:
    async with SwiftUpstream(failing(400, TOO_LONG[0])) as small, SwiftUpstream(then) as large:
        gateway = await standing_with(site(channel(small.base_url), healthy(large), **USUAL))
        status, _, body = await ask(gateway)
        assert (status, orjson.loads(body)["error"]["code"]) == (400, "context_length_exceeded")


async def test_an_ordinary_mistake_is_told_by_the_first_channel(standing_with: StartGateway) -> None:
    async with SwiftUpstream(failing(400)) as one, SwiftUpstream() as two:
        gateway = await standing_with(site(channel(one.base_url), healthy(two), **USUAL))
        assert (await ask(gateway))[:2] == (400, 1)
        assert not two.seen
