"""OpenAI, whose convention the gateway speaks.

developers.openai.com/api/reference: ``max_tokens`` is deprecated in favor of ``max_completion_tokens`` and refused by
reasoning models. What else those refuse: developers.openai.com/api/docs/guides/latest-model ("parameter compatibility":
``temperature`` and ``top_p`` only where the reasoning effort is none, and with the first GPT-5 never) and
learn.microsoft.com/azure/foundry/openai/how-to/reasoning ("not supported": the penalties and ``logit_bias``, too).

Pictures (developers.openai.com/api/reference/resources/images, .../docs/guides/image-generation): the GPT Image models
always answer with base64 and refuse ``response_format``; those from ``gpt-image-2`` on take any size in steps of 16.

Videos (the convention's OpenAPI document, ``VideoModel``, ``VideoSeconds``, ``VideoSize``): it says that OpenAI itself
shuts them down on 24 September 2026; others that speak like it go on.
"""

import re

import attrs

from gateway.domain.capability import Capability
from gateway.domain.image import MAX_IMAGES, MAX_INPUT_IMAGES
from gateway.providers.base import (
    CHAT,
    COMPLETIONS,
    EDITS,
    EMBEDDINGS,
    IMAGES,
    MODERATIONS,
    RESPONSES,
    SPEECH,
    TRANSCRIPTIONS,
    TRANSLATIONS,
    VIDEOS,
    Body,
    Endpoint,
    Provider,
)
from gateway.providers.quirks import KEEP_TO_THE_CONVENTION, hash_user, limit_as_max_completion_tokens

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


hash_long_user = hash_user(64, "user", "safety_identifier")
"""The convention's OpenAPI document: ``safety_identifier`` has a ``maxLength`` of 64. So has ``user``, whose value it
takes over (openai/openai-python issues: ``string_above_max_length``)."""

_PAINTS = ("gpt-image-*", "chatgpt-image-*")
_ABLE = Capability(
    _PAINTS[0],
    max_n=MAX_IMAGES,
    response_formats=(),
    edits=True,
    masks=True,
    max_sources=MAX_INPUT_IMAGES,
    streams=True,
)
GPT_IMAGES = (
    _ABLE,
    attrs.evolve(_ABLE, name=_PAINTS[1]),
    attrs.evolve(_ABLE, name="gpt-image-1*", sizes=("1024x1024", "1536x1024", "1024x1536")),
)
"""What its picture models can be asked for."""

_FILMS = ("sora-*",)
_SORA = Capability(
    "sora-2*",
    sizes=("720x1280", "1280x720"),
    seconds=(4, 8, 12),
    references=True,
    remixes=True,
)
SORA = (
    _SORA,
    attrs.evolve(_SORA, name="sora-2-pro*", sizes=("720x1280", "1280x720", "1024x1792", "1792x1024")),
)
"""What its video models can be asked for."""

OPENAI = Provider(
    slug="openai",
    title="OpenAI",
    base_url="https://api.openai.com/v1",
    env_key="OPENAI_API_KEY",
    endpoints=(
        Endpoint(
            "openai_chat",
            CHAT.path,
            quirks=(limit_as_max_completion_tokens, drop_sampling, hash_long_user, *KEEP_TO_THE_CONVENTION),
        ),
        attrs.evolve(EMBEDDINGS, quirks=(hash_long_user,)),
        attrs.evolve(COMPLETIONS, quirks=(hash_long_user,)),
        MODERATIONS,
        attrs.evolve(RESPONSES, quirks=(hash_long_user,)),
        attrs.evolve(IMAGES, quirks=(hash_long_user,), models=_PAINTS),
        attrs.evolve(EDITS, quirks=(hash_long_user,), models=_PAINTS),
        TRANSCRIPTIONS,
        TRANSLATIONS,
        SPEECH,
        attrs.evolve(VIDEOS, models=_FILMS),
    ),
    capabilities=(*GPT_IMAGES, *SORA),
)
