"""Cohere: chat and embeddings in OpenAI's format, and rerank.

docs.cohere.com/docs/compatibility-api (OpenAI's format, with lists of the supported and unsupported parameters),
docs.cohere.com/reference/rerank, docs.cohere.com/reference/list-models (at most 1000 per page, ``models`` with a
``name``, as in Gemini's list). Their paths begin differently, so ``base_url`` is the host alone. A rerank is charged
per search, and reports no tokens: they are estimated.
"""

from gateway.providers.base import CHAT, EMBEDDINGS, RERANK, Endpoint, Provider
from gateway.providers.quirks import drop, drop_empty, limit_as_max_tokens

_COMPATIBLE_PATH = "/compatibility/v1"

COHERE = Provider(
    slug="cohere",
    title="Cohere",
    base_url="https://api.cohere.ai",
    env_key="COHERE_API_KEY",
    endpoints=(
        Endpoint(
            "openai_chat",
            f"{_COMPATIBLE_PATH}{CHAT.path}",
            quirks=(
                limit_as_max_tokens,
                drop("logit_bias", "store", "metadata", "prediction"),
                drop_empty("top_logprobs", "modalities", "audio", "service_tier"),
            ),
            one_choice=True,
        ),
        Endpoint(
            "openai_embeddings", f"{_COMPATIBLE_PATH}{EMBEDDINGS.path}", quirks=(drop("user"), drop_empty("dimensions"))
        ),
        Endpoint("rerank", f"/v2{RERANK.path}"),
    ),
    models_path="/v1/models?page_size=1000",
    list_format="gemini",
)
