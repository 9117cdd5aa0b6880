"""Fireworks AI. docs.fireworks.ai/api-reference, /tools-sdks/openai-compatibility, /tools-sdks/anthropic-compatibility.

Every stream reports usage. The documented model list is an account's, paginated, at another address; the one in
OpenAI's format is not documented, but widely used. Its rerank is not supported.
"""

import attrs

from gateway.providers.base import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, RESPONSES, Provider
from gateway.providers.efforts import EFFORTS_WITH_NONE, fit_effort
from gateway.providers.message_order import four_stops
from gateway.providers.quirks import DROP_UNKNOWN_FIELDS

FIREWORKS = Provider(
    slug="fireworks",
    title="Fireworks AI",
    base_url="https://api.fireworks.ai/inference/v1",
    env_key="FIREWORKS_API_KEY",
    endpoints=(
        attrs.evolve(CHAT, quirks=(fit_effort((r".*", EFFORTS_WITH_NONE)), four_stops, *DROP_UNKNOWN_FIELDS)),
        MESSAGES,
        EMBEDDINGS,
        COMPLETIONS,
        RESPONSES,
    ),
)
