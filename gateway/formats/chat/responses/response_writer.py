"""Build responses of the Responses API, streamed or whole, from the events of an answer.

A tool call may continue after the next item has begun, because every event names its item. An item is done when its
text is complete.
"""

from io import StringIO
from typing import Any

import attrs
import orjson

from gateway.domain.inference_request import InferenceRequest
from gateway.errors import GatewayError, ProviderBadResponse
from gateway.formats.chat import model as chat
from gateway.formats.chat.openai.custom_tools import read_input
from gateway.formats.chat.responses.client_tools import build_item
from gateway.formats.chat.responses.echo import build_echo
from gateway.formats.chat.responses.failure import build_failure
from gateway.formats.chat.responses.reasoning import UNSIGNED_PREFIX, build_redacted, build_signed
from gateway.formats.chat.responses.tools import find_call_kinds, find_namespaces
from gateway.formats.translator import ResponseIdentity
from gateway.formats.wire.json_values import as_object, loads_or_none

Body = dict[str, Any]
MAX_ANSWER_CHARS = 16 * 1024 * 1024
"""The limit on characters per response, which are all kept because the last event repeats them."""
_TEXT_EVENTS, _REFUSAL_EVENTS = "response.output_text", "response.refusal"
_SUMMARY_EVENTS, _ARGUMENTS_EVENTS = "response.reasoning_summary_text", "response.function_call_arguments"
_COMPLETE_REASONS = frozenset({"stop", "tool_calls"})


@attrs.define(eq=False)
class _Text:
    """A text that is streamed in pieces.

    Attributes:
        delta_head: the beginning of the text's delta events, up to the sequence number.
    """

    kind: str
    part_ids: Body
    delta_head: bytes = b""
    buffer: StringIO = attrs.Factory(StringIO)


@attrs.define(eq=False)
class _Item:
    index: int
    value: Body
    text: _Text | None = None


class ResponseStreamSerializer:
    """Writes events as a stream of the Responses API.

    At the end, the whole response is passed to ``inference.keep`` if that is set. ``write`` raises
    ``ProviderBadResponse`` if the texts exceed ``MAX_ANSWER_CHARS``.

    Attributes:
        chars: number of characters in all texts so far.
    """

    __slots__ = (
        "_answer_id",
        "_call_kinds",
        "_echo",
        "_finished",
        "_has_started",
        "_model",
        "_namespace_fields",
        "_now_s",
        "_open_calls",
        "_open_item",
        "_output",
        "_reasoning_text",
        "_report",
        "_sequence_number",
        "_signature",
        "_store_answer",
        "_text",
        "chars",
    )  # fmt: skip

    def __init__(self, inference: InferenceRequest, identity: ResponseIdentity) -> None:
        self._echo = build_echo(inference.body, inference.continues)
        self._store_answer = inference.keep
        self._call_kinds = find_call_kinds(inference.body)
        self._namespace_fields = find_namespaces(inference.body)
        self._answer_id, self._model, self._now_s = identity.id, identity.model, identity.now_s
        self._sequence_number = 0
        self.chars = 0
        self._output: list[Body] = []
        self._open_item: _Item | None = None  # a message or reasoning
        self._open_calls: dict[int, _Item] = {}
        self._text: _Text | None = None  # the text of the open message
        self._reasoning_text: _Text | None = None  # the text of the open reasoning
        self._signature = ""
        self._finished: chat.ChoiceFinished | None = None
        self._report: chat.UsageReport | None = None
        self._has_started = False

    def write(self, event: chat.Event) -> bytes:
        # Hot path, nearly every event of a stream.
        if type(event) is chat.TextDelta and event.choice == 0 and self._text is not None:
            return self._write_delta(self._text, event.text)
        if type(event) is chat.ToolCallDelta and event.choice == 0 and event.index in self._open_calls:
            return self._add_arguments(self._open_calls[event.index], event.arguments)
        if type(event) is chat.ReasoningDelta and event.choice == 0 and self._reasoning_text is not None:
            return self._write_delta(self._reasoning_text, event.text) if event.text else b""
        return self._write_slowly(event)

    def _write_slowly(self, event: chat.Event) -> bytes:
        output = b""
        match event:
            case chat.MessageStart():
                self._model = event.model or self._model
                output = self._start_response()
            case chat.UsageReport():
                self._report = event
            case chat.StreamEnd():
                output = self._start_response() + self._close_output("completed") + self._finish_response()
            case chat.ChoiceFinished(choice=0) if self._finished is None:
                self._finished = event
                output = self._start_response() + self._close_output(
                    "completed" if event.reason in _COMPLETE_REASONS else "incomplete"
                )
            case chat.StreamError() | chat.ChoiceFinished():
                pass
            case _ if event.choice == 0 and self._finished is None:
                output = self._start_response() + self._add_content(event)
        return output

    def write_error(self, error: GatewayError, request_id: str) -> bytes:
        response = self._build_response_json(status="failed", incomplete_details=None, output=self._output, usage=None)
        return build_failure(error, request_id, orjson.loads(response), self._sequence_number)

    def build_response(self) -> bytes:
        reason = "stop" if self._finished is None else self._finished.reason
        incomplete_reason = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(reason)
        return self._build_response_json(
            status="completed" if incomplete_reason is None else "incomplete",
            incomplete_details=None if incomplete_reason is None else {"reason": incomplete_reason},
            output=self._output,
            usage=None if self._report is None else build_usage(self._report),
        )

    def _start_response(self) -> bytes:
        if self._has_started:
            return b""
        self._has_started = True
        start_response = orjson.Fragment(
            self._build_response_json(status="in_progress", incomplete_details=None, output=[], usage=None)
        )
        return self._write_event("response.created", response=start_response) + self._write_event(
            "response.in_progress", response=start_response
        )

    def _finish_response(self) -> bytes:
        response = self.build_response()
        if self._store_answer is not None:
            self._store_answer(response)
        kind = (
            "incomplete"
            if self._finished is not None and self._finished.reason not in _COMPLETE_REASONS
            else "completed"
        )
        return self._write_event(f"response.{kind}", response=orjson.Fragment(response))

    def _build_response_json(self, **changing_fields: Any) -> bytes:
        fixed_fields = {
            "id": f"resp_{self._answer_id}",
            "object": "response",
            "created_at": self._now_s,
            "error": None,
            "model": self._model,
        }
        return orjson.dumps(fixed_fields | changing_fields)[:-1] + b"," + self._echo[1:]

    def _write_event(self, kind: str, **fields: Any) -> bytes:
        data = orjson.dumps({"type": kind, **fields, "sequence_number": self._sequence_number})
        self._sequence_number += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)

    def _add_content(self, event: chat.Event) -> bytes:
        output = b""
        match event:
            case chat.TextDelta():
                output = self._add_text(_TEXT_EVENTS, event.text)
            case chat.RefusalDelta():
                output = self._add_text(_REFUSAL_EVENTS, event.text)
            case chat.ReasoningDelta() if event.text:
                output = self._add_reasoning(event.text)
            case chat.ReasoningSignature():
                output = self._add_signature(event.signature)
            case chat.RedactedReasoning():
                output = self._add_redacted(build_redacted(event.data))
            case chat.ToolCallStart():
                output = self._start_call(event)
            case chat.ToolCallDelta() if event.index in self._open_calls:
                output = self._add_arguments(self._open_calls[event.index], event.arguments)
            case chat.ImageOutput():
                output = self._add_image(event)
        return output

    def _add_text(self, kind: str, text: str) -> bytes:
        if not text:
            return b""
        output = b""
        item = self._open_item
        if item is None or item.value["type"] != "message":
            output = self._close_item()
            item, start_events = self._start_item(
                {"type": "message", "status": "in_progress", "role": "assistant", "content": []}
            )
            self._open_item, output = item, output + start_events
        if item.text is None or item.text.kind != kind:
            output += self._close_text(item)
            part_ids = {"item_id": item.value["id"], "output_index": item.index}
            open_text = item.text = _Text(kind, part_ids | {"content_index": len(item.value["content"])})
            self._text = open_text if kind == _TEXT_EVENTS else None
            output += self._write_event("response.content_part.added", **open_text.part_ids, part=_build_part(kind, ""))
        return output + self._write_delta(item.text, text)

    def _add_reasoning(self, text: str) -> bytes:
        output = b""
        item = self._open_item
        if item is None or item.value["type"] != "reasoning":
            output = self._close_item()
            item, start_events = self._start_item({"type": "reasoning", "summary": []})
            part_ids = {"item_id": item.value["id"], "output_index": item.index, "summary_index": 0}
            self._reasoning_text = item.text = _Text(_SUMMARY_EVENTS, part_ids)
            self._open_item = item
            output += start_events + self._write_event(
                "response.reasoning_summary_part.added", **part_ids, part={"type": "summary_text", "text": ""}
            )
        return output + (self._write_delta(item.text, text) if item.text is not None else b"")

    def _add_signature(self, signature: str) -> bytes:
        self._signature = signature
        if self._open_item is None or self._open_item.value["type"] != "reasoning":
            return self._add_redacted(build_signed(signature))
        self._open_item.value["encrypted_content"] = build_signed(signature)
        return self._close_item()

    def _add_redacted(self, content: str) -> bytes:
        output = self._close_item()
        item, start_events = self._start_item({"type": "reasoning", "summary": []})
        item.value["encrypted_content"] = content
        return output + start_events + self._finish_item(item)

    def _start_call(self, event: chat.ToolCallStart) -> bytes:
        output = self._close_item()
        signature = chat.GEMINI_PREFIX + (event.signature or "")
        if event.signature and signature != self._signature:
            output += self._add_signature(signature)
        if event.index in self._open_calls:
            output += self._close_call(self._open_calls.pop(event.index), "completed")
        call_fields: Body = {"call_id": event.id, **self._namespace_fields.get(event.name, {"name": event.name})}
        kind = self._call_kinds.get(event.name)
        if kind not in {None, "custom"}:
            fields = build_item(str(kind), "{}")
            item, start_events = self._start_item(
                {"type": f"{kind}_call", "status": "in_progress", "call_id": event.id, **fields}
            )
        elif kind:
            item, start_events = self._start_item({"type": "custom_tool_call", **call_fields, "input": ""})
        else:
            item, start_events = self._start_item(
                {"type": "function_call", "status": "in_progress", **call_fields, "arguments": ""}
            )
        item.text = _Text(_ARGUMENTS_EVENTS, {"item_id": item.value["id"], "output_index": item.index})
        self._open_calls[event.index] = item
        return output + start_events

    def _add_arguments(self, item: _Item, arguments: str) -> bytes:
        if item.text is None or not arguments:
            return b""
        if item.value["type"] == "function_call":
            return self._write_delta(item.text, arguments)
        self._count_chars(arguments)
        item.text.buffer.write(arguments)
        return b""

    def _add_image(self, event: chat.ImageOutput) -> bytes:
        self._count_chars(event.data)
        output = self._close_item()
        image_format = event.media_type.removeprefix("image/")
        item, start_events = self._start_item(
            {"type": "image_generation_call", "status": "in_progress", "result": None, "output_format": image_format}
        )
        item.value |= {"status": "completed", "result": event.data}
        return output + start_events + self._finish_item(item)

    def _write_delta(self, text: _Text, piece: str) -> bytes:
        self.chars += len(piece)
        if self.chars > MAX_ANSWER_CHARS:
            self._count_chars("")
        text.buffer.write(piece)
        delta_head = text.delta_head
        if not delta_head:
            delta_head = text.delta_head = _make_delta_head(text)
        self._sequence_number += 1
        return b'%b%d,"delta":%b}\n\n' % (delta_head, self._sequence_number - 1, orjson.dumps(piece))

    def _count_chars(self, text: str) -> None:
        self.chars += len(text)
        if self.chars > MAX_ANSWER_CHARS:
            raise ProviderBadResponse("The provider's answer is too long", phase="stream")

    def _start_item(self, value: Body) -> tuple[_Item, bytes]:
        index = len(self._output)
        value = {"id": f"{_ID_PREFIXES[value['type']]}_{self._answer_id}_{index}", **value}
        self._output.append(value)
        return _Item(index, value), self._write_event("response.output_item.added", output_index=index, item=value)

    def _close_output(self, status: str) -> bytes:
        output = self._close_item(status)
        for index in list(self._open_calls):
            output += self._close_call(self._open_calls.pop(index), status)
        return output

    def _close_item(self, status: str = "completed") -> bytes:
        """Finish the items that cannot continue once another begins: message, reasoning and complete calls."""
        output = b""
        item, self._open_item, self._text, self._reasoning_text = self._open_item, None, None, None
        if item is not None:
            output = self._close_text(item)
            if item.value["type"] == "message":
                item.value["status"] = status
            else:
                item.value.setdefault("encrypted_content", UNSIGNED_PREFIX)
            output += self._finish_item(item)
        complete_calls = [index for index, call in self._open_calls.items() if _has_complete_arguments(call)]
        return output + b"".join(
            [self._close_call(self._open_calls.pop(index), "completed") for index in complete_calls]
        )

    def _close_text(self, item: _Item) -> bytes:
        text, item.text = item.text, None
        if text is None:
            return b""
        value = text.buffer.getvalue()
        part = _build_part(text.kind, value)
        if text.kind == _SUMMARY_EVENTS:
            item.value["summary"].append(part)
            done_event = self._write_event(f"{_SUMMARY_EVENTS}.done", **text.part_ids, text=value)
            return done_event + self._write_event("response.reasoning_summary_part.done", **text.part_ids, part=part)
        item.value["content"].append(part)
        fields: Body = {"refusal": value} if text.kind == _REFUSAL_EVENTS else {"text": value, "logprobs": []}
        done_event = self._write_event(f"{text.kind}.done", **text.part_ids, **fields)
        return done_event + self._write_event("response.content_part.done", **text.part_ids, part=part)

    def _close_call(self, item: _Item, status: str) -> bytes:
        arguments, part_ids = ("", {}) if item.text is None else (item.text.buffer.getvalue(), item.text.part_ids)
        if item.value["type"] == "function_call":
            item.value |= {"status": status, "arguments": arguments}
            name = item.value["name"]
            return self._write_event(
                f"{_ARGUMENTS_EVENTS}.done", **part_ids, name=name, arguments=arguments
            ) + self._finish_item(item)
        if item.value["type"] != "custom_tool_call":
            item.value |= {"status": status, **build_item(item.value["type"].removesuffix("_call"), arguments)}
            return self._finish_item(item)
        tool_input = item.value["input"] = read_input(arguments)
        kind = "response.custom_tool_call_input"
        delta = self._write_event(f"{kind}.delta", **part_ids, delta=tool_input) if tool_input else b""
        return delta + self._write_event(f"{kind}.done", **part_ids, input=tool_input) + self._finish_item(item)

    def _finish_item(self, item: _Item) -> bytes:
        return self._write_event("response.output_item.done", output_index=item.index, item=item.value)


_ID_PREFIXES = {
    "message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc",
    "local_shell_call": "lsh", "shell_call": "sh", "apply_patch_call": "apc", "tool_search_call": "tsc",
    "image_generation_call": "ig", "compaction": "cmp"
}  # fmt: skip


def _make_delta_head(text: _Text) -> bytes:
    kind = f"{text.kind}.delta"
    logprobs: Body = {"logprobs": []} if text.kind == _TEXT_EVENTS else {}
    data = orjson.dumps({"type": kind, **text.part_ids} | logprobs)
    return b'event: %b\ndata: %b,"sequence_number":' % (kind.encode(), data[:-1])


def _build_part(kind: str, text: str) -> Body:
    if kind == _TEXT_EVENTS:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "refusal", "refusal": text} if kind == _REFUSAL_EVENTS else {"type": "summary_text", "text": text}


def _has_complete_arguments(call: _Item) -> bool:
    return call.text is not None and bool(as_object(loads_or_none(call.text.buffer.getvalue().encode())))


def build_usage(report: chat.UsageReport) -> Body:
    """Build a ``ResponseUsage``."""
    usage = report.usage
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": usage.written_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": report.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
