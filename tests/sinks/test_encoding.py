"""What receivers get of a request: OTLP's JSON, Langfuse's attributes, rows, and messages of kept bodies."""

from typing import Any

import attrs
import orjson
import pytest
from google.protobuf import json_format  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gateway.domain.kept_body import BodyPart
from gateway.sinks.batch import SinkEntry
from gateway.sinks.http_senders import count_rejected
from gateway.sinks.json_rows import build_fields, build_lines
from gateway.sinks.messages import MAX_DEPTH, read_messages
from gateway.sinks.otlp import build_ids, build_logs, build_traces
from tests.support.request_records import ROW, make_row
from tests.support.sink_workers import make_named_rows

JSON, EVENTS = "application/json", "text/event-stream"


def find_none(_channel: str) -> None:
    return None


def make_bodies(asked: Any, answered: Any) -> list[BodyPart]:
    contents = [body if isinstance(body, bytes) else orjson.dumps(body) for body in (asked, answered)]
    kinds = (EVENTS if contents[1].startswith(b"data:") else JSON, JSON)
    return [
        BodyPart("request", contents[0], JSON, len(contents[0])),
        BodyPart("answer", contents[1], kinds[0], len(contents[1])),
    ]


def read_attributes(item: dict[str, Any]) -> dict[str, Any]:
    return {one["key"]: one["value"] for one in item["attributes"]}


def test_a_span_has_the_names_of_the_conventions() -> None:
    (row,) = make_named_rows(["a"], served_model="mistral-large-2", first_byte_ms=40, total_ms=90)
    raw = build_traces([SinkEntry(row)], {"up": "mistral"}.get)
    (span,) = orjson.loads(raw)["resourceSpans"][0]["scopeSpans"][0]["spans"]
    trace_id, span_id = build_ids("req_a")
    assert (span["traceId"], span["spanId"], len(trace_id), len(span_id)) == (trace_id, span_id, 32, 16)
    assert (span["name"], span["kind"], "status" in span) == ("chat m", 3, False)
    assert int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"]) == 90_000_000
    attributes = read_attributes(span)
    assert attributes["gen_ai.provider.name"] == {"stringValue": "mistral_ai"}
    assert attributes["gen_ai.request.model"] == {"stringValue": "m"}
    assert attributes["gen_ai.response.model"] == {"stringValue": "mistral-large-2"}
    assert attributes["gen_ai.usage.input_tokens"] == {"intValue": "100000000"}
    assert attributes["gen_ai.usage.cache_read.input_tokens"] == {"intValue": "3"}
    assert attributes["gen_ai.response.time_to_first_chunk"] == {"doubleValue": 0.04}
    assert attributes["gen_ai.conversation.id"] == {"stringValue": "run-42"}
    assert attributes["gateway.cost_usd"] == {"doubleValue": 1e-06}
    assert attributes["gateway.tags"]["arrayValue"]["values"][1] == {"stringValue": "team=web"}
    assert "error.type" not in attributes
    assert "langfuse.observation.type" not in attributes


def test_a_failed_request_has_its_error_and_a_channel_that_is_gone_no_provider() -> None:
    row = make_row("a", outcome="failed")
    (span,) = orjson.loads(build_traces([SinkEntry(row)], find_none))["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert span["status"] == {"code": 2, "message": "The provider broke off its answer"}
    attributes = read_attributes(span)
    assert attributes["error.type"] == {"stringValue": "upstream_error"}
    assert not {"gen_ai.provider.name", "gen_ai.response.model"} & attributes.keys()
    (record,) = orjson.loads(build_logs([SinkEntry(row)], find_none))["resourceLogs"][0]["scopeLogs"][0]["logRecords"]
    assert (record["severityNumber"], record["traceId"]) == (17, build_ids("req_a")[0])


def test_langfuse_gets_usage_cost_user_and_session() -> None:
    (row,) = make_named_rows(["a"], prompt_tokens=10)
    bodies = make_bodies(
        {"messages": [{"role": "user", "content": "hi"}]}, {"choices": [{"message": {"content": "ho"}}]}
    )
    raw = build_traces([SinkEntry(row, bodies)], find_none, for_langfuse=True)
    (span,) = orjson.loads(raw)["resourceSpans"][0]["scopeSpans"][0]["spans"]
    attributes = {name: value.get("stringValue") for name, value in read_attributes(span).items()}
    assert attributes["langfuse.observation.type"] == "generation"
    assert orjson.loads(attributes["langfuse.observation.usage_details"]) == {
        "input": 7, "output": 2, "cache_read_input_tokens": 3,
    }  # fmt: skip
    assert orjson.loads(attributes["langfuse.observation.cost_details"]) == {"total": 1e-06}
    assert (attributes["langfuse.user.id"], attributes["langfuse.session.id"]) == ("u-17", "run-42")
    assert orjson.loads(attributes["langfuse.observation.output"])[0]["parts"][0]["content"] == "ho"


def test_a_row_has_every_field_but_those_of_the_ledger() -> None:
    fields = build_fields(SinkEntry(ROW))
    named = {field.name for field in attrs.fields(type(ROW))}
    assert named - fields.keys() == {"limit_charges", "reserved_nanos"}
    assert (fields["cost_usd"], fields["settled_at"]) == ((2**52 + 1) / 1e9, "2025-06-15T15:06:40Z")
    assert orjson.loads(build_lines([SinkEntry(ROW)])) == fields


TEXT = {"type": "text", "content": "hi"}


@pytest.mark.parametrize(
    ("asked", "answered", "expected_input", "expected_output"),
    [
        (
            {"messages": [{"role": "user", "content": "hi"}]},
            {"choices": [{"message": {"role": "assistant", "content": "hi"}, "finish_reason": "length"}]},
            [{"role": "user", "parts": [TEXT]}],
            [{"role": "assistant", "parts": [TEXT], "finish_reason": "length"}],
        ),
        (
            {"system": "be brief", "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
            {"content": [{"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}], "stop_reason": "tool_use"},
            [{"role": "user", "parts": [TEXT]}],
            [
                {
                    "role": "assistant",
                    "parts": [{"type": "tool_call", "id": "c", "name": "f", "arguments": {"a": 1}}],
                    "finish_reason": "tool_use",
                }
            ],
        ),
        (
            {"instructions": "be brief", "input": "hi"},
            {"output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}]},
            [{"role": "user", "parts": [TEXT]}],
            [{"role": "assistant", "parts": [TEXT], "finish_reason": "stop"}],
        ),
        (
            {
                "systemInstruction": {"parts": [{"text": "be brief"}]},
                "contents": [{"role": "model", "parts": [{"text": "hi"}]}],
            },
            {"candidates": [{"content": {"role": "model", "parts": [{"text": "hi"}]}, "finishReason": "STOP"}]},
            [{"role": "assistant", "parts": [TEXT]}],
            [{"role": "assistant", "parts": [TEXT], "finish_reason": "STOP"}],
        ),
        (
            b'{"messages": [ ... cut',
            b"".join(b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % piece for piece in (b"h", b"i")),
            [{"role": "user", "parts": [{"type": "text", "content": '{"messages": [ ... cut'}]}],
            [{"role": "assistant", "parts": [TEXT], "finish_reason": "stop"}],
        ),
    ],
    ids=["chat", "messages", "responses", "gemini", "cut and streamed"],
)
def test_bodies_of_every_api_become_messages(
    asked: Any, answered: Any, expected_input: Any, expected_output: Any
) -> None:
    messages = read_messages(make_bodies(asked, answered), succeeded=True)
    assert messages.input == expected_input
    assert messages.output == expected_output
    has_instructions = isinstance(asked, dict) and len(asked) > 1
    assert messages.instructions == ([{"type": "text", "content": "be brief"}] if has_instructions else [])


@pytest.mark.parametrize("depth", [MAX_DEPTH, 200, 400, 1_000])
def test_a_deeply_nested_body_is_delivered_all_the_same(depth: int) -> None:
    """No client can stop a sink with what it sends."""
    nested = b'{"messages":[{"role":"user","content":[{"type":"x","a":' + b"[" * depth + b"]" * depth + b"}]}]}"
    entry = SinkEntry(ROW, make_bodies(nested, nested))
    json_format.Parse(build_logs([entry], find_none), ExportLogsServiceRequest())
    json_format.Parse(build_traces([entry], find_none, for_langfuse=True), ExportTraceServiceRequest())
    assert orjson.loads(build_lines([entry]))


@pytest.mark.parametrize("calls", [1, True, "text", {"a": 1}, [1]])
def test_calls_of_tools_that_are_no_list_are_passed(calls: Any) -> None:
    asked = {"messages": [{"role": "user", "content": "hi", "tool_calls": calls}]}
    messages = read_messages(make_bodies(asked, {}), succeeded=True)
    assert messages.input == [{"role": "user", "parts": [TEXT]}]


KEYS = (
    "messages", "content", "parts", "role", "type", "text", "input", "choices", "message", "tool_calls", "function",
    "output", "candidates", "system", "thinking", "arguments",
)  # fmt: skip
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@given(JSON_VALUES, JSON_VALUES)
def test_any_json_is_delivered(asked: Any, answered: Any) -> None:
    entry = SinkEntry(ROW, make_bodies(*(_dump(value) for value in (asked, answered))))
    assert orjson.loads(build_logs([entry], find_none))
    assert orjson.loads(build_traces([entry], find_none, for_langfuse=True))
    assert orjson.loads(build_lines([entry]))


def _dump(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # an integer that orjson does not write
        return str(value).encode(errors="replace")


@pytest.mark.parametrize(
    ("content", "rejected"),
    [
        (b"", 0), (b"{}", 0), (b"<html>", 0), (b"[1]", 0), (b'{"partialSuccess":null}', 0),
        (b'{"partialSuccess":{"rejectedSpans":"3"}}', 3), (b'{"partialSuccess":{"rejectedLogRecords":2}}', 2),
        (b'{"partialSuccess":{"rejectedSpans":"-3"}}', 0), (b'{"partialSuccess":{"rejectedSpans":"many"}}', 0),
    ],
)  # fmt: skip
def test_what_a_receiver_rejects_is_counted(content: bytes, rejected: int) -> None:
    assert count_rejected(content) == rejected
