"""Embeddings in the OpenAI API format, with conversion to the encoding that the client requested.

Client libraries request base64 (little-endian float32) by default, but providers may answer with base64 or numbers.
"""

import array
import base64
import binascii
import math
import sys
from typing import Any

from gateway.domain import exact_json
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import CHARS_PER_TOKEN, Usage, parse_usage
from gateway.errors import InvalidRequest, ProviderBadResponse
from gateway.formats.chat.openai.chat import parse_answer_object
from gateway.formats.errors.openai import Secrets
from gateway.formats.usage.prompt_tokens import estimate_prompt
from gateway.formats.usage.token_bounds import bound_text
from gateway.formats.wire.fields import Body, make_missing_error, name_json_type, parse_integer, parse_model, read_text

MAX_DIMENSIONS = 65_536
_FLOAT32_BYTES = 4


def parse_embeddings_inference(body: Body) -> InferenceRequest:
    """Check a parsed body and return the request. Raises ``InvalidRequest`` naming the field."""
    model = parse_model(body)
    chars = _count_input_chars(body)
    parse_integer(body, "dimensions", 1, MAX_DIMENSIONS)
    read_text(body, "user")
    encoding = read_text(body, "encoding_format")
    if encoding not in {None, "float", "base64"}:
        raise InvalidRequest("'encoding_format' must be 'float' or 'base64'", param="encoding_format")
    return InferenceRequest(
        operation="embeddings",
        model=model,
        body=body,
        encoding="base64" if encoding == "base64" else "float",
        prompt_chars=chars,
        max_prompt_tokens=_bound_input(body["input"]),
    )


def _count_input_chars(body: Body) -> int:
    value = body.get("input")
    if isinstance(value, str):
        if value:
            return len(value)
        raise InvalidRequest("'input' must not be empty", param="input")
    if value is None:
        raise make_missing_error(body, "input")
    if not isinstance(value, list):
        raise InvalidRequest(f"'input' must be a string or an array, not {name_json_type(value)}", param="input")
    if not value:
        raise InvalidRequest("'input' must not be empty", param="input")
    if all(type(item) is int for item in value):
        return len(value) * CHARS_PER_TOKEN
    return sum(_count_item_chars(item, index) for index, item in enumerate(value))


def _count_item_chars(item: object, index: int) -> int:
    if isinstance(item, str):
        return len(item)
    if isinstance(item, list) and item and all(type(token) is int for token in item):
        return len(item) * CHARS_PER_TOKEN
    raise InvalidRequest(
        f"'input[{index}]' must be a string or a non-empty array of token ids", param=f"input[{index}]"
    )


def _bound_input(value: Any) -> int:
    """Return the maximum tokens of a checked input: its token ids, or the bytes of its texts plus end marks."""
    if isinstance(value, str):
        return 1 + bound_text(value)
    return sum(
        1 + bound_text(item) if isinstance(item, str) else 1 if type(item) is int else len(item) for item in value
    )


def build_embeddings_body(inference: InferenceRequest, model: str) -> Body:
    """Build the body with the provider's name for the model."""
    return inference.body | {"model": model}


def parse_embeddings_answer(raw: bytes, inference: InferenceRequest, secrets: Secrets = ()) -> tuple[bytes, Usage]:
    """Return the answer in the requested encoding, and the usage. Raises ``ProviderError``."""
    value = parse_answer_object(raw, secrets)
    items = value.get("data")
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise ProviderBadResponse("The provider's answer has no embeddings")
    usage = _parse_usage(value.get("usage"), inference)
    vector_type = str if inference.encoding == "base64" else list
    if all(isinstance(item.get("embedding"), vector_type) for item in items):
        return raw, usage
    for item in items:
        item["embedding"] = _convert_vector(item.get("embedding"), inference.encoding)
    return exact_json.dumps(value), usage


def _parse_usage(usage_field: object, inference: InferenceRequest) -> Usage:
    """Return the reported usage, else an estimate. Voyage reports only a total (docs.voyageai.com, "Embeddings")."""
    usage = parse_usage(usage_field)
    if usage is None and isinstance(usage_field, dict) and usage_field.keys() == {"total_tokens"}:
        usage = parse_usage({"prompt_tokens": usage_field["total_tokens"]})
    return usage or Usage(estimate_prompt(inference), 0, 0, "estimate")


def _convert_vector(vector: Any, encoding: str) -> Any:
    if encoding == "base64":
        return vector if isinstance(vector, str) else build_base64(vector)
    return vector if isinstance(vector, list) else _parse_base64(vector)


def build_base64(vector: object) -> str:
    """Encode numbers as base64 of little-endian float32. Raises ``ProviderBadResponse`` for anything else."""
    if not isinstance(vector, list):
        raise ProviderBadResponse("The provider's answer has an embedding that is neither numbers nor base64")
    try:
        floats = array.array("f", vector)
    except (TypeError, OverflowError):
        raise ProviderBadResponse("The provider's answer has an embedding that is not made of numbers") from None
    if sys.byteorder == "big":
        floats.byteswap()
    return base64.b64encode(floats.tobytes()).decode()


def _parse_base64(text: object) -> list[float]:
    try:
        raw = base64.b64decode(text, validate=True) if isinstance(text, str) else b"\0"
    except (binascii.Error, ValueError):
        raw = b"\0"
    if len(raw) % _FLOAT32_BYTES:
        raise ProviderBadResponse("The provider's answer has an embedding that is neither numbers nor base64")
    floats = array.array("f", raw)
    if sys.byteorder == "big":
        floats.byteswap()
    if not all(map(math.isfinite, floats)):
        raise ProviderBadResponse("The provider's answer has an embedding with a number that is none")
    return floats.tolist()
