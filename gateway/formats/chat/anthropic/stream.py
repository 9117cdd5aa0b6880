"""Parse and build streams of Anthropic's Messages API.

Sources: platform.claude.com/docs/en/build-with-claude/streaming and ``accumulate_event`` of the Python library. Unknown
event types, blocks and deltas are ignored: the documentation says that new ones may appear at any time.
"""

import re
from collections.abc import Mapping
from typing import Any

import attrs
import orjson

from gateway.domain import exact_json
from gateway.domain.usage import Usage
from gateway.errors import ProviderBadResponse, ProviderError
from gateway.formats.chat import model as chat
from gateway.formats.chat.anthropic import response
from gateway.formats.chat.anthropic.content_blocks import Block, ContentBlockBuilder
from gateway.formats.errors.openai import NO_REASON, ErrorBody, Secrets, build_reported_error, parse_error_value
from gateway.formats.wire import sse

MAX_HELD_BYTES = 16 * 1024 * 1024
"""Maximum bytes (approximate) buffered for tool calls that wait for each other or for their end."""
MAX_OPEN_BLOCKS = 64
"""Maximum number of content blocks open at once; according to the documentation they do not overlap."""
STOP_EVENT = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
_EVENT_NAME_PATTERN = re.compile(rb"(?:^|[\r\n])event: ?([^\r\n]*)")


def parse_event(event: bytes, payload: bytes) -> tuple[str, object]:
    """Return the type of an event and its JSON value, which is None if the JSON is invalid.

    The type is that of the data. Without one it is "error" if the data has an ``error`` field, else the event's name,
    or "" if there is no name.
    """
    try:
        value = orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        value = _load_refused_json(payload, error)
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "content_block_start":  # it may contain a tool's whole input, whose digits must stay exact
        value = exact_json.load_exactly(payload, value)
    if isinstance(kind, str):
        return kind, value
    if isinstance(value, dict) and value.get("error"):
        return "error", value
    names = (
        _EVENT_NAME_PATTERN.findall(event) if sse.has_name(event) else []
    )  # by the SSE standard the last name counts
    return (names[-1].decode(errors="replace") if names else ""), value


def _load_refused_json(payload: bytes, error: orjson.JSONDecodeError) -> object:
    try:
        return exact_json.load_refused_json(payload, error)
    except orjson.JSONDecodeError:
        return None


def parse_error_event(value: object, secrets: Secrets) -> ProviderError:
    """Convert the data of an ``error`` event into an exception."""
    error = parse_error_value(value, secrets)
    return build_reported_error(ErrorBody(NO_REASON) if error is None else error)


def is_end(last_bytes: bytes) -> bool:
    """Return whether the rest of a stream is an end mark that lacks its blank line."""
    return parse_event(last_bytes, sse.parse_data(last_bytes) or b"")[0] == "message_stop"


@attrs.define
class _OpenBlock:
    """An open content block.

    Attributes:
        call: index of the block's tool call; -1 if the block is not a tool call.
    """

    kind: object
    call: int = -1
    arguments: str = ""
    signature: str = ""


class MessagesStreamParser:
    """Parses a provider's stream into events.

    Args:
        answer_id: used in generated tool call ids; see ``StreamParser``.
    """

    __slots__ = (
        "_call_count",
        "_closed",
        "_error",
        "_finished",
        "_has_started",
        "_id",
        "_open_blocks",
        "_secrets",
        "_splitter",
        "_start_usage"
    )  # fmt: skip

    def __init__(self, secrets: Secrets = (), answer_id: str = "") -> None:
        self._secrets = secrets
        self._splitter = sse.SseSplitter()
        self._has_started = False
        self._start_usage: object = None
        self._id = answer_id
        self._open_blocks: dict[int, _OpenBlock] = {}
        self._call_count = 0
        self._finished = False
        self._closed = False
        self._error: ProviderError | None = None

    def feed(self, data: bytes) -> list[chat.Event]:
        if self._closed:
            return []
        try:
            raw_events = self._splitter.split(data)
        except sse.EventTooLong as error:
            return [self._record_error(ProviderBadResponse(str(error), phase="stream"))]
        return [event for raw_event in raw_events for event in self._read_event(raw_event)]

    def finish(self) -> list[chat.Event]:
        """Return the last events. Raises the stream's error, and ``ProviderBadResponse`` for an incomplete message."""
        if self._error is not None:
            raise self._error
        if self._closed:
            return []
        last_bytes = self._splitter.take()
        if is_end(last_bytes) or (not last_bytes.strip() and self._finished and not self._open_blocks):
            return self._end_stream()
        raise ProviderBadResponse("The provider's stream ended before it was complete", phase="stream")

    @property
    def held_bytes(self) -> int:
        return self._splitter.held_bytes

    @property
    def noise(self) -> int:
        return self._splitter.noise

    def _read_event(self, event: bytes) -> list[chat.Event]:
        event = event.removeprefix(sse.BOM)
        payload = sse.parse_data(event)
        if self._closed or not payload:
            self._splitter.noise += len(event)
            return []
        kind, value = parse_event(event, payload)
        if kind == "content_block_delta" and type(value) is dict:  # hot path: nearly every event of a stream
            return self._convert_delta(value)
        if kind == "error":
            return [self._record_error(parse_error_event(value, self._secrets))]
        if not isinstance(value, dict):
            return [
                self._record_error(
                    ProviderBadResponse("The provider sent an event that makes no sense", phase="stream")
                )
            ]
        try:
            return self._convert_event(kind, value)
        except ProviderBadResponse as error:
            error.phase = "stream"
            return [self._record_error(error)]

    def _convert_event(self, kind: str, value: chat.Json) -> list[chat.Event]:
        events: list[chat.Event] = []
        match kind:
            case "content_block_start":
                events = self._open_block(value)
            case "content_block_stop":
                events = self._close_block(_parse_index(value))
            case "message_start":
                events = self._start_message(value)
            case "message_delta":
                events = self._convert_message_delta(value)
            case "message_stop":
                events = self._end_stream()
        return events

    def _start_message(self, value: chat.Json) -> list[chat.Event]:
        message = value.get("message")
        if self._has_started or not isinstance(message, dict):
            return []
        self._has_started = True
        self._start_usage = message.get("usage")
        message_id = response.read_text(message, "id")
        self._id = message_id or self._id
        return [
            chat.MessageStart(
                message_id, response.read_text(message, "model"), usage=response.parse_start_usage(self._start_usage)
            )
        ]

    def _open_block(self, value: chat.Json) -> list[chat.Event]:
        block = value.get("content_block")
        if not isinstance(block, dict):
            return []
        open_block = _OpenBlock(block.get("type"), signature=response.read_text(block, "signature"))
        stop_events = self._close_block(_parse_index(value))  # a block that was never stopped
        self._open_blocks[_parse_index(value)] = open_block
        if len(self._open_blocks) > MAX_OPEN_BLOCKS:
            raise ProviderBadResponse("The provider's answer has too many content blocks open at once")
        if open_block.kind != "tool_use":
            return stop_events + response.parse_text_block(block)
        open_block.call = self._call_count
        open_block.arguments = response.parse_arguments(block)
        self._call_count += 1
        return [*stop_events, response.parse_tool(block, open_block.call, self._id)]

    def _convert_delta(self, value: chat.Json) -> list[chat.Event]:
        delta = value.get("delta")
        if not isinstance(delta, dict):
            return []
        kind = delta.get("type")
        if kind == "text_delta":
            return [chat.TextDelta(text)] if (text := response.read_text(delta, "text")) else []
        if kind == "thinking_delta":
            return [chat.ReasoningDelta(text)] if (text := response.read_text(delta, "thinking")) else []
        block = self._open_blocks.get(_parse_index(value))
        if block is None:
            return []
        if kind == "input_json_delta" and block.call >= 0 and (text := response.read_text(delta, "partial_json")):
            block.arguments = ""  # deltas replace the arguments from the block's start
            return [chat.ToolCallDelta(block.call, text)]
        if kind == "signature_delta":
            block.signature = response.read_text(delta, "signature")
        return []

    def _close_block(self, index: int) -> list[chat.Event]:
        """Close a block. Return its last event, if any: the arguments of a tool call without deltas, or a signature."""
        block = self._open_blocks.pop(index, None)
        if block is None:
            return []
        if block.call >= 0 and block.arguments:
            return [chat.ToolCallDelta(block.call, block.arguments)]
        return [chat.ReasoningSignature(block.signature)] if block.kind == "thinking" and block.signature else []

    def _convert_message_delta(self, value: chat.Json) -> list[chat.Event]:
        events: list[chat.Event] = []
        delta = value.get("delta")
        if isinstance(delta, dict) and delta.get("stop_reason") is not None and not self._finished:
            events += self._make_finish(delta.get("stop_reason"), delta.get("stop_sequence"))
        report = response.parse_delta_usage(self._start_usage, value.get("usage"))
        return [*events, report] if report is not None else events

    def _make_finish(self, reason: object, sequence: object) -> list[chat.Event]:
        self._finished = True
        return [*self._flush_open(), response.parse_finish(reason, sequence, calls_tools=self._call_count > 0)]

    def _flush_open(self) -> list[chat.Event]:
        """Return the last events of unstopped blocks. The blocks stay open, so ``finish`` can detect a cut stream."""
        events: list[chat.Event] = []
        for index, block in list(self._open_blocks.items()):
            events += self._close_block(index)
            self._open_blocks[index] = attrs.evolve(block, arguments="", signature="")
        return events

    def _end_stream(self) -> list[chat.Event]:
        self._closed = True
        return [chat.STREAM_END] if self._finished else [*self._make_finish(None, None), chat.STREAM_END]

    def _record_error(self, error: ProviderError) -> chat.StreamError:
        self._closed = True
        self._error = error
        return chat.StreamError(error)


def _parse_index(value: chat.Json) -> int:
    index = value.get("index")
    return index if type(index) is int else 0


def build_event(kind: str, body: dict[str, Any]) -> bytes:
    """Build one event. Its name equals its type, because client libraries read the name."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), exact_json.dumps({"type": kind, **body}))


class MessagesStreamSerializer:
    """Writes events as a stream of this format; see ``StreamSerializer``.

    ``message_delta`` has both the stop reason and the usage. The OpenAI API format reports the usage last, so the event
    is written at the end of the stream. Interleaved tool calls are written one after another, unless more than
    ``MAX_HELD_BYTES`` bytes would have to be buffered: ``write`` then raises ``ProviderBadResponse``.

    Args:
        message_id: the message's id if the provider's id lacks "msg_".
    """

    __slots__ = ("_block_index", "_builder", "_finished", "_has_started", "_message_id", "_model", "_report")

    def __init__(self, model: str, message_id: str) -> None:
        self._model = model
        self._message_id = message_id
        self._builder = ContentBlockBuilder(message_id)
        self._has_started = False
        self._block_index = 0
        self._finished: chat.ChoiceFinished | None = None
        self._report: chat.UsageReport | None = None

    def write(self, event: chat.Event) -> bytes:
        # Hot path, nearly every event of a stream: it continues a block that the client already has, and no other
        # block is buffered.
        if (delta_head := self._builder.delta_head) and (text := self._builder.take_added_text(event)):
            if self._builder.held_bytes > MAX_HELD_BYTES:
                raise _make_buffer_error()
            return delta_head + orjson.dumps(text) + b"}}\n\n"
        return self._write_slowly(event)

    def _write_slowly(self, event: chat.Event) -> bytes:
        output = b""
        match event:
            case chat.MessageStart():
                output = self._start_message(event)
            case chat.UsageReport():
                self._report = event
            case chat.StreamEnd():
                output = self._end_stream()
            case chat.StreamError():
                pass
            case chat.ChoiceFinished():
                if event.choice == 0 and self._finished is None:
                    output = self._finish_message(event)
            case _ if self._finished is None:
                self._builder.add_event(event)
                output = self._build_blocks()
                if self._builder.held_bytes > MAX_HELD_BYTES:
                    raise _make_buffer_error()
        return output if self._has_started or not output else self._start_message() + output

    def _start_message(self, event: chat.MessageStart | None = None) -> bytes:
        if self._has_started:
            return b""
        self._has_started = True
        usage = (event.usage if event is not None else None) or Usage()
        message_id = response.build_id(event.id if event is not None else "", self._message_id)
        message = response.build_message(
            message_id, self._model, response.build_usage(usage) | response.build_cache_creation(usage)
        )
        return build_event("message_start", {"message": message})

    def _build_blocks(self) -> bytes:
        events = []
        blocks = self._builder.blocks
        while blocks:
            events += self._build_block(blocks[0])
            if not blocks[0].is_complete:
                break
            events.append(build_event("content_block_stop", {"index": self._block_index}))
            self._builder.remove_first()
            self._block_index += 1
        return b"".join(events)

    def _build_block(self, block: Block) -> list[bytes]:
        events = []
        if not block.is_started:
            block.is_started = True
            events.append(
                build_event("content_block_start", {"index": self._block_index, "content_block": block.start})
            )
        for delta in self._builder.take_deltas(block):
            events.append(build_event("content_block_delta", {"index": self._block_index, "delta": delta}))  # noqa: PERF401
        if not block.is_complete:
            self._builder.mark_shown(self._block_index)
        return events

    def _finish_message(self, event: chat.ChoiceFinished) -> bytes:
        self._finished = event
        self._builder.complete_blocks()
        return self._build_blocks()

    def _end_stream(self) -> bytes:
        self._builder.complete_blocks()
        blocks = self._build_blocks()
        delta = response.build_finish(self._finished, calls_tools=self._builder.has_calls)
        return (
            blocks + build_event("message_delta", {"delta": delta, "usage": _build_totals(self._report)}) + STOP_EVENT
        )


def _make_buffer_error() -> ProviderBadResponse:
    return ProviderBadResponse("The provider's answer has unfinished tool calls", phase="stream")


def _build_totals(report: chat.UsageReport | None) -> Mapping[str, Any]:
    """Build the usage of ``message_delta``.

    Without a report it has no prompt counts, so the client keeps those of ``message_start``.
    """
    return (
        {"output_tokens": 0}
        if report is None
        else response.build_usage(report.usage) | response.build_reasoning(report)
    )
