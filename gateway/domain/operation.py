"""The operations that clients ask for, in one table: what is true of each of them."""

from collections.abc import Mapping
from typing import Literal

from gateway.domain.api_format import Wire
from gateway.domain.frozen import frozen

Operation = Literal[
    "chat",
    "messages",
    "count_tokens",
    "generate_content",
    "count_content_tokens",
    "embed_contents",
    "embeddings",
    "completions",
    "moderations",
    "rerank",
    "responses",
    "images",
    "image_edits",
    "transcriptions",
    "translations",
    "speech",
    "videos",
    "video_remixes",
    "realtime",
]
"""The requested operation and the client's API format: ``chat`` is OpenAI's, ``messages`` Anthropic's,
``generate_content`` Gemini's, which has its own counts of tokens and embeddings, too."""


@frozen
class OperationFacts:
    """What is true of every request for an operation.

    Attributes:
        path: the endpoint, for error messages that name the right one.
        formats: the API formats in which a provider may be asked. The first is the client's own, in which bytes pass
            unchanged.
        api: whose API it belongs to.
        media: what it makes and bills besides text; such a request is never sent to a provider twice.
        known_unit: what its tokens are of, or what is billed in their place; empty: the provider says so, or not.
        counts_only: it only counts the tokens of a prompt: nothing is bought.
        edits: it changes an image that the client sends.
        replayable: a request with an idempotency key is answered from the store if it comes again.
    """

    path: str
    formats: tuple[Wire, ...]
    api: Literal["openai", "anthropic", "google"] = "openai"
    media: Literal["", "image", "speech", "video"] = ""
    known_unit: Literal["", "image", "search", "sound"] = ""
    counts_only: bool = False
    edits: bool = False
    replayable: bool = False


_IMAGES: tuple[Wire, ...] = (
    "gemini_images", "dashscope_images", "replicate_images", "fal_images", "stability_images", "bfl_images",
    "luma_images", "chat_images",
)  # fmt: skip
_VIDEOS: tuple[Wire, ...] = (
    "openai_videos", "gemini_videos", "vertex_videos", "kling_videos", "minimax_videos", "runway_videos",
    "dashscope_videos", "volcengine_videos", "luma_videos", "fal_videos",
)  # fmt: skip

OPERATIONS: Mapping[Operation, OperationFacts] = {
    "chat": OperationFacts(
        "/v1/chat/completions",
        ("openai_chat", "anthropic_messages", "gemini_generate", "bedrock_converse"),
        replayable=True,
    ),
    "messages": OperationFacts(
        "/v1/messages",
        ("anthropic_messages", "openai_chat", "gemini_generate", "bedrock_converse"),
        "anthropic",
    ),
    "count_tokens": OperationFacts(
        "/v1/messages/count_tokens",
        ("anthropic_count_tokens", "gemini_count_tokens"),
        "anthropic",
        counts_only=True,
    ),
    "generate_content": OperationFacts(
        "/v1beta/models/{model}:generateContent",
        ("gemini_generate", "openai_chat", "anthropic_messages", "bedrock_converse"),
        "google",
        replayable=True,
    ),
    "count_content_tokens": OperationFacts(
        "/v1beta/models/{model}:countTokens",
        ("gemini_count_tokens", "anthropic_count_tokens"),
        "google",
        counts_only=True,
    ),
    "embed_contents": OperationFacts(
        "/v1beta/models/{model}:embedContent",
        ("gemini_embeddings", "openai_embeddings"),
        "google",
    ),
    "embeddings": OperationFacts(
        "/v1/embeddings",
        ("openai_embeddings", "gemini_embeddings", "vertex_embeddings"),
    ),
    "completions": OperationFacts(
        "/v1/completions",
        ("openai_completions",),
    ),
    "moderations": OperationFacts("/v1/moderations", ("openai_moderations",)),
    "rerank": OperationFacts(
        "/v1/rerank",
        ("rerank", "rerank_data"),
        known_unit="search",
    ),
    "responses": OperationFacts(
        "/v1/responses",
        ("openai_responses", "openai_chat", "anthropic_messages", "gemini_generate", "bedrock_converse"),
    ),
    "images": OperationFacts(
        "/v1/images/generations",
        ("openai_images", *_IMAGES),
        media="image",
        known_unit="image",
        replayable=True,
    ),
    "image_edits": OperationFacts(
        "/v1/images/edits",
        ("openai_edits", *_IMAGES),
        media="image",
        known_unit="image",
        edits=True,
        replayable=True,
    ),
    "transcriptions": OperationFacts(
        "/v1/audio/transcriptions",
        ("openai_transcriptions", "elevenlabs_transcriptions", "deepgram_transcriptions"),
        known_unit="sound",
    ),
    "translations": OperationFacts("/v1/audio/translations", ("openai_translations",), known_unit="sound"),
    "speech": OperationFacts(
        "/v1/audio/speech",
        ("openai_speech", "deepgram_speech", "elevenlabs_speech"),
        media="speech",
    ),
    "videos": OperationFacts("/v1/videos", _VIDEOS, media="video", replayable=True),
    "video_remixes": OperationFacts("/v1/videos/{id}/remix", _VIDEOS, media="video", replayable=True),
    "realtime": OperationFacts("/v1/realtime", ("openai_realtime",)),
}
"""The operations, in the order in which an error names them. Looking one up costs no Python call."""
