"""The convention's error object, both ways.

Ours: ``{"error": {"message", "type", "param", "code"}}``, all four keys always, the request id at the message's end.
Theirs: read from whatever a provider answered, with addresses, keys and account ids masked.
"""

import re
from collections.abc import Sequence
from typing import Any

import attrs
import orjson

from gateway.domain.fault import (
    STATUS,
    Fault,
    UpstreamError,
    UpstreamFault,
    UpstreamLimited,
    UpstreamRefused,
)

_MAX_MESSAGE = 2_000
_URL = re.compile(r"\b[a-z][a-z0-9+.-]{1,15}://[^\s\"'<>)\]]+", re.IGNORECASE)
# An id has a digit or a capital in it; a word such as account_deactivated has neither.
_SECRET = re.compile(
    r"\b(?:sk|rk|pk|gsk|xai|AIza|Bearer)[-_ ]?[A-Za-z0-9*._-]{12,}"
    r"|\bkey[-_ ]?(?=[a-z*._-]*[A-Z0-9])[A-Za-z0-9*._-]{12,}"
    r"|\b(?:org|proj|acct|account|user|team)[-_](?=[a-z]*[A-Z0-9])[A-Za-z0-9]{6,}",
)
_SHORTEST_SECRET = 6

Secrets = Sequence[str]
"""What a channel knows and nobody may hear: its keys and the values of its headers."""


_TOO_MANY_REQUESTS = STATUS["rate_limit_exceeded"]
_CREDENTIALS = frozenset({401, 402, 403})
_PASSING_TROUBLE = frozenset({408, 425})
_MAX_RETRY_AFTER_S = 120


@attrs.frozen
class ProviderError:
    """A provider's error as it may be shown: ``message`` is masked; the rest is None where it did not say."""

    message: str
    type: str | None = None
    param: str | None = None
    code: str | None = None


def write_error(fault: Fault, request_id: str) -> bytes:
    """The error object as a JSON body."""
    return orjson.dumps(
        {
            "error": {
                "message": f"{fault.message} (request id: {request_id})",
                "type": fault.type,
                "param": fault.param,
                "code": fault.public_code,
            },
        },
    )


def write_error_event(fault: Fault, request_id: str) -> bytes:
    """The error object as one event of a stream, the form the client libraries raise ``APIError`` from."""
    return b"data: " + write_error(fault, request_id) + b"\n\n"


def mask(text: str, secrets: Secrets = ()) -> str:
    """``text`` without ``secrets``, addresses, keys and provider account ids, on one line of bounded length."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, "[masked]")
    text = _SECRET.sub("[masked]", _URL.sub("[address]", text))
    text = " ".join(text.split())
    return text if len(text) <= _MAX_MESSAGE else text[:_MAX_MESSAGE] + "…"


def read_error(raw: bytes, secrets: Secrets = ()) -> ProviderError | None:
    """A provider's error answer -> what it said, or None where it is not an error object at all."""
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    return read_error_value(value, secrets)


def read_error_value(value: object, secrets: Secrets = ()) -> ProviderError | None:
    """The same for parsed JSON. ``{"error": {...}}``, ``{"error": "text"}`` and ``[{"error": ...}]`` count."""
    if isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, dict):
        return None
    error: Any = value.get("error")
    if isinstance(error, str) and error:
        return ProviderError(mask(error, secrets))
    if not isinstance(error, dict) or not error:
        return None
    message = error.get("message")
    code = error.get("code")
    return ProviderError(
        message=mask(message, secrets) if isinstance(message, str) and message else "The provider gave no reason",
        type=_word(error.get("type"), secrets),
        param=_word(error.get("param"), secrets),
        code=str(code) if isinstance(code, int) and not isinstance(code, bool) else _word(code, secrets),
    )


def _word(value: object, secrets: Secrets) -> str | None:
    return mask(value, secrets)[:100] if isinstance(value, str) and value else None


def read_fault(status: int, retry_after: str | None, raw: bytes, secrets: Secrets) -> UpstreamFault:
    """A provider's answer outside 2xx -> the fault it is.

    The caller's own mistakes (4xx) go to the caller with the provider's words; the provider's trouble (5xx, a
    redirect) and ours with it (401, 402, 403) do not. Every one of ``secrets`` is masked.
    """
    if status in _CREDENTIALS:
        return UpstreamError("The provider refused the gateway's credentials", should_retry=False)
    error = read_error(raw, secrets) or ProviderError("The provider gave no reason")
    message = error.message
    if status == _TOO_MANY_REQUESTS:
        limited = UpstreamLimited(message, status=status, type=error.type, param=error.param, code=error.code)
        limited.retry_after_s = read_retry_after(retry_after)
        return limited
    if 400 <= status < 500 and status not in _PASSING_TROUBLE:  # noqa: PLR2004
        return UpstreamRefused(message, status=status, type=error.type, param=error.param, code=error.code)
    if status >= 500:  # noqa: PLR2004
        return UpstreamError(f"The provider failed with status {status}: {message}")
    return UpstreamError(f"The provider answered with status {status}")


def read_retry_after(value: str | None) -> int:
    """``Retry-After`` in seconds, from 1 to 120; a date or nonsense is read as 1."""
    if value is not None and value.isascii() and value.isdigit():
        return min(max(int(value[:9]), 1), _MAX_RETRY_AFTER_S)
    return 1
