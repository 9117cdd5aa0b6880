"""Convert an unstreamed response (Responses API) into the equivalent stream.

An item of an unknown type is sent unchanged in its ``added`` and ``done`` events.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gateway.domain import exact_json
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import Usage
from gateway.formats.chat.responses.responses import (
    UNFINISHED_STATUSES,
    parse_response,
    parse_response_usage,
    record_created,
)
from gateway.formats.errors.openai import Secrets

Item = dict[str, Any]
Events = Iterator[tuple[str, Item]]
_UNFINISHED_FIELDS: Item = {"output": [], "usage": None, "incomplete_details": None, "completed_at": None}


def build_whole(raw: bytes, inference: InferenceRequest, secrets: Secrets = ()) -> tuple[bytes, Usage]:
    """Return an unstreamed response as a stream, and its usage; record the ids of what the response created.

    A response that continues in the background gets only its first events. Raises the error of a failed response, and
    ``ProviderBadResponse``.
    """
    value = parse_response(raw, secrets)
    record_created(value, inference)
    events = [
        b"event: %b\ndata: %b\n\n"
        % (kind.encode(), exact_json.dumps({"type": kind, "sequence_number": number} | fields))
        for number, (kind, fields) in enumerate(_list_events(value))
    ]
    return b"".join(events), parse_response_usage(value, inference)


def _list_events(value: Item) -> Events:
    status = value.get("status")
    snapshot = (
        value
        | {name: empty_value for name, empty_value in _UNFINISHED_FIELDS.items() if name in value}
        | {"output": []}
    )
    is_unfinished = status in UNFINISHED_STATUSES
    snapshot["status"] = status if is_unfinished else "in_progress"
    yield "response.created", {"response": snapshot}
    yield f"response.{snapshot['status']}", {"response": snapshot}
    if is_unfinished:
        return
    output = value.get("output")
    for index, item in enumerate(output if isinstance(output, list) else ()):
        if isinstance(item, dict):
            yield from _list_item(item, index)
    kind = status if status in ("incomplete", "cancelled") else "completed"
    yield f"response.{kind}", {"response": value}


def _list_item(item: Item, index: int) -> Events:
    kind = item.get("type")
    item_ids = {"item_id": item.get("id") or "", "output_index": index}
    field, list_deltas = _DELTA_LISTERS.get(kind if isinstance(kind, str) else "", ("", None))
    opening_item = item
    if list_deltas is not None:
        opening_item = item | {field: "" if isinstance(item.get(field), str) else []}
        if "status" in item:
            opening_item["status"] = "in_progress"
    yield "response.output_item.added", {"output_index": index, "item": opening_item}
    if list_deltas is not None:
        yield from list_deltas(item, item_ids)
    yield "response.output_item.done", {"output_index": index, "item": item}


def _list_parts(value: object) -> list[tuple[int, Item]]:
    return [
        (index, part) for index, part in enumerate(value if isinstance(value, list) else ()) if isinstance(part, dict)
    ]


def _list_message(item: Item, item_ids: Item) -> Events:
    for index, part in _list_parts(item.get("content")):
        part_ids = item_ids | {"content_index": index}
        name = "refusal" if part.get("type") == "refusal" else "text"
        opening_part = part | {name: ""} | ({"annotations": []} if "annotations" in part else {})
        yield "response.content_part.added", part_ids | {"part": opening_part}
        kind = "response.refusal" if name == "refusal" else "response.output_text"
        extra_fields = {"logprobs": part.get("logprobs") or []} if name == "text" else {}
        yield from _list_text(kind, name, part.get(name), part_ids, extra_fields)
        for annotation_index, annotation in _list_parts(part.get("annotations")):
            fields = {"annotation_index": annotation_index, "annotation": annotation}
            yield "response.output_text.annotation.added", part_ids | fields
        yield "response.content_part.done", part_ids | {"part": part}


def _list_text(kind: str, name: str, value: object, part_ids: Item, extra_fields: Item) -> Events:
    text = value if isinstance(value, str) else ""
    if text:
        yield f"{kind}.delta", part_ids | {"delta": text} | extra_fields
    yield f"{kind}.done", part_ids | {name: text} | extra_fields


def _list_arguments(item: Item, item_ids: Item) -> Events:
    name_field = {"name": item.get("name") or ""}
    text_events = list(_list_text("response.function_call_arguments", "arguments", item.get("arguments"), item_ids, {}))
    kind, fields = text_events.pop()
    yield from text_events
    yield kind, fields | name_field


def _list_input(item: Item, item_ids: Item) -> Events:
    yield from _list_text("response.custom_tool_call_input", "input", item.get("input"), item_ids, {})


def _list_reasoning(item: Item, item_ids: Item) -> Events:
    for index, part in _list_parts(item.get("summary")):
        part_ids = item_ids | {"summary_index": index}
        yield "response.reasoning_summary_part.added", part_ids | {"part": part | {"text": ""}}
        yield from _list_text("response.reasoning_summary_text", "text", part.get("text"), part_ids, {})
        yield "response.reasoning_summary_part.done", part_ids | {"part": part}
    for index, part in _list_parts(item.get("content")):
        yield from _list_text(
            "response.reasoning_text", "text", part.get("text"), item_ids | {"content_index": index}, {}
        )


_DELTA_LISTERS: Mapping[str, tuple[str, Callable[[Item, Item], Events]]] = {
    "message": ("content", _list_message),
    "function_call": ("arguments", _list_arguments),
    "custom_tool_call": ("input", _list_input),
    "reasoning": ("summary", _list_reasoning),
}
"""Types of items that are streamed in parts -> the initially empty field, and the function that lists its events."""
