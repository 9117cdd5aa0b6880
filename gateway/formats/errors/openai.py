"""The error object of the OpenAI API format, built and parsed.

The gateway's errors are ``{"error": {"message", "type", "param", "code"}}``, always with all four keys, with
``doc_url`` if a documentation page describes the code, and with the request id at the end of the message. Providers'
errors are parsed from any answer, with URLs, keys and account ids masked. Status, code and message decide which
exception an error becomes.
"""

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import responses
from typing import Any

import attrs
import orjson

from gateway import errors
from gateway.error_status import STATUS
from gateway.formats.errors.context_window import CONTEXT_EXCEEDED_CODE, is_context_exceeded
from gateway.formats.errors.output_limit import find_output_limit
from gateway.formats.wire.json_values import loads_or_none
from gateway.frozen import frozen

NO_REASON = "The provider gave no reason"
_MAX_MESSAGE_CHARS = 2_000
_RETURNED_PREFIX = "Provider returned "
_MAX_SEARCHED_CHARS = 32_000
_URL_PATTERN = re.compile(r"\b[a-z][a-z0-9+.-]{1,15}://[^\s\"'<>)\]]+", re.IGNORECASE)
# An id contains a digit or a capital letter, unlike a word such as account_deactivated. The lookahead is bounded,
# because otherwise a text of such words would take quadratic time.
_SECRET_PATTERN = re.compile(
    r"\b(?:sk|rk|pk|gsk|xai|AIza|Bearer)[-_ ]?[A-Za-z0-9*._-]{12,}"
    r"|\bkey[-_ ]?(?=[a-z*._-]{0,64}[A-Z0-9])[A-Za-z0-9*._-]{12,}"
    r"|\b(?:org|proj|acct|account|user|team)[-_](?=[a-z]*[A-Z0-9])[A-Za-z0-9]{6,}"
    r"|\b(?<=[Aa]ccount )[0-9]{6,}|(?<=account id )[0-9]{6,}|(?<=project_number:)[0-9]{6,}"
)
_MIN_SECRET_CHARS = 6

Secrets = Sequence[str]
"""Strings that must not appear in messages: a channel's keys and the values of its headers."""


_RATE_LIMIT_STATUS = STATUS["rate_limit_exceeded"]
_NOT_FOUND_STATUS = STATUS["not_found"]
_MISSING_ENDPOINT_STATUSES = frozenset({_NOT_FOUND_STATUS, 501})
"""Statuses of a missing model, path or feature, which another provider may have."""
_MISSING_PATH_STATUSES = frozenset({_NOT_FOUND_STATUS, 405})
_MISSING_PATH_PATTERN = re.compile(r"(?:404 page )?not found\.?|method not allowed\.?", re.IGNORECASE)
"""Statuses, and complete messages, of a server without the requested path. Errors about a missing model name it."""
_BAD_REQUEST_STATUS = 400
_PROXY_AUTH_STATUS = 407
"""The status with which a proxy asks for credentials, as the answer to a request without TLS. Providers do not use it.
"""
_INVALID_KEY_REASON = re.compile(rb'"reason"\s*:\s*"API_KEY_INVALID"')
"""Marks Google's error for an invalid key, which has status 400 like a mistake of the client."""
_CODES_BY_STATUS: Mapping[int, str] = {
    _BAD_REQUEST_STATUS: "invalid_request",
    _NOT_FOUND_STATUS: "not_found",
    _RATE_LIMIT_STATUS: "rate_limit_exceeded",
} | {413: "request_too_large", 415: "unsupported_media_type", 422: "invalid_request", 501: "api_not_implemented"}
"""Codes by status, for rejections without a code."""
_CREDENTIALS_STATUSES = frozenset({401, 402, 403})
_PAYMENT_REQUIRED_STATUS = 402
_TRANSIENT_STATUSES = frozenset({408, 425})
_PERMANENT_STATUSES = frozenset({505})
_SERVER_ERROR_STATUS = 500
_HTTP_STATUSES = frozenset(responses)
_UNSUPPORTED_STATUS = 501
_TOO_LONG_STATUSES = frozenset({400, 413, 422, 500})
"""Statuses of errors about a prompt that is too long. 500: llama.cpp (embeddings) and Ollama."""
_CLIENT_ERROR_CODES = frozenset({"400", "413", "415", "422"})
_CLIENT_ERROR_PATTERN = re.compile(
    r"roles? must alternate|roles are supported|(?:image|audio|video|media) input is not supported"
    r"|\[json\.exception\.(?:type_error|out_of_range)|tools? param requires|failed to parse (?:messages|tools|grammar)",
    re.IGNORECASE,
)
"""Codes (from proxies) and messages (from llama.cpp) that show that a status 500 is the client's mistake."""
_MAX_RETRY_AFTER_S = 120
_EXHAUSTED_QUOTA_CODES = frozenset(
    {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "exceeded_current_quota_error"}
)
"""Codes of OpenAI and Moonshot for an account without credit, sent with the status of a rate limit."""
_SECONDS_PATTERN = re.compile(r"[0-9]+(?:\.[0-9]+)?\Z", re.ASCII)
_MAX_DATE_CHARS = 64
_DAY_S = 86_400.0


@frozen
class ErrorBody:
    """A provider's error, safe to show: its texts are masked. Fields that the provider omitted are None."""

    message: str
    type: str | None = None
    param: str | None = None
    code: str | None = None


def build_error(failure: errors.GatewayError, request_id: str) -> bytes:
    """Build the error object as a JSON body."""
    error = {
        "message": f"{failure.message} (request id: {request_id})",
        "type": failure.type,
        "param": failure.param,
        "code": failure.public_code,
    }
    if failure.doc_url is not None:
        error["doc_url"] = failure.doc_url
    return orjson.dumps({"error": error})


def build_error_event(error: errors.GatewayError, request_id: str) -> bytes:
    """Build the error object as a stream event, for which client libraries raise ``APIError``."""
    return b"data: " + build_error(error, request_id) + b"\n\n"


def mask(text: str, secrets: Secrets = ()) -> str:
    """Mask secrets, URLs, keys and provider account ids in ``text``; return one line of bounded length."""
    text = text[:_MAX_SEARCHED_CHARS]
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _MIN_SECRET_CHARS:
            text = text.replace(secret, "[masked]")
    text = _SECRET_PATTERN.sub("[masked]", _URL_PATTERN.sub("[address]", text))
    text = " ".join(text.split())
    return text if len(text) <= _MAX_MESSAGE_CHARS else text[:_MAX_MESSAGE_CHARS] + "…"


def parse_error(raw: bytes, secrets: Secrets = ()) -> ErrorBody | None:
    """Parse a provider's error answer; None if the answer is not an error object."""
    return parse_error_value(loads_or_none(raw), secrets)


def parse_error_value(value: object, secrets: Secrets = ()) -> ErrorBody | None:
    """Parse an error from JSON: ``{"error": {...}}``, ``{"error": "text"}`` or ``[{"error": ...}]``.

    Returns None if the JSON has no error.
    """
    if isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, dict):
        return None
    error: Any = value.get("error")
    if isinstance(error, str) and error:
        return ErrorBody(mask(error, secrets))
    if not isinstance(error, dict) or not error:
        return None
    message = error.get("message")
    code = error.get("code")
    return ErrorBody(
        message=mask(message, secrets)
        if isinstance(message, str) and message
        else write_reason(None, code or error.get("type"), secrets),
        type=_mask_word(error.get("type"), secrets),
        param=_mask_word(error.get("param"), secrets),
        code=str(code) if isinstance(code, int) and not isinstance(code, bool) else _mask_word(code, secrets),
    )


def write_reason(message: object, code: object, secrets: Secrets = ()) -> str:
    """Return a provider's masked message with its code. A sentence replaces a missing message."""
    text = mask(message, secrets) if isinstance(message, str) else ""
    code_text = str(code) if type(code) is int else _mask_word(code, secrets) or ""
    if not text:
        return f"{NO_REASON}, only the code {code_text}" if code_text else NO_REASON
    return f"{text} ({code_text})" if code_text and code_text not in text else text


def make_credentials_error(subject: str, reason: str) -> errors.ProviderAuthError:
    """Return the error for a rejected key.

    ``subject`` is a status or code, ``reason`` the provider's masked message.
    """
    detail = "" if reason.startswith((NO_REASON, _RETURNED_PREFIX)) else f": {reason}"
    return errors.ProviderAuthError(
        f"The provider refused the gateway's credentials ({subject}){detail}", should_retry=False
    )


def _mask_word(value: object, secrets: Secrets) -> str | None:
    return mask(value, secrets)[:100] if isinstance(value, str) and value else None


def parse_provider_error(
    status: int, raw: bytes, secrets: Secrets, *, provider_retry_after_s: float | None = None, path: str | None = None
) -> errors.ProviderError:
    """Convert a provider's unsuccessful answer (not 2xx) into an error.

    The error keeps the provider's status only for mistakes of the client, for rate limits and for a missing feature
    (501), not for other failures of the provider (5xx, a redirect) or of the gateway's account (401, 402, 403, no
    credit).

    ``secrets`` are masked in the provider's message. ``path`` is the requested path below the channel's base URL, to
    recognize a 404 about a missing path instead of a missing model.
    """
    error = parse_error(raw, secrets) or ErrorBody(NO_REASON)
    if error.message.startswith(NO_REASON):
        error = attrs.evolve(error, message=write_reason(_write_status_reason(status, path), error.code or error.type))
    if status == _PROXY_AUTH_STATUS:
        failure: errors.ProviderError = errors.ProxyRefused(describe_status(status))
    elif status == _BAD_REQUEST_STATUS and _INVALID_KEY_REASON.search(raw):
        failure = make_credentials_error(describe_status(status), error.message)
    else:
        failure = _make_error(status, error)
    failure.provider_retry_after_s = provider_retry_after_s
    failure.lacks_path = path is not None and status in _MISSING_PATH_STATUSES and _is_about_path(error.message, path)
    if isinstance(failure, errors.ProviderRateLimited):
        failure.retry_after_s = min(max(math.ceil(provider_retry_after_s or 1), 1), _MAX_RETRY_AFTER_S)
    return failure


def _is_about_path(message: str, path: str) -> bool:
    return (
        message.startswith(_RETURNED_PREFIX) or path in message or _MISSING_PATH_PATTERN.fullmatch(message) is not None
    )


def _write_status_reason(status: int, path: str | None) -> str:
    name = describe_status(status)
    return f"{_RETURNED_PREFIX}{name}" if path is None else f"{_RETURNED_PREFIX}{name} for {path}"


def describe_status(status: int) -> str:
    """Return a status with its reason phrase: ``404 Not Found``."""
    return f"{status} {responses.get(status, '')}".strip()


def _make_error(status: int, error: ErrorBody) -> errors.ProviderError:
    message = error.message
    if status in _CREDENTIALS_STATUSES or (
        status == _RATE_LIMIT_STATUS and _EXHAUSTED_QUOTA_CODES & {error.code, error.type}
    ):
        credentials_error = make_credentials_error(describe_status(status), message)
        credentials_error.out_of_credit = status in {_PAYMENT_REQUIRED_STATUS, _RATE_LIMIT_STATUS}
        return credentials_error
    if status in _TOO_LONG_STATUSES and is_context_exceeded(message, (error.code, error.type), error.param):
        return _make_context_error(error)
    if status == _SERVER_ERROR_STATUS and (error.code in _CLIENT_ERROR_CODES or _CLIENT_ERROR_PATTERN.search(message)):
        status = _BAD_REQUEST_STATUS
    code = error.code
    if code is None or code == str(status) or (code.isdecimal() and int(code) in _HTTP_STATUSES):
        code = _CODES_BY_STATUS.get(status)
    if status == _RATE_LIMIT_STATUS:
        return errors.ProviderRateLimited(message, status=status, type=error.type, param=error.param, code=code)
    if (400 <= status < 500 and status not in _TRANSIENT_STATUSES) or status == _UNSUPPORTED_STATUS:  # noqa: PLR2004
        output_limit = find_output_limit(message) if status in _TOO_LONG_STATUSES else None
        error_class = errors.ProviderRejected if output_limit is None else errors.OutputLimitExceeded
        rejection = error_class(message, status=status, type=error.type, param=error.param, code=code)
        if isinstance(rejection, errors.OutputLimitExceeded):
            rejection.limit = output_limit or 0
        rejection.retryable = status in _MISSING_ENDPOINT_STATUSES
        rejection.should_retry = False if status == _UNSUPPORTED_STATUS else None
        return rejection
    return _make_failure(status, message, code)


def _make_failure(status: int, message: str, code: str | None) -> errors.ProviderBadResponse:
    if status < 500:  # noqa: PLR2004
        error = errors.ProviderBadResponse(
            message
            if message.startswith(_RETURNED_PREFIX)
            else f"{_RETURNED_PREFIX}{describe_status(status)}: {message}"
        )
        error.passing = status in _TRANSIENT_STATUSES
        return error
    if not message.startswith(_RETURNED_PREFIX):
        message = f"The provider failed with status {status}: {write_reason(message, code)}"
    error = errors.ProviderBadResponse(message)
    error.passing = status not in _PERMANENT_STATUSES
    error.may_be_prompt = status == _SERVER_ERROR_STATUS
    return error


def _make_context_error(error: ErrorBody) -> errors.ContextExceeded:
    return errors.ContextExceeded(
        error.message,
        status=_BAD_REQUEST_STATUS,
        type=error.type or "invalid_request_error",
        param=error.param,
        code=CONTEXT_EXCEEDED_CODE,
    )


def build_reported_error(error: ErrorBody, phase: str = "stream") -> errors.ProviderError:
    """Build the error for an answer with status 200 that reports a failure."""
    if is_context_exceeded(error.message, (error.code, error.type), error.param):
        return _make_context_error(error)
    failure = errors.ProviderBadResponse(f"The provider reported an error: {error.message}", phase=phase)
    failure.declined = failure.may_be_prompt = True
    return failure


def _parse_date(text: str) -> datetime:
    """Parse a date of RFC 9110, 5.6.7. A date without a zone is UTC. Raises ``ValueError`` or ``TypeError``."""
    date = parsedate_to_datetime(text)
    return date if date.tzinfo else date.replace(tzinfo=UTC)


def parse_retry_after(value: str | None, now_s: float) -> float | None:
    """Parse ``Retry-After`` (RFC 9110, 10.2.3: seconds or a date) into seconds from ``now_s``, at most a day.

    Returns None if the header is missing or invalid, or its time is not in the future.
    """
    if value is None:
        return None
    text = value.strip()[:_MAX_DATE_CHARS]
    try:
        seconds = float(text) if _SECONDS_PATTERN.match(text) else _parse_date(text).timestamp() - now_s
    except (ValueError, TypeError, OverflowError):
        return None
    return min(seconds, _DAY_S) if seconds > 0 else None
