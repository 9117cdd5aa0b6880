"""What a call can have used at the most: no provider's count beyond it is charged.

The bounds are told from the body alone, and are generous: a provider may put its own words before a prompt, count an
image as many tokens, and think beyond ``max_tokens``. What it reads by itself (a file that it keeps, an address, an
earlier answer, what its tools find) has no bound but the longest context there is.
"""

import re
from typing import Any

import attrs

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import Usage

MAX_CONTEXT_TOKENS = 10_000_000
"""The longest context window that a provider documents: Llama 4 Scout's."""
MAX_ANSWER_TOKENS = 262_144
"""No provider documents a longer answer, nor more thinking before it; most end at half of that or less."""
ADDED_TOKENS = 32_768
"""What a provider may put around a prompt: a system prompt of its own, descriptions of tools."""
MEDIA_TOKENS = 65_536
"""The most that an image has anywhere: GPT-4o mini counts up to 48,169 for one ("Images and vision")."""
_BYTES_TOKENS = 2
"""Tokens of a byte of base64, at the most: a page of a PDF is read as text and as an image."""
_OVERSHOOT = 16
"""Tokens by which an answer may pass its limit: the mark of its end, and what belongs together."""
_LONGEST = ("max_completion_tokens", "max_output_tokens", "max_tokens")
_AGENTS = re.compile(r"search|sonar|compound|research|agent|:online", re.IGNORECASE)
"""Models that go and read for themselves, without being told to: Perplexity's, Groq's compound, OpenRouter's
``:online``."""
_READS = ("previous_response_id", "conversation", "web_search_options", "plugins", "search_parameters", "mcp_servers")
_OWN_TOOLS = frozenset({None, "function", "custom"})
_MEDIA = frozenset(
    {"url", "data", "file_data", "file_url", "file_id", "image_url", "image", "video", "document_url", "uri", "fileUri"}
)
_IMAGES = frozenset({"image", "image_url", "input_image", "input_reference"})
_WEB = ("http://", "https://", "gs://", "s3://")
_OF_CALLER = frozenset({"metadata", "tools", "functions"})
"""Fields that say nothing to be read: an address in them is a word."""
_TOOL_CALLS = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})


def limit_usage(usage: Usage, call: InferenceRequest, model: str) -> Usage:
    """``usage`` as its provider reports it, if that can be; else as far as it can, and its source says so.

    ``model``: the provider's own name of it.
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


def _limit_prompt(said: int, call: InferenceRequest, model: str) -> int:
    if _reads_more(call.body) or _AGENTS.search(model) or _AGENTS.search(call.model):
        return min(said, MAX_CONTEXT_TOKENS)
    media = _measure_media(call.body)
    if media is None:
        return min(said, MAX_CONTEXT_TOKENS)
    told = call.max_prompt_tokens * call.choices
    media += MEDIA_TOKENS * len(call.files) * call.choices
    return said if said <= 2 * told + media + ADDED_TOKENS else told


def _limit_completion(usage: Usage, call: InferenceRequest) -> int:
    said = usage.completion_tokens
    if call.operation not in {"chat", "messages", "responses", "completions"}:
        told = call.max_output_tokens * call.choices
        return said if said <= 4 * told + _OVERSHOOT * call.choices else told
    asked = [value for name in _LONGEST if type(value := call.body.get(name)) is int]
    tries = max(call.choices, call.choices * (call.body.get("best_of") or 1))
    longest = max(asked) if asked else MAX_ANSWER_TOKENS * (4 if _reads_more(call.body) else 1)
    thought = usage.reasoning_tokens if asked else 0
    thinking = call.body.get("thinking")
    budget = thinking.get("budget_tokens") if isinstance(thinking, dict) else None
    told = longest * tries + min(thought, MAX_ANSWER_TOKENS * tries) + (budget if type(budget) is int else 0)
    return said if said <= told + _OVERSHOOT * tries else told


def _reads_more(body: dict[str, Any]) -> bool:
    """Whether a provider reads what is not in the body."""
    if any(body.get(name) for name in _READS) or isinstance(body.get("prompt"), dict):
        return True
    tools = body.get("tools")
    return isinstance(tools, list) and any(
        not isinstance(tool, dict) or tool.get("type") not in _OWN_TOOLS for tool in tools
    )


def _measure_media(body: dict[str, Any]) -> int | None:
    """Tokens that the images, recordings and files in a body may have besides its text; None: nobody can say."""
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
            if kind not in _TOOL_CALLS:
                image = image or name in _IMAGES or kind in _IMAGES
                rest.extend((key, item, image) for key, item in value.items())
        elif isinstance(value, list):
            rest.extend((name, item, image) for item in value)
        elif isinstance(value, str) and name in _MEDIA:
            image = image or name in _IMAGES
            # An image by its address is one; a document by its address may be of any length.
            if name in {"file_id", "file_url", "video"} or (not image and value[:8].lower().startswith(_WEB)):
                return None
            tokens += MEDIA_TOKENS + _BYTES_TOKENS * len(value)
    return tokens
