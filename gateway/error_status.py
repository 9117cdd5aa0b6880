"""The HTTP status of every error code, and the documentation page for it."""

from collections.abc import Mapping

STATUS: Mapping[str, int] = {
    "invalid_request": 400,
    "unsupported_operation": 400,
    "sensitive_words_detected": 400,
    "content_policy_violation": 400,
    "invalid_api_key": 401,
    "key_disabled": 401,
    "key_expired": 401,
    "signed_out": 401,
    "wrong_passphrase": 401,
    "second_factor_needed": 401,
    "forbidden": 403,
    "budget_exceeded": 403,
    "insufficient_quota": 403,
    "model_not_allowed": 403,
    "model_not_priced": 403,
    "group_not_allowed": 403,
    "ip_not_allowed": 403,
    "session_ended": 403,
    "model_not_found": 404,
    "not_found": 404,
    "method_not_allowed": 405,
    "request_timeout": 408,
    "conflict": 409,
    "idempotency_conflict": 409,
    "quote_not_valid": 409,
    "request_cancelled": 409,
    "stream_interrupted": 409,
    "task_not_ready": 409,
    "precondition_failed": 412,
    "request_too_large": 413,
    "unsupported_media_type": 415,
    "range_not_satisfiable": 416,
    "loop_detected": 429,
    "rate_limit_exceeded": 429,
    "internal_error": 500,
    "api_not_implemented": 501,
    "upstream_error": 502,
    "no_available_channel": 503,
    "overloaded": 503,
    "upstream_timeout": 504,
    "not_cached": 504,
}
_PAGE = "/help/reference/errors"
"""The page that lists every code of ``STATUS``."""


def find_page(code: str | None, address: str) -> str | None:
    """Return the URL of the documentation page for an error code; None if the code is not the gateway's own.

    With an empty ``address`` the result is only the path.
    """
    return f"{address}{_PAGE}#{code}" if code in STATUS else None
