"""Another instance of this gateway, at the channel's ``base_url``: ``http://HOST:PORT/v1``.

It receives every request in the client's own format, to avoid double translation: OpenAI's
(developers.openai.com/api/reference), Anthropic's (platform.claude.com/docs/en/api/messages) or Google's
(ai.google.dev/api/generate-content). Its keys are accepted as Bearer tokens for all formats. Every vendor's priced
fields count here.
"""

import attrs

from gateway.providers.base import COUNT_TOKENS, MESSAGES, Endpoint, Provider
from gateway.providers.custom import ENDPOINTS, PRICED_FIELDS

_GOOGLE_PATH = "/v1beta/models/{model}"

MODEL_GATEWAY = Provider(
    slug="model_gateway",
    title="Another Model Gateway",
    endpoints=(
        *(attrs.evolve(endpoint, custom_tools=True) for endpoint in ENDPOINTS),
        MESSAGES,
        COUNT_TOKENS,
        Endpoint(
            "gemini_generate",
            f"{_GOOGLE_PATH}:generateContent",
            stream_path=f"{_GOOGLE_PATH}:streamGenerateContent?alt=sse",
            rooted=True,
        ),
        Endpoint("gemini_count_tokens", f"{_GOOGLE_PATH}:countTokens", rooted=True),
        Endpoint("gemini_embeddings", f"{_GOOGLE_PATH}:batchEmbedContents", rooted=True),
    ),
    priced_fields=PRICED_FIELDS,
    reports_cost=True,
)
