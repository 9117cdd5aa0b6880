"""Request fields that change what is bought: which values are harmless, and which models they name.

A price is for the tokens of one model. Faster service, a search, or another model's answer has another price, which the
gateway does not know: such a field is allowed only on a channel whose ``allow_fields`` lists it. The fields of a vendor
are in the vendor's file (``Provider.priced_fields``).

Tiers: developers.openai.com/api/docs/pricing, docs.x.ai/developers/advanced-api-usage/priority-processing,
docs.fireworks.ai/serverless/serverless-modes, console.groq.com/docs/service-tiers,
openrouter.ai/docs/guides/features/service-tiers, platform.claude.com/docs/en/api/service-tiers. Searches:
``web_search_options`` of OpenAI's OpenAPI document, and the tools that vendors run.
"""

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from gateway.errors import InvalidRequest
from gateway.formats.usage_bounds import is_hosted_by_gemini

TOOLS = "tools"
EVERYWHERE = frozenset({"service_tier", "serviceTier", "web_search_options", TOOLS})
"""Fields of most vendors. ``tools`` stands for tools that the vendor runs, and bills."""
BETA = "anthropic-beta"
"""Stands for the features that a client asks for in Anthropic's header of this name."""
ROUTING = frozenset({"models", "route", "preset", "provider", "plugins"})
"""OpenRouter's other fields: openrouter.ai/docs/guides/routing (model fallbacks, provider selection), .../presets and
.../plugins.
"""

_HARMLESS: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "service_tier": (None, "auto", "default", "standard", "standard_only", "on_demand"),
        "serviceTier": (None, "", "unspecified", "standard"),
        "web_search_options": (None,),  # an empty object requests a search
        "speed": (None, "standard"),
        "inference_geo": (None, "global"),
        "billing_policy": (None, {"type": "billing_policy"}, {"type": "billing_policy", "bill_to": "self"}),
        "search_parameters": (None, {}, {"mode": "off"}),
    },
)
"""Values with the effect of an absent field; client libraries send them."""
_NOTHING: tuple[Any, ...] = (None, False, "", [], {})
"""The same for every other field."""
_CLIENT_TOOL = re.compile(
    r"function|custom|namespace|mcp|local_shell|apply_patch|computer.*|bash_.*|text_editor_.*|memory_.*|tool_search.*"
)
"""Types of tools that the client runs, or that cost only their tokens. The vendor runs every other one."""
_FREE_AT_GEMINI = frozenset({"functionDeclarations", "codeExecution", "urlContext", "computerUse", "mcpServers"})
"""Fields of a tool in Gemini's format that cost only their tokens (ai.google.dev/gemini-api/docs/pricing)."""
_NAMING = ("models", "fallbacks")
_DATE = r"-\d{4}-?\d{2}-?\d{2}"
_HARMLESS_BETAS = re.compile(
    rf"(?:adaptive-thinking|advanced-tool-use|cache-diagnosis|claude-code|compact|computer-use|context-1m"
    rf"|context-management|dev-full-thinking|effort|extended-cache-ttl|fast-mode|fine-grained-tool-streaming|inline-tools"
    rf"|interleaved-thinking|max-tokens-3-5-sonnet|mcp-client|message-batches|mid-conversation-[a-z-]+"
    rf"|model-context-window-exceeded|oauth|output-\d+k|pdfs|prompt-caching(?:-scope)?|redact-thinking"
    rf"|structured-outputs|task-budgets|thinking-[a-z-]+|token-counting|token-efficient-tools|tool-examples"
    rf"|tool-search-tool){_DATE}"
)
"""Anthropic's features (platform.claude.com/docs/en/api/beta-headers, and the type ``AnthropicBetaParam`` of its Python
library) that cost only tokens, and keep nothing at the provider that another client could read. Fast mode and the tools
that Anthropic runs need a field as well, which is checked; fast mode's header alone does nothing.
"""


def list_priced(body: Mapping[str, Any], fields: frozenset[str]) -> list[str]:
    """List the ``fields`` that ``body`` has with a priced value; a tool that the vendor runs is ``tools.TYPE``."""
    found = []
    for name in fields.intersection(body):
        if name == TOOLS:
            found += _list_hosted(body[TOOLS])
        elif body[name] not in _HARMLESS.get(name, _NOTHING):
            found.append(name)
    return sorted(found)


def list_betas(features: str) -> list[str]:
    """List the features in Anthropic's ``anthropic-beta`` header that are not known to be harmless."""
    names = [name for one in features.split(",") if (name := one.strip())]
    return [name for name in names if not _HARMLESS_BETAS.fullmatch(name)]


def _list_hosted(tools: object) -> list[str]:
    if not isinstance(tools, list):
        return []
    hosted = [
        f"{TOOLS}.{name}"
        for tool in tools
        if isinstance(tool, dict) and is_hosted_by_gemini(tool)
        for name in tool
        if name not in _FREE_AT_GEMINI
    ]
    kinds = [tool["type"] for tool in tools if isinstance(tool, dict) and "type" in tool]
    if kinds.count("function") == len(kinds):  # as usual
        return hosted
    return hosted + [f"{TOOLS}.{kind}" for kind in kinds if isinstance(kind, str) and not _CLIENT_TOOL.fullmatch(kind)]


def list_named_models(body: Mapping[str, Any], fields: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield the models that one of ``fields`` allows to answer instead, each with its place in ``body``.

    Raises ``InvalidRequest`` if one is no string and so cannot be checked.
    """
    for field in _NAMING:
        value = body.get(field) if field in fields else None
        if not value:
            continue
        for index, item in enumerate(value if isinstance(value, list) else [value]):
            model = item.get("model") if isinstance(item, dict) else item
            place = f"{field}[{index}]"
            if not isinstance(model, str) or not model:
                raise InvalidRequest(f"'{place}' must be the name of a model", param=place)
            yield model, place
