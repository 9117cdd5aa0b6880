"""Perplexity: its own model, which searches the web, and the models of other vendors.

docs.perplexity.ai/api-reference/gateway-models-get and docs.perplexity.ai/openapi-gateway-chat.json (chat and model
list below ``/router/v1``); its Agent API takes OpenAI's Responses, below the server's root
(docs.perplexity.ai/docs/grounded-llm/openai-compatibility). A ``preset`` selects a model and its tools, ``models``
another model that may answer.
"""

import attrs

from gateway.providers.base import CHAT, Endpoint, Provider
from gateway.providers.priced_fields import COMMON_FIELDS
from gateway.providers.quirks import DROP_UNKNOWN_FIELDS

PERPLEXITY = Provider(
    slug="perplexity",
    title="Perplexity",
    base_url="https://api.perplexity.ai/router/v1",
    env_key="PERPLEXITY_API_KEY",
    endpoints=(
        attrs.evolve(CHAT, quirks=(*DROP_UNKNOWN_FIELDS,)),
        Endpoint("openai_responses", "/v1/responses", rooted=True),
    ),
    priced_fields=COMMON_FIELDS | {"preset", "models"},
)
