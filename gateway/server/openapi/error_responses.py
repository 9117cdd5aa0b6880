"""The error responses of the OpenAPI document: one for each status, with all its codes."""

from collections.abc import Iterable, Iterator, Mapping
from inspect import getdoc

from gateway.domain import byte_range  # noqa: F401 - defines errors that are listed
from gateway.error_status import STATUS
from gateway.errors import GatewayError
from gateway.routing import unsupported_operation as unserved  # noqa: F401 - the same
from gateway.server.openapi.attrs_schema import Schema
from gateway.server.openapi.operation import JSON, ref

_EXTRA_CODES: Mapping[int, Mapping[str, str]] = {
    409: {"stream_interrupted": "The events of a stream after some number do not exist, or are not kept."},
    429: {"insufficient_quota": "A daily or monthly quota is used up; `Retry-After` says when it resets."},
}
"""Codes that occur with another status too, or whose class is imported only with the feature."""
_PLAIN_MEANINGS: Mapping[str, str] = {
    "sensitive_words_detected": "An image or its prompt is not allowed, by the gateway's list of words or by the "
    "provider.",
    "content_policy_violation": "A video or other content is not allowed.",
    "overloaded": "The gateway refuses requests: it shuts down, is full, or cannot write to its store.",
    "upstream_error": "The provider failed, disconnected, or sent an invalid answer.",
}
"""The meaning of codes that several error classes share."""
_PHRASES: Mapping[int, str] = {
    400: "Bad request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not found",
    405: "Method not allowed",
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
}
"""The phrase of each error status: clients use these names, and Python's own phrases change between versions."""
_HEADERS = ("X-Request-Id", "Link", "x-should-retry")
_RETRY_STATUSES = frozenset({429, 503})


def map_codes() -> Mapping[int, Mapping[str, str]]:
    """Return the error codes of every status, each with its meaning.

    The meaning is the first paragraph of the error class's docstring, unless ``_PLAIN_MEANINGS`` or ``_EXTRA_CODES``
    has another text for the code.
    """
    meanings: dict[str, str] = {}
    for kind in _list_subclasses(GatewayError):
        if "code" in vars(kind):
            meanings.setdefault(kind.code, _PLAIN_MEANINGS.get(kind.code) or _read_summary(kind))
    codes_by_status: dict[int, dict[str, str]] = {}
    for code, status in STATUS.items():
        codes_by_status.setdefault(status, {})[code] = " ".join(meanings.get(code, "").split())
    for status, codes in _EXTRA_CODES.items():
        codes_by_status[status] |= codes
    return codes_by_status


def _read_summary(kind: type[GatewayError]) -> str:
    """Return the first paragraph of an error class's docstring."""
    return (getdoc(kind) or "").partition("\n\n")[0].replace("``", "`")


def _list_subclasses(kind: type[GatewayError]) -> Iterator[type[GatewayError]]:
    for child in kind.__subclasses__():
        yield child
        yield from _list_subclasses(child)


def name_phrase(status: int) -> str:
    """Return the phrase of an error status, for instance "Not found"."""
    return _PHRASES[status]


def make_error_response_name(status: int) -> str:
    """Return the name of a status's error response under ``components.responses``."""
    return _PHRASES[status].title().replace(" ", "")


_STATUSES = {make_error_response_name(status): status for status in _PHRASES}


def build_error_responses(used_names: Iterable[str]) -> dict[str, Schema]:
    """Build the error responses called ``used_names``. A prefix names the error format: Anthropic's or Google's."""
    codes = map_codes()
    return {name: _build_error_response(name, codes) for name in used_names}


def _build_error_response(name: str, codes: Mapping[int, Mapping[str, str]]) -> Schema:
    schema = next((f"{prefix}Error" for prefix in ("Anthropic", "Google") if name.startswith(prefix)), "Error")
    error_name = name.removeprefix(schema.removesuffix("Error"))
    status = _STATUSES[error_name]
    lines = [f"- `{code}`: {meaning}" for code, meaning in codes.get(status, {}).items()]
    headers = (*_HEADERS, *(("Retry-After",) if status in _RETRY_STATUSES else ()))
    return {
        "headers": {header: ref(header, "headers") for header in headers},
        "content": {JSON: {"schema": ref(schema)}},
        "description": "\n".join([f"{_PHRASES[status]}.", "", *lines]).strip(),
    }
