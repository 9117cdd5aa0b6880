"""The Responses API with the ``openai`` SDK, over channels of every language."""

import asyncio
import base64
import sqlite3
from contextlib import closing
from typing import Any

import openai
import orjson
import pytest
from openai import AsyncOpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from gateway.formats.chat.responses.responses import parse_responses_inference
from gateway.memory_budget import Loan
from gateway.server.context import SERVICES
from tests.support.anthropic_provider import AnthropicProvider
from tests.support.gateway import RunningGateway, channel, channels
from tests.support.gemini_provider import GeminiProvider
from tests.support.openai_provider import OpenAIProvider
from tests.support.providers import Call, Fails, Provider, ReceivedImage, Says
from tests.support.scripted_upstream import FIN, SSE_HEAD, STALL, ScriptedUpstream, Step, answer, chunk, delta, event
from tests.support.sdk_clients import MakeClient, ProviderType
from tests.support.started_gateways import StartGateway

PNG = b"\x89PNG\r\n\x1a\n" + bytes(16)
ASK = "What is a gateway?"
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
TOOL: Any = {
    "type": "function",
    "name": "get_time",
    "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}},
    "strict": False,
}


class Atlas(BaseModel):
    cities: list[str]


def find_mistakes(up: Provider) -> list[str]:
    """What the provider has found wrong, except that it is asked for this API first."""
    return [one for one in up.refusals if one != "Not found"]


async def ask(client: AsyncOpenAI, streamed: bool, asked: Any = ASK, **more: Any) -> Response:
    """The response, whole or the last of a stream whose every event is as OpenAI's types have it."""
    if not streamed:
        found: Response = await client.responses.create(model="m", input=asked, **more)
        return found
    events = [one async for one in await client.responses.create(model="m", input=asked, stream=True, **more)]
    for one in events:
        EVENTS.validate_python(one.model_dump(warnings="error"), strict=False)
    assert [one.sequence_number for one in events] == list(range(len(events)))
    first, last = events[0], events[-1]
    assert first.type == "response.created"
    assert last.type in {"response.completed", "response.incomplete"}
    made: Response = last.response
    done = [one.item for one in events if one.type == "response.output_item.done"]
    assert [one.model_dump() for one in done] == [one.model_dump() for one in made.output]
    pieces = "".join(one.delta for one in events if one.type == "response.output_text.delta")
    assert pieces == made.output_text
    assert first.response.id == made.id
    return made


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_response_is_made(
    provider_type: ProviderType, streamed: bool, standing_with: StartGateway, sdk: MakeClient
) -> None:
    async with provider_type(Says("A door, füllig ✓")) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        made = await ask(sdk(gateway), streamed, instructions="Be brief.", max_output_tokens=4096, metadata={"a": "b"})
        assert (made.output_text, made.status, made.error) == ("A door, füllig ✓", "completed", None)
        assert (made.instructions, made.metadata, made.max_output_tokens) == ("Be brief.", {"a": "b"}, 4096)
        assert made.usage is not None
        counted = made.usage
        assert (counted.input_tokens, counted.input_tokens_details.cached_tokens) == (21, 5)
        assert (counted.output_tokens, counted.total_tokens) == (13, 34)
        assert (up.heard[0].system, up.heard[0].messages) == ("Be brief.", (f"user: {ASK}",))
        (row,) = await gateway.rows(1)
        assert (row.operation, row.prompt_tokens, row.completion_tokens) == ("responses", 21, 13)
        assert (row.cached_tokens, row.usage_source, row.stream) == (5, "upstream", streamed)


@pytest.mark.parametrize("streamed", [False, True])
async def test_tools_are_called_and_answered(
    provider_type: ProviderType, streamed: bool, standing_with: StartGateway, sdk: MakeClient
) -> None:
    calls = (Call("get_time", {"zone": 'U"TC'}), Call("get_time", {"zone": "Åbo"}))
    async with provider_type(Says("Looking.", calls=calls), Says("Noon.")) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        client = sdk(gateway)
        made = await ask(client, streamed, tools=[TOOL], parallel_tool_calls=True)
        called = [one for one in made.output if one.type == "function_call"]
        assert [(one.name, orjson.loads(one.arguments)) for one in called] == [
            (one.name, one.arguments) for one in calls
        ]
        items = [
            {"role": "user", "content": ASK},
            *(one.model_dump(exclude_none=True) for one in made.output),
            *({"type": "function_call_output", "call_id": one.call_id, "output": "12:00"} for one in called),
        ]
        again = await ask(client, streamed, items, tools=[TOOL])
        assert again.output_text == "Noon."
        assert up.heard[1].results == (("get_time", "12:00"), ("get_time", "12:00"))
        assert up.heard[1].tools == ("get_time",)
        assert not find_mistakes(up)


@pytest.mark.parametrize("streamed", [False, True])
async def test_reasoning_comes_signed_and_goes_back(
    thinking: ProviderType, streamed: bool, standing_with: StartGateway, sdk: MakeClient
) -> None:
    calls = Says(thought="I should look", calls=(Call("get_time"),))
    more: Any = {"tools": [TOOL], "reasoning": {"effort": "low"}, "include": ["reasoning.encrypted_content"]}
    async with thinking(calls, Says("Noon.", thought="So it is noon")) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        client = sdk(gateway)
        made = await ask(client, streamed, **more)
        (thought,) = [one for one in made.output if one.type == "reasoning"]
        assert "".join(part.text for part in thought.summary) == "I should look"
        assert thought.encrypted_content
        (called,) = [one for one in made.output if one.type == "function_call"]
        items = [
            {"role": "user", "content": ASK},
            *(one.model_dump(exclude_none=True) for one in made.output),
            {"type": "function_call_output", "call_id": called.call_id, "output": "12:00"},
        ]
        again = await ask(client, streamed, items, **more)
        assert again.output_text == "Noon."
        assert not find_mistakes(up)
        if thinking is not GeminiProvider:
            assert up.heard[1].thoughts == ("I should look",)


async def test_images_arrive_whole(provider_type: ProviderType, standing_with: StartGateway, sdk: MakeClient) -> None:
    data = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    content = [
        {"type": "input_image", "image_url": data, "detail": "low"},
        {"type": "input_image", "image_url": "https://example.com/cat.jpg", "detail": "auto"},
        {"type": "input_text", "text": "What is in these?"},
    ]
    async with provider_type(Says("A cat.")) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        made = await ask(sdk(gateway), streamed=False, asked=[{"role": "user", "content": content}])
        assert made.output_text == "A cat."
        image, far = up.heard[0].images
        assert (image, far.url) == (ReceivedImage("image/png", PNG), "https://example.com/cat.jpg")


async def test_a_class_is_filled(provider_type: ProviderType, standing_with: StartGateway, sdk: MakeClient) -> None:
    async with provider_type(Says('{"cities": ["Oslo", "Åbo"]}')) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        made = await sdk(gateway).responses.parse(model="m", input=ASK, text_format=Atlas)
        assert made.output_parsed == Atlas(cities=["Oslo", "Åbo"])
        assert made.text is not None
        assert made.text.format is not None
        assert made.text.format.type == "json_schema"


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_answer_that_is_cut_is_incomplete(
    provider_type: ProviderType, streamed: bool, standing_with: StartGateway, sdk: MakeClient
) -> None:
    async with provider_type(Says("Once", cut=True)) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        made = await ask(sdk(gateway), streamed, max_output_tokens=16)
        assert made.status == "incomplete"
        assert made.incomplete_details is not None
        assert made.incomplete_details.reason == "max_output_tokens"
        assert made.output[0].status == "incomplete"  # type: ignore[union-attr]


async def test_what_a_provider_refuses_is_an_error(
    provider_type: ProviderType, standing_with: StartGateway, sdk: MakeClient
) -> None:
    async with provider_type(Fails(400, "no such thing")) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        for streamed in (False, True):
            with pytest.raises(openai.BadRequestError, match="no such thing"):
                await ask(sdk(gateway), streamed)


async def test_a_failure_in_mid_stream_ends_the_stream_with_an_error(
    standing_with: StartGateway, sdk: MakeClient
) -> None:
    script: list[Step] = [SSE_HEAD, chunk(event(delta("one"))), chunk(event(delta(" two"))), FIN]
    async with ScriptedUpstream(script) as up:
        gateway = await standing_with(channels([up], provider="mistral"))
        heard: list[str] = []

        async def listen() -> None:
            async for one in await sdk(gateway).responses.create(model="m", input=ASK, stream=True):
                heard.extend([one.delta] if one.type == "response.output_text.delta" else [])

        with pytest.raises(openai.APIError):
            await listen()
        assert "".join(heard) == "one two"
        (row,) = await gateway.rows(1)
        assert row.outcome == "failed"


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"background": True, "store": False}, "background"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ],
)
async def test_what_no_channel_can_do_is_named(
    more: Any, param: str, standing_with: StartGateway, sdk: MakeClient
) -> None:
    async with AnthropicProvider() as up:
        gateway = await standing_with({"channel": [up.channel()]})
        with pytest.raises(openai.BadRequestError) as caught:
            await sdk(gateway).responses.create(**{"model": "m", "input": ASK, **more})
        assert caught.value.param == param
        assert not up.received


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"prompt": {"id": "pmpt_never_made"}}, "prompt"),
        ({"input": [{"type": "item_reference", "id": "msg_never_made"}]}, "input[0]"),
        ({"input": [{"type": "computer_call", "id": "x"}]}, "input[0]"),
    ],
)
async def test_what_the_account_has_not_made_is_not_found(
    more: Any, param: str, standing_with: StartGateway, sdk: MakeClient
) -> None:
    async with AnthropicProvider() as up:
        gateway = await standing_with({"channel": [up.channel()]})
        with pytest.raises(openai.NotFoundError, match="names nothing that this account has made") as caught:
            await sdk(gateway).responses.create(**{"model": "m", "input": ASK, **more})
        assert caught.value.param == param
        assert not up.received


async def test_a_server_without_the_endpoint_is_asked_for_it_once(standing_with: StartGateway, sdk: MakeClient) -> None:
    async with OpenAIProvider(*[Says("A door.")] * 2) as up:
        gateway = await standing_with({"channel": [up.channel(name="bare")]})
        for streamed in (False, True):
            assert (await ask(sdk(gateway), streamed)).output_text == "A door."
        assert [one.path for one in up.received] == ["/v1/responses", *["/v1/chat/completions"] * 2]
        first, row = await gateway.rows(2)
        assert (first.attempts, row.attempts) == (2, 1)
        assert [one.outcome for one in (row, first)] == ["completed"] * 2


async def test_a_model_that_is_not_found_is_no_missing_endpoint(standing_with: StartGateway, sdk: MakeClient) -> None:
    error = {"message": "The model 'm' does not exist", "type": "invalid_request_error", "code": "model_not_found"}
    async with ScriptedUpstream([answer({"error": error}, status=404)]) as up:
        gateway = await standing_with(channels([up]))
        with pytest.raises(openai.APIStatusError, match="does not exist"):
            await ask(sdk(gateway), streamed=False)
        assert [one.path for one in up.received] == ["/v1/responses"]


# Responses that are kept.


async def test_a_conversation_goes_on_by_its_id_at_another_provider(
    standing_with: StartGateway, sdk: MakeClient
) -> None:
    async with (
        AnthropicProvider(Says("Ada is my name.", thought="Hm")) as claude,
        GeminiProvider(Says("You asked for it.")) as gemini,
        OpenAIProvider(Says("Ada.")) as chat,
    ):
        named = [
            claude.channel(),
            gemini.channel(name="b", models=["n"], model_map={"n": gemini.model}),
            chat.channel(name="c", models=["o"], model_map={"o": "gpt"}),
        ]
        gateway = await standing_with({"channel": named})
        client = sdk(gateway)
        first = await ask(client, streamed=True, asked="Who are you?", instructions="Be brief.")
        second = await client.responses.create(model="n", input="Why?", previous_response_id=first.id)
        assert (second.output_text, second.previous_response_id) == ("You asked for it.", first.id)
        assert [one.partition(": ")[2] for one in gemini.heard[0].messages] == [
            "Who are you?",
            "Ada is my name.",
            "Why?",
        ]
        assert gemini.heard[0].system in {None, ""}, "the instructions of a response are its own"
        third = await client.responses.create(model="o", input="Who?", previous_response_id=second.id)
        assert third.output_text == "Ada."
        assert [one.partition(": ")[2] for one in chat.heard[0].messages] == [
            *("Who are you?", "Ada is my name.", "Why?", "You asked for it.", "Who?")
        ]
        assert [*map(find_mistakes, (claude, gemini, chat))] == [[], [], []]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_response_is_retrieved_and_deleted(
    streamed: bool, standing_with: StartGateway, sdk: MakeClient
) -> None:
    async with AnthropicProvider(Says("A door.")) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        client = sdk(gateway)
        made = await ask(client, streamed)
        assert (await client.responses.retrieve(made.id)).model_dump() == made.model_dump()
        events = [one async for one in await client.responses.retrieve(made.id, stream=True)]
        assert events[-1].type == "response.completed"
        assert events[-1].response.output_text == "A door."
        (item,) = [one async for one in client.responses.input_items.list(made.id)]
        assert (item.role, item.content[0].text) == ("user", ASK)  # type: ignore[index, union-attr]
        with pytest.raises(openai.BadRequestError, match="background"):
            await client.responses.cancel(made.id)
        await client.responses.delete(made.id)
        for again in (client.responses.retrieve(made.id), client.responses.delete(made.id)):
            with pytest.raises(openai.NotFoundError):
                await again
        with pytest.raises(openai.NotFoundError) as caught:
            await client.responses.create(model="m", input="x", previous_response_id=made.id)
        assert caught.value.param == "previous_response_id"
        assert len(up.received) == 1


async def test_items_come_a_page_at_a_time(standing_with: StartGateway, sdk: MakeClient) -> None:
    async with AnthropicProvider(*[Says("A door.")] * 3) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        client, before = sdk(gateway), None
        for number in range(3):
            made = await client.responses.create(
                model="m", input=f"{number}", previous_response_id=before.id if before else openai.omit
            )
            before = made
        texts = [
            one.content[0].text  # type: ignore[index, union-attr]
            async for one in client.responses.input_items.list(made.id, limit=2, order="asc")
        ]
        assert texts == ["0", "A door.", "1", "A door.", "2"]
        with pytest.raises(openai.BadRequestError):
            await client.responses.input_items.list(made.id, after="msg_unknown")


async def test_another_account_knows_nothing_of_it(gateway_with: StartGateway, sdk: MakeClient) -> None:
    async with AnthropicProvider(Says("A door.")) as up:
        accounts = [{"name": "acme"}, {"name": "rival"}]
        keys = [{"name": "a", "account": "acme", "secret": "sk-acme-1234567890"}]
        keys.append({"name": "b", "account": "rival", "secret": "sk-rival-1234567890"})
        gateway = await gateway_with({"channel": [up.channel()], "account": accounts, "key": keys})
        mine, theirs = sdk(gateway, api_key="sk-acme-1234567890"), sdk(gateway, api_key="sk-rival-1234567890")
        made = await ask(mine, streamed=False)
        for refused in (
            theirs.responses.retrieve(made.id),
            theirs.responses.delete(made.id),
            theirs.responses.cancel(made.id),
            theirs.responses.create(model="m", input="x", previous_response_id=made.id),
        ):
            with pytest.raises(openai.NotFoundError):
                await refused
        assert (await mine.responses.retrieve(made.id)).id == made.id
        assert len(up.received) == 1


@pytest.mark.parametrize(("days", "store"), [(0, True), (30, False)])
async def test_what_is_not_to_be_kept_is_not(
    days: float, store: bool, gateway_with: StartGateway, sdk: MakeClient
) -> None:
    async with AnthropicProvider(Says("A door.")) as up:
        gateway = await gateway_with({"channel": [up.channel()], "responses": {"keep_days": days}})
        client = sdk(gateway)
        made = await client.responses.create(model="m", input=ASK, store=store)
        assert made.store is store  # type: ignore[attr-defined]
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(made.id)


async def test_a_kept_response_is_sealed_expires_and_goes_with_its_account(
    gateway_with: StartGateway, sdk: MakeClient
) -> None:
    clock = Clock()
    async with AnthropicProvider(*[Says("A door.")] * 2) as up:
        gateway = await gateway_with({"channel": [up.channel()], "responses": {"keep_days": 1}}, clock=clock)
        client = sdk(gateway)
        made = await client.responses.create(model="m", input="a very secret thing")
        kept = gateway.app[SERVICES].routing.kept_responses
        await kept.close()
        path = gateway.folder.path / "gateway.db"
        wal = path.with_name("gateway.db-wal")
        assert b"very secret" not in path.read_bytes() + (wal.read_bytes() if wal.exists() else b"")
        assert (await client.responses.retrieve(made.id)).output_text == "A door."
        clock.now_s += 24 * 3_600
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(made.id)
        assert await kept.sweep(int(clock.now_s * 1000)) == 1


async def test_a_response_that_its_provider_keeps_is_asked_for_there(
    gateway_with: StartGateway, sdk: MakeClient
) -> None:
    made = {"id": "resp_theirs", "object": "response", "status": "completed", "model": "m", "output": []}
    page = {"object": "list", "data": [], "has_more": False, "first_id": None, "last_id": None}
    gone = {"id": "resp_theirs", "object": "response", "deleted": True}
    async with ScriptedUpstream(*[[answer(one)] for one in (made, made, page, made, gone)]) as up:
        channel = {"name": "up", "provider": "openai", "base_url": up.base_url, "api_key": "k", "models": ["m"]}
        gateway = await gateway_with({"channel": [channel]})
        client = sdk(gateway)
        await client.responses.create(model="m", input="x")
        assert (await client.responses.retrieve("resp_theirs")).id == "resp_theirs"
        assert [one async for one in client.responses.input_items.list("resp_theirs", limit=5)] == []
        assert (await client.responses.cancel("resp_theirs")).id == "resp_theirs"
        await client.responses.delete("resp_theirs")
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve("resp_theirs")
        asked = [(one.method, one.path) for one in up.received[1:]]
        assert asked == [
            ("GET", "/v1/responses/resp_theirs"),
            ("GET", "/v1/responses/resp_theirs/input_items?limit=5"),
            ("POST", "/v1/responses/resp_theirs/cancel"),
            ("DELETE", "/v1/responses/resp_theirs"),
        ]
        assert all(one.headers["authorization"] == "Bearer k" for one in up.received)


async def await_end(client: AsyncOpenAI, made: Response, pause_s: float = 0.01) -> Response:
    """The response once it is queued no more."""
    async with asyncio.timeout(10):
        while made.status == "queued":
            await asyncio.sleep(pause_s)
            made = await client.responses.retrieve(made.id)
    return made


async def test_a_response_is_made_in_the_background(
    provider_type: ProviderType, standing_with: StartGateway, sdk: MakeClient
) -> None:
    async with provider_type(Says("A door.")) as up:
        gateway = await standing_with({"channel": [up.channel(provider=BARE.get(up.slug, up.slug))]})
        client = sdk(gateway)
        queued = await client.responses.create(model="m", input=ASK, background=True)
        assert (queued.status, queued.background, queued.output, queued.usage) == ("queued", True, [], None)
        made = await await_end(client, queued)
        assert (made.id, made.status, made.background, made.output_text) == (queued.id, "completed", True, "A door.")
        (row,) = await gateway.rows(1)
        assert (row.id, row.outcome) == (f"req_{queued.id.removeprefix('resp_')}", "completed")
        assert (await client.responses.cancel(made.id)).status == "completed"
        after = await client.responses.create(model="m", input="Why?", previous_response_id=made.id, store=False)
        assert after.previous_response_id == made.id


BARE = {"openai": "mistral"}
"""A vendor of the same language without the Responses API."""


async def test_no_reader_sees_a_response_fail_at_its_end(standing_with: StartGateway, sdk: MakeClient) -> None:
    """Readers are always in the middle of a read when the request ends."""
    async with AnthropicProvider(Says("A door.")) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        client = sdk(gateway)
        for _ in range(2):
            queued = await client.responses.create(model="m", input=ASK, background=True)
            made = await asyncio.gather(*[await_end(client, queued, pause_s=0) for _ in range(6)])
            assert {one.status for one in made} == {"completed"}


async def test_what_fails_in_the_background_has_failed(standing_with: StartGateway, sdk: MakeClient) -> None:
    async with AnthropicProvider(Fails(400, "no such thing")) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        client = sdk(gateway)
        made = await await_end(client, await client.responses.create(model="m", input=ASK, background=True))
        assert made.status == "failed"
        assert made.error is not None
        assert (made.error.code, "no such thing" in made.error.message) == ("server_error", True)
        page = made.error.model_dump()["doc_url"]
        assert page.startswith(f"{gateway.url}/help/reference/errors#"), page
        (row,) = await gateway.rows(1)
        assert row.outcome in {"failed", "refused"}


async def test_a_response_in_the_background_is_cancelled(standing_with: StartGateway, sdk: MakeClient) -> None:
    async with ScriptedUpstream([STALL]) as up:
        gateway = await standing_with(channels([up], provider="mistral"))
        client = sdk(gateway)
        queued = await client.responses.create(model="m", input=ASK, background=True)
        await await_request(up)
        assert (await client.responses.cancel(queued.id)).status == "cancelled"
        (row,) = await gateway.rows(1)
        assert row.outcome == "cancelled"
        assert (await await_end(client, await client.responses.retrieve(queued.id))).status == "cancelled"


async def test_a_stop_ends_what_is_in_the_background(gateway_with: StartGateway, sdk: MakeClient) -> None:
    async with ScriptedUpstream([STALL]) as up:
        gateway = await gateway_with({**channels([up], provider="mistral"), "server": {"drain_timeout_s": 0}})
        queued = await sdk(gateway).responses.create(model="m", input=ASK, background=True)
        await await_request(up)
        await gateway.stop()
        with closing(sqlite3.connect(gateway.folder.path / "gateway.db")) as database:
            assert database.execute("SELECT outcome FROM requests").fetchall() == [("interrupted",)]
        assert queued.status == "queued"


async def test_what_was_in_the_background_when_the_process_ended_has_failed(
    gateway_with: StartGateway, sdk: MakeClient
) -> None:
    """As after kill -9: the response is kept as queued, and no request makes it."""
    gateway = await gateway_with({})
    made = await sdk(gateway).responses.create(model="demo-chat", input="x")
    routing = gateway.app[SERVICES].routing
    kept = await routing.kept_responses.find(made.id, 1)
    loaded = kept and await routing.kept_responses.load(kept, Loan(gateway.app[SERVICES].memory))
    assert loaded is not None
    body = orjson.loads(loaded.body) | {"status": "queued", "background": True, "output": []}
    routing.kept_responses.store_soon(
        made.id, 1, parse_responses_inference({"model": "m", "input": "x"}), orjson.dumps(body)
    )
    for now in (await sdk(gateway).responses.retrieve(made.id), await sdk(gateway).responses.cancel(made.id)):
        assert (now.status, now.error and now.error.code) == ("failed", "server_error")
        assert now.error is not None
        assert now.error.model_dump()["doc_url"] == "/help/reference/errors#overloaded"


async def await_request(up: ScriptedUpstream) -> None:
    async with asyncio.timeout(10):
        while not up.received:  # noqa: ASYNC110 - the scripted provider has no event for it
            await asyncio.sleep(0.01)


class Clock:
    """Stands still until it is set."""

    now_s = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


async def test_the_first_example_of_openais_library_runs_over_the_demo(
    gateway_with: StartGateway, sdk: MakeClient
) -> None:
    gateway: RunningGateway = await gateway_with({})
    client = sdk(gateway)
    made = await client.responses.create(
        model="demo-chat", instructions="You are a coding assistant.", input="How do I check an instance?"
    )
    assert made.output_text
    again = await client.responses.create(model="demo-chat", input="And then?", previous_response_id=made.id)
    assert again.previous_response_id == made.id


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_conversation_is_compacted_and_goes_on(
    provider_type: ProviderType, streamed: bool, standing_with: StartGateway, sdk: MakeClient
) -> None:
    user, go_on = {"role": "user", "content": ASK}, {"role": "user", "content": "Go on"}
    items = [user, {"role": "assistant", "content": "Looking."}]
    async with provider_type(Says("It is a door.")) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        client = sdk(gateway)
        made = await ask(client, streamed, [*items, {"type": "compaction_trigger"}], tools=[TOOL])
        (item,) = made.output
        assert item.type == "compaction"
        assert "Summarize this conversation" in up.heard[0].messages[-1]
        compacted = await client.responses.compact(model="m", input=items, instructions="Be brief.")  # type: ignore[arg-type]
        assert (compacted.object, [one.type for one in compacted.output]) == (
            "response.compaction",
            ["message", "compaction"],
        )
        assert (compacted.usage.input_tokens, compacted.usage.output_tokens) == (21, 13)
        for output in ([item], compacted.output):
            await ask(client, streamed, [*(one.model_dump(exclude_none=True, warnings=False) for one in output), go_on])
        await ask(client, streamed, [go_on], previous_response_id=made.id)
        for heard in up.heard[2:]:
            text = "\n".join(heard.messages)
            assert "It is a door." in text
            assert "Looking." not in text
        assert not find_mistakes(up)
        rows = await gateway.rows(5)
        assert {(row.operation, row.prompt_tokens, row.completion_tokens) for row in rows} == {("responses", 21, 13)}


async def test_a_provider_that_compacts_is_asked_to(standing_with: StartGateway, sdk: MakeClient) -> None:
    item = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAA"}
    usage = {"input_tokens": 21, "output_tokens": 13, "total_tokens": 34}
    whole = {"id": "resp_1", "created_at": 1, "object": "response.compaction", "output": [item], "usage": usage}
    response = {**whole, "object": "response", "status": "completed"}
    async with ScriptedUpstream([answer(whole)], [answer(response)]) as up:
        gateway = await standing_with({"channel": [channel(up.base_url, provider="openai")]})
        client = sdk(gateway)
        compacted = await client.responses.compact(model="m", input=ASK)
        assert compacted.output[0].model_dump(exclude_none=True) == item
        await ask(client, False, [{"role": "user", "content": ASK}, {"type": "compaction_trigger"}])
        first, second = up.received
        assert (first.path, "store" in first.json) == ("/v1/responses/compact", False)
        assert [one["role"] for one in first.json["input"]] == ["user"]
        assert (second.path, second.json["input"][-1]) == ("/v1/responses", {"type": "compaction_trigger"})
        rows = await gateway.rows(2)
        assert [(row.prompt_tokens, row.completion_tokens) for row in rows] == [(21, 13)] * 2
