"""A whole answer of the convention, chat or legacy completion, as the stream that says the same.

Shapes: the convention's OpenAPI document, ``CreateChatCompletionResponse``, ``CreateChatCompletionStreamResponse`` and
``CreateCompletionResponse``. Every field that a provider says is kept, those it invented too.
"""

from typing import Any

import orjson

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import Usage
from gateway.errors import ProviderBadResponse
from gateway.formats.openai.chat import DONE_EVENT, parse_answer_object, parse_chat_answer
from gateway.formats.openai.errors import Secrets

_CHUNK = "chat.completion.chunk"
_OUTER = frozenset({"choices", "usage"})


def build_whole(raw: bytes, call: InferenceRequest, secrets: Secrets = ()) -> tuple[bytes, Usage]:
    """A whole answer to a call for a stream -> its chunks and end mark, and what it used. Raises
    ``ProviderBadResponse``.

    Each choice is one chunk that says all of it and one with its finish reason; the usage frame follows if the caller
    asked for it.
    """
    value = parse_answer_object(raw, secrets)
    used = parse_chat_answer(value, call)
    head = {name: said for name, said in value.items() if name not in _OUTER}
    if call.operation == "chat":
        head["object"] = _CHUNK
    frames = [head | {"choices": [part]} for part in _list_parts(value["choices"], chat=call.operation == "chat")]
    if call.include_usage:
        frames = [frame | {"usage": None} for frame in frames]
        if isinstance(value.get("usage"), dict):
            frames.append(head | {"choices": [], "usage": value["usage"]})
    return b"".join(b"data: " + orjson.dumps(frame) + b"\n\n" for frame in frames) + DONE_EVENT, used


def _list_parts(choices: list[Any], *, chat: bool) -> list[dict[str, Any]]:
    """Two chunks' worth of each choice. It is counted by its place: some servers give every choice the index 0."""
    parts: list[dict[str, Any]] = []
    for index, choice in enumerate(choices):
        if not isinstance(choice, dict):
            raise ProviderBadResponse("The provider's answer has a choice that is no object")
        said = {name: told for name, told in choice.items() if name != "message"} | {"index": index}
        delta = _make_delta(choice.get("message")) if chat else {}
        reason = choice.get("finish_reason") or ("tool_calls" if delta.get("tool_calls") else "stop")
        parts.append(said | {"finish_reason": None} | ({"delta": delta} if chat else {}))
        silence: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
        parts.append(silence | {"index": index, "logprobs": None, "finish_reason": reason})
    return parts


def _make_delta(message: object) -> dict[str, Any]:
    """A message as the delta that says all of it: tool calls are counted, and what is null is not said."""
    if not isinstance(message, dict):
        raise ProviderBadResponse("The provider's answer has a choice without a message")
    said = {name: value for name, value in message.items() if value is not None or name == "content"}
    calls = said.pop("tool_calls", None)
    if isinstance(calls, list) and calls:
        said["tool_calls"] = [call | {"index": at} for at, call in enumerate(calls) if isinstance(call, dict)]
    return {"role": "assistant"} | said
