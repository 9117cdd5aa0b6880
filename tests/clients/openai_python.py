"""The ``openai`` package: chat, Responses, embeddings."""

import json
from typing import Any

from openai import OpenAI
from steps import (
    HELLO,
    KEY,
    OSLO,
    URL,
    WEATHER,
    WEATHER_SCHEMA,
    City,
    Step,
    expect,
    expect_weather,
    find_embedding_model,
    run,
)

client = OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
FUNCTION = {"name": "get_weather", "description": "The weather of a city", "parameters": WEATHER_SCHEMA}
ASK: Any = [{"role": "user", "content": "How is the weather in Oslo?"}]


def list_steps(model: str) -> dict[str, Step]:
    return {
        "chat": lambda: chat(model),
        "stream": lambda: stream(model),
        "tools": lambda: tools(model),
        "structured": lambda: structured(model),
        "embeddings": lambda: embeddings(model),
        "responses": lambda: responses(model),
        "responses stream": lambda: responses_stream(model),
        "responses tools": lambda: responses_tools(model),
        "responses structured": lambda: responses_structured(model),
        "models": lambda: expect(client.models.retrieve(model).id, model),
    }


def chat(model: str) -> None:
    answer = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Hello"}])
    expect(answer.choices[0].message.content, HELLO)


def stream(model: str) -> None:
    with client.chat.completions.stream(model=model, messages=[{"role": "user", "content": "Hello"}]) as events:
        expect("".join(event.delta for event in events if event.type == "content.delta"), HELLO)


def tools(model: str) -> None:
    offered: Any = [{"type": "function", "function": FUNCTION}]
    first = client.chat.completions.create(model=model, messages=ASK, tools=offered).choices[0].message
    assert first.tool_calls
    call: Any = first.tool_calls[0]
    expect(json.loads(call.function.arguments), {"city": "Oslo"})
    result = {"role": "tool", "tool_call_id": call.id, "content": WEATHER}
    messages: Any = [*ASK, first, result]
    second = client.chat.completions.create(model=model, messages=messages, tools=offered)
    expect_weather(second.choices[0].message.content)


def structured(model: str) -> None:
    answer = client.chat.completions.parse(model=model, messages=ASK, response_format=City)
    expect(answer.choices[0].message.parsed, OSLO)


def embeddings(model: str) -> None:
    found = client.embeddings.create(model=find_embedding_model(model), input=["a", "bc"])
    expect([each.embedding for each in found.data], [[0.25, -0.5, 1.0], [0.25, -0.5, 2.0]])


def responses(model: str) -> None:
    expect(client.responses.create(model=model, input="Hello").output_text, HELLO)


def responses_stream(model: str) -> None:
    with client.responses.stream(model=model, input="Hello") as events:
        expect("".join(event.delta for event in events if event.type == "response.output_text.delta"), HELLO)


def responses_tools(model: str) -> None:
    offered: Any = [{"type": "function", **FUNCTION, "strict": True}]
    first = client.responses.create(model=model, input=ASK, tools=offered)
    (call,) = (item for item in first.output if item.type == "function_call")
    result: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": WEATHER}]
    second = client.responses.create(model=model, previous_response_id=first.id, input=result, tools=offered)
    expect_weather(second.output_text)


def responses_structured(model: str) -> None:
    expect(client.responses.parse(model=model, input=ASK, text_format=City).output_parsed, OSLO)


run(list_steps)
