"""OpenRouter: the models of many vendors. openrouter.ai/docs/api/api-reference.

Comments in streams, errors inside a chunk: openrouter.ai/docs/api-reference/streaming. It also takes Anthropic's
messages (.../anthropic-messages/create-messages), with the same Bearer key.

Images: models that also chat make them in a chat (``modalities`` and ``image_config`` of its chat completions); pure
image models are at ``/images`` only, in OpenAI's shape (openrouter.ai/docs/guides/overview/multimodal/image-generation,
"Request Parameters"). An edit there has its images in ``input_references``, which OpenAI's format does not have.
Transcriptions take JSON (.../multimodal/stt), which is not supported.

The fields and model variants at the end change what is bought: a search (``:online``, ``plugins``), the fastest or the
cheapest vendor (``:nitro``, ``:floor``, ``provider``), another model (``models``, ``preset``), which is then billed
(.../guides/routing).
"""

import re

import attrs

from gateway.domain.capability import Capability
from gateway.domain.image import MAX_IMAGES
from gateway.formats.images.aspect_ratios import WIDE_SIZES, WIDEST_SIZES
from gateway.providers import base
from gateway.providers.anthropic import hash_metadata_user
from gateway.providers.efforts import ORDINARY_EFFORTS, fit_effort, reasoning_none
from gateway.providers.gemini import IMAGE_MODELS, IMAGES
from gateway.providers.message_order import fit_turns, four_stops
from gateway.providers.priced_fields import COMMON_FIELDS, ROUTING_FIELDS
from gateway.providers.quirks import hash_user, leave_out_billing_line

_hash_user = hash_user(128, "user", "safety_identifier")
"""ujisati/claude-code-provider-proxy, pull request 11: at most 128 characters."""
_EFFORTS = ("none", "minimal", *ORDINARY_EFFORTS, "xhigh")
_CHAT_IMAGE_MODELS = ("openai/gpt-5*-image*",)
_MULTI_IMAGE_MODELS = ("openai/gpt-image-*",)
"""Models that generate more than one image per request. Most others reject such requests."""
_IMAGE_ONLY_MODELS = (
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


def _build_capability(name: str, *, edits: bool, max_n: int = 1) -> Capability:
    return Capability(name, max_n=max_n, response_formats=(), edits=edits, masks=False, streams=False)


def _adapt_capability(entry: Capability) -> Capability:
    """Return the capability of one of Google's models, under its name at OpenRouter.

    The sizes of the smallest tier, which a chat names differently, are left out.
    """
    sizes = WIDE_SIZES if entry.sizes == WIDEST_SIZES else entry.sizes
    return attrs.evolve(entry, name=f"google/{entry.name}", sizes=sizes)


OPENROUTER = base.Provider(
    slug="openrouter",
    title="OpenRouter",
    base_url="https://openrouter.ai/api/v1",
    env_key="OPENROUTER_API_KEY",
    endpoints=(
        attrs.evolve(
            base.CHAT, quirks=(_hash_user, fit_effort((r".*", _EFFORTS)), reasoning_none, fit_turns, four_stops)
        ),
        attrs.evolve(base.MESSAGES, quirks=(hash_metadata_user, leave_out_billing_line)),
        *(
            attrs.evolve(endpoint, quirks=(_hash_user,))
            for endpoint in (base.EMBEDDINGS, base.COMPLETIONS, base.RESPONSES)
        ),
        base.RERANK,
        base.Endpoint(
            "openai_images",
            "/images",
            quirks=(_hash_user,),
            models=(*_CHAT_IMAGE_MODELS, *_MULTI_IMAGE_MODELS, *_IMAGE_ONLY_MODELS),
        ),
        base.Endpoint(
            "chat_images",
            "/chat/completions",
            quirks=(_hash_user,),
            models=(*(f"google/{glob}" for glob in IMAGE_MODELS), *_CHAT_IMAGE_MODELS),
        ),
        base.SPEECH,
    ),
    capabilities=(
        *map(_adapt_capability, IMAGES),
        *(_build_capability(glob, edits=True) for glob in _CHAT_IMAGE_MODELS),
        *(_build_capability(glob, edits=False, max_n=MAX_IMAGES) for glob in _MULTI_IMAGE_MODELS),
        *(_build_capability(glob, edits=False) for glob in _IMAGE_ONLY_MODELS),
    ),
    priced_fields=COMMON_FIELDS | ROUTING_FIELDS | {"speed"},
    priced_variant=re.compile(r":(?:online|nitro|floor|exacto)(?![^:@])|@preset(?=/)"),
    substitutes=True,
    reports_cost=True,
)
