"""Errors in the format of Google's clients, as a response body or as a stream event.

Shapes: google.rpc.Status as JSON (cloud.google.com/apis/design/errors), google/rpc/code.proto for the status names, and
google/rpc/error_details.proto. Error messages are masked before they reach this module.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from gateway.errors import ContextExceeded, GatewayError, QuotaExceeded
from gateway.formats.errors.context_window import write_for_google

_STATUSES: Mapping[int, str] = {
    401: "UNAUTHENTICATED",
    402: "RESOURCE_EXHAUSTED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    501: "UNIMPLEMENTED",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_DOMAIN = "model-gateway"
_DETAIL_TYPE_PREFIX = "type.googleapis.com/google.rpc."


def find_status(error: GatewayError) -> str:
    """Return Google's name for the error's HTTP status; always ``RESOURCE_EXHAUSTED`` for an exceeded quota."""
    if isinstance(error, QuotaExceeded):
        return "RESOURCE_EXHAUSTED"
    return _STATUSES.get(error.status, "INVALID_ARGUMENT" if error.status < 500 else "INTERNAL")  # noqa: PLR2004


def build_google_error(error: GatewayError, request_id: str) -> bytes:
    """Build the error object as a JSON body."""
    message = write_for_google(error.message) if isinstance(error, ContextExceeded) else error.message
    return orjson.dumps(
        {
            "error": {
                "code": error.status,
                "message": f"{message} (request id: {request_id})",
                "status": find_status(error),
                "details": _build_details(error, request_id),
            }
        }
    )


def _build_details(error: GatewayError, request_id: str) -> list[dict[str, Any]]:
    details: list[dict[str, Any]] = [
        {
            "@type": f"{_DETAIL_TYPE_PREFIX}ErrorInfo",
            "reason": (error.public_code or error.code).upper(),
            "domain": _DOMAIN,
        },
        {"@type": f"{_DETAIL_TYPE_PREFIX}RequestInfo", "requestId": request_id},
    ]
    if error.param is not None:
        violation = {"field": error.param, "description": error.message}
        details.append({"@type": f"{_DETAIL_TYPE_PREFIX}BadRequest", "fieldViolations": [violation]})
    if error.retry_after_s is not None:
        details.append({"@type": f"{_DETAIL_TYPE_PREFIX}RetryInfo", "retryDelay": f"{error.retry_after_s}s"})
    if error.doc_url is not None:
        link = {"description": "What the error means, and what to do", "url": error.doc_url}
        details.append({"@type": f"{_DETAIL_TYPE_PREFIX}Help", "links": [link]})
    return details


def build_google_error_event(error: GatewayError, request_id: str) -> bytes:
    """Build the error object as an event, which ends a stream early."""
    return b"data: " + build_google_error(error, request_id) + b"\n\n"
