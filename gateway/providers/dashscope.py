"""Alibaba Cloud Model Studio (DashScope), in its compatibility with the convention.

alibabacloud.com/help/en/model-studio: .../compatibility-of-openai-with-dashscope, .../list-models,
.../embedding-interfaces-compatible-with-openai, .../compatibility-with-openai-responses-api. Keys belong to a region:
Singapore here; ``https://dashscope.aliyuncs.com`` is Beijing, ``https://dashscope-us.aliyuncs.com`` Virginia, and
``https://WORKSPACE.REGION.maas.aliyuncs.com`` one's own, each with ``/compatible-mode/v1`` as ``base_url``. The list
that is described has another address and shape; the one in the convention's shape beside the calls is not described.

At other addresses: rerank (``/compatible-api/v1/reranks``), not served here; Anthropic's messages, by provider
"anthropic" with ``base_url`` ``https://dashscope-intl.aliyuncs.com/apps/anthropic/v1``.
"""

from gateway.providers.base import CHAT, EMBEDDINGS, RESPONSES, Provider

DASHSCOPE = Provider(
    slug="dashscope",
    title="Alibaba Cloud Model Studio",
    base_url="https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
    env_key="DASHSCOPE_API_KEY",
    endpoints=(CHAT, EMBEDDINGS, RESPONSES),
)
