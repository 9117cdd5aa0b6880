"""Turns the JSON answer to a request into its stream, and the other way round, in the client's own format."""

import orjson

from gateway.domain import exact_json
from gateway.domain.cached_answer import JSON_FORM
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.operation import OPERATIONS
from gateway.domain.usage import Usage
from gateway.errors import GatewayError
from gateway.formats.chat.model import StreamError, UsageReport
from gateway.formats.chat.translation import CLIENT_FORMATS, NATIVE_WIRES, PROVIDER_FORMATS
from gateway.formats.registry import make_translator
from gateway.formats.translator import ResponseIdentity
from gateway.formats.wire.sse import SseSplitter, parse_data

_RESPONSES = "responses"
_END_TYPES = frozenset({"response.completed", "response.incomplete"})


def convert_answer(
    body: bytes, form: str, usage: Usage, inference: InferenceRequest, identity: ResponseIdentity
) -> bytes | None:
    """Return an answer in the form that ``inference`` asks for, from another ``form``; None if that is impossible.

    Text, tool calls and usage stay. What only the one form has, such as the pieces of a stream, is made up.
    """
    try:
        whole = body if form == JSON_FORM else _build_whole(body, usage, inference, identity)
        if whole is None or not inference.stream:
            return whole
        translator = make_translator(inference, OPERATIONS[inference.operation].formats[0], identity)
        return translator.build_whole(whole, ())[0]
    except (GatewayError, orjson.JSONDecodeError, orjson.JSONEncodeError):
        return None


def _build_whole(stream: bytes, usage: Usage, inference: InferenceRequest, identity: ResponseIdentity) -> bytes | None:
    operation = inference.operation
    if operation == _RESPONSES:
        return _find_last_response(stream)
    if operation not in CLIENT_FORMATS:
        return None
    reader = PROVIDER_FORMATS[NATIVE_WIRES[operation]].open_reader(inference, identity, ())
    events = [*reader.feed(stream), *reader.finish()]
    if any(isinstance(event, StreamError) for event in events):
        return None
    if not any(isinstance(event, UsageReport) for event in events):  # the client had not asked for it
        events.append(UsageReport(usage, usage.reasoning_tokens))
    return CLIENT_FORMATS[operation].write_answer(events, inference, identity)


def _find_last_response(stream: bytes) -> bytes | None:
    for event in reversed(SseSplitter().split(stream)):
        payload = parse_data(event)
        if payload is not None and payload.startswith(b"{"):
            value = exact_json.loads(payload)
            return exact_json.dumps(value["response"]) if value.get("type") in _END_TYPES else None
    return None
