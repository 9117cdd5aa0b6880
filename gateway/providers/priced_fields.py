"""Fields of a request that change what is bought: which are not harmless, and what they name.

A price is for the tokens of one model. Faster service, a search, or an answer of another model has a price of its own,
which nobody has told the gateway: such a field is let through only on a channel whose ``allow_fields`` names it. Which
fields a vendor knows is in the vendor's own file (``Provider.priced_fields``).

Tiers: developers.openai.com/api/docs/pricing, docs.x.ai/developers/advanced-api-usage/priority-processing,
docs.fireworks.ai/serverless/serverless-modes, console.groq.com/docs/service-tiers,
openrouter.ai/docs/guides/features/service-tiers, platform.claude.com/docs/en/api/service-tiers. Searches:
``web_search_options`` of the convention's OpenAPI document, and the tools that vendors run themselves.
"""

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from gateway.errors import InvalidRequest

TOOLS = "tools"
EVERYWHERE = frozenset({"service_tier", "web_search_options", TOOLS})
"""What vendors have in common. With ``tools`` those are meant that the vendor runs, and bills, itself."""
ROUTING = frozenset({"models", "route", "preset", "provider", "plugins"})
"""What OpenRouter knows beside it: openrouter.ai/docs/guides/routing (model fallbacks, provider selection), .../presets
and .../plugins."""

_HARMLESS: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "service_tier": (None, "auto", "default", "standard", "standard_only", "on_demand"),
        "web_search_options": (None,),  # an empty object asks for a search
        "speed": (None, "standard"),
        "inference_geo": (None, "global"),
        "search_parameters": (None, {}, {"mode": "off"}),
    },
)
"""Values that buy what is bought without the field; client libraries send them."""
_NOTHING: tuple[Any, ...] = (None, False, "", [], {})
"""The same for every other field."""
_CALLERS_TOOL = re.compile(
    r"function|custom|namespace|mcp|local_shell|apply_patch|computer.*|bash_.*|text_editor_.*|memory_.*|tool_search.*"
)
"""Types of tools that the caller runs, or that cost nothing but their tokens. Every other one is the vendor's own."""
_NAMING = ("models", "fallbacks")


def list_priced(body: Mapping[str, Any], fields: frozenset[str]) -> list[str]:
    """Those of ``fields`` that ``body`` has, unless harmless; a tool that the vendor runs is ``tools.TYPE``."""
    found = []
    for name in fields.intersection(body):
        if name == TOOLS:
            found += _list_hosted(body[TOOLS])
        elif body[name] not in _HARMLESS.get(name, _NOTHING):
            found.append(name)
    return sorted(found)


def _list_hosted(tools: object) -> list[str]:
    if not isinstance(tools, list):
        return []
    kinds = [tool["type"] for tool in tools if isinstance(tool, dict) and "type" in tool]
    if kinds.count("function") == len(kinds):  # as usual
        return []
    return [f"{TOOLS}.{kind}" for kind in kinds if isinstance(kind, str) and not _CALLERS_TOOL.fullmatch(kind)]


def list_named_models(body: Mapping[str, Any], fields: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Models by which one of ``fields`` lets the vendor answer instead, each with its place in ``body``.

    Raises ``InvalidRequest`` if one cannot be read: what cannot be read cannot be checked.
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
