"""Several choices from a provider that makes one per request: answered, broken, abandoned, and charged once."""

import asyncio
from typing import Any

import orjson
import pytest

from gateway.formats.chat.fan_out import MAX_REQUESTS
from gateway.formats.wire.sse import parse_data
from gateway.server.context import SERVICES
from tests.support.anthropic_provider import AnthropicProvider
from tests.support.fault_scene import (
    PRICE,
    TOKENS,
    UNHURRIED,
    WORDS,
    Heard,
    audit,
    call,
    check_broken_stream,
    good_script,
    healthy,
    read_text,
    site,
    until,
)
from tests.support.gateway import channel
from tests.support.providers import Says
from tests.support.scripted_upstream import (
    FIN,
    SSE_HEAD,
    STALL,
    Received,
    ScriptedUpstream,
    Step,
    answer,
    chunk,
    delta,
    event,
)
from tests.support.started_gateways import StartGateway
from tests.support.upstream_scripts import ONE

COUNT = 3
BEGUN: list[Step] = [SSE_HEAD, chunk(event(delta("x")))]


def single(up: ScriptedUpstream, name: str = "single", **more: Any) -> dict[str, Any]:
    """A channel of a vendor that makes one choice per request."""
    return channel(up.base_url, name, provider="groq", **{**UNHURRIED, **more})


def read_stream(heard: Heard) -> tuple[dict[int, str], list[Any]]:
    """The text of each choice of a whole stream, and the usage that it reports."""
    payloads = [payload for one in heard.events if (payload := parse_data(one))]
    assert payloads.pop() == b"[DONE]"
    values = [orjson.loads(payload) for payload in payloads]
    assert len({(value["id"], value["model"], value["created"]) for value in values}) == 1
    texts, finished = dict.fromkeys(range(COUNT), ""), set()
    for value in values:
        for choice in value["choices"]:
            texts[choice["index"]] += choice["delta"].get("content") or ""
            if choice["finish_reason"]:
                finished.add(choice["index"])
    assert finished == set(range(COUNT))
    return texts, [value["usage"] for value in values if value.get("usage")]


@pytest.mark.parametrize("streamed", [False, True])
async def test_several_choices_are_one_answer_and_one_charge(standing_with: StartGateway, streamed: bool) -> None:
    answers = ("one", "two three", "four")
    async with AnthropicProvider(*map(Says, answers)) as up:
        gateway = await standing_with(site(up.channel(), price=[PRICE | {"model": "*"}]))  # of the model that answers
        more = {"stream_options": {"include_usage": True}} if streamed else {}
        heard = await call(gateway, stream=streamed, n=COUNT, **more)
        assert (heard.status, len(up.received)) == (200, COUNT)
        if streamed:
            texts, (usage,) = read_stream(heard)
            assert sorted(texts.values()) == sorted(answers)
        else:
            made = orjson.loads(heard.body)
            assert [one["index"] for one in made["choices"]] == [0, 1, 2]
            assert sorted(one["message"]["content"] for one in made["choices"]) == sorted(answers)
            usage = made["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (21 * COUNT, 13 * COUNT)
        row = await audit(gateway, outcome="completed", attempts=1, usage_source="upstream", stream=streamed)
        assert (row.prompt_tokens, row.completion_tokens) == (21 * COUNT, 13 * COUNT)


async def test_a_stream_without_usage_frames_has_one_end_mark(standing_with: StartGateway) -> None:
    async with ScriptedUpstream(good_script(stream=True)) as up:
        gateway = await standing_with(site(single(up)))
        heard = await call(gateway, stream=True, n=COUNT)
        texts, usages = read_stream(heard)
        assert (set(texts.values()), usages) == ({"".join(WORDS)}, [])
        assert all("n" not in one.json for one in up.received)
        row = await audit(gateway, outcome="completed", usage_source="upstream")
        assert (row.prompt_tokens, row.completion_tokens) == (TOKENS[0] * COUNT, TOKENS[1] * COUNT)


async def test_a_whole_answer_to_a_streaming_request_becomes_one_of_the_streams(standing_with: StartGateway) -> None:
    async with ScriptedUpstream(good_script(stream=False), good_script(stream=True)) as up:
        gateway = await standing_with(site(single(up)))
        texts, _ = read_stream(await call(gateway, stream=True, n=COUNT))
        assert sorted(texts.values()) == sorted(["hello", *["".join(WORDS)] * (COUNT - 1)])
        await audit(gateway, outcome="completed", usage_source="upstream")


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_failure_before_the_first_byte_is_one_of_the_channel(
    standing_with: StartGateway, streamed: bool
) -> None:
    scripts = (good_script(stream=streamed), [answer({}, 500)], [STALL])
    async with ScriptedUpstream(*scripts) as bad, ScriptedUpstream(good_script(stream=streamed)) as good:
        gateway = await standing_with(site(single(bad), healthy(good)))
        heard = await call(gateway, stream=streamed, n=COUNT)
        assert heard.status == 200
        assert [one.json["n"] for one in good.received] == [COUNT]  # this vendor makes several itself
        await audit(gateway, outcome="completed", attempts=2, channel="healthy")


async def test_a_failure_after_the_first_byte_ends_the_stream(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([*BEGUN, STALL], [*BEGUN, STALL], [SSE_HEAD, 0.2, chunk(ONE), FIN]) as bad:
        gateway = await standing_with(site(single(bad)))
        events = check_broken_stream(await call(gateway, stream=True, n=COUNT), "upstream_error")
        assert read_text(events).startswith("x")
        row = await audit(gateway, bad, outcome="failed", usage_source="estimate")
        assert row.prompt_tokens >= COUNT  # each request has read the prompt


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_client_that_leaves_ends_every_request(standing_with: StartGateway, streamed: bool) -> None:
    script = [*BEGUN, STALL] if streamed else [STALL]
    async with ScriptedUpstream(script) as up:
        gateway = await standing_with(site(single(up)))
        response = asyncio.create_task(call(gateway, stream=streamed, n=COUNT))
        await until(lambda: len(up.received) == COUNT)
        await asyncio.sleep(0.05)
        response.cancel()
        await until(lambda: up.open_connections == 0)
        row = await audit(gateway, up, outcome="client_closed", usage_source="estimate")
        assert row.prompt_tokens == COUNT  # "Hi" is a token


async def test_more_requests_than_a_channel_may_get_are_refused(standing_with: StartGateway) -> None:
    async with ScriptedUpstream(good_script(stream=False)) as up:
        gateway = await standing_with(site(single(up)))
        heard = await call(gateway, stream=False, n=MAX_REQUESTS + 1)
        assert (heard.status, orjson.loads(heard.body)["error"]["param"]) == (400, "n")
        assert not up.received


async def test_the_prompt_of_every_request_is_reserved(standing_with: StartGateway) -> None:
    async with ScriptedUpstream(good_script(stream=False)) as up:
        gateway = await standing_with(site(single(up)))
        for count in (1, COUNT):
            await call(gateway, stream=False, n=count, max_tokens=10)
        one, several = await gateway.rows(2)
        assert several.reserved_nanos == COUNT * one.reserved_nanos > 0


async def test_no_more_whole_answers_run_at_once_than_the_channel_may_be_asked(standing_with: StartGateway) -> None:
    running, most = 0, 0

    async def work(_received: Received) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)  # the others come meanwhile
        running -= 1

    async with ScriptedUpstream([work, *good_script(stream=False)]) as up:
        gateway = await standing_with(site(single(up, max_concurrency=2)))
        heard = await call(gateway, stream=False, n=2 * COUNT)
        assert (heard.status, len(orjson.loads(heard.body)["choices"])) == (200, 2 * COUNT)
        assert most == 2
        await audit(gateway, outcome="completed", attempts=1)


@pytest.mark.parametrize(("limit", "taken"), [(None, COUNT), (2, 2)])
async def test_each_choice_of_a_stream_takes_a_free_place(
    standing_with: StartGateway, limit: int | None, taken: int
) -> None:
    go_on = asyncio.Event()

    async def wait(_received: Received) -> None:
        await go_on.wait()

    async with ScriptedUpstream([wait, *good_script(stream=True)]) as up:
        more: dict[str, Any] = {} if limit is None else {"max_concurrency": limit}
        gateway = await standing_with(site(single(up, **more)))
        line = gateway.app[SERVICES].routing.load_balancer.channels["single"]
        response = asyncio.create_task(call(gateway, stream=True, n=COUNT))
        await until(lambda: len(up.received) == COUNT)
        assert line.running == taken
        go_on.set()
        texts, _ = read_stream(await response)
        assert len(texts) == COUNT
        await until(lambda: line.running == 0)
        await audit(gateway, outcome="completed", attempts=1)
