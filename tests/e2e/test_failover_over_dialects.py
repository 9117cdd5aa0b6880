"""One model behind channels of several API formats: both SDKs get one clean answer, whichever channel fails."""

from itertools import permutations
from typing import Any

import orjson
import pytest
from openai import InternalServerError

from tests.support import sdk_clients
from tests.support.anthropic_provider import AnthropicProvider
from tests.support.gateway import RunningGateway
from tests.support.openai_provider import OpenAIProvider
from tests.support.providers import Call, Fails, Provider, Says
from tests.support.scripted_upstream import LAST_CHUNK, SSE_HEAD, STALL, ScriptedUpstream, Step, chunk
from tests.support.started_gateways import StartGateway

ASK: list[Any] = [{"role": "user", "content": "What is the weather in Oslo?"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: Any = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
WEATHER_TOO: Any = {"name": "get_weather", "input_schema": SCHEMA}
BUSY = Fails(529, "Overloaded")
BUSY_LATE = Fails(529, "Overloaded", late=True)
PAIRS = list(permutations(sdk_clients.PROVIDERS_OF_FORMATS, 2))
BEGUN = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant",'
    b'"content":[],"model":"claude-haiku-4-5","stop_reason":null,"stop_sequence":null,'
    b'"usage":{"input_tokens":25,"output_tokens":1}}}\n\nevent: ping\ndata: {"type": "ping"}\n\n'
)
OVERLOADED = (
    b'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}\n\n'
)


async def start(standing_with: StartGateway, first: Provider, second: Provider) -> RunningGateway:
    """Both serve ``m``; the second is asked where the first fails."""
    return await standing_with({"channel": [first.channel("one", priority=1), second.channel("two")]})


@pytest.mark.parametrize("failing", [BUSY, BUSY_LATE], ids=["status", "first-event"])
@pytest.mark.parametrize(("one", "two"), PAIRS, ids=sdk_clients.name_provider)
async def test_the_next_channel_answers_a_stream_in_its_own_language(  # noqa: PLR0917 - fixtures are no arguments
    one: sdk_clients.ProviderType,
    two: sdk_clients.ProviderType,
    failing: Fails,
    standing_with: StartGateway,
    sdk: sdk_clients.MakeClient,
    claude: sdk_clients.MakeClaude,
) -> None:
    async with one(failing) as first, two(Says("All is well")) as second:
        gateway = await start(standing_with, first, second)
        stream = await sdk(gateway).chat.completions.create(model="m", messages=ASK, stream=True)
        assert "".join([item.choices[0].delta.content or "" async for item in stream]) == "All is well"
        assert stream.response.headers["x-gateway-attempts"] == "2"
        async with claude(gateway).messages.stream(model="m", max_tokens=9, messages=ASK) as talk:
            assert (await talk.get_final_message()).content[0].to_dict() == {"type": "text", "text": "All is well"}
        rows = await gateway.rows(2)
        assert [(row.channel, row.attempts, row.outcome) for row in rows] == [("two", 2, "completed")] * 2
        assert len(first.received) == len(second.received) == 2


@pytest.mark.parametrize(("one", "two"), PAIRS, ids=sdk_clients.name_provider)
async def test_the_next_channel_gives_a_whole_answer(
    one: sdk_clients.ProviderType,
    two: sdk_clients.ProviderType,
    standing_with: StartGateway,
    sdk: sdk_clients.MakeClient,
    claude: sdk_clients.MakeClaude,
) -> None:
    async with one(BUSY) as first, two(Says("All is well")) as second:
        gateway = await start(standing_with, first, second)
        answer = await sdk(gateway).chat.completions.create(model="m", messages=ASK)
        assert answer.choices[0].message.content == "All is well"
        message: Any = await claude(gateway).messages.create(model="m", max_tokens=9, messages=ASK)
        assert message.content[0].text == "All is well"
        rows = await gateway.rows(2)
        assert [(row.channel, row.prompt_tokens, row.completion_tokens) for row in rows] == [("two", 21, 13)] * 2


async def test_an_overload_after_a_stream_has_begun_but_said_nothing_is_nobodys_business(
    standing_with: StartGateway, sdk: sdk_clients.MakeClient, claude: sdk_clients.MakeClaude
) -> None:
    script: list[Step] = [SSE_HEAD, chunk(BEGUN), 0.02, chunk(OVERLOADED), LAST_CHUNK]
    async with ScriptedUpstream(script) as first, OpenAIProvider(Says("All is well")) as second:
        anthropic = second.channel("one", provider="anthropic", base_url=first.base_url, priority=1)
        gateway = await standing_with({"channel": [anthropic, second.channel("two")]})
        stream = await sdk(gateway).chat.completions.create(model="m", messages=ASK, stream=True)
        chunks = [item async for item in stream]
        assert "".join(item.choices[0].delta.content or "" for item in chunks) == "All is well"
        assert len({item.id for item in chunks}) == 1
        async with claude(gateway).messages.stream(model="m", max_tokens=9, messages=ASK) as talk:
            kinds = [item.type async for item in talk]
            message = await talk.get_final_message()
        assert [kinds.count(kind) for kind in ("message_start", "message_stop")] == [1, 1]
        assert message.content[0].to_dict() == {"type": "text", "text": "All is well"}
        assert message.id != "msg_1"
        assert message.usage.input_tokens == 16
        assert len(first.received) == 2
        await gateway.rows(2)


async def test_after_the_first_words_nobody_else_is_asked(
    standing_with: StartGateway, sdk: sdk_clients.MakeClient
) -> None:
    words = (
        b'event: content_block_start\ndata: {"type":"content_block_start","index":0,"content_block":'
        b'{"type":"text","text":""}}\n\nevent: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
        b'"delta":{"type":"text_delta","text":"All"}}\n\n'
    )
    script: list[Step] = [SSE_HEAD, chunk(BEGUN + words), 0.02, chunk(OVERLOADED), STALL]
    async with ScriptedUpstream(script) as first, OpenAIProvider() as second:
        anthropic = second.channel("one", provider="anthropic", base_url=first.base_url, priority=1)
        gateway = await standing_with({"channel": [anthropic, second.channel("two")]})
        stream = await sdk(gateway).chat.completions.create(model="m", messages=ASK, stream=True)
        answers: list[str] = []

        async def listen() -> None:
            async for item in stream:
                answers.append(item.choices[0].delta.content or "")  # noqa: PERF401 - it ends in an exception

        with pytest.raises(Exception, match="Overloaded"):
            await listen()
        assert "".join(answers) == "All"
        assert not second.received


async def test_a_wish_that_one_language_has_no_word_for_goes_to_the_next(
    standing_with: StartGateway, sdk: sdk_clients.MakeClient
) -> None:
    async with AnthropicProvider() as first, OpenAIProvider(Says("Heads")) as second:
        gateway = await start(standing_with, first, second)
        answer = await sdk(gateway).chat.completions.create(model="m", messages=ASK, stop=["\n"])
        assert [choice.message.content for choice in answer.choices] == ["Heads"]
        assert not first.received


async def test_when_all_fail_the_first_ones_error_is_told_once(
    standing_with: StartGateway, sdk: sdk_clients.MakeClient
) -> None:
    async with AnthropicProvider(BUSY) as first, OpenAIProvider(Fails(500, "It broke")) as second:
        gateway = await start(standing_with, first, second)
        with pytest.raises(InternalServerError, match="status 529: Overloaded") as caught:
            await sdk(gateway).chat.completions.create(model="m", messages=ASK)
        assert caught.value.status_code == 502
        (row,) = await gateway.rows(1)
        assert (row.attempts, row.cost_nanos) == (3, 0)  # the last one twice


CHAT_PAIRS = [*permutations(sdk_clients.THINKING, 2), *((one, OpenAIProvider) for one in sdk_clients.THINKING)]
LOOKING = Says("Looking.", thought="I should look", calls=(Call("get_weather", {"city": "Oslo"}), Call("get_weather")))


@pytest.mark.parametrize(("one", "two"), CHAT_PAIRS, ids=sdk_clients.name_provider)
async def test_a_tool_loop_of_the_convention_moves_from_one_language_to_another(
    one: sdk_clients.ProviderType,
    two: sdk_clients.ProviderType,
    standing_with: StartGateway,
    sdk: sdk_clients.MakeClient,
) -> None:
    async with one(LOOKING, BUSY) as first, two(Says("It rains.")) as second:
        gateway = await start(standing_with, first, second)
        talk: Any = sdk(gateway).chat.completions
        asked = {"model": "m", "tools": [WEATHER], "reasoning_effort": "low"}
        turn = (await talk.create(messages=ASK, **asked)).choices[0].message
        assert [orjson.loads(call.function.arguments) for call in turn.tool_calls] == [{"city": "Oslo"}, {}]
        results = [{"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in turn.tool_calls]
        messages = [*ASK, turn.model_dump(exclude_none=True), *results]
        assert (await talk.create(messages=messages, **asked)).choices[0].message.content == "It rains."
        assert not [*first.refusals, *second.refusals]
        assert second.heard[0].results == (("get_weather", "rain"),) * 2
        assert second.heard[0].messages == ("user: What is the weather in Oslo?", "assistant: Looking.")


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("one", "two"), list(permutations(sdk_clients.THINKING, 2)), ids=sdk_clients.name_provider)
async def test_a_tool_loop_of_anthropics_moves_from_one_language_to_another(
    one: sdk_clients.ProviderType,
    two: sdk_clients.ProviderType,
    streamed: bool,
    standing_with: StartGateway,
    claude: sdk_clients.MakeClaude,
) -> None:
    """A thought that one provider signed is in the conversation, and the other would refuse it as its own."""
    async with one(LOOKING, BUSY) as first, two(Says("It rains.")) as second:
        gateway = await start(standing_with, first, second)
        client = claude(gateway)
        asked: Any = {
            "model": "m",
            "max_tokens": 4096,
            "tools": [WEATHER_TOO],
            "thinking": {"type": "enabled", "budget_tokens": 1024},
        }

        async def ask(messages: list[Any]) -> Any:
            if not streamed:
                return await client.messages.create(messages=messages, **asked)
            async with client.messages.stream(messages=messages, **asked) as stream:
                return await stream.get_final_message()

        turn = await ask(ASK)
        signed = ["thinking"] if one.slug == "gemini" else []  # what Gemini signed besides the thought: the first call
        assert [block.type for block in turn.content] == ["thinking", "text", *signed, "tool_use", "tool_use"]
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": "rain"}
            for block in turn.content
            if block.type == "tool_use"
        ]
        answers = [{"role": "assistant", "content": turn.content}, {"role": "user", "content": results}]
        last = await ask([*ASK, *answers])
        assert [block.text for block in last.content if block.type == "text"] == ["It rains."]
        assert not [*first.refusals, *second.refusals]
        assert second.heard[0].results == (("get_weather", "rain"),) * 2
