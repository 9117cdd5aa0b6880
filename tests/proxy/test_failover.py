"""Which error of several attempts is the answer."""

from collections.abc import Callable

from gateway import errors
from gateway.proxy.failover import choose_error, make_cancellation_error
from gateway.upstream.exhaustion import ResourcesExhausted
from gateway.upstream.interface import StaleConnection
from tests.support.table_rows import table_rows

ERRORS: dict[str, Callable[[], errors.ProviderError]] = {
    "500": lambda: errors.ProviderBadResponse("The provider failed with status 500: oops"),
    "503": lambda: errors.ProviderBadResponse("The provider failed with status 503: busy"),
    "dns": lambda: errors.ProviderBadResponse("The provider could not be reached: DNS lookup failed", phase="connect"),
    "refused": lambda: errors.ProviderBadResponse(
        "The provider could not be reached: connection refused", phase="connect"
    ),
    "timeout": lambda: errors.ProviderTimeout("The provider took too long to answer", phase="headers"),
    "401": lambda: errors.ProviderAuthError("The provider refused the gateway's credentials (401 Unauthorized)"),
    "429": lambda: errors.ProviderRateLimited("slow down", status=429),
    "context": lambda: errors.ContextExceeded("too long", status=400),
    "400": lambda: errors.ProviderRejected("no such voice", status=400),
    "unsupported": lambda: errors.UnsupportedByProvider("no audio"),
    "stale": lambda: StaleConnection("The connection was closed"),
    "exhausted": ResourcesExhausted,
    "cancelled": make_cancellation_error,
    "shutdown": lambda: errors.ShuttingDown("The gateway is shutting down"),
}


@table_rows(
    ("attempts", "message"),
    [
        ("500", "500"),
        ("500 503", "500"),
        ("500 refused dns", "500"),
        ("dns 500", "dns"),
        ("refused dns timeout", "refused"),
        ("401 500", "401"),
        ("429 503", "429"),
        ("timeout 429", "timeout"),
        ("context 500", "context"),
        ("500 context", "500"),
        ("unsupported 500 429", "500"),
        ("unsupported dns", "dns"),
        ("500 unsupported", "500"),
        ("unsupported unsupported", "unsupported"),
        ("stale 500", "500"),
        ("stale stale", "stale"),
        ("exhausted 503 500", "503"),
        ("500 exhausted", "500"),
        ("unsupported exhausted", "exhausted"),
        ("500 400", "400"),
        ("dns 401 400", "400"),
        ("500 cancelled", "cancelled"),
        ("500 shutdown", "shutdown"),
    ],
)
def test_the_first_error_with_a_cause_is_told_unless_the_request_itself_is_refused(attempts: str, message: str) -> None:
    final: errors.ProviderError | None = None
    for name in attempts.split():
        final = choose_error(final, ERRORS[name]())
    expected = ERRORS[message]()
    assert final is not None
    assert (type(final), final.message) == (type(expected), expected.message)


@table_rows(
    ("attempts", "message"),
    [("429 400", "429"), ("500 cancelled", "cancelled"), ("500 shutdown", "shutdown"), ("stale 400", "400")],
)
def test_on_a_route_only_an_end_from_outside_replaces_the_first_error_with_a_cause(attempts: str, message: str) -> None:
    final: errors.ProviderError | None = None
    for name in attempts.split():
        final = choose_error(final, ERRORS[name](), on_route=True)
    assert type(final) is type(ERRORS[message]())
