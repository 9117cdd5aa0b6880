"""A whole response of the convention as the stream that says the same.

Shapes: the convention's OpenAPI document, ``Response`` and ``ResponseStreamEvent``. An item of a kind that nobody knows
here is added and done as it is.
"""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import orjson

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import Usage
from gateway.formats.openai.errors import Secrets
from gateway.formats.openai.responses import UNFINISHED, parse_response, parse_used

Item = dict[str, Any]
Events = Iterator[tuple[str, Item]]
_UNTOLD: Item = {"output": [], "usage": None, "incomplete_details": None, "completed_at": None}


def build_whole(raw: bytes, call: InferenceRequest, secrets: Secrets = ()) -> tuple[bytes, Usage]:
    """A whole response to a call for a stream -> its events, and what it used. Raises the fault of one that failed.

    A response that goes on in the background is only begun.
    """
    value = parse_response(raw, secrets)
    events = [
        b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, "sequence_number": number} | said))
        for number, (kind, said) in enumerate(_list_events(value))
    ]
    return b"".join(events), parse_used(value, call)


def _list_events(value: Item) -> Events:
    status = value.get("status")
    begun = value | {name: untold for name, untold in _UNTOLD.items() if name in value} | {"output": []}
    runs = status in UNFINISHED
    begun["status"] = status if runs else "in_progress"
    yield "response.created", {"response": begun}
    yield f"response.{begun['status']}", {"response": begun}
    if runs:
        return
    output = value.get("output")
    for index, item in enumerate(output if isinstance(output, list) else ()):
        if isinstance(item, dict):
            yield from _list_item(item, index)
    kind = status if status in ("incomplete", "cancelled") else "completed"
    yield f"response.{kind}", {"response": value}


def _list_item(item: Item, index: int) -> Events:
    kind = item.get("type")
    where = {"item_id": item.get("id") or "", "output_index": index}
    field, tell = _TOLD.get(kind if isinstance(kind, str) else "", ("", None))
    begun = item
    if tell is not None:
        begun = item | {field: "" if isinstance(item.get(field), str) else []}
        if "status" in item:
            begun["status"] = "in_progress"
    yield "response.output_item.added", {"output_index": index, "item": begun}
    if tell is not None:
        yield from tell(item, where)
    yield "response.output_item.done", {"output_index": index, "item": item}


def _list_parts(value: object) -> list[tuple[int, Item]]:
    return [(at, part) for at, part in enumerate(value if isinstance(value, list) else ()) if isinstance(part, dict)]


def _tell_message(item: Item, where: Item) -> Events:
    for at, part in _list_parts(item.get("content")):
        place = where | {"content_index": at}
        name = "refusal" if part.get("type") == "refusal" else "text"
        begun = part | {name: ""} | ({"annotations": []} if "annotations" in part else {})
        yield "response.content_part.added", place | {"part": begun}
        kind = "response.refusal" if name == "refusal" else "response.output_text"
        more = {"logprobs": part.get("logprobs") or []} if name == "text" else {}
        yield from _tell_text(kind, name, part.get(name), place, more)
        for number, annotation in _list_parts(part.get("annotations")):
            told = {"annotation_index": number, "annotation": annotation}
            yield "response.output_text.annotation.added", place | told
        yield "response.content_part.done", place | {"part": part}


def _tell_text(kind: str, name: str, value: object, place: Item, more: Item) -> Events:
    text = value if isinstance(value, str) else ""
    if text:
        yield f"{kind}.delta", place | {"delta": text} | more
    yield f"{kind}.done", place | {name: text} | more


def _tell_arguments(item: Item, where: Item) -> Events:
    name = {"name": item.get("name") or ""}
    done = list(_tell_text("response.function_call_arguments", "arguments", item.get("arguments"), where, {}))
    kind, said = done.pop()
    yield from done
    yield kind, said | name


def _tell_input(item: Item, where: Item) -> Events:
    yield from _tell_text("response.custom_tool_call_input", "input", item.get("input"), where, {})


def _tell_reasoning(item: Item, where: Item) -> Events:
    for at, part in _list_parts(item.get("summary")):
        place = where | {"summary_index": at}
        yield "response.reasoning_summary_part.added", place | {"part": part | {"text": ""}}
        yield from _tell_text("response.reasoning_summary_text", "text", part.get("text"), place, {})
        yield "response.reasoning_summary_part.done", place | {"part": part}
    for at, part in _list_parts(item.get("content")):
        yield from _tell_text("response.reasoning_text", "text", part.get("text"), where | {"content_index": at}, {})


_TOLD: Mapping[str, tuple[str, Callable[[Item, Item], Events]]] = MappingProxyType(
    {
        "message": ("content", _tell_message),
        "function_call": ("arguments", _tell_arguments),
        "custom_tool_call": ("input", _tell_input),
        "reasoning": ("summary", _tell_reasoning),
    },
)
"""Items that are told bit by bit: the field that is empty at first, and how it is told."""
