"""Anthropic's and Google's newer models, which do the task.

Anthropic (platform.claude.com/docs/en/build-with-claude/adaptive-thinking, .../effort, /docs/en/agents-and-tools/
tool-use/tool-search-tool): adaptive thinking only, effort words, references to declared tools.
"""

from typing import Any

import attrs
import orjson

from tests.support.anthropic_provider import AnthropicProvider
from tests.support.gemini_provider import GeminiProvider
from tests.support.providers import Json, expect
from tests.support.scripted_upstream import Received, Step
from tests.support.strict_providers.agent_task import Agent

_EFFORTS = {None, "low", "medium", "high", "xhigh", "max"}
_MOST = 128_000


class Anthropic(AnthropicProvider, Agent):
    """A model with adaptive thinking and system messages between the others."""

    label = slug = "anthropic"
    model = "claude-opus-4-8"

    def read(self, received: Received) -> list[Step]:
        body = received.json
        expect(body.get("max_tokens", 0) <= _MOST, f"max_tokens: at most {_MOST} for this model")
        thinking = body.get("thinking") or {}
        expect(thinking.get("type") in {None, "adaptive", "disabled"}, "thinking.type.enabled is not supported")
        effort = (body.get("output_config") or {}).get("effort")
        expect(effort in _EFFORTS, "output_config.effort: unknown value")
        _check_references(body)
        messages = [message for message in body.get("messages", ()) if message.get("role") != "system"]
        expect(body["messages"][0]["role"] != "system", "messages.0: system messages must follow a user's")
        plain = {name: value for name, value in body.items() if name != "thinking"}
        return super().read(attrs.evolve(received, body=orjson.dumps(plain | {"messages": messages})))


def _check_references(body: Json) -> None:
    names = {tool.get("name") for tool in body.get("tools") or ()}
    for block in list_blocks(body.get("messages")):
        if block.get("type") == "tool_reference":
            found = block["tool_name"]
            expect(found in names, f"Tool reference '{found}' not found in available tools")


def list_blocks(value: Any) -> list[Json]:
    """Return messages and the blocks in them, those of tools' results included."""
    if isinstance(value, list):
        return [block for one in value for block in list_blocks(one)]
    return [value, *list_blocks(value.get("content"))] if isinstance(value, dict) else []


class Gemini(GeminiProvider, Agent):
    """A model that signs its calls."""

    label = slug = "gemini"
