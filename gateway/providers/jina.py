"""Jina AI: embeddings and rerank only.

api.jina.ai/openapi.json and jina.ai/embeddings: the encoding is an ``embedding_type``, by default numbers, which the
gateway converts to the requested encoding. The model list has OpenAI's shape, with ``jina-ai/`` before each name.
"""

from gateway.providers.base import EMBEDDINGS, RERANK, Endpoint, Provider
from gateway.providers.quirks import drop


def _parse_model_id(name: str) -> str:
    return name.removeprefix("jina-ai/")


JINA = Provider(
    slug="jina",
    title="Jina AI",
    base_url="https://api.jina.ai/v1",
    env_key="JINA_API_KEY",
    endpoints=(Endpoint("openai_embeddings", EMBEDDINGS.path, quirks=(drop("encoding_format", "user"),)), RERANK),
    parse_model_id=_parse_model_id,
)
