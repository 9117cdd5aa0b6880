"""Providers that refuse what those of nine vendors refuse, one class for each, with a coding model that does a task."""

from tests.support.strict_providers.agent_task import Agent
from tests.support.strict_providers.chat_vendors import (
    Custom,
    DashScope,
    DeepSeek,
    Mistral,
    Moonshot,
    OpenAI,
    OpenAIWithoutReasoning,
)
from tests.support.strict_providers.converse import Converse
from tests.support.strict_providers.own_formats import Anthropic, Gemini

STRICT: tuple[type[Agent], ...] = (
    OpenAI,
    OpenAIWithoutReasoning,
    Custom,
    Anthropic,
    Gemini,
    Converse,
    Mistral,
    Moonshot,
    DashScope,
    DeepSeek,
)
