"""OpenAI, whose convention the gateway speaks.

developers.openai.com/api/reference: ``max_tokens`` is deprecated in favor of ``max_completion_tokens`` and refused by
reasoning models. What else those refuse: developers.openai.com/api/docs/guides/latest-model ("parameter compatibility":
``temperature`` and ``top_p`` only where the reasoning effort is none, and with the first GPT-5 never) and
learn.microsoft.com/azure/foundry/openai/how-to/reasoning ("not supported": the penalties and ``logit_bias``, too).
"""

import re

from gateway.providers.base import CHAT, COMPLETIONS, EMBEDDINGS, MODERATIONS, RESPONSES, Body, Endpoint, Provider
from gateway.providers.quirks import KEEP_TO_THE_CONVENTION, limit_as_max_completion_tokens

_ALWAYS_THINKS = re.compile(r"(o\d|gpt-5)(-(mini|nano|pro|codex|deep-research))*(-\d{4}-\d\d-\d\d)?")
_MAY_THINK = re.compile(r"(o\d|gpt-([5-9]|[12]\d)(\.\d+)?)(-(?!chat|search|image|audio|realtime).*)?")
_SAMPLING = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias")


def may_think(model: str) -> bool:
    """Whether ``model`` is the name of a reasoning model."""
    return _MAY_THINK.fullmatch(model) is not None


def drop_sampling(body: Body, model: str) -> None:
    """Reasoning models take no sampling parameters while they reason."""
    effort = body.get("reasoning_effort")
    thinks = effort is not None and effort != "none" and may_think(model)
    if thinks or _ALWAYS_THINKS.fullmatch(model):
        for field in _SAMPLING:
            body.pop(field, None)


OPENAI = Provider(
    slug="openai",
    title="OpenAI",
    base_url="https://api.openai.com/v1",
    env_key="OPENAI_API_KEY",
    endpoints=(
        Endpoint(
            "openai_chat",
            CHAT.path,
            quirks=(limit_as_max_completion_tokens, drop_sampling, *KEEP_TO_THE_CONVENTION),
        ),
        EMBEDDINGS,
        COMPLETIONS,
        MODERATIONS,
        RESPONSES,
    ),
)
