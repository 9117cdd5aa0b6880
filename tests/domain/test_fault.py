"""Every fault has a code, and every code a status."""

import inspect
from typing import Any

import pytest

from gateway.domain import fault as module
from gateway.domain.fault import GATEWAY_TYPE, STATUS, Fault, UpstreamFault, UpstreamRefused

FAULTS = [kind for _, kind in inspect.getmembers(module, inspect.isclass) if issubclass(kind, Fault)]

PUBLIC = {
    400: {"invalid_request"},
    401: {"invalid_api_key", "key_disabled", "key_expired"},
    403: {"model_not_allowed", "group_not_allowed"},
    404: {"model_not_found", "not_found"},
    405: {"method_not_allowed"},
    408: {"request_timeout"},
    409: {"conflict"},
    413: {"request_too_large"},
    415: {"unsupported_media_type"},
    429: {"rate_limit_exceeded"},
    500: {"internal_error"},
    501: {"api_not_implemented"},
    502: {"upstream_error"},
    503: {"overloaded"},
    504: {"upstream_timeout"},
}
"""The public table, by status."""


def make(kind: type[Fault]) -> Fault:
    extra: dict[str, Any] = {"status": 418} if issubclass(kind, UpstreamRefused) else {}
    return kind("why", **extra)


def test_the_codes_have_the_statuses_of_the_public_table() -> None:
    by_status: dict[int, set[str]] = {}
    for code, status in STATUS.items():
        by_status.setdefault(status, set()).add(code)
    assert by_status == PUBLIC


@pytest.mark.parametrize("kind", FAULTS)
def test_every_fault_can_be_shown(kind: type[Fault]) -> None:
    assert kind.code in STATUS
    fault = make(kind)
    assert (fault.message, str(fault)) == ("why", "why")
    if not isinstance(fault, UpstreamRefused):
        assert (fault.status, fault.public_code, fault.type) == (STATUS[kind.code], kind.code, GATEWAY_TYPE)


@pytest.mark.parametrize("kind", FAULTS)
def test_every_fault_says_what_it_is(kind: type[Fault]) -> None:
    assert kind.__doc__


def test_a_refusal_of_the_providers_keeps_its_words_and_its_status() -> None:
    fault = UpstreamRefused("why", status=422, type="t", param="p", code="c")
    assert (fault.status, fault.type, fault.param, fault.public_code) == (422, "t", "p", "c")
    bare = UpstreamRefused("why", status=418)
    assert (bare.status, bare.type, bare.param, bare.public_code) == (418, "upstream_error", None, "upstream_error")


def test_only_the_callers_own_mistakes_and_our_end_are_not_tried_elsewhere() -> None:
    final = {kind.__name__ for kind in FAULTS if issubclass(kind, UpstreamFault) and not kind.retryable}
    assert final == {"UpstreamRefused", "ShuttingDown"}


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        STATUS["new"] = 200  # type: ignore[index]
