"""Requests in the JSON of OTLP/HTTP: spans for ``/v1/traces``, events for ``/v1/logs``; also for Langfuse.

Sources: OpenTelemetry's conventions for generative AI (``gen_ai.*``, and the event
``gen_ai.client.inference.operation.details``); the specification of OTLP, "JSON Protobuf Encoding"; Langfuse's page
"OpenTelemetry", whose endpoint replaces its ingestion API. The ids of a request's span follow from the request's id:
receivers can recognize a request that they get twice.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson

from gateway import __version__
from gateway.domain.price import NANOS_PER_USD
from gateway.domain.request_log import RequestRecord, has_failed
from gateway.observability.gen_ai import name_operation, name_provider
from gateway.sinks.batch import SinkEntry
from gateway.sinks.messages import GenAiMessages, read_messages

EVENT_NAME = "gen_ai.client.inference.operation.details"
_SERVICE = "model-gateway"
_NS_PER_MS = 1_000_000
_CLIENT_KIND, _ERROR_CODE = 3, 2
_INFO, _ERROR = 9, 17
"""Numbers of OTLP: the kind and the status of a span, and severities of log records."""
FindProvider = Callable[[str], str | None]
"""Returns the provider of a channel; None if the channel is gone."""


def build_traces(entries: Sequence[SinkEntry], find_provider: FindProvider, *, for_langfuse: bool = False) -> bytes:
    """Return the body of a request to ``/v1/traces`` with a span for each entry."""
    spans = []
    for entry in entries:
        messages = _read_messages(entry)
        attributes = _build_attributes(entry, find_provider) | _build_text_messages(messages)
        if for_langfuse:
            attributes |= _build_langfuse(entry.row, messages)
        spans.append(_build_span(entry.row, attributes))
    return _wrap("resourceSpans", "scopeSpans", "spans", spans)


def build_logs(entries: Sequence[SinkEntry], find_provider: FindProvider) -> bytes:
    """Return the body of a request to ``/v1/logs`` with an event for each entry."""
    records = []
    for entry in entries:
        row = entry.row
        time_ns = str(_find_end_ns(row))
        trace_id, span_id = build_ids(row.id)
        messages = _read_messages(entry)
        contents = {name: list(value) for name, value in _list_messages(messages)}
        record = {
            "timeUnixNano": time_ns,
            "observedTimeUnixNano": time_ns,
            "severityNumber": _ERROR if has_failed(row) else _INFO,
            "eventName": EVENT_NAME,
            "attributes": _encode_attributes(_build_attributes(entry, find_provider) | contents),
            "traceId": trace_id,
            "spanId": span_id,
        }
        records.append(record)
    return _wrap("resourceLogs", "scopeLogs", "logRecords", records)


def build_ids(request_id: str) -> tuple[str, str]:
    """Return the trace id and the span id of a request, in hexadecimal digits."""
    digest = hashlib.sha256(request_id.encode()).hexdigest()
    return digest[:32], digest[32:48]


def _read_messages(entry: SinkEntry) -> GenAiMessages:
    return read_messages(entry.bodies, succeeded=not has_failed(entry.row))


def _wrap(resources_key: str, scopes_key: str, items_key: str, items: list[dict[str, Any]]) -> bytes:
    resource = {"attributes": _encode_attributes({"service.name": _SERVICE, "service.version": __version__})}
    scope = {"scope": {"name": "gateway", "version": __version__}, items_key: items}
    return orjson.dumps({resources_key: [{"resource": resource, scopes_key: [scope]}]})


def _build_span(row: RequestRecord, attributes: Mapping[str, Any]) -> dict[str, Any]:
    trace_id, span_id = build_ids(row.id)
    span: dict[str, Any] = {
        "traceId": trace_id,
        "spanId": span_id,
        "name": f"{name_operation(row.operation)} {row.model}".rstrip(),
        "kind": _CLIENT_KIND,
        "startTimeUnixNano": str(row.started_ms * _NS_PER_MS),
        "endTimeUnixNano": str(_find_end_ns(row)),
        "attributes": _encode_attributes(attributes),
    }
    if has_failed(row):
        span["status"] = {"code": _ERROR_CODE, "message": row.error or row.error_code or row.outcome}
    return span


def _find_end_ns(row: RequestRecord) -> int:
    return (row.started_ms + row.total_ms) * _NS_PER_MS


def _build_attributes(entry: SinkEntry, find_provider: FindProvider) -> dict[str, Any]:
    """Return the attributes of a request without messages. None and empty texts are left out when they are encoded."""
    row = entry.row
    provider = None if row.channel is None else find_provider(row.channel)
    return {
        "gen_ai.operation.name": name_operation(row.operation),
        "gen_ai.provider.name": None if provider is None else name_provider(provider),
        "gen_ai.request.model": row.model,
        "gen_ai.response.model": (row.served_model or row.model) if row.outcome == "completed" else None,
        "gen_ai.request.stream": row.stream,
        "gen_ai.usage.input_tokens": row.prompt_tokens,
        "gen_ai.usage.output_tokens": row.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": row.cached_tokens or None,
        "gen_ai.response.time_to_first_chunk": _find_first_chunk_s(row),
        "gen_ai.conversation.id": row.session,
        "user.id": row.end_user,
        "error.type": (row.error_code or row.outcome) if has_failed(row) else None,
        "http.response.status_code": row.status,
        "gateway.request.id": row.id,
        "gateway.client_request.id": row.client_request_id,
        "gateway.account": row.account,
        "gateway.key": row.key_name,
        "gateway.channel": row.channel,
        "gateway.route": row.route,
        "gateway.outcome": row.outcome,
        "gateway.attempts": row.attempts,
        "gateway.cost_usd": row.cost_nanos / NANOS_PER_USD,
        "gateway.tags": row.tags.split(",") if row.tags else None,
        "gateway.batch.id": row.batch_id,
        "gateway.shadow": row.shadow or None,
    }


def _find_first_chunk_s(row: RequestRecord) -> float | None:
    return row.first_byte_ms / 1000 if row.stream and row.first_byte_ms is not None else None


def _list_messages(messages: GenAiMessages) -> Iterator[tuple[str, Sequence[Any]]]:
    yield "gen_ai.system_instructions", messages.instructions
    yield "gen_ai.input.messages", messages.input
    yield "gen_ai.output.messages", messages.output


def _build_text_messages(messages: GenAiMessages) -> dict[str, str]:
    """Return messages as JSON texts, because attributes of spans have no structure."""
    return {name: _write_json(value) for name, value in _list_messages(messages) if value}


def _build_langfuse(row: RequestRecord, messages: GenAiMessages) -> dict[str, Any]:
    usage = {"input": row.prompt_tokens - row.cached_tokens, "output": row.completion_tokens}
    if row.cached_tokens:
        usage["cache_read_input_tokens"] = row.cached_tokens
    first_chunk_ms = row.started_ms + row.first_byte_ms if row.stream and row.first_byte_ms is not None else None
    return {
        "langfuse.observation.type": "generation",
        "langfuse.trace.name": f"{name_operation(row.operation)} {row.model}",
        "langfuse.user.id": row.end_user,
        "langfuse.session.id": row.session,
        "langfuse.trace.tags": row.tags.split(",") if row.tags else None,
        "langfuse.observation.model.name": row.served_model or row.model,
        "langfuse.observation.usage_details": _write_json(usage),
        "langfuse.observation.cost_details": _write_json({"total": row.cost_nanos / NANOS_PER_USD}),
        "langfuse.observation.completion_start_time": None if first_chunk_ms is None else _format_ms(first_chunk_ms),
        "langfuse.observation.level": "ERROR" if has_failed(row) else None,
        "langfuse.observation.status_message": row.error or row.error_code,
        "langfuse.observation.input": _write_json([*messages.input]) if messages.input else None,
        "langfuse.observation.output": _write_json([*messages.output]) if messages.output else None,
    }


def _format_ms(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _write_json(value: Any) -> str:
    return orjson.dumps(value).decode()


def _encode_attributes(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"key": name, "value": _encode_value(value)}
        for name, value in attributes.items()
        if value is not None and value not in ("", [])
    ]


def _encode_value(value: Any) -> dict[str, Any]:
    """Return the ``AnyValue`` of JSON. Integers are texts in OTLP's JSON."""
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [_encode_value(item) for item in value]}}
    if isinstance(value, dict):
        items = [{"key": str(name), "value": _encode_value(item)} for name, item in value.items()]
        return {"kvlistValue": {"values": items}}
    return {} if value is None else {"stringValue": str(value)}
