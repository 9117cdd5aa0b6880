"""Upper bounds of a request's usage: no provider's count beyond them is charged.

The bounds come from the body alone and are generous: a provider may add its own text to a prompt, count an image as
many tokens, and think beyond ``max_tokens``. What it reads by itself (a file that it stores, an address, an earlier
answer, search results) is bounded only by the longest context window.
"""

import re
from typing import Any

import attrs

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import Usage

MAX_CONTEXT_TOKENS = 10_000_000
"""The longest context window that a provider documents: Llama 4 Scout's."""
MAX_ANSWER_TOKENS = 262_144
"""No provider documents a longer answer or more thinking; most allow half of that or less."""
ADDED_TOKENS = 32_768
"""Tokens that a provider may add to a prompt: its own system prompt, descriptions of tools."""
MEDIA_TOKENS = 65_536
"""The most tokens of an image at any provider: GPT-4o mini counts up to 48,169 ("Images and vision")."""
_BYTES_TOKENS = 2
"""The most tokens per byte of base64: a page of a PDF is read as text and as an image."""
_OVERSHOOT = 16
"""Tokens by which an answer may exceed its limit: the end mark, and tokens that cannot be split."""
_LONGEST = ("max_completion_tokens", "max_output_tokens", "max_tokens", "maxOutputTokens")
_AGENTS = re.compile(r"search|sonar|compound|research|agent|:online", re.IGNORECASE)
"""Models that search by themselves: Perplexity's, Groq's compound, OpenRouter's ``:online``."""
_READS = ("previous_response_id", "conversation", "web_search_options", "plugins", "search_parameters", "mcp_servers",
          "cachedContent")  # fmt: skip
_OWN_TOOLS = frozenset({None, "function", "custom"})
_TOOL_NAMES = frozenset({"type", "name", "function"})
"""Fields of which a tool has one, except in Gemini's format."""
_MEDIA = frozenset(
    {"url", "data", "file_data", "file_url", "file_id", "image_url", "image", "video", "document_url", "uri", "fileUri"}
)
_IMAGES = frozenset({"image", "image_url", "input_image", "input_reference"})
_WEB = ("http://", "https://", "gs://", "s3://")
_OF_CALLER = frozenset({"metadata", "tools", "functions"})
"""Fields whose addresses are not fetched."""
_TOOL_CALLS = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
_CALL_DATA = frozenset({"args", "response"})
"""Fields of Gemini's function calls and their results with the client's own data."""


def limit_usage(usage: Usage, call: InferenceRequest, model: str) -> Usage:
    """Return the reported ``usage`` if it is possible; else cap it, with the source ``bound``.

    ``model``: the provider's name of the model.
    """
    prompt, completion = usage.prompt_tokens, usage.completion_tokens
    if prompt > call.max_prompt_tokens * call.choices:
        prompt = _limit_prompt(prompt, call, model)
    if completion > call.max_output_tokens * call.choices:
        completion = _limit_completion(usage, call)
    if (prompt, completion) == (usage.prompt_tokens, usage.completion_tokens):
        return usage
    cached = min(usage.cached_tokens, prompt)
    written = min(usage.written_tokens, prompt - cached)
    return attrs.evolve(
        usage,
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=cached,
        written_tokens=written,
        written_long_tokens=min(usage.written_long_tokens, written),
        source="bound",
    )


def _limit_prompt(reported: int, call: InferenceRequest, model: str) -> int:
    if _reads_more(call.body) or _AGENTS.search(model) or _AGENTS.search(call.model):
        return min(reported, MAX_CONTEXT_TOKENS)
    media = _measure_media(call.body)
    if media is None:
        return min(reported, MAX_CONTEXT_TOKENS)
    bound = call.max_prompt_tokens * call.choices
    media += MEDIA_TOKENS * len(call.files) * call.choices
    return reported if reported <= 2 * bound + media + ADDED_TOKENS else bound


def _limit_completion(usage: Usage, call: InferenceRequest) -> int:
    reported = usage.completion_tokens
    if call.operation not in {"chat", "messages", "generate_content", "responses", "completions"}:
        bound = call.max_output_tokens * call.choices
        return reported if reported <= 4 * bound + _OVERSHOOT * call.choices else bound
    settings = call.settings
    asked = [value for name in _LONGEST if type(value := settings.get(name)) is int]
    tries = max(call.choices, call.choices * (call.body.get("best_of") or 1))
    longest = max(asked) if asked else MAX_ANSWER_TOKENS * (4 if _reads_more(call.body) else 1)
    thought = usage.reasoning_tokens if asked else 0
    thinking = call.body.get("thinking")
    budget = thinking.get("budget_tokens") if isinstance(thinking, dict) else None
    bound = longest * tries + min(thought, MAX_ANSWER_TOKENS * tries) + (budget if type(budget) is int else 0)
    return reported if reported <= bound + _OVERSHOOT * tries else bound


def _reads_more(body: dict[str, Any]) -> bool:
    """Return whether a provider reads anything that is not in the body."""
    if any(body.get(name) for name in _READS) or isinstance(body.get("prompt"), dict):
        return True
    tools = body.get("tools")
    return isinstance(tools, list) and any(
        not isinstance(tool, dict) or tool.get("type") not in _OWN_TOOLS or is_hosted_by_gemini(tool) for tool in tools
    )


def is_hosted_by_gemini(tool: dict[str, Any]) -> bool:
    """Return whether a tool of Gemini's format has more than functions of the client."""
    return _TOOL_NAMES.isdisjoint(tool) and any(name != "functionDeclarations" for name in tool)


def _measure_media(body: dict[str, Any]) -> int | None:
    """Return the tokens that images, recordings and files in a body may add to its text; None if they have no bound."""
    tokens = 0
    rest: list[tuple[str, Any, bool]] = [
        (name, value, name in _IMAGES)
        for name, value in body.items()
        if isinstance(value, list | dict) and name not in _OF_CALLER
    ]
    while rest:
        name, value, image = rest.pop()
        if isinstance(value, dict):
            kind = str(value.get("type"))
            if kind not in _TOOL_CALLS and name not in _CALL_DATA:
                image = image or name in _IMAGES or kind in _IMAGES
                rest.extend((key, item, image) for key, item in value.items())
        elif isinstance(value, list):
            rest.extend((name, item, image) for item in value)
        elif isinstance(value, str) and name in _MEDIA:
            image = image or name in _IMAGES
            # An address of an image is one image; a document at an address may have any length.
            if name in {"file_id", "file_url", "fileUri", "video"} or (
                not image and value[:8].lower().startswith(_WEB)
            ):
                return None
            tokens += MEDIA_TOKENS + _BYTES_TOKENS * len(value)
    return tokens
