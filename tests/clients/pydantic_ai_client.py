"""Pydantic AI's agents over its four models."""

from typing import Any

from pydantic_ai import Agent, NativeOutput
from steps import CONVENTION, HELLO, KEY, OSLO, URL, WEATHER, City, Skip, Step, expect, expect_weather, run

ASK = "How is the weather in Oslo?"


def get_weather(city: str) -> str:
    """Return the weather of a city."""
    expect(city, "Oslo")
    return WEATHER


def make_model(model: str) -> Any:
    match CONVENTION:
        case "anthropic":
            from pydantic_ai.models.anthropic import AnthropicModel  # noqa: PLC0415 - one package is enough for a run
            from pydantic_ai.providers.anthropic import AnthropicProvider  # noqa: PLC0415 - same

            return AnthropicModel(model, provider=AnthropicProvider(base_url=URL, api_key=KEY))
        case "google":
            from pydantic_ai.models.google import GoogleModel  # noqa: PLC0415 - same
            from pydantic_ai.providers.google import GoogleProvider  # noqa: PLC0415 - same

            return GoogleModel(model, provider=GoogleProvider(base_url=URL, api_key=KEY))
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel  # noqa: PLC0415 - same
    from pydantic_ai.providers.openai import OpenAIProvider  # noqa: PLC0415 - same

    kind = OpenAIResponsesModel if CONVENTION == "responses" else OpenAIChatModel
    return kind(model, provider=OpenAIProvider(base_url=f"{URL}/v1", api_key=KEY))


def list_steps(model: str) -> dict[str, Step]:
    llm = make_model(model)
    return {
        "chat": lambda: expect(Agent(llm).run_sync("Hello").output, HELLO),
        "stream": lambda: stream(llm),
        "tools": lambda: expect_weather(Agent(llm, tools=[get_weather]).run_sync(ASK).output),
        "structured": lambda: expect(Agent(llm, output_type=City).run_sync(ASK).output, OSLO),
        "structured, by schema": lambda: by_schema(llm),
    }


def by_schema(llm: Any) -> None:
    if CONVENTION == "anthropic":
        raise Skip("the package knows by their names which models of Anthropic have it")
    expect(Agent(llm, output_type=NativeOutput(City)).run_sync(ASK).output, OSLO)


def stream(llm: Any) -> None:
    result = Agent(llm).run_stream_sync("Hello")
    expect("".join(result.stream_text(delta=True, debounce_by=None)), HELLO)


run(list_steps)
