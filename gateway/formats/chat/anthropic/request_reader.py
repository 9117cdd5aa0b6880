"""Parse a validated Messages body (``MessageCreateParams``) into the common chat model.

``tests/formats/chat/test_request_fields.py`` has the rules as a table:

- Rejected, naming the field: features of this turn that only Anthropic has. Among them are a file, a conversation or a
  summary stored there, a forced call of a server tool, faster service, another inference region or another payer.
- Dropped: a server tool that is only offered, and options that a valid answer does not need: ``cache_control`` of the
  whole body, ``citations``, ``context_management`` (it only shortens the prompt), ``diagnostics``, ``fallbacks`` and
  ``fallback_credit_token`` (they only matter if Claude declines).
- Written as text: blocks of the history that other formats lack (see ``adaptations.py``).
"""

from collections.abc import Sequence
from typing import Any, cast, get_args

from gateway.domain import exact_json
from gateway.domain.usage import parse_count
from gateway.errors import InvalidRequest
from gateway.formats.chat import model as chat
from gateway.formats.chat.adaptations import Adaptations, check_choice
from gateway.formats.chat.anthropic.billing_line import BILLING_LINE
from gateway.formats.chat.anthropic.request_tools import (
    describe_tool,
    find_cache_control,
    find_text,
    get_text,
    parse_tools,
)
from gateway.formats.chat.openai.content_parts import parse_address
from gateway.formats.wire.fields import Body, name_json_type

_EFFORTS = frozenset(get_args(chat.Effort))
_TOOL_CHOICES: dict[str, chat.ToolChoice] = {"auto": "auto", "any": "required", "none": "none"}
_DISABLED_TYPES = frozenset({"disabled", "between_tools"})
_ANTHROPIC_FIELDS = ("thread", "compaction")
"""Top-level fields for state that only Anthropic keeps; rejected."""
_DROPPED_FIELDS = ("mcp_servers", "container")
"""Top-level fields that only serve server tools; dropped like these tools."""
_STANDARD_VALUES: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("service_tier", (None, "auto", "standard_only")),
    ("speed", (None, "standard")),
    ("inference_geo", (None, "global")),
    ("billing_policy", (None, {"type": "billing_policy"}, {"type": "billing_policy", "bill_to": "self"})),
)
"""Fields for the service tier, speed, region and payer, with their default values; all other values are rejected."""
_MEDIA_BLOCK_TYPES = frozenset({"image", "document"})
_Content = chat.TextPart | chat.MediaPart
_ROLES_BY_BLOCK_TYPE = {
    "tool_use": "assistant",
    "thinking": "assistant",
    "redacted_thinking": "assistant",
    "tool_result": "user",
}


def parse_chat_request(body: Body) -> chat.ChatRequest:
    """Parse a validated body. Raises ``InvalidRequest`` naming a field that is invalid or that other formats lack.

    Adaptive thinking without an effort is dropped: it leaves the decision to the model, like a missing field.
    """
    for name in _ANTHROPIC_FIELDS:
        if body.get(name):
            raise _make_anthropic_only_error(name, f"'{name}'")
    adaptations = Adaptations({name: None for name in _DROPPED_FIELDS if body.get(name)})
    for name, standard_values in _STANDARD_VALUES:
        if body.get(name) not in standard_values:
            raise _make_anthropic_only_error(name, f"This '{name}'")
    if body.get("max_tokens") == 0:
        raise _make_anthropic_only_error("max_tokens", "'max_tokens' of 0")
    messages = _parse_messages(body, adaptations)
    tools = parse_tools(body, adaptations)
    choice, parallel = _parse_tool_choice(body.get("tool_choice") or {})
    choice = check_choice(choice, tools, adaptations)
    thinking_tokens, effort = _parse_thinking(body)
    return chat.ChatRequest(
        messages=messages,
        max_tokens=body.get("max_tokens"),
        temperature=body.get("temperature"),
        top_p=body.get("top_p"),
        top_k=body.get("top_k"),
        stop=tuple(body.get("stop_sequences") or ()),
        tools=tools,
        tool_choice=choice,
        parallel_tools=parallel,
        format=_parse_format(body),
        thinking_tokens=thinking_tokens,
        effort=effort,
        user=find_text(body.get("metadata") or {}, "user_id"),
        adapted=tuple(adaptations.names),
    )


def _make_anthropic_only_error(param: str, subject: str) -> InvalidRequest:
    return InvalidRequest(f"{subject} only works with a channel that speaks Anthropic's own language", param=param)


def _parse_messages(body: Body, adaptations: Adaptations) -> tuple[chat.Message, ...]:
    messages = []
    if body.get("system"):
        messages.append(_parse_message(body["system"], "system", "system", adaptations))
    body_messages = body["messages"]
    last_answer_index = max(
        (index for index, message in enumerate(body_messages) if message["role"] == "assistant"), default=-1
    )
    for index, message in enumerate(body_messages):
        adaptations.is_past = index <= last_answer_index
        param = f"messages[{index}].content"
        messages.append(_parse_message(message["content"], message["role"], param, adaptations))
    return tuple(message for message in messages if message is not None)


def _parse_message(content: Any, role: Any, param: str, adaptations: Adaptations) -> chat.Message | None:
    if isinstance(content, str):
        return chat.Message(role, (chat.TextPart(content),))
    parts = [
        part
        for index, block in enumerate(content)
        for part in _parse_block(block, role, f"{param}[{index}]", adaptations)
    ]
    return chat.Message(role, tuple(parts)) if parts or not content else None


def _parse_block(block: Any, role: str, param: str, adaptations: Adaptations) -> Sequence[chat.Part]:
    kind = get_text(block, "type", param)
    if _ROLES_BY_BLOCK_TYPE.get(kind, role) != role or (role == "system" and kind in _MEDIA_BLOCK_TYPES):
        raise InvalidRequest(f"'{param}': a block of type '{kind}' does not belong to the {role}", param=param)
    match kind:
        case "thinking":
            return [chat.ReasoningPart(get_text(block, "thinking", param), find_text(block, "signature"))]
        case "redacted_thinking":
            return [chat.ReasoningPart(redacted_data=get_text(block, "data", param))]
        case "tool_use":
            return [_parse_tool_use(block, param)]
        case "tool_result":
            return [_parse_tool_result(block, param, adaptations)]
        case "text" if role == "system" and get_text(block, "text", param).startswith(BILLING_LINE):
            adaptations.add("x-anthropic-billing-header")
            return []
        case _:
            return _parse_media(block, param, adaptations)


def _parse_media(block: Any, param: str, adaptations: Adaptations) -> list[_Content]:
    """Parse a block that tool results may contain too: text, an image, a document, or a block that becomes text.

    Raises ``InvalidRequest`` naming the field.
    """
    kind = get_text(block, "type", param)
    match kind:
        case "text":
            return [chat.TextPart(get_text(block, "text", param), find_cache_control(block))]
        case "image":
            return [_parse_image(block, param, adaptations)]
        case "document":
            return _parse_document(block, param, adaptations)
        case "tool_reference":
            adaptations.add(kind)
            return [chat.TextPart(describe_tool(get_text(block, "tool_name", param)))]
        case "container_upload":
            return [_replace_file(kind, f"{param}.type", adaptations)]
        case _:
            image = _read_image_url(block, param) if kind == "image_url" else None
            return [*adaptations.write(kind, block)] if image is None else [image]


def _replace_file(kind: str, param: str, adaptations: Adaptations) -> chat.TextPart:
    """Return a placeholder text for a file of an earlier turn. Raises ``InvalidRequest`` for a file of this turn."""
    if not adaptations.is_past:
        raise _make_anthropic_only_error(param, f"'{param}': a file that is stored at Anthropic ('{kind}')")
    return adaptations.replace_file(kind)


def _read_image_url(block: Body, param: str) -> chat.MediaPart | None:
    image = block.get("image_url")
    url = image.get("url") if isinstance(image, dict) else image
    if not isinstance(url, str) or not url[:8].lower().startswith(("http://", "https://", "data:")):
        return None
    return parse_address(url, f"{param}.image_url", detail=None, cache_control=find_cache_control(block))


def _parse_image(block: Body, param: str, adaptations: Adaptations) -> _Content:
    source, kind = _parse_source(block, param)
    source_param = f"{param}.source"
    if kind == "base64":
        return chat.MediaPart(
            "image",
            media_type=get_text(source, "media_type", source_param),
            data=get_text(source, "data", source_param),
            cache_control=find_cache_control(block),
        )
    if kind == "url":
        return chat.MediaPart(
            "image", url=get_text(source, "url", source_param), cache_control=find_cache_control(block)
        )
    return _replace_file("image", f"{source_param}.type", adaptations)


def _parse_document(block: Body, param: str, adaptations: Adaptations) -> list[_Content]:
    source, kind = _parse_source(block, param)
    source_param = f"{param}.source"
    title, context, cache_control = find_text(block, "title"), find_text(block, "context"), find_cache_control(block)
    context_parts: list[_Content] = [chat.TextPart(context)] if context else []
    match kind:
        case "base64":
            media_type, data = get_text(source, "media_type", source_param), get_text(source, "data", source_param)
            return [
                *context_parts,
                chat.MediaPart("file", media_type=media_type, data=data, name=title, cache_control=cache_control),
            ]
        case "url":
            url = get_text(source, "url", source_param)
            return [
                *context_parts,
                chat.MediaPart("file", media_type="application/pdf", url=url, name=title, cache_control=cache_control),
            ]
        case "text":
            text = get_text(source, "data", source_param)
            return [*context_parts, chat.TextPart(f"{title}\n\n{text}" if title else text, cache_control)]
        case "content":
            return [
                *context_parts,
                *([chat.TextPart(title)] if title else []),
                *_parse_media_list(source.get("content"), f"{source_param}.content", adaptations),
            ]
        case _:
            return [*context_parts, _replace_file("document", f"{source_param}.type", adaptations)]


def _parse_media_list(content: object, param: str, adaptations: Adaptations) -> list[_Content]:
    if isinstance(content, str):
        return [chat.TextPart(content)]
    if not isinstance(content, list):
        raise InvalidRequest(
            f"'{param}' must be a string or an array of blocks, not {name_json_type(content)}", param=param
        )
    parts: list[_Content] = []
    for index, block in enumerate(content):
        # A document contains only texts and images. Rejecting a document within a document bounds the recursion.
        block_param = f"{param}[{index}]"
        if isinstance(block, dict) and block.get("type") == "document" and ".source" in param:
            raise InvalidRequest(f"'{block_param}': a document holds text and images only", param=block_param)
        parts += _parse_media(block, block_param, adaptations)
    return parts


def _parse_tool_use(block: Body, param: str) -> chat.ToolCallPart:
    """Parse a tool call. Some servers write the arguments as text, or as empty text if there are none.

    Raises ``InvalidRequest`` naming the field.
    """
    arguments = block.get("input")
    return chat.ToolCallPart(
        id=get_text(block, "id", param),
        name=get_text(block, "name", param),
        arguments=arguments
        if isinstance(arguments, str)
        else exact_json.dumps({} if arguments is None else arguments).decode(),
        cache_control=find_cache_control(block),
    )


def _parse_tool_result(block: Body, param: str, adaptations: Adaptations) -> chat.ToolResultPart:
    content = block.get("content")
    return chat.ToolResultPart(
        id=get_text(block, "tool_use_id", param),
        parts=() if content is None else tuple(_parse_media_list(content, f"{param}.content", adaptations)),
        failed=block.get("is_error") is True,
        cache_control=find_cache_control(block),
    )


def _parse_tool_choice(choice: Body) -> tuple[chat.ToolChoice | None, bool | None]:
    parallel = False if choice.get("disable_parallel_tool_use") is True else None
    if not choice:
        return None, parallel
    kind = get_text(choice, "type", "tool_choice")
    if kind == "tool":
        return chat.ForcedTool(get_text(choice, "name", "tool_choice")), parallel
    if kind not in _TOOL_CHOICES:
        raise InvalidRequest("'tool_choice.type' must be auto, any, tool or none", param="tool_choice.type")
    return _TOOL_CHOICES[kind], parallel


def _parse_thinking(body: Body) -> tuple[int | None, chat.Effort | None]:
    """Return the reasoning tokens and the effort, each None if not set. Disabled reasoning is 0 tokens and None.

    Raises ``InvalidRequest`` naming the field.
    """
    thinking = body.get("thinking") or {}
    kind = get_text(thinking, "type", "thinking") if thinking else None
    if kind in _DISABLED_TYPES:
        return 0, None
    thinking_tokens = None
    if kind == "enabled":
        thinking_tokens = parse_count(thinking.get("budget_tokens"))
        if thinking_tokens is None:
            param = "thinking.budget_tokens"
            raise InvalidRequest(f"'{param}' must be an integer", param=param)
    elif kind not in {None, "adaptive"}:
        raise _make_anthropic_only_error("thinking.type", f"'thinking' of type '{kind}'")
    effort = (body.get("output_config") or {}).get("effort")
    if effort is not None and (not isinstance(effort, str) or effort not in _EFFORTS):
        raise _make_anthropic_only_error("output_config.effort", "This effort")
    return thinking_tokens, cast("chat.Effort | None", effort)


def _parse_format(body: Body) -> chat.ResponseFormat | None:
    """Parse ``output_config.format``, or the beta's name ``output_format``, which Anthropic still accepts.

    Returns None if neither is set. Raises ``InvalidRequest``.
    """
    param = "output_config.format"
    response_format = (body.get("output_config") or {}).get("format")
    if response_format is None:
        param, response_format = "output_format", body.get("output_format")
    if response_format is None:
        return None
    if (
        not isinstance(response_format, dict)
        or response_format.get("type") != "json_schema"
        or not isinstance(response_format.get("schema"), dict)
    ):
        raise InvalidRequest(f"'{param}' must be an object of type 'json_schema' with a 'schema'", param=param)
    return chat.ResponseFormat("schema", response_format["schema"])


def _parse_source(block: Body, param: str) -> tuple[Body, str]:
    source = block.get("source")
    if not isinstance(source, dict):
        raise InvalidRequest(
            f"'{param}.source' must be an object, not {name_json_type(source)}", param=f"{param}.source"
        )
    return source, get_text(source, "type", f"{param}.source")
