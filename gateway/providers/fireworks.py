"""Fireworks AI. docs.fireworks.ai/api-reference, /tools-sdks/openai-compatibility, /tools-sdks/anthropic-compatibility.

Usage comes with every stream. The list in its reference is that of an account, page by page, under another address; the
one of the convention beside the calls is not described there, but it is what its users' tools read. Its rerank answers
with ``data`` instead of ``results``, in no one's language, and is not served here.
"""

from gateway.providers.base import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, RESPONSES, Provider

FIREWORKS = Provider(
    slug="fireworks",
    title="Fireworks AI",
    base_url="https://api.fireworks.ai/inference/v1",
    env_key="FIREWORKS_API_KEY",
    endpoints=(CHAT, MESSAGES, EMBEDDINGS, COMPLETIONS, RESPONSES),
)
