"""Parse the input items of a Responses body into messages of the common chat model.

Types: ``InputItem`` and its members. An item without a type is a message (``EasyInputMessage``) if it has a role, else
a reference to a stored item.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gateway.domain import exact_json
from gateway.formats.chat import model as chat
from gateway.formats.chat.adaptations import Adaptations
from gateway.formats.chat.openai import content_parts
from gateway.formats.chat.openai.custom_tools import write_input
from gateway.formats.chat.responses.client_tools import parse_client_call, parse_client_result
from gateway.formats.chat.responses.compaction import (
    COMPACTION_KINDS,
    TRIGGER_KIND,
    find_last_compaction,
    is_user_message,
    read_summary,
)
from gateway.formats.chat.responses.reasoning import parse_reasoning
from gateway.formats.chat.responses.tools import join_name
from gateway.formats.wire.fields import Body
from gateway.formats.wire.json_values import as_text
from gateway.frozen import frozen

_CHAT_ROLES: Mapping[str, str] = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_TEXT_PART_TYPES = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})
_WEB_SCHEMES = ("http://", "https://")

_Part = chat.TextPart | chat.MediaPart


def parse_items(value: object, adaptations: Adaptations | None = None) -> list[chat.Message]:
    """Parse ``input``: a text, or a list of items. Raises ``InvalidRequest`` naming the item's field."""
    if isinstance(value, str):
        return [chat.Message("user", (chat.TextPart(value),))] if value else []
    located_items = [
        item_part
        for index, item in enumerate(content_parts.expect_list(value, "input"))
        for item_part in _split_chat_message(content_parts.expect_object(item, f"input[{index}]"), f"input[{index}]")
    ]
    items = [item for _, item in located_items]
    adaptations = Adaptations() if adaptations is None else adaptations
    last_answer_index = max((index for index, item in enumerate(items) if _is_model_item(item)), default=-1)
    history = _History(
        adaptations,
        {
            as_text(item_part.get("id")): as_text(item_part["call_id"])
            for item_part in items
            if item_part.get("call_id")
        },
    )
    messages: list[chat.Message] = []
    is_last_joinable = False
    compaction_index = find_last_compaction(items)
    for index, (param, item) in enumerate(located_items):
        if index <= compaction_index and not is_user_message(item):
            continue
        adaptations.is_past = index <= last_answer_index
        message, is_joinable = _parse_item(item, param, history)
        last_message = messages[-1] if messages else None
        if not message.parts and (
            item.get("role") != "user" or last_message is None or last_message.role != "assistant"
        ):
            continue
        if last_message is not None and is_last_joinable and is_joinable and last_message.role == message.role:
            messages[-1] = chat.Message(last_message.role, last_message.parts + message.parts)
        else:
            messages.append(message)
        is_last_joinable = is_joinable
    return messages


def _split_chat_message(item: Body, param: str) -> Iterator[tuple[str, Body]]:
    """Yield an item with its path in the body. A chat message with tool calls becomes several items, a tool result one.

    Raises ``InvalidRequest``.
    """
    role, calls = item.get("role"), item.get("tool_calls")
    if role == "tool" and item.get("tool_call_id") is not None:
        yield param, {"type": "function_call_output", "call_id": item["tool_call_id"], "output": item.get("content")}
        return
    if role != "assistant" or not isinstance(calls, list) or not calls:
        yield param, item
        return
    if item.get("content"):
        yield param, {"role": role, "content": item["content"]}
    for index, chat_call in enumerate(calls):
        call_param = f"{param}.tool_calls[{index}]"
        call = content_parts.expect_object(chat_call, call_param)
        function = content_parts.expect_object(call.get("function"), f"{call_param}.function")
        yield call_param, {"type": "function_call", "call_id": call.get("id"), **function}


def _is_model_item(item: Body) -> bool:
    kind = item.get("type")
    is_call = isinstance(kind, str) and (kind.endswith("_call") or kind in COMPACTION_KINDS)
    return item.get("role") == "assistant" or is_call


@frozen
class _History:
    """Context for parsing an item.

    Attributes:
        call_ids: call ids by the ids of their items.
    """

    adaptations: Adaptations
    call_ids: Mapping[str, str]


def _parse_item(item: Body, param: str, history: _History) -> tuple[chat.Message, bool]:
    """Return the message for an item, and whether it may be joined with neighboring messages of the same role.

    Raises ``InvalidRequest`` naming the item.
    """
    kind = item.get("type")
    if kind is None and "role" in item:
        kind = "message"
    if kind is None and "id" in item:
        kind = "item_reference"
    if kind == "message":
        return _parse_message(item, param, history.adaptations)
    if kind == "item_reference":
        raise content_parts.make_param_error(param, f"'{param}' refers to a stored item: send the item itself")
    kind = content_parts.expect_text(kind, f"{param}.type")
    part: chat.Part | None = None
    if (parse_call := _MODEL_ITEM_PARSERS.get(kind)) is not None:
        part = parse_call(item, param)
        return chat.Message("assistant", () if part is None else (part,)), True
    if kind in {"function_call_output", "custom_tool_call_output"}:
        return chat.Message("user", (_parse_result(item, param, history.adaptations),)), True
    if kind in _CLIENT_RESULT_KINDS:
        part = parse_client_result(item, history.call_ids)
        return chat.Message("user", () if part is None else (part,)), True
    if kind in COMPACTION_KINDS and (summary := read_summary(item)) is not None:
        return chat.Message("user", (chat.TextPart(summary),)), False
    return _write_foreign_item(kind, item, history.adaptations), True


def _write_foreign_item(kind: str, item: Body, adaptations: Adaptations) -> chat.Message:
    """Convert an item that other formats lack into a text message.

    The message has no parts if the item is useless to another model.
    """
    if kind == "additional_tools":
        return chat.Message("user", ())
    if kind in _DROPPED_KINDS:
        adaptations.add(kind)
        return chat.Message("user", ())
    role: Any = "user" if kind.endswith(_RESULT_SUFFIXES) else "assistant"
    return chat.Message(role, tuple(adaptations.write(kind, item)))


def _parse_message(item: Body, param: str, adaptations: Adaptations) -> tuple[chat.Message, bool]:
    role = item.get("role")
    if not isinstance(role, str) or role not in _CHAT_ROLES:
        raise content_parts.make_param_error(f"{param}.role", f"'{param}.role' must be one of {', '.join(_CHAT_ROLES)}")
    content = item.get("content")
    content = "" if content is None and adaptations.is_past else content
    parts = _parse_content(content, f"{param}.content", role, adaptations)
    match _CHAT_ROLES[role]:
        case "assistant":
            return chat.Message("assistant", parts), True
        case "system":
            return chat.Message("system", parts), False
    return chat.Message("user", parts), False


def _parse_content(content: object, param: str, role: str, adaptations: Adaptations) -> tuple[_Part, ...]:
    if isinstance(content, str):
        return (chat.TextPart(content),) if content else ()
    parts = [
        chat_part
        for index, part in enumerate(content_parts.expect_list(content, param))
        for chat_part in _parse_part(
            content_parts.expect_object(part, f"{param}[{index}]"), f"{param}[{index}]", role, adaptations
        )
    ]
    return tuple([part for part in parts if not isinstance(part, chat.TextPart) or part.text])


def _parse_part(part: Body, param: str, role: str, adaptations: Adaptations) -> Sequence[_Part]:
    kind = part.get("type")
    if isinstance(kind, str) and kind in _TEXT_PART_TYPES:
        return [chat.TextPart(content_parts.expect_text(part.get("text"), f"{param}.text"))]
    if role == "assistant" and kind == "refusal":
        return [chat.TextPart(content_parts.expect_text(part.get("refusal"), f"{param}.refusal"))]
    if role in {"user", "tool"} and isinstance(kind, str) and kind in _MEDIA_PARSERS:
        if adaptations.is_past and part.get("file_id") is not None:
            return [adaptations.replace_file(kind)]
        return [_MEDIA_PARSERS[kind](part, param)]
    if isinstance(kind, str) and kind not in _MEDIA_PARSERS and (role in {"assistant", "tool"} or adaptations.is_past):
        return adaptations.write(kind, part)
    allowed_kinds = {
        "user": "input_text, input_image, input_file or input_audio",
        "assistant": "output_text or refusal",
    }.get(role, "input_text")
    raise content_parts.make_param_error(f"{param}.type", f"'{param}.type' must be {allowed_kinds}")


def _parse_image(part: Body, param: str) -> chat.MediaPart:
    if part.get("file_id") is not None:
        raise content_parts.make_param_error(
            f"{param}.file_id", "An uploaded file only works with a channel that uses the Responses API; send image_url"
        )
    image = part.get("image_url")
    chat_image = image if isinstance(image, dict) else {}  # the nested form of chat bodies
    url = content_parts.expect_text(chat_image.get("url", image), f"{param}.image_url")
    detail = chat_image.get("detail", part.get("detail"))
    return content_parts.parse_address(
        url,
        f"{param}.image_url",
        detail=None if detail is None else content_parts.expect_text(detail, f"{param}.detail"),
    )


def _parse_file(part: Body, param: str) -> chat.MediaPart:
    url = part.get("file_url")
    if url is None:
        return content_parts.parse_file(part, param)
    url = content_parts.expect_text(url, f"{param}.file_url")
    if not url[:8].lower().startswith(_WEB_SCHEMES):
        raise content_parts.make_param_error(f"{param}.file_url", f"'{param}.file_url' must be an http(s) address")
    return content_parts.parse_file({"file_data": url, "filename": part.get("filename")}, param)


def _parse_function_call(item: Body, param: str) -> chat.ToolCallPart:
    return chat.ToolCallPart(
        content_parts.expect_text(item.get("call_id"), f"{param}.call_id"),
        join_name(item.get("namespace"), content_parts.expect_text(item.get("name"), f"{param}.name")),
        content_parts.read_arguments(item.get("arguments"), f"{param}.arguments"),
    )


def _parse_custom_call(item: Body, param: str) -> chat.ToolCallPart:
    text = content_parts.expect_text(item.get("input"), f"{param}.input")
    return chat.ToolCallPart(
        content_parts.expect_text(item.get("call_id"), f"{param}.call_id"),
        join_name(item.get("namespace"), content_parts.expect_text(item.get("name"), f"{param}.name")),
        write_input(text),
    )


def _parse_reasoning(item: Body, param: str) -> chat.ReasoningPart | None:
    texts = []
    for name in ("summary", "content"):
        for index, part in enumerate(content_parts.expect_list(item.get(name) or [], f"{param}.{name}")):
            part_param = f"{param}.{name}[{index}]"
            texts.append(
                content_parts.expect_text(
                    content_parts.expect_object(part, part_param).get("text"), f"{part_param}.text"
                )
            )
    return parse_reasoning("\n\n".join(texts), as_text(item.get("encrypted_content")))


def _parse_generated_image(item: Body, param: str) -> chat.MediaPart | None:
    if item.get("result") is None:
        return None
    data = content_parts.expect_text(item["result"], f"{param}.result")
    image_format = as_text(item.get("output_format")) or "png"
    return chat.MediaPart("image", f"image/{image_format}", data)


def _parse_result(item: Body, param: str, adaptations: Adaptations) -> chat.ToolResultPart:
    call_id = content_parts.expect_text(item.get("call_id"), f"{param}.call_id")
    output = item.get("output")
    if isinstance(output, dict):
        output = exact_json.dumps(output).decode()
    return chat.ToolResultPart(call_id, _parse_content(output or "", f"{param}.output", "tool", adaptations))


_MODEL_ITEM_PARSERS: Mapping[str, Callable[[Body, str], Any]] = {
    "function_call": _parse_function_call,
    "custom_tool_call": _parse_custom_call,
    "reasoning": _parse_reasoning,
    "image_generation_call": _parse_generated_image,
    "local_shell_call": parse_client_call,
    "shell_call": parse_client_call,
    "apply_patch_call": parse_client_call,
    "tool_search_call": parse_client_call,
}
"""Types of items generated by the model -> parsers, which return None if nothing of the item is sent."""
_CLIENT_RESULT_KINDS = frozenset(
    {"local_shell_call_output", "shell_call_output", "apply_patch_call_output", "tool_search_output"}
)
_DROPPED_KINDS = frozenset({*COMPACTION_KINDS, TRIGGER_KIND, "configuration_update", "mcp_list_tools"})
"""Types of items that are useless to another provider's model."""
_RESULT_SUFFIXES = ("_output", "_response")
_MEDIA_PARSERS: Mapping[str, Callable[[Body, str], chat.MediaPart]] = {
    "input_image": _parse_image,
    "image_url": _parse_image,
    "computer_screenshot": _parse_image,
    "input_file": _parse_file,
    "input_audio": content_parts.parse_audio,
}
"""Types of media parts in user messages and tool results -> parsers. ``image_url`` is from chat bodies."""
