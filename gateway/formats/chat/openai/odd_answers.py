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
_JOINED = ("content", "reasoning_content", "reasoning", "refusal")


def join_choices(choices: list[Any]) -> list[Any]:
    """Join the choices of an answer to a request for one choice; unchanged if one of them has no message."""
    found = [choice.get("message") for choice in list_objects(choices)]
    messages = list_objects(found)
    if not 1 < len(choices) == len(messages):
        return choices
    joined: Json = dict(messages[0])
    for name in _JOINED:
        texts = [text for message in messages if isinstance(text := message.get(name), str)]
        if texts:
            joined[name] = "".join(texts)
    calls = [call for message in messages for call in list_objects(message.get("tool_calls"))]
    if calls:
        joined["tool_calls"] = calls
    images = [image for message in messages for image in list_objects(message.get("images"))]
    if images:
        joined["images"] = images
    reason = "tool_calls" if calls else choices[0].get("finish_reason")
    return [{**choices[0], "index": 0, "message": joined, "finish_reason": reason}]


def repair_answer(raw: bytes, inference: InferenceRequest, answer_id: str) -> bytes:
    """Return an unstreamed answer to ``inference`` with repairs; the same bytes if none are needed."""
    value = exact_json.loads(raw)
    listed = join_choices(value["choices"]) if inference.choices == 1 else value["choices"]
    changed = repair_calls(listed, inference, answer_id) or listed is not value["choices"]
    return exact_json.dumps(value | {"choices": listed}) if changed else raw


def repair_calls(choices: list[Any], inference: InferenceRequest, answer_id: str) -> bool:
    """Repair the tool calls of unstreamed choices in place; return whether any needed a repair."""
    used, changed = find_used_ids(inference), False
    for choice in list_objects(choices):
        known = used.copy()
        for at, called in enumerate(list_objects(as_object(choice.get("message")).get("tool_calls"))):
            changed |= _repair_arguments(called)
            name = as_text(called.get("id"))
            if not name or name in known:
                made = f"call_{answer_id}_{choice.get('index', 0)}_{at}"
                called["id"] = name = find_unused_id(made, known)
                changed = True
            known.add(name)
    return changed


def find_used_ids(inference: InferenceRequest) -> set[str]:
    """Return the tool-call ids in a chat's history: new ids must differ, because clients match results by id."""
    messages = list_objects(inference.body.get("messages")) if inference.operation == "chat" else []
    calls = [called for message in messages for called in list_objects(message.get("tool_calls"))]
    return {name for called in calls if (name := as_text(called.get("id")))}


class CallRepairer:
    """Repairs the tool-call fragments of one stream."""

    __slots__ = ("_calls", "_ids", "_single")

    def __init__(self, inference: InferenceRequest) -> None:
        self._single = inference.choices == 1
        self._calls: dict[int, ChoiceCalls] = {}
        self._ids = find_used_ids(inference)

    def repair(self, event: bytes, payload: bytes) -> bytes:
        try:
            value = exact_json.loads(payload)
        except orjson.JSONDecodeError:
            return event
        if not isinstance(value, dict):
            return event
        made = as_text(value.get("id")) or "made"
        changed = [self._repair_choice(choice, made) for choice in list_objects(value.get("choices"))]
        return b"data: " + exact_json.dumps(value) + b"\n\n" if any(changed) else event

    def _repair_choice(self, choice: Json, made: str) -> bool:
        index = choice.get("index")
        place = index if self._single and type(index) is int else 0
        changed = place > 0
        if changed:
            choice["index"] = index = 0
        calls = self._calls.setdefault(index if type(index) is int else 0, ChoiceCalls(f"{made}_"))
        for fragment in list_objects(as_object(choice.get("delta")).get("tool_calls")):
            changed |= self._repair_fragment(fragment, calls, place)
        return changed

    def _repair_fragment(self, fragment: Json, calls: ChoiceCalls, place: int) -> bool:
        function = as_object(fragment.get("function") or fragment.get("custom"))
        name, before = as_text(function.get("name")), fragment.copy()
        call = calls.find_call(fragment, name, place)
        fragment["index"] = call.index
        changed = _repair_arguments(fragment)
        if call.started:  # the library would append a repeated name or id to the first one
            changed |= bool(name)
            function.pop("name", None)
            fragment.pop("id", None)
        elif name:
            call.name = name
            if not call.id or call.id in self._ids:
                call.id = fragment["id"] = find_unused_id(f"call_{calls.prefix}{call.index}", self._ids)
            self._ids.add(call.id)
        return changed or any(fragment.get(key) != before.get(key) for key in ("index", "id"))


def _repair_arguments(call: Json) -> bool:
    """Serialize the arguments of a call if they are an object; return whether they were."""
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), dict):
        return False
    function["arguments"] = exact_json.dumps(function["arguments"]).decode()
    return True
