"""Parses the input items of a Responses body into messages of the common chat model.

Shapes: OpenAI's OpenAPI document, ``InputItem``, ``InputMessage``, ``OutputMessage``, ``FunctionToolCall``,
``FunctionCallOutputItemParam``, ``CustomToolCall`` and ``ReasoningItem``. An item without a type is a message
(``EasyInputMessage``).
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import orjson

from gateway.formats import chat
from gateway.formats.json_values import as_text
from gateway.formats.openai.content_parts import (
    expect_list,
    expect_object,
    expect_text,
    parse_address,
    parse_audio,
    parse_file,
    refuse,
)
from gateway.formats.openai.fields import Body
from gateway.formats.openai.response_reasoning import parse_reasoning
from gateway.formats.openai.response_tools import INPUT, join_name

_ROLES: Mapping[str, str] = MappingProxyType(
    {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
)
_TEXTS = frozenset({"input_text", "output_text", "text"})
_WEB = ("http://", "https://")

_Part = chat.TextPart | chat.MediaPart


def parse_items(value: object) -> list[chat.Message]:
    """Parse ``input``: a text, or items. Raises ``InvalidRequest`` naming the item's field.

    Consecutive items of the model are one message, and so are consecutive tool results.
    """
    if isinstance(value, str):
        return [chat.Message("user", (chat.TextPart(value),))] if value else []
    messages: list[chat.Message] = []
    joins = False
    for at, item in enumerate(expect_list(value, "input")):
        where = f"input[{at}]"
        message, joinable = _parse_item(expect_object(item, where), where)
        if not message.parts:
            continue
        last = messages[-1] if messages else None
        if last is not None and joins and joinable and last.role == message.role:
            messages[-1] = chat.Message(last.role, last.parts + message.parts)
        else:
            messages.append(message)
        joins = joinable
    return messages


def _parse_item(item: Body, where: str) -> tuple[chat.Message, bool]:
    """Return the message of an item, and whether its neighbors may join it."""
    kind = item.get("type")
    if kind is None and "role" in item:
        kind = "message"
    if kind is None and "id" in item:
        kind = "item_reference"
    if kind == "message":
        return _parse_message(item, where)
    if isinstance(kind, str) and (parse_call := _OF_MODEL.get(kind)) is not None:
        part = parse_call(item, where)
        return chat.Message("assistant", () if part is None else (part,)), True
    if kind in {"function_call_output", "custom_tool_call_output"}:
        return chat.Message("user", (_parse_result(item, where),)), True
    if kind == "item_reference":
        raise refuse(where, f"'{where}' refers to a stored item: send the item itself")
    raise refuse(
        f"{where}.type", f"'{where}': an item of type {kind!r} only works with a channel that speaks the Responses API"
    )


def _parse_message(item: Body, where: str) -> tuple[chat.Message, bool]:
    role = item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise refuse(f"{where}.role", f"'{where}.role' must be one of {', '.join(_ROLES)}")
    parts = parse_content(item.get("content"), f"{where}.content", role)
    match _ROLES[role]:
        case "assistant":
            return chat.Message("assistant", parts), True
        case "system":
            return chat.Message("system", parts), False
    return chat.Message("user", parts), False


def parse_content(content: object, where: str, role: str = "user") -> tuple[_Part, ...]:
    """Parse a text or the parts of a message or of a tool's result, without empty texts. Raises ``InvalidRequest``."""
    if isinstance(content, str):
        return (chat.TextPart(content),) if content else ()
    parts = [
        _parse_part(expect_object(part, f"{where}[{at}]"), f"{where}[{at}]", role)
        for at, part in enumerate(expect_list(content, where))
    ]
    return tuple([part for part in parts if not isinstance(part, chat.TextPart) or part.text])


def _parse_part(part: Body, where: str, role: str) -> _Part:
    kind = part.get("type")
    if kind in _TEXTS:
        return chat.TextPart(expect_text(part.get("text"), f"{where}.text"))
    if role == "assistant" and kind == "refusal":
        return chat.TextPart(expect_text(part.get("refusal"), f"{where}.refusal"))
    if role == "user":
        match kind:
            case "input_image":
                return _parse_image(part, where)
            case "input_file":
                return _parse_file(part, where)
            case "input_audio":
                return parse_audio(part, where)
    allowed = {
        "user": "input_text, input_image, input_file or input_audio",
        "assistant": "output_text or refusal",
    }.get(role, "input_text")
    raise refuse(f"{where}.type", f"'{where}.type' must be {allowed}")


def _parse_image(part: Body, where: str) -> chat.MediaPart:
    if part.get("file_id") is not None:
        raise refuse(
            f"{where}.file_id",
            "An uploaded file only works with a channel that speaks the Responses API; send image_url",
        )
    url = expect_text(part.get("image_url"), f"{where}.image_url")
    detail = part.get("detail")
    return parse_address(
        url, f"{where}.image_url", detail=None if detail is None else expect_text(detail, f"{where}.detail")
    )


def _parse_file(part: Body, where: str) -> chat.MediaPart:
    url = part.get("file_url")
    if url is None:
        return parse_file(part, where)
    url = expect_text(url, f"{where}.file_url")
    if not url[:8].lower().startswith(_WEB):
        raise refuse(f"{where}.file_url", f"'{where}.file_url' must be an http(s) address")
    return parse_file({"file_data": url, "filename": part.get("filename")}, where)


def _parse_function_call(item: Body, where: str) -> chat.ToolCallPart:
    arguments = item.get("arguments")
    return chat.ToolCallPart(
        expect_text(item.get("call_id"), f"{where}.call_id"),
        join_name(item.get("namespace"), expect_text(item.get("name"), f"{where}.name")),
        "" if arguments is None else expect_text(arguments, f"{where}.arguments"),
    )


def _parse_custom_call(item: Body, where: str) -> chat.ToolCallPart:
    text = expect_text(item.get("input"), f"{where}.input")
    return chat.ToolCallPart(
        expect_text(item.get("call_id"), f"{where}.call_id"),
        join_name(item.get("namespace"), expect_text(item.get("name"), f"{where}.name")),
        orjson.dumps({INPUT: text}).decode(),
    )


def _parse_reasoning(item: Body, where: str) -> chat.ReasoningPart | None:
    texts = []
    for name in ("summary", "content"):
        for at, part in enumerate(expect_list(item.get(name) or [], f"{where}.{name}")):
            here = f"{where}.{name}[{at}]"
            texts.append(expect_text(expect_object(part, here).get("text"), f"{here}.text"))
    return parse_reasoning("\n\n".join(texts), as_text(item.get("encrypted_content")))


def _parse_generated_image(item: Body, where: str) -> chat.MediaPart | None:
    if item.get("result") is None:
        return None
    data = expect_text(item["result"], f"{where}.result")
    form = as_text(item.get("output_format")) or "png"
    return chat.MediaPart("image", f"image/{form}", data)


def _parse_result(item: Body, where: str) -> chat.ToolResultPart:
    call_id = expect_text(item.get("call_id"), f"{where}.call_id")
    return chat.ToolResultPart(call_id, parse_content(item.get("output"), f"{where}.output"))


_OF_MODEL: Mapping[str, Callable[[Body, str], Any]] = MappingProxyType(
    {
        "function_call": _parse_function_call,
        "custom_tool_call": _parse_custom_call,
        "reasoning": _parse_reasoning,
        "image_generation_call": _parse_generated_image,
    }
)
"""Items that the model has made, and the function that parses each into a part; None if nothing of it is sent."""
