"""Convert an unstreamed chat or legacy completion into the equivalent stream, with all fields of the provider."""

from typing import Any

from gateway.domain import exact_json
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import Usage
from gateway.errors import ProviderBadResponse
from gateway.formats.chat.openai.chat import DONE_EVENT, parse_answer_object, parse_chat_answer
from gateway.formats.chat.openai.odd_answers import repair_calls
from gateway.formats.errors.openai import Secrets
from gateway.formats.wire.json_values import as_text, list_objects

_CHUNK_OBJECT = "chat.completion.chunk"
_CHUNK_FIELDS = frozenset({"choices", "usage"})


def build_whole(raw: bytes, inference: InferenceRequest, secrets: Secrets = ()) -> tuple[bytes, Usage]:
    """Return an unstreamed answer as a stream, end mark included, and its usage. Raises ``ProviderError``.

    Tool calls are repaired. The ids of generated audio are recorded in ``inference.made``.
    """
    value = parse_answer_object(raw, secrets, exact=True)
    usage = parse_chat_answer(value, inference)
    shared_fields = {name: field for name, field in value.items() if name not in _CHUNK_FIELDS}
    if inference.operation == "chat":
        shared_fields["object"] = _CHUNK_OBJECT
        repair_calls(value["choices"], inference, as_text(value.get("id")) or "made")
    chunks = [
        shared_fields | {"choices": [choice]}
        for choice in _list_chunk_choices(value["choices"], chat=inference.operation == "chat")
    ]
    if inference.include_usage:
        chunks = [chunk | {"usage": None} for chunk in chunks]
        if isinstance(value.get("usage"), dict):
            chunks.append(shared_fields | {"choices": [], "usage": value["usage"]})
    return b"".join(b"data: " + exact_json.dumps(chunk) + b"\n\n" for chunk in chunks) + DONE_EVENT, usage


def _list_chunk_choices(choices: list[Any], *, chat: bool) -> list[dict[str, Any]]:
    """Return two chunk choices for each choice: its content, and its finish reason.

    Choices are renumbered, because some servers index all with 0.

    Raises ``ProviderBadResponse`` for a choice that is no object.
    """
    chunk_choices: list[dict[str, Any]] = []
    for index, choice in enumerate(choices):
        if not isinstance(choice, dict):
            raise ProviderBadResponse("The provider's answer has a choice that is no object")
        fields = {name: value for name, value in choice.items() if name != "message"} | {"index": index}
        delta = _make_delta(choice.get("message")) if chat else {}
        reason = choice.get("finish_reason") or ("tool_calls" if delta.get("tool_calls") else "stop")
        chunk_choices.append(fields | {"finish_reason": None} | ({"delta": delta} if chat else {}))
        last_choice: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
        chunk_choices.append(last_choice | {"index": index, "logprobs": None, "finish_reason": reason})
    return chunk_choices


def _make_delta(message: object) -> dict[str, Any]:
    """Convert a message into one delta with all its content.

    Tool calls get an index. Null fields are dropped, except ``content``.
    Raises ``ProviderBadResponse`` if the choice has no message.
    """
    if not isinstance(message, dict):
        raise ProviderBadResponse("The provider's answer has a choice without a message")
    delta = {name: value for name, value in message.items() if value is not None or name == "content"}
    calls = delta.pop("tool_calls", None)
    if isinstance(calls, list) and calls:
        delta["tool_calls"] = [call | {"index": index} for index, call in enumerate(list_objects(calls))]
    return {"role": "assistant"} | delta
