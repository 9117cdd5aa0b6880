"""The convention's embeddings, asked of Gemini.

Shapes: ai.google.dev/api/embeddings, ``models.batchEmbedContents``; its answer has no usage in the reference, and
``usageMetadata.promptTokenCount`` in the tests of Google's SDK.
"""

from typing import Any

import orjson

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import Usage, parse_count
from gateway.errors import InvalidRequest, ProviderBadResponse
from gateway.formats.openai.chat import parse_answer_object
from gateway.formats.openai.embeddings import build_base64
from gateway.formats.openai.errors import Secrets
from gateway.formats.prompt_tokens import estimate_prompt


def build_embeddings_body(call: InferenceRequest, model: str) -> dict[str, Any]:
    """The body of ``:batchEmbedContents`` for a checked call. Raises ``InvalidRequest`` for token ids."""
    name = f"models/{model.removeprefix('models/')}"
    dimensions = call.body.get("dimensions")
    options = {} if dimensions is None else {"outputDimensionality": dimensions}
    return {
        "requests": [
            {"model": name, "content": {"parts": [{"text": text}]}, **options} for text in _list_texts(call.body)
        ],
    }


def _list_texts(body: dict[str, Any]) -> list[str]:
    value = body.get("input")
    items = value if isinstance(value, list) else [value]
    texts = [item for item in items if isinstance(item, str)]
    if len(texts) < len(items):
        raise InvalidRequest("Gemini embeds only text: 'input' must be a string or an array of strings", param="input")
    return texts


def parse_embeddings_answer(
    raw: bytes, call: InferenceRequest, model: str, secrets: Secrets = ()
) -> tuple[bytes, Usage]:
    """Gemini's answer -> the convention's, in the encoding the caller asked for, and the usage.

    Raises ``ProviderBadResponse`` where there is not one vector of numbers for every text.
    """
    value = parse_answer_object(raw, secrets)
    items = value.get("embeddings")
    if not isinstance(items, list) or len(items) != len(_list_texts(call.body)):
        raise ProviderBadResponse("The provider's answer has not one embedding for every input")
    usage = _parse_usage(value.get("usageMetadata")) or Usage(estimate_prompt(call), source="estimate")
    data = [
        {"object": "embedding", "index": index, "embedding": _parse_vector(item, call.encoding)}
        for index, item in enumerate(items)
    ]
    counts = {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.prompt_tokens}
    return orjson.dumps({"object": "list", "data": data, "model": model, "usage": counts}), usage


def _parse_vector(item: object, encoding: str) -> list[float] | str:
    values = item.get("values") if isinstance(item, dict) else None
    if not isinstance(values, list) or not values or not all(type(value) in {int, float} for value in values):
        raise ProviderBadResponse("The provider's answer has an embedding that is not made of numbers")
    return build_base64(values) if encoding == "base64" else values


def _parse_usage(raw: object) -> Usage | None:
    prompt = parse_count(raw.get("promptTokenCount")) if isinstance(raw, dict) else None
    return None if prompt is None else Usage(prompt, source="upstream")
