"""Ollama on the same machine.

docs.ollama.com/api/openai-compatibility: Ollama ignores a key and has no ``n``; the limit of an answer is
``max_tokens``; images are accepted only as data; image generation is experimental. Anthropic's messages:
docs.ollama.com/api/anthropic-compatibility.
"""

import attrs

from gateway.domain.capability import Capability
from gateway.providers.base import CHAT, COMPLETIONS, EMBEDDINGS, IMAGES, MESSAGES, RESPONSES, Endpoint, Provider
from gateway.providers.efforts import EFFORTS_WITH_NONE, fit_effort
from gateway.providers.quirks import drop, limit_as_max_tokens

OLLAMA = Provider(
    slug="ollama",
    title="Ollama",
    base_url="http://127.0.0.1:11434/v1",
    local_port=11434,
    endpoints=(
        Endpoint(
            "openai_chat",
            CHAT.path,
            quirks=(limit_as_max_tokens, fit_effort((r".*", EFFORTS_WITH_NONE))),
            one_choice=True,
            needs_inline_media=True,
        ),
        attrs.evolve(MESSAGES, needs_inline_media=True),
        EMBEDDINGS,
        COMPLETIONS,
        attrs.evolve(RESPONSES, needs_inline_media=True),
        Endpoint("openai_images", IMAGES.path, quirks=(drop("n", "quality", "style", "user"),)),
    ),
    capabilities=(Capability("*", max_n=1, response_formats=("b64_json",), streams=False),),
    priced_fields=frozenset(),
)
