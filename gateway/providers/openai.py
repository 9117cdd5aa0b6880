"""OpenAI, in its own API formats: chat, responses, embeddings, images, videos, sound and realtime sessions.

developers.openai.com/api/reference: ``max_tokens`` is deprecated in favor of ``max_completion_tokens`` and rejected by
reasoning models. Their other rejections: developers.openai.com/api/docs/guides/latest-model ("parameter compatibility":
``temperature`` and ``top_p`` only with the reasoning effort none, and never with the first GPT-5) and
learn.microsoft.com/azure/foundry/openai/how-to/reasoning ("not supported": also the penalties and ``logit_bias``).

Images (.../resources/images, .../docs/guides/image-generation): the GPT Image models always answer with base64 and
reject ``response_format``; from ``gpt-image-2`` on they take any size in steps of 16. Videos: OpenAI itself shuts them
down on 24 September 2026; other servers of the format continue. Voices: .../docs/guides/text-to-speech.
"""

import re

import attrs

from gateway.domain.capability import Capability
from gateway.domain.image import MAX_IMAGES, MAX_INPUT_IMAGES
from gateway.providers import base
from gateway.providers.efforts import OPENAI_EFFORTS, fit_effort, fit_reasoning
from gateway.providers.message_order import four_stops
from gateway.providers.quirks import DROP_EXTENSIONS, hash_user, limit_as_max_completion_tokens

_ALWAYS_THINKING_MODELS = re.compile(r"(o\d|gpt-5)(-(mini|nano|pro|codex|deep-research))*(-\d{4}-\d\d-\d\d)?")
_THINKING_MODELS = re.compile(r"(o\d|gpt-([5-9]|[12]\d)(\.\d+)?)(-(?!chat|search|image|audio|realtime).*)?")
_SAMPLING_FIELDS = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias")


def may_think(model: str) -> bool:
    """Return whether ``model`` is a reasoning model, judging by its name."""
    return _THINKING_MODELS.fullmatch(model) is not None


def drop_sampling(body: base.Body, model: str) -> None:
    """Drop the sampling parameters if ``model`` reasons with the request's effort: it rejects them then."""
    effort = body.get("reasoning_effort")
    thinks = effort is not None and effort != "none" and may_think(model)
    if thinks or _ALWAYS_THINKING_MODELS.fullmatch(model):
        for field in _SAMPLING_FIELDS:
            body.pop(field, None)


hash_long_user = hash_user(64, "user", "safety_identifier")
"""OpenAI's OpenAPI document: ``safety_identifier`` has a ``maxLength`` of 64. The older ``user`` has the same limit
(openai/openai-python issues: ``string_above_max_length``).
"""

FIT_CHAT = (fit_effort(*OPENAI_EFFORTS), drop_sampling, hash_long_user, four_stops)
FIT_RESPONSES = (fit_reasoning(*OPENAI_EFFORTS), hash_long_user)

_IMAGE_MODELS = ("gpt-image-*", "chatgpt-image-*")
_GPT_IMAGE_CAPABILITY = Capability(
    _IMAGE_MODELS[0],
    max_n=MAX_IMAGES,
    response_formats=(),
    edits=True,
    masks=True,
    max_sources=MAX_INPUT_IMAGES,
    streams=True,
)
GPT_IMAGES = (
    _GPT_IMAGE_CAPABILITY,
    attrs.evolve(_GPT_IMAGE_CAPABILITY, name=_IMAGE_MODELS[1]),
    attrs.evolve(_GPT_IMAGE_CAPABILITY, name="gpt-image-1*", sizes=("1024x1024", "1536x1024", "1024x1536")),
)
"""Capabilities of OpenAI's image models."""

_VIDEO_MODELS = ("sora-*",)
_SORA_CAPABILITY = Capability(
    "sora-2*", sizes=("720x1280", "1280x720"), seconds=(4, 8, 12), references=True, remixes=True
)
SORA_CAPABILITIES = (
    _SORA_CAPABILITY,
    attrs.evolve(_SORA_CAPABILITY, name="sora-2-pro*", sizes=("720x1280", "1280x720", "1024x1792", "1792x1024")),
)
"""Capabilities of OpenAI's video models."""

_OLDER_VOICES = ("alloy", "ash", "coral", "echo", "fable", "nova", "onyx", "sage", "shimmer")
SPEECH_CAPABILITIES = (
    Capability("tts-1*", voices=_OLDER_VOICES),
    Capability("gpt-*-tts*", voices=(*_OLDER_VOICES, "ballad", "cedar", "marin", "verse")),
)
"""Capabilities of OpenAI's speech models."""

OPENAI = base.Provider(
    slug="openai",
    title="OpenAI",
    base_url="https://api.openai.com/v1",
    env_key="OPENAI_API_KEY",
    env_base_url="OPENAI_BASE_URL",
    endpoints=(
        base.Endpoint(
            "openai_chat",
            base.CHAT.path,
            quirks=(limit_as_max_completion_tokens, *FIT_CHAT, *DROP_EXTENSIONS),
            custom_tools=True,
        ),
        attrs.evolve(base.EMBEDDINGS, quirks=(hash_long_user,)),
        attrs.evolve(base.COMPLETIONS, quirks=(hash_long_user,)),
        base.MODERATIONS,
        attrs.evolve(base.RESPONSES, quirks=FIT_RESPONSES),
        base.COMPACT,
        attrs.evolve(base.IMAGES, quirks=(hash_long_user,), models=_IMAGE_MODELS),
        attrs.evolve(base.EDITS, quirks=(hash_long_user,), models=_IMAGE_MODELS),
        base.TRANSCRIPTIONS,
        base.TRANSLATIONS,
        base.SPEECH,
        attrs.evolve(base.VIDEOS, models=_VIDEO_MODELS),
        attrs.evolve(base.REALTIME, models=("*realtime*",)),
    ),
    capabilities=(*GPT_IMAGES, *SORA_CAPABILITIES, *SPEECH_CAPABILITIES),
)
