"""The real client libraries, and gateways with providers of each API format."""

from collections.abc import Callable

from anthropic import AsyncAnthropic
from google.genai import Client
from openai import AsyncOpenAI

from tests.support.anthropic_provider import AnthropicProvider
from tests.support.gemini_provider import GeminiProvider
from tests.support.openai_provider import OpenAIProvider, ThinkingProvider
from tests.support.providers import Provider

MakeClient = Callable[..., AsyncOpenAI]


MakeClaude = Callable[..., AsyncAnthropic]


MakeGoogle = Callable[..., Client]


ProviderType = type[Provider]


PROVIDERS_OF_FORMATS: tuple[ProviderType, ...] = (OpenAIProvider, AnthropicProvider, GeminiProvider)


THINKING: tuple[ProviderType, ...] = (ThinkingProvider, AnthropicProvider, GeminiProvider)
"""The same, but for the convention a server that says what it thinks."""


def name_provider(provider_type: object) -> str | None:
    """How a test's parameter is called."""
    return provider_type.slug if isinstance(provider_type, type) and issubclass(provider_type, Provider) else None
