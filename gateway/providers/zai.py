"""Z.ai: Zhipu AI outside China, at prices in dollars; it has no embeddings there.

docs.z.ai/api-reference/llm/chat-completion; for the coding plan the ``base_url`` is
``https://api.z.ai/api/coding/paas/v4``. Anthropic's messages: provider "anthropic" with
``https://api.z.ai/api/anthropic/v1``.
"""

from gateway.providers.base import Provider
from gateway.providers.zhipu import ZHIPU_CAPABILITIES, ZHIPU_CHAT, ZHIPU_IMAGES

ZAI = Provider(
    slug="zai",
    title="Z.ai",
    base_url="https://api.z.ai/api/paas/v4",
    env_key="ZAI_API_KEY",
    endpoints=(ZHIPU_CHAT, ZHIPU_IMAGES),
    capabilities=ZHIPU_CAPABILITIES,
)
