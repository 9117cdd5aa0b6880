"""Converts parsed chat chunks of the OpenAI API format into events, and assigns fragments to tool calls.

Shapes: OpenAI's OpenAPI document, ``CreateChatCompletionStreamResponse``. Vendors' documented additions: reasoning as
``reasoning_content`` (DeepSeek) or ``reasoning`` (OpenRouter, vLLM) or as parts of ``content`` (Mistral: reasoning),
images as ``images`` (OpenRouter: image generation), usage within the last choice (Moonshot), Gemini's signature of a
tool call in ``extra_content`` (Google: thought signatures).
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from gateway.domain import exact_json
from gateway.domain.usage import attach_tier, parse_count, parse_usage
from gateway.errors import ProviderBadResponse
from gateway.formats import chat
from gateway.formats.call_ids import find_unused_id
from gateway.formats.json_values import as_object, as_text, list_objects
from gateway.formats.openai.content_parts import find_signature, split_data_url
from gateway.formats.openai.errors import Secrets, build_reported, parse_error_value
from gateway.formats.openai.fields import MAX_CHOICES
from gateway.formats.openai.logprobs import parse_logprobs
from gateway.formats.vendor_errors import find_failure

_REASONS: Mapping[str, chat.Reason] = {
    "stop": "stop", "length": "length", "tool_calls": "tool_calls", "content_filter": "content_filter",
    "function_call": "tool_calls", "model_length": "length",
}  # fmt: skip
_BROKEN = frozenset({"error", "insufficient_system_resource"})
"""Finish reasons of an incomplete answer (Mistral and OpenRouter; DeepSeek)."""
_NO_ID = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_ID = 26
"""Characters of an answer's id in the ids of its tool calls, which then have at most 40; see ``providers/quirks``."""
MAX_CALLS = 1_024
MAX_EARLY = 1024 * 1024
"""Limits: tool calls of one answer, and characters of arguments before their tool's name; both are kept."""
_REASONING_FIELDS = ("reasoning_content", "reasoning")


class _ToolCall:
    """One call while its fragments arrive. ``index`` is ours; ``id`` is the provider's, empty if it has none."""

    __slots__ = ("early", "early_chars", "id", "index", "name")

    def __init__(self, index: int, identity: str) -> None:
        self.index = index
        self.id = identity
        self.early: list[str] = []  # arguments that arrived before the name
        self.early_chars = 0
        self.name = ""

    @property
    def started(self) -> bool:
        return bool(self.name)

    def keep(self, arguments: str) -> None:
        """Keep arguments that arrived before the name."""
        self.early.append(arguments)
        self.early_chars += len(arguments)

    def is_other(self, identity: str, name: str) -> bool:
        """Return whether a fragment with this id and name begins another call, despite the same index."""
        if not name:
            return False
        return bool(self.id and identity != self.id) if identity else bool(self.name and name != self.name)


class ChoiceCalls:
    """The state of one answer: its tool calls, and whether it has finished.

    One answer may be split into several choices, of which each counts its calls from 0 and has a finish reason.

    Attributes:
        finished: a finish reason has come.
        ended: the event of it is written.
        reason: why the answer ends, if that is not written yet.
        closed: the provider's indexes of finished choices.
    """

    __slots__ = ("calls", "closed", "ended", "finished", "keys", "prefix", "reason", "used")

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix  # of ids that the gateway makes
        self.finished = self.ended = False
        self.reason: chat.Reason = "stop"
        self.closed: set[int] = set()
        self.calls: list[_ToolCall] = []
        self.keys: dict[object, _ToolCall] = {}  # by index or id, in a choice after the first with its index
        self.used: set[str] = set()  # ids

    def find_call(self, fragment: dict[str, Any], name: str, choice: int = 0) -> _ToolCall:
        """Return the call that ``fragment`` belongs to; ``choice`` is the provider's index of its choice.

        Calls are distinguished by index. Some vendors leave it out, or write 0 for each of several whole calls; then
        another id, or without ids another name, begins another call. So does a name after a finish reason.
        """
        index, given = fragment.get("index"), fragment.get("id")
        identity = given if isinstance(given, str) else ""
        if name and choice in self.closed:
            self.closed.discard(choice)
            self.keys = {key: call for key, call in self.keys.items() if _find_choice(key) != choice}
        key: object = index if type(index) is int else identity
        if choice:
            key = (choice, key)
        if type(index) is int or identity:
            call = self.keys.get(key)
        else:
            call = self.calls[-1] if self.calls and not name else None
        if call is None or call.is_other(identity, name):
            call = _ToolCall(len(self.calls), identity)
            self.calls.append(call)
        call.id = call.id or identity
        self.keys[key] = call
        return call

    def begin(self, call: _ToolCall, name: str, choice: int, signature: str | None) -> chat.ToolCallStart:
        """Start ``call`` and return its event. Its id becomes unique."""
        call.name = name
        call_id = find_unused_id(call.id or f"call_{self.prefix}{choice}_{call.index}", self.used)
        self.used.add(call_id)
        return chat.ToolCallStart(call.index, call_id, name, choice, signature)

    def close(self, choice: int, reason: chat.Reason) -> None:
        """Note a finish reason of one of the provider's choices; a cause that breaks the answer off stays."""
        self.finished = True
        self.closed.add(choice)
        if self.reason in {"stop", "tool_calls"}:
            self.reason = reason


def _find_choice(key: object) -> object:
    return key[0] if isinstance(key, tuple) else 0


class ChunkParser:
    """Converts parsed chunks of one answer into events.

    Args:
        answer_id: part of the ids of tool calls if the provider gives none, nor an id of the answer.
        single: one answer was requested: whatever its index, a choice is a part of it, and it ends with the last one.

    Attributes:
        begun: a part of an answer has arrived.
        finished: number of finished choices.
    """

    __slots__ = ("_choices", "_late", "_prefix", "_secrets", "_single", "_used", "begun", "finished")

    def __init__(self, secrets: Secrets = (), answer_id: str = "", *, single: bool = False) -> None:
        self._single = single
        self._secrets = secrets
        self._choices: dict[int, ChoiceCalls] = {}
        self._prefix = _make_prefix(answer_id)
        self._used: chat.UsageReport | None = None
        self._late = False  # a choice has finished since the last usage
        self.begun = False
        self.finished = 0

    def read(self, value: object, *, named_error: bool = False) -> Iterator[chat.Event]:
        """Yield the events of one chunk. ``named_error``: its event is named ``error``."""
        if not isinstance(value, dict):
            yield fail("The provider sent a chunk that is not a JSON object")
            return
        error = parse_error_value({"error": value} if named_error and "error" not in value else value, self._secrets)
        if error is not None:
            yield chat.StreamError(build_reported(error))
            return
        listed = value.get("choices")
        if not listed and (failure := find_failure(value, self._secrets)) is not None:
            yield chat.StreamError(failure)
            return
        choices = [choice for choice in listed if isinstance(choice, dict)] if isinstance(listed, list) else []
        if self._single and not choices and value.get("usage") is not None:  # which follows the last choice
            yield from self._finish_all(self.finished)
        if not self.begun and (choices or value.get("id")):
            yield self._start(value)
        for choice in choices:
            yield from self._parse_choice(choice)
        for usage in (value.get("usage"), *[choice.get("usage") for choice in choices]):
            if usage is not None:
                yield from self._use(usage, value.get("service_tier"))

    def read_usual(self, value: object) -> chat.Event | None:
        """Return the event of a chunk that continues one text and has nothing else; None for every other chunk."""
        if type(value) is not dict or not self.begun or value.get("error") or value.get("usage") is not None:
            return None
        choices = value.get("choices")
        if type(choices) is not list or len(choices) != 1 or type(only := choices[0]) is not dict:
            return None
        delta, index = only.get("delta"), only.get("index")
        more = only.get("finish_reason") or only.get("usage") or only.get("logprobs")
        if type(delta) is not dict or type(index) is not int or more:
            return None
        choice = self._choices.get(index)
        if choice is None or choice.finished:
            return None
        found = ""
        for name, part in delta.items():
            if part and name != "role":
                if found:
                    return None
                found = name
        return _read_only_part(found, delta.get(found), index, choice)

    def end(self) -> Iterator[chat.Event]:
        """Yield the last events of a complete answer. The usage follows every finish, if necessary again."""
        yield from self._finish_all(len(self._choices))
        if self._used is not None and self._late:
            yield self._used
        yield chat.ENDED

    def _finish_all(self, count: int) -> Iterator[chat.Event]:
        """Yield the end of the first ``count`` choices, as far as it is not written yet."""
        for index, choice in [*self._choices.items()][:count]:
            if not choice.ended:
                yield self._finish(index, choice, choice.reason)

    def _start(self, value: dict[str, Any]) -> chat.MessageStart:
        self.begun = True
        name, model, created = value.get("id"), value.get("model"), value.get("created")
        name = name if isinstance(name, str) else ""
        self._prefix = _make_prefix(name) or self._prefix
        believable = type(created) is int and 0 < created < 2**53
        return chat.MessageStart(name, model if isinstance(model, str) else "", created if believable else None)

    def _parse_choice(self, value: dict[str, Any]) -> Iterator[chat.Event]:
        at = value.get("index")
        place = at if type(at) is int and 0 <= at < MAX_CHOICES else 0
        index = 0 if self._single else place
        choice = self._choices.get(index)
        if choice is None:
            choice = self._choices[index] = ChoiceCalls(self._prefix)
        if choice.ended:
            return
        if value.get("logprobs") and (tokens := parse_logprobs(value["logprobs"])):
            yield chat.LogprobsReport(tokens, index)
        delta = value.get("delta")
        if isinstance(delta, dict):
            yield from self._parse_delta(delta, index, choice, place if self._single else 0)
        reason = value.get("finish_reason")
        if isinstance(reason, str) and reason:
            if reason in _BROKEN:
                yield fail("The provider could not complete its answer")
                return
            self.finished += not choice.finished
            choice.close(place if self._single else 0, _REASONS.get(reason, "stop"))
            if not self._single:
                yield self._finish(index, choice, choice.reason)

    def _parse_delta(self, delta: dict[str, Any], index: int, choice: ChoiceCalls, place: int) -> Iterator[chat.Event]:
        for name in _REASONING_FIELDS:
            thought = delta.get(name)
            if isinstance(thought, str) and thought:
                yield chat.ReasoningDelta(thought, index)
                break
        content = delta.get("content")
        if isinstance(content, str):
            if content:
                yield chat.TextDelta(content, index)
        elif isinstance(content, list):
            yield from _parse_parts(content, index)
        refusal = delta.get("refusal")
        if isinstance(refusal, str) and refusal:
            yield chat.RefusalDelta(refusal, index)
        if delta.get("images"):
            yield from _parse_images(delta["images"], index)
        if delta.get("tool_calls"):
            yield from _parse_fragments(delta["tool_calls"], index, choice, place)
        if delta.get("function_call"):
            yield from _parse_fragments([{"index": 0, "function": delta["function_call"]}], index, choice, place)

    def _finish(self, index: int, choice: ChoiceCalls, reason: chat.Reason) -> chat.ChoiceFinished:
        choice.finished = choice.ended = self._late = True
        # A forced tool ends with a plain "stop" in the OpenAI API format, and with some vendors any call does.
        called = any(call.started for call in choice.calls)
        return chat.ChoiceFinished("tool_calls" if reason == "stop" and called else reason, index)

    def _use(self, value: object, tier: object) -> Iterator[chat.UsageReport]:
        usage = parse_usage(value, completes=True)
        if usage is None:
            return
        usage = attach_tier(usage, tier)
        reasoning = parse_count(as_object(as_object(value).get("completion_tokens_details")).get("reasoning_tokens"))
        used = chat.UsageReport(usage, min(reasoning or 0, usage.completion_tokens))
        if used != self._used or self._late:
            self._used, self._late = used, False
            yield used


def _make_prefix(answer_id: str) -> str:
    return f"{_NO_ID.sub('', answer_id)[-_LONGEST_ID:]}_" if answer_id else ""


def fail(message: str) -> chat.StreamError:
    """Build the event of an invalid stream."""
    return chat.StreamError(ProviderBadResponse(message, phase="stream"))


def _read_only_part(name: str, value: object, index: int, choice: ChoiceCalls) -> chat.Event | None:
    """Return the event of a delta's only field; None if it is not the continuation of a text."""
    if type(value) is str:
        if name == "content":
            return chat.TextDelta(value, index)
        return chat.ReasoningDelta(value, index) if name in _REASONING_FIELDS else None
    if name != "tool_calls" or type(value) is not list or len(value) != 1 or type(part := value[0]) is not dict:
        return None
    function, at = part.get("function"), part.get("index")
    if type(function) is not dict or type(at) is not int or part.get("id") or function.get("name"):
        return None
    call, arguments = choice.keys.get(at), function.get("arguments")
    if call is None or not call.name or type(arguments) is not str or not arguments:
        return None
    return chat.ToolCallDelta(call.index, arguments, index)


def _parse_parts(content: list[Any], index: int) -> Iterator[chat.Event]:
    """Yield content in parts: text, and Mistral's ``{"type": "thinking", "thinking": [text parts]}``."""
    for part in list_objects(content):
        if text := as_text(part.get("text")):
            yield chat.TextDelta(text, index)
        for inner in list_objects(part.get("thinking")):
            if thought := as_text(inner.get("text")):
                yield chat.ReasoningDelta(thought, index)


def _parse_images(images: object, index: int) -> Iterator[chat.ImageOutput]:
    """Yield images from data URLs. An image at an address is dropped: the common chat model has no place for one."""
    for image in list_objects(images):
        found = split_data_url(as_text(as_object(image.get("image_url")).get("url")))
        if found is not None:
            yield chat.ImageOutput(found[0], found[1], index)


def _parse_fragments(fragments: object, index: int, choice: ChoiceCalls, place: int) -> Iterator[chat.Event]:
    for fragment in fragments if isinstance(fragments, list) else ():
        function = fragment.get("function") if isinstance(fragment, dict) else None
        if not isinstance(function, dict):
            continue
        named = function.get("name")
        name = named if isinstance(named, str) else ""
        call = choice.find_call(fragment, name, place)
        if len(choice.calls) > MAX_CALLS or call.early_chars > MAX_EARLY:
            yield fail("The provider's answer has too many tool calls, or one without a name")
            return
        arguments = _parse_arguments(function.get("arguments"))
        if not call.started:
            if not name:
                call.keep(arguments)
                continue
            yield choice.begin(call, name, index, find_signature(fragment))
            arguments = "".join([*call.early, arguments])
            call.early.clear()
        if arguments:
            yield chat.ToolCallDelta(call.index, arguments, index)


def _parse_arguments(value: object) -> str:
    """Return arguments as JSON text; some vendors send the object itself."""
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        return ""
    try:
        return exact_json.dumps(value).decode()
    except orjson.JSONEncodeError:  # nested too deeply to be serialized
        return ""
