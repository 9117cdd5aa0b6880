"""Providers of three API formats that answer any client: by what was asked, and not by how many asked before."""

import base64
import re
import struct
from collections.abc import Mapping
from typing import Any

import attrs
import orjson

from tests.support.anthropic_provider import AnthropicProvider
from tests.support.gemini_provider import GeminiProvider
from tests.support.openai_provider import OpenAIProvider
from tests.support.providers import KEY, Call, Fails, Heard, Provider, Says, expect
from tests.support.scripted_upstream import Received, Step, answer

HELLO = "Hello from the provider"
_AS_JSON = re.compile("Answer as JSON|Use this JSON schema")
"""What clients ask that describe a schema in words: Instructor's, and LiteLLM of a model that it does not know."""
_OSLO: Mapping[str, Any] = {"name": "Oslo", "people": 700_000}
_CALLS: Mapping[str, Mapping[str, Any]] = {
    "get_weather": {"city": "Oslo"},
    "Bash": {"command": "cat note.txt", "description": "Reads the note"},
    "exec_command": {"cmd": "cat note.txt"},
    "shell": {"command": ["cat", "note.txt"]},
    "shell_command": {"command": "cat note.txt"},
    **dict.fromkeys(("City", "final_result", "json", "json_tool_call"), _OSLO),
}
"""The arguments of tools that the model calls if it is offered them. The last ones stand for structured output."""

_CLAUDE_NAMES: Mapping[str, str] = {
    "openai": "claude-3-haiku-20240307",
    "anthropic": "claude-3-7-sonnet-20250219",
    "gemini": "claude-3-5-haiku-20241022",
}
"""A second name of each chat model, for a client that takes no other (``tests/clients/llamaindex_client.py``)."""


def reply(heard: Heard) -> Says:
    """Return JSON if a schema is given, the call of a known tool, the result of that call, or a greeting."""
    if heard.schema is not None or (any(map(_AS_JSON.search, heard.messages)) and not heard.tools):
        return Says(orjson.dumps(_OSLO, default=dict).decode())
    if heard.results:
        return Says(f"The tool returned: {heard.results[-1][1]}")
    if not any(message.rstrip().endswith("Hello") for message in heard.messages):
        for name in heard.tools:
            if name in _CALLS:
                return Says(calls=(Call(name, dict(_CALLS[name])),))
    return Says(HELLO)


class OpenAIModels(OpenAIProvider):
    """OpenAI's chat and embeddings."""

    def give(self) -> Says | Fails:
        return reply(self.heard[-1])

    def read(self, received: Received) -> list[Step]:
        if received.path != "/v1/embeddings":
            return super().read(received)
        expect(received.headers.get("authorization") == f"Bearer {KEY}", "Incorrect API key provided", 401)
        return [answer(_embed(received.json))]


class AnthropicModels(AnthropicProvider):
    """Anthropic's messages, of a newer model: as Claude Code sends them.

    It takes system messages anywhere, and adaptive thinking, which earlier turns need not have begun with
    (platform.claude.com/docs/en/build-with-claude/adaptive-thinking).
    """

    def give(self) -> Says | Fails:
        return reply(self.heard[-1])

    def read(self, received: Received) -> list[Step]:
        body = received.json
        messages = [message for message in body.get("messages", ()) if message.get("role") != "system"]
        plain = {name: value for name, value in body.items() if value != {"type": "adaptive"}}
        return super().read(attrs.evolve(received, body=orjson.dumps(plain | {"messages": messages})))


class GeminiModels(GeminiProvider):
    """Google's content and embeddings."""

    def give(self) -> Says | Fails:
        asked = self.received[-1].json.get("generationConfig") or {}
        heard = self.heard[-1]
        return reply(attrs.evolve(heard, schema=heard.schema or asked.get("responseSchema")))


def list_channels(provider: Provider) -> list[dict[str, Any]]:
    """Return the channel of a provider's chat model, and of its embedding model if it has one."""
    chat = f"over-{provider.slug}"
    vectors = {"openai": "text-embedding-3-small", "gemini": "gemini-embedding-001"}.get(provider.slug)
    names = {chat: provider.model, _CLAUDE_NAMES[provider.slug]: provider.model}
    names |= {f"embed-{provider.slug}": vectors} if vectors else {}
    return [provider.channel(chat, models=list(names), model_map=names)]


def _embed(body: dict[str, Any]) -> dict[str, Any]:
    texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
    vectors: list[Any] = [[0.25, -0.5, float(len(text))] for text in texts]
    if body.get("encoding_format") == "base64":
        vectors = [base64.b64encode(struct.pack("<3f", *vector)).decode() for vector in vectors]
    data = [{"object": "embedding", "index": at, "embedding": vector} for at, vector in enumerate(vectors)]
    usage = {"prompt_tokens": len(texts), "total_tokens": len(texts)}
    return {"object": "list", "data": data, "model": body["model"], "usage": usage}
