"""LangChain's three chat models, and its OpenAI embeddings."""

from typing import Any

from langchain.agents import create_agent
from langchain_core.tools import tool
from steps import (
    CONVENTION,
    HELLO,
    KEY,
    OSLO,
    URL,
    WEATHER,
    City,
    Skip,
    Step,
    expect,
    expect_weather,
    find_embedding_model,
    run,
)

ASK = "How is the weather in Oslo?"


@tool
def get_weather(city: str) -> str:
    """Return the weather of a city."""
    expect(city, "Oslo")
    return WEATHER


def make_model(model: str) -> Any:
    match CONVENTION:
        case "anthropic":
            from langchain_anthropic import ChatAnthropic  # noqa: PLC0415 - one package is enough for a run

            return ChatAnthropic(base_url=URL, api_key=KEY, model=model, max_tokens=100, max_retries=0)
        case "google":
            from langchain_google_genai import ChatGoogleGenerativeAI  # noqa: PLC0415 - same

            return ChatGoogleGenerativeAI(base_url=URL, api_key=KEY, model=model, max_retries=1)
    from langchain_openai import ChatOpenAI  # noqa: PLC0415 - same

    responses = CONVENTION == "responses"
    return ChatOpenAI(base_url=f"{URL}/v1", api_key=KEY, model=model, max_retries=0, use_responses_api=responses)


def list_steps(model: str) -> dict[str, Step]:
    chat = make_model(model)
    return {
        "chat": lambda: expect(chat.invoke("Hello").text, HELLO),
        "stream": lambda: expect("".join(piece.text for piece in chat.stream("Hello")), HELLO),
        "tools": lambda: tools(chat),
        "structured": lambda: expect(chat.with_structured_output(City).invoke(ASK), OSLO),
        "embeddings": lambda: embeddings(model),
    }


def tools(chat: Any) -> None:
    result = create_agent(chat, tools=[get_weather]).invoke({"messages": [("user", ASK)]})
    expect_weather(result["messages"][-1].text)


def embeddings(model: str) -> None:
    if CONVENTION != "openai":
        raise Skip("this run is of a chat model")
    from langchain_openai import OpenAIEmbeddings  # noqa: PLC0415 - same

    name = find_embedding_model(model)
    found = OpenAIEmbeddings(base_url=f"{URL}/v1", api_key=KEY, model=name, check_embedding_ctx_length=False)
    expect(found.embed_documents(["a", "bc"]), [[0.25, -0.5, 1.0], [0.25, -0.5, 2.0]])


run(list_steps)
