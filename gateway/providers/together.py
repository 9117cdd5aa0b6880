"""Together AI. docs.together.ai/docs/inference/openai-compatibility; docs.together.ai/reference: rerank, models.

Its model list is a bare array of objects with an ``id``.
"""

from gateway.providers.base import CHAT, COMPLETIONS, EMBEDDINGS, RERANK, Provider

TOGETHER = Provider(
    slug="together",
    title="Together AI",
    base_url="https://api.together.ai/v1",
    env_key="TOGETHER_API_KEY",
    endpoints=(CHAT, EMBEDDINGS, COMPLETIONS, RERANK),
)
