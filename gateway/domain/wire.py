"""Wire languages by name: what a call is said in towards a provider, and which of them can say what was asked for."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from gateway.domain.call import Operation

Wire = Literal[
    "openai_chat",
    "openai_embeddings",
    "openai_completions",
    "openai_moderations",
    "openai_responses",
    "rerank",
    "anthropic_messages",
    "anthropic_count_tokens",
    "gemini_generate",
    "gemini_count_tokens",
    "gemini_embeddings",
]

WIRES: Mapping[Operation, tuple[Wire, ...]] = MappingProxyType(
    {
        "chat": ("openai_chat", "anthropic_messages", "gemini_generate"),
        "messages": ("anthropic_messages", "openai_chat", "gemini_generate"),
        "count_tokens": ("anthropic_count_tokens", "gemini_count_tokens"),
        "embeddings": ("openai_embeddings", "gemini_embeddings"),
        "completions": ("openai_completions",),
        "moderations": ("openai_moderations",),
        "rerank": ("rerank",),
        "responses": ("openai_responses",),
    },
)
"""The languages an operation can be said in, the one it was asked in first: there bytes pass untouched."""
