"""Parse a validated Messages body (``MessageCreateParams``) into the common chat model.

``tests/formats/chat/test_request_fields.py`` has the rules as a table:

- Rejected, naming the field: features of this turn that only Anthropic has. These are a file, a conversation or a
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
from gateway.formats.chat.anthropic.request_tools import (
    BILLING_LINE,
    describe_tool,
    find_cache,
    find_text,
    get_text,
    parse_tools,
)
from gateway.formats.chat.openai.content_parts import parse_address
from gateway.formats.wire.fields import Body, name_json_type

_EFFORTS = frozenset(get_args(chat.Effort))
_CHOICES: dict[str, chat.ToolChoice] = {"auto": "auto", "any": "required", "none": "none"}
_OFF = frozenset({"disabled", "between_tools"})
_OWN_FIELDS = ("thread", "compaction")
"""Top-level fields for state that only Anthropic keeps; rejected."""
_OFFERED_FIELDS = ("mcp_servers", "container")
"""Top-level fields that only serve server tools; dropped like these tools."""
_STANDARD: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("service_tier", (None, "auto", "standard_only")),
    ("speed", (None, "standard")),
    ("inference_geo", (None, "global")),
    ("billing_policy", (None, {"type": "billing_policy"}, {"type": "billing_policy", "bill_to": "self"})),
)
"""Fields for the service tier, speed, region and payer, with their default values; all other values are rejected."""
_MEDIA = frozenset({"image", "document"})
_Content = chat.TextPart | chat.MediaPart
_ROLE_OF = {"tool_use": "assistant", "thinking": "assistant", "redacted_thinking": "assistant", "tool_result": "user"}


def parse_chat_request(body: Body) -> chat.ChatRequest:
    """Parse a validated body. Raises ``InvalidRequest`` naming a field that other formats cannot express.

    Adaptive thinking without an effort is dropped: it leaves the decision to the model, like a missing field.
    """
    for name in _OWN_FIELDS:
        if body.get(name):
            raise _only_there(name, f"'{name}'")
    adaptations = Adaptations({name: None for name in _OFFERED_FIELDS if body.get(name)})
    for name, standard in _STANDARD:
        if body.get(name) not in standard:
            raise _only_there(name, f"This '{name}'")
    if body.get("max_tokens") == 0:
        raise _only_there("max_tokens", "'max_tokens' of 0")
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


def _only_there(param: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"{what} only works with a channel that speaks Anthropic's own language", param=param)


def _parse_messages(body: Body, adaptations: Adaptations) -> tuple[chat.Message, ...]:
    messages = []
    if body.get("system"):
        messages.append(_parse_message(body["system"], "system", "system", adaptations))
    turns = body["messages"]
    past = max((index for index, message in enumerate(turns) if message["role"] == "assistant"), default=-1)
    for index, message in enumerate(turns):
        adaptations.is_past = index <= past
        where = f"messages[{index}].content"
        messages.append(_parse_message(message["content"], message["role"], where, adaptations))
    return tuple(message for message in messages if message is not None)


def _parse_message(content: Any, role: Any, where: str, adaptations: Adaptations) -> chat.Message | None:
    if isinstance(content, str):
        return chat.Message(role, (chat.TextPart(content),))
    parts = [
        part for at, block in enumerate(content) for part in _parse_block(block, role, f"{where}[{at}]", adaptations)
    ]
    return chat.Message(role, tuple(parts)) if parts or not content else None


def _parse_block(block: Any, role: str, where: str, adaptations: Adaptations) -> Sequence[chat.Part]:
    kind = get_text(block, "type", where)
    if _ROLE_OF.get(kind, role) != role or (role == "system" and kind in _MEDIA):
        raise InvalidRequest(f"'{where}': a block of type '{kind}' does not belong to the {role}", param=where)
    match kind:
        case "thinking":
            return [chat.ReasoningPart(get_text(block, "thinking", where), find_text(block, "signature"))]
        case "redacted_thinking":
            return [chat.ReasoningPart(redacted=get_text(block, "data", where))]
        case "tool_use":
            return [_parse_tool_use(block, where)]
        case "tool_result":
            return [_parse_tool_result(block, where, adaptations)]
        case "text" if role == "system" and get_text(block, "text", where).startswith(BILLING_LINE):
            adaptations.add("x-anthropic-billing-header")
            return []
        case _:
            return _parse_media(block, where, adaptations)


def _parse_media(block: Any, where: str, adaptations: Adaptations) -> list[_Content]:
    """Parse a block that tool results may contain too: text, an image, a document, or a block that becomes text."""
    kind = get_text(block, "type", where)
    match kind:
        case "text":
            return [chat.TextPart(get_text(block, "text", where), find_cache(block))]
        case "image":
            return [_parse_image(block, where, adaptations)]
        case "document":
            return _parse_document(block, where, adaptations)
        case "tool_reference":
            adaptations.add(kind)
            return [chat.TextPart(describe_tool(get_text(block, "tool_name", where)))]
        case "container_upload":
            return [_replace_file(kind, f"{where}.type", adaptations)]
        case _:
            image = _read_image_url(block, where) if kind == "image_url" else None
            return [*adaptations.write(kind, block)] if image is None else [image]


def _replace_file(kind: str, where: str, adaptations: Adaptations) -> chat.TextPart:
    """Return a placeholder text for a file of an earlier turn. Raises ``InvalidRequest`` for a file of this turn."""
    if not adaptations.is_past:
        raise _only_there(where, f"'{where}': a file that is stored at Anthropic ('{kind}')")
    return adaptations.replace_file(kind)


def _read_image_url(block: Body, where: str) -> chat.MediaPart | None:
    image = block.get("image_url")
    url = image.get("url") if isinstance(image, dict) else image
    if not isinstance(url, str) or not url[:8].lower().startswith(("http://", "https://", "data:")):
        return None
    return parse_address(url, f"{where}.image_url", detail=None, cache=find_cache(block))


def _parse_image(block: Body, where: str, adaptations: Adaptations) -> _Content:
    source, kind = _parse_source(block, where)
    here = f"{where}.source"
    if kind == "base64":
        return chat.MediaPart(
            "image",
            media_type=get_text(source, "media_type", here),
            data=get_text(source, "data", here),
            cache=find_cache(block),
        )
    if kind == "url":
        return chat.MediaPart("image", url=get_text(source, "url", here), cache=find_cache(block))
    return _replace_file("image", f"{here}.type", adaptations)


def _parse_document(block: Body, where: str, adaptations: Adaptations) -> list[_Content]:
    source, kind = _parse_source(block, where)
    here = f"{where}.source"
    title, context, cache = find_text(block, "title"), find_text(block, "context"), find_cache(block)
    before: list[_Content] = [chat.TextPart(context)] if context else []
    match kind:
        case "base64":
            media_type, data = get_text(source, "media_type", here), get_text(source, "data", here)
            return [*before, chat.MediaPart("file", media_type=media_type, data=data, name=title, cache=cache)]
        case "url":
            url = get_text(source, "url", here)
            return [*before, chat.MediaPart("file", media_type="application/pdf", url=url, name=title, cache=cache)]
        case "text":
            words = get_text(source, "data", here)
            return [*before, chat.TextPart(f"{title}\n\n{words}" if title else words, cache)]
        case "content":
            return [
                *before,
                *([chat.TextPart(title)] if title else []),
                *_parse_media_list(source.get("content"), f"{here}.content", adaptations),
            ]
        case _:
            return [*before, _replace_file("document", f"{here}.type", adaptations)]


def _parse_media_list(content: object, where: str, adaptations: Adaptations) -> list[_Content]:
    if isinstance(content, str):
        return [chat.TextPart(content)]
    if not isinstance(content, list):
        raise InvalidRequest(
            f"'{where}' must be a string or an array of blocks, not {name_json_type(content)}", param=where
        )
    parts: list[_Content] = []
    for index, block in enumerate(content):
        # A document contains only texts and images. Rejecting a document within a document bounds the recursion.
        here = f"{where}[{index}]"
        if isinstance(block, dict) and block.get("type") == "document" and ".source" in where:
            raise InvalidRequest(f"'{here}': a document holds text and images only", param=here)
        parts += _parse_media(block, here, adaptations)
    return parts


def _parse_tool_use(block: Body, where: str) -> chat.ToolCallPart:
    """Parse a tool call. Some servers write the arguments as text, or as empty text if there are none."""
    arguments = block.get("input")
    return chat.ToolCallPart(
        id=get_text(block, "id", where),
        name=get_text(block, "name", where),
        arguments=arguments
        if isinstance(arguments, str)
        else exact_json.dumps({} if arguments is None else arguments).decode(),
        cache=find_cache(block),
    )


def _parse_tool_result(block: Body, where: str, adaptations: Adaptations) -> chat.ToolResultPart:
    content = block.get("content")
    return chat.ToolResultPart(
        id=get_text(block, "tool_use_id", where),
        parts=() if content is None else tuple(_parse_media_list(content, f"{where}.content", adaptations)),
        failed=block.get("is_error") is True,
        cache=find_cache(block),
    )


def _parse_tool_choice(choice: Body) -> tuple[chat.ToolChoice | None, bool | None]:
    parallel = False if choice.get("disable_parallel_tool_use") is True else None
    if not choice:
        return None, parallel
    kind = get_text(choice, "type", "tool_choice")
    if kind == "tool":
        return chat.ForcedTool(get_text(choice, "name", "tool_choice")), parallel
    if kind not in _CHOICES:
        raise InvalidRequest("'tool_choice.type' must be auto, any, tool or none", param="tool_choice.type")
    return _CHOICES[kind], parallel


def _parse_thinking(body: Body) -> tuple[int | None, chat.Effort | None]:
    """Return the reasoning tokens and the effort; no effort if reasoning is off."""
    thinking = body.get("thinking") or {}
    kind = get_text(thinking, "type", "thinking") if thinking else None
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
    """Parse ``output_config.format``, or the beta's name ``output_format``, which Anthropic still accepts."""
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
        raise InvalidRequest(
            f"'{where}.source' must be an object, not {name_json_type(source)}", param=f"{where}.source"
        )
    return source, get_text(source, "type", f"{where}.source")
