"""Read the answers to a request: texts, reasoning and tool calls, from JSON or from the events of a stream."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs

from gateway.formats.transcript.content import get_object, get_text, join_content, list_objects, read_arguments
from gateway.formats.transcript.messages import ToolCall
from gateway.frozen import frozen

MAX_ANSWERS = 128
_PROMPT_NAMES = ("prompt_tokens", "input_tokens", "promptTokenCount")
_COMPLETION_NAMES = ("completion_tokens", "output_tokens", "candidatesTokenCount")
_EVENT_PREFIX = "response."
_TEXT_DELTAS = frozenset(
    {"response.output_text.delta", "response.refusal.delta", "response.text.delta", "response.audio_transcript.delta",
     "response.output_audio_transcript.delta"}
)  # fmt: skip
_RESPONSE_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed", "response.done"})
"""Events that end a response; ``response.done`` is that of realtime sessions."""


@frozen
class ShownAnswer:
    """One answer. ``finish_reason`` is the format's own word, empty if the answer has none."""

    text: str
    reasoning: str
    tool_calls: Sequence[ToolCall]
    finish_reason: str


@frozen
class ShownAnswers:
    """The answers to a request, usually one. The counts are those in the client's answer; None if it had none."""

    answers: Sequence[ShownAnswer] = ()
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


def read_answers(values: Iterable[Any]) -> ShownAnswers:
    """Return the answers in ``values``: the data of a stream's events, or one whole body."""
    reader = _Reader()
    for value in values:
        items = value if isinstance(value, list) else [value]  # Gemini streams JSON as one list
        for item in items:
            if isinstance(item, dict):
                reader.read(item)
    return reader.build()


@attrs.define(eq=False)
class _Call:
    name: str = ""
    id: str = ""
    arguments: list[str] = attrs.Factory(list)


@attrs.define(eq=False)
class _Answer:
    """An answer while its pieces are read. ``latest`` has the latest of ``calls`` for each key."""

    text: list[str] = attrs.Factory(list)
    reasoning: list[str] = attrs.Factory(list)
    calls: list[_Call] = attrs.Factory(list)
    latest: dict[int | str, _Call] = attrs.Factory(dict)
    finish_reason: str = ""

    def find_call(self, key: Any, name: str = "", call_id: str = "") -> _Call:
        """Return the call with ``key``. A new call begins if there is none, or if a piece with a name has another id.

        Some providers write the index 0 for each of several calls.
        """
        key = key if isinstance(key, int | str) else len(self.calls)
        call = self.latest.get(key)
        if call is None or (name and call.id and call_id and call_id != call.id):
            call = self.latest[key] = _Call()
            self.calls.append(call)
        call.name, call.id = call.name or name, call.id or call_id
        return call

    def build(self) -> ShownAnswer:
        calls = [ToolCall(call.name, "".join(call.arguments)) for call in self.calls]
        return ShownAnswer("".join(self.text), "".join(self.reasoning), calls, self.finish_reason)


class _Reader:
    """Reads the values of a body or stream one after another, and builds the answers."""

    def __init__(self) -> None:
        self._answers: dict[int, _Answer] = {}
        self._usage: dict[str, int] = {}
        self._responses: dict[str, int] = {}
        """The numbers of the responses of a realtime session, by id."""

    def build(self) -> ShownAnswers:
        answers = [answer.build() for _, answer in sorted(self._answers.items())]
        return ShownAnswers(answers, self._usage.get("prompt"), self._usage.get("completion"))

    def read(self, value: dict[str, Any]) -> None:
        kind = get_text(value, "type")
        if "choices" in value:
            self._read_choices(value)
        elif "candidates" in value or "usageMetadata" in value:
            self._read_candidates(value)
        elif kind.startswith(_EVENT_PREFIX):
            self._read_response_event(kind, value)
        elif "output" in value:
            self._read_response(value, self._find())
        elif kind in _MESSAGE_EVENTS:
            _MESSAGE_EVENTS[kind](self, value)
        self._note_usage(get_object(value, "usage"))

    def _find(self, index: Any = 0) -> _Answer:
        number = index if isinstance(index, int) and 0 <= index < MAX_ANSWERS else 0
        return self._answers.setdefault(number, _Answer())

    def _note_usage(self, usage: Mapping[str, Any]) -> None:
        for kind, names in (("prompt", _PROMPT_NAMES), ("completion", _COMPLETION_NAMES)):
            for name in names:
                if type(usage.get(name)) is int:
                    self._usage[kind] = usage[name]

    def _read_choices(self, value: dict[str, Any]) -> None:
        for choice in list_objects(value["choices"]):
            answer = self._find(choice.get("index"))
            piece = get_object(choice, "delta") or get_object(choice, "message") or choice
            answer.text.append(get_text(piece, "text") or join_content(piece.get("content")))
            answer.text.append(get_text(piece, "refusal"))
            answer.reasoning.append(get_text(piece, "reasoning_content") or get_text(piece, "reasoning"))
            answer.finish_reason = get_text(choice, "finish_reason") or answer.finish_reason
            for number, call in enumerate(list_objects(piece.get("tool_calls"))):
                function = get_object(call, "function") or get_object(call, "custom")
                name, call_id = get_text(function, "name"), get_text(call, "id")
                found_call = answer.find_call(call.get("index", number), name, call_id)
                found_call.arguments.append(get_text(function, "arguments") or get_text(function, "input"))

    def _read_candidates(self, value: dict[str, Any]) -> None:
        for candidate in list_objects(value.get("candidates")):
            answer = self._find(candidate.get("index"))
            answer.finish_reason = get_text(candidate, "finishReason") or answer.finish_reason
            for part in list_objects(get_object(candidate, "content").get("parts")):
                call = get_object(part, "functionCall")
                if call:
                    shown_call = answer.find_call(None, get_text(call, "name"))
                    shown_call.arguments.append(read_arguments(call.get("args")))
                else:
                    (answer.reasoning if part.get("thought") is True else answer.text).append(join_content(part))
        self._note_usage(get_object(value, "usageMetadata"))

    def _read_message(self, message: dict[str, Any]) -> None:
        """Read a whole answer of the Messages API."""
        answer = self._find()
        for number, block in enumerate(list_objects(message.get("content"))):
            self._begin_block({"index": number, "content_block": block})
        answer.finish_reason = get_text(message, "stop_reason") or answer.finish_reason

    def _start_message(self, event: dict[str, Any]) -> None:
        self._note_usage(get_object(get_object(event, "message"), "usage"))

    def _begin_block(self, event: dict[str, Any]) -> None:
        block, answer = get_object(event, "content_block"), self._find()
        kind = get_text(block, "type")
        if kind in {"tool_use", "server_tool_use"}:
            arguments = read_arguments(block.get("input"))
            call = answer.find_call(event.get("index"), get_text(block, "name"))
            call.arguments.append("" if arguments == "{}" else arguments)  # a stream brings them later
        elif kind == "thinking":
            answer.reasoning.append(get_text(block, "thinking"))
        elif kind == "text":
            answer.text.append(get_text(block, "text"))

    def _continue_block(self, event: dict[str, Any]) -> None:
        delta, answer = get_object(event, "delta"), self._find()
        answer.text.append(get_text(delta, "text"))
        answer.reasoning.append(get_text(delta, "thinking"))
        if "partial_json" in delta:
            answer.find_call(event.get("index")).arguments.append(get_text(delta, "partial_json"))

    def _end_message(self, event: dict[str, Any]) -> None:
        answer = self._find()
        answer.finish_reason = get_text(get_object(event, "delta"), "stop_reason") or answer.finish_reason

    def _read_response(self, response: dict[str, Any], answer: _Answer) -> None:
        """Read a whole answer of the Responses API into ``answer``."""
        answer.finish_reason = get_text(response, "status")
        for number, item in enumerate(list_objects(response.get("output"))):
            kind = get_text(item, "type")
            if kind == "message":
                answer.text.append(join_content(item.get("content")))
            elif kind == "reasoning":
                parts = [*list_objects(item.get("summary")), *list_objects(item.get("content"))]
                answer.reasoning.append(join_content(parts))
            elif kind.endswith("_call"):
                call = answer.find_call(number, get_text(item, "name") or kind)
                call.arguments.append(get_text(item, "arguments") or get_text(item, "input"))

    def _read_response_event(self, kind: str, event: dict[str, Any]) -> None:
        answer, delta = self._find(self._number_response(event)), get_text(event, "delta")
        if kind in _TEXT_DELTAS:
            answer.text.append(delta)
        elif kind.startswith("response.reasoning") and kind.endswith(".delta"):
            answer.reasoning.append(delta)
        elif kind in {"response.function_call_arguments.delta", "response.custom_tool_call_input.delta"}:
            answer.find_call(event.get("output_index")).arguments.append(delta)
        elif kind == "response.output_item.added":
            item = get_object(event, "item")
            if get_text(item, "type").endswith("_call"):
                answer.find_call(event.get("output_index"), get_text(item, "name") or get_text(item, "type"))
        elif kind in _RESPONSE_ENDS:
            response = get_object(event, "response")
            answer.finish_reason = get_text(response, "status")
            self._add_usage(get_object(response, "usage"))
            if not answer.text and not answer.calls:  # a stream without pieces
                self._read_response(response, answer)

    def _number_response(self, event: dict[str, Any]) -> int:
        """Return the number of an event's response, at most ``MAX_ANSWERS`` - 1: a realtime session has several."""
        response_id = get_text(event, "response_id") or get_text(get_object(event, "response"), "id")
        number = self._responses.setdefault(response_id, len(self._responses)) if response_id else 0
        return min(number, MAX_ANSWERS - 1)

    def _add_usage(self, usage: Mapping[str, Any]) -> None:
        """Add the usage of a response, of which a realtime session has several."""
        earlier_usage = self._usage
        self._usage = {}
        self._note_usage(usage)
        for kind, tokens in earlier_usage.items():
            self._usage[kind] = self._usage.get(kind, 0) + tokens


_MESSAGE_EVENTS: Mapping[str, Callable[[_Reader, dict[str, Any]], None]] = {
    "message": _Reader._read_message,  # noqa: SLF001 - of the class above
    "message_start": _Reader._start_message,  # noqa: SLF001
    "content_block_start": _Reader._begin_block,  # noqa: SLF001
    "content_block_delta": _Reader._continue_block,  # noqa: SLF001
    "message_delta": _Reader._end_message,  # noqa: SLF001
}
