"""The clients that `make test-clients` runs, and the pinned packages of their environments."""

from collections.abc import Mapping

import attrs

PYTHON: Mapping[str, tuple[str, ...]] = {
    "sdks": ("openai==3.54.0", "anthropic==2.12.0", "google-genai==3.4.0"),
    "langchain": (
        "langchain==1.4.7",
        "langchain-openai==1.7.3",
        "langchain-anthropic==1.7.7",
        "langchain-google-genai==4.4.2",
    ),
    "llamaindex": (
        "llama-index-core==0.14.25",
        "llama-index-llms-openai-like==0.8.1",
        "llama-index-embeddings-openai-like==0.4.0",
        "llama-index-llms-google-genai==0.11.3",
    ),
    # With anthropic 2 the package calls a type that is a Union there; its own requirements do not say so.
    "llamaindex-anthropic": ("llama-index-core==0.14.25", "llama-index-llms-anthropic==0.12.3", "anthropic==0.125.0"),
    "pydantic-ai": ("pydantic-ai-slim[openai,anthropic,google]==2.68.0",),
    "instructor": ("instructor[google-genai]==1.17.0", "anthropic==2.12.0", "google-genai==3.4.0"),
    "litellm": ("litellm==1.106.2", "mcp==2.3.0"),
    "agents": ("openai-agents==0.24.0",),
    "llm": ("llm==0.36",),
    "aider": ("aider-chat==0.86.2",),
}
"""Requirements by environment: one environment each, since their own requirements contradict each other."""

NODE: Mapping[str, Mapping[str, str]] = {
    "node": {
        "openai": "6.49.0",
        "@anthropic-ai/sdk": "1.12.0",
        "@google/genai": "2.32.0",
        "ai": "6.0.326",
        "@ai-sdk/openai": "3.0.141",
        "@ai-sdk/openai-compatible": "2.0.92",
        "@ai-sdk/anthropic": "3.0.140",
        "@ai-sdk/google": "3.0.141",
        "zod": "4.6.7",
    }
}


@attrs.frozen
class Client:
    """One row of the table.

    Attributes:
        program: a file or folder in ``tests/clients``; its suffix says how it runs.
        environment: the name in ``PYTHON`` or ``NODE``, or "go" or "rust".
        argument: what the program finds on its command line: the convention that it uses.
        known: reasons of failures that are accepted, by "model: step".
    """

    name: str
    program: str
    environment: str
    argument: str = ""
    known: Mapping[str, str] = {}


def _list_family(name: str, program: str, environment: str, conventions: str) -> list[Client]:
    labels = {
        "openai": "OpenAI chat", "responses": "OpenAI Responses", "anthropic": "Anthropic", "google": "Gemini",
        "compatible": "OpenAI compatible",
    }  # fmt: skip
    return [Client(f"{name}, {labels[each]}", program, environment, each) for each in conventions.split()]


CLIENTS: tuple[Client, ...] = (
    Client("openai, Python", "openai_python.py", "sdks"),
    Client("openai, Node.js", "openai_node.mjs", "node"),
    Client("openai, Go", "openai_go", "go"),
    Client("async-openai, Rust", "openai_rust", "rust"),
    Client("anthropic, Python", "anthropic_python.py", "sdks"),
    Client("anthropic, Node.js", "anthropic_node.mjs", "node"),
    Client("google-genai, Python", "google_python.py", "sdks"),
    Client("google-genai, Node.js", "google_node.mjs", "node"),
    *_list_family("Vercel AI SDK", "ai_sdk.mjs", "node", "openai responses compatible anthropic google"),
    *_list_family("LangChain", "langchain_client.py", "langchain", "openai responses anthropic google"),
    *_list_family("LlamaIndex", "llamaindex_client.py", "llamaindex", "openai google"),
    Client("LlamaIndex, Anthropic", "llamaindex_client.py", "llamaindex-anthropic", "anthropic"),
    *_list_family("Pydantic AI", "pydantic_ai_client.py", "pydantic-ai", "openai responses anthropic google"),
    *_list_family("Instructor", "instructor_client.py", "instructor", "openai anthropic google"),
    *_list_family("LiteLLM", "litellm_client.py", "litellm", "openai anthropic google"),
    *_list_family("OpenAI Agents", "openai_agents.py", "agents", "openai responses"),
    Client("llm", "llm_command.py", "llm"),
    Client("aider", "aider_command.py", "aider"),
)
