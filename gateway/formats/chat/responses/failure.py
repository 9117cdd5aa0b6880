"""Write the events that end a stream of the Responses API early: ``ResponseErrorEvent`` and ``ResponseFailedEvent``.

OpenAI sends both: openai/codex (codex-api/src/sse/responses.rs) reads only the second, while other clients raise an
error for the first.
"""

from typing import Any

import orjson

from gateway.errors import GatewayError

_MIN_SERVER_ERROR_STATUS = 500


def build_response_error_event(error: GatewayError, request_id: str, sequence_number: int = 0) -> bytes:
    """Build the ``error`` event that has the sequence number ``sequence_number``."""
    fields = {"code": error.public_code, "message": _write_message(error, request_id), "param": error.param}
    fields |= build_page(error)
    # The openai library raises an error only from the nested object, which OpenAI sends too.
    data = {"type": "error", **fields, "sequence_number": sequence_number, "error": fields | {"type": error.type}}
    return b"event: error\ndata: " + orjson.dumps(data) + b"\n\n"


def build_failure(error: GatewayError, request_id: str, response: dict[str, Any], sequence_number: int) -> bytes:
    """Build both events, the first with the sequence number ``sequence_number``.

    ``response`` is the response as it began.
    """
    code = error.public_code if error.status < _MIN_SERVER_ERROR_STATUS else "server_error"
    failed_response = response | {
        "status": "failed",
        "error": {"code": code, "message": _write_message(error, request_id), **build_page(error)},
    }
    data = orjson.dumps(
        {"type": "response.failed", "response": failed_response, "sequence_number": sequence_number + 1}
    )
    return (
        build_response_error_event(error, request_id, sequence_number)
        + b"event: response.failed\ndata: "
        + data
        + b"\n\n"
    )


def build_page(error: GatewayError) -> dict[str, str]:
    """Return the field with the URL of the documentation page for an error; empty if there is no page."""
    return {} if error.doc_url is None else {"doc_url": error.doc_url}


def _write_message(error: GatewayError, request_id: str) -> str:
    return f"{error.message} (request id: {request_id})"
