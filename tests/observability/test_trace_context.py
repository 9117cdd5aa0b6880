"""``traceparent``: what is read from it, and what is sent on."""

from gateway.observability.trace_context import MAX_STATE_CHARS, CurrentTrace, open_trace, parse_parent
from gateway.request_context import RequestContext
from tests.support.table_rows import table_rows

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE_ID}-{SPAN_ID}-01"


def make_context() -> RequestContext:
    return RequestContext("req_0")


@table_rows(
    ("text", "sampled"),
    [
        (PARENT, True),
        (f" {PARENT} ", True),
        (f"00-{TRACE_ID}-{SPAN_ID}-00", False),
        (f"00-{TRACE_ID}-{SPAN_ID}-03", True),
        (f"00-{TRACE_ID}-{SPAN_ID}-02", False),
        (f"cc-{TRACE_ID}-{SPAN_ID}-01-what-the-future-brings", True),
    ],
)
def test_a_valid_parent_is_read(text: str, *, sampled: bool) -> None:
    assert parse_parent(text) == (int(TRACE_ID, 16), int(SPAN_ID, 16), sampled)


@table_rows(
    "text",
    [
        "", "x", f"ff-{TRACE_ID}-{SPAN_ID}-01", f"{PARENT}-more", f"00-{'0' * 32}-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{'0' * 16}-01", PARENT.upper(), f"00-{TRACE_ID}-{SPAN_ID}-1", f"00-{TRACE_ID[1:]}-{SPAN_ID}-01",
        f"cc-{TRACE_ID}-{SPAN_ID}-01more", f"00-{TRACE_ID}-{SPAN_ID}-0g",
    ],
)  # fmt: skip
def test_an_invalid_parent_begins_a_new_trace(text: str) -> None:
    assert parse_parent(text) is None
    trace = open_trace(make_context(), {"traceparent": text}, 1.0)
    assert trace is not None
    assert (trace.parent_id, trace.sampled) == (None, True)


@table_rows("ratio", [0.0, 1.0])
def test_the_clients_decision_goes_before_the_ratio(ratio: float) -> None:
    for flags, sampled in (("01", True), ("00", False)):
        trace = open_trace(make_context(), {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-{flags}"}, ratio)
        assert trace is not None
        assert (trace.trace_id, trace.parent_id, trace.sampled) == (int(TRACE_ID, 16), int(SPAN_ID, 16), sampled)


def test_the_ratio_decides_without_a_parent() -> None:
    assert open_trace(make_context(), {}, 0.0) is None
    found = [open_trace(make_context(), {}, 0.5) for _ in range(400)]
    assert 100 < sum(trace is not None for trace in found) < 300
    ids = {trace.trace_id for trace in found if trace is not None}
    assert len(ids) == sum(trace is not None for trace in found)


def test_a_provider_gets_the_trace_and_the_attempt_as_its_parent() -> None:
    trace = open_trace(make_context(), {"traceparent": PARENT, "tracestate": "a=1,b=2"}, 0.0)
    assert trace is not None
    headers = trace.build_headers()
    assert headers == {"traceparent": f"00-{TRACE_ID}-{trace.attempt_ids[0]:016x}-01", "tracestate": "a=1,b=2"}
    assert trace.build_headers() == headers, "the same attempt"
    assert len({trace.span_id, *trace.attempt_ids}) == 2


@table_rows("state", ["", "a=" + "x" * MAX_STATE_CHARS, "a=\x01", "a=\r\nX: y"])
def test_a_state_that_cannot_be_forwarded_is_dropped(state: str) -> None:
    trace = open_trace(make_context(), {"traceparent": PARENT, "tracestate": state}, 0.0)
    assert trace is not None
    assert trace.build_headers().keys() == {"traceparent"}


def test_lines_of_the_log_name_the_current_trace() -> None:
    current = CurrentTrace()
    assert not current.add_log_fields(None, "info", {})
    current.set(open_trace(make_context(), {"traceparent": PARENT}, 0.0))
    fields = current.add_log_fields(None, "info", {})
    assert fields.keys() == {"trace_id", "span_id"}
    assert fields["trace_id"] == TRACE_ID
