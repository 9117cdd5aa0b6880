"""Ollama on the same machine. docs.ollama.com/api/openai-compatibility: a key is ignored, the limit is ``max_tokens``.

Anthropic's messages: docs.ollama.com/api/anthropic-compatibility.
"""

from gateway.providers.base import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, RESPONSES, Endpoint, Provider
from gateway.providers.quirks import limit_as_max_tokens

OLLAMA = Provider(
    slug="ollama",
    title="Ollama",
    base_url="http://127.0.0.1:11434/v1",
    local_port=11434,
    endpoints=(
        Endpoint("openai_chat", CHAT.path, quirks=(limit_as_max_tokens,)),
        MESSAGES,
        EMBEDDINGS,
        COMPLETIONS,
        RESPONSES,
    ),
)
