"""Every fault has a code, and every code a status."""

import inspect
from typing import Any

from gateway import errors as module
from gateway.domain.rate_limit import RateLimitStatus, RateLimitWindow
from gateway.error_status import STATUS
from gateway.errors import (
    GATEWAY_TYPE,
    Conflict,
    ContentBlocked,
    EndpointMissing,
    GatewayError,
    ImageBlocked,
    NoHealthyChannel,
    Overloaded,
    ProviderError,
    ProviderRejected,
    QuotaExceeded,
    RateLimited,
    StoreUnavailable,
    UnsupportedByProvider,
)
from tests.support.table_rows import table_rows

FAULTS = [kind for _, kind in inspect.getmembers(module, inspect.isclass) if issubclass(kind, GatewayError)]

PUBLIC = {
    400: {"invalid_request", "unsupported_operation", "sensitive_words_detected", "content_policy_violation"},
    401: {"invalid_api_key", "key_disabled", "key_expired", "second_factor_needed", "signed_out", "wrong_passphrase"},
    403: {
        "budget_exceeded",
        "forbidden",
        "insufficient_quota",
        "model_not_allowed",
        "model_not_priced",
        "group_not_allowed",
        "ip_not_allowed",
        "session_ended",
    },
    404: {"model_not_found", "not_found"},
    405: {"method_not_allowed"},
    408: {"request_timeout"},
    409: {
        "conflict",
        "idempotency_conflict",
        "quote_not_valid",
        "request_cancelled",
        "stream_interrupted",
        "task_not_ready",
    },
    412: {"precondition_failed"},
    413: {"request_too_large"},
    415: {"unsupported_media_type"},
    416: {"range_not_satisfiable"},
    429: {"loop_detected", "rate_limit_exceeded"},
    500: {"internal_error"},
    501: {"api_not_implemented"},
    502: {"upstream_error"},
    503: {"no_available_channel", "overloaded"},
    504: {"upstream_timeout", "not_cached"},
}
"""The public table, by status."""


CHOOSING = (ProviderRejected, QuotaExceeded)
"""Faults whose status is said when they are raised."""


def make(kind: type[GatewayError]) -> GatewayError:
    chooses = issubclass(kind, CHOOSING) and kind not in {
        UnsupportedByProvider,
        EndpointMissing,
        ImageBlocked,
        ContentBlocked,
    }
    extra: dict[str, Any] = {"status": 418} if chooses else {}
    return kind("why", **extra)


def test_the_codes_have_the_statuses_of_the_public_table() -> None:
    by_status: dict[int, set[str]] = {}
    for code, status in STATUS.items():
        by_status.setdefault(status, set()).add(code)
    assert by_status == PUBLIC


@table_rows("kind", FAULTS)
def test_every_fault_can_be_shown(kind: type[GatewayError]) -> None:
    assert kind.code in STATUS
    error = make(kind)
    assert "why" in error.message
    assert str(error) == error.message
    if not isinstance(error, ProviderRejected):
        status = 418 if isinstance(error, CHOOSING) else STATUS[kind.code]
        assert (error.status, error.public_code, error.type) == (status, kind.code, GATEWAY_TYPE)


@table_rows("kind", FAULTS)
def test_every_fault_says_what_it_is(kind: type[GatewayError]) -> None:
    assert kind.__doc__


def test_a_refusal_of_the_providers_keeps_its_words_and_its_status() -> None:
    error = ProviderRejected("why", status=422, type="t", param="p", code="c")
    assert (error.status, error.type, error.param, error.public_code) == (422, "t", "p", "c")
    bare = ProviderRejected("why", status=418)
    assert (bare.status, bare.type, bare.param, bare.public_code) == (418, "upstream_error", None, "upstream_error")


@table_rows(("status", "wait"), [(403, None), (429, 17)])
def test_a_cap_is_forbidden_or_too_many_and_waiting_in_a_loop_never_helps(status: int, wait: int | None) -> None:
    error = QuotaExceeded("why", status=status, retry_after_s=wait)
    assert (error.status, error.retry_after_s, error.should_retry) == (status, wait, False)
    assert (error.public_code, error.type) == ("insufficient_quota", GATEWAY_TYPE)


def test_a_rate_limit_says_how_long_to_wait_and_how_the_caller_stands() -> None:
    limit_status = RateLimitStatus(RateLimitWindow(10, 0, 6.0))
    fault = RateLimited("why", limit_status=limit_status, retry_after_s=6)
    assert (fault.status, fault.retry_after_s, fault.should_retry, fault.limit_status) == (429, 6, None, limit_status)
    assert (RateLimited("why").retry_after_s, RateLimited("why").limit_status) == (1, None)


def test_only_the_callers_own_mistakes_and_our_end_are_not_tried_elsewhere() -> None:
    final = {kind.__name__ for kind in FAULTS if issubclass(kind, ProviderError) and not kind.retryable}
    assert final == {"ProviderRejected", "ImageBlocked", "ContentBlocked", "OutputLimitExceeded", "ShuttingDown",
                     "RequestCancelled"}  # fmt: skip


VERDICTS = {
    "ProviderError": ("channel", False, True),
    "ProviderBadResponse": ("channel", False, True),
    "EgressRefused": ("channel", False, True),
    "ProxyRefused": ("channel", False, True),
    "ProviderTimeout": ("channel", False, True),
    "ProviderAuthError": ("key", True, True),
    "ProviderRateLimited": ("model", True, True),
    "ProviderRejected": ("nobody", True, False),
    "OutputLimitExceeded": ("nobody", True, False),
    "ImageBlocked": ("nobody", True, False),
    "ContentBlocked": ("nobody", True, False),
    "ProviderAnswerUnusable": ("channel", False, True),
    "ProviderContentGone": ("nobody", True, True),
    "ContextExceeded": ("nobody", True, True),
    "UnsupportedByProvider": ("nobody", False, True),
    "EndpointMissing": ("nobody", False, True),
    "ShuttingDown": ("nobody", False, False),
    "RequestCancelled": ("nobody", False, False),
}
"""What each is held against, whether the provider was asked and answered, whether another channel may do better."""


@table_rows("kind", [kind for kind in FAULTS if issubclass(kind, ProviderError)])
def test_every_fault_of_a_provider_says_what_it_is_held_against(kind: type[ProviderError]) -> None:
    error = make(kind)
    assert isinstance(error, ProviderError)
    assert (error.failure_scope, error.answered, error.retryable) == VERDICTS[kind.__name__]
    assert error.provider_retry_after_s is None


def test_how_long_one_provider_asks_to_be_left_alone_is_its_own_matter() -> None:
    one, other = make(ProviderError), make(ProviderError)
    one.provider_retry_after_s = 5.0  # type: ignore[attr-defined]
    assert other.provider_retry_after_s is None  # type: ignore[attr-defined]


def test_what_a_channel_has_no_words_for_is_the_callers_invalid_request_in_the_gateways_words() -> None:
    error = UnsupportedByProvider("The channel has no words for it", param="messages[0]")
    assert (error.status, error.type, error.public_code, error.param) == (
        400,
        GATEWAY_TYPE,
        "invalid_request",
        "messages[0]",
    )


@table_rows(("wait", "should_retry"), [(1, None), (5, None), (6, False), (120, False)])
@table_rows("kind", [NoHealthyChannel, Overloaded, StoreUnavailable])
def test_a_client_library_is_not_told_to_wait_for_long(
    kind: type[GatewayError], wait: int, should_retry: bool | None
) -> None:
    """They sleep for whatever ``Retry-After`` says, and twice."""
    error = kind("not now", retry_after_s=wait)
    assert (error.status, error.retry_after_s, error.should_retry) == (503, wait, should_retry)


def test_what_is_said_of_retrying_stands() -> None:
    assert NoHealthyChannel("not now", retry_after_s=60, should_retry=True).should_retry
    assert Conflict("there already", retry_after_s=60).should_retry is None
