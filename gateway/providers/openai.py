"""OpenAI, whose convention the gateway speaks. API reference: developers.openai.com/api/reference."""

from gateway.providers.base import Provider

OPENAI = Provider(
    slug="openai",
    title="OpenAI",
    base_url="https://api.openai.com/v1",
    env_key="OPENAI_API_KEY",
)
