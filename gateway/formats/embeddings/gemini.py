"""Convert embeddings requests of the OpenAI API format for Gemini, and Gemini's answers back.

Shapes: ai.google.dev/api/embeddings, ``models.batchEmbedContents``. The reference documents no usage in the answer;
``usageMetadata.promptTokenCount`` is from the tests of Google's SDK.
"""

from typing import Any

import orjson

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import Usage, parse_count
from gateway.errors import InvalidRequest, ProviderBadResponse
from gateway.formats.chat.openai.chat import parse_answer_object
from gateway.formats.embeddings.openai import build_base64
from gateway.formats.errors.openai import Secrets
from gateway.formats.usage.prompt_tokens import estimate_prompt


def build_embeddings_body(inference: InferenceRequest, model: str) -> dict[str, Any]:
    """Build the body of ``:batchEmbedContents`` for a checked request. Raises ``InvalidRequest`` for token ids."""
    model_name = f"models/{model.removeprefix('models/')}"
    dimensions = inference.body.get("dimensions")
    options = {} if dimensions is None else {"outputDimensionality": dimensions}
    return {
        "requests": [
            {"model": model_name, "content": {"parts": [{"text": text}]}, **options}
            for text in list_texts(inference.body)
        ]
    }


def list_texts(body: dict[str, Any]) -> list[str]:
    """Return the texts of an embeddings request. Raises ``InvalidRequest`` for token ids."""
    value = body.get("input")
    items = value if isinstance(value, list) else [value]
    texts = [item for item in items if isinstance(item, str)]
    if len(texts) < len(items):
        raise InvalidRequest("Gemini embeds only text: 'input' must be a string or an array of strings", param="input")
    return texts


def parse_embeddings_answer(
    raw: bytes, inference: InferenceRequest, model: str, secrets: Secrets = ()
) -> tuple[bytes, Usage]:
    """Return Gemini's answer in OpenAI's format, and the usage.

    Raises ``ProviderError`` unless each text has a vector.
    """
    value = parse_answer_object(raw, secrets)
    embeddings = value.get("embeddings")
    if not isinstance(embeddings, list) or len(embeddings) != len(list_texts(inference.body)):
        raise ProviderBadResponse("The provider's answer does not have one embedding for each input")
    usage = _parse_usage(value.get("usageMetadata")) or Usage(estimate_prompt(inference), source="estimate")
    data = [
        {"object": "embedding", "index": index, "embedding": parse_vector(embedding, inference.encoding)}
        for index, embedding in enumerate(embeddings)
    ]
    usage_field = {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.prompt_tokens}
    return orjson.dumps({"object": "list", "data": data, "model": model, "usage": usage_field}), usage


def parse_vector(item: object, encoding: str) -> list[float] | str:
    """Return the vector of an item as a list, or as base64 if that is ``encoding``. Raises ``ProviderBadResponse``."""
    numbers = item.get("values") if isinstance(item, dict) else None
    if not isinstance(numbers, list) or not numbers or not all(type(number) in {int, float} for number in numbers):
        raise ProviderBadResponse("The provider's answer has an embedding that is not made of numbers")
    return build_base64(numbers) if encoding == "base64" else numbers


def _parse_usage(raw: object) -> Usage | None:
    prompt_tokens = parse_count(raw.get("promptTokenCount")) if isinstance(raw, dict) else None
    return None if prompt_tokens is None else Usage(prompt_tokens, source="upstream")
