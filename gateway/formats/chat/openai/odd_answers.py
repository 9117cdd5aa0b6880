"""Repair the parts of passed-through chat answers that client libraries would misread.

The openai library reads only the first choice, concatenates all fragments with the same index, including repeated ids
and names, and expects arguments as text. Some servers give several calls the same index (vLLM, lmdeploy), repeat the id
(SGLang), omit index or id, send arguments as an object, or split one message into several choices (GitHub Copilot).
"""

from typing import Any

import orjson

from gateway.domain import exact_json
from gateway.domain.inference_request import InferenceRequest
from gateway.formats.chat.call_ids import find_unused_id
from gateway.formats.chat.openai.chunk_reader import ChoiceCalls
from gateway.formats.wire.json_values import as_object, as_text, list_objects

Json = dict[str, Any]
_JOINT_FIELDS = ("content", "reasoning_content", "reasoning", "refusal")


def join_choices(choices: list[Any]) -> list[Any]:
    """Join the choices of an answer to a request for one choice.

    Returns ``choices`` itself if there is only one, or if one has no message.
    """
    message_fields = [choice.get("message") for choice in list_objects(choices)]
    messages = list_objects(message_fields)
    if not 1 < len(choices) == len(messages):
        return choices
    joint_message: Json = dict(messages[0])
    for name in _JOINT_FIELDS:
        texts = [text for message in messages if isinstance(text := message.get(name), str)]
        if texts:
            joint_message[name] = "".join(texts)
    calls = [call for message in messages for call in list_objects(message.get("tool_calls"))]
    if calls:
        joint_message["tool_calls"] = calls
    images = [image for message in messages for image in list_objects(message.get("images"))]
    if images:
        joint_message["images"] = images
    reason = "tool_calls" if calls else choices[0].get("finish_reason")
    return [{**choices[0], "index": 0, "message": joint_message, "finish_reason": reason}]


def repair_answer(raw: bytes, inference: InferenceRequest, answer_id: str) -> bytes:
    """Return the unstreamed answer to ``inference`` with repairs. Returns ``raw`` itself if no repair is needed.

    New ids of tool calls are made from ``answer_id``.
    """
    value = exact_json.loads(raw)
    choices = join_choices(value["choices"]) if inference.choices == 1 else value["choices"]
    is_changed = repair_calls(choices, inference, answer_id) or choices is not value["choices"]
    return exact_json.dumps(value | {"choices": choices}) if is_changed else raw


def repair_calls(choices: list[Any], inference: InferenceRequest, answer_id: str) -> bool:
    """Repair the tool calls of unstreamed choices in place; return whether any needed a repair."""
    used_ids, is_changed = find_used_ids(inference), False
    for choice in list_objects(choices):
        earlier_ids = used_ids.copy()
        for index, call in enumerate(list_objects(as_object(choice.get("message")).get("tool_calls"))):
            is_changed |= _repair_arguments(call)
            call_id = as_text(call.get("id"))
            if not call_id or call_id in earlier_ids:
                new_id = f"call_{answer_id}_{choice.get('index', 0)}_{index}"
                call["id"] = call_id = find_unused_id(new_id, earlier_ids)
                is_changed = True
            earlier_ids.add(call_id)
    return is_changed


def find_used_ids(inference: InferenceRequest) -> set[str]:
    """Return the tool-call ids in a chat's history: new ids must differ, because clients match results by id."""
    messages = list_objects(inference.body.get("messages")) if inference.operation == "chat" else []
    calls = [call for message in messages for call in list_objects(message.get("tool_calls"))]
    return {call_id for call in calls if (call_id := as_text(call.get("id")))}


class CallRepairer:
    """Repairs the tool-call fragments of one stream."""

    __slots__ = ("_calls", "_is_single", "_used_ids")

    def __init__(self, inference: InferenceRequest) -> None:
        self._is_single = inference.choices == 1
        self._calls: dict[int, ChoiceCalls] = {}
        self._used_ids = find_used_ids(inference)

    def repair(self, event: bytes, payload: bytes) -> bytes:
        try:
            value = exact_json.loads(payload)
        except orjson.JSONDecodeError:
            return event
        if not isinstance(value, dict):
            return event
        chunk_id = as_text(value.get("id")) or "made"
        changes = [self._repair_choice(choice, chunk_id) for choice in list_objects(value.get("choices"))]
        return b"data: " + exact_json.dumps(value) + b"\n\n" if any(changes) else event

    def _repair_choice(self, choice: Json, chunk_id: str) -> bool:
        index = choice.get("index")
        choice_index = index if self._is_single and type(index) is int else 0
        is_changed = choice_index > 0
        if is_changed:
            choice["index"] = index = 0
        calls = self._calls.setdefault(index if type(index) is int else 0, ChoiceCalls(f"{chunk_id}_"))
        for fragment in list_objects(as_object(choice.get("delta")).get("tool_calls")):
            is_changed |= self._repair_fragment(fragment, calls, choice_index)
        return is_changed

    def _repair_fragment(self, fragment: Json, calls: ChoiceCalls, choice_index: int) -> bool:
        function = as_object(fragment.get("function") or fragment.get("custom"))
        name, original_fragment = as_text(function.get("name")), fragment.copy()
        call = calls.assign_call(fragment, name, choice_index)
        fragment["index"] = call.index
        is_changed = _repair_arguments(fragment)
        if call.is_started:  # the library would append a repeated name or id to the first one
            is_changed |= bool(name)
            function.pop("name", None)
            fragment.pop("id", None)
        elif name:
            call.name = name
            if not call.id or call.id in self._used_ids:
                call.id = fragment["id"] = find_unused_id(f"call_{calls.prefix}{call.index}", self._used_ids)
            self._used_ids.add(call.id)
        return is_changed or any(fragment.get(key) != original_fragment.get(key) for key in ("index", "id"))


def _repair_arguments(call: Json) -> bool:
    """Serialize the arguments of a call if they are an object; return whether they were."""
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), dict):
        return False
    function["arguments"] = exact_json.dumps(function["arguments"]).decode()
    return True
