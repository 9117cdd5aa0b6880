"""Google Gemini, in its own language.

ai.google.dev/api/generate-content, .../api/embeddings, .../api/tokens and .../api/models (at most 1000 a page): the key
in an ``x-goog-api-key`` header; the list names models ``models/gemini-…``, the calls take the bare name. Its
compatibility with the convention (ai.google.dev/gemini-api/docs/openai) is another address: provider "custom" with
``base_url`` ``https://generativelanguage.googleapis.com/v1beta/openai``.
"""

from gateway.providers.base import Endpoint, Provider


def _sign(key: str) -> dict[str, str]:
    return {"x-goog-api-key": key} if key else {}


def _read_model_id(listed: str) -> str:
    return listed.removeprefix("models/")


GEMINI = Provider(
    slug="gemini",
    title="Google Gemini",
    base_url="https://generativelanguage.googleapis.com/v1beta",
    env_key="GEMINI_API_KEY",
    endpoints=(
        Endpoint(
            "gemini_generate",
            "/models/{model}:generateContent",
            stream_path="/models/{model}:streamGenerateContent?alt=sse",
        ),
        Endpoint("gemini_embeddings", "/models/{model}:batchEmbedContents"),
        Endpoint("gemini_count_tokens", "/models/{model}:countTokens"),
    ),
    sign=_sign,
    models_path="/models?pageSize=1000",
    list_dialect="gemini",
    read_model_id=_read_model_id,
)
