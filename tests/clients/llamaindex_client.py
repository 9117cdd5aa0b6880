"""LlamaIndex's three models, and its OpenAI embeddings."""

from typing import Any

from llama_index.core.tools import FunctionTool
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

NAMES = {
    "over-openai": "claude-3-haiku-20240307",
    "over-anthropic": "claude-3-7-sonnet-20250219",
    "over-gemini": "claude-3-5-haiku-20241022",
}
"""The package refuses names of models that are not Anthropic's; the gateway serves these as the others."""


def get_weather(city: str) -> str:
    """Return the weather of a city."""
    expect(city, "Oslo")
    return WEATHER


def make_model(model: str) -> Any:
    match CONVENTION:
        case "anthropic":
            from llama_index.llms.anthropic import Anthropic  # noqa: PLC0415 - one package is enough for a run

            return Anthropic(base_url=URL, api_key=KEY, model=NAMES[model], max_tokens=100, max_retries=0)
        case "google":
            from google.genai.types import HttpOptions  # noqa: PLC0415 - same
            from llama_index.llms.google_genai import GoogleGenAI  # noqa: PLC0415 - same

            return GoogleGenAI(api_key=KEY, model=model, http_options=HttpOptions(base_url=URL), max_retries=1)
    from llama_index.llms.openai_like import OpenAILike  # noqa: PLC0415 - same

    return OpenAILike(
        api_base=f"{URL}/v1",
        api_key=KEY,
        model=model,
        is_chat_model=True,
        is_function_calling_model=True,
        should_use_structured_outputs=True,
        max_retries=0,
    )


def list_steps(model: str) -> dict[str, Step]:
    llm = make_model(model)
    return {
        "chat": lambda: expect(llm.complete("Hello").text, HELLO),
        "stream": lambda: expect("".join(piece.delta or "" for piece in llm.stream_complete("Hello")), HELLO),
        "tools": lambda: tools(llm),
        "structured": lambda: expect(llm.as_structured_llm(City).complete(ASK).raw, OSLO),
        "embeddings": lambda: embeddings(model),
    }


def tools(llm: Any) -> None:
    from llama_index.core.llms import ChatMessage  # noqa: PLC0415 - same

    offered = [FunctionTool.from_defaults(get_weather)]
    history = [ChatMessage(role="user", content=ASK)]
    first = llm.chat_with_tools(offered, chat_history=history)
    (call,) = llm.get_tool_calls_from_response(first)
    expect((call.tool_name, call.tool_kwargs), ("get_weather", {"city": "Oslo"}))
    named = {"tool_call_id": call.tool_id, "name": call.tool_name}
    result = ChatMessage(role="tool", content=WEATHER, additional_kwargs=named)
    expect_weather(llm.chat_with_tools(offered, chat_history=[*history, first.message, result]).message.content)


def embeddings(model: str) -> None:
    if CONVENTION != "openai":
        raise Skip("this run is of a chat model")
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding  # noqa: PLC0415 - same

    found = OpenAILikeEmbedding(model_name=find_embedding_model(model), api_base=f"{URL}/v1", api_key=KEY)
    expect(found.get_text_embedding_batch(["a", "bc"]), [[0.25, -0.5, 1.0], [0.25, -0.5, 2.0]])


run(list_steps)
