"""The demo upstream as the real SDK, and a plain client, see it."""

import asyncio
import io
import math
import struct
import time
from base64 import b64decode
from typing import Any

import aiohttp
import openai
import orjson
import pytest
from pydantic import BaseModel

from gateway.demo.models import MODEL_NAMES as DEMO_MODELS
from gateway.demo.server import DemoUpstream

ASK: Any = {"model": "demo-chat", "messages": [{"role": "user", "content": "Why is the sky blue?"}]}
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
    for name in ("get_weather", "get_time")
]
TOOL_ASK: Any = {
    "model": "demo-chat",
    "messages": [{"role": "user", "content": "What are the weather and the time in Paris?"}],
    "tools": TOOLS,
}


class Visit(BaseModel):
    """A made-up form for the structured answer."""

    city: str
    days: int


async def events(plain: aiohttp.ClientSession, demo: DemoUpstream, **fields: Any) -> list[dict[str, Any]]:
    """The raw chunks of a stream, its framing checked on the way."""
    url, body = f"{demo.base_url}/chat/completions", {**ASK, **fields, "stream": True}
    async with plain.post(url, json=body) as response:
        assert response.content_type == "text/event-stream"
        *chunks, done, rest = (await response.text()).split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    assert all(chunk.startswith("data: {") for chunk in chunks)
    return [orjson.loads(chunk.removeprefix("data: ")) for chunk in chunks]


async def test_a_question_is_answered(sdk: openai.AsyncOpenAI) -> None:
    reply = await sdk.chat.completions.create(**ASK)
    assert reply.object == "chat.completion"
    assert reply.model == "demo-chat"
    assert "Why is the sky blue?" in (reply.choices[0].message.content or "")
    assert reply.choices[0].finish_reason == "stop"


async def test_usage_adds_up(sdk: openai.AsyncOpenAI) -> None:
    usage = (await sdk.chat.completions.create(**ASK, max_tokens=7)).usage
    assert usage is not None
    assert usage.prompt_tokens > 0
    assert usage.completion_tokens == 7
    assert usage.total_tokens == usage.prompt_tokens + 7
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 0


async def test_what_may_be_null_is_null_and_not_missing(plain: aiohttp.ClientSession, demo: DemoUpstream) -> None:
    async with plain.post(f"{demo.base_url}/chat/completions", json=ASK) as response:
        choice = (await response.json())["choices"][0]
    assert choice["logprobs"] is None
    assert choice["message"]["refusal"] is None


async def test_a_stream_says_the_same_as_the_whole_answer(sdk: openai.AsyncOpenAI) -> None:
    whole = await sdk.chat.completions.create(**ASK)
    streamed = ""
    async with sdk.chat.completions.stream(**ASK) as stream:
        async for event in stream:
            streamed += event.delta if event.type == "content.delta" else ""
        final = await stream.get_final_completion()
    assert streamed == final.choices[0].message.content == whole.choices[0].message.content
    assert final.choices[0].finish_reason == "stop"


async def test_a_stream_starts_with_the_role_and_ends_with_the_reason(
    plain: aiohttp.ClientSession, demo: DemoUpstream
) -> None:
    first, *middle, last = await events(plain, demo)
    assert first["choices"][0]["delta"]["role"] == "assistant"
    assert len(middle) > 20
    assert all(list(chunk["choices"][0]["delta"]) == ["content"] for chunk in middle)
    assert {chunk["choices"][0]["finish_reason"] for chunk in [first, *middle]} == {None}
    assert (last["choices"][0]["delta"], last["choices"][0]["finish_reason"]) == ({}, "stop")
    assert len({(chunk["id"], chunk["created"], chunk["object"]) for chunk in [first, *middle, last]}) == 1


async def test_usage_is_streamed_only_when_asked_for(plain: aiohttp.ClientSession, demo: DemoUpstream) -> None:
    without = await events(plain, demo)
    *others, last = await events(plain, demo, stream_options={"include_usage": True})
    assert not any("usage" in chunk for chunk in without)
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in others)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == len(others) - 2
    assert len(others) == len(without)


async def test_several_choices_take_turns_in_a_stream(plain: aiohttp.ClientSession, demo: DemoUpstream) -> None:
    chunks = await events(plain, demo, n=2, max_tokens=3)
    assert [chunk["choices"][0]["index"] for chunk in chunks] == [0, 1] * 5


async def test_as_many_choices_as_asked(sdk: openai.AsyncOpenAI) -> None:
    reply = await sdk.chat.completions.create(**ASK, n=3, stop=["built-in"])
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    assert not any("built-in" in (choice.message.content or "") for choice in reply.choices)


async def test_a_limit_ends_a_stream_with_the_reason_length(plain: aiohttp.ClientSession, demo: DemoUpstream) -> None:
    chunks = await events(plain, demo, max_completion_tokens=4)
    assert len(chunks) == 1 + 4 + 1
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


async def test_tools_are_called_with_json_arguments(sdk: openai.AsyncOpenAI) -> None:
    choice = (await sdk.chat.completions.create(**TOOL_ASK)).choices[0]
    calls = choice.message.tool_calls or []
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert [(call.function.name, call.function.arguments) for call in calls if call.type == "function"] == [
        ("get_weather", '{"city":"Paris"}'),
        ("get_time", '{"city":"Paris"}'),
    ]
    assert len({call.id for call in calls}) == 2


async def test_streamed_tool_calls_come_in_fragments_that_join(sdk: openai.AsyncOpenAI) -> None:
    fragments: dict[int, list[Any]] = {}
    async for chunk in await sdk.chat.completions.create(**TOOL_ASK, stream=True):
        for call in chunk.choices[0].delta.tool_calls or []:
            fragments.setdefault(call.index, []).append(call)
    assert list(fragments) == [0, 1]
    for (opening, *rest), name in zip(fragments.values(), ("get_weather", "get_time"), strict=True):
        assert (opening.type, opening.function.name, opening.function.arguments) == ("function", name, "")
        assert opening.id
        assert len(rest) > 1
        assert {(part.id, part.type, part.function.name) for part in rest} == {(None, None, None)}
        assert "".join(part.function.arguments for part in rest) == '{"city":"Paris"}'


async def test_a_tools_result_is_quoted(sdk: openai.AsyncOpenAI) -> None:
    asked = await sdk.chat.completions.create(**TOOL_ASK)
    message = asked.choices[0].message
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": f"result {index}"}
        for index, call in enumerate(message.tool_calls or [])
    ]
    messages = [*TOOL_ASK["messages"], message.model_dump(exclude_none=True), *results]
    final = await sdk.chat.completions.create(model="demo-chat", messages=messages, tools=TOOLS)
    assert '"result 0" and "result 1"' in (final.choices[0].message.content or "")


async def test_a_structured_answer_parses_into_its_form(sdk: openai.AsyncOpenAI) -> None:
    reply = await sdk.chat.completions.parse(
        model="demo-chat", messages=[{"role": "user", "content": "Plan a trip to Lisbon"}], response_format=Visit
    )
    assert reply.choices[0].message.parsed == Visit(city="Lisbon", days=1)


async def test_embeddings_are_unit_vectors_of_the_size_asked(sdk: openai.AsyncOpenAI) -> None:
    reply = await sdk.embeddings.create(model="demo-embedding", input=["one", "two words"], dimensions=64)
    assert [item.index for item in reply.data] == [0, 1]
    assert [len(item.embedding) for item in reply.data] == [64, 64]
    assert all(math.isclose(math.hypot(*item.embedding), 1, rel_tol=1e-6) for item in reply.data)
    assert (reply.usage.prompt_tokens, reply.usage.total_tokens) == (3, 3)


async def test_both_encodings_hold_the_same_vector(plain: aiohttp.ClientSession, demo: DemoUpstream) -> None:
    found = {}
    for encoding in ("float", "base64", None):
        body = {"model": "demo-embedding", "input": "hello world", "encoding_format": encoding}
        async with plain.post(f"{demo.base_url}/embeddings", json=body) as response:
            found[encoding] = (await response.json())["data"][0]["embedding"]
    assert found[None] == found["float"]
    assert struct.unpack("<256f", b64decode(found["base64"])) == pytest.approx(found["float"], abs=1e-7)


async def test_the_models_are_listed_and_found(sdk: openai.AsyncOpenAI) -> None:
    listed = [model async for model in sdk.models.list()]
    assert tuple(model.id for model in listed) == DEMO_MODELS
    for model in listed:
        assert await sdk.models.retrieve(model.id) == model


async def test_a_model_it_does_not_have_is_not_found(sdk: openai.AsyncOpenAI) -> None:
    attempts = [
        sdk.models.retrieve("org/other:tag v1"),
        sdk.chat.completions.create(**{**ASK, "model": "demo-embedding"}),
        sdk.embeddings.create(model="other", input="x"),
    ]
    for attempt in attempts:
        with pytest.raises(openai.NotFoundError) as caught:
            await attempt
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


async def test_a_bad_request_names_the_field(sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await sdk.chat.completions.create(**ASK, n=0, stream=True)
    assert (caught.value.type, caught.value.param, caught.value.code) == ("invalid_request_error", "n", None)


async def test_a_wrong_key_is_refused(demo: DemoUpstream) -> None:
    async with openai.AsyncOpenAI(base_url=demo.base_url, api_key="wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            await client.models.list()
    assert caught.value.code == "invalid_api_key"


async def test_each_upstream_has_a_key_of_its_own() -> None:
    assert DemoUpstream().api_key != DemoUpstream().api_key


@pytest.mark.parametrize(
    ("asked", "data", "status", "code"),
    [
        ("POST /chat/completions", b"{nonsense", 400, None),
        ("POST /chat/completions", b"[]", 400, None),
        ("POST /embeddings", b"", 400, None),
        ("POST /images/variations", b"{}", 404, "unknown_url"),
        ("GET /chat/completions", b"", 405, None),
        ("POST /embeddings", b" " * (33 * 1024 * 1024), 413, None),
    ],
    ids=["not JSON", "not an object", "nothing", "another path", "another method", "too large"],
)
async def test_every_refusal_has_the_conventions_shape(
    demo: DemoUpstream, asked: str, data: bytes, status: int, code: str | None
) -> None:
    method, path = asked.split()
    headers = {"Authorization": f"Bearer {demo.api_key}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.request(method, demo.base_url + path, data=io.BytesIO(data)) as response,
    ):
        body = await response.json()
    assert response.status == status
    assert list(body) == ["error"]
    assert body["error"].pop("message")
    assert body["error"] == {"type": "invalid_request_error", "param": None, "code": code}


async def test_words_arrive_one_after_another() -> None:
    """With a pace, the last of a few words cannot be there with the first."""
    upstream = DemoUpstream(pace_s=0.02)
    await upstream.start()
    async with openai.AsyncOpenAI(base_url=upstream.base_url, api_key=upstream.api_key) as client:
        stream = await client.chat.completions.create(**ASK, stream=True, max_tokens=5)
        arrivals = [time.monotonic() async for _ in stream]
    await upstream.stop()
    assert len(arrivals) == 7
    assert arrivals[-1] - arrivals[0] > 0.06


async def test_a_client_that_leaves_stops_the_stream_at_once() -> None:
    """The pace is so slow that only a cancelled handler can end within the wait."""
    upstream = DemoUpstream(pace_s=30)
    await upstream.start()
    async with openai.AsyncOpenAI(base_url=upstream.base_url, api_key=upstream.api_key) as client:
        stream = await client.chat.completions.create(**ASK, stream=True)
        await anext(aiter(stream))
        assert upstream._stream_count == 1
        await stream.close()
        for _ in range(50):
            if upstream._stream_count:
                await asyncio.sleep(0.005)
        assert upstream._stream_count == 0
    await upstream.stop()


async def test_stopping_does_not_wait_for_a_slow_stream() -> None:
    upstream = DemoUpstream(pace_s=30)
    await upstream.start()
    headers = {"Authorization": f"Bearer {upstream.api_key}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        response = await session.post(f"{upstream.base_url}/chat/completions", json={**ASK, "stream": True})
        await response.content.readuntil(b"\n\n")
        async with asyncio.timeout(2):
            await upstream.stop()
        with pytest.raises(aiohttp.ClientError):
            await response.read()
    assert upstream._stream_count == 0


async def test_there_is_an_address_only_while_it_runs() -> None:
    upstream = DemoUpstream()
    with pytest.raises(RuntimeError, match="started"):
        _ = upstream.base_url
    await upstream.start()
    assert upstream.base_url.startswith("http://127.0.0.1:")
    await upstream.stop()
    await upstream.stop()
    with pytest.raises(RuntimeError, match="started"):
        _ = upstream.base_url
