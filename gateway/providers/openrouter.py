"""OpenRouter: the models of many vendors. openrouter.ai/docs/api/api-reference.

Comments in streams, errors inside a chunk: openrouter.ai/docs/api-reference/streaming. It speaks Anthropic's messages,
too (.../anthropic-messages/create-messages), with the same Bearer key. Text completions are in its own SDK's README.
"""

from gateway.providers.base import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, RERANK, RESPONSES, Provider

OPENROUTER = Provider(
    slug="openrouter",
    title="OpenRouter",
    base_url="https://openrouter.ai/api/v1",
    env_key="OPENROUTER_API_KEY",
    endpoints=(CHAT, MESSAGES, EMBEDDINGS, COMPLETIONS, RESPONSES, RERANK),
)
