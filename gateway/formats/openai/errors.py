"""The error object of the OpenAI API format, built and parsed.

Ours: ``{"error": {"message", "type", "param", "code"}}``, always with all four keys, ``doc_url`` if a page tells about
the code, and the request id at the message's end. Providers': parsed from any answer, with addresses, keys and account
ids masked.
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
from gateway.formats.context_window import CODE, is_context_exceeded
from gateway.formats.json_values import loads_or_none
from gateway.formats.output_limit import find_output_limit
from gateway.frozen import frozen

NO_REASON = "The provider gave no reason"
_MAX_MESSAGE = 2_000
_RETURNED = "Provider returned "
_MAX_MASKED = 32_000
_URL = re.compile(r"\b[a-z][a-z0-9+.-]{1,15}://[^\s\"'<>)\]]+", re.IGNORECASE)
# An id contains a digit or a capital; a word such as account_deactivated does not. The lookahead is bounded: otherwise
# a text of such words would take quadratic time.
_SECRET = re.compile(
    r"\b(?:sk|rk|pk|gsk|xai|AIza|Bearer)[-_ ]?[A-Za-z0-9*._-]{12,}"
    r"|\bkey[-_ ]?(?=[a-z*._-]{0,64}[A-Z0-9])[A-Za-z0-9*._-]{12,}"
    r"|\b(?:org|proj|acct|account|user|team)[-_](?=[a-z]*[A-Z0-9])[A-Za-z0-9]{6,}"
    r"|\b(?<=[Aa]ccount )[0-9]{6,}|(?<=account id )[0-9]{6,}|(?<=project_number:)[0-9]{6,}"
)
_SHORTEST_SECRET = 6

Secrets = Sequence[str]
"""Strings that must not appear in messages: a channel's keys and the values of its headers."""


_TOO_MANY_REQUESTS = STATUS["rate_limit_exceeded"]
_NOT_FOUND = STATUS["not_found"]
_ELSEWHERE = frozenset({_NOT_FOUND, 501})
"""Another provider may have what this one has not: a removed model, a path or a feature that a server lacks."""
_NO_PATH = frozenset({_NOT_FOUND, 405})
_NO_PATH_WORDS = re.compile(r"(?:404 page )?not found\.?|method not allowed\.?", re.IGNORECASE)
"""Statuses, and a whole message, of a server that lacks the path. A missing model is named."""
_BAD_REQUEST = 400
_PROXY_REFUSES = 407
"""No provider says so: a request without TLS is answered by the proxy itself."""
_NO_KEY = re.compile(rb'"reason"\s*:\s*"API_KEY_INVALID"')
"""In an error of Google's with the status of a client's mistake."""
_CODES: Mapping[int, str] = {
    _BAD_REQUEST: "invalid_request",
    _NOT_FOUND: "not_found",
    _TOO_MANY_REQUESTS: "rate_limit_exceeded",
} | {413: "request_too_large", 415: "unsupported_media_type", 422: "invalid_request", 501: "api_not_implemented"}
"""The code of a rejection without one."""
_CREDENTIALS = frozenset({401, 402, 403})
_TRANSIENT = frozenset({408, 425})
_PERMANENT = frozenset({505})
_BROKE_DOWN = 500
_STATUSES = frozenset(responses)
_UNSUPPORTED = 501
_TOO_LONG = frozenset({400, 413, 422, 500})
"""Statuses of a prompt that is too long. 500: llama.cpp, for embeddings, and Ollama."""
_CALLERS_CODES = frozenset({"400", "413", "415", "422"})
_CALLERS_WORDS = re.compile(
    r"roles? must alternate|roles are supported|(?:image|audio|video|media) input is not supported"
    r"|\[json\.exception\.(?:type_error|out_of_range)|tools? param requires|failed to parse (?:messages|tools|grammar)",
    re.IGNORECASE,
)
"""Codes and messages with status 500 that concern the request itself: proxies; llama.cpp."""
_MAX_RETRY_AFTER_S = 120
_USED_UP = frozenset(
    {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "exceeded_current_quota_error"}
)
"""Codes for an account without credit, with the status of a rate limit: OpenAI, Moonshot."""
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?\Z", re.ASCII)
_LONGEST_DATE = 64
_DAY_S = 86_400.0


@frozen
class ErrorBody:
    """A provider's error as it may be shown: ``message`` is masked; other fields are None if the provider gave none."""

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
    """Build the error object as an event of a stream, from which the client libraries raise ``APIError``."""
    return b"data: " + build_error(error, request_id) + b"\n\n"


def mask(text: str, secrets: Secrets = ()) -> str:
    """Mask secrets, addresses, keys and provider account ids in ``text``; return one line of bounded length.

    Text far beyond that length is not searched, and not returned.
    """
    text = text[:_MAX_MASKED]
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, "[masked]")
    text = _SECRET.sub("[masked]", _URL.sub("[address]", text))
    text = " ".join(text.split())
    return text if len(text) <= _MAX_MESSAGE else text[:_MAX_MESSAGE] + "…"


def parse_error(raw: bytes, secrets: Secrets = ()) -> ErrorBody | None:
    """Parse a provider's error answer; None if it is no error object."""
    return parse_error_value(loads_or_none(raw), secrets)


def parse_error_value(value: object, secrets: Secrets = ()) -> ErrorBody | None:
    """Parse an error from JSON: ``{"error": {...}}``, ``{"error": "text"}`` or ``[{"error": ...}]``."""
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
        type=_word(error.get("type"), secrets),
        param=_word(error.get("param"), secrets),
        code=str(code) if isinstance(code, int) and not isinstance(code, bool) else _word(code, secrets),
    )


def write_reason(message: object, code: object, secrets: Secrets = ()) -> str:
    """Return a provider's message, masked, with its code; what is missing of both is left out."""
    text = mask(message, secrets) if isinstance(message, str) else ""
    name = str(code) if type(code) is int else _word(code, secrets) or ""
    if not text:
        return f"{NO_REASON}, only the code {name}" if name else NO_REASON
    return f"{text} ({name})" if name and name not in text else text


def refuse_credentials(what: str, reason: str) -> errors.ProviderAuthError:
    """Return the error for a rejected key; ``what`` is the status or code, ``reason`` the provider's, masked."""
    more = "" if reason.startswith((NO_REASON, _RETURNED)) else f": {reason}"
    return errors.ProviderAuthError(
        f"The provider refused the gateway's credentials ({what}){more}", should_retry=False
    )


def _word(value: object, secrets: Secrets) -> str | None:
    return mask(value, secrets)[:100] if isinstance(value, str) and value else None


def parse_provider_error(
    status: int, raw: bytes, secrets: Secrets, *, provider_retry_after_s: float | None = None, path: str | None = None
) -> errors.ProviderError:
    """Convert a provider's unsuccessful answer (not 2xx) into an error.

    Its message has the provider's message and status. Its status is the provider's only for the client's own mistakes:
    not for the provider's failures (5xx, a redirect) nor for the gateway's (401, 402, 403, an account without credit).
    ``secrets`` are masked.
    ``provider_retry_after_s`` is the ``Retry-After``; see ``parse_retry_after``. ``path`` is the requested path below
    the channel's base URL: a 404 without an error object does not concern a model, but a server without that path.
    """
    error = parse_error(raw, secrets) or ErrorBody(NO_REASON)
    if error.message.startswith(NO_REASON):
        error = attrs.evolve(error, message=write_reason(_find_reason(status, path), error.code or error.type))
    if status == _PROXY_REFUSES:
        failure: errors.ProviderError = errors.ProxyRefused(describe_status(status))
    elif status == _BAD_REQUEST and _NO_KEY.search(raw):
        failure = refuse_credentials(describe_status(status), error.message)
    else:
        failure = _find_error(status, error)
    failure.provider_retry_after_s = provider_retry_after_s
    failure.lacks_path = path is not None and status in _NO_PATH and _is_about_path(error.message, path)
    if isinstance(failure, errors.ProviderRateLimited):
        failure.retry_after_s = min(max(math.ceil(provider_retry_after_s or 1), 1), _MAX_RETRY_AFTER_S)
    return failure


def _is_about_path(message: str, path: str) -> bool:
    return message.startswith(_RETURNED) or path in message or _NO_PATH_WORDS.fullmatch(message) is not None


def _find_reason(status: int, path: str | None) -> str:
    """Return the message for an answer without one."""
    name = describe_status(status)
    return f"{_RETURNED}{name}" if path is None else f"{_RETURNED}{name} for {path}"


def describe_status(status: int) -> str:
    """Return a status with its reason phrase: ``404 Not Found``."""
    return f"{status} {responses.get(status, '')}".strip()


def _find_error(status: int, error: ErrorBody) -> errors.ProviderError:
    message = error.message
    if status in _CREDENTIALS or (status == _TOO_MANY_REQUESTS and _USED_UP & {error.code, error.type}):
        return refuse_credentials(describe_status(status), message)
    if status in _TOO_LONG and is_context_exceeded(message, (error.code, error.type), error.param):
        return _exceed_context(error)
    if status == _BROKE_DOWN and (error.code in _CALLERS_CODES or _CALLERS_WORDS.search(message)):
        status = _BAD_REQUEST
    code = error.code
    if code is None or code == str(status) or (code.isdecimal() and int(code) in _STATUSES):
        code = _CODES.get(status)
    if status == _TOO_MANY_REQUESTS:
        return errors.ProviderRateLimited(message, status=status, type=error.type, param=error.param, code=code)
    if (400 <= status < 500 and status not in _TRANSIENT) or status == _UNSUPPORTED:  # noqa: PLR2004
        limit = find_output_limit(message) if status in _TOO_LONG else None
        kind = errors.ProviderRejected if limit is None else errors.OutputLimitExceeded
        refused = kind(message, status=status, type=error.type, param=error.param, code=code)
        if isinstance(refused, errors.OutputLimitExceeded):
            refused.limit = limit or 0
        refused.retryable = status in _ELSEWHERE
        refused.should_retry = False if status == _UNSUPPORTED else None
        return refused
    return _find_failure(status, message, code)


def _find_failure(status: int, message: str, code: str | None) -> errors.ProviderBadResponse:
    """Return the error for a status that blames the provider, not the request."""
    if status < 500:  # noqa: PLR2004
        error = errors.ProviderBadResponse(
            message if message.startswith(_RETURNED) else f"{_RETURNED}{describe_status(status)}: {message}"
        )
        error.passing = status in _TRANSIENT
        return error
    if not message.startswith(_RETURNED):
        message = f"The provider failed with status {status}: {write_reason(message, code)}"
    error = errors.ProviderBadResponse(message)
    error.passing = status not in _PERMANENT
    error.may_be_prompt = status == _BROKE_DOWN
    return error


def _exceed_context(error: ErrorBody) -> errors.ContextExceeded:
    """Return the error of a prompt that is too long, with the status and the code that clients act on."""
    return errors.ContextExceeded(
        error.message, status=_BAD_REQUEST, type=error.type or "invalid_request_error", param=error.param, code=CODE
    )


def build_reported(error: ErrorBody, phase: str = "stream") -> errors.ProviderError:
    """Build the error for an answer that began successfully, with status 200, and then reports a failure."""
    if is_context_exceeded(error.message, (error.code, error.type), error.param):
        return _exceed_context(error)
    failure = errors.ProviderBadResponse(f"The provider reported an error: {error.message}", phase=phase)
    failure.declined = failure.may_be_prompt = True
    return failure


def _parse_date(text: str) -> datetime:
    """Parse a date of RFC 9110, 5.6.7; a date without a zone is UTC."""
    date = parsedate_to_datetime(text)
    return date if date.tzinfo else date.replace(tzinfo=UTC)


def parse_retry_after(value: str | None, now_s: float) -> float | None:
    """Parse ``Retry-After`` (RFC 9110, 10.2.3: seconds or a date) into seconds from ``now_s`` (Unix time).

    None if it is missing, negative, past or invalid; at most a day.
    """
    if value is None:
        return None
    text = value.strip()[:_LONGEST_DATE]
    try:
        seconds = float(text) if _NUMBER.match(text) else _parse_date(text).timestamp() - now_s
    except (ValueError, TypeError, OverflowError):
        return None
    return min(seconds, _DAY_S) if seconds > 0 else None
