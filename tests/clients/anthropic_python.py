"""The ``anthropic`` package: messages, streams, tools, structured output, token counts."""

from typing import Any

from anthropic import Anthropic
from steps import HELLO, KEY, OSLO, URL, WEATHER, WEATHER_SCHEMA, City, Step, expect, expect_weather, run

client = Anthropic(base_url=URL, api_key=KEY, max_retries=0)
ASK: Any = [{"role": "user", "content": "How is the weather in Oslo?"}]
TOOLS: Any = [{"name": "get_weather", "description": "The weather of a city", "input_schema": WEATHER_SCHEMA}]


def list_steps(model: str) -> dict[str, Step]:
    return {
        "chat": lambda: chat(model),
        "stream": lambda: stream(model),
        "tools": lambda: tools(model),
        "structured": lambda: structured(model),
        "count": lambda: count(model),
        "models": lambda: expect(client.models.retrieve(model).id, model),
    }


def chat(model: str) -> None:
    message = client.messages.create(model=model, max_tokens=100, messages=[{"role": "user", "content": "Hello"}])
    expect([block.text for block in message.content if block.type == "text"], [HELLO])


def stream(model: str) -> None:
    with client.messages.stream(model=model, max_tokens=100, messages=[{"role": "user", "content": "Hello"}]) as events:
        expect("".join(events.text_stream), HELLO)


def tools(model: str) -> None:
    first = client.messages.create(model=model, max_tokens=100, messages=ASK, tools=TOOLS)
    (call,) = (block for block in first.content if block.type == "tool_use")
    expect(call.input, {"city": "Oslo"})
    result: Any = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": WEATHER}]}
    messages = [*ASK, {"role": "assistant", "content": first.content}, result]
    second = client.messages.create(model=model, max_tokens=100, messages=messages, tools=TOOLS)
    expect_weather("".join(block.text for block in second.content if block.type == "text"))


def structured(model: str) -> None:
    message = client.messages.parse(model=model, max_tokens=100, messages=ASK, output_format=City)
    expect(message.parsed_output, OSLO)


def count(model: str) -> None:
    assert client.messages.count_tokens(model=model, messages=ASK).input_tokens > 0


run(list_steps)
