"""OpenRouter. openrouter.ai/docs/api-reference/streaming: comments in streams, errors inside a chunk."""

from gateway.providers.base import Provider

OPENROUTER = Provider(
    slug="openrouter",
    title="OpenRouter",
    base_url="https://openrouter.ai/api/v1",
    env_key="OPENROUTER_API_KEY",
)
