"""The chat stream of the OpenAI API format, parsed into events and built from events."""

from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from gateway.domain import exact_json
from gateway.errors import ProviderBadResponse
from gateway.formats.chat import model as chat
from gateway.formats.chat.openai.chat import DONE_EVENT
from gateway.formats.chat.openai.chunk_reader import ChunkParser, make_stream_error
from gateway.formats.chat.openai.logprobs import build_logprobs
from gateway.formats.errors.openai import Secrets
from gateway.formats.stream_tail import DONE_MARK
from gateway.formats.wire import sse

_ARGUMENTS_KEY = b'"arguments"'
_LAST_EVENTS = frozenset({chat.StreamEnd, chat.StreamError})


class ChatStreamParser:
    """Parses a chat stream into events; see ``StreamParser``.

    Args:
        choices: number of requested answers.
        answer_id: used in generated ids.
    """

    __slots__ = ("_choices", "_chunk_parser", "_closed", "_has_started", "_splitter")

    def __init__(self, choices: int = 1, secrets: Secrets = (), answer_id: str = "") -> None:
        self._choices = choices
        self._splitter = sse.SseSplitter()
        self._chunk_parser = ChunkParser(secrets, answer_id, is_single=choices == 1)
        self._has_started = False
        self._closed = False

    def feed(self, data: bytes) -> list[chat.Event]:
        if self._closed:
            return []
        try:
            raw_events = self._splitter.split(data)
        except sse.EventTooLong as error:
            self._closed = True
            return [make_stream_error(str(error))]
        events: list[chat.Event] = []
        for raw_event in raw_events:
            for event in self._read_event(raw_event):
                events.append(event)
                if type(event) in _LAST_EVENTS:
                    self._closed = True
                    return events
        return events

    @property
    def held_bytes(self) -> int:
        return self._splitter.held_bytes

    @property
    def noise(self) -> int:
        return self._splitter.noise

    def _read_event(self, raw_event: bytes) -> Iterable[chat.Event]:
        if not self._has_started:
            self._has_started = True
            raw_event = raw_event.removeprefix(sse.BOM)
        payload = sse.parse_data(raw_event)
        if not payload or payload.isspace():
            self._splitter.noise += len(raw_event)
            return ()
        if payload.startswith(DONE_MARK):
            return self._end_stream()
        try:
            value = orjson.loads(payload)
        except orjson.JSONDecodeError as error:
            try:
                value = exact_json.load_refused_json(payload, error)
            except orjson.JSONDecodeError:
                return (make_stream_error("The provider sent an event that is not JSON"),)
        if not raw_event.startswith(b"data:"):
            return self._chunk_parser.read(
                value, named_error=raw_event.find(b"event:") >= 0 and sse.is_error_event(raw_event)
            )
        event = self._chunk_parser.read_continuation(value)
        if event is not None:
            return (event,)
        if _ARGUMENTS_KEY in payload:  # some vendors send an object instead of its text
            value = exact_json.load_exactly(payload, value)
        return self._chunk_parser.read(value)

    def _end_stream(self) -> Iterator[chat.Event]:
        if self._chunk_parser.has_begun:
            yield from self._chunk_parser.end()
        else:
            yield make_stream_error("The provider's stream ended before it began")

    def finish(self) -> list[chat.Event]:
        if self._closed:
            return []
        self._closed = True
        last_bytes = self._splitter.take()
        has_end_mark = (sse.parse_data(last_bytes) or b"").startswith(DONE_MARK)
        if self._chunk_parser.has_begun and (
            has_end_mark or (not last_bytes.strip() and self._chunk_parser.finished_count >= self._choices)
        ):
            return list(self._chunk_parser.end())
        raise ProviderBadResponse("The provider's stream ended before it was complete", phase="stream")


def build_usage(report: chat.UsageReport) -> dict[str, Any]:
    """Build the usage object."""
    usage = report.usage
    prompt_details: dict[str, int] = {"cached_tokens": usage.cached_tokens}
    if usage.written_tokens:
        prompt_details["cache_write_tokens"] = usage.written_tokens
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": prompt_details,
        "completion_tokens_details": {"reasoning_tokens": report.reasoning_tokens},
    }


def build_call(event: chat.ToolCallStart) -> dict[str, Any]:
    """Build a tool call with empty arguments."""
    call: dict[str, Any] = {"id": event.id, "type": "function", "function": {"name": event.name, "arguments": ""}}
    if event.signature:
        call["extra_content"] = {"google": {"thought_signature": event.signature}}
    return call


def build_image(event: chat.ImageOutput) -> dict[str, Any]:
    """Build an image in OpenRouter's extension of the format."""
    return {"type": "image_url", "image_url": {"url": f"data:{event.media_type};base64,{event.data}"}}


_ARGUMENTS_FIELD = b'"tool_calls":[{"index":%d,"function":{"arguments":%b}}]'


class ChatStreamSerializer:
    """Writes events as a chat stream; see ``StreamSerializer``.

    Reasoning is written as ``reasoning_content``, which most chat apps read. Signatures of reasoning are dropped,
    because the format cannot express them.

    ``answer_id``, ``model`` and ``created_s`` (Unix seconds) apply unless the provider gives its own.

    Args:
        include_usage: the client requested a usage frame.
    """

    __slots__ = (
        "_chunk_tail",
        "_created_s",
        "_delta_heads",
        "_id",
        "_include_usage",
        "_logprobs",
        "_model",
        "_report",
        "_started_choices",
    )

    def __init__(self, *, answer_id: str, model: str, created_s: int, include_usage: bool) -> None:
        self._id = answer_id
        self._model = model
        self._created_s = created_s
        self._include_usage = include_usage
        self._chunk_tail = (
            b'},"logprobs":null,"finish_reason":null}]' + (b',"usage":null' if include_usage else b"") + b"}\n\n"
        )
        # By begun choice: the start of its chunks, up to the delta's first field.
        self._started_choices: dict[int, bytes] = {}
        # Like ``_started_choices``, only choices whose next chunk has no log probabilities.
        self._delta_heads: dict[int, bytes] = {}
        self._logprobs: dict[int, tuple[chat.TokenLogprob, ...]] = {}  # by choice: log probabilities of the next chunk
        self._report: chat.UsageReport | None = None

    def write(self, event: chat.Event) -> bytes:
        # Hot path for nearly every event of a stream: only the text is serialized each time, head and tail only once.
        if type(event) is chat.TextDelta and (delta_head := self._delta_heads.get(event.choice)):
            return delta_head + b'"content":' + orjson.dumps(event.text) + self._chunk_tail
        if type(event) is chat.ReasoningDelta and (delta_head := self._delta_heads.get(event.choice)):
            return delta_head + b'"reasoning_content":' + orjson.dumps(event.text) + self._chunk_tail
        if type(event) is chat.ToolCallDelta and (delta_head := self._delta_heads.get(event.choice)):
            return delta_head + _ARGUMENTS_FIELD % (event.index, orjson.dumps(event.arguments)) + self._chunk_tail
        return self._write_slowly(event)

    def _write_slowly(self, event: chat.Event) -> bytes:
        delta: dict[str, Any] = {}
        reason: chat.Reason | None = None
        match event:
            case chat.TextDelta():
                delta["content"] = event.text
            case chat.ReasoningDelta():
                delta["reasoning_content"] = event.text
            case chat.ToolCallDelta():
                delta["tool_calls"] = [{"index": event.index, "function": {"arguments": event.arguments}}]
            case chat.ToolCallStart():
                delta["tool_calls"] = [{"index": event.index} | build_call(event)]
            case chat.RefusalDelta():
                delta["refusal"] = event.text
            case chat.ImageOutput():
                delta["images"] = [build_image(event)]
            case chat.ChoiceFinished():
                reason = event.reason
            case _:
                return self._write_other_event(event)
        return self._build_delta(event.choice, delta, reason)

    def _write_other_event(self, event: chat.Event) -> bytes:
        match event:
            case chat.MessageStart():  # write nothing before the first content, so that another channel may be tried
                self._id = event.id or self._id
                self._model = event.model or self._model
                self._created_s = event.created_s or self._created_s
            case chat.LogprobsReport():
                self._logprobs[event.choice] = (*self._logprobs.get(event.choice, ()), *event.tokens)
                self._delta_heads.pop(event.choice, None)
            case chat.UsageReport():
                self._report = event
            case chat.StreamEnd() if self._include_usage and self._report is not None:
                return self._build_chunk([], build_usage(self._report)) + DONE_EVENT
            case chat.StreamEnd():
                return DONE_EVENT
        return b""

    def _build_delta(self, choice: int, delta: dict[str, Any], reason: chat.Reason | None) -> bytes:
        if choice not in self._started_choices:
            delta = {"role": "assistant", "content": None} | delta
            self._started_choices[choice] = self._make_delta_head(choice)
        self._delta_heads[choice] = self._started_choices[choice]
        tokens = self._logprobs.pop(choice, ())
        logprobs = build_logprobs(tokens) if tokens else None
        return self._build_chunk([{"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": reason}])

    def _make_delta_head(self, choice: int) -> bytes:
        chunk = self._build_chunk([{"index": choice, "delta": {}, "logprobs": None, "finish_reason": None}])
        return chunk.removesuffix(self._chunk_tail)

    def _build_chunk(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> bytes:
        chunk = {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": self._created_s,
            "model": self._model,
            "choices": choices,
        }
        if self._include_usage:
            chunk["usage"] = usage
        return b"data: " + orjson.dumps(chunk) + b"\n\n"
