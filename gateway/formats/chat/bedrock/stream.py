"""Parse streams of Bedrock's Converse API.

Shapes: docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_ConverseStreamOutput.html. An event's name is in its
headers. The last event, ``metadata``, has the usage and follows ``messageStop``. Unknown events are ignored.
"""

from collections.abc import Mapping
from typing import Any

import attrs
import orjson

from gateway.domain import exact_json
from gateway.errors import ProviderBadResponse, ProviderError
from gateway.formats.chat import model as chat
from gateway.formats.chat.bedrock.event_stream import MEDIA_TYPE, EventMessage, EventStreamSplitter
from gateway.formats.chat.bedrock.response import parse_finish, parse_image, parse_tool, parse_usage
from gateway.formats.errors.openai import Secrets, mask
from gateway.formats.errors.vendor import parse_worded_error
from gateway.formats.wire.json_values import as_object, as_text

MAX_OPEN_BLOCKS = 64
"""Maximum number of content blocks open at once; according to the documentation they do not overlap."""
_STATUSES: Mapping[str, int] = {
    "validationException": 400,
    "throttlingException": 429,
    "internalServerException": 500,
    "modelStreamErrorException": 502,
    "serviceUnavailableException": 503,
}
"""HTTP statuses for exceptions in a stream. The model's own exception has 424 at AWS, but is no client error."""
_DEFAULT_STATUS = 502


@attrs.define
class _OpenBlock:
    """An open content block.

    Attributes:
        call: index of the block's tool call; -1 if the block is not a tool call.
    """

    call: int = -1
    signature: str = ""


class ConverseStreamParser:
    """Parses a provider's stream into events, with the given answer id and model name; see ``StreamParser``."""

    __slots__ = (
        "_call_count",
        "_closed",
        "_error",
        "_finished",
        "_has_started",
        "_id",
        "_model",
        "_open_blocks",
        "_secrets",
        "_splitter",
    )
    media_type = MEDIA_TYPE

    def __init__(self, answer_id: str, model: str, secrets: Secrets = ()) -> None:
        self._id = answer_id
        self._model = model
        self._secrets = secrets
        self._splitter = EventStreamSplitter()
        self._open_blocks: dict[int, _OpenBlock] = {}
        self._call_count = 0
        self._has_started = False
        self._finished = False
        self._closed = False
        self._error: ProviderError | None = None

    def feed(self, data: bytes) -> list[chat.Event]:
        events: list[chat.Event] = []
        if self._closed:
            return events
        try:
            for message in self._splitter.split(data):
                events += self._read_message(message)
                if events[-1:] == [chat.STREAM_END]:
                    break
        except ProviderError as error:
            error.phase = "stream"
            self._closed, self._error = True, error
            events.append(chat.StreamError(error))
        return events

    def finish(self) -> list[chat.Event]:
        if self._error is not None:
            raise self._error
        if self._closed:
            return []
        if self._finished and not self._splitter.held_bytes:  # only the usage is missing
            self._closed = True
            return [chat.STREAM_END]
        raise ProviderBadResponse("The provider's stream ended before it was complete", phase="stream")

    @property
    def held_bytes(self) -> int:
        return self._splitter.held_bytes

    @property
    def noise(self) -> int:
        return self._splitter.noise

    def _read_message(self, message: EventMessage) -> list[chat.Event]:
        headers = message.headers
        kind = headers.get(":message-type", "event")
        if kind != "event":
            raise self._parse_error(kind, message)
        try:
            value = exact_json.loads(message.payload or b"{}")
        except orjson.JSONDecodeError:
            raise ProviderBadResponse("The provider sent an event that is not JSON") from None
        if not isinstance(value, dict):
            raise ProviderBadResponse("The provider sent an event that makes no sense")
        return self._convert_event(headers.get(":event-type", ""), value, message.size)

    def _parse_error(self, kind: str, message: EventMessage) -> ProviderError:
        headers = message.headers
        if kind == "exception":
            name = headers.get(":exception-type", "")
            error = parse_worded_error(_STATUSES.get(name, _DEFAULT_STATUS), message.payload, self._secrets)
        else:
            reason = mask(headers.get(":error-message") or headers.get(":error-code") or "", self._secrets)
            error = ProviderBadResponse(f"The provider reported an error: {reason or 'without a reason'}")
        error.declined = True
        return error

    def _convert_event(self, name: str, value: chat.Json, size: int) -> list[chat.Event]:
        events: list[chat.Event] = []
        match name:
            case "contentBlockDelta":
                events = self._convert_delta(value)
            case "contentBlockStart":
                events = self._open_block(value)
            case "contentBlockStop":
                events = self._close_block(_parse_index(value))
            case "messageStart":
                events = self._start_message()
            case "messageStop":
                events = self._stop_message(value)
            case "metadata":
                events = self._convert_metadata(value)
            case _:
                self._splitter.noise += size
        return events

    def _start_message(self) -> list[chat.Event]:
        if self._has_started:
            return []
        self._has_started = True
        return [chat.MessageStart(self._id, self._model)]

    def _open_block(self, value: chat.Json) -> list[chat.Event]:
        earlier_events = [
            *self._start_message(),
            *self._close_block(_parse_index(value)),
        ]  # a block that was never stopped
        block = self._find_block(value)
        tool_use = as_object(value.get("start")).get("toolUse")
        if not isinstance(tool_use, dict):
            return earlier_events
        block.call = self._call_count
        self._call_count += 1
        return [*earlier_events, parse_tool(tool_use, block.call, self._id)]

    def _find_block(self, value: chat.Json) -> _OpenBlock:
        """Return the block of an event. Opens the block if necessary, because only tool calls have a start event.

        Raises ``ProviderBadResponse`` for too many blocks.
        """
        block = self._open_blocks.setdefault(_parse_index(value), _OpenBlock())
        if len(self._open_blocks) > MAX_OPEN_BLOCKS:
            raise ProviderBadResponse("The provider's answer has too many content blocks open at once")
        return block

    def _convert_delta(self, value: chat.Json) -> list[chat.Event]:
        start_events = self._start_message()
        delta = as_object(value.get("delta"))
        block = self._find_block(value)
        if text := as_text(delta.get("text")):
            return [*start_events, chat.TextDelta(text)]
        if block.call >= 0 and (text := as_text(as_object(delta.get("toolUse")).get("input"))):
            return [*start_events, chat.ToolCallDelta(block.call, text)]
        reasoning = as_object(delta.get("reasoningContent"))
        block.signature += as_text(reasoning.get("signature"))
        if text := as_text(reasoning.get("text")):
            return [*start_events, chat.ReasoningDelta(text)]
        if redacted_data := as_text(reasoning.get("redactedContent")):
            return [*start_events, chat.RedactedReasoning(redacted_data)]
        return [*start_events, *parse_image(delta)]

    def _close_block(self, index: int) -> list[chat.Event]:
        block = self._open_blocks.pop(index, None)
        return [chat.ReasoningSignature(block.signature)] if block is not None and block.signature else []

    def _stop_message(self, value: chat.Json) -> list[chat.Event]:
        if self._finished:
            return []
        self._finished = True
        signature_events = [event for index in list(self._open_blocks) for event in self._close_block(index)]
        return [
            *self._start_message(),
            *signature_events,
            parse_finish(value.get("stopReason"), calls_tools=self._call_count > 0),
        ]

    def _convert_metadata(self, value: chat.Json) -> list[chat.Event]:
        """Return the usage, and end the stream if the message has stopped."""
        report: Any = parse_usage(value.get("usage"), value.get("serviceTier"))
        events: list[chat.Event] = [report] if report is not None else []
        if self._finished:
            self._closed = True
            events.append(chat.STREAM_END)
        return events


def _parse_index(value: chat.Json) -> int:
    index = value.get("contentBlockIndex")
    return index if type(index) is int else 0
