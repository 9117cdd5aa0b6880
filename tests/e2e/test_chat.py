"""Chat with the real SDK: against the built-in demo, and against scripted providers."""

import asyncio
from typing import Any

import orjson
import pytest
from openai import APIError, OpenAI

from tests.support.gateway import KEY, channels
from tests.support.scripted_upstream import (
    COMPLETION,
    FIN,
    LAST_CHUNK,
    SSE_HEAD,
    ScriptedUpstream,
    Step,
    answer,
    chat_script,
    chunk,
    delta,
    event,
)
from tests.support.sdk_clients import MakeClient
from tests.support.started_gateways import StartGateway

ASK: list[Any] = [{"role": "user", "content": "What is a gateway?"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


async def test_a_fresh_gateway_without_any_provider_chats(gateway_with: StartGateway, sdk: MakeClient) -> None:
    gateway = await gateway_with({})
    completion = await sdk(gateway).chat.completions.create(model="demo-chat", messages=ASK)
    assert completion.object == "chat.completion"
    assert completion.model == "demo-chat"
    assert "What is a gateway?" in (completion.choices[0].message.content or "")
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens > 0
    assert (completion._request_id or "").startswith("req_")


async def test_the_sync_client_gets_the_same_words_whole_and_streamed(gateway_with: StartGateway) -> None:
    gateway = await gateway_with({})

    def talk() -> tuple[str, list[str]]:
        with OpenAI(base_url=f"{gateway.url}/v1", api_key=KEY, max_retries=0) as client:
            whole = client.chat.completions.create(model="demo-chat", messages=ASK)
            with client.chat.completions.create(model="demo-chat", messages=ASK, stream=True) as stream:
                pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
        return whole.choices[0].message.content or "", pieces

    whole, pieces = await asyncio.to_thread(talk)
    assert len(pieces) > 5
    assert "".join(pieces) == whole


async def test_a_stream_has_no_usage_chunk_unless_it_was_asked_for(gateway_with: StartGateway, sdk: MakeClient) -> None:
    gateway = await gateway_with({})
    stream = await sdk(gateway).chat.completions.create(model="demo-chat", messages=ASK, stream=True)
    chunks = [chunk async for chunk in stream]
    assert all(len(chunk.choices) == 1 for chunk in chunks)
    assert all(chunk.usage is None for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert len({chunk.id for chunk in chunks}) == 1


async def test_a_stream_has_one_usage_chunk_last_where_it_was_asked_for(
    gateway_with: StartGateway, sdk: MakeClient
) -> None:
    gateway = await gateway_with({})
    stream = await sdk(gateway).chat.completions.create(
        model="demo-chat", messages=ASK, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert [chunk.usage is not None for chunk in chunks].count(True) == 1
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    (row,) = await gateway.rows(1)
    assert row.prompt_tokens == chunks[-1].usage.prompt_tokens
    assert row.completion_tokens == chunks[-1].usage.completion_tokens


async def test_a_tool_is_called_and_its_result_comes_back_in_words(gateway_with: StartGateway, sdk: MakeClient) -> None:
    gateway = await gateway_with({})
    client = sdk(gateway)
    messages: list[Any] = [{"role": "user", "content": "Tell me the weather in Oslo with get_weather"}]
    first = await client.chat.completions.create(model="demo-chat", messages=messages, tools=[WEATHER])
    assert first.choices[0].finish_reason == "tool_calls"
    call: Any
    (call,) = first.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "get_weather"
    assert orjson.loads(call.function.arguments) == {"city": "Oslo"}
    messages += [
        first.choices[0].message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "rain, 4 degrees"},
    ]
    second = await client.chat.completions.create(model="demo-chat", messages=messages, tools=[WEATHER])
    assert second.choices[0].finish_reason == "stop"
    assert "rain, 4 degrees" in (second.choices[0].message.content or "")


async def test_a_streamed_tool_call_can_be_put_together(gateway_with: StartGateway, sdk: MakeClient) -> None:
    gateway = await gateway_with({})
    messages: list[Any] = [{"role": "user", "content": "Tell me the weather in Oslo with get_weather"}]
    names, arguments, finish = [], "", None
    stream = await sdk(gateway).chat.completions.create(
        model="demo-chat", messages=messages, tools=[WEATHER], stream=True
    )
    async for item in stream:
        finish = item.choices[0].finish_reason or finish
        for call in item.choices[0].delta.tool_calls or ():
            assert call.function is not None
            names += [call.function.name] if call.function.name else []
            arguments += call.function.arguments or ""
    assert (names, orjson.loads(arguments), finish) == (["get_weather"], {"city": "Oslo"}, "tool_calls")


async def test_the_sdks_own_stream_helper_can_read_our_streams(gateway_with: StartGateway, sdk: MakeClient) -> None:
    gateway = await gateway_with({})
    async with sdk(gateway).chat.completions.stream(model="demo-chat", messages=ASK) as stream:
        types = [item.type async for item in stream]
        final = await stream.get_final_completion()
    assert "content.done" in types
    assert "What is a gateway?" in (final.choices[0].message.content or "")


async def test_fields_the_gateway_does_not_know_reach_the_provider(gateway_with: StartGateway, sdk: MakeClient) -> None:
    async with ScriptedUpstream([answer({**COMPLETION, "extra": {"kept": [1]}})]) as up:
        gateway = await gateway_with(channels([up]))
        completion = await sdk(gateway).chat.completions.create(
            model="m",
            messages=ASK,
            temperature=0.5,
            extra_body={"x_unknown": {"deep": [1, None]}, "guided_json": {"type": "object"}},
        )
        sent = up.received[0].json
        assert sent["x_unknown"] == {"deep": [1, None]}
        assert sent["guided_json"] == {"type": "object"}
        assert sent["temperature"] == 0.5
        assert completion.model_extra == {"extra": {"kept": [1]}}


async def test_nothing_of_the_callers_headers_reaches_the_provider(gateway_with: StartGateway, sdk: MakeClient) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(channels([up]))
        client = sdk(gateway, organization="org-mine", project="proj-mine", default_headers={"X-Secret": "mine"})
        await client.chat.completions.create(model="m", messages=ASK)
        headers = up.received[0].headers
        assert headers["authorization"] == "Bearer provider-key"
        assert "x-secret" not in headers
        assert not [name for name in headers if name.startswith(("openai-", "x-stainless", "user-agent"))]
        assert KEY not in str(headers)


async def test_a_failure_in_mid_stream_is_an_api_error_after_what_was_said(
    gateway_with: StartGateway, sdk: MakeClient
) -> None:
    script: list[Step] = [SSE_HEAD, chunk(event(delta("one"))), chunk(event(delta("two"))), FIN]
    async with ScriptedUpstream(script) as up:
        gateway = await gateway_with(channels([up]))
        stream = await sdk(gateway).chat.completions.create(model="m", messages=ASK, stream=True)
        with pytest.raises(APIError) as caught:
            [item async for item in stream]
        assert caught.value.code == "upstream_error"
        assert caught.value.type == "new_api_error"
        (row,) = await gateway.rows(1)
        assert f"(request id: {row.id})" in caught.value.message
        assert (row.outcome, row.status, row.error_code) == ("failed", 200, "upstream_error")
        assert len(up.received) == 1


async def test_words_before_a_mid_stream_failure_arrive(gateway_with: StartGateway, sdk: MakeClient) -> None:
    error = {"error": {"message": "the model crashed", "type": "server_error", "param": None, "code": "boom"}}
    script: list[Step] = [SSE_HEAD, chunk(event(delta("one"))), 0.02, chunk(event(error)), LAST_CHUNK]
    async with ScriptedUpstream(script) as up:
        gateway = await gateway_with(channels([up]))
        answers: list[str] = []
        stream = await sdk(gateway).chat.completions.create(model="m", messages=ASK, stream=True)

        async def listen() -> None:
            async for item in stream:
                answers.append(item.choices[0].delta.content or "")  # noqa: PERF401 - it ends in an exception

        with pytest.raises(APIError, match="the model crashed"):
            await listen()
        assert answers == ["one"]


async def test_a_stream_from_a_real_provider_is_read_to_its_end(gateway_with: StartGateway, sdk: MakeClient) -> None:
    async with ScriptedUpstream(chat_script("Hel", "lo ", "wörld")) as up:
        gateway = await gateway_with(channels([up]))
        stream = await sdk(gateway).chat.completions.create(model="m", messages=ASK, stream=True)
        assert "".join([item.choices[0].delta.content or "" async for item in stream]) == "Hello wörld"


async def test_a_client_that_leaves_a_stream_ends_the_providers_too(
    gateway_with: StartGateway, sdk: MakeClient
) -> None:
    script: list[Step] = [
        SSE_HEAD,
        *[step for number in range(400) for step in (chunk(event(delta(str(number)))), 0.01)],
    ]
    async with ScriptedUpstream(script) as up:
        gateway = await gateway_with(channels([up]))
        stream = await sdk(gateway).chat.completions.create(model="m", messages=ASK, stream=True)
        async for _ in stream:
            break
        await stream.close()
        (row,) = await gateway.rows(1)
        assert (row.outcome, row.usage_source) == ("client_closed", "estimate")
        async with asyncio.timeout(15):
            while up.open_connections:  # noqa: ASYNC110 - the fake has no event for it
                await asyncio.sleep(0.01)
