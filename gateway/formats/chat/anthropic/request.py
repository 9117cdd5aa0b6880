"""Validate Messages requests and token counts in Anthropic's format; compute an upper bound of the prompt's tokens.

Unknown fields and blocks pass: a provider of the same format may know them.
"""

from typing import Any

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import MAX_TOKENS
from gateway.errors import InvalidRequest
from gateway.formats.usage.token_bounds import MAX_RESERVED_OUTPUT, MESSAGE_TOKENS, PART_TOKENS, bound_json, bound_text
from gateway.formats.wire.fields import (
    Body,
    make_missing_error,
    name_json_type,
    parse_flag,
    parse_integer,
    parse_list,
    parse_model,
    parse_number,
    parse_object,
)

PAGE_TOKENS = 3_000
"""Assumed tokens of a PDF page. "PDF support" documents 1,500 to 3,000 text tokens per page."""
PAGE_BYTES = 32_768
"""Assumed size of a PDF page, at the low end: office documents have 30 to 100 KB per page. The page count is unknown
without parsing. Documents with smaller pages can exceed the bound; the excess is an overrun.
"""
MAX_PAGES = 600
"""Maximum number of PDF pages that the API accepts in one request."""
REMOTE_DOCUMENT_TOKENS = 10 * PAGE_TOKENS
"""Assumed tokens of a document that is not in the body: ten pages, because its size is unknown."""
TOOLS_TOKENS = 1_000
"""Upper bound of the tokens of the system prompt that the provider adds for tools ("Tool use": some hundreds)."""
_MAX_AFFINITY_CHARS = 256
_MESSAGE_ROLES = frozenset({"user", "assistant", "system"})
_NON_PROMPT_FIELDS = frozenset(
    {"messages", "system", "metadata", "stop_sequences", "thinking", "cache_control", "tool_choice"}
)
"""Body fields with lists or objects that are not part of the prompt, or are counted separately."""
_OBJECT_FIELDS = ("tool_choice", "thinking", "output_config", "cache_control")

Size = tuple[int, int]
"""Number of text characters, and an upper bound of the tokens."""


def parse_messages_inference(body: Body, features: str | None = None) -> InferenceRequest:
    """Validate a body for ``/v1/messages`` and return the request. Raises ``InvalidRequest`` naming the field.

    ``max_tokens`` may be 0, which fills the provider's cache. ``features`` is the client's ``anthropic-beta`` header.
    """
    model = parse_model(body)
    max_tokens = _check_body(body)
    if max_tokens is None:
        raise make_missing_error(body, "max_tokens")
    chars, tokens = _measure_prompt(body)
    return InferenceRequest(
        operation="messages",
        model=model,
        body=body,
        stream=parse_flag(body, "stream"),
        include_usage=True,
        prompt_chars=chars,
        max_prompt_tokens=tokens,
        max_output_tokens=min(max_tokens, MAX_RESERVED_OUTPUT),
        max_cache_write_tokens=tokens if _writes_cache(body) else 0,
        affinity_key=_parse_affinity_key(body),
        features=features,
    )


def parse_count_inference(body: Body, features: str | None = None) -> InferenceRequest:
    """Validate a body for ``/v1/messages/count_tokens`` and return the request. Raises ``InvalidRequest``."""
    model = parse_model(body)
    _check_body(body)
    chars, _ = _measure_prompt(body)
    return InferenceRequest(
        operation="count_tokens",
        model=model,
        body=body,
        include_usage=True,
        prompt_chars=chars,
        affinity_key=_parse_affinity_key(body),
        features=features,
    )


def _check_body(body: Body) -> int | None:
    """Check the fields that messages and token counts share. Raises ``InvalidRequest`` naming the field.

    Returns ``max_tokens``; None if the body has none.
    """
    _check_messages(body)
    _check_system(body.get("system"))
    parse_number(body, "temperature", 0.0, 1.0)
    parse_number(body, "top_p", 0.0, 1.0)
    parse_integer(body, "top_k", 0, MAX_TOKENS)
    for index, sequence in enumerate(parse_list(body, "stop_sequences") or ()):
        if not isinstance(sequence, str):
            param = f"stop_sequences[{index}]"
            raise InvalidRequest(f"'{param}' must be a string, not {name_json_type(sequence)}", param=param)
    for index, tool in enumerate(parse_list(body, "tools") or ()):
        if not isinstance(tool, dict):
            raise InvalidRequest(
                f"'tools[{index}]' must be an object, not {name_json_type(tool)}", param=f"tools[{index}]"
            )
    for name in _OBJECT_FIELDS:
        parse_object(body, name)
    return parse_integer(body, "max_tokens", 0, MAX_TOKENS)


def _check_messages(body: Body) -> None:
    messages = parse_list(body, "messages")
    if not messages:
        raise make_missing_error(body, "messages", "at least one message")
    for index, message in enumerate(messages):
        param = f"messages[{index}]"
        if not isinstance(message, dict):
            raise InvalidRequest(f"'{param}' must be an object, not {name_json_type(message)}", param=param)
        role = message.get("role")
        if not isinstance(role, str) or role not in _MESSAGE_ROLES:
            raise InvalidRequest(
                f"'{param}.role' must be one of {', '.join(sorted(_MESSAGE_ROLES))}", param=f"{param}.role"
            )
        _check_content(message.get("content"), f"{param}.content")


def _check_system(system: object) -> None:
    if system is None:
        return
    _check_content(system, "system")
    if not isinstance(system, list):
        return
    for index, block in enumerate(system):
        if block["type"] != "text":
            param = f"system[{index}].type"
            raise InvalidRequest(f"'{param}' must be 'text'", param=param)


def _check_content(content: object, param: str) -> None:
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        raise InvalidRequest(
            f"'{param}' must be a string or an array of blocks, not {name_json_type(content)}", param=param
        )
    for index, block in enumerate(content):
        block_param = f"{param}[{index}]"
        if not isinstance(block, dict):
            raise InvalidRequest(f"'{block_param}' must be an object, not {name_json_type(block)}", param=block_param)
        kind = block.get("type")
        if not isinstance(kind, str):
            raise InvalidRequest(
                f"'{block_param}.type' must be a string, not {name_json_type(kind)}", param=f"{block_param}.type"
            )
        if kind == "text" and not isinstance(block.get("text"), str):
            raise InvalidRequest(
                f"'{block_param}.text' must be a string, not {name_json_type(block.get('text'))}",
                param=f"{block_param}.text",
            )


def _parse_affinity_key(body: Body) -> str | None:
    user = (parse_object(body, "metadata") or {}).get("user_id")
    return user if isinstance(user, str) and 0 < len(user) <= _MAX_AFFINITY_CHARS else None


def _measure_prompt(body: Body) -> Size:
    chars, tokens = _measure_content(body.get("system") or "")
    tokens += MESSAGE_TOKENS
    for message in body["messages"]:
        message_chars, message_tokens = _measure_content(message["content"])
        chars += message_chars
        tokens += MESSAGE_TOKENS + message_tokens
    for name, value in body.items():
        if value and isinstance(value, list | dict) and name not in _NON_PROMPT_FIELDS:
            tokens += bound_json(value)
    return chars, tokens + (TOOLS_TOKENS if body.get("tools") else 0)


def _measure_content(content: Any) -> Size:
    if isinstance(content, str):
        return len(content), bound_text(content)
    if not isinstance(content, list):
        return 0, bound_json(content)
    sizes = [_measure_block(block) for block in content]
    return sum(chars for chars, _ in sizes), sum(tokens for _, tokens in sizes)


def _measure_block(block: Any) -> Size:
    kind = block.get("type") if isinstance(block, dict) else None
    match kind:
        case "text" | "thinking":
            return _measure_content(block.get(kind))
        case "image":
            return 0, PART_TOKENS
        case "document":
            return measure_document(block)
        case "tool_result":
            chars, tokens = _measure_content(block.get("content") or "")
            return chars, tokens + MESSAGE_TOKENS
        case _:
            return 0, bound_json(block)


def measure_document(block: Body) -> Size:
    """Return the size of a document block, whose content need not be valid."""
    heading_tokens = sum(bound_text(text) for name in ("title", "context") if isinstance(text := block.get(name), str))
    source: Any = block.get("source")
    if not isinstance(source, dict):
        return 0, REMOTE_DOCUMENT_TOKENS + heading_tokens
    kind, data = source.get("type"), source.get("data")
    if kind == "content":
        chars, tokens = _measure_content(source.get("content"))
        return chars, tokens + heading_tokens
    if kind == "text" and isinstance(data, str):
        return len(data), bound_text(data) + heading_tokens
    if kind == "base64" and isinstance(data, str):
        page_count = 1 + len(data) * 3 // 4 // PAGE_BYTES
        return 0, min(page_count, MAX_PAGES) * PAGE_TOKENS + heading_tokens
    return 0, REMOTE_DOCUMENT_TOKENS + heading_tokens


def _writes_cache(body: Body) -> bool:
    contents = [message["content"] for message in body["messages"]]
    return bool(body.get("cache_control")) or any(
        map(_has_cache_control, (body.get("system"), body.get("tools"), *contents))
    )


def _has_cache_control(blocks: object) -> bool:
    if not isinstance(blocks, list):
        return False
    return any(
        isinstance(block, dict) and bool(block.get("cache_control") or _has_cache_control(block.get("content")))
        for block in blocks
    )
