"""Turns the JSON answer to a request into its stream, and the other way round, in the client's own format."""

import orjson

from gateway.domain.cached_answer import JSON_FORM
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.operation import OPERATIONS
from gateway.domain.usage import Usage
from gateway.errors import GatewayError
from gateway.formats.joined_streams import join_stream
from gateway.formats.registry import make_translator
from gateway.formats.translator import ResponseIdentity


def convert_answer(
    body: bytes, form: str, usage: Usage, inference: InferenceRequest, identity: ResponseIdentity
) -> bytes | None:
    """Return an answer in the form that ``inference`` asks for, from another ``form``; None if that is impossible.

    The content stays the same. What only the requested form has, such as the pieces of a stream, is invented.
    """
    try:
        whole = body if form == JSON_FORM else join_stream(body, inference.operation, usage)
        if whole is None or not inference.stream:
            return whole
        translator = make_translator(inference, OPERATIONS[inference.operation].formats[0], identity)
        return translator.build_whole(whole, ())[0]
    except (GatewayError, RecursionError, orjson.JSONDecodeError, orjson.JSONEncodeError):  # nested too deeply
        return None
