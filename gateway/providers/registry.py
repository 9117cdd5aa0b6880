"""All vendors by slug. Each module of this package except those in ``_SHARED`` defines the provider of its own name."""

from collections.abc import Mapping
from pkgutil import iter_modules

import gateway.providers
from gateway.deferred import defer
from gateway.providers.base import Provider

FIRST = ("openai", "anthropic", "gemini", "openrouter")
LAST = ("custom", "demo")
"""Slugs at the end of the list. All vendors not in ``FIRST`` or ``LAST`` are in between, in alphabetical order."""
LOCAL = ("llama_cpp", "lm_studio", "ollama", "vllm")
"""Model servers on the operator's own machine."""
_SHARED = frozenset(
    {"base", "efforts", "hosted_tools", "message_order", "priced_fields", "quirks", "registry", "sigv4"}
)
"""Modules that define no vendor."""


def _find_sort_key(slug: str) -> tuple[int, str]:
    if slug in FIRST:
        return FIRST.index(slug) - len(FIRST), slug
    return (1 + LAST.index(slug) if slug in LAST else 0), slug


def _find_slugs() -> list[str]:
    names = {module.name for module in iter_modules(gateway.providers.__path__)} - _SHARED
    return sorted(names, key=_find_sort_key)


PROVIDERS: Mapping[str, Provider] = defer({slug: f"providers.{slug}:{slug.upper()}" for slug in _find_slugs()})
"""Vendors by slug. A vendor's module is imported on first access."""
