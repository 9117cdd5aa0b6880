"""Find a provider's error message in any kind of body: JSON of any shape, XML, HTML or plain text.

Sources of the shapes, by vendor: DashScope, SiliconFlow and xAI ``{"code", "message" or "error"}``; Replicate and BFL
``{"detail"}``; Stability ``{"name", "errors"}``; MiniMax ``{"base_resp": {"status_code", "status_msg"}}``; xAI
``{"block_reason"}``; Volcengine ``{"data": [{"error": {...}}]}``; ElevenLabs ``{"detail": {"status", "message"}}``;
Deepgram ``{"err_code", "err_msg"}``; fal and FastAPI ``{"detail": [{"type", "msg"}]}``; Baidu ``{"error_code",
"error_msg"}``; Zhipu ``{"code", "msg", "success"}``; Cloudflare ``{"errors": [{"code", "message"}]}``; Tencent
``{"Response": {"Error": {"Code", "Message"}}}``; Volcengine's ``{"ResponseMetadata": {"Error"}}``; AWS ``{"__type",
"message"}`` and ``<Error><Code>…<Message>…``; OpenRouter ``{"error": {"metadata": {"raw"}}}``.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from gateway.domain import exact_json
from gateway.errors import ProviderError
from gateway.formats.errors.openai import (
    ErrorBody,
    Secrets,
    build_reported_error,
    describe_status,
    mask,
    parse_provider_error,
    write_reason,
)
from gateway.formats.wire.json_values import as_object, list_objects, loads_or_none

_CODE_FIELDS = ("code", "error_code", "err_code", "errorCode", "status_code", "Code", "__type", "name")
_MESSAGE_FIELDS = (
    "message", "msg", "error_msg", "err_msg", "errorMessage", "status_msg", "Message", "error_description", "error",
    "detail", "reason", "faultstring",
)  # fmt: skip
_CONTAINER_FIELDS = ("base_resp", "detail", "header", "fault", "Error", "Response", "ResponseMetadata")
_CONTENT_FIELDS = frozenset({"choices", "content", "candidates", "output", "data", "embeddings", "results"})
_MIN_ERROR_STATUS = 400
_MAX_ERROR_STATUS = 599
_MIN_FAILURE_STATUS = 500
_MINIMAX_STATUSES: Mapping[str, int] = {"1002": 429, "1004": 401, "1008": 402, "1039": 429, "2013": 400, "2049": 401}
"""HTTP statuses for MiniMax's codes of errors outside the server; platform.minimax.io/docs/api-reference/errorcode."""
_NO_SUCH_PATH_STATUSES = frozenset({404, 405})
"""Statuses whose text only says that the path does not exist: the requested path is more informative."""
_MARKUP_PATTERN = re.compile(r"<(?:message|title|h1|faultstring)(?: [^<>]{0,200})?>\s*([^<>]{1,500})<", re.IGNORECASE)
_HOST_PATTERN = re.compile(r"\b(?:[a-z0-9-]{1,63}\.){1,5}(?:com|cn|ai|io|net|org|dev|cloud|internal)\b", re.IGNORECASE)
_MAX_TEXT_CHARS = 2_000


def parse_worded_error(
    status: int, raw: bytes, secrets: Secrets, *, provider_retry_after_s: float | None = None, path: str | None = None
) -> ProviderError:
    """Convert an unsuccessful answer into an error, like ``parse_provider_error``, wherever its message stands."""
    return parse_provider_error(
        status,
        _wrap_value(loads_or_none(raw), status) or _wrap_text(raw, status) or raw,
        secrets,
        provider_retry_after_s=provider_retry_after_s,
        path=path,
    )


def find_failure(value: dict[str, Any], secrets: Secrets = ()) -> ProviderError | None:
    """Return the error that an answer with status 200 reports outside ``error``; None if it has content or no error."""
    if any(value.get(name) for name in _CONTENT_FIELDS):
        return None
    base_code = as_object(value.get("base_resp")).get("status_code")
    codes = (base_code, value.get("error_code"), as_object(value.get("header")).get("code"))
    if value.get("success") is not False and not any(code not in (None, 0, "0", "") for code in codes):
        return None
    code, message = next(((code, text) for code, text in list_errors(value) if text), (None, None))
    status = _MINIMAX_STATUSES.get(str(base_code)) if base_code else _find_status(code)
    if status is not None:
        return parse_provider_error(status, orjson.dumps({"error": {"message": message, "code": code}}), secrets)
    return build_reported_error(ErrorBody(parse_reason(value, secrets)), "answer")


def find_message(value: object, secrets: Secrets = ()) -> str | None:
    """Return the masked error message in a provider's parsed answer; None if there is no message."""
    return next((mask(message, secrets) for _, message in list_errors(value) if message), None)


def parse_reason(value: object, secrets: Secrets = ()) -> str:
    """Return the masked error message and code in a provider's parsed answer; a sentence replaces a missing message."""
    pairs = [(code, message) for code, message in list_errors(value) if code or message]
    code, message = next((pair for pair in pairs if pair[1]), pairs[0] if pairs else (None, None))
    return write_reason(message, code, secrets)


def list_errors(value: object) -> Iterator[tuple[str | None, str | None]]:
    """Yield the pairs of error code and message in an answer of any shape, the most reliable pair first.

    Either member of a pair may be None.
    """
    if isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, dict):
        return
    yield from _list_error_object(value.get("error"))
    kind = value.get("type") if value.get("msg") else None
    yield _find_code(value) or _as_text_or_none(kind), _find_message(value)
    if _as_text_or_none(value.get("block_reason")):
        yield "content_filter", _as_text_or_none(value.get("block_reason"))
    containers = [as_object(value.get(name)) for name in _CONTAINER_FIELDS]
    containers += [as_object(error.get("Error")) for error in containers]
    for error in (*containers, *list_objects(value.get("errors")), *list_objects(value.get("detail"))):
        yield (
            (_as_text_or_none(error.get("status")) or _find_code(error) or _as_text_or_none(error.get("type"))),
            _find_message(error),
        )
    for entry in list_objects(value.get("data")):
        yield from _list_error_object(entry.get("error"))


def _list_error_object(error: object) -> Iterator[tuple[str | None, str | None]]:
    if not isinstance(error, dict):
        return
    message = _find_message(error) or _find_message(as_object(error.get("error")))
    for name in ("code", "type", "status"):
        if _as_text_or_none(error.get(name)):
            yield _as_text_or_none(error.get(name)), message
    if message:
        yield None, message
    for name in ("inner_error", "innererror"):
        yield _as_text_or_none(as_object(error.get(name)).get("code")), message
    if _as_text_or_none(as_object(error.get("metadata")).get("flagged_input")):
        yield "content_filter", message


def _find_code(value: dict[str, Any]) -> str | None:
    return next((text for name in _CODE_FIELDS if (text := _as_text_or_none(value.get(name)))), None)


def _find_message(value: dict[str, Any]) -> str | None:
    errors = value.get("errors")
    candidates = [value.get(name) for name in _MESSAGE_FIELDS]
    for candidate in (*candidates, errors):
        text = candidate[0] if isinstance(candidate, list) and candidate else candidate
        if isinstance(text, str) and text:
            return text
    return None


def _find_status(code: str | None) -> int | None:
    status = int(code) if code and code.isdecimal() and len(code) == 3 else 0  # noqa: PLR2004
    return status if _MIN_ERROR_STATUS <= status <= _MAX_ERROR_STATUS else None


def _wrap_value(value: object, status: int) -> bytes | None:
    """Build an ``error`` object with the code and message of ``value``, as JSON; None if there is no message.

    If ``value`` has an ``error`` object with a message, the upstream provider's message is appended; None if there is
    no such message. A message that only repeats the status phrase does not count: the requested path is more
    informative.
    """
    if isinstance(value, str):
        return _build_error_body(None, value, status)
    error = value.get("error") if isinstance(value, dict) else None
    if isinstance(error, dict) and _as_text_or_none(error.get("message")):
        return _append_upstream_message(error)
    pair = next(((code, message) for code, message in list_errors(value) if message), None)
    return None if pair is None else _build_error_body(*pair, status)


def _append_upstream_message(error: dict[str, Any]) -> bytes | None:
    """Append the upstream provider's message to OpenRouter's own; None if there is no upstream message."""
    raw_error = as_object(error.get("metadata")).get("raw")
    if not isinstance(raw_error, str) or not raw_error:
        return None
    upstream_message = find_message(loads_or_none(raw_error.encode(errors="replace"))) or raw_error
    return exact_json.dumps({"error": error | {"message": f"{error['message']}: {upstream_message}"}})


def _wrap_text(raw: bytes, status: int) -> bytes | None:
    text = raw[:_MAX_TEXT_CHARS].decode(errors="replace").strip()
    if status in _NO_SUCH_PATH_STATUSES or not text or text[0] in '{["' or "\ufffd" in text:
        return None
    if text.startswith("<"):
        markup = _MARKUP_PATTERN.search(text)
        text = markup[1].strip() if markup else ""
    elif status >= _MIN_FAILURE_STATUS:  # the status is more informative than a proxy's text
        return None
    return _build_error_body(None, _HOST_PATTERN.sub("[address]", text), status) if text else None


def _build_error_body(code: str | None, message: str, status: int) -> bytes | None:
    if message in describe_status(status):
        return None
    try:
        return orjson.dumps({"error": {"message": message, "code": code}})
    except orjson.JSONEncodeError:  # half a surrogate pair
        return orjson.dumps({"error": {"message": message.encode(errors="replace").decode(), "code": code}})


def _as_text_or_none(value: object) -> str | None:
    if type(value) is int:
        return str(value)
    return value if isinstance(value, str) and value else None
