"""Any server with the OpenAI API format, at the channel's ``base_url``. The server itself reports missing endpoints.

Rerank has Jina's and Cohere's format, as in docs.vllm.ai/en/stable/serving/online_serving. Every vendor's priced fields
count here: the server may be a gateway to several vendors (``fallbacks``: docs.litellm.ai/docs/proxy/reliability).
"""

from gateway.providers import base
from gateway.providers.priced_fields import COMMON_FIELDS, ROUTING_FIELDS

ENDPOINTS = (
    base.CHAT,
    base.EMBEDDINGS,
    base.COMPLETIONS,
    base.MODERATIONS,
    base.RESPONSES,
    base.RERANK,
    base.IMAGES,
    base.EDITS,
    base.TRANSCRIPTIONS,
    base.TRANSLATIONS,
    base.SPEECH,
    base.VIDEOS,
    base.REALTIME,
)
PRICED_FIELDS = COMMON_FIELDS | ROUTING_FIELDS | {"fallbacks", "search_parameters", "enable_search", "speed"}

CUSTOM = base.Provider(
    slug="custom", title="Any OpenAI-compatible server", endpoints=ENDPOINTS, priced_fields=PRICED_FIELDS
)
