"""Find the input that a provider reads in addition to a body's text: files, URLs, stored resources, tool results.

Anything not known to be text, a setting or an inline image counts as unbounded. A list of known inputs would miss
future ones, and their prompts would be reserved and charged as a few bytes.
"""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.operation import OPERATIONS
from gateway.frozen import frozen
from gateway.wording import fold_name

Body = Mapping[str, Any]
_SETTING_FIELDS = frozenset(
    {"model", "metadata", "tool_choice", "function_call", "response_format", "text", "reasoning", "thinking",
     "stream_options", "stop", "stop_sequences", "logit_bias", "modalities", "audio", "output_config", "cache_control",
     "context_management", "generationConfig", "safetySettings", "toolConfig", "labels", "include", "user",
     "reasoning_effort", "service_tier", "serviceTier", "verbosity", "truncation", "prompt_cache_key",
     "prompt_cache_retention", "prompt_cache_options", "safety_identifier", "encoding_format", "inference_geo",
     "speed", "provider", "models", "route", "transforms", "usage", "fallbacks", "taskType", "input_type",
     "structured_outputs", "guided_json", "guided_choice", "guided_regex", "guided_grammar", "stop_token_ids",
     "bad_words", "response_modalities", "output_format", "rank_fields", "embedding_types", "truncate", "task",
     "prompt_name", "prompt_mode", "reasoning_format", "output_dtype", "client_metadata"}
)  # fmt: skip
"""Setting fields: a text, an array or an object in them never makes the provider read further input."""
PREVIOUS_ID_FIELD = "previous_response_id"
_LIST_FIELDS = frozenset({"tools", "functions", "documents", "prediction"})
"""Prompt fields that are measured only as lists or objects: as a string they count as unknown."""
_TEMPLATE_FIELD = "chat_template_kwargs"
"""A field with template switches (vLLM). A long text or a list in it is part of the prompt."""
_MAX_SHORT_CHARS = 64
_SEARCH_FIELD_PATTERN = re.compile(
    r"search|web|grounding|grounded|retriev|brows|knowledge|internet|online|citation|\brag\b", re.IGNORECASE
)
"""Names of fields that make a provider search before it answers: Perplexity, Alibaba's ``enable_search``, xAI."""
_OFF_VALUES: tuple[Any, ...] = (None, False, {"mode": "off"})
_SEARCHING_MODEL_PATTERN = re.compile(r"search|sonar|compound|research|agent|:online", re.IGNORECASE)
"""Names of models with built-in search: Perplexity's, Groq's compound, OpenRouter's ``:online``."""
_TEXT_FIELDS = frozenset(
    {"text", "content", "thinking", "refusal", "arguments", "output", "input", "prompt", "query", "suffix", "documents",
     "instructions", "reasoning", "reasoning_content", "reasoning_details", "signature", "thoughtSignature",
     "encrypted_content", "description", "context", "role", "type", "status", "detail", "phase", "code", "name",
     "title", "mime_type", "mimeType", "media_type", "format", "ttl", "filename", "language", "outcome", "system"}
)  # fmt: skip
"""Fields whose strings a provider reads only as text, even if they look like a URL."""
_BODY_ID_FIELDS = frozenset({"tool_call_id", "call_id", "tool_use_id", "id", "approval_request_id"})
"""Fields with ids of objects in the body. For ``id`` the other fields of its object decide (``_is_reference``)."""
_POINTER_FIELD_PATTERN = re.compile(r"(?:ids?|ur[il]s?|files?)\Z", re.IGNORECASE)
_ADDRESS_PATTERN = re.compile(r"\s*[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_DATA_URL_PATTERN = re.compile(r"data:([^;,]*)[;,]", re.IGNORECASE)
_DATA_FIELDS = frozenset({"data", "file_data", "image", "video", "bytes", "result", "b64_json", "audio"})
"""Fields with an image, a recording or a file in base64."""
_MEDIA_FIELD_PATTERN = re.compile(r"image|audio|video|document|pdf|media|frames|embeds\Z|recording", re.IGNORECASE)
"""Names that other servers use for fields with an image, a recording or a file."""
_HOLDER_FIELDS = frozenset({"prompt", "audio", "container", "conversation"})
"""Objects whose ``id`` always names a stored resource, whatever other fields they have."""
_TOOL_LIST_FIELDS = frozenset({"tools", "functions"})
_MEDIA_TYPE_FIELDS = ("media_type", "mime_type", "mimeType", "mediaType")
_CONTENT_FIELDS = ("content", "function", "arguments", "input", "output", "encrypted_content", "args", "response",
                   "result", "text", "call_id", "tools", "name")  # fmt: skip
"""Fields with the content of an object that has an ``id``. Without any of them the provider reads its stored copy."""
_GATEWAY_ID_PATTERN = re.compile(r"[a-z]{1,8}_[0-9a-f]{24}_[0-9]{1,6}", re.ASCII)
"""The id of an item that the gateway generated: no provider stores anything under it."""
_UNREAD_FIELDS = frozenset({"annotations", "citations", "logprobs", "cache_control", "metadata", "input_schema"})
_TOOL_FIELDS = frozenset(
    {"type", "name", "description", "parameters", "strict", "function", "input_schema", "cache_control",
     "defer_loading", "format", "custom", "functionDeclarations", "eager_input_streaming", "allowed_callers",
     "input_examples", "tools", "execution", "display_width", "display_height", "display_width_px", "display_height_px",
     "display_number", "environment", "enable_zoom", "max_characters"}
)  # fmt: skip
_CLIENT_TOOL_PATTERN = re.compile(
    r"function|custom|namespace|local_shell|apply_patch|computer.*|bash_.*|text_editor_.*|memory_.*|tool_search.*"
)
"""Types of tools that the client runs. The provider runs all other tools, and reads their results."""


@frozen
class ProviderReads:
    """The input that a provider reads in addition to a body's text.

    Attributes:
        unbounded: whether there is input whose length only the provider knows.
        tools: whether the provider runs tools, whose results it reads in further rounds.
        images: number of images in the body.
        earlier_tokens: known tokens of the continued response; 0 if unknown.
    """

    unbounded: bool = False
    tools: bool = False
    images: int = 0
    earlier_tokens: int = 0


NO_READS = ProviderReads()


@lru_cache(1_024)
def searches(model: str) -> bool:
    """Return whether a model has built-in search, judged by its name."""
    return _SEARCHING_MODEL_PATTERN.search(model) is not None


def find_reads(inference: InferenceRequest) -> ProviderReads:
    """Return what the provider reads for a validated request besides its text, or ``NO_READS``."""
    if inference.plain:
        return NO_READS
    body, prompt, earlier_tokens = inference.body, OPERATIONS[inference.operation].prompt, inference.earlier_tokens
    known_fields = prompt or _SETTING_FIELDS
    has_unknown = bool(prompt) and any(
        _is_unknown(name, value)
        for name, value in body.items()
        if (name not in known_fields or (isinstance(value, str) and name in _LIST_FIELDS))
        and not (earlier_tokens and name == PREVIOUS_ID_FIELD)
    )
    fields = prompt.intersection(body) if prompt else body.keys() - _SETTING_FIELDS
    scan = _PromptScan({name: body[name] for name in fields}, images_by_address=not prompt)
    tools = scan.tools or bool(body.get("prompt") and inference.operation == "responses")  # a template has tools
    tools = tools or any(
        value not in _OFF_VALUES and _SEARCH_FIELD_PATTERN.search(name) for name, value in body.items()
    )
    unbounded, images = has_unknown or scan.unbounded, scan.images + len(inference.files)
    return (
        ProviderReads(unbounded, tools, images, earlier_tokens)
        if unbounded or tools or images or earlier_tokens
        else NO_READS
    )


def _is_unknown(name: str, value: Any) -> bool:
    if name in _SETTING_FIELDS:
        return False
    if name == _TEMPLATE_FIELD and isinstance(value, dict):
        return any(isinstance(member, list | dict) or len(str(member)) > _MAX_SHORT_CHARS for member in value.values())
    if isinstance(value, int | float):
        return _is_numeric_pointer(name, value)
    return bool(value) and isinstance(value, str | list | dict) and value not in _OFF_VALUES


def _is_numeric_pointer(name: str, value: Any) -> bool:
    return type(value) is int and name not in _BODY_ID_FIELDS and _POINTER_FIELD_PATTERN.search(name) is not None


class _PromptScan:
    """Scans the prompt of a body, without recursion because a client decides how deeply it is nested.

    Args:
        images_by_address: whether an image URL counts as an image. If not, the input counts as unbounded.

    Attributes:
        unbounded, tools, images: as in ``ProviderReads``.
    """

    def __init__(self, prompt: Body, *, images_by_address: bool) -> None:
        self.unbounded = self.tools = False
        self.images = 0
        self._images_by_address = images_by_address
        pending: list[tuple[str, Any, bool]] = [("", prompt, False)]
        while pending and not (self.unbounded and self.tools):
            name, value, is_image = pending.pop()
            if isinstance(value, dict):
                if name in _HOLDER_FIELDS and _find_folded(value, "id"):
                    self.unbounded = True
                pending.extend(self._list_members(value, is_image=is_image or "image" in name))
            elif isinstance(value, list):
                if name in _TOOL_LIST_FIELDS or fold_name(name) in _TOOL_LIST_FIELDS:
                    self.tools = self.tools or not all(map(_is_client_tool, value))
                else:
                    pending.extend(
                        (name, item, is_image) for item in value if isinstance(item, str | int | list | dict)
                    )
            elif isinstance(value, int):
                self.unbounded = self.unbounded or _is_numeric_pointer(name, value)
            elif isinstance(value, str) and value and name not in _TEXT_FIELDS:
                self._scan_text(name, value, is_image=is_image or "image" in name)

    def _list_members(self, item: dict[str, Any], *, is_image: bool) -> Iterator[tuple[str, Any, bool]]:
        kind = item["type"] if "type" in item else _find_folded(item, "type")
        kind = kind.strip().casefold() if isinstance(kind, str) else ""
        self.tools = self.tools or kind == "mcp_approval_response"  # the provider then runs the tool
        item_id = item.get("id")
        if (
            isinstance(item_id, str)
            and item_id
            and _is_reference(item, kind)
            and _GATEWAY_ID_PATTERN.fullmatch(item_id) is None
        ):
            self.unbounded = True
        media_types = [item[name] for name in _MEDIA_TYPE_FIELDS if item.get(name)]
        is_image = (
            all(str(media_type).startswith("image/") for media_type in media_types)
            if media_types
            else is_image or "image" in kind
        )
        is_result, is_call = kind.endswith(("_result", "_citation")), kind.endswith("_call")
        has_name = isinstance(item.get("name"), str)
        for name, value in item.items():
            if name in _UNREAD_FIELDS or (is_call and name == "action") or (is_result and isinstance(value, str)):
                continue  # the provider does not fetch earlier search results again
            if isinstance(value, dict) and has_name and name in {"input", "args", "response", "arguments"}:
                continue  # the client's own data
            if kind != "text" or name != "data":
                yield name, value, is_image

    def _scan_text(self, name: str, value: str, *, is_image: bool) -> None:
        data_url, address = _DATA_URL_PATTERN.match(value), _ADDRESS_PATTERN.match(value)
        may_be_data = name in _DATA_FIELDS or (
            not self._images_by_address and _MEDIA_FIELD_PATTERN.search(name) is not None
        )
        if data_url is not None or (may_be_data and address is None and _POINTER_FIELD_PATTERN.search(name) is None):
            kind = data_url[1].lower() if data_url else ""
            if kind.startswith("image/") or (not kind and is_image):
                self.images += 1
            elif not kind.startswith("text/"):
                self.unbounded = True  # a PDF page or an hour of silence may have few bytes but many tokens
        elif address is not None or (name not in _BODY_ID_FIELDS and _POINTER_FIELD_PATTERN.search(name) is not None):
            if is_image and address is not None and self._images_by_address:
                self.images += 1
            else:
                self.unbounded = True


def _find_folded(item: dict[str, Any], folded_name: str) -> Any:
    return next((value for name, value in item.items() if name == folded_name or fold_name(name) == folded_name), None)


def _is_reference(item: dict[str, Any], kind: str) -> bool:
    """Return whether an object with an ``id`` references a stored resource instead of including its content.

    Source: OpenAI's OpenAPI document, ``ItemReferenceParam``, whose ``type`` is optional. OpenAI also looks up stored
    reasoning by its item id, and the speech of an earlier answer by ``audio.id``.
    """
    if kind == "item_reference" or (not kind and not any(item.get(name) for name in ("role", "function", "name"))):
        return True
    if kind == "reasoning":
        return not item.get("encrypted_content")
    return not any(item.get(name) for name in _CONTENT_FIELDS)


def _is_client_tool(tool: object) -> bool:
    """Return whether the client runs a tool: its type and all its fields are those of client tools."""
    if not isinstance(tool, dict):
        return False
    kind = tool.get("type", "function")
    if not isinstance(kind, str) or _CLIENT_TOOL_PATTERN.fullmatch(kind) is None:
        return False
    inner_tools = tool.get("tools")
    return all(name in _TOOL_FIELDS or value is None or value is False for name, value in tool.items()) and (
        inner_tools is None or (isinstance(inner_tools, list) and all(map(_is_client_tool, inner_tools)))
    )
