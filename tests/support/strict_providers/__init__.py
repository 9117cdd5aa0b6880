"""Providers that refuse what those of nine vendors refuse, one class for each, with a coding model that does a task."""

from tests.support.strict_providers import chat_vendors
from tests.support.strict_providers.agent_task import Agent
from tests.support.strict_providers.converse import Converse
from tests.support.strict_providers.own_formats import Anthropic, Gemini

STRICT: tuple[type[Agent], ...] = (
    chat_vendors.OpenAI,
    chat_vendors.OpenAIWithoutReasoning,
    chat_vendors.Custom,
    Anthropic,
    Gemini,
    Converse,
    chat_vendors.Mistral,
    chat_vendors.Moonshot,
    chat_vendors.DashScope,
    chat_vendors.DeepSeek,
)
