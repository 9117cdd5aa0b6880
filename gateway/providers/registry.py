"""All vendors by slug. Each module except those in ``_SHARED_MODULES`` defines the provider of the module's name."""

from collections.abc import Mapping
from pkgutil import iter_modules

import gateway.providers
from gateway.deferred import defer
from gateway.providers.base import Provider

FIRST_SLUGS = ("openai", "anthropic", "gemini", "openrouter")
LAST_SLUGS = ("custom", "demo")
"""Slugs at the end of the list. Vendors of neither tuple are in between, in alphabetical order."""
LOCAL_SLUGS = ("llama_cpp", "lm_studio", "ollama", "vllm")
"""Model servers on the operator's own machine."""
_SHARED_MODULES = frozenset(
    {"base", "efforts", "hosted_tools", "message_order", "priced_fields", "quirks", "registry", "sigv4"}
)
"""Modules that define no vendor."""


def _find_sort_key(slug: str) -> tuple[int, str]:
    if slug in FIRST_SLUGS:
        return FIRST_SLUGS.index(slug) - len(FIRST_SLUGS), slug
    return (1 + LAST_SLUGS.index(slug) if slug in LAST_SLUGS else 0), slug


def _find_slugs() -> list[str]:
    names = {module.name for module in iter_modules(gateway.providers.__path__)} - _SHARED_MODULES
    return sorted(names, key=_find_sort_key)


PROVIDERS: Mapping[str, Provider] = defer({slug: f"providers.{slug}:{slug.upper()}" for slug in _find_slugs()})
"""Vendors by slug. A vendor's module is imported on first access."""
