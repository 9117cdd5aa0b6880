"""Build errors in Anthropic's format (``ErrorResponse``): the body of an answer, and the event of a stream.

``param``, ``code`` and ``doc_url`` are additions from OpenAI's error object; clients ignore unknown fields. Error
messages are already masked.
"""

from collections.abc import Mapping

import orjson

from gateway.errors import ContextExceeded, GatewayError, QuotaExceeded
from gateway.formats.errors.context_window import write_for_anthropic

_ERROR_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",  # the gateway's status; Anthropic's is 529
    504: "timeout_error",
    529: "overloaded_error",
}
_FORBIDDEN_STATUS = 403
_INVALID_STATUS = 400
_THREAD_DETAILS = {"error_code": "thread_unsupported_request", "unsupported": []}
"""Error details that make Anthropic's tool runner send the whole conversation instead of a thread; see the type
``ThreadUnsupportedRequestErrorDetails`` of its Python library."""


def find_error_type(error: GatewayError) -> str:
    """Return the ``error.type`` for an error's status; an exhausted quota with status 403 is a billing error."""
    if isinstance(error, QuotaExceeded) and error.status == _FORBIDDEN_STATUS:
        return "billing_error"
    default_type = "invalid_request_error" if error.status < 500 else "api_error"  # noqa: PLR2004
    return _ERROR_TYPES.get(error.status, default_type)


def build_messages_error(error: GatewayError, request_id: str) -> bytes:
    """Build the error object as a JSON body."""
    message = write_for_anthropic(error.message) if isinstance(error, ContextExceeded) else error.message
    return orjson.dumps(
        {
            "type": "error",
            "error": {
                "type": find_error_type(error),
                "message": f"{message} (request id: {request_id})",
                "param": error.param,
                "code": error.public_code,
                **({} if error.doc_url is None else {"doc_url": error.doc_url}),
                **({"details": _THREAD_DETAILS} if error.param == "thread" and error.status == _INVALID_STATUS else {}),
            },
            "request_id": request_id,
        }
    )


def build_messages_error_event(error: GatewayError, request_id: str) -> bytes:
    """Build the ``error`` event with the error object; it ends a stream early."""
    return b"event: error\ndata: " + build_messages_error(error, request_id) + b"\n\n"
