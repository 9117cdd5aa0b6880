"""LiteLLM as a client, by three of its providers."""

import json
import os
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # read at import: no download of prices

import litellm
from steps import (
    CONVENTION,
    HELLO,
    KEY,
    OSLO,
    URL,
    WEATHER,
    WEATHER_SCHEMA,
    City,
    Skip,
    Step,
    expect,
    expect_weather,
    find_embedding_model,
    run,
)

ASK: Any = [{"role": "user", "content": "How is the weather in Oslo?"}]
FUNCTION = {"name": "get_weather", "description": "The weather of a city", "parameters": WEATHER_SCHEMA}
PREFIX, BASE = {
    "openai": ("openai", f"{URL}/v1"),
    "anthropic": ("anthropic", URL),
    "google": ("gemini", f"{URL}/v1beta"),
}[CONVENTION]


def ask(model: str, messages: Any = ASK, **more: Any) -> Any:
    return litellm.completion(
        model=f"{PREFIX}/{model}", api_base=BASE, api_key=KEY, messages=messages, num_retries=0, **more
    )


def list_steps(model: str) -> dict[str, Step]:
    hello = [{"role": "user", "content": "Hello"}]
    return {
        "chat": lambda: expect(ask(model, hello).choices[0].message.content, HELLO),
        "stream": lambda: stream(model, hello),
        "tools": lambda: tools(model),
        "structured": lambda: structured(model),
        "embeddings": lambda: embeddings(model),
    }


def stream(model: str, messages: Any) -> None:
    pieces = ask(model, messages, stream=True)
    expect("".join(piece.choices[0].delta.content or "" for piece in pieces), HELLO)


def tools(model: str) -> None:
    offered = [{"type": "function", "function": FUNCTION}]
    first = ask(model, tools=offered).choices[0].message
    (call,) = first.tool_calls
    expect(json.loads(call.function.arguments), {"city": "Oslo"})
    result = {"role": "tool", "tool_call_id": call.id, "content": WEATHER}
    expect_weather(ask(model, [*ASK, first, result], tools=offered).choices[0].message.content)


def structured(model: str) -> None:
    answer = ask(model, response_format=City)
    expect(City.model_validate_json(answer.choices[0].message.content), OSLO)


def embeddings(model: str) -> None:
    if CONVENTION != "openai":
        raise Skip("this run is of a chat model")
    name = find_embedding_model(model)
    found = litellm.embedding(model=f"openai/{name}", api_base=BASE, api_key=KEY, input=["a", "bc"])
    expect([each["embedding"] for each in found.data], [[0.25, -0.5, 1.0], [0.25, -0.5, 2.0]])


run(list_steps)
