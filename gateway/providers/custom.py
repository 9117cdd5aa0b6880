"""Any server of the convention: the channel says its ``base_url``. What it has not it answers with its own error.

The convention's reference: developers.openai.com/api/reference; it knows no rerank, which is Jina's and Cohere's, as in
docs.vllm.ai/en/stable/serving/online_serving. Whatever any vendor lets a request buy may be bought there: it may be a
gateway in front of several (``fallbacks``: docs.litellm.ai/docs/proxy/reliability).
"""

from gateway.providers.base import (
    CHAT,
    COMPLETIONS,
    EDITS,
    EMBEDDINGS,
    IMAGES,
    MODERATIONS,
    RERANK,
    RESPONSES,
    SPEECH,
    TRANSCRIPTIONS,
    TRANSLATIONS,
    VIDEOS,
    Provider,
)
from gateway.providers.priced_fields import EVERYWHERE, ROUTING

CUSTOM = Provider(
    slug="custom",
    title="Any OpenAI-compatible server",
    endpoints=(
        CHAT,
        EMBEDDINGS,
        COMPLETIONS,
        MODERATIONS,
        RESPONSES,
        RERANK,
        IMAGES,
        EDITS,
        TRANSCRIPTIONS,
        TRANSLATIONS,
        SPEECH,
        VIDEOS,
    ),
    priced_fields=EVERYWHERE | ROUTING | {"fallbacks", "search_parameters", "enable_search", "speed"},
)
