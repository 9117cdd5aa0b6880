"""Request fields that change the price of a request, their harmless values, and the models that they name.

A configured price covers the tokens of one model. Faster service, a search or another model's answer costs a different
amount, which the gateway does not know. Such a field is therefore allowed only on channels that list it in
``allow_fields``. A vendor's own fields are in ``Provider.priced_fields``.

Tiers: developers.openai.com/api/docs/pricing, docs.x.ai/developers/advanced-api-usage/priority-processing,
docs.fireworks.ai/serverless/serverless-modes, console.groq.com/docs/service-tiers,
openrouter.ai/docs/guides/features/service-tiers, platform.claude.com/docs/en/api/service-tiers.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gateway.errors import InvalidRequest
from gateway.formats.wire.fields import PLAIN_NAMES, find_governed_field
from gateway.providers.hosted_tools import TOOLS
from gateway.wording import fold_name

COMMON_FIELDS = frozenset({"service_tier", "serviceTier", "web_search_options", TOOLS})
"""Priced fields of most vendors. ``tools`` represents the tools that the vendor executes and bills."""
BETA_HEADER = "anthropic-beta"
"""Represents the features that a client requests in Anthropic's header of this name."""
ROUTING_FIELDS = frozenset({"models", "route", "preset", "provider", "plugins"})
"""OpenRouter's own priced fields: openrouter.ai/docs/guides/routing (model fallbacks, provider selection), .../presets
and .../plugins.
"""

PRICED_FIELDS = COMMON_FIELDS | ROUTING_FIELDS | {
    BETA_HEADER, "billing_policy", "compound_custom", "enable_code_interpreter", "enable_search", "fallbacks",
    "inference_geo", "search_parameters", "search_settings", "speed", "web_search",
}  # fmt: skip
"""All vendors' priced fields: a request without any of them needs no further check."""

_FREE_VALUES: Mapping[str, tuple[Any, ...]] = {
    "service_tier": (None, "auto", "default", "standard", "standard_only", "on_demand"),
    "serviceTier": (None, "", "unspecified", "standard"),
    "web_search_options": (None,),  # an empty object requests a search
    "speed": (None, "standard"),
    "inference_geo": (None, "global"),
    "billing_policy": (None, {"type": "billing_policy"}, {"type": "billing_policy", "bill_to": "self"}),
    "search_parameters": (None, {}, {"mode": "off"}),
}
"""Values equivalent to an absent field, which some client libraries send."""
_EMPTY_VALUES: tuple[Any, ...] = (None, False, "", [], {})
"""Values equivalent to an absent field, for every field without an entry in ``_FREE_VALUES``."""
_CLIENT_TOOL_PATTERN = re.compile(
    r"function|custom|namespace|mcp|local_shell|apply_patch|computer.*|bash_.*|text_editor_.*|memory_.*|tool_search.*"
)
"""Types of tools that the client executes, or that cost only their tokens. The vendor executes all other types."""
_CLIENT_FIELDS = frozenset(
    {"_meta", "allowed_callers", "allowed_tools", "annotations", "authorization", "cache_control", "codeExecution",
     "computerUse", "connector_id", "custom", "defer_loading", "description", "display_height", "display_height_px",
     "display_number", "display_width", "display_width_px", "eager_input_streaming", "enable_zoom", "environment",
     "execution", "format", "function", "functionDeclarations", "headers", "id", "inputSchema", "input_examples",
     "input_schema", "max_characters", "mcpServers", "metadata", "name", "outputSchema", "output_schema", "parameters",
     "require_approval", "server_description", "server_label", "server_url", "strict", "title", "tools", "type",
     "urlContext"},
)  # fmt: skip
"""Fields of tools that the client executes, in all formats (OpenAI's OpenAPI document; Anthropic's page "Define tools";
``Tool`` of the Model Context Protocol), and of Gemini's tools that cost only their tokens
(ai.google.dev/gemini-api/docs/pricing). Any other field may declare one of the vendor's own tools, as at Gemini and
Zhipu.
"""
_ABSENT_VALUES = (None, False)
_EXTRA_BODY = "extrabody"
"""The folded name of ``extra_body``, which Python client libraries and LiteLLM's proxy merge into the body."""
_MODEL_FIELDS = ("models", "fallbacks")
_DATE_PATTERN = r"-\d{4}-?\d{2}-?\d{2}"
_HARMLESS_BETA_PATTERN = re.compile(
    rf"(?:adaptive-thinking|advanced-tool-use|cache-diagnosis|claude-code|compact|computer-use|context-1m"
    rf"|context-management|dev-full-thinking|effort|extended-cache-ttl|fast-mode|fine-grained-tool-streaming|inline-tools"
    rf"|interleaved-thinking|max-tokens-3-5-sonnet|mcp-client|message-batches|mid-conversation-[a-z-]+"
    rf"|model-context-window-exceeded|oauth|output-\d+k|pdfs|prompt-caching(?:-scope)?|redact-thinking"
    rf"|structured-outputs|task-budgets|thinking-[a-z-]+|token-counting|token-efficient-tools|tool-examples"
    rf"|tool-search-tool){_DATE_PATTERN}"
)
"""Anthropic's beta features that cost only tokens and store nothing at the provider that another client could read.

Sources: platform.claude.com/docs/en/api/beta-headers, and the type ``AnthropicBetaParam`` of its Python library. Fast
mode is listed because its header has no effect without a body field, which is checked. The same applies to the tools
that Anthropic executes.
"""


def list_priced_fields(body: Mapping[str, Any], fields: frozenset[str]) -> list[str]:
    """List those of ``fields`` with a priced value in ``body``; a tool that the vendor executes is ``tools.TYPE``.

    Raises ``InvalidRequest`` for an invalid tool, and for a misspelt ``tools`` in an item of ``input``.
    """
    names = _list_hosted_in_input(body.get("input")) if TOOLS in fields else []
    for name in fields.intersection(body):
        if name == TOOLS:
            names += _list_hosted(body[TOOLS])
        elif body[name] not in _FREE_VALUES.get(name, _EMPTY_VALUES):
            names.append(name)
    return sorted(names)


def list_betas(features: str) -> list[str]:
    """List the features in Anthropic's ``anthropic-beta`` header that are not known to be harmless."""
    names = [name for feature in features.split(",") if (name := feature.strip())]
    return [name for name in names if not _HARMLESS_BETA_PATTERN.fullmatch(name)]


def check_spelling(body: Mapping[str, Any], priced_names: Mapping[str, str]) -> None:
    """Raise ``InvalidRequest`` for a misspelt field that a tolerant server would read as a priced one.

    ``priced_names`` maps folded names to the priced fields. In ``extra_body``, which proxies merge into the body, these
    fields and those in ``GOVERNED_NAMES`` are rejected in every spelling, because values are not checked there.
    """
    for name, value in body.items():
        folded_name = fold_name(name)
        if folded_name in priced_names and name not in priced_names.values():
            raise InvalidRequest(f"Unknown field {name!r}; did you mean '{priced_names[folded_name]}'?", param=name)
        if folded_name == _EXTRA_BODY and isinstance(value, dict):
            for inner in value:
                if (
                    fold_name(inner) in priced_names
                    or find_governed_field(inner) is not None
                    or fold_name(inner) == _EXTRA_BODY
                ):
                    path = f"{name}.{inner}"
                    raise InvalidRequest(f"'{path}' must be a field of the body itself", param=path)


def _list_hosted(tools: object, param: str = TOOLS) -> list[str]:
    """List the tools that the vendor executes, as ``tools.TYPE``, or ``tools.FIELD`` if a field declares the tool.

    Raises ``InvalidRequest`` for an invalid tool.
    """
    names: list[str] = []
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        if not isinstance(tool, dict):
            raise InvalidRequest(f"'{param}[{index}]' must be an object", param=f"{param}[{index}]")
        kind = tool.get("type")
        if kind is not None and not isinstance(kind, str):
            raise InvalidRequest(f"'{param}[{index}].type' must be a string", param=f"{param}[{index}].type")
        if kind and not _CLIENT_TOOL_PATTERN.fullmatch(kind) and not _is_local(tool):
            names.append(f"{TOOLS}.{kind}")
            continue
        if not tool.keys() <= _CLIENT_FIELDS:
            names += [
                f"{TOOLS}.{name}" for name in tool if name not in _CLIENT_FIELDS and tool[name] not in _ABSENT_VALUES
            ]
        if TOOLS in tool:
            names += _list_hosted(tool[TOOLS], f"{param}[{index}].{TOOLS}")
    return names


def _is_local(tool: dict[str, Any]) -> bool:
    environment = tool.get("environment")
    return tool["type"] == "shell" and isinstance(environment, dict) and environment.get("type") == "local"


def _list_hosted_in_input(items: object) -> list[str]:
    names: list[str] = []
    for index, item in enumerate(items if isinstance(items, list) else ()):
        for name in item if isinstance(item, dict) else ():
            if name == TOOLS:
                names += _list_hosted(item[TOOLS], f"input[{index}].{TOOLS}")
            elif name not in PLAIN_NAMES and fold_name(name) == TOOLS:
                raise InvalidRequest(f"Unknown field {name!r}; did you mean '{TOOLS}'?", param=f"input[{index}].{name}")
    return names


def list_named_models(body: Mapping[str, Any], fields: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield each alternative model named by one of ``fields``, with its place in ``body``.

    Raises ``InvalidRequest`` if a model is not a non-empty string, since access to it could not be checked.
    """
    for field in _MODEL_FIELDS:
        value = body.get(field) if field in fields else None
        if not value:
            continue
        for index, item in enumerate(value if isinstance(value, list) else [value]):
            model = item.get("model") if isinstance(item, dict) else item
            path = f"{field}[{index}]"
            if not isinstance(model, str) or not model:
                raise InvalidRequest(f"'{path}' must be the name of a model", param=path)
            yield model, path
