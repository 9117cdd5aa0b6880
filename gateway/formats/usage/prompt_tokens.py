"""Estimate the prompt tokens of a request, for providers that report no counts."""

from collections.abc import Callable, Iterator
from typing import Any

import attrs

from gateway.domain import exact_json
from gateway.domain.audio import count_audio_tokens
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.operation import OPERATIONS
from gateway.domain.token_estimate import estimate_text
from gateway.domain.usage import Usage

_PROMPT_FIELDS = (
    "messages", "system", "input", "instructions", "prompt", "suffix", "keywords", "query", "documents",
    "contents", "systemInstruction", "requests", "content", "title",
)  # fmt: skip
"""Body fields that contain the prompt, in any API format."""
_SCHEMA_FIELDS = ("tools", "functions", "response_format", "output_config", "text")
"""Fields that a provider writes into the prompt as JSON."""
_NON_TEXT_FIELDS = frozenset(
    {"type", "role", "id", "tool_call_id", "tool_use_id", "call_id", "cache_control", "media_type", "mimeType",
     "thoughtSignature", "taskType"},
)  # fmt: skip
"""Fields that describe a message or a part and have no prompt text."""
_IMAGE_FIELDS = frozenset({"image", "image_url", "input_image", "input_reference"})
_MEDIA_FIELDS = frozenset(
    {"url", "data", "file_data", "file_url", "file_id", "image_url", "image", "video", "result", "fileUri"}
)
"""Fields whose strings represent an image, a recording or a file: base64, a URL or an id."""
_CALL_DATA_FIELDS = frozenset({"args", "response"})
"""Fields of Gemini's function calls and results that hold the client's own data."""
_IMAGE_TOKENS = 1_000
"""Assumed tokens of an image: 1024x1024 has 765 at OpenAI ("Images and vision"), 1,400 at Anthropic ("Vision")."""
_BYTES_PER_TOKEN = 32
"""Base64 bytes per token of a recording or a document: a page of 1,500 tokens has about 40 KB."""


def estimate_prompt(inference: InferenceRequest) -> int:
    """Estimate the prompt tokens, including those of the continued response and of uploaded audio."""
    texts: list[str] = []
    media_tokens = 0
    for name in _PROMPT_FIELDS:
        value = inference.body.get(name)
        if value:
            media_tokens += sum(_find_texts(name, value, texts))
    schemas = (inference.body.get(name) for name in _SCHEMA_FIELDS)
    texts += [exact_json.dumps(schema).decode() for schema in schemas if schema and not isinstance(schema, str)]
    prompt_tokens = media_tokens + estimate_text("\n".join(texts))
    if OPERATIONS[inference.operation].known_unit == "search":  # the provider reads the query once per document
        repetitions = max(len(inference.body.get("documents") or ()) - 1, 0)
        prompt_tokens += estimate_text(str(inference.body.get("query"))) * repetitions
    prompt_tokens = min(prompt_tokens, inference.max_prompt_tokens) + inference.earlier_tokens
    return prompt_tokens + (count_audio_tokens(inference.sound_ms) if inference.files else 0)


def fill_counts(usage: Usage, inference: InferenceRequest, count_answer: Callable[[], int]) -> Usage:
    """Return the reported ``usage``, with estimates for counts that are 0, because some servers do not count.

    ``count_answer`` is called only if the completion has to be estimated. The source of a usage with an estimate is
    "estimate".
    """
    if usage.prompt_tokens and usage.completion_tokens:
        return usage
    prompt_tokens = usage.prompt_tokens or estimate_prompt(inference)
    completion_tokens = usage.completion_tokens or count_answer()
    if (prompt_tokens, completion_tokens) == (usage.prompt_tokens, usage.completion_tokens):
        return usage
    return attrs.evolve(usage, prompt_tokens=prompt_tokens, completion_tokens=completion_tokens, source="estimate")


def _is_image(media_type: object) -> bool:
    return isinstance(media_type, str) and media_type.startswith("image/")


def _find_texts(name: str, value: Any, texts: list[str]) -> Iterator[int]:
    """Append the texts that the model reads to ``texts``; yield the estimated tokens of media and token ids."""
    pending: list[tuple[str, Any, bool]] = [(name, value, False)]
    while pending:
        name, value, is_image = pending.pop()
        if isinstance(value, str):
            if name in _MEDIA_FIELDS or value.startswith("data:"):
                yield _IMAGE_TOKENS if is_image else _IMAGE_TOKENS + len(value) // _BYTES_PER_TOKEN
            elif name not in _NON_TEXT_FIELDS:
                texts.append(value)
        elif isinstance(value, dict) and name in _CALL_DATA_FIELDS:
            texts.append(exact_json.dumps(value).decode())
        elif isinstance(value, dict):
            is_image = (
                is_image
                or name in _IMAGE_FIELDS
                or str(value.get("type")) in _IMAGE_FIELDS
                or _is_image(value.get("mimeType"))
            )
            pending.extend((key, member, is_image) for key, member in value.items())
        elif isinstance(value, list):
            if value and type(value[0]) is int:  # a prompt given as token ids
                yield len(value)
            else:
                pending.extend((name, member, is_image) for member in value)
