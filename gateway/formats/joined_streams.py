"""Joins a complete stream into the JSON answer with the same content, in the client's format.

Fields that the gateway does not know are kept, too: the pieces of a text and the items of a list are joined; the last
one of several other values counts. Sources: the vendors' API references; ``accumulate_event`` and ``accumulate_delta``
of the Python libraries ``anthropic`` and ``openai``.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gateway.domain import exact_json
from gateway.domain.operation import Operation
from gateway.domain.usage import Usage
from gateway.formats.chat.model import UsageReport
from gateway.formats.chat.openai.stream import build_usage
from gateway.formats.wire.json_values import as_object
from gateway.formats.wire.sse import SseSplitter, parse_data

Body = dict[str, Any]
_RESPONSE_ENDS = frozenset({"response.completed", "response.incomplete"})
_TEXT_FIELDS = frozenset(
    {"content", "refusal", "reasoning", "reasoning_content", "arguments", "input", "text", "summary", "thinking",
     "signature", "partial_json"}
)  # fmt: skip
"""Fields whose texts come in pieces."""
_CHUNK_FIELDS = frozenset({"choices", "object", "usage", "obfuscation"})
_PARTIAL_FIELDS = frozenset({"citationMetadata", "logprobsResult"})
"""Objects of a Gemini candidate whose lists come in pieces."""


class _Ambiguous(Exception):
    """It is unclear to which text or object a piece of the stream belongs."""


def join_stream(stream: bytes, operation: Operation, usage: Usage) -> bytes | None:
    """Return the JSON answer; None for a stream that is ambiguous, failed, without an answer, or of another operation.

    ``stream`` must be complete: with chats and Gemini's API, a part of a stream gives a part of the answer. ``usage``
    is added if the stream has none, because its client did not request it. Raises ``JSONDecodeError``,
    ``JSONEncodeError``, ``EventTooLong``.
    """
    join = _JOINERS.get(operation)
    values = _list_values(stream)
    if join is None or any("error" in value and value["error"] is not None for value in values):
        return None
    try:
        answer = join(values)
    except _Ambiguous:
        return None
    if answer is None:
        return None
    if "usage" in answer and answer["usage"] is None:
        answer["usage"] = build_usage(UsageReport(usage, usage.reasoning_tokens))
    return exact_json.dumps(_finish(answer))


class _Pieces(list[str]):
    """A text while its pieces are joined. Appending each piece to a text would take quadratic time."""


def _finish(value: Any) -> Any:
    if isinstance(value, _Pieces):
        return "".join(value)
    if isinstance(value, dict):
        return {name: _finish(item) for name, item in value.items()}
    return [_finish(item) for item in value] if isinstance(value, list) else value


def _add_text(holder: Body, name: str, text: str) -> None:
    former = holder.get(name)
    if isinstance(former, _Pieces):
        former.append(text)
    else:
        holder[name] = _Pieces([former, text] if isinstance(former, str) else [text])


def _list_values(stream: bytes) -> list[Body]:
    """Return the JSON objects that are the data of events. Raises ``JSONDecodeError`` and ``EventTooLong``."""
    splitter = SseSplitter()
    events = [*splitter.split(stream), splitter.take()]
    payloads = [payload for payload in map(parse_data, events) if payload is not None and payload.startswith(b"{")]
    return [value for value in map(exact_json.loads, payloads) if isinstance(value, dict)]


def _join_chat(chunks: Iterable[Body]) -> Body | None:
    answer = _join_chunks(chunks, "chat.completion")
    for choice in [] if answer is None else answer["choices"]:
        message = choice["message"] = as_object(choice.get("message"))
        for name, value in (("role", "assistant"), ("content", None), ("refusal", None)):
            message.setdefault(name, value)
        for call in _list_objects(message.get("tool_calls")):
            call.pop("index", None)
    return answer


def _join_completion(chunks: Iterable[Body]) -> Body | None:
    return _join_chunks(chunks, "text_completion")


def _join_chunks(chunks: Iterable[Body], object_name: str) -> Body | None:
    """Join the chunks of OpenAI's APIs; None if no chunk has an item in ``choices``. Raises ``_Ambiguous``."""
    head: Body = {}
    choices: dict[int, Body] = {}
    usage = None
    for chunk in chunks:
        _overwrite(head, {name: value for name, value in chunk.items() if name not in _CHUNK_FIELDS})
        usage = chunk.get("usage") or usage
        for choice in _list_objects(chunk.get("choices")):
            number = _get_index(choice)
            joined = choices.setdefault(number, {"index": number})
            _merge(joined, {"message" if name == "delta" else name: value for name, value in choice.items()})
    if not choices:
        return None
    ordered = [choices[number] for number in sorted(choices)]
    return {**head, "object": object_name, "choices": ordered, "usage": usage}


def _join_message(events: Iterable[Body]) -> Body | None:
    """Join the events of the Messages API; None for an incomplete stream. Raises ``_Ambiguous``."""
    message: Body | None = None
    blocks: dict[int, Body] = {}
    is_whole = False
    for event in events:
        match event.get("type"):
            case "message_start":
                message = dict(as_object(event.get("message")))
            case "content_block_start":
                blocks[_get_index(event)] = dict(as_object(event.get("content_block")))
            case "content_block_delta":
                _merge_block(blocks.setdefault(_get_index(event), {}), as_object(event.get("delta")))
            case "message_delta" if message is not None:
                _end_message(message, event)
            case "message_stop":
                is_whole = True
    if message is None or not is_whole:
        return None
    message["content"] = [_end_block(block) for block in blocks.values()]
    return message


def _merge_block(block: Body, delta: Body) -> None:
    for name, value in delta.items():
        if name == "citation":
            _merge(block, {"citations": [value]})
        elif name != "type":
            _merge(block, {name: value})


def _end_block(block: Body) -> Body:
    arguments = "".join(block.pop("partial_json", ""))
    return {**block, "input": exact_json.loads(arguments.encode())} if arguments else block


def _end_message(message: Body, event: Body) -> None:
    message.update(as_object(event.get("delta")))
    for name, value in event.items():
        if name == "usage":
            usage = message[name] = as_object(message.get(name))
            _overwrite(usage, as_object(value))
        elif name not in {"type", "delta"}:
            message[name] = value


def _join_content(chunks: Iterable[Body]) -> Body | None:
    """Join the chunks of Gemini's API; None if they have neither candidates nor feedback. Raises ``_Ambiguous``."""
    answer: Body = {}
    candidates: dict[int, Body] = {}
    for chunk in chunks:
        _overwrite(answer, {name: value for name, value in chunk.items() if name != "candidates"})
        for candidate in _list_objects(chunk.get("candidates")):
            _merge_candidate(candidates.setdefault(_get_index(candidate), {}), candidate)
    if candidates:
        answer = {"candidates": [candidates[number] for number in sorted(candidates)], **answer}
    return answer if candidates or "promptFeedback" in answer else None


def _merge_candidate(joined: Body, candidate: Body) -> None:
    for name, value in candidate.items():
        if name == "content" and isinstance(value, dict):
            content = joined[name] = as_object(joined.get(name))
            _overwrite(content, {field: item for field, item in value.items() if field != "parts"})
            parts = content.setdefault("parts", [])
            for part in _list_objects(value.get("parts")):
                _add_part(parts, part)
        elif name in _PARTIAL_FIELDS and isinstance(value, dict):
            _merge(joined, {name: value})
        elif name == "groundingMetadata" and isinstance(value, dict):
            _merge_grounding(joined.setdefault(name, {}), value)
        else:
            _overwrite(joined, {name: value})


def _merge_grounding(joined: Body, fields: Body) -> None:
    """Add the sources of a chunk. It has none, or all sources so far: other fields refer to them by their position.

    Raises ``_Ambiguous`` if the earlier sources have changed.
    """
    for name, value in fields.items():
        former, longer = joined.get(name), value
        if isinstance(former, list) and isinstance(value, list):
            shorter, longer = sorted((former, value), key=len)
            if longer[: len(shorter)] != shorter:
                raise _Ambiguous
        _overwrite(joined, {name: longer})


def _add_part(parts: list[Body], part: Body) -> None:
    """Add a part to ``parts``.

    A text is appended to the last part's text if both or neither are thoughts, and the last part is not signed.
    """
    last, text = parts[-1] if parts else {}, part.get("text")
    is_next = isinstance(last.get("text"), _Pieces) and last.get("thought") == part.get("thought")
    if not (is_next and isinstance(text, str)) or "thoughtSignature" in last:
        last = {}
        parts.append(last)
    last.update({name: value for name, value in part.items() if name != "text"})
    if isinstance(text, str):
        _add_text(last, "text", text)


def _find_response(events: list[Body]) -> Body | None:
    # The last event of the Responses API repeats all content.
    last = events[-1] if events else {}
    response = last.get("response")
    return response if last.get("type") in _RESPONSE_ENDS and isinstance(response, dict) else None


def _merge(joined: Body, fields: Body) -> None:
    """Add the fields of a piece to those joined so far. Raises ``_Ambiguous``."""
    for name, value in fields.items():
        former = joined.get(name)
        if isinstance(value, str) and name in _TEXT_FIELDS:
            _add_text(joined, name, value)
        elif isinstance(value, dict):
            joined[name] = former if isinstance(former, dict) else {}
            _merge(joined[name], value)
        elif isinstance(value, list):
            joined[name] = former if type(former) is list else []
            _merge_items(joined[name], value)
        else:
            _overwrite(joined, {name: value})


def _merge_items(joined: list[Any], items: Iterable[Any]) -> None:
    """Add items to a list. An object with an ``index``, such as a tool call, is merged into the one with that index.

    Raises ``_Ambiguous``.
    """
    for item in items:
        if not isinstance(item, dict):
            joined.append(item)
            continue
        former_items = [former for former in _list_objects(joined) if _continues(former, item)]
        if not former_items:
            former_items = [{}]
            joined += former_items
        _merge(former_items[-1], item)


def _continues(former: Body, item: Body) -> bool:
    """Return whether ``item`` is a later piece of ``former``. Each type of item has its own indexes.

    Raises ``_Ambiguous`` for an index that is no number.

    Some providers write the index 0 for each of several tool calls: a piece with a name and another id begins a call.
    """
    if item.get("index") is None or former.get("index") is None or _get_index(item) != _get_index(former):
        return False
    tool = as_object(item.get("function")) or as_object(item.get("custom"))
    if tool.get("name") and item.get("id") and former.get("id") and item["id"] != former["id"]:
        return False
    return not item.get("type") or not former.get("type") or item["type"] == former["type"]


def _overwrite(joined: Body, fields: Body) -> None:
    """Set fields. Null and an empty text, such as the id in later pieces of a tool call, replace no earlier value."""
    for name, value in fields.items():
        is_empty = value is None or value == ""
        if not is_empty or joined.get(name) is None:
            joined[name] = value


def _get_index(value: Body) -> int:
    index = value.get("index")
    if index is not None and type(index) is not int:
        raise _Ambiguous
    return index or 0


def _list_objects(value: Any) -> list[Body]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


_JOINERS: Mapping[Operation, Callable[[list[Body]], Body | None]] = {
    "chat": _join_chat,
    "completions": _join_completion,
    "generate_content": _join_content,
    "messages": _join_message,
    "responses": _find_response,
}
