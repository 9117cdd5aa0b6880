"""Message batches: the batch object, its requests, and its result lines (``MessageBatchIndividualResponse``)."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import orjson

from gateway.domain import exact_json
from gateway.domain.account_spec import build_time
from gateway.domain.batch import MAX_LINES, MESSAGES_ENDPOINT, Batch, BatchTally, LineResult
from gateway.errors import InvalidRequest
from gateway.formats.batches.openai import find_tokens, join_lines
from gateway.formats.wire.json_values import loads_or_none
from gateway.formats.wire.request_body import Body

_CUSTOM_ID_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_BETA_HEADER = "anthropic-beta"
_BATCH_FEATURE_PREFIX = "message-batches-"
_UNSENT_RESULTS = {"batch_cancelled": "canceled", "batch_expired": "expired"}
"""Result type of a request that was not sent, by its error code."""


def parse_requests(body: Body) -> list[dict[str, Any]]:
    """Return the requests of a new batch. Raises ``InvalidRequest`` naming the field."""
    requests = body.get("requests")
    if not isinstance(requests, list) or not 0 < len(requests) <= MAX_LINES:
        raise InvalidRequest(f"'requests' must be a list of 1 to {MAX_LINES} requests", param="requests")
    custom_ids = set[str]()
    for index, request in enumerate(requests):
        problem = _check_request(request, custom_ids)
        if problem is not None:
            name, rule = problem
            raise InvalidRequest(f"requests.{index}.{name}: {rule}", param=f"requests.{index}.{name}")
    return requests


def _check_request(request: object, custom_ids: set[str]) -> tuple[str, str] | None:
    fields = request if isinstance(request, dict) else {}
    custom_id, params = fields.get("custom_id"), fields.get("params")
    if not isinstance(custom_id, str) or not _CUSTOM_ID_PATTERN.fullmatch(custom_id):
        return "custom_id", "must be 1 to 64 letters, digits, hyphens and underscores"
    if custom_id in custom_ids:
        return "custom_id", "must be unique within the batch"
    custom_ids.add(custom_id)
    if not isinstance(params, dict) or not isinstance(params.get("model"), str) or not params["model"]:
        return "params", "must be an object with the name of a model"
    if params.get("stream"):
        return "params.stream", "a batch has no streams"
    return None


def keep_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers for the requests of a batch: its own headers without the beta feature for batches."""
    features = [name.strip() for name in headers.get(_BETA_HEADER, "").split(",")]
    kept_features = ",".join(name for name in features if name and not name.startswith(_BATCH_FEATURE_PREFIX))
    other_headers = {name: value for name, value in headers.items() if name != _BETA_HEADER}
    return other_headers | {_BETA_HEADER: kept_features} if kept_features else other_headers


def build_lines(requests: Sequence[dict[str, Any]], headers: Mapping[str, str] = {}) -> bytes:
    """Build the lines that are stored as the input of a batch. ``headers`` apply to every request."""
    header_field = {"headers": dict(headers)} if headers else {}
    requests_by_id = ((request["custom_id"], request["params"]) for request in requests)
    lines = (
        {"custom_id": custom_id, "method": "POST", "url": MESSAGES_ENDPOINT, **header_field, "body": body}
        for custom_id, body in requests_by_id
    )
    return b"".join(exact_json.dumps(line) + b"\n" for line in lines)


def build_answer_line(_batch_id: str, _number: int, custom_id: str, _request_id: str, body: bytes) -> LineResult:
    """Build the result line of a successful request, whose message is ``body``."""
    tally = attrs.evolve(find_tokens(loads_or_none(body)), completed=1)
    return _build_line(custom_id, {"type": "succeeded", "message": orjson.Fragment(join_lines(body))}, tally)


def build_refused_line(_batch_id: str, _number: int, custom_id: str, response: Body) -> LineResult:
    """Build the result line of a request that was answered with an error."""
    return _build_line(custom_id, {"type": "errored", "error": response["body"]}, BatchTally(failed=1))


def build_unsent_line(_batch_id: str, _number: int, custom_id: str, code: str, message: str) -> LineResult:
    """Build the result line of a request without an answer: cancelled, expired or failed."""
    kind = _UNSENT_RESULTS.get(code)
    if kind is not None:
        return _build_line(custom_id, {"type": kind}, _build_tally(kind))
    error = {"type": "error", "error": {"type": "api_error", "message": message}, "request_id": None}
    return _build_line(custom_id, {"type": "errored", "error": error}, BatchTally(failed=1))


def _build_tally(kind: object) -> BatchTally:
    return BatchTally(failed=1, cancelled=int(kind == "canceled"), expired=int(kind == "expired"))


def _build_line(custom_id: str, result: Body, tally: BatchTally) -> LineResult:
    line = exact_json.dumps({"custom_id": custom_id, "result": result}) + b"\n"
    return LineResult(line, tally, in_output=True)


def parse_result(raw: bytes) -> tuple[str, BatchTally] | None:
    """Return the ``custom_id`` and the tally of a stored result line; None if the line is damaged."""
    line = loads_or_none(raw)
    result = line.get("result") if isinstance(line, dict) else None
    if not isinstance(line, dict) or not isinstance(line.get("custom_id"), str) or not isinstance(result, dict):
        return None
    if result.get("type") == "succeeded":
        return line["custom_id"], attrs.evolve(find_tokens(result.get("message")), completed=1)
    return line["custom_id"], _build_tally(result.get("type"))


def build_message_batch(batch: Batch, origin: str) -> Body:
    """Build the batch object. The URL of its results begins with ``origin``, the origin of the gateway."""
    tally, cancelling_s = batch.tally, batch.times.get("cancelling_at")
    ended_s = max(batch.times.values(), default=batch.created_ms // 1000) if batch.ended else None
    unsent_count = tally.cancelled + tally.expired
    request_counts = {
        "processing": 0 if batch.ended else batch.total,
        "succeeded": tally.completed if batch.ended else 0,
        "errored": batch.total - tally.completed - unsent_count if batch.ended else 0,
        "canceled": tally.cancelled if batch.ended else 0,
        "expired": tally.expired if batch.ended else 0,
    }
    unfinished_status = "in_progress" if cancelling_s is None else "canceling"
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": "ended" if batch.ended else unfinished_status,
        "request_counts": request_counts,
        "created_at": build_time(batch.created_ms // 1000),
        "expires_at": build_time(batch.expires_ms // 1000),
        "ended_at": None if ended_s is None else build_time(ended_s),
        "cancel_initiated_at": None if cancelling_s is None else build_time(cancelling_s),
        "archived_at": None,
        "results_url": f"{origin}{MESSAGES_ENDPOINT}/batches/{batch.id}/results" if batch.ended else None,
    }


def build_page(batches: Sequence[Batch], origin: str, *, has_more: bool) -> Body:
    """Build one page of the list of batches. ``has_more`` says whether another page follows."""
    return {
        "data": [build_message_batch(batch, origin) for batch in batches],
        "has_more": has_more,
        "first_id": batches[0].id if batches else None,
        "last_id": batches[-1].id if batches else None,
    }


def build_deletion(batch_id: str) -> Body:
    """Build the answer to the deletion of a batch."""
    return {"id": batch_id, "type": "message_batch_deleted"}
