"""What can be wrong, as the document has it: one answer for each status, with every code that it may carry."""

from collections.abc import Iterable, Iterator, Mapping
from inspect import getdoc
from types import MappingProxyType

from gateway.domain import byte_range  # noqa: F401 - its faults are among those that are told
from gateway.error_status import STATUS
from gateway.errors import GatewayError
from gateway.routing import unsupported_operation as unserved  # noqa: F401 - and so is its fault
from gateway.server.openapi.attrs_schema import Schema
from gateway.server.openapi.operation import JSON, ref

_MORE: Mapping[int, Mapping[str, str]] = MappingProxyType(
    {
        429: {"insufficient_quota": "A cap for a day or a month is used up; `Retry-After` is when it begins anew."},
    },
)
"""Codes that come with another status, too."""
_PLAINER: Mapping[str, str] = MappingProxyType(
    {
        "sensitive_words_detected": "A picture, or what it was to show, is not allowed: by the gateway's own list of "
        "words, or by the provider.",
        "content_policy_violation": "The same of a video, or of other content.",
        "overloaded": "The gateway sheds load: it shuts down, is out of room, or cannot write to its store.",
        "upstream_error": "The provider failed, broke off, or answered what makes no sense.",
    },
)
"""Of codes that more than one condition has."""
_PHRASES: Mapping[int, str] = MappingProxyType(
    {
        400: "Bad request",
        401: "Unauthorized",
        403: "Forbidden",
        404: "Not found",
        408: "Request timeout",
        409: "Conflict",
        412: "Precondition failed",
        413: "Content too large",
        415: "Unsupported media type",
        416: "Range not satisfiable",
        429: "Too many requests",
        500: "Internal error",
        501: "Not implemented",
        502: "Bad gateway",
        503: "Service unavailable",
        504: "Gateway timeout",
    },
)
"""Python's own change from version to version, and programs are made from these."""
_HEADERS = ("X-Request-Id", "x-should-retry")
_WAITS = frozenset({429, 503})


def list_codes() -> Mapping[int, Mapping[str, str]]:
    """Every status with its codes, and what each means: as the faults' own classes say it."""
    meanings: dict[str, str] = {}
    for kind in _walk(GatewayError):
        if "code" in vars(kind):
            meanings.setdefault(kind.code, _PLAINER.get(kind.code) or _parse_first(kind))
    found: dict[int, dict[str, str]] = {}
    for code, status in STATUS.items():
        found.setdefault(status, {})[code] = " ".join(meanings.get(code, "").split())
    for status, codes in _MORE.items():
        found[status] |= codes
    return found


def _parse_first(kind: type[GatewayError]) -> str:
    """The first paragraph of what a fault's class says of it."""
    return (getdoc(kind) or "").partition("\n\n")[0].replace("``", "`")


def _walk(kind: type[GatewayError]) -> Iterator[type[GatewayError]]:
    for child in kind.__subclasses__():
        yield child
        yield from _walk(child)


def name_fault(status: int) -> str:
    """The name of the error response with a status under ``components.responses``."""
    return _PHRASES[status].title().replace(" ", "")


_STATUSES = {name_fault(status): status for status in _PHRASES}


def build_faults(used: Iterable[str]) -> dict[str, Schema]:
    """The error responses of these names. A name that begins with ``Anthropic`` stands for Anthropic's error format."""
    codes = list_codes()
    return {name: _build_fault(name, codes) for name in used}


def _build_fault(name: str, codes: Mapping[int, Mapping[str, str]]) -> Schema:
    plain = name.removeprefix("Anthropic")
    status = _STATUSES[plain]
    lines = [f"- `{code}`: {meaning}" for code, meaning in codes.get(status, {}).items()]
    headers = (*_HEADERS, *(("Retry-After",) if status in _WAITS else ()))
    return {
        "headers": {header: ref(header, "headers") for header in headers},
        "content": {JSON: {"schema": ref("Error" if name == plain else "AnthropicError")}},
        "description": "\n".join([f"{_PHRASES[status]}.", "", *lines]).strip(),
    }
