"""Moonshot AI (Kimi); it has no embeddings.

platform.kimi.ai/docs/api/overview; /docs/api/models-overview: with the Kimi K2.5 family temperature, ``top_p`` and
penalties "cannot be modified"; /docs/guide/use-kimi-vision-model: images as data or uploaded files. Keys of
platform.kimi.com (China) are for ``https://api.moonshot.cn/v1``. Anthropic's messages: provider "anthropic" with
``https://api.moonshot.ai/anthropic/v1``.
"""

import re

from gateway.providers.base import CHAT, RESPONSES, Body, Endpoint, Provider
from gateway.providers.efforts import disable_when_forced, thinking_disabled
from gateway.providers.message_order import limit_stops, think_before_calls
from gateway.providers.quirks import developer_as_system, drop

_THINKING_MODELS = re.compile(r"kimi-(k2\.[5-9]|k2-thinking|k[3-9]|latest|thinking).*")
_FIXED_SAMPLING = re.compile(r"kimi-k2\.\d.*")

_disable_when_forced = disable_when_forced("thinking", {"type": "disabled"}, r"kimi-k(2\.[5-9]|[3-9]).*")
"""platform.kimi.ai/docs/guide/use-kimi-k2-thinking-model."""
_five_stops = limit_stops(5)
"""platform.kimi.ai/docs/api/chat, ``stop``."""
_drop_sampling = drop("temperature", "top_p", "presence_penalty", "frequency_penalty")


def _drop_fixed_sampling(body: Body, model: str) -> None:
    if _FIXED_SAMPLING.fullmatch(model):
        _drop_sampling(body, model)


def _think_before_calls(body: Body, model: str) -> None:
    if _THINKING_MODELS.fullmatch(model):
        think_before_calls(body, model)


MOONSHOT = Provider(
    slug="moonshot",
    title="Moonshot AI",
    base_url="https://api.moonshot.ai/v1",
    env_key="MOONSHOT_API_KEY",
    endpoints=(
        Endpoint(
            "openai_chat",
            CHAT.path,
            quirks=(
                thinking_disabled,
                _disable_when_forced,
                _drop_fixed_sampling,
                developer_as_system,
                _think_before_calls,
                _five_stops,
            ),
            needs_inline_media=True,
        ),
        RESPONSES,
    ),
)
