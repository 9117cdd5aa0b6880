"""Groq; it has no embeddings.

console.groq.com/docs/openai: requests with ``logprobs``, ``top_logprobs``, ``logit_bias``, ``messages[].name`` or more
than one choice are rejected. Transcripts have no subtitles and do not stream (/docs/speech-to-text). Its compound
systems search and run code, which is billed (/docs/compound).
"""

import attrs

from gateway.providers.base import CHAT, RESPONSES, SPEECH, TRANSCRIPTIONS, TRANSLATIONS, Endpoint, Provider
from gateway.providers.efforts import ORDINARY_EFFORTS, EffortsByModel, fit_effort, fit_reasoning
from gateway.providers.message_order import four_stops
from gateway.providers.priced_fields import COMMON_FIELDS
from gateway.providers.quirks import DROP_EXTENSIONS, drop, drop_empty, drop_from_messages, request_timestamps

_EFFORTS: EffortsByModel = (
    (r".*qwen.*", ("none", "default")),
    (r".*gpt-oss.*", ORDINARY_EFFORTS),
    (r"compound.*", ()),
    (r".*", ()),
)
"""console.groq.com/docs/reasoning: other models reject the field."""

GROQ = Provider(
    slug="groq",
    title="Groq",
    base_url="https://api.groq.com/openai/v1",
    env_key="GROQ_API_KEY",
    endpoints=(
        Endpoint(
            "openai_chat",
            CHAT.path,
            quirks=(
                drop("logit_bias"),
                drop_empty("logprobs", "top_logprobs", "n"),
                drop_from_messages("name"),
                *DROP_EXTENSIONS,
                fit_effort(*_EFFORTS),
                four_stops,
            ),
            one_choice=True,
        ),
        attrs.evolve(RESPONSES, quirks=(fit_reasoning(*_EFFORTS),)),
        Endpoint("openai_transcriptions", TRANSCRIPTIONS.path, quirks=(drop("stream"), request_timestamps)),
        Endpoint("openai_translations", TRANSLATIONS.path, quirks=(request_timestamps,)),
        SPEECH,
    ),
    priced_fields=COMMON_FIELDS | {"search_settings", "compound_custom"},
)
