"""SiliconFlow. docs.siliconflow.com/en/api-reference; the limit of an answer is ``max_tokens``.

Keys of siliconflow.cn (China) are for ``base_url`` ``https://api.siliconflow.cn/v1``. Anthropic's messages
(docs.siliconflow.cn/docs/api/messages-post) take the same Bearer key.
"""

from gateway.providers.base import CHAT, EMBEDDINGS, MESSAGES, RERANK, Endpoint, Provider
from gateway.providers.quirks import limit_as_max_tokens

SILICONFLOW = Provider(
    slug="siliconflow",
    title="SiliconFlow",
    base_url="https://api.siliconflow.com/v1",
    env_key="SILICONFLOW_API_KEY",
    endpoints=(Endpoint("openai_chat", CHAT.path, quirks=(limit_as_max_tokens,)), MESSAGES, EMBEDDINGS, RERANK),
)
