"""The operations that clients ask for, in one table: what is true of each of them."""

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
"""The requested operation and the client's API format: ``chat`` is OpenAI's, ``messages`` Anthropic's,
``generate_content`` Gemini's, which has its own counts of tokens and embeddings, too."""


@quick_frozen
class OperationFacts:
    """What is true of every request for an operation.

    Attributes:
        path: the endpoint, for error messages that name the right one.
        formats: the API formats in which a provider may be asked. The first is the client's own, in which bytes pass
            unchanged.
        api: whose API it belongs to.
        prompt: the fields of the body that have the prompt, which is measured and looked through. Every other field is
            a setting that adds nothing to the prompt, or unknown. Empty: the body is not looked through.
        output_limit: the field with which a client limits the tokens of an answer; empty: the answer is not a text as
            long as the model or the request allows.
        windowed: what it reports as its prompt fits into the model's context window.
        settings: the object in the body that has the settings of the model; empty: the body itself.
        media: what it makes and bills besides text; such a request is never sent to a provider twice.
        known_unit: what its tokens are of, or what is billed in their place; empty: the provider says so, or not.
        counts_only: it only counts the tokens of a prompt: nothing is bought.
        conversation: it can be translated into every other format of a conversation.
        edits: it changes an image that the client sends.
        text_body: its body is text alone, which needs less room than images and conversations.
        replayable: a request with an idempotency key is answered from the store if it comes again.
        requires_usage: the client's format requires counts of tokens, also where the provider reports none.
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
"""The object in a body of Gemini's format that has the output limit and the other settings of the model."""
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
        "/v1/images/generations", ("openai_images", *_IMAGES), media="image", known_unit="image", replayable=True
    ),
    "image_edits": OperationFacts(
        "/v1/images/edits", ("openai_edits", *_IMAGES), media="image", known_unit="image", edits=True, replayable=True
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
    "videos": OperationFacts("/v1/videos", _VIDEOS, media="video", replayable=True),
    "video_remixes": OperationFacts("/v1/videos/{id}/remix", _VIDEOS, media="video", replayable=True),
    "realtime": OperationFacts("/v1/realtime", ("openai_realtime",), windowed=True),
}
"""The operations, in the order in which an error names them. Looking one up costs no Python call."""
