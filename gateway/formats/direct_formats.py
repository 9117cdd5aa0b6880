"""Tables of the direct formats: requests and answers are converted without the common chat model."""

from collections.abc import Mapping

from gateway.deferred import defer
from gateway.domain.api_format import Wire
from gateway.domain.operation import Operation
from gateway.formats.passthrough_format import PassthroughFormat

DIRECT_FORMATS: Mapping[Wire, PassthroughFormat] = defer(
    {
        "openai_chat": "formats.chat.openai.direct:CHAT",
        "openai_completions": "formats.chat.openai.direct:COMPLETIONS",
        "openai_embeddings": "formats.chat.openai.direct:EMBEDDINGS",
        "openai_moderations": "formats.chat.openai.direct:MODERATIONS",
        "openai_responses": "formats.chat.responses.direct:RESPONSES",
        "openai_compact": "formats.chat.responses.direct:COMPACT",
        "openai_images": "formats.images.direct:IMAGES",
        "openai_edits": "formats.images.direct:EDITS",
        "openai_transcriptions": "formats.audio.direct:TRANSCRIPTIONS",
        "openai_translations": "formats.audio.direct:TRANSLATIONS",
        "openai_speech": "formats.audio.direct:SPEECH",
        "deepgram_speech": "formats.audio.deepgram:SPEECH",
        "deepgram_transcriptions": "formats.audio.deepgram:TRANSCRIPTIONS",
        "elevenlabs_speech": "formats.audio.elevenlabs:SPEECH",
        "elevenlabs_transcriptions": "formats.audio.elevenlabs:TRANSCRIPTIONS",
        "rerank": "formats.rerank:RERANK",
        "rerank_data": "formats.rerank:RERANK_DATA",
        "anthropic_messages": "formats.chat.anthropic.direct:MESSAGES",
        "anthropic_count_tokens": "formats.chat.anthropic.direct:COUNT_TOKENS",
        "gemini_generate": "formats.chat.gemini.direct:GENERATE",
        "gemini_count_tokens": "formats.chat.gemini.direct:COUNT_TOKENS",
        "gemini_embeddings": "formats.chat.gemini.direct:EMBEDDINGS",
        "vertex_embeddings": "formats.chat.gemini.direct:VERTEX_EMBEDDINGS",
    }
)
DIRECT_WIRES = frozenset(DIRECT_FORMATS)
"""The provider formats of ``DIRECT_FORMATS``."""
GOOGLE_FORMATS: Mapping[Operation, Mapping[Wire, PassthroughFormat]] = {
    "count_content_tokens": defer(
        {
            "gemini_count_tokens": "formats.chat.gemini.direct:CONTENT_COUNT",
            "anthropic_count_tokens": "formats.chat.gemini.direct:ANTHROPIC_CONTENT_COUNT",
        }
    ),
    "embed_contents": defer(
        {
            "gemini_embeddings": "formats.chat.gemini.direct:CONTENTS",
            "openai_embeddings": "formats.chat.gemini.direct:OPENAI_CONTENTS",
        }
    ),
}
"""Operations of Google's API, with the provider formats that they are converted to directly."""
