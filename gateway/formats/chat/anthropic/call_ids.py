"""Keep tool call ids unique when a Messages chat is passed through to a provider of the same format.

Servers that number the calls of each answer from the start repeat ids. Anthropic rejects such a chat with 400
"`tool_use` ids must be unique". Claude Code finds results by id and takes a call with a repeated id for one that has a
result.
"""

from typing import Any

from gateway.domain import exact_json
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import Usage
from gateway.formats.chat.anthropic.passthrough import MessagesPassthrough
from gateway.formats.chat.anthropic.response import parse_passed_answer
from gateway.formats.chat.call_ids import find_unused_id
from gateway.formats.errors.openai import Secrets
from gateway.formats.wire.json_values import as_object, as_text, list_objects, loads_or_none

Body = dict[str, Any]
_CALL_TYPE = b'"tool_use"'


def find_used_ids(inference: InferenceRequest) -> set[str]:
    """Return the ids of the tool calls in a request's history; an empty set for a request without tools."""
    if not inference.body.get("tools"):
        return set()
    blocks = [block for message in inference.body["messages"] for block in list_objects(message["content"])]
    return {as_text(block.get("id")) for block in blocks if block["type"] == "tool_use"} - {""}


def parse_answer(raw: bytes, inference: InferenceRequest, secrets: Secrets = ()) -> tuple[bytes, Usage]:
    """Return an unstreamed answer and its usage. Tool call ids that occur in the history are replaced.

    Raises ``ProviderError``.
    """
    usage = parse_passed_answer(raw, inference, secrets)
    if _CALL_TYPE not in raw or not (used_ids := find_used_ids(inference)):
        return raw, usage
    message = exact_json.loads(raw)
    changes = [_make_id_unique(block, used_ids) for block in list_objects(message["content"])]
    return exact_json.dumps(message) if any(changes) else raw, usage


def open_stream(inference: InferenceRequest, secrets: Secrets = ()) -> MessagesPassthrough:
    """Return the passthrough of a stream. It checks call ids only if the history has tool calls."""
    used_ids = find_used_ids(inference)
    return _UniqueIdPassthrough(inference, secrets, used_ids) if used_ids else MessagesPassthrough(inference, secrets)


class _UniqueIdPassthrough(MessagesPassthrough):
    """Replaces the ids of a stream's tool calls that are in ``used_ids``."""

    __slots__ = ("_used_ids",)

    def __init__(self, inference: InferenceRequest, secrets: Secrets, used_ids: set[str]) -> None:
        super().__init__(inference, secrets)
        self._used_ids = used_ids

    def feed(self, data: bytes) -> bytes:
        return self._feed_by_event(data) if _CALL_TYPE in data else super().feed(data)

    def _filter_event(self, event: bytes, payload: bytes) -> bytes:
        forwarded_event = super()._filter_event(event, payload)
        if not forwarded_event or _CALL_TYPE not in payload:
            return forwarded_event
        value = as_object(loads_or_none(payload, exact=True))
        if not _make_id_unique(as_object(value.get("content_block")), self._used_ids):
            return forwarded_event
        return b"event: content_block_start\ndata: " + exact_json.dumps(value) + b"\n\n"


def _make_id_unique(block: Body, used_ids: set[str]) -> bool:
    """Give a tool call an id that is not in ``used_ids``, and add the id there. Return whether the id changed."""
    original_id = as_text(block.get("id"))
    if block.get("type") != "tool_use" or not original_id:
        return False
    block["id"] = call_id = find_unused_id(original_id, used_ids)
    used_ids.add(call_id)
    return call_id != original_id
