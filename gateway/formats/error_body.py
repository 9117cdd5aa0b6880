"""Error objects in the API format of the client: Anthropic's or OpenAI's."""

from gateway.domain.inference_request import Operation
from gateway.errors import GatewayError
from gateway.formats.anthropic.errors import build_messages_error, build_messages_error_event
from gateway.formats.openai import errors as openai_error

MESSAGES_PATH = "/v1/messages"
_ANTHROPIC: frozenset[Operation] = frozenset({"messages", "count_tokens"})


def build_error(error: GatewayError, request_id: str, *, anthropic: bool) -> bytes:
    """Build the error object."""
    return build_messages_error(error, request_id) if anthropic else openai_error.build_error(error, request_id)


def build_error_event(error: GatewayError, request_id: str, operation: Operation) -> bytes:
    """Build the error as the last event of a stream that answers ``operation``."""
    if operation in _ANTHROPIC:
        return build_messages_error_event(error, request_id)
    return openai_error.build_error_event(error, request_id)
