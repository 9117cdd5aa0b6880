"""The ``anthropic`` SDK against channels of every language."""

import asyncio
import base64
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic, APIStatusError, AuthenticationError, BadRequestError, NotFoundError
from pydantic import BaseModel

from tests.support.anthropic_provider import AnthropicProvider, sign
from tests.support.gateway import KEY, channels
from tests.support.gemini_provider import SIGNATURE, GeminiProvider
from tests.support.openai_provider import OpenAIProvider, ThinkingProvider
from tests.support.providers import Call, Provider, ReceivedImage, Says
from tests.support.scripted_upstream import FIN, SSE_HEAD, ScriptedUpstream, Step, chunk, delta, event
from tests.support.sdk_clients import MakeClaude, ProviderType
from tests.support.started_gateways import StartGateway

PNG = b"\x89PNG\r\n\x1a\n" + bytes(16)
PDF = b"%PDF-1.4\n%%EOF"
ASK: Any = {
    "model": "m",
    "max_tokens": 4096,
    "system": "Be brief.",
    "messages": [{"role": "user", "content": "What is a gateway?"}],
}
WEATHER: Any = {
    "name": "get_weather",
    "description": "The weather of a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["C", "F"]}},
        "required": ["city"],
    },
}
TIME: Any = {"name": "get_time", "input_schema": {"type": "object", "properties": {}}}


class Atlas(BaseModel):
    cities: list[str]


def as_source(data: bytes, media_type: str) -> Any:
    return {"type": "base64", "media_type": media_type, "data": base64.b64encode(data).decode()}


async def ask(client: anthropic.AsyncAnthropic, streamed: bool, **more: Any) -> Any:
    """The whole message, however it came."""
    asked = {**ASK, **more}
    if not streamed:
        return await client.messages.create(**asked)
    async with client.messages.stream(**asked) as stream:
        return await stream.get_final_message()


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_message_is_answered(
    provider_type: ProviderType, streamed: bool, standing_with: StartGateway, claude: MakeClaude
) -> None:
    async with provider_type(Says("A door, füllig ✓")) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        message = await ask(claude(gateway), streamed)
        assert (message.type, message.role, message.stop_reason) == ("message", "assistant", "end_turn")
        assert [(block.type, block.text) for block in message.content] == [("text", "A door, füllig ✓")]
        assert message.id.startswith("msg_")
        assert message.model
        counted = message.usage
        assert (counted.input_tokens, counted.cache_read_input_tokens, counted.output_tokens) == (16, 5, 13)
        assert (up.heard[0].system, up.heard[0].messages) == ("Be brief.", ("user: What is a gateway?",))
        (row,) = await gateway.rows(1)
        assert (row.prompt_tokens, row.completion_tokens, row.cached_tokens) == (21, 13, 5)
        assert (row.operation, row.usage_source) == ("messages", "upstream")


async def test_a_raw_stream_has_its_events_in_their_order(
    provider_type: ProviderType, standing_with: StartGateway, claude: MakeClaude
) -> None:
    async with provider_type(
        Says("One two three", calls=(Call("get_time"), Call("get_weather", {"city": "Oslo"})))
    ) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        stream = await claude(gateway).messages.create(**ASK, tools=[TIME, WEATHER], stream=True)
        events = [item async for item in stream]
        kinds = [item.type for item in events]
        assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
        open_block, begun = None, []
        for item in events[1:-2]:
            match item.type:
                case "content_block_start":
                    assert open_block is None
                    open_block = item.index
                    begun.append((item.index, item.content_block.type))
                case "content_block_delta":
                    assert item.index == open_block
                case "content_block_stop":
                    assert item.index == open_block
                    open_block = None
        assert begun == [(0, "text"), (1, "tool_use"), (2, "tool_use")]
        assert open_block is None


@pytest.mark.parametrize("streamed", [False, True])
async def test_tools_are_called_at_once_and_their_results_become_an_answer(
    provider_type: ProviderType, streamed: bool, standing_with: StartGateway, claude: MakeClaude
) -> None:
    calls = (
        Call("get_weather", {"city": 'Os"lo', "unit": "C"}),
        Call("get_time"),
        Call("get_weather", {"city": "Åbo"}),
    )
    async with provider_type(Says("Looking.", calls=calls), Says("It rains.")) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        client = claude(gateway)
        tools: Any = {"tools": [WEATHER, TIME], "tool_choice": {"type": "auto"}}
        first = await ask(client, streamed, **tools)
        assert first.stop_reason == "tool_use"
        text, *made = first.content
        assert text.text == "Looking."
        assert [(use.name, use.input) for use in made] == [(call.name, call.arguments) for call in calls]
        assert len({use.id for use in made}) == 3
        results = [
            {"type": "tool_result", "tool_use_id": made[2].id, "content": [{"type": "text", "text": "sun"}]},
            {"type": "tool_result", "tool_use_id": made[0].id, "content": "no such city", "is_error": True},
            {"type": "tool_result", "tool_use_id": made[1].id},
            {"type": "text", "text": "Hurry!"},
        ]
        messages = [
            *ASK["messages"],
            {"role": "assistant", "content": first.content},
            {"role": "user", "content": results},
        ]
        last = await ask(client, streamed, messages=messages, **tools)
        assert ([block.text for block in last.content], last.stop_reason) == (["It rains."], "end_turn")
        assert not up.refusals
        heard = up.heard[1]
        assert heard.tools == ("get_weather", "get_time")
        sun, failed, silent = heard.results
        assert (sun, silent) == (("get_weather", "sun"), ("get_time", ""))
        assert failed[1] == ("The tool failed: no such city" if provider_type is OpenAIProvider else "no such city")
        assert heard.messages == ("user: What is a gateway?", "assistant: Looking.", "user: Hurry!")


async def test_a_failed_tool_is_told_as_each_language_tells_it(
    provider_type: ProviderType, standing_with: StartGateway, claude: MakeClaude
) -> None:
    messages = [
        {"role": "user", "content": "Go"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "get_time", "input": {}}]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "boom", "is_error": True}],
        },
    ]
    async with provider_type() as up:
        gateway = await standing_with({"channel": [up.channel()]})
        await ask(claude(gateway), streamed=False, messages=messages, tools=[TIME])
        body = up.received[0].json
    if provider_type is AnthropicProvider:
        assert body["messages"] == messages
    elif provider_type is GeminiProvider:
        assert body["contents"][-1]["parts"][0]["functionResponse"]["response"] == {"error": "boom"}
    else:
        assert body["messages"][-1]["content"] == "The tool failed: boom"


SIGNED = {ThinkingProvider: "", AnthropicProvider: sign("I should look"), GeminiProvider: f"gemini:{SIGNATURE}"}
"""What a thought is signed with by whom it came from; the convention signs none."""


@pytest.mark.parametrize("streamed", [False, True])
async def test_thoughts_come_signed_and_go_back_to_who_signed_them(
    thinking: ProviderType, streamed: bool, standing_with: StartGateway, claude: MakeClaude
) -> None:
    calls = Says(thought="I should look", calls=(Call("get_weather", {"city": "Oslo"}),))
    async with thinking(calls, Says("Rain.", thought="So it rains")) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        client = claude(gateway)
        more: Any = {"tools": [WEATHER], "thinking": {"type": "enabled", "budget_tokens": 2048}}
        first = await ask(client, streamed, **more)
        thought, use = first.content
        assert (thought.type, thought.thinking, use.name) == ("thinking", "I should look", "get_weather")
        assert thought.signature == SIGNED[thinking]
        result = {"type": "tool_result", "tool_use_id": use.id, "content": "rain"}
        messages = [
            *ASK["messages"],
            {"role": "assistant", "content": first.content},
            {"role": "user", "content": [result]},
        ]
        last = await ask(client, streamed, messages=messages, **more)
        assert [block.type for block in last.content] == ["thinking", "text"]
        assert last.content[1].text == "Rain."
        assert not up.refusals
        if thinking is GeminiProvider:  # it wants the signature, not the words
            assert up.received[1].json["contents"][1]["parts"][0]["thoughtSignature"] == SIGNATURE
        else:
            assert up.heard[1].thoughts == ("I should look",)


async def test_images_and_documents_arrive_whole(
    provider_type: ProviderType, standing_with: StartGateway, claude: MakeClaude
) -> None:
    content = [
        {"type": "image", "source": as_source(PNG, "image/png")},
        {"type": "image", "source": {"type": "url", "url": "https://example.com/cat.jpg"}},
        {"type": "document", "source": as_source(PDF, "application/pdf"), "title": "A report"},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Once upon a time"}},
        {"type": "text", "text": "What is in these?"},
    ]
    async with provider_type(Says("A cat.")) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        message = await ask(claude(gateway), streamed=False, messages=[{"role": "user", "content": content}])
        assert message.content[0].text == "A cat."
        image, far, file, *rest = up.heard[0].images
        assert (image, far.url) == (ReceivedImage("image/png", PNG), "https://example.com/cat.jpg")
        assert file == ReceivedImage("application/pdf", PDF)
        words = [*up.heard[0].messages, *((item.data or b"").decode() for item in rest)]
        assert any("Once upon a time" in text for text in words)
        assert any("What is in these?" in text for text in words)


@pytest.mark.parametrize("kind", [AnthropicProvider, GeminiProvider])
async def test_tokens_are_counted_by_who_can(
    kind: type[Provider], standing_with: StartGateway, claude: MakeClaude
) -> None:
    async with kind() as up:
        gateway = await standing_with({"channel": [up.channel()]})
        asked = {name: value for name, value in ASK.items() if name != "max_tokens"}
        counted = await claude(gateway).messages.count_tokens(**asked, tools=[WEATHER])
        assert counted.input_tokens == 42
        assert (up.heard[0].system, up.heard[0].tools) == ("Be brief.", ("get_weather",))
        (row,) = await gateway.rows(1)
        assert (row.operation, row.cost_nanos, row.prompt_tokens) == ("count_tokens", 0, 0)


async def test_tokens_are_estimated_where_nobody_counts(standing_with: StartGateway, claude: MakeClaude) -> None:
    async with OpenAIProvider() as up:
        gateway = await standing_with({"channel": [up.channel()]})
        short = await claude(gateway).messages.count_tokens(model="m", messages=[{"role": "user", "content": "hi"}])
        long = await claude(gateway).messages.count_tokens(
            model="m", messages=[{"role": "user", "content": "hi, " * 500}]
        )
        assert 0 < short.input_tokens < 10 < long.input_tokens < 2000
        assert not up.received


async def test_what_the_gateway_refuses_is_said_in_the_same_shape(
    standing_with: StartGateway, claude: MakeClaude
) -> None:
    async with AnthropicProvider() as up:
        gateway = await standing_with({"channel": [up.channel()]})
        with pytest.raises(AuthenticationError) as denied:
            await ask(claude(gateway, api_key="sk-nobodys"), streamed=False)
        assert denied.value.type == "authentication_error"
        with pytest.raises(NotFoundError) as unknown:
            await ask(claude(gateway), streamed=True, model="nobody-has-it")
        assert (unknown.value.type, "GET /v1/models" in unknown.value.message) == ("not_found_error", True)
        with pytest.raises(BadRequestError, match=r"'messages\[0\]\.role' must be one of"):
            await ask(claude(gateway), streamed=False, messages=[{"role": "tool", "content": "?"}])
        assert not up.received
        await gateway.rows(2)


async def test_a_failure_in_mid_stream_is_an_error_after_what_was_said(
    standing_with: StartGateway, claude: MakeClaude
) -> None:
    """The provider speaks the convention and breaks off; the caller hears of it as Anthropic would say it."""
    script: list[Step] = [SSE_HEAD, chunk(event(delta("one"))), chunk(event(delta(" two"))), FIN]
    async with ScriptedUpstream(script) as up:
        gateway = await standing_with(channels([up]))
        answers: list[str] = []

        async def listen() -> None:
            async with claude(gateway).messages.stream(**ASK) as stream:
                async for text in stream.text_stream:
                    answers.append(text)  # noqa: PERF401 - it ends in an exception

        with pytest.raises(APIStatusError) as caught:
            await listen()
        assert "".join(answers) == "one two"
        assert caught.value.type == "api_error"
        (row,) = await gateway.rows(1)
        assert f"(request id: {row.id})" in caught.value.message
        assert row.outcome == "failed"


async def test_a_class_is_filled_with_the_answer(
    provider_type: ProviderType, standing_with: StartGateway, claude: MakeClaude
) -> None:
    async with provider_type(Says('{"cities": ["Oslo", "Åbo"]}')) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        message = await claude(gateway).messages.parse(**ASK, output_format=Atlas)
        assert message.parsed_output == Atlas(cities=["Oslo", "Åbo"])
        schema = up.heard[0].schema
        assert schema is not None
        assert schema["properties"]["cities"]["type"] == "array"


@pytest.mark.parametrize("streamed", [False, True])
async def test_why_an_answer_ended_is_said(
    provider_type: ProviderType, streamed: bool, standing_with: StartGateway, claude: MakeClaude
) -> None:
    async with provider_type(Says("Once", cut=True), Says("Until the", stopped_at="END")) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        client = claude(gateway)
        assert (await ask(client, streamed, max_tokens=1)).stop_reason == "max_tokens"
        stopped = await ask(client, streamed, stop_sequences=["END"])
        if provider_type is AnthropicProvider:  # nobody else says which one it was, or that it was one
            assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "END")
        else:
            assert stopped.stop_reason == "end_turn"
        sent = up.received[1].json
        stops = sent.get("stop") or sent.get("stop_sequences") or sent["generationConfig"]["stopSequences"]
        assert stops == ["END"]


async def test_the_models_can_be_listed_with_this_sdk_too(standing_with: StartGateway, claude: MakeClaude) -> None:
    async with AnthropicProvider() as up:
        gateway = await standing_with({"channel": [up.channel(models=["m", "n"], model_map={"m": up.model})]})
        models = [model async for model in claude(gateway).models.list()]
        assert [model.id for model in models] == ["m", "n"]
        assert (await claude(gateway).models.retrieve("n")).id == "n"


async def test_the_sync_client_does_a_whole_tool_loop(provider_type: ProviderType, standing_with: StartGateway) -> None:
    async with provider_type(Says(calls=(Call("get_time"),)), Says("It is noon.")) as up:
        gateway = await standing_with({"channel": [up.channel()]})

        def talk() -> str:
            with Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client:
                first = client.messages.create(**ASK, tools=[TIME])
                use: Any = first.content[0]
                result = {"type": "tool_result", "tool_use_id": use.id, "content": "12:00"}
                body = {"role": "assistant", "content": first.content}
                messages = [*ASK["messages"], body, {"role": "user", "content": [result]}]
                with client.messages.stream(**{**ASK, "messages": messages}, tools=[TIME]) as stream:
                    return "".join(stream.text_stream)

        assert await asyncio.to_thread(talk) == "It is noon."
        assert up.heard[1].results == (("get_time", "12:00"),)
