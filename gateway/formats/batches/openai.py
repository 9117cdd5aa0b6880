"""Batches: the batch object, its input lines (``BatchRequestInput``) and its result lines (``BatchRequestOutput``)."""

from typing import Any

import attrs
import orjson

from gateway.domain import exact_json
from gateway.domain.batch import (
    ENDPOINTS,
    MESSAGES_ENDPOINT,
    WINDOW,
    Batch,
    BatchError,
    BatchLine,
    BatchTally,
    LineResult,
)
from gateway.domain.client_file import find_digits, is_client_id
from gateway.domain.keep_rule import KEEP_HEADER
from gateway.domain.keep_wish import parse_keep_wish
from gateway.errors import InvalidRequest
from gateway.formats.files import parse_expires_after
from gateway.formats.wire.json_values import as_object, loads_or_none, parse_json_object
from gateway.formats.wire.request_body import Body
from gateway.frozen import frozen

MAX_ID_CHARS = 512
MAX_METADATA_PAIRS, MAX_METADATA_NAME_CHARS, MAX_METADATA_VALUE_CHARS = 16, 64, 512
"""Limits of ``metadata`` (OpenAI's OpenAPI document, ``Metadata``)."""
_OK_STATUS = 200
_TIME_FIELDS = (
    "in_progress_at", "expires_at", "finalizing_at", "completed_at", "failed_at", "expired_at", "cancelling_at",
    "cancelled_at",
)  # fmt: skip
_UNSUPPORTED_FLAGS = {"stream": "A batch has no streams", "background": "A batch has no background responses"}


class LineError(Exception):
    """Raised for an invalid input line of a batch."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param

    def at(self, line: int) -> BatchError:
        return BatchError(self.code, self.message, line, self.param)


@frozen
class NewBatch:
    """A checked ``CreateBatchRequest``.

    Attributes:
        kept_s: the seconds for which output files are kept; None if ``output_expires_after`` is not set.
    """

    input_file_id: str
    endpoint: str
    metadata: dict[str, str] | None
    kept_s: int | None


def parse_batch(body: Body) -> NewBatch:
    """Parse a ``CreateBatchRequest``. Raises ``InvalidRequest``."""
    file_id, endpoint = body.get("input_file_id"), body.get("endpoint")
    if not isinstance(file_id, str) or not is_client_id(file_id, "file-"):
        raise InvalidRequest("'input_file_id' must be the id of a file", param="input_file_id")
    if not isinstance(endpoint, str) or endpoint not in ENDPOINTS:
        raise InvalidRequest(f"'endpoint' must be one of {', '.join(ENDPOINTS)}", param="endpoint")
    if body.get("completion_window") != WINDOW:
        raise InvalidRequest(f"'completion_window' must be '{WINDOW}'", param="completion_window")
    kept_s = parse_expires_after(body.get("output_expires_after"), "output_expires_after")
    return NewBatch(file_id, endpoint, _parse_metadata(body.get("metadata")), kept_s)


def _parse_metadata(value: object) -> dict[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, dict) or len(value) > MAX_METADATA_PAIRS:
        raise InvalidRequest(f"'metadata' must be an object of at most {MAX_METADATA_PAIRS} pairs", param="metadata")
    for name, text in value.items():
        if len(name) > MAX_METADATA_NAME_CHARS or not isinstance(text, str) or len(text) > MAX_METADATA_VALUE_CHARS:
            rule = (
                f"names of at most {MAX_METADATA_NAME_CHARS} and texts of at most {MAX_METADATA_VALUE_CHARS} characters"
            )
            raise InvalidRequest(f"'metadata' must have {rule}", param="metadata")
    return value


def parse_line(raw: bytes, endpoint: str) -> BatchLine:
    """Parse one input line of a batch for ``endpoint``. Raises ``LineError``."""
    try:
        line = parse_json_object(raw, exact=True)
    except InvalidRequest:
        raise LineError("invalid_json_line", "This line is not parseable as a JSON object.") from None
    custom_id, body = line.get("custom_id"), line.get("body")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_ID_CHARS:
        text = f"'custom_id' must be a text of 1 to {MAX_ID_CHARS} characters."
        raise LineError("missing_required_parameter", text, "custom_id")
    if line.get("method") != "POST":
        raise LineError("invalid_method", "'method' must be 'POST'.", "method")
    if line.get("url") != endpoint:
        raise LineError("mismatched_endpoint", f"'url' must be the batch's endpoint, '{endpoint}'.", "url")
    if not isinstance(body, dict):
        raise LineError("missing_required_parameter", "'body' must be an object.", "body")
    if not isinstance(body.get("model"), str) or not body["model"]:
        raise LineError("missing_required_parameter", "'body.model' must be the name of a model.", "body.model")
    for name, reason in _UNSUPPORTED_FLAGS.items():
        if body.get(name):
            raise LineError("invalid_request", f"{reason}.", f"body.{name}")
    # Headers are safe to accept here: only the gateway itself writes lines for this endpoint.
    headers = as_object(line.get("headers"))
    if endpoint == MESSAGES_ENDPOINT:
        return BatchLine(custom_id, body, headers)
    wishes = [value for name, value in headers.items() if name.lower() == KEEP_HEADER]
    return BatchLine(custom_id, body, keep_bodies=parse_keep_wish(map(str, wishes)))


def build_answer_line(batch_id: str, number: int, custom_id: str, request_id: str, body: bytes) -> LineResult:
    """Build the output line for a successful answer, whose JSON object is ``body``."""
    response = {"status_code": _OK_STATUS, "request_id": request_id, "body": orjson.Fragment(join_lines(body))}
    tally = attrs.evolve(find_tokens(loads_or_none(body)), completed=1)
    return LineResult(_build_line(batch_id, number, custom_id, response, None), tally, in_output=True)


def join_lines(body: bytes) -> bytes:
    """Return JSON on one line, as result lines require. Line breaks inside JSON strings are escaped already."""
    return body.replace(b"\r", b" ").replace(b"\n", b" ")


def build_error_response(request_id: str, status: int, body: bytes) -> Body:
    """Build the ``response`` of a request that ended with an error, whose error object is ``body``."""
    return {"status_code": status, "request_id": request_id, "body": orjson.Fragment(body)}


def build_refused_line(batch_id: str, number: int, custom_id: str, response: Body) -> LineResult:
    """Build the error-file line for a request that was answered with an error."""
    line = _build_line(batch_id, number, custom_id, response, None)
    return LineResult(line, BatchTally(failed=1), in_output=False)


def build_unsent_line(batch_id: str, number: int, custom_id: str, code: str, message: str) -> LineResult:
    """Build the error-file line for a request without an answer."""
    line = _build_line(batch_id, number, custom_id, None, {"code": code, "message": message})
    return LineResult(line, BatchTally(failed=1), in_output=False)


def _build_line(batch_id: str, number: int, custom_id: str, response: Any, error: Any) -> bytes:
    request_id = f"batch_req_{find_digits(batch_id)}{number:06d}"
    return exact_json.dumps({"id": request_id, "custom_id": custom_id, "response": response, "error": error}) + b"\n"


def parse_result(raw: bytes) -> tuple[str, BatchTally] | None:
    """Return the ``custom_id`` and the tally of a stored result line; None if the line is damaged."""
    line = loads_or_none(raw)
    if not isinstance(line, dict) or not isinstance(line.get("custom_id"), str):
        return None
    response = line.get("response")
    if isinstance(response, dict) and response.get("status_code") == _OK_STATUS:
        return line["custom_id"], attrs.evolve(find_tokens(response.get("body")), completed=1)
    return line["custom_id"], BatchTally(failed=1)


def find_tokens(body: object) -> BatchTally:
    """Return the tokens that an answer reports, whichever endpoint's field names it uses."""
    usage = _find_object(body, "usage")
    prompt_details = _find_object(usage, "prompt_tokens_details") or _find_object(usage, "input_tokens_details")
    completion_details = _find_object(usage, "completion_tokens_details") or _find_object(
        usage, "output_tokens_details"
    )
    return BatchTally(
        input_tokens=_find_count(usage, "prompt_tokens") or _find_count(usage, "input_tokens"),
        cached_tokens=_find_count(prompt_details, "cached_tokens"),
        output_tokens=_find_count(usage, "completion_tokens") or _find_count(usage, "output_tokens"),
        reasoning_tokens=_find_count(completion_details, "reasoning_tokens"),
    )


def _find_object(value: object, name: str) -> dict[str, Any]:
    member = value.get(name) if isinstance(value, dict) else None
    return member if isinstance(member, dict) else {}


def _find_count(value: dict[str, Any], name: str) -> int:
    count = value.get(name)
    return count if type(count) is int and count > 0 else 0


def build_batch(batch: Batch) -> Body:
    """Build the batch object."""
    tally = batch.tally
    body: Body = {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.model,
        "errors": None,
        "input_file_id": batch.input_file_id,
        "completion_window": WINDOW,
        "status": batch.status,
        "output_file_id": batch.output_file_id if batch.ended else None,
        "error_file_id": batch.error_file_id if batch.ended else None,
        "created_at": batch.created_ms // 1000,
        **{name: batch.times.get(name) for name in _TIME_FIELDS},
        "expires_at": batch.expires_ms // 1000,
        "request_counts": {"total": batch.total, "completed": tally.completed, "failed": tally.failed},
        "usage": {
            "input_tokens": tally.input_tokens,
            "input_tokens_details": {"cached_tokens": tally.cached_tokens},
            "output_tokens": tally.output_tokens,
            "output_tokens_details": {"reasoning_tokens": tally.reasoning_tokens},
            "total_tokens": tally.input_tokens + tally.output_tokens,
        },
        "metadata": batch.metadata,
    }
    if batch.errors:
        body["errors"] = {"object": "list", "data": [attrs.asdict(error) for error in batch.errors]}
    return body
