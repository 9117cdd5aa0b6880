"""The ``google-genai`` SDK against channels of every language."""

import asyncio
from typing import Any

import pytest
from google import genai
from google.genai import errors, types
from pydantic import BaseModel

from tests.support.anthropic_provider import AnthropicProvider
from tests.support.gateway import channels
from tests.support.gemini_provider import GeminiProvider
from tests.support.openai_provider import OpenAIProvider
from tests.support.providers import Call, Fails, Provider, ReceivedImage, Says
from tests.support.scripted_upstream import FIN, SSE_HEAD, ScriptedUpstream, Step, answer, chunk, delta, event
from tests.support.sdk_clients import MakeGoogle, ProviderType
from tests.support.started_gateways import StartGateway

PNG = b"\x89PNG\r\n\x1a\n" + bytes(16)
CONFIG: Any = {"system_instruction": "Be brief.", "max_output_tokens": 4096}
ASK = "What is a gateway?"


class Atlas(BaseModel):
    cities: list[str]


async def ask(client: genai.Client, streamed: bool, contents: Any = ASK, **more: Any) -> tuple[list[Any], Any]:
    """The parts of the answer, and its last chunk or the whole of it."""
    config = types.GenerateContentConfig(**{**CONFIG, **more})
    if not streamed:
        whole = await client.aio.models.generate_content(model="m", contents=contents, config=config)
        return whole.candidates[0].content.parts, whole  # type: ignore[index,return-value,union-attr]
    chunks = [
        each
        async for each in await client.aio.models.generate_content_stream(model="m", contents=contents, config=config)
    ]
    parts = [part for each in chunks for part in each.candidates[0].content.parts]  # type: ignore[index,union-attr]
    return parts, chunks[-1]


def read_text(parts: list[Any]) -> str:
    return "".join(part.text for part in parts if part.text and not part.thought)


@pytest.mark.parametrize("streamed", [False, True])
async def test_content_is_generated(
    provider_type: ProviderType, streamed: bool, standing_with: StartGateway, google: MakeGoogle
) -> None:
    async with provider_type(Says("A door, füllig ✓")) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        parts, last = await ask(google(gateway), streamed)
        assert read_text(parts) == "A door, füllig ✓"
        assert last.candidates[0].finish_reason == types.FinishReason.STOP
        assert last.response_id
        assert last.model_version
        counted = last.usage_metadata
        assert (counted.prompt_token_count, counted.cached_content_token_count) == (21, 5)
        assert counted.candidates_token_count + (counted.thoughts_token_count or 0) == 13
        assert counted.total_token_count == 34
        assert (up.heard[0].system, up.heard[0].messages) == ("Be brief.", (f"user: {ASK}",))
        (row,) = await gateway.rows(1)
        assert (row.prompt_tokens, row.completion_tokens, row.cached_tokens) == (21, 13, 5)
        assert (row.operation, row.usage_source) == ("generate_content", "upstream")


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_chat_remembers(
    provider_type: ProviderType, streamed: bool, standing_with: StartGateway, google: MakeGoogle
) -> None:
    async with provider_type(Says("Hello there"), Says("You said hi")) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        chat = google(gateway).aio.chats.create(model="m")
        for text, expected in (("Hi", "Hello there"), ("What did I say?", "You said hi")):
            if streamed:
                pieces = [each.text or "" async for each in await chat.send_message_stream(text)]
            else:
                pieces = [(await chat.send_message(text)).text or ""]
            assert "".join(pieces) == expected
        assert "".join(up.heard[1].messages).replace("assistant: ", "") == "user: HiHello thereuser: What did I say?"
        assert not up.refusals


async def test_functions_are_called_automatically(
    provider_type: ProviderType, standing_with: StartGateway, google: MakeGoogle
) -> None:
    calls = (Call("get_weather", {"city": 'Os"lo', "days": 2}), Call("get_weather", {"city": "Åbo", "days": 1}))
    async with provider_type(Says("Looking.", calls=calls), Says("It rains.")) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        asked = []

        def get_weather(city: str, days: int) -> str:
            """The weather of a city."""
            asked.append((city, days))
            return f"rain in {city}"

        def talk() -> Any:
            config = types.GenerateContentConfig(tools=[get_weather])
            return google(gateway).models.generate_content(model="m", contents="Weather?", config=config)

        whole = await asyncio.to_thread(talk)
        assert whole.text == "It rains."
        assert asked == [('Os"lo', 2), ("Åbo", 1)]
        assert up.heard[1].tools == ("get_weather",)
        assert [name for name, _ in up.heard[1].results] == ["get_weather", "get_weather"]
        assert all("rain in" in result for _, result in up.heard[1].results)
        assert not up.refusals


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_call_comes_with_an_id(
    provider_type: ProviderType, streamed: bool, standing_with: StartGateway, google: MakeGoogle
) -> None:
    declared = types.FunctionDeclaration(
        name="get_time",
        parameters=types.Schema(
            type=types.Type.OBJECT,
            properties={"zone": types.Schema(type=types.Type.STRING, nullable=True, enum=["UTC", "CET"])},
        ),
    )
    async with provider_type(Says(calls=(Call("get_time", {"zone": "UTC"}),)), Says("Noon.")) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        client = google(gateway)
        more: Any = {
            "tools": [types.Tool(function_declarations=[declared])],
            "tool_config": {"function_calling_config": {"mode": "ANY", "allowed_function_names": ["get_time"]}},
        }
        parts, _ = await ask(client, streamed, **more)
        (part,) = [part for part in parts if part.function_call]
        assert (part.function_call.name, part.function_call.args) == ("get_time", {"zone": "UTC"})
        assert bool(part.function_call.id) == (provider_type is not GeminiProvider)
        contents = [
            types.Content(role="user", parts=[types.Part(text=ASK)]),
            types.Content(role="model", parts=[part]),
            types.Content(
                role="user", parts=[types.Part.from_function_response(name="get_time", response={"output": "12:00"})]
            ),
        ]
        parts, _ = await ask(client, streamed, contents=contents, tools=more["tools"])
        assert read_text(parts) == "Noon."
        assert up.heard[1].results == (("get_time", "12:00"),)
        assert not up.refusals


async def test_images_and_files_arrive_whole(
    provider_type: ProviderType, standing_with: StartGateway, google: MakeGoogle
) -> None:
    contents = [
        types.Part.from_bytes(data=PNG, mime_type="image/png"),
        types.Part.from_uri(file_uri="https://example.com/cat.jpg", mime_type="image/jpeg"),
        "What is in these?",
    ]
    async with provider_type(Says("A cat.")) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        parts, _ = await ask(google(gateway), streamed=False, contents=contents)
        assert read_text(parts) == "A cat."
        image, far = up.heard[0].images
        assert (image, far.url) == (ReceivedImage("image/png", PNG), "https://example.com/cat.jpg")


async def test_a_class_is_filled_with_the_answer(
    provider_type: ProviderType, standing_with: StartGateway, google: MakeGoogle
) -> None:
    async with provider_type(Says('{"cities": ["Oslo", "Åbo"]}')) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        _, whole = await ask(
            google(gateway), streamed=False, response_mime_type="application/json", response_schema=Atlas
        )
        assert whole.parsed == Atlas(cities=["Oslo", "Åbo"])
        sent = up.received[0].json
        schema = up.heard[0].schema or sent["generationConfig"].get("responseSchema")
        assert schema["properties"]["cities"]["type"].lower() == "array"


@pytest.mark.parametrize("streamed", [False, True])
async def test_why_an_answer_ended_is_said(
    provider_type: ProviderType, streamed: bool, standing_with: StartGateway, google: MakeGoogle
) -> None:
    async with provider_type(Says("Once", cut=True)) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        _, last = await ask(google(gateway), streamed, max_output_tokens=1, stop_sequences=["END"])
        assert last.candidates[0].finish_reason == types.FinishReason.MAX_TOKENS
        sent = up.received[0].json
        stops = sent.get("stop") or sent.get("stop_sequences") or sent["generationConfig"]["stopSequences"]
        assert stops == ["END"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_thoughts_come_signed_and_go_back(
    thinking: ProviderType, streamed: bool, standing_with: StartGateway, google: MakeGoogle
) -> None:
    calls = Says(thought="I should look", calls=(Call("get_time"),))
    declared = types.Tool(function_declarations=[types.FunctionDeclaration(name="get_time")])
    thoughtful: Any = {"tools": [declared], "thinking_config": {"include_thoughts": True, "thinking_budget": 2048}}
    async with thinking(calls, Says("Noon.", thought="So it is noon")) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        client = google(gateway)
        parts, _ = await ask(client, streamed, **thoughtful)
        assert "".join(part.text for part in parts if part.thought and part.text) == "I should look"
        response = types.Part.from_function_response(name="get_time", response={"result": "12:00"})
        contents = [
            types.Content(role="user", parts=[types.Part(text=ASK)]),
            *(types.Content(role="model", parts=[part]) for part in parts if part != types.Part(text="")),
            types.Content(role="user", parts=[response]),
        ]
        parts, _ = await ask(client, streamed, contents=contents, **thoughtful)
        assert read_text(parts) == "Noon."
        assert not up.refusals
        if thinking is not GeminiProvider:
            assert up.heard[1].thoughts == ("I should look",)


@pytest.mark.parametrize("kind", [OpenAIProvider, GeminiProvider])
async def test_several_candidates(kind: type[Provider], standing_with: StartGateway, google: MakeGoogle) -> None:
    async with kind(Says("One", more=("Two",))) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        _, whole = await ask(google(gateway), streamed=False, candidate_count=2)
        assert [each.content.parts[0].text for each in whole.candidates] == ["One", "Two"]


async def test_a_search_is_left_out_where_no_provider_has_it(standing_with: StartGateway, google: MakeGoogle) -> None:
    async with OpenAIProvider() as up:
        gateway = await standing_with({"channel": [up.channel()]})
        await ask(google(gateway), streamed=False, tools=[types.Tool(google_search=types.GoogleSearch())])
        (row,) = await gateway.rows(1)
        assert (row.outcome, row.adapted) == ("completed", "tools.googleSearch")
        assert "tools" not in up.received[0].json


@pytest.mark.parametrize("allowed", [False, True])
async def test_a_search_at_gemini_is_the_channels_to_allow_and_else_left_out(
    allowed: bool, standing_with: StartGateway, google: MakeGoogle
) -> None:
    async with GeminiProvider() as up:
        more: dict[str, Any] = {"allow_fields": ["tools.googleSearch"]} if allowed else {}
        gateway = await standing_with({"channel": [up.channel(**more)]})
        tools = [types.Tool(google_search=types.GoogleSearch())]
        assert read_text((await ask(google(gateway), streamed=False, tools=tools))[0]) == "Hello"
        (sent,) = up.received
        assert ("googleSearch" in str(sent.json.get("tools"))) == allowed
        (row,) = await gateway.rows(1)
        assert ("tools.googleSearch" in row.adapted) != allowed


async def test_what_the_gateway_refuses_is_said_in_googles_shape(
    standing_with: StartGateway, google: MakeGoogle
) -> None:
    async with GeminiProvider() as up:
        gateway = await standing_with({"channel": [up.channel()]})
        with pytest.raises(errors.ClientError) as denied:
            await ask(google(gateway, key="sk-nobodys"), streamed=False)
        assert (denied.value.code, denied.value.status) == (401, "UNAUTHENTICATED")
        with pytest.raises(errors.ClientError) as unknown:
            await google(gateway).aio.models.generate_content(model="nobody-has-it", contents="Hi")
        assert (unknown.value.code, unknown.value.status) == (404, "NOT_FOUND")
        with pytest.raises(errors.ClientError, match=r"generationConfig\.temperature") as wrong:
            await ask(google(gateway), streamed=True, temperature=101)
        assert (wrong.value.code, wrong.value.status) == (400, "INVALID_ARGUMENT")
        assert not up.received


async def test_what_a_provider_refuses_is_said_in_googles_shape(
    provider_type: ProviderType, standing_with: StartGateway, google: MakeGoogle
) -> None:
    async with provider_type(Fails(400, "no such thing")) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        for streamed in (False, True):
            with pytest.raises(errors.ClientError, match="no such thing") as caught:
                await ask(google(gateway), streamed)
            assert (caught.value.code, caught.value.status) == (400, "INVALID_ARGUMENT")


async def test_a_failure_in_mid_stream_is_an_error_after_what_was_said(
    standing_with: StartGateway, google: MakeGoogle
) -> None:
    script: list[Step] = [SSE_HEAD, chunk(event(delta("one"))), chunk(event(delta(" two"))), FIN]
    async with ScriptedUpstream(script) as up:
        gateway = await standing_with(channels([up]))
        heard: list[str] = []

        async def listen() -> None:
            async for each in await google(gateway).aio.models.generate_content_stream(model="m", contents=ASK):
                heard.append(each.text or "")  # noqa: PERF401 - it ends in an exception

        with pytest.raises(errors.APIError) as caught:
            await listen()
        assert "".join(heard) == "one two"
        assert caught.value.status == "UNAVAILABLE"
        (row,) = await gateway.rows(1)
        assert row.outcome == "failed"


async def test_models_are_listed_a_page_at_a_time(standing_with: StartGateway, google: MakeGoogle) -> None:
    async with AnthropicProvider() as up:
        names = ["m", "n", "owner/o", "p:free"]
        gateway = await standing_with({"channel": [up.channel(models=names, model_map={"m": up.model})]})
        client = google(gateway)
        pager = await client.aio.models.list(config={"page_size": 3})
        models = [model async for model in pager]
        assert [model.name for model in models] == [f"models/{name}" for name in names]
        assert all("generateContent" in (model.supported_actions or []) for model in models)
        for name in names:
            assert (await client.aio.models.get(model=name)).name == f"models/{name}"


@pytest.mark.parametrize("kind", [AnthropicProvider, GeminiProvider])
async def test_tokens_are_counted_by_who_can(
    kind: type[Provider], standing_with: StartGateway, google: MakeGoogle
) -> None:
    async with kind() as up:
        gateway = await standing_with({"channel": [up.channel()]})
        counted = await google(gateway).aio.models.count_tokens(model="m", contents=ASK)
        assert counted.total_tokens == 42
        assert up.heard[0].messages == (f"user: {ASK}",)
        (row,) = await gateway.rows(1)
        assert (row.operation, row.cost_nanos, row.prompt_tokens) == ("count_content_tokens", 0, 0)


async def test_tokens_are_estimated_where_nobody_counts(standing_with: StartGateway, google: MakeGoogle) -> None:
    async with OpenAIProvider() as up:
        gateway = await standing_with({"channel": [up.channel()]})
        client = google(gateway)
        short = await client.aio.models.count_tokens(model="m", contents="hi")
        long = await client.aio.models.count_tokens(model="m", contents="hi, " * 500)
        assert 0 < (short.total_tokens or 0) < 10 < (long.total_tokens or 0) < 2000
        assert not up.received


async def test_texts_are_embedded_by_gemini(standing_with: StartGateway, google: MakeGoogle) -> None:
    async with GeminiProvider() as up:
        gateway = await standing_with({"channel": [up.channel()]})
        config = types.EmbedContentConfig(output_dimensionality=2, task_type="RETRIEVAL_QUERY")
        reported = await google(gateway).aio.models.embed_content(model="m", contents=["one", "three"], config=config)
        assert [embedding.values for embedding in reported.embeddings or ()] == [[0.25, -0.5]] * 2
        assert {asked["taskType"] for asked in up.received[0].json["requests"]} == {"RETRIEVAL_QUERY"}
        single = {"content": {"parts": [{"text": "one"}]}}
        async with gateway.client.post(f"{gateway.url}/v1beta/models/m:embedContent", json=single) as response:
            assert (await response.json())["embedding"]["values"] == [0.25, -0.5, 3]


async def test_texts_are_embedded_by_others(standing_with: StartGateway, google: MakeGoogle) -> None:
    vectors = [{"index": index, "embedding": [0.5, index]} for index in (1, 0)]
    script: list[Step] = [answer({"object": "list", "data": vectors, "usage": {"prompt_tokens": 9}})]
    async with ScriptedUpstream(script) as up:
        gateway = await standing_with(channels([up]))
        config = types.EmbedContentConfig(output_dimensionality=2, task_type="RETRIEVAL_QUERY")
        reported = await google(gateway).aio.models.embed_content(model="m", contents=["one", "three"], config=config)
        assert [embedding.values for embedding in reported.embeddings or ()] == [[0.5, 0], [0.5, 1]]
        sent = up.received[0].json
        assert (sent["input"], sent["dimensions"]) == (["one", "three"], 2)
        (row,) = await gateway.rows(1)
        assert (row.operation, row.outcome, row.prompt_tokens) == ("embed_contents", "completed", 9)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_chat_goes_on_at_another_provider(
    streamed: bool, standing_with: StartGateway, google: MakeGoogle
) -> None:
    """Signed thoughts of the one mean nothing to the other, and come back to the first as they were."""
    declared = types.Tool(function_declarations=[types.FunctionDeclaration(name="get_time")])
    more: Any = {"tools": [declared], "thinking_config": {"include_thoughts": True, "thinking_budget": 2048}}
    calls = Says(thought="Let me look", calls=(Call("get_time"),))
    async with AnthropicProvider(calls, Says("It is noon.")) as claude, GeminiProvider(Says("Noon.")) as gemini:
        there: dict[str, Any] = {"models": ["n"], "model_map": {"n": gemini.model}, "name": "other"}
        gateway = await standing_with({"channel": [claude.channel(), gemini.channel(**there)]})
        client = google(gateway)
        parts, _ = await ask(client, streamed, **more)
        contents = [
            types.Content(role="user", parts=[types.Part(text=ASK)]),
            types.Content(role="model", parts=parts),
            types.Content(
                role="user", parts=[types.Part.from_function_response(name="get_time", response={"output": "12:00"})]
            ),
        ]
        config = types.GenerateContentConfig(**more)
        there_text = await client.aio.models.generate_content(model="n", contents=contents, config=config)
        assert there_text.text == "Noon."
        parts, _ = await ask(client, streamed, contents=contents, **more)
        assert read_text(parts) == "It is noon."
        assert claude.heard[1].thoughts == ("Let me look",)
        assert [*claude.refusals, *gemini.refusals] == []


async def test_the_demo_answers(gateway_with: StartGateway, google: MakeGoogle) -> None:
    """A gateway without a channel has the demo: Google's library works with it at once."""
    gateway = await gateway_with({})
    client = google(gateway)
    stream = await client.aio.models.generate_content_stream(model="demo-chat", contents="Say hello.")
    assert len([each.text async for each in stream if each.text]) > 1
    chat = client.aio.chats.create(model="demo-chat")
    assert (await chat.send_message("Hi")).text
    embedded = await client.aio.models.embed_content(model="demo-embedding", contents="one")
    assert len((embedded.embeddings or [])[0].values or ()) > 1
    assert (await client.aio.models.count_tokens(model="demo-chat", contents="one two")).total_tokens
    listed = {model.name: model.supported_actions async for model in await client.aio.models.list()}
    assert listed["models/demo-chat"] == ["generateContent", "countTokens"]
    assert listed["models/demo-embedding"] == ["embedContent", "batchEmbedContents"]
    assert listed["models/demo-image"] == []
    with pytest.raises(errors.ClientError, match="does not serve the model 'demo-embedding'"):
        await client.aio.models.generate_content(model="demo-embedding", contents="one")
