"""Zhipu AI in China, at its prices there. docs.bigmodel.cn/api-reference: chat, embeddings, rerank, images.

The field for the end user is ``user_id``. A model list in OpenAI's shape exists but is not documented. Outside China
it is provider "zai". Anthropic's messages: provider "anthropic" with ``https://open.bigmodel.cn/api/anthropic/v1``.
"""

from gateway.domain.capability import Capability
from gateway.providers.base import CHAT, EMBEDDINGS, IMAGES, RERANK, Endpoint, Provider
from gateway.providers.efforts import thinking_disabled
from gateway.providers.message_order import limit_stops
from gateway.providers.quirks import developer_as_system, drop, hash_user, limit_as_max_tokens, rename

_rename_user = rename("user", "user_id")
_fit_user = hash_user(128, "user_id", minimum=6)
"""docs.bigmodel.cn/api-reference, chat completion: ``user_id`` has 6 to 128 characters."""
_one_stop = limit_stops(1)
"""docs.bigmodel.cn/api-reference and docs.z.ai/api-reference, chat completion: ``stop`` has one word."""

ZHIPU_CHAT = Endpoint(
    "openai_chat",
    CHAT.path,
    quirks=(thinking_disabled, limit_as_max_tokens, _rename_user, _fit_user, developer_as_system, _one_stop),
    one_choice=True,
)

_IMAGE_MODELS = ("cogview-*", "glm-image*")
ZHIPU_IMAGES = Endpoint(
    "openai_images", IMAGES.path, quirks=(drop("n", "response_format"), _rename_user, _fit_user), models=_IMAGE_MODELS
)
ZHIPU_CAPABILITIES = tuple(Capability(name, max_n=1, response_formats=(), streams=False) for name in _IMAGE_MODELS)

ZHIPU = Provider(
    slug="zhipu",
    title="Zhipu AI (China)",
    base_url="https://open.bigmodel.cn/api/paas/v4",
    env_key="ZHIPUAI_API_KEY",
    endpoints=(ZHIPU_CHAT, EMBEDDINGS, RERANK, ZHIPU_IMAGES),
    capabilities=ZHIPU_CAPABILITIES,
)
