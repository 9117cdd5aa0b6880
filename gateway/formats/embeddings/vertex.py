"""Convert embeddings of the OpenAI API format for Vertex AI's text embedding models.

Source: docs.cloud.google.com/vertex-ai/generative-ai/docs/model-reference/text-embeddings-api (``:predict`` with
instances; gemini-embedding-001 accepts one text per request).
"""

from typing import Any

import orjson

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import Usage, parse_count
from gateway.errors import InvalidRequest, ProviderBadResponse
from gateway.formats.chat.openai.chat import parse_answer_object
from gateway.formats.embeddings.gemini import list_texts, parse_vector
from gateway.formats.errors.openai import Secrets
from gateway.formats.usage.prompt_tokens import estimate_prompt
from gateway.formats.wire.json_values import as_object

MAX_TEXTS = 250


def build_predict_body(inference: InferenceRequest, model: str) -> dict[str, Any]:
    """Build the body of ``:predict``. Raises ``InvalidRequest`` for token ids and for too many texts."""
    texts = list_texts(inference.body)
    max_texts = 1 if model.startswith("gemini-") else MAX_TEXTS
    if len(texts) > max_texts:
        raise InvalidRequest(f"'input' has at most {max_texts} texts for this model at this provider", param="input")
    dimensions = inference.body.get("dimensions")
    parameters = {} if dimensions is None else {"parameters": {"outputDimensionality": dimensions}}
    return {"instances": [{"content": text} for text in texts], **parameters}


def parse_predict_answer(
    raw: bytes, inference: InferenceRequest, model: str, secrets: Secrets = ()
) -> tuple[bytes, Usage]:
    """Convert an answer of ``:predict`` into OpenAI's format, with its usage. Raises ``ProviderError``."""
    predictions = parse_answer_object(raw, secrets).get("predictions")
    if not isinstance(predictions, list):
        raise ProviderBadResponse("The provider's answer has no embeddings")
    items = [as_object(as_object(prediction).get("embeddings")) for prediction in predictions]
    counts = [parse_count(as_object(item.get("statistics")).get("token_count")) for item in items]
    known_counts = [count for count in counts if count is not None]
    prompt_tokens = parse_count(sum(known_counts)) if known_counts and len(known_counts) == len(items) else None
    if len(items) != len(list_texts(inference.body)):
        raise ProviderBadResponse("The provider's answer does not have one embedding for each input")
    usage = (
        Usage(estimate_prompt(inference), source="estimate")
        if prompt_tokens is None
        else Usage(prompt_tokens, source="upstream")
    )
    data = [
        {"object": "embedding", "index": index, "embedding": parse_vector(item, inference.encoding)}
        for index, item in enumerate(items)
    ]
    usage_field = {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.prompt_tokens}
    return orjson.dumps({"object": "list", "data": data, "model": model, "usage": usage_field}), usage
