"""Token counts for clients of Gemini's format, from providers that count tokens.

A body has either only ``contents`` or the whole ``generateContentRequest``.
"""

import orjson

from gateway.domain.inference_request import InferenceRequest
from gateway.errors import InvalidRequest
from gateway.formats.chat.anthropic import request_writer as anthropic_writer
from gateway.formats.chat.anthropic import response as anthropic_response
from gateway.formats.chat.gemini import request_writer as gemini_writer
from gateway.formats.chat.gemini.field_names import unify_names
from gateway.formats.chat.gemini.passthrough_body import build_passed_body
from gateway.formats.chat.gemini.request import check_body, measure_prompt
from gateway.formats.chat.gemini.request_reader import parse_chat_request
from gateway.formats.chat.valid_chat import make_valid
from gateway.formats.errors.openai import Secrets
from gateway.formats.wire.fields import Body, parse_model, parse_object

_GENERATE_REQUEST_FIELD = "generateContentRequest"
_ANTHROPIC_COUNT_FIELDS = ("model", "messages", "system", "tools", "tool_choice", "thinking", "output_config")


def parse_count_inference(body: Body, *, model: str) -> InferenceRequest:
    """Check a body for ``:countTokens`` and return the request, which reserves no tokens. Raises ``InvalidRequest``."""
    model = parse_model({"model": model})
    body = unify_names(body)
    generate_request = parse_object(body, _GENERATE_REQUEST_FIELD)
    if generate_request is not None and body.get("contents") is not None:
        raise InvalidRequest(f"'contents' and '{_GENERATE_REQUEST_FIELD}' exclude each other", param="contents")
    request_body = body if generate_request is None else generate_request
    check_body(request_body)
    return InferenceRequest(
        operation="count_content_tokens", model=model, body=request_body, prompt_chars=measure_prompt(request_body)[0]
    )


def build_gemini_body(inference: InferenceRequest, model: str) -> Body:
    """Build the body for Gemini as a nested request: ``contents`` alone would leave out instructions and tools."""
    return {
        _GENERATE_REQUEST_FIELD: {
            "model": f"models/{model.removeprefix('models/')}",
            **build_passed_body(inference, model),
        }
    }


def check_gemini_answer(raw: bytes, secrets: Secrets = ()) -> bytes:
    """Return Gemini's answer unchanged. Raises ``ProviderError`` if it has no count."""
    gemini_writer.parse_count_answer(raw, secrets)
    return raw


def build_anthropic_body(inference: InferenceRequest, model: str) -> Body:
    """Build the body for a token count at Anthropic. Raises ``InvalidRequest``."""
    valid_chat = make_valid(parse_chat_request(inference.body), anthropic_writer.find_rules(model), model)
    anthropic_body = anthropic_writer.build_body(valid_chat.request, model, stream=False)
    return {name: anthropic_body[name] for name in _ANTHROPIC_COUNT_FIELDS if name in anthropic_body}


def convert_anthropic_answer(raw: bytes, secrets: Secrets = ()) -> bytes:
    """Convert Anthropic's answer into Gemini's format. Raises ``ProviderError``."""
    return build_count_answer(anthropic_response.parse_count_answer(raw, secrets))


def build_count_answer(tokens: int) -> bytes:
    """Build the answer to a token count in Gemini's format."""
    return orjson.dumps({"totalTokens": tokens})
