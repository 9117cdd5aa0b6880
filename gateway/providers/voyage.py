"""Voyage AI: embeddings and rerank only.

docs.voyageai.com/reference/embeddings-api (``output_dimension``; an encoding is base64 or absent) and
docs.voyageai.com/reference/reranker-api (``top_k``; the answer has ``data`` instead of ``results``). Keys of MongoDB
Atlas are for ``base_url`` ``https://ai.mongodb.com/v1``.
"""

from gateway.providers.base import EMBEDDINGS, RERANK, Endpoint, Provider
from gateway.providers.quirks import drop, rename

VOYAGE = Provider(
    slug="voyage",
    title="Voyage AI",
    base_url="https://api.voyageai.com/v1",
    endpoints=(
        Endpoint(
            "openai_embeddings",
            EMBEDDINGS.path,
            quirks=(rename("dimensions", "output_dimension"), drop("encoding_format", "user")),
        ),
        Endpoint("rerank_data", RERANK.path, quirks=(rename("top_n", "top_k"),)),
    ),
    models_path=None,
)
