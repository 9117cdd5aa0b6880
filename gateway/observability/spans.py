"""The spans of a finished request: one for the request, with a child for each attempt.

Names and attributes are those of OpenTelemetry's semantic conventions for generative AI and HTTP; others begin with
``gateway.``. Prompts and answers are never included.
"""

from collections.abc import Iterator

from yarl import URL

from gateway.domain.price import NANOS_PER_USD
from gateway.domain.request_log import Outcome, RequestRecord
from gateway.frozen import frozen
from gateway.observability.gen_ai import name_operation, name_provider
from gateway.observability.trace_context import RequestTrace
from gateway.routing.target import Attempt
from gateway.wording import mask_keys

ERROR_OUTCOMES: frozenset[Outcome] = frozenset({"failed", "interrupted"})
"""Outcomes that make the request's span an error. Errors of the client do not count, as the conventions require for
server spans."""
_NS_PER_S = 1_000_000_000
_NS_PER_MS = 1_000_000
_ERROR_STATUS = 500

Attributes = dict[str, str | bool | int | float]


@frozen
class FinishedSpan:
    """A span that has ended; its times are in Unix nanoseconds.

    Attributes:
        parent_id: for an attempt the span of its request; for a request the client's span, or None without one.
        is_server: whether this is the request's span, not an attempt's.
        error: the code of the error; None if the span is not to count as an error.
    """

    name: str
    trace_id: int
    span_id: int
    parent_id: int | None
    started_ns: int
    ended_ns: int
    attributes: Attributes
    is_server: bool = False
    error: str | None = None


def build_spans(trace: RequestTrace, method: str, path: str, status: int, now_ns: int) -> Iterator[FinishedSpan]:
    """Yield the span of an ended request, then those of its attempts. ``status`` is 499 for a disconnected client."""
    record, attempts, path = trace.context.record, trace.context.attempts, mask_keys(path)
    attributes: Attributes = {
        "http.request.method": method,
        "url.path": path,
        "http.response.status_code": status,
        "gateway.request.id": trace.context.id,
    }
    name, error = f"{method} {path}", "internal_error" if status >= _ERROR_STATUS else None
    if record is not None:
        last_attempt = attempts[-1] if attempts else None
        attributes |= _describe_record(record) | _describe_usage(record, last_attempt)
        name = _build_name(record.operation, record.model)
        error = (record.error_code or record.outcome) if record.outcome in ERROR_OUTCOMES else None
    yield FinishedSpan(
        name, trace.trace_id, trace.span_id, trace.parent_id, trace.started_ns, now_ns, attributes, True, error
    )
    for number, attempt in enumerate(attempts):
        yield _build_attempt(trace, number, attempt, now_ns)


def _build_name(operation: str, model: str) -> str:
    return f"{name_operation(operation)} {model}".rstrip()


def _describe_record(record: RequestRecord) -> Attributes:
    attributes: Attributes = {
        "gen_ai.operation.name": name_operation(record.operation),
        "gen_ai.request.model": record.model,
        "gen_ai.request.stream": record.stream,
        "gateway.account": record.account,
        "gateway.key": record.key_name,
        "gateway.outcome": record.outcome,
        "gateway.attempts": record.attempts,
        "gateway.cost_usd": record.cost_nanos / NANOS_PER_USD,
    }
    if record.error_code is not None:
        attributes["error.type"] = record.error_code
    if record.stream and record.first_byte_ms is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = record.first_byte_ms / 1000
    return attributes


def _describe_usage(record: RequestRecord, last_attempt: Attempt | None) -> Attributes:
    if last_attempt is None:
        return {}
    target_attributes = _describe_target(last_attempt)
    if record.outcome == "completed":
        target_attributes["gen_ai.response.model"] = last_attempt.answered or last_attempt.target.model
    target_attributes["gen_ai.usage.input_tokens"] = record.prompt_tokens
    target_attributes["gen_ai.usage.output_tokens"] = record.completion_tokens
    if record.cached_tokens:
        target_attributes["gen_ai.usage.cache_read.input_tokens"] = record.cached_tokens
    return target_attributes


def _describe_target(attempt: Attempt) -> Attributes:
    return {"gen_ai.provider.name": name_provider(attempt.channel.provider), "gateway.channel": attempt.channel.name}


def _build_attempt(trace: RequestTrace, number: int, attempt: Attempt, now_ns: int) -> FinishedSpan:
    context, target, failure = trace.context, attempt.target, attempt.failure
    record, is_last = context.record, number == len(context.attempts) - 1
    started_ns = trace.started_ns + max(0, round((attempt.began_at - context.started_at) * _NS_PER_S))
    ended_ns = now_ns if failure is None else min(now_ns, started_ns + failure.ms * _NS_PER_MS)
    operation = attempt.translator.inference.operation
    attributes: Attributes = {
        "gen_ai.operation.name": name_operation(operation),
        **_describe_target(attempt),
        "gen_ai.request.model": target.model,
        **_describe_server(attempt),
    }
    error = None if failure is None else failure.code
    if is_last and record is not None:
        attributes |= _describe_usage(record, attempt)
        if error is None and record.outcome in ERROR_OUTCOMES:
            error = record.error_code or record.outcome
    if error is not None:
        attributes["error.type"] = error
    name = _build_name(operation, target.model)
    span_id = trace.find_attempt_id(number)
    return FinishedSpan(
        name, trace.trace_id, span_id, trace.span_id, started_ns, max(started_ns, ended_ns), attributes, False, error
    )


def _describe_server(attempt: Attempt) -> Attributes:
    attributes: Attributes = {}
    url = URL(attempt.channel.base_url)
    if url.host and url.port:
        attributes = {"server.address": url.host, "server.port": url.port}
    if attempt.response is not None:
        attributes["http.response.status_code"] = attempt.response.status
    return attributes
