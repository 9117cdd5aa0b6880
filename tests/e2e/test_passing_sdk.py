"""What passes untouched, with the real SDK: completions, moderations, responses; and rerank with a plain client."""

import asyncio
from typing import Any

import orjson
import pytest
from openai import APIError, BadRequestError, InternalServerError, OpenAI

from tests.support.anthropic_provider import AnthropicProvider
from tests.support.gateway import KEY, channels
from tests.support.scripted_upstream import (
    DONE,
    FIN,
    LAST_CHUNK,
    SSE_HEAD,
    Script,
    ScriptedUpstream,
    Step,
    answer,
    chunk,
    event,
)
from tests.support.sdk_clients import MakeClient
from tests.support.started_gateways import StartGateway


def completion(text: str, finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
    return {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m", "choices": [choice], **more}


USAGE = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
MODERATION = {
    "id": "modr-1",
    "model": "m",
    "results": [
        {
            "flagged": True,
            "categories": {"violence": True, "self-harm/intent": False},
            "category_scores": {"violence": 0.9, "self-harm/intent": 0.1},
            "category_applied_input_types": {"violence": ["text"]},
        }
    ],
}
COUNTED = {
    "input_tokens": 5,
    "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 1},
    "total_tokens": 12,
}
ITEM = {
    "id": "msg_1",
    "type": "message",
    "status": "completed",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "Hello there", "annotations": []}],
}
RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "model": "m",
    "status": "completed",
    "error": None,
    "incomplete_details": None,
    "instructions": None,
    "metadata": {},
    "output": [ITEM],
    "parallel_tool_calls": True,
    "temperature": 1.0,
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "usage": COUNTED,
}
BEGUN = RESPONSE | {"status": "in_progress", "output": [], "usage": None}


def happening(kind: str, number: int, **fields: Any) -> bytes:
    """One event of a response's stream."""
    value = {"type": kind, "sequence_number": number, **fields}
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(value))


def response_script(*, whole: bool = True) -> list[Step]:
    place: dict[str, Any] = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    part = {"type": "output_text", "text": "", "annotations": []}
    events = [
        happening("response.created", 0, response=BEGUN),
        happening("response.in_progress", 1, response=BEGUN),
        happening("response.output_item.added", 2, output_index=0, item=ITEM | {"content": []}),
        happening("response.content_part.added", 3, part=part, **place),
        happening("response.output_text.delta", 4, delta="Hello", logprobs=[], **place),
        happening("response.output_text.delta", 5, delta=" there", logprobs=[], **place),
    ]
    if not whole:
        return [SSE_HEAD, *map(chunk, events), 0.02, FIN]
    events += [
        happening("response.output_text.done", 6, text="Hello there", logprobs=[], **place),
        happening("response.content_part.done", 7, part=part | {"text": "Hello there"}, **place),
        happening("response.output_item.done", 8, output_index=0, item=ITEM),
        happening("response.completed", 9, response=RESPONSE),
    ]
    return [SSE_HEAD, *map(chunk, events), LAST_CHUNK]


async def test_a_text_is_completed(standing_with: StartGateway, sdk: MakeClient) -> None:
    async with ScriptedUpstream([answer(completion("there was", "length", usage=USAGE))]) as up:
        gateway = await standing_with(channels([up]))
        made = await sdk(gateway).completions.create(model="m", prompt="Once", max_tokens=2, suffix="end")
        assert (made.choices[0].text, made.choices[0].finish_reason) == ("there was", "length")
        assert (up.received[0].path, up.received[0].json["suffix"]) == ("/v1/completions", "end")
        (row,) = await gateway.rows(1)
        assert (row.operation, row.prompt_tokens, row.completion_tokens) == ("completions", 5, 7)


@pytest.mark.parametrize("asked", [False, True])
async def test_a_text_is_completed_in_a_stream(asked: bool, standing_with: StartGateway, sdk: MakeClient) -> None:
    pieces = [completion("there"), completion(" was"), completion("", "stop")]
    counted = completion("", usage=USAGE) | {"choices": []}
    script = [SSE_HEAD, *(chunk(event(piece)) for piece in [*pieces, counted]), chunk(DONE), LAST_CHUNK]
    async with ScriptedUpstream(script) as up:
        gateway = await standing_with(channels([up]))
        options: Any = {"stream_options": {"include_usage": True}} if asked else {}
        stream = await sdk(gateway).completions.create(model="m", prompt="Once", stream=True, **options)
        made = [item async for item in stream]
        assert "".join(item.choices[0].text for item in made if item.choices) == "there was"
        assert [item.usage.total_tokens for item in made if item.usage] == [12] * asked
        assert up.received[0].json["stream_options"] == {"include_usage": True}
        (row,) = await gateway.rows(1)
        assert (row.prompt_tokens, row.completion_tokens, row.usage_source) == (5, 7, "upstream")


async def test_a_text_is_judged(standing_with: StartGateway, sdk: MakeClient) -> None:
    async with ScriptedUpstream([answer(MODERATION)]) as up:
        gateway = await standing_with(channels([up]))
        content: Any = [
            {"type": "text", "text": "I will"},
            {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        ]
        judged = await sdk(gateway).moderations.create(model="m", input=content)
        (result,) = judged.results
        assert (result.flagged, result.categories.violence, result.category_scores.self_harm_intent) == (
            True,
            True,
            0.1,
        )
        assert up.received[0].json["input"] == content
        (row,) = await gateway.rows(1)
        assert row.operation == "moderations"


async def test_a_response_is_made(standing_with: StartGateway, sdk: MakeClient) -> None:
    async with ScriptedUpstream([answer(RESPONSE)]) as up:
        gateway = await standing_with(channels([up], allow_fields=["tools.web_search"]))
        tools: Any = [{"type": "web_search"}]
        made = await sdk(gateway).responses.create(model="m", input="Hi", instructions="Be brief", tools=tools)
        assert (made.output_text, made.status) == ("Hello there", "completed")
        assert made.usage is not None
        assert made.usage.input_tokens_details.cached_tokens == 2
        assert up.received[0].json["tools"] == tools
        (row,) = await gateway.rows(1)
        assert (row.operation, row.prompt_tokens, row.completion_tokens, row.cached_tokens) == ("responses", 5, 7, 2)


async def test_a_hosted_tool_that_is_only_offered_is_left_out(standing_with: StartGateway, sdk: MakeClient) -> None:
    async with ScriptedUpstream([answer(RESPONSE)]) as up:
        gateway = await standing_with(channels([up]))
        tools: Any = [{"type": "web_search"}, {"type": "function", "name": "f", "parameters": {}, "strict": False}]
        asked = sdk(gateway).responses.with_raw_response
        made = await asked.create(model="m", input="Hi", tools=tools)
        assert made.headers["x-gateway-adapted"] == "tools.web_search"
        assert up.received[0].json["tools"] == tools[1:]
        (row,) = await gateway.rows(1)
        assert row.adapted == "tools.web_search"


async def test_a_response_is_streamed(standing_with: StartGateway, sdk: MakeClient) -> None:
    async with ScriptedUpstream(response_script()) as up:
        gateway = await standing_with(channels([up]))
        stream = await sdk(gateway).responses.create(model="m", input="Hi", stream=True)
        events = [item async for item in stream]
        assert [item.sequence_number for item in events] == list(range(10))
        assert "".join(item.delta for item in events if item.type == "response.output_text.delta") == "Hello there"
        async with sdk(gateway).responses.stream(model="m", input="Hi") as helper:
            assert (await helper.get_final_response()).output_text == "Hello there"
        rows = await gateway.rows(2)
        assert [(row.prompt_tokens, row.completion_tokens, row.usage_source) for row in rows] == [
            (5, 7, "upstream")
        ] * 2


async def test_a_response_that_breaks_off_is_an_error_after_what_was_said(
    standing_with: StartGateway, sdk: MakeClient
) -> None:
    async with ScriptedUpstream(response_script(whole=False)) as up:
        gateway = await standing_with(channels([up]))
        stream = await sdk(gateway).responses.create(model="m", input="Hi", stream=True)
        answers: list[str] = []

        async def listen() -> None:
            async for item in stream:
                answers.append(item.delta if item.type == "response.output_text.delta" else "")  # noqa: PERF401

        with pytest.raises(APIError):
            await listen()
        assert "".join(answers) == "Hello there"
        (row,) = await gateway.rows(1)
        assert (row.outcome, row.usage_source) == ("failed", "estimate")


async def test_the_next_channel_gives_the_response(standing_with: StartGateway, sdk: MakeClient) -> None:
    failed = RESPONSE | {
        "status": "failed",
        "output": [],
        "usage": None,
        "error": {"code": "server_error", "message": "It broke"},
    }
    script = [SSE_HEAD, *map(chunk, [happening("response.created", 0, response=BEGUN)])]
    script += [chunk(happening("response.failed", 1, response=failed)), LAST_CHUNK]
    async with ScriptedUpstream(script) as first, ScriptedUpstream(response_script()) as second:
        gateway = await standing_with(channels([first, second]))
        stream = await sdk(gateway).responses.create(model="m", input="Hi", stream=True)
        kinds = [item.type async for item in stream]
        assert kinds.count("response.created") == kinds.count("response.completed") == 1
        assert "response.failed" not in kinds


async def test_the_sync_client_gets_them_too(standing_with: StartGateway) -> None:
    scripts: list[Script] = [[answer(RESPONSE)], response_script(), [answer(completion("there", "stop", usage=USAGE))]]
    async with ScriptedUpstream(*scripts) as up:
        gateway = await standing_with(channels([up]))

        def talk() -> tuple[str, str, str]:
            with OpenAI(base_url=f"{gateway.url}/v1", api_key=KEY, max_retries=0) as client:
                made = client.responses.create(model="m", input="Hi").output_text
                with client.responses.stream(model="m", input="Hi") as stream:
                    streamed = stream.get_final_response().output_text
                return made, streamed, client.completions.create(model="m", prompt="Once").choices[0].text

        assert await asyncio.to_thread(talk) == ("Hello there", "Hello there", "there")


@pytest.mark.parametrize("name", ["completions", "moderations", "responses"])
@pytest.mark.parametrize(("status", "kind"), [(400, BadRequestError), (503, InternalServerError)])
async def test_an_error_is_the_sdks_own(
    name: str, status: int, kind: type[APIError], standing_with: StartGateway, sdk: MakeClient
) -> None:
    error = {"error": {"message": "No such thing", "type": "invalid_request_error", "param": "x", "code": "odd"}}
    async with ScriptedUpstream([answer(error, status)]) as up:
        gateway = await standing_with(channels([up]))
        asked = {"prompt": "Once"} if name == "completions" else {"input": "Hi"}
        with pytest.raises(kind, match="No such thing") as caught:
            await getattr(sdk(gateway), name).create(model="m", **asked)
        assert caught.value.code == ("odd" if status == 400 else "upstream_error")


@pytest.mark.parametrize("name", ["completions", "moderations"])
async def test_a_channel_of_another_language_has_none_of_these(
    name: str, standing_with: StartGateway, sdk: MakeClient
) -> None:
    async with AnthropicProvider() as up:
        gateway = await standing_with({"channel": [up.channel()]})
        asked = {"prompt": "Once"} if name == "completions" else {"input": "Hi"}
        with pytest.raises(BadRequestError, match="POST /v1/chat/completions does") as caught:
            await getattr(sdk(gateway), name).create(model="m", **asked)
        assert (caught.value.code, caught.value.param) == ("unsupported_operation", "model")
        assert not up.received


async def test_documents_are_ranked(standing_with: StartGateway) -> None:
    ranked = {
        "id": "r",
        "model": "m",
        "usage": {"total_tokens": 30},
        "results": [{"index": 1, "relevance_score": 0.9, "document": {"text": "Oslo"}}],
    }
    async with ScriptedUpstream([answer(ranked)]) as up:
        gateway = await standing_with(channels([up]))
        body = {"model": "m", "query": "capital?", "documents": ["Bergen", {"text": "Oslo"}], "top_n": 1}
        async with gateway.post(body, path="/v1/rerank") as response:
            assert response.status == 200
            assert await response.json() == ranked
            assert response.headers["x-gateway-attempts"] == "1"
        assert (up.received[0].path, up.received[0].json) == ("/v1/rerank", body)
        (row,) = await gateway.rows(1)
        assert (row.operation, row.prompt_tokens, row.completion_tokens) == ("rerank", 30, 0)


async def test_a_ranking_fails_over_and_what_is_wrong_with_it_is_named(standing_with: StartGateway) -> None:
    ranked = {"results": [{"index": 0, "relevance_score": 0.5}]}
    async with ScriptedUpstream([answer({"error": "busy"}, 500)]) as first, ScriptedUpstream([answer(ranked)]) as other:
        gateway = await standing_with(channels([first, other]))
        async with gateway.post({"model": "m", "query": "q", "documents": ["a"]}, path="/v1/rerank") as response:
            assert (response.status, await response.json()) == (200, ranked)
        async with gateway.post({"model": "m", "query": "q"}, path="/v1/rerank") as response:
            assert response.status == 400
            assert (await response.json())["error"]["param"] == "documents"
        await gateway.rows(2)
