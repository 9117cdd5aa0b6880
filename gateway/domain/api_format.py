"""API formats by name, and which of them can express which operation."""

from collections.abc import Mapping
from typing import Literal

from gateway.domain.inference_request import Operation

Wire = Literal[
    "openai_chat",
    "openai_embeddings",
    "openai_completions",
    "openai_moderations",
    "openai_responses",
    "openai_compact",
    "rerank",
    "rerank_data",
    "anthropic_messages",
    "anthropic_count_tokens",
    "gemini_generate",
    "bedrock_converse",
    "gemini_count_tokens",
    "gemini_embeddings",
    "vertex_embeddings",
    "openai_images",
    "openai_edits",
    "openai_transcriptions",
    "openai_translations",
    "openai_speech",
    "deepgram_speech",
    "elevenlabs_speech",
    "elevenlabs_transcriptions",
    "deepgram_transcriptions",
    "gemini_images",
    "chat_images",
    "dashscope_images",
    "replicate_images",
    "fal_images",
    "stability_images",
    "bfl_images",
    "luma_images",
    "openai_videos",
    "gemini_videos",
    "vertex_videos",
    "kling_videos",
    "minimax_videos",
    "runway_videos",
    "dashscope_videos",
    "volcengine_videos",
    "luma_videos",
    "fal_videos",
    "openai_realtime",
]

_IMAGES: tuple[Wire, ...] = (
    "gemini_images",
    "dashscope_images",
    "replicate_images",
    "fal_images",
    "stability_images",
    "bfl_images",
    "luma_images",
    "chat_images",
)
_VIDEOS: tuple[Wire, ...] = (
    "openai_videos",
    "gemini_videos",
    "vertex_videos",
    "kling_videos",
    "minimax_videos",
    "runway_videos",
    "dashscope_videos",
    "volcengine_videos",
    "luma_videos",
    "fal_videos",
)

OPTIONAL_WIRES: frozenset[Wire] = frozenset({"openai_responses", "openai_compact", "anthropic_messages"})
"""API formats whose endpoint a server may lack although others of its kind have it, beside that for chats."""

WIRES: Mapping[Operation, tuple[Wire, ...]] = {
    "chat": ("openai_chat", "anthropic_messages", "gemini_generate", "bedrock_converse"),
    "messages": ("anthropic_messages", "openai_chat", "gemini_generate", "bedrock_converse"),
    "count_tokens": ("anthropic_count_tokens", "gemini_count_tokens"),
    "count_content_tokens": ("gemini_count_tokens", "anthropic_count_tokens"),
    "embed_contents": ("gemini_embeddings", "openai_embeddings"),
    "generate_content": ("gemini_generate", "openai_chat", "anthropic_messages", "bedrock_converse"),
    "embeddings": ("openai_embeddings", "gemini_embeddings", "vertex_embeddings"),
    "completions": ("openai_completions",),
    "moderations": ("openai_moderations",),
    "rerank": ("rerank", "rerank_data"),
    "responses": ("openai_responses", "openai_chat", "anthropic_messages", "gemini_generate", "bedrock_converse"),
    "images": ("openai_images", *_IMAGES),
    "image_edits": ("openai_edits", *_IMAGES),
    "transcriptions": ("openai_transcriptions", "elevenlabs_transcriptions", "deepgram_transcriptions"),
    "translations": ("openai_translations",),
    "speech": ("openai_speech", "deepgram_speech", "elevenlabs_speech"),
    "videos": _VIDEOS,
    "video_remixes": _VIDEOS,
    "realtime": ("openai_realtime",),
}
"""The API formats of each operation. The first is the client's own, in which bytes pass unchanged."""
