"""The OpenAI Agents SDK, over chat and over Responses."""

import asyncio
from typing import Any

from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI
from steps import CONVENTION, HELLO, KEY, OSLO, URL, WEATHER, City, Step, expect, expect_weather, run

ASK = "How is the weather in Oslo?"
set_tracing_disabled(disabled=True)


@function_tool
def get_weather(city: str) -> str:
    """Return the weather of a city."""
    expect(city, "Oslo")
    return WEATHER


def make_agent(model: str, **more: Any) -> Any:
    kind = OpenAIResponsesModel if CONVENTION == "responses" else OpenAIChatCompletionsModel
    client = AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
    return Agent(name="Tester", model=kind(model=model, openai_client=client), **more)


def list_steps(model: str) -> dict[str, Step]:
    return {
        "chat": lambda: expect(ask(make_agent(model), "Hello"), HELLO),
        "stream": lambda: expect(asyncio.run(stream(make_agent(model))), HELLO),
        "tools": lambda: expect_weather(ask(make_agent(model, tools=[get_weather]))),
        "structured": lambda: expect(ask(make_agent(model, output_type=City)), OSLO),
    }


def ask(agent: Any, text: str = ASK) -> Any:
    return asyncio.run(Runner.run(agent, text)).final_output


async def stream(agent: Any) -> str:
    result = Runner.run_streamed(agent, "Hello")
    events = [event.data async for event in result.stream_events() if event.type == "raw_response_event"]
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


run(list_steps)
