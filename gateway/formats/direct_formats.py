"""Table of the direct formats: requests and answers are converted without the common chat model."""

from collections.abc import Mapping

from gateway.deferred import defer
from gateway.domain.api_format import Wire
from gateway.domain.operation import Operation
from gateway.formats.passthrough_format import PassthroughFormat

DIRECT_FORMATS: Mapping[Wire, PassthroughFormat] = defer(
    {
        "openai_chat": "formats.openai.direct:CHAT",
        "openai_completions": "formats.openai.direct:COMPLETIONS",
        "openai_embeddings": "formats.openai.direct:EMBEDDINGS",
        "openai_moderations": "formats.openai.direct:MODERATIONS",
        "openai_responses": "formats.openai.direct_responses:RESPONSES",
        "openai_compact": "formats.openai.direct_responses:COMPACT",
        "openai_images": "formats.openai.direct_images:IMAGES",
        "openai_edits": "formats.openai.direct_images:EDITS",
        "openai_transcriptions": "formats.openai.direct_audio:TRANSCRIPTIONS",
        "openai_translations": "formats.openai.direct_audio:TRANSLATIONS",
        "openai_speech": "formats.openai.direct_audio:SPEECH",
        "deepgram_speech": "formats.vendors.deepgram:SPEECH",
        "deepgram_transcriptions": "formats.vendors.deepgram:TRANSCRIPTIONS",
        "elevenlabs_speech": "formats.vendors.elevenlabs:SPEECH",
        "elevenlabs_transcriptions": "formats.vendors.elevenlabs:TRANSCRIPTIONS",
        "rerank": "formats.rerank:RERANK",
        "rerank_data": "formats.rerank:RERANK_DATA",
        "anthropic_messages": "formats.anthropic.direct:MESSAGES",
        "anthropic_count_tokens": "formats.anthropic.direct:COUNT_TOKENS",
        "gemini_generate": "formats.gemini.direct:GENERATE",
        "gemini_count_tokens": "formats.gemini.direct:COUNT_TOKENS",
        "gemini_embeddings": "formats.gemini.direct:EMBEDDINGS",
        "vertex_embeddings": "formats.gemini.direct:VERTEX_EMBEDDINGS",
    }
)
DIRECT_WIRES = frozenset(DIRECT_FORMATS)
"""The formats in the table. For every other format an image backend gets the images."""
GOOGLE_FORMATS: Mapping[Operation, Mapping[Wire, PassthroughFormat]] = {
    "count_content_tokens": defer(
        {
            "gemini_count_tokens": "formats.gemini.direct:CONTENT_COUNT",
            "anthropic_count_tokens": "formats.gemini.direct:ANTHROPIC_CONTENT_COUNT",
        }
    ),
    "embed_contents": defer(
        {
            "gemini_embeddings": "formats.gemini.direct:CONTENTS",
            "openai_embeddings": "formats.gemini.direct:OPENAI_CONTENTS",
        }
    ),
}
"""Operations of Google's API, with the provider formats that they are converted to directly."""
