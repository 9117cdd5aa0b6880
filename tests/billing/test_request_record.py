"""The record of a request: the trail of its attempts, in full for the record and without names for the client."""

import re
from collections.abc import Sequence
from typing import Any

import attrs
import orjson
from aiohttp.test_utils import make_mocked_request

from gateway.billing.quota import build_start
from gateway.billing.settlement import build_record, find_outcome
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.request_log import (
    MAX_ADAPTED_CHARS,
    MAX_ERROR_CHARS,
    FailedAttempt,
    Outcome,
    RequestRecord,
    parse_attempts,
)
from gateway.domain.usage import Usage, UsageDetails
from gateway.errors import (
    GatewayError,
    ImageBlocked,
    ProviderAuthError,
    ProviderBadResponse,
    ProviderRateLimited,
    ProviderRejected,
    ProviderTimeout,
    QuotaExceeded,
    RequestCancelled,
    SensitiveWords,
    ShuttingDown,
    UnsupportedByProvider,
)
from gateway.formats.errors.openai import parse_provider_error
from gateway.proxy.failover import mark_failed
from gateway.request_context import CopyOrigin, RequestContext
from gateway.routing.load_balancer import DEFAULT_SETTINGS, LoadBalancer
from gateway.routing.model_catalog import ModelCatalog
from gateway.routing.pricing_policy import PricingPolicy
from gateway.routing.router import Router
from gateway.routing.target import Attempt
from gateway.server.context import CONTEXT
from gateway.server.responses import build_common_headers
from gateway.upstream.exhaustion import ResourcesExhausted
from tests.support.billing_services import UP, caller_of
from tests.support.contexts import make_context
from tests.support.table_rows import table_rows

CALL = InferenceRequest("chat", "m", {"model": "m", "messages": [{"role": "user", "content": "hi"}]})


@table_rows(
    ("error", "outcome"),
    [
        (ProviderTimeout("slow"), "failed"),
        (ProviderBadResponse("odd"), "failed"),
        (ResourcesExhausted(), "refused"),
        (ProviderRejected("no", status=400, code="invalid_value"), "refused"),
        (ProviderRejected("no", status=400, code="content_filter"), "blocked"),
        (ProviderRejected("no", status=400, code="DataInspectionFailed"), "blocked"),
        (ImageBlocked("no"), "blocked"),
        (SensitiveWords("no"), "blocked"),
        (QuotaExceeded("no", status=429), "refused"),
        (RequestCancelled("no"), "cancelled"),
        (ShuttingDown("no"), "interrupted"),
    ],
    ids=repr,
)
def test_every_error_has_its_outcome(error: GatewayError, outcome: Outcome) -> None:
    assert find_outcome(error) == outcome


def attempt_over(name: str) -> Attempt:
    """An attempt over a channel of that name."""
    channel = attrs.evolve(UP, name=name)
    catalog, switchboard = (
        ModelCatalog(clock=lambda: 0.0),
        LoadBalancer(lambda: 0.0, lambda: 0.5, settings=DEFAULT_SETTINGS, shared=None),
    )
    catalog.set_channels([channel])
    switchboard.set_channels([channel])
    return Router(catalog, switchboard, PricingPolicy(), models=(), routes={}).route(caller_of(), CALL).start("1", 0)


def begun(*attempts: Attempt, **more: Any) -> RequestContext:
    """A request with these attempts so far."""
    return make_context(caller_of(), CALL, started_ms=1_000, started_at=10.0, attempts=[*attempts], **more)


def begin(ctx: RequestContext, name: str, now: float) -> Attempt:
    """The request's next attempt."""
    attempt = attempt_over(name)
    attempt.began_at = now
    ctx.attempts.append(attempt)
    return attempt


def fail_all(*faults: GatewayError) -> RequestContext:
    """A request of which every attempt failed, each after 0.25 s."""
    ctx = begun()
    for number, (name, error) in enumerate(zip(("one", "two", "three"), faults, strict=False)):
        mark_failed(begin(ctx, name, 10.0 + number), error, 10.25 + number)
    return ctx


def record_of(
    ctx: RequestContext, outcome: Outcome, error: GatewayError | None = None, now: float = 13.0
) -> RequestRecord:
    return build_record(ctx, outcome, error, now_s=now, now_ms=4_000)


def build_headers(ctx: RequestContext) -> dict[str, str]:
    """The headers that tell the client about the attempts."""
    request = make_mocked_request("POST", "/v1/chat/completions")
    request[CONTEXT] = ctx
    headers = build_common_headers(request)
    return {name: value for name, value in headers.items() if name.startswith("x-gateway-")}


def test_a_call_that_was_answered_at_once_has_no_trail() -> None:
    row = record_of(begun(attempt_over("one")), "completed")
    assert (row.channel, row.attempts, row.tried) == ("one", 1, "")


def test_a_row_has_what_was_made_and_heard_and_spoken() -> None:
    usage = Usage(5, 7, 2, "upstream", images=2, duration_ms=4_000, characters=90)
    row = record_of(begun(usage=usage), "completed")
    assert (row.images, row.duration_ms, row.characters) == (2, 4_000, 90)
    assert (row.prompt_tokens, row.completion_tokens, row.cached_tokens, row.usage_source) == (5, 7, 2, "upstream")


def test_a_row_has_the_model_that_answered_and_the_units_that_were_charged() -> None:
    attempt = attempt_over("one")
    attempt.answered = "m-large\n"
    rare = UsageDetails(searches=2, tier="flex", cost_nanos=0)
    row = record_of(begun(attempt, usage=Usage(5, 7, written_tokens=3, size="\ud800", details=rare)), "completed")
    assert row.served_model == "m-large "
    assert row.units == r'{"written_tokens":3,"size":"\ud800","searches":2,"tier":"flex","cost_nanos":0}'
    row = record_of(begun(attempt_over("one"), usage=Usage(5, 7, 2)), "completed")
    assert (row.served_model, row.units) == ("", "")


def test_a_row_has_what_its_caller_was_told_was_wrong_and_nothing_where_nothing_was() -> None:
    error = UnsupportedByProvider(f"No{chr(10)}such \ud800 field {'x' * 400}", param="a.b")
    row = record_of(fail_all(error), "refused", error)
    assert row.error == f"No such ? field {'x' * 284}"
    assert len(row.error) == MAX_ERROR_CHARS
    assert [record_of(begun(), outcome).error for outcome in ("completed", "client_closed", "interrupted")] == [
        "",
        "",
        "",
    ]


def test_a_call_that_failed_at_once_has_no_trail_for_its_row_says_it() -> None:
    error = ProviderTimeout("slow")
    row = record_of(fail_all(error), "failed", error)
    assert (row.channel, row.attempts, row.error_code, row.tried) == ("one", 1, "upstream_timeout", "")


def test_the_trail_has_what_failed_and_then_what_answered() -> None:
    ctx = begun()
    mark_failed(begin(ctx, "one", 10.0), ProviderTimeout("slow"), 12.0004)
    begin(ctx, "two", 12.5)
    row = record_of(ctx, "completed")
    assert (row.channel, row.attempts) == ("two", 2)
    assert row.tried == "one=upstream_timeout:2000:504::0:m,two=ok:500:0::0:m"


@table_rows(
    ("outcome", "error", "message"),
    [
        ("completed", None, "ok"),
        ("client_closed", None, "client_closed"),
        ("interrupted", None, "interrupted"),
        ("failed", ProviderBadResponse("broke off"), "upstream_error"),
        ("refused", ProviderRejected("no", status=400, code="context_length_exceeded"), "context_length_exceeded"),
    ],
)
def test_the_last_attempt_ends_as_the_call_does(outcome: Outcome, error: GatewayError | None, message: str) -> None:
    ctx = fail_all(ProviderBadResponse("no"))
    begin(ctx, "four", 11.0)
    status = 0 if error is None else error.status
    expected = f"one=upstream_error:250:502::0:m,four={message}:2000:{status}::0:m"
    assert record_of(ctx, outcome, error).tried == expected


def test_a_call_whose_every_attempt_failed_has_each_of_them_once() -> None:
    faults = (ProviderBadResponse("no"), ProviderRateLimited("slow down", status=429, code="rate_limit_exceeded"),
              ProviderTimeout("slow"))  # fmt: skip
    row = record_of(fail_all(*faults), "failed", faults[-1])
    expected = (
        "one=upstream_error:250:502::0:m,two=rate_limit_exceeded:250:429::0:m,three=upstream_timeout:250:504::0:m"
    )
    assert row.tried == expected
    assert (row.channel, row.attempts, row.status) == ("three", 3, 504)


def test_a_providers_own_code_cannot_forge_an_attempt() -> None:
    forged = ProviderRateLimited("no", status=429, code="x:1,mine=ok:1\r\nx-evil: 1")
    row = record_of(fail_all(forged, ProviderBadResponse("no")), "failed", ProviderBadResponse("no"))
    assert [tried.channel for tried in parse_attempts(row.tried)] == ["one", "two"]


@table_rows(
    ("error", "code"),
    [
        (ProviderAuthError("key"), "upstream_error"),
        (UnsupportedByProvider("audio", param="messages"), "invalid_request"),
        (ProviderRejected("no", status=400), "upstream_error"),
    ],
)
def test_an_attempt_is_told_by_the_public_code_of_its_fault(error: GatewayError, code: str) -> None:
    expected = FailedAttempt("one", code, 250, error.status, model="m")
    assert [attempt.failure for attempt in fail_all(error).attempts] == [expected]


@table_rows(
    ("names", "listed"),
    [
        (("tool_reference", "thinking", "tool_reference"), "tool_reference,thinking"),
        (("a\r\nx: 1,b",), "a__x__1_b"),
        ([f"tools.number_{number}" for number in range(99)], ",".join(f"tools.number_{n}" for n in range(19)) + ",..."),
        ((), ""),
    ],
    ids=["once", "a client's own", "too many", "none"],
)
def test_a_row_and_the_answer_say_what_the_last_attempt_adapted(names: Sequence[str], listed: str) -> None:
    first, last = attempt_over("one"), attempt_over("two")
    first.translator.adapted, last.translator.adapted = ("not sent",), tuple(names)
    ctx = begun(first, last)
    row = record_of(ctx, "completed")
    assert (row.adapted, build_headers(ctx).get("x-gateway-adapted", "")) == (listed, listed)
    assert len(row.adapted) <= MAX_ADAPTED_CHARS


# for the client


def test_an_answer_says_how_many_attempts_it_took() -> None:
    assert build_headers(begun(attempt_over("one"))) == {"x-gateway-attempts": "1"}
    assert build_headers(begun()) == {}


def test_the_caller_is_told_what_failed_and_not_whose_it_was() -> None:
    ctx = fail_all(ProviderTimeout("slow"), ProviderRateLimited("no", status=429, code="rate_limit_exceeded"))
    begin(ctx, "three", 12.0)
    headers = build_headers(ctx)
    assert headers == {
        "x-gateway-attempts": "3",
        "x-gateway-tried": "upstream_timeout;ms=250, rate_limit_exceeded;ms=250",
    }
    assert not [name for name in ("one", "two", "three") if name in headers["x-gateway-tried"]]


@table_rows(
    "code",
    ["a\r\nSet-Cookie: b=c", "a\x00b", "a\x7f", "日本", "a, ok;ms=1", "a" * 1_000, 429],
    ids=lambda code: ascii(code)[:12],
)
def test_a_providers_own_code_cannot_break_out_of_the_header(code: object) -> None:
    """A header holds one token an attempt, whatever a provider calls its error (RFC 9110, 5.5 and 5.6.2)."""
    error = parse_provider_error(429, orjson.dumps({"error": {"message": "no", "code": code}}), ())
    value = build_headers(fail_all(error))["x-gateway-tried"]
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,64};ms=250", value)


# what is written before a provider is asked


def test_a_call_that_is_about_to_be_made_is_one_attempt_without_a_trail() -> None:
    row = build_start(begun(), "up", 70).interrupt()
    assert (row.outcome, row.status, row.channel, row.attempts, row.tried) == ("interrupted", 500, "up", 1, "")
    assert (row.reserved_nanos, row.total_ms) == (70, 0)
    assert build_start(begun(), None, 0).channel is None


def test_a_call_that_is_about_to_be_made_has_its_route_and_tells_a_copy_for_a_shadow() -> None:
    asked, copy = begun(), begun()
    asked.route, copy.copied_from = "fast", CopyOrigin(shadow_route="fast")
    rows = [build_start(ctx, "up", 70).interrupt() for ctx in (begun(), asked, copy)]
    assert [(row.route, row.shadow) for row in rows] == [("", False), ("fast", False), ("fast", True)]
