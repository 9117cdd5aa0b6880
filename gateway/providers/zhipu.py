"""Zhipu AI in China, at its prices there. docs.bigmodel.cn/api-reference: chat, embeddings, rerank.

Roles are system, user, assistant and tool, the limit is ``max_tokens``, and a user is a ``user_id``. A model list in
the convention's shape is answered but not described. Outside China it is provider "zai". Anthropic's messages are at
another address: provider "anthropic" with ``base_url`` ``https://open.bigmodel.cn/api/anthropic/v1``.
"""

from gateway.providers.base import CHAT, EMBEDDINGS, RERANK, Endpoint, Provider
from gateway.providers.quirks import developer_as_system, limit_as_max_tokens, rename

ZHIPU_CHAT = Endpoint(
    "openai_chat",
    CHAT.path,
    quirks=(limit_as_max_tokens, rename("user", "user_id"), developer_as_system),
)

ZHIPU = Provider(
    slug="zhipu",
    title="Zhipu AI (China)",
    base_url="https://open.bigmodel.cn/api/paas/v4",
    env_key="ZHIPUAI_API_KEY",
    endpoints=(ZHIPU_CHAT, EMBEDDINGS, RERANK),
)
