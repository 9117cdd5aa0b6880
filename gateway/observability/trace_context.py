"""The trace of a request (W3C Trace Context), and its propagation to providers and into the log.

A request has a trace if its client sends a ``traceparent``, or if it is sampled. For all other requests the cost is a
header look-up and one random number.
"""

import random
import re
from collections.abc import Callable, Coroutine, Mapping, MutableMapping
from contextvars import ContextVar
from time import time_ns
from typing import Any

import attrs

from gateway.domain.http_request import HttpRequest
from gateway.request_context import RequestContext
from gateway.upstream.interface import HttpClient, HttpResponse

PARENT_HEADER, STATE_HEADER = "traceparent", "tracestate"
MAX_STATE_CHARS = 512
"""Characters of ``tracestate`` that must be forwarded (Trace Context, 3.3.1.5); a longer value is dropped."""
_PARENT_PATTERN = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_PRINTABLE = re.compile(r"[\t\x20-\x7e]*\Z")
_SAMPLED = 1


@attrs.define(eq=False)
class RequestTrace:
    """The trace of one running request.

    Attributes:
        span_id: the id of the request's own span, 64 bits.
        parent_id: the client's span; None if the trace begins here.
        sampled: whether the spans are exported.
        state: the client's ``tracestate``; empty without one.
    """

    trace_id: int
    span_id: int
    context: RequestContext
    parent_id: int | None = None
    sampled: bool = True
    state: str = ""
    started_ns: int = attrs.field(factory=time_ns)
    attempt_ids: list[int] = attrs.Factory(list)

    def find_attempt_id(self, number: int) -> int:
        """Return the span id of an attempt; the first attempt has the number 0."""
        while len(self.attempt_ids) <= number:
            self.attempt_ids.append(make_id(64))
        return self.attempt_ids[number]

    def build_headers(self) -> dict[str, str]:
        """Return the trace headers of a request to a provider. Their parent is the current attempt."""
        span_id = self.find_attempt_id(max(0, len(self.context.attempts) - 1))
        headers = {PARENT_HEADER: f"00-{self.trace_id:032x}-{span_id:016x}-{int(self.sampled):02x}"}
        if self.state:
            headers[STATE_HEADER] = self.state
        return headers


class CurrentTrace:
    """The trace of the request that the current task works for, or None."""

    def __init__(self) -> None:
        trace: ContextVar[RequestTrace | None] = ContextVar("trace", default=None)
        self.get: Callable[[], RequestTrace | None] = trace.get
        self.set: Callable[[RequestTrace | None], object] = trace.set

    def add_log_fields(
        self, _logger: object, _method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        """Add the trace's fields to a log event; a structlog processor."""
        trace = self.get()
        if trace is not None:
            event["trace_id"], event["span_id"] = f"{trace.trace_id:032x}", f"{trace.span_id:016x}"
        return event


def make_id(bits: int) -> int:
    """Return a random id. It is never 0, which means "no id"."""
    return random.getrandbits(bits) or 1


def open_trace(context: RequestContext, headers: Mapping[str, str], ratio: float) -> RequestTrace | None:
    """Return the trace of a request; None if the request is not traced.

    A client's decision to sample is respected. ``headers`` are the client's, case-insensitive. ``ratio`` is the share
    of requests to sample among those whose client sends no valid ``traceparent``.
    """
    parent = headers.get(PARENT_HEADER)
    if parent is not None and (parent_context := parse_parent(parent)) is not None:
        trace_id, parent_id, sampled = parent_context
        state = headers.get(STATE_HEADER, "")
        if len(state) > MAX_STATE_CHARS or not _PRINTABLE.match(state):
            state = ""
        return RequestTrace(trace_id, make_id(64), context, parent_id, sampled, state)
    if random.random() >= ratio:  # noqa: S311 - no secret
        return None
    return RequestTrace(make_id(128), make_id(64), context)


def parse_parent(text: str) -> tuple[int, int, bool] | None:
    """Return trace id, span id and sampling flag of a ``traceparent``; None if it is invalid.

    Source: Trace Context, 3.2.2 and 4.1.
    """
    match = _PARENT_PATTERN.fullmatch(text.strip())
    if match is None:
        return None
    version, trace_id, span_id, flags, extra_text = match.groups()
    if version == "ff" or (version == "00" and extra_text is not None) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    return int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & _SAMPLED)


class TracedHttpClient:
    """``HttpClient`` that adds the current request's trace to each request."""

    def __init__(self, client: HttpClient, current: CurrentTrace) -> None:
        self._client = client
        self._current_trace = current

    def send(self, http_request: HttpRequest) -> Coroutine[Any, Any, HttpResponse]:
        trace = self._current_trace.get()
        if trace is not None:
            own_headers = {
                name: value
                for name, value in http_request.headers.items()
                if name.lower() not in {PARENT_HEADER, STATE_HEADER}
            }
            http_request = attrs.evolve(http_request, headers={**own_headers, **trace.build_headers()}, template=None)
        return self._client.send(http_request)

    async def close(self) -> None:
        await self._client.close()
