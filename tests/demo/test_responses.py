"""The demo's responses, completions, moderations and ranking, as the real SDK sees them: it checks every shape."""

import itertools
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import openai
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response
from pydantic import BaseModel

from gateway.demo.requests import RequestError
from gateway.demo.responses import DemoResponse
from gateway.demo.server import DemoUpstream
from tests.support.json_strategies import json_values
from tests.support.started_gateways import NO_TLS

ASK: Any = {"model": "demo-chat", "input": "Why is the sky blue?"}
CITY: Any = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: Any = [{"type": "function", "name": name, "parameters": CITY, "strict": False} for name in ("weather", "time")]
COMPLETE: Any = {"model": "demo-chat", "prompt": "Once upon a time"}


class Visit(BaseModel):
    city: str
    days: int


@pytest.fixture
async def strict(demo: DemoUpstream) -> AsyncIterator[openai.AsyncOpenAI]:
    """The SDK as it never is: an answer or an event that does not fit its classes is an error."""
    http = openai.DefaultAsyncHttpxClient(verify=NO_TLS)
    given = {"base_url": demo.base_url, "api_key": demo.api_key, "max_retries": 0, "http_client": http}
    async with openai.AsyncOpenAI(**given, _strict_response_validation=True) as client:
        yield client


async def stream(client: openai.AsyncOpenAI, **fields: Any) -> list[Any]:
    events = [event async for event in await client.responses.create(**{**ASK, **fields}, stream=True)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    return events


def run_lengths(events: list[Any]) -> list[str]:
    return [kind for kind, _ in itertools.groupby(event.type for event in events)]


async def test_a_question_is_answered_as_in_a_chat(strict: openai.AsyncOpenAI) -> None:
    made = await strict.responses.create(**ASK, instructions="Be brief", metadata={"a": "b"}, temperature=0.5)
    said = await strict.chat.completions.create(model="demo-chat", messages=[{"role": "user", "content": ASK["input"]}])
    assert made.output_text == said.choices[0].message.content
    assert (made.status, made.model, made.instructions) == ("completed", "demo-chat", "Be brief")
    assert (made.metadata, made.temperature, made.error, made.incomplete_details) == ({"a": "b"}, 0.5, None, None)
    assert made.usage is not None
    assert made.usage.total_tokens == made.usage.input_tokens + made.usage.output_tokens
    assert said.usage is not None
    assert made.usage.output_tokens == said.usage.completion_tokens


async def test_a_stream_has_every_event_of_a_text(strict: openai.AsyncOpenAI) -> None:
    events = await stream(strict)
    assert run_lengths(events) == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    whole = await strict.responses.create(**ASK)
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    assert events[0].response.status == "in_progress"
    assert events[0].response.output == []
    last = events[-1].response
    assert (last.output_text, last.usage) == (whole.output_text, whole.usage)
    assert {event.response.id for event in events if hasattr(event, "response")} == {last.id}
    assert {event.item_id for event in events if hasattr(event, "item_id")} == {last.output[0].id}


async def test_events_have_names_and_no_mark_of_another_convention(
    plain: aiohttp.ClientSession, demo: DemoUpstream
) -> None:
    async with plain.post(f"{demo.base_url}/responses", json={**ASK, "stream": True}) as response:
        assert response.content_type == "text/event-stream"
        *events, rest = (await response.text()).split("\n\n")
    assert rest == ""
    for event in events:
        name, data = event.split("\n")
        assert name == "event: " + orjson.loads(data.removeprefix("data: "))["type"]


async def test_tools_are_called_and_their_results_are_told(strict: openai.AsyncOpenAI) -> None:
    asked: Any = [{"role": "user", "content": [{"type": "input_text", "text": "The weather and the time in Paris?"}]}]
    made = await strict.responses.create(model="demo-chat", input=asked, tools=TOOLS)
    calls: Any = made.output
    assert [(call.type, call.name, call.arguments) for call in calls] == [
        ("function_call", "weather", '{"city":"Paris"}'),
        ("function_call", "time", '{"city":"Paris"}'),
    ]
    assert len({call.call_id for call in calls}) == 2
    results: Any = [
        {"type": "function_call_output", "call_id": call.call_id, "output": f"result {at}"}
        for at, call in enumerate(calls)
    ]
    thought = {"type": "reasoning", "id": "rs_1", "summary": []}
    items = [*asked, thought, *(call.model_dump(exclude_none=True) for call in calls), *results]
    told = await strict.responses.create(model="demo-chat", input=items, tools=TOOLS)
    assert '"result 0" and "result 1"' in told.output_text


async def test_streamed_calls_come_in_fragments_that_join(strict: openai.AsyncOpenAI) -> None:
    events = await stream(strict, input="The weather and the time in Paris?", tools=TOOLS)
    call = [
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
    ]
    assert run_lengths(events) == ["response.created", "response.in_progress", *call, *call, "response.completed"]
    for at in (0, 1):
        parts = [event for event in events if getattr(event, "output_index", None) == at]
        assert parts[0].item.arguments == ""
        assert "".join(part.delta for part in parts if part.type.endswith(".delta")) == '{"city":"Paris"}'
        assert parts[-1].item.arguments == parts[-2].arguments == '{"city":"Paris"}'


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("none", []),
        ("required", ["weather"]),
        ({"type": "function", "name": "time"}, ["time"]),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "time"}]}, ["time"]),
    ],
)
async def test_the_tool_choice_decides(strict: openai.AsyncOpenAI, choice: Any, names: list[str]) -> None:
    made = await strict.responses.create(**ASK, tools=TOOLS, tool_choice=choice)
    assert [item.name for item in made.output if item.type == "function_call"] == names


async def test_a_structured_answer_parses_into_its_form(strict: openai.AsyncOpenAI) -> None:
    parsed = await strict.responses.parse(model="demo-chat", input="Plan a trip to Lisbon", text_format=Visit)
    assert parsed.output_parsed == Visit(city="Lisbon", days=1)
    made = await strict.responses.create(**ASK, text={"format": {"type": "json_object"}})
    assert "sky" in orjson.loads(made.output_text)["answer"]


async def test_the_helper_for_streams_has_the_whole_at_the_end(sdk: openai.AsyncOpenAI) -> None:
    async with sdk.responses.stream(**ASK, text_format=Visit) as helper:
        async for _ in helper:
            pass
        assert (await helper.get_final_response()).output_parsed is not None


async def test_a_limit_leaves_the_response_incomplete(strict: openai.AsyncOpenAI) -> None:
    made = await strict.responses.create(**ASK, max_output_tokens=3)
    assert made.status == "incomplete"
    assert made.incomplete_details is not None
    assert made.incomplete_details.reason == "max_output_tokens"
    assert made.usage is not None
    assert made.usage.output_tokens == 3
    last = (await stream(strict, max_output_tokens=3))[-1]
    assert (last.type, last.response.output_text) == ("response.incomplete", made.output_text)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "reasoning"}]}, "input"),
        ({"input": [{"role": "user", "content": "x"}, {"role": "wizard", "content": "x"}]}, "input[1]"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0]"),
        ({"tools": [3]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"max_output_tokens": 0}, "max_completion_tokens"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"model": "demo-embedding"}, "model"),
    ],
)
async def test_what_the_demo_cannot_do_is_named(strict: openai.AsyncOpenAI, fields: Any, param: str) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        await strict.responses.create(**{**ASK, **fields})
    assert (caught.value.status_code, caught.value.param) == (404 if param == "model" else 400, param)


@given(
    st.fixed_dictionaries(
        {"model": st.just("demo-chat")},
        optional={
            "input": json_values | st.lists(st.fixed_dictionaries({}, optional={
                "type": st.sampled_from(["message", "function_call", "function_call_output"]) | json_values,
                "role": st.sampled_from(["user", "assistant", "wizard"]) | json_values,
                "content": json_values | st.just([{"type": "input_text", "text": "x"}]),
                "output": json_values,
            }), max_size=3),
            "tools": st.lists(json_values | st.just({"type": "function", "name": "a"}), max_size=2) | json_values,
            "tool_choice": json_values | st.just({"type": "function", "name": "a"}),
            "text": st.builds(lambda inner: {"format": inner}, json_values) | json_values,
            "instructions": json_values,
        },
    )
)  # fmt: skip
def test_any_request_is_answered_or_refused_and_never_a_crash(body: dict[str, Any]) -> None:
    try:
        told = DemoResponse.to(body)
    except RequestError:
        return
    events = list(told.events())
    Response.model_construct(**told.response())
    assert events[-1]["type"] == "response.completed"


async def test_a_text_is_completed_within_the_conventions_limit(strict: openai.AsyncOpenAI) -> None:
    made = await strict.completions.create(**COMPLETE)
    (choice,) = made.choices
    assert (made.object, made.model, choice.finish_reason) == ("text_completion", "demo-chat", "length")
    assert made.usage is not None
    assert made.usage.completion_tokens == 16
    whole = await strict.completions.create(**COMPLETE, max_tokens=500)
    assert whole.choices[0].finish_reason == "stop"
    assert whole.choices[0].text.startswith(choice.text)
    assert "Once upon a time" in whole.choices[0].text


async def test_a_text_is_completed_in_a_stream(sdk: openai.AsyncOpenAI) -> None:
    asked: Any = {**COMPLETE, "max_tokens": 9, "n": 2, "prompt": ["Once", "Twice"]}
    whole = await sdk.completions.create(**asked)
    told: dict[int, str] = {}
    options: Any = {"include_usage": True}
    chunks = [chunk async for chunk in await sdk.completions.create(**asked, stream=True, stream_options=options)]
    for chunk in chunks[:-1]:
        assert chunk.usage is None
        told[chunk.choices[0].index] = told.get(chunk.choices[0].index, "") + chunk.choices[0].text
    assert told == {choice.index: choice.text for choice in whole.choices}
    assert len(told) == 4
    assert (chunks[-1].choices, chunks[-1].usage) == ([], whole.usage)
    plain = [chunk async for chunk in await sdk.completions.create(**asked, stream=True)]
    assert all(chunk.choices and chunk.usage is None for chunk in plain)


@pytest.mark.parametrize("prompt", ["Hi", ["Hi"], [1, 2], [[1, 2]], None])
async def test_a_prompt_comes_in_every_shape_and_may_be_echoed(strict: openai.AsyncOpenAI, prompt: Any) -> None:
    (choice,) = (await strict.completions.create(model="demo-chat", prompt=prompt, echo=True)).choices
    assert choice.text.startswith({"H": "Hi", "N": ""}.get(str(prompt)[:1], "Hi" if "Hi" in str(prompt) else "1 2"))


@pytest.mark.parametrize(
    ("fields", "param"), [({"n": 129}, "n"), ({"prompt": [3, "a"]}, "prompt"), ({"stop": 3}, "stop")]
)
async def test_a_wrong_completion_is_named(strict: openai.AsyncOpenAI, fields: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await strict.completions.create(**{**COMPLETE, **fields})
    assert caught.value.param == param


async def test_texts_are_judged_one_by_one_and_parts_together(strict: openai.AsyncOpenAI) -> None:
    judged = await strict.moderations.create(model="demo-moderation", input=["I love you", "I will kill you"])
    assert [result.flagged for result in judged.results] == [False, True]
    assert judged.results[1].categories.violence
    assert judged.results[1].category_scores.violence > 0.5 > judged.results[1].category_scores.hate
    parts: Any = [
        {"type": "text", "text": "a skill"},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
    ]
    (together,) = (await strict.moderations.create(model="demo-moderation", input=parts)).results
    assert not together.flagged
    assert together.category_applied_input_types.violence == ["image", "text"]
    for wrong in ([], [3], {"a": 1}):
        with pytest.raises(openai.BadRequestError, match="input"):
            await strict.moderations.create(model="demo-moderation", input=wrong)


async def test_documents_are_ranked_by_the_words_they_share(plain: aiohttp.ClientSession, demo: DemoUpstream) -> None:
    documents = ["Bergen has rain", {"text": "The capital of Norway is Oslo"}, "Cats sleep"]
    body = {"model": "demo-rerank", "query": "What is the capital of Norway?", "documents": documents, "top_n": 2}
    async with plain.post(f"{demo.base_url}/rerank", json={**body, "return_documents": True}) as response:
        told = await response.json()
    assert told["results"][0]["index"] == 1
    assert len(told["results"]) == 2
    assert told["results"][0]["document"] == {"text": "The capital of Norway is Oslo"}
    assert 1 >= told["results"][0]["relevance_score"] > told["results"][1]["relevance_score"] >= 0
    assert told["usage"]["total_tokens"] > 0
    for wrong, param in (
        ({"documents": []}, "documents"),
        ({"documents": [3]}, "documents[0]"),
        ({"documents": ["a " * 70_000]}, "documents"),
        ({"query": ""}, "query"),
        ({"top_n": 0}, "top_n"),
    ):
        async with plain.post(f"{demo.base_url}/rerank", json={**body, **wrong}) as response:
            assert (response.status, (await response.json())["error"]["param"]) == (400, param)
