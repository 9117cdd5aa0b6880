"""Every vendor, by slug."""

from collections.abc import Mapping
from types import MappingProxyType

from gateway.providers.anthropic import ANTHROPIC
from gateway.providers.base import Provider
from gateway.providers.custom import CUSTOM
from gateway.providers.demo import DEMO
from gateway.providers.gemini import GEMINI
from gateway.providers.llama_cpp import LLAMA_CPP
from gateway.providers.lm_studio import LM_STUDIO
from gateway.providers.ollama import OLLAMA
from gateway.providers.openai import OPENAI
from gateway.providers.openrouter import OPENROUTER
from gateway.providers.vllm import VLLM

PROVIDERS: Mapping[str, Provider] = MappingProxyType(
    {
        provider.slug: provider
        for provider in (
            OPENAI,
            ANTHROPIC,
            GEMINI,
            OPENROUTER,
            OLLAMA,
            LM_STUDIO,
            VLLM,
            LLAMA_CPP,
            CUSTOM,
            DEMO,
        )
    },
)
