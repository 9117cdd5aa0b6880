"""Error objects in the client's API format: OpenAI, Anthropic or Google."""

from collections.abc import Callable, Mapping
from typing import Literal

from gateway.domain.operation import Operation
from gateway.errors import GatewayError
from gateway.formats.chat.responses.failure import build_response_error_event
from gateway.formats.errors import openai as openai_error
from gateway.formats.errors.anthropic import build_messages_error, build_messages_error_event
from gateway.formats.errors.google import build_google_error, build_google_error_event

MESSAGES_PATH = "/v1/messages"
ErrorFormat = Literal["openai", "anthropic", "google"]
_ErrorBuilder = Callable[[GatewayError, str], bytes]
_ERROR_BUILDERS: Mapping[ErrorFormat, _ErrorBuilder] = {
    "openai": openai_error.build_error,
    "anthropic": build_messages_error,
    "google": build_google_error,
}
_EVENT_BUILDERS: Mapping[Operation, _ErrorBuilder] = {
    "messages": build_messages_error_event,
    "generate_content": build_google_error_event,
    "responses": build_response_error_event,
}


def build_error(error: GatewayError, request_id: str, error_format: ErrorFormat) -> bytes:
    """Build the error object in ``error_format``."""
    return _ERROR_BUILDERS[error_format](error, request_id)


def build_error_event(error: GatewayError, request_id: str, operation: Operation) -> bytes:
    """Build the error event that ends a stream, in the format of ``operation``."""
    return _EVENT_BUILDERS.get(operation, openai_error.build_error_event)(error, request_id)
