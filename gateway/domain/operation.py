"""The operations that clients can request, in one table with the properties of each."""

from collections.abc import Mapping
from typing import Literal

from gateway.domain.api_format import Wire
from gateway.frozen import quick_frozen

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
"""An operation in a client's API format. Unless named here, it is OpenAI's or has OpenAI's style. ``messages`` and
``count_tokens`` are Anthropic's; ``generate_content``, ``count_content_tokens`` and ``embed_contents`` are Gemini's."""


@quick_frozen
class OperationFacts:
    """The properties of an operation.

    Attributes:
        formats: the API formats in which a provider may be asked. The first is the client's own format, in which bytes
            pass unchanged.
        prompt: the body fields that contain the prompt, which is measured and inspected. All other fields are settings
            that add nothing to the prompt, or unknown. If ``prompt`` is empty, the body is not inspected.
        output_limit: the field with which a client limits the tokens of an answer; empty if there is none.
        windowed: whether the reported prompt tokens always fit into the model's context window.
        settings: the object in the body that contains the model's settings; empty if that is the body itself.
        media: the medium that is made and billed besides text. The requests are sent with ``HttpRequest.once``.
        known_unit: the modality of the tokens, or the unit billed instead; empty if only the provider's answer tells.
        counts_only: whether the operation only counts the tokens of a prompt, so that nothing is bought.
        conversation: whether the operation can be translated into every other conversation format.
        text_body: whether the body is only text, so that a lower size limit applies than for images and conversations.
        replayable: whether a repeated request with the same idempotency key is answered from the store.
        requires_usage: whether the client's format requires token counts, even if the provider reports none.
    """

    path: str
    formats: tuple[Wire, ...]
    api: Literal["openai", "anthropic", "google"] = "openai"
    prompt: frozenset[str] = frozenset()
    output_limit: str = ""
    windowed: bool = False
    settings: str = ""
    media: Literal["", "image", "speech", "video"] = ""
    known_unit: Literal["", "image", "search", "sound"] = ""
    counts_only: bool = False
    conversation: bool = False
    edits: bool = False
    text_body: bool = False
    replayable: bool = False
    requires_usage: bool = False


GENERATION_CONFIG = "generationConfig"
"""The object in a Gemini request body that contains the output limit and the model's other settings."""
_IMAGE_WIRES: tuple[Wire, ...] = (
    "gemini_images", "dashscope_images", "replicate_images", "fal_images", "stability_images", "bfl_images",
    "luma_images", "chat_images",
)  # fmt: skip
_VIDEO_WIRES: tuple[Wire, ...] = (
    "openai_videos", "gemini_videos", "vertex_videos", "kling_videos", "minimax_videos", "runway_videos",
    "dashscope_videos", "volcengine_videos", "luma_videos", "fal_videos",
)  # fmt: skip

OPERATIONS: Mapping[Operation, OperationFacts] = {
    "chat": OperationFacts(
        "/v1/chat/completions",
        ("openai_chat", "anthropic_messages", "gemini_generate", "bedrock_converse"),
        prompt=frozenset({"messages", "tools", "functions", "prediction", "documents"}),
        output_limit="max_tokens",
        windowed=True,
        conversation=True,
        replayable=True,
    ),
    "messages": OperationFacts(
        "/v1/messages",
        ("anthropic_messages", "openai_chat", "gemini_generate", "bedrock_converse"),
        "anthropic",
        prompt=frozenset({"messages", "system", "tools"}),
        output_limit="max_tokens",
        windowed=True,
        conversation=True,
        requires_usage=True,
    ),
    "count_tokens": OperationFacts(
        "/v1/messages/count_tokens", ("anthropic_count_tokens", "gemini_count_tokens"), "anthropic", counts_only=True
    ),
    "generate_content": OperationFacts(
        "/v1beta/models/{model}:generateContent",
        ("gemini_generate", "openai_chat", "anthropic_messages", "bedrock_converse"),
        "google",
        prompt=frozenset({"contents", "systemInstruction", "tools"}),
        output_limit="maxOutputTokens",
        windowed=True,
        settings=GENERATION_CONFIG,
        conversation=True,
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
        prompt=frozenset({"content", "requests", "title"}),
        text_body=True,
    ),
    "embeddings": OperationFacts(
        "/v1/embeddings",
        ("openai_embeddings", "gemini_embeddings", "vertex_embeddings"),
        prompt=frozenset({"input"}),
        text_body=True,
    ),
    "completions": OperationFacts(
        "/v1/completions",
        ("openai_completions",),
        prompt=frozenset({"prompt", "suffix"}),
        output_limit="max_tokens",
        windowed=True,
        text_body=True,
    ),
    "moderations": OperationFacts("/v1/moderations", ("openai_moderations",), text_body=True),
    "rerank": OperationFacts(
        "/v1/rerank",
        ("rerank", "rerank_data"),
        prompt=frozenset({"query", "documents"}),
        known_unit="search",
        text_body=True,
    ),
    "responses": OperationFacts(
        "/v1/responses",
        ("openai_responses", "openai_chat", "anthropic_messages", "gemini_generate", "bedrock_converse"),
        prompt=frozenset({"input", "instructions", "tools"}),
        output_limit="max_output_tokens",
        windowed=True,
        conversation=True,
    ),
    "images": OperationFacts(
        "/v1/images/generations", ("openai_images", *_IMAGE_WIRES), media="image", known_unit="image", replayable=True
    ),
    "image_edits": OperationFacts(
        "/v1/images/edits",
        ("openai_edits", *_IMAGE_WIRES),
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
        "/v1/audio/speech", ("openai_speech", "deepgram_speech", "elevenlabs_speech"), media="speech", text_body=True
    ),
    "videos": OperationFacts("/v1/videos", _VIDEO_WIRES, media="video", replayable=True),
    "video_remixes": OperationFacts("/v1/videos/{id}/remix", _VIDEO_WIRES, media="video", replayable=True),
    "realtime": OperationFacts("/v1/realtime", ("openai_realtime",), windowed=True),
}
"""The operations, in the order in which error messages name them. A dict lookup costs no Python call."""
