"""OpenRouter: the models of many vendors. openrouter.ai/docs/api/api-reference.

Comments in streams, errors inside a chunk: openrouter.ai/docs/api-reference/streaming. It speaks Anthropic's messages,
too (.../anthropic-messages/create-messages), with the same Bearer key. Text completions are in its own SDK's README.

Pictures: models that also talk make them in a chat (``modalities`` and ``image_config`` of its chat completions); those
that only paint are found at ``/images`` alone, in the convention's shape
(openrouter.ai/docs/guides/overview/multimodal/image-generation, "Request Parameters"). There an edit has its pictures
in ``input_references``, of which the convention knows nothing.

What is bought is another thing with the fields and the variants of a model that are named at the end: a search
(``:online``, ``plugins``), the fastest or the cheapest vendor (``:nitro``, ``:floor``, ``provider``), another model
(``models``, ``preset``), which is then the one that is billed (.../guides/routing).

Speech is the convention's (.../multimodal/tts); what it transcribes it takes in JSON (.../multimodal/stt), which is not
served here.
"""

import re

import attrs

from gateway.domain.capability import Capability
from gateway.domain.image import MAX_IMAGES
from gateway.formats.aspect_ratios import WIDE_SIZES, WIDEST_SIZES
from gateway.providers.anthropic import hash_metadata_user
from gateway.providers.base import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    MESSAGES,
    RERANK,
    RESPONSES,
    SPEECH,
    Endpoint,
    Provider,
)
from gateway.providers.gemini import IMAGE_MODELS, IMAGES
from gateway.providers.priced_fields import EVERYWHERE, ROUTING
from gateway.providers.quirks import hash_user

_HASH_USER = hash_user(128, "user", "safety_identifier")
"""ujisati/claude-code-provider-proxy, pull request 11: it takes at most 128 characters."""
_TALKING = ("openai/gpt-5*-image*",)
_SEVERAL = ("openai/gpt-image-*",)
"""Those that paint more than one picture a request; most others refuse to."""
_PAINTING = (
    "black-forest-labs/*",
    "bytedance-seed/seedream*",
    "krea/*",
    "meta/muse-image*",
    "microsoft/mai-image*",
    "qwen/qwen-image*",
    "recraft/*",
    "sourceful/*",
    "tencent/hy-image*",
    "x-ai/grok-imagine-image*",
)


def _describe(name: str, *, edits: bool, max_n: int = 1) -> Capability:
    return Capability(name, max_n=max_n, response_formats=(), edits=edits, masks=False, streams=False)


def _serve(entry: Capability) -> Capability:
    """One of Google's models. The smallest tier of resolution goes by another name in a chat, and is left out."""
    sizes = WIDE_SIZES if entry.sizes == WIDEST_SIZES else entry.sizes
    return attrs.evolve(entry, name=f"google/{entry.name}", sizes=sizes)


OPENROUTER = Provider(
    slug="openrouter",
    title="OpenRouter",
    base_url="https://openrouter.ai/api/v1",
    env_key="OPENROUTER_API_KEY",
    endpoints=(
        attrs.evolve(CHAT, quirks=(_HASH_USER,)),
        attrs.evolve(MESSAGES, quirks=(hash_metadata_user,)),
        *(attrs.evolve(one, quirks=(_HASH_USER,)) for one in (EMBEDDINGS, COMPLETIONS, RESPONSES)),
        RERANK,
        Endpoint("openai_images", "/images", quirks=(_HASH_USER,), models=(*_TALKING, *_SEVERAL, *_PAINTING)),
        Endpoint(
            "chat_pictures",
            "/chat/completions",
            quirks=(_HASH_USER,),
            models=(*(f"google/{glob}" for glob in IMAGE_MODELS), *_TALKING),
        ),
        SPEECH,
    ),
    capabilities=(
        *map(_serve, IMAGES),
        *(_describe(glob, edits=True) for glob in _TALKING),
        *(_describe(glob, edits=False, max_n=MAX_IMAGES) for glob in _SEVERAL),
        *(_describe(glob, edits=False) for glob in _PAINTING),
    ),
    priced_fields=EVERYWHERE | ROUTING | {"speed"},
    priced_variant=re.compile(r":(?:online|nitro|floor|exacto)(?![^:@])|@preset(?=/)"),
    substitutes=True,
)
