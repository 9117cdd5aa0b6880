"""Parses a checked Messages body into the common chat model.

Shapes: Anthropic's API documentation, "Create a Message", and the types ``MessageCreateParams`` and
``ContentBlockParam`` of its Python library. What only Anthropic can do (tools that run on its servers, files stored
there, a conversation or its summary kept there) is rejected by name, as are faster service, another place or another
payer. Dropped are options without which the answer is valid: ``cache_control`` of the whole body, ``citations``,
``context_management`` (it only shortens the prompt), ``diagnostics``, ``fallbacks`` and ``fallback_credit_token`` (they
only matter if Claude declines). ``tests/formats/test_request_fields.py`` has all of this as a table.
"""

from typing import Any, cast, get_args

from gateway.domain import exact_json
from gateway.domain.usage import parse_count
from gateway.errors import InvalidRequest
from gateway.formats import chat
from gateway.formats.openai.fields import Body, kind_of

_EFFORTS = frozenset(get_args(chat.Effort))
_CHOICES: dict[str, chat.ToolChoice] = {"auto": "auto", "any": "required", "none": "none"}
_OFF = frozenset({"disabled", "between_tools"})
_OWN_FIELDS = ("mcp_servers", "container", "thread", "compaction")
"""Top-level fields that cause actions at Anthropic."""
_STANDARD: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("service_tier", (None, "auto", "standard_only")),
    ("speed", (None, "standard")),
    ("inference_geo", (None, "global")),
    ("billing_policy", (None, {"type": "billing_policy"}, {"type": "billing_policy", "bill_to": "self"})),
)
"""Fields that ask for another service, place or payer: the values that do not."""
_ROLE_OF = {
    "tool_use": "assistant",
    "thinking": "assistant",
    "redacted_thinking": "assistant",
    "tool_result": "user",
}


def parse_chat_request(body: Body) -> chat.ChatRequest:
    """Parse a body that ``parse_messages_call`` or ``parse_count_call`` has checked.

    System messages stay where they are. A plain-text document becomes text, preceded by its title and context. Adaptive
    thinking without an effort is dropped: the model decides, as without the field.

    Raises:
        InvalidRequest: another format cannot express a field, which is named.
    """
    for name in _OWN_FIELDS:
        if body.get(name):
            raise _only_there(name, f"'{name}'")
    for name, standard in _STANDARD:
        if body.get(name) not in standard:
            raise _only_there(name, f"This '{name}'")
    if body.get("max_tokens") == 0:
        raise _only_there("max_tokens", "'max_tokens' of 0")
    choice, parallel = _parse_tool_choice(body.get("tool_choice") or {})
    thinking_tokens, effort = _parse_thinking(body)
    return chat.ChatRequest(
        messages=_parse_messages(body),
        max_tokens=body.get("max_tokens"),
        temperature=body.get("temperature"),
        top_p=body.get("top_p"),
        top_k=body.get("top_k"),
        stop=tuple(body.get("stop_sequences") or ()),
        tools=tuple(_parse_tool(tool, f"tools[{index}]") for index, tool in enumerate(body.get("tools") or ())),
        tool_choice=choice,
        parallel_tools=parallel,
        format=_parse_format(body),
        thinking_tokens=thinking_tokens,
        effort=effort,
        user=_find_text(body.get("metadata") or {}, "user_id"),
    )


def _only_there(param: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"{what} only works with a channel that speaks Anthropic's own language", param=param)


def _parse_messages(body: Body) -> tuple[chat.Message, ...]:
    messages = []
    if body.get("system"):
        messages.append(chat.Message("system", tuple(_read_content(body["system"], "system", "system"))))
    for index, message in enumerate(body["messages"]):
        role = message["role"]
        messages.append(
            chat.Message(role, tuple(_read_content(message["content"], role, f"messages[{index}].content")))
        )
    return tuple(messages)


def _read_content(content: str | list[Any], role: str, where: str) -> list[chat.Part]:
    if isinstance(content, str):
        return [chat.TextPart(content)]
    parts: list[chat.Part] = []
    for index, block in enumerate(content):
        parts += _parse_block(block, role, f"{where}[{index}]")
    return parts


def _parse_block(block: Any, role: str, where: str) -> list[chat.Part]:
    kind = _get_text(block, "type", where)
    if _ROLE_OF.get(kind, role) != role or (role == "system" and kind != "text"):
        raise InvalidRequest(f"'{where}': a block of type '{kind}' does not belong to the {role}", param=where)
    match kind:
        case "thinking":
            return [chat.ReasoningPart(_get_text(block, "thinking", where), _find_text(block, "signature"))]
        case "redacted_thinking":
            return [chat.ReasoningPart(redacted=_get_text(block, "data", where))]
        case "tool_use":
            return [_parse_tool_use(block, where)]
        case "tool_result":
            return [_parse_tool_result(block, where)]
        case _:
            return [*_parse_media(block, where)]


def _parse_media(block: Any, where: str) -> list[chat.TextPart | chat.MediaPart]:
    """Parse a block that a tool's result may contain too: text, an image or a document."""
    kind = _get_text(block, "type", where)
    match kind:
        case "text":
            return [chat.TextPart(_get_text(block, "text", where), _find_cache(block))]
        case "image":
            return [_parse_image(block, where)]
        case "document":
            return _parse_document(block, where)
        case _:
            raise _only_there(f"{where}.type", f"'{where}': a block of type '{kind}'")


def _parse_image(block: Body, where: str) -> chat.MediaPart:
    source, kind = _parse_source(block, where)
    here = f"{where}.source"
    if kind == "base64":
        return chat.MediaPart(
            "image",
            media_type=_get_text(source, "media_type", here),
            data=_get_text(source, "data", here),
            cache=_find_cache(block),
        )
    if kind == "url":
        return chat.MediaPart("image", url=_get_text(source, "url", here), cache=_find_cache(block))
    raise _only_there(f"{here}.type", f"'{here}' of type '{kind}'")


def _parse_document(block: Body, where: str) -> list[chat.TextPart | chat.MediaPart]:
    source, kind = _parse_source(block, where)
    here = f"{where}.source"
    title, context, cache = _find_text(block, "title"), _find_text(block, "context"), _find_cache(block)
    before: list[chat.TextPart | chat.MediaPart] = [chat.TextPart(context)] if context else []
    match kind:
        case "base64":
            media_type, data = _get_text(source, "media_type", here), _get_text(source, "data", here)
            return [*before, chat.MediaPart("file", media_type=media_type, data=data, name=title, cache=cache)]
        case "url":
            url = _get_text(source, "url", here)
            return [*before, chat.MediaPart("file", media_type="application/pdf", url=url, name=title, cache=cache)]
        case "text":
            words = _get_text(source, "data", here)
            return [*before, chat.TextPart(f"{title}\n\n{words}" if title else words, cache)]
        case "content":
            return [
                *before,
                *([chat.TextPart(title)] if title else []),
                *_parse_media_list(source.get("content"), f"{here}.content"),
            ]
        case _:
            raise _only_there(f"{here}.type", f"'{here}' of type '{kind}'")


def _parse_media_list(content: object, where: str) -> list[chat.TextPart | chat.MediaPart]:
    if isinstance(content, str):
        return [chat.TextPart(content)]
    if not isinstance(content, list):
        raise InvalidRequest(f"'{where}' must be a string or an array of blocks, not {kind_of(content)}", param=where)
    parts: list[chat.TextPart | chat.MediaPart] = []
    for index, block in enumerate(content):
        # Only a document can contain blocks, of text and images. A document inside one is rejected, so that the
        # recursion is bounded.
        here = f"{where}[{index}]"
        if isinstance(block, dict) and block.get("type") == "document" and ".source" in where:
            raise InvalidRequest(f"'{here}': a document holds text and images only", param=here)
        parts += _parse_media(block, here)
    return parts


def _parse_tool_use(block: Body, where: str) -> chat.ToolCallPart:
    arguments = block.get("input")
    if not isinstance(arguments, dict):
        raise InvalidRequest(f"'{where}.input' must be an object, not {kind_of(arguments)}", param=f"{where}.input")
    return chat.ToolCallPart(
        id=_get_text(block, "id", where),
        name=_get_text(block, "name", where),
        arguments=exact_json.dumps(arguments).decode(),
        cache=_find_cache(block),
    )


def _parse_tool_result(block: Body, where: str) -> chat.ToolResultPart:
    content = block.get("content")
    return chat.ToolResultPart(
        id=_get_text(block, "tool_use_id", where),
        parts=() if content is None else tuple(_parse_media_list(content, f"{where}.content")),
        failed=block.get("is_error") is True,
        cache=_find_cache(block),
    )


def _parse_tool(tool: Body, where: str) -> chat.Tool:
    kind = tool.get("type")
    if kind is not None and kind != "custom":
        raise _only_there(f"{where}.type", f"'{where}': a tool of type '{kind}'")
    schema, strict = tool.get("input_schema"), tool.get("strict")
    if schema is not None and not isinstance(schema, dict):
        here = f"{where}.input_schema"
        raise InvalidRequest(f"'{here}' must be an object, not {kind_of(schema)}", param=here)
    return chat.Tool(
        name=_get_text(tool, "name", where),
        description=_find_text(tool, "description"),
        schema=schema,
        strict=strict if isinstance(strict, bool) else None,
        cache=_find_cache(tool),
    )


def _parse_tool_choice(choice: Body) -> tuple[chat.ToolChoice | None, bool | None]:
    parallel = False if choice.get("disable_parallel_tool_use") is True else None
    if not choice:
        return None, parallel
    kind = _get_text(choice, "type", "tool_choice")
    if kind == "tool":
        return chat.ForcedTool(_get_text(choice, "name", "tool_choice")), parallel
    if kind not in _CHOICES:
        raise InvalidRequest("'tool_choice.type' must be auto, any, tool or none", param="tool_choice.type")
    return _CHOICES[kind], parallel


def _parse_thinking(body: Body) -> tuple[int | None, chat.Effort | None]:
    """Return the reasoning tokens and the effort. Without reasoning, an effort only sets how terse the answer is."""
    thinking = body.get("thinking") or {}
    kind = _get_text(thinking, "type", "thinking") if thinking else None
    if kind in _OFF:
        return 0, None
    tokens = None
    if kind == "enabled":
        tokens = parse_count(thinking.get("budget_tokens"))
        if tokens is None:
            where = "thinking.budget_tokens"
            raise InvalidRequest(f"'{where}' must be an integer", param=where)
    elif kind not in {None, "adaptive"}:
        raise _only_there("thinking.type", f"'thinking' of type '{kind}'")
    effort = (body.get("output_config") or {}).get("effort")
    if effort is not None and (not isinstance(effort, str) or effort not in _EFFORTS):
        raise _only_there("output_config.effort", "This effort")
    return tokens, cast("chat.Effort | None", effort)


def _parse_format(body: Body) -> chat.ResponseFormat | None:
    """Parse ``output_config.format``, or ``output_format``, its name in the beta, which still works."""
    where = "output_config.format"
    form = (body.get("output_config") or {}).get("format")
    if form is None:
        where, form = "output_format", body.get("output_format")
    if form is None:
        return None
    if not isinstance(form, dict) or form.get("type") != "json_schema" or not isinstance(form.get("schema"), dict):
        raise InvalidRequest(f"'{where}' must be an object of type 'json_schema' with a 'schema'", param=where)
    return chat.ResponseFormat("schema", form["schema"])


def _parse_source(block: Body, where: str) -> tuple[Body, str]:
    source = block.get("source")
    if not isinstance(source, dict):
        raise InvalidRequest(f"'{where}.source' must be an object, not {kind_of(source)}", param=f"{where}.source")
    return source, _get_text(source, "type", f"{where}.source")


def _get_text(holder: Any, name: str, where: str) -> str:
    if not isinstance(holder, dict):
        raise InvalidRequest(f"'{where}' must be an object, not {kind_of(holder)}", param=where)
    value = holder.get(name)
    if not isinstance(value, str):
        raise InvalidRequest(f"'{where}.{name}' must be a string, not {kind_of(value)}", param=f"{where}.{name}")
    return value


def _find_text(holder: Body, name: str) -> str | None:
    value = holder.get(name)
    return value if isinstance(value, str) and value else None


def _find_cache(block: Body) -> chat.Json | None:
    mark = block.get("cache_control")
    return mark if isinstance(mark, dict) else None
