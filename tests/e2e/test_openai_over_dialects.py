"""The ``openai`` SDK against channels of every language: the caller cannot tell which of them answered."""

import asyncio
import base64
from typing import Any

import orjson
import pytest
from openai import BadRequestError, OpenAI
from pydantic import BaseModel

from tests.support.anthropic_provider import AnthropicProvider
from tests.support.gateway import KEY
from tests.support.openai_provider import OpenAIProvider
from tests.support.providers import Call, ReceivedImage, Says
from tests.support.sdk_clients import MakeClient, ProviderType
from tests.support.started_gateways import StartGateway

PNG = b"\x89PNG\r\n\x1a\n" + bytes(16)
PDF = b"%PDF-1.4\n%%EOF"
ASK: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is a gateway?"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["C", "F"]}},
            "required": ["city"],
        },
    },
}
TIME: Any = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}


class City(BaseModel):
    name: str
    people: int


class Atlas(BaseModel):
    cities: list[City]


def as_data(data: bytes, media_type: str) -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


async def test_a_chat_is_answered(provider_type: ProviderType, standing_with: StartGateway, sdk: MakeClient) -> None:
    async with provider_type(Says("A door, füllig ✓")) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        answer = await sdk(gateway).chat.completions.create(model="m", messages=ASK, temperature=0.5, max_tokens=99)
        (choice,) = answer.choices
        assert (answer.object, choice.index, choice.finish_reason) == ("chat.completion", 0, "stop")
        assert (choice.message.role, choice.message.content) == ("assistant", "A door, füllig ✓")
        assert choice.message.tool_calls is None
        assert answer.id
        assert answer.created > 1_700_000_000
        assert (up.heard[0].system, up.heard[0].messages) == ("Be brief.", ("user: What is a gateway?",))
        usage = answer.usage
        assert usage is not None
        assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (21, 13, 34)
        assert usage.prompt_tokens_details is not None
        assert usage.prompt_tokens_details.cached_tokens == 5
        (row,) = await gateway.rows(1)
        assert (row.prompt_tokens, row.completion_tokens, row.cached_tokens) == (21, 13, 5)
        assert row.usage_source == "upstream"


@pytest.mark.parametrize("asked", [False, True])
async def test_a_stream_is_the_same_words_with_usage_only_where_it_was_asked_for(
    provider_type: ProviderType, asked: bool, standing_with: StartGateway, sdk: MakeClient
) -> None:
    async with provider_type(Says("One two three füllig ✓")) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        options: Any = {"stream_options": {"include_usage": True}} if asked else {}
        stream = await sdk(gateway).chat.completions.create(model="m", messages=ASK, stream=True, **options)
        chunks = [chunk async for chunk in stream]
        answers = [chunk for chunk in chunks if chunk.choices]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in answers) == "One two three füllig ✓"
        assert answers[0].choices[0].delta.role == "assistant"
        assert [chunk.choices[0].finish_reason for chunk in answers][-1] == "stop"
        assert len({(chunk.id, chunk.created, chunk.model, chunk.object) for chunk in chunks}) == 1
        counted = [chunk.usage for chunk in chunks if chunk.usage is not None]
        assert [(usage.prompt_tokens, usage.completion_tokens) for usage in counted] == [(21, 13)] * asked
        assert len(chunks) - len(answers) == asked
        (row,) = await gateway.rows(1)
        assert (row.prompt_tokens, row.completion_tokens, row.usage_source) == (21, 13, "upstream")


async def test_the_sdks_stream_helper_reads_words_and_calls(
    provider_type: ProviderType, standing_with: StartGateway, sdk: MakeClient
) -> None:
    calls = (Call("get_weather", {"city": "Åbo"}), Call("get_time"))
    async with provider_type(Says("Let me look", calls=calls)) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        async with sdk(gateway).chat.completions.stream(model="m", messages=ASK, tools=[WEATHER, TIME]) as stream:
            kinds = {item.type async for item in stream}
            final = await stream.get_final_completion()
        assert kinds >= {"content.delta", "content.done", "tool_calls.function.arguments.done"}
        message = final.choices[0].message
        assert (message.content, final.choices[0].finish_reason) == ("Let me look", "tool_calls")
        made = [(call.function.name, orjson.loads(call.function.arguments)) for call in message.tool_calls or ()]
        assert made == [("get_weather", {"city": "Åbo"}), ("get_time", {})]


async def put_together(stream: Any) -> tuple[dict[str, Any], str | None]:
    """A streamed answer as the message that goes back into the conversation, and why it ended."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    calls: dict[int, dict[str, Any]] = {}
    finish = None
    async for chunk in stream:
        (choice,) = chunk.choices
        finish = choice.finish_reason or finish
        message["content"] += choice.delta.content or ""
        for piece in choice.delta.tool_calls or ():
            if piece.id:
                calls[piece.index] = piece.model_dump(exclude_none=True, exclude={"index"})
            else:
                calls[piece.index]["function"]["arguments"] += piece.function.arguments
    if calls:
        message["tool_calls"] = [calls[at] for at in sorted(calls)]
    return message, finish


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_tool_is_called_and_its_result_becomes_an_answer(
    provider_type: ProviderType, streamed: bool, standing_with: StartGateway, sdk: MakeClient
) -> None:
    calls = Says("Looking.", calls=(Call("get_weather", {"city": 'Os"lo', "unit": "C"}),))
    async with provider_type(calls, Says("It rains.")) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        messages = list(ASK)
        talk: Any = sdk(gateway).chat.completions
        for _ in range(2):
            asked = {"model": "m", "messages": messages, "tools": [WEATHER], "tool_choice": "auto"}
            if streamed:
                body, finish = await put_together(await talk.create(**asked, stream=True))
            else:
                answer = await talk.create(**asked)
                body, finish = answer.choices[0].message.model_dump(exclude_none=True), answer.choices[0].finish_reason
            messages.append(body)
            if finish == "tool_calls":
                (call,) = body["tool_calls"]
                assert call["function"]["name"] == "get_weather"
                assert orjson.loads(call["function"]["arguments"]) == {"city": 'Os"lo', "unit": "C"}
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": "rain, 4°"})
        assert (messages[-1]["content"], finish) == ("It rains.", "stop")
        assert not up.refusals
        heard = up.heard[1]
        assert (heard.tools, heard.results) == (("get_weather",), (("get_weather", "rain, 4°"),))
        assert heard.messages == ("user: What is a gateway?", "assistant: Looking.")


@pytest.mark.parametrize("streamed", [False, True])
async def test_parallel_calls_may_be_answered_in_any_order(
    provider_type: ProviderType, streamed: bool, standing_with: StartGateway, sdk: MakeClient
) -> None:
    cities = ("Oslo", "Bergen", "Bodø")
    calls = Says(calls=(*(Call("get_weather", {"city": city}) for city in cities), Call("get_time")))
    async with provider_type(calls, Says("All known.")) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        talk: Any = sdk(gateway).chat.completions
        asked = {"model": "m", "messages": ASK, "tools": [WEATHER, TIME], "tool_choice": "required"}
        if streamed:
            body, finish = await put_together(await talk.create(**asked, stream=True))
        else:
            answer = await talk.create(**asked)
            body, finish = answer.choices[0].message.model_dump(), answer.choices[0].finish_reason
        assert finish == "tool_calls"
        made = body["tool_calls"]
        assert [orjson.loads(call["function"]["arguments"]) for call in made] == [{"city": city} for city in cities] + [
            {}
        ]
        assert len({call["id"] for call in made}) == 4
        results = [{"role": "tool", "tool_call_id": call["id"], "content": f"re {n}"} for n, call in enumerate(made)]
        rest = [*reversed(results), {"role": "user", "content": "Hurry!"}]
        last = await talk.create(model="m", messages=[*ASK, body, *rest], tools=[WEATHER, TIME])
        assert last.choices[0].message.content == "All known."
        weather = [("get_weather", f"re {n}") for n in (2, 1, 0)]
        assert list(up.heard[1].results) == [("get_time", "re 3"), *weather]
        assert up.heard[1].messages[-1] == "user: Hurry!"


async def test_images_and_files_arrive_whole(
    provider_type: ProviderType, standing_with: StartGateway, sdk: MakeClient
) -> None:
    content: Any = [
        {"type": "text", "text": "What is on these?"},
        {"type": "image_url", "image_url": {"url": as_data(PNG, "image/png"), "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "https://example.com/cat.jpg"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": as_data(PDF, "application/pdf")}},
    ]
    async with provider_type(Says("A cat.")) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        messages: Any = [{"role": "user", "content": content}]
        answer = await sdk(gateway).chat.completions.create(model="m", messages=messages)
        assert answer.choices[0].message.content == "A cat."
        image, far, file = up.heard[0].images
        assert (image, far.url) == (ReceivedImage("image/png", PNG), "https://example.com/cat.jpg")
        assert file == ReceivedImage("application/pdf", PDF)
        assert up.heard[0].messages == ("user: What is on these?",)


async def test_a_model_class_is_filled_with_the_answer(
    provider_type: ProviderType, standing_with: StartGateway, sdk: MakeClient
) -> None:
    async with provider_type(Says('{"cities": [{"name": "Oslo", "people": 700000}]}')) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        answer = await sdk(gateway).chat.completions.parse(model="m", messages=ASK, response_format=Atlas)
        parsed = answer.choices[0].message.parsed
        assert parsed == Atlas(cities=[City(name="Oslo", people=700_000)])
        schema = up.heard[0].schema
        assert schema is not None
        assert schema["required"] == ["cities"]
        assert "people" in str(schema)


async def test_a_json_object_can_be_asked_for(
    provider_type: ProviderType, standing_with: StartGateway, sdk: MakeClient
) -> None:
    async with provider_type(Says('{"a": 1}')) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        answer = await sdk(gateway).chat.completions.create(
            model="m", messages=ASK, response_format={"type": "json_object"}
        )
        assert answer.choices[0].message.content == '{"a": 1}'
        sent = up.received[0].json
        asked = [
            sent.get("response_format") == {"type": "json_object"},
            sent.get("generationConfig", {}).get("responseMimeType") == "application/json",
            "JSON object" in up.heard[0].system,
        ]
        assert asked.count(True) == 1


@pytest.mark.parametrize("streamed", [False, True])
async def test_thoughts_are_reasoning_content(
    thinking: ProviderType, streamed: bool, standing_with: StartGateway, sdk: MakeClient
) -> None:
    async with thinking(Says("Four.", thought="Two and two, well")) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        talk: Any = sdk(gateway).chat.completions
        asked = {"model": "m", "messages": ASK, "reasoning_effort": "low"}
        if streamed:
            thoughts, words = "", ""
            async for chunk in await talk.create(**asked, stream=True):
                assert not (words and getattr(chunk.choices[0].delta, "reasoning_content", None))
                thoughts += getattr(chunk.choices[0].delta, "reasoning_content", None) or ""
                words += chunk.choices[0].delta.content or ""
        else:
            answer = await talk.create(**asked)
            thoughts, words = answer.choices[0].message.reasoning_content, answer.choices[0].message.content
            assert answer.usage.completion_tokens_details.reasoning_tokens == 4
        assert (thoughts, words) == ("Two and two, well", "Four.")
        assert not up.refusals


async def test_a_thinking_model_goes_on_after_a_tool_from_what_the_convention_keeps(
    thinking: ProviderType, standing_with: StartGateway, sdk: MakeClient
) -> None:
    """The convention loses Anthropic's signature and keeps Gemini's; neither may be refused for it."""
    calls = Says(thought="I should look", calls=(Call("get_weather", {"city": "Oslo"}),))
    async with thinking(calls, Says("Rain.", thought="So it rains")) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        talk: Any = sdk(gateway).chat.completions
        asked = {"model": "m", "tools": [WEATHER], "reasoning_effort": "medium"}
        first = await talk.create(messages=ASK, **asked)
        body = first.choices[0].message.model_dump(exclude_none=True)
        result = {"role": "tool", "tool_call_id": body["tool_calls"][0]["id"], "content": "rain"}
        second = await talk.create(messages=[*ASK, body, result], **asked)
        assert second.choices[0].message.content == "Rain."
        assert not up.refusals
        assert up.heard[1].results == (("get_weather", "rain"),)


@pytest.mark.parametrize("streamed", [False, True])
async def test_several_answers_come_from_one_request_or_several(
    provider_type: ProviderType, streamed: bool, standing_with: StartGateway, sdk: MakeClient
) -> None:
    texts = ("Heads you win", "Tails I lose")
    one = provider_type is AnthropicProvider  # which makes one per request
    async with provider_type(*(map(Says, texts) if one else [Says(texts[0], more=texts[1:])])) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        talk: Any = sdk(gateway).chat.completions
        words = {0: "", 1: ""}
        ended = set()
        answer = await talk.create(model="m", messages=ASK, n=2, stream=streamed)
        if streamed:
            async for chunk in answer:
                for choice in chunk.choices:
                    words[choice.index] += choice.delta.content or ""
                    ended |= {choice.index} if choice.finish_reason else set()
        else:
            words = {choice.index: choice.message.content for choice in answer.choices}
            ended = {choice.index for choice in answer.choices if choice.finish_reason == "stop"}
        assert (sorted(words.values()), ended) == (sorted(texts), {0, 1})
        assert len(up.received) == (2 if one else 1)


@pytest.mark.parametrize("stop", ["END", ["END", "STOP"]])
async def test_stop_sequences_arrive_and_end_an_answer(
    provider_type: ProviderType, stop: Any, standing_with: StartGateway, sdk: MakeClient
) -> None:
    async with provider_type(Says("Until the", stopped_at="END")) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        answer = await sdk(gateway).chat.completions.create(model="m", messages=ASK, stop=stop)
        assert answer.choices[0].finish_reason == "stop"
        sent = up.received[0].json
        sent = sent.get("stop") or sent.get("stop_sequences") or sent["generationConfig"]["stopSequences"]
        assert "END" in sent
        assert not up.refusals


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_answer_that_was_cut_says_length(
    provider_type: ProviderType, streamed: bool, standing_with: StartGateway, sdk: MakeClient
) -> None:
    async with provider_type(Says("Once upon", cut=True)) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        talk: Any = sdk(gateway).chat.completions
        answer = await talk.create(model="m", messages=ASK, max_tokens=2, stream=streamed)
        finish = (await put_together(answer))[1] if streamed else answer.choices[0].finish_reason
        assert finish == "length"
        sent = up.received[0].json
        limits = (sent.get("max_tokens"), sent.get("max_completion_tokens"))
        assert 2 in {*limits, sent.get("generationConfig", {}).get("maxOutputTokens")}


async def test_what_the_provider_finds_wrong_with_a_request_is_said(
    standing_with: StartGateway, sdk: MakeClient
) -> None:
    """A tool result that answers nothing: the same mistake, told by the one who noticed."""
    messages: Any = [*ASK, {"role": "tool", "tool_call_id": "call_nobody_made", "content": "rain"}]
    async with OpenAIProvider() as up:
        gateway = await standing_with({"channel": [up.channel()]})
        with pytest.raises(BadRequestError, match="must be a response to a preceding message") as caught:
            await sdk(gateway).chat.completions.create(model="m", messages=messages)
        assert caught.value.type == "invalid_request_error"
        assert len(up.refusals) == 1


async def test_the_sync_client_does_a_whole_tool_loop(provider_type: ProviderType, standing_with: StartGateway) -> None:
    async with provider_type(Says(calls=(Call("get_time"),)), Says("It is noon.")) as up:
        gateway = await standing_with({"channel": [up.channel()]})

        def talk() -> str:
            with OpenAI(base_url=f"{gateway.url}/v1", api_key=KEY, max_retries=0) as client:
                first = client.chat.completions.create(model="m", messages=ASK, tools=[TIME])
                body: Any = first.choices[0].message
                result: Any = {"role": "tool", "tool_call_id": body.tool_calls[0].id, "content": "12:00"}
                messages = [*ASK, body, result]
                with client.chat.completions.create(model="m", messages=messages, tools=[TIME], stream=True) as stream:
                    return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

        assert await asyncio.to_thread(talk) == "It is noon."
        assert up.heard[1].results == (("get_time", "12:00"),)
