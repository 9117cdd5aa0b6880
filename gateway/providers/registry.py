"""Every vendor by slug: each file of this package that defines the provider of its own name."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType

import gateway.providers
from gateway.providers.base import Provider

FIRST = ("openai", "anthropic", "gemini", "openrouter")
LAST = ("custom", "demo")
"""The other vendors are between these two, by name."""


def _find_providers() -> Iterator[Provider]:
    package = gateway.providers
    for name in sorted(module.name for module in iter_modules(package.__path__)):
        if name != "registry":
            found = getattr(import_module(f"{package.__name__}.{name}"), name.upper(), None)
            if isinstance(found, Provider):
                yield found


def _find_place(slug: str) -> tuple[int, str]:
    if slug in FIRST:
        return FIRST.index(slug) - len(FIRST), slug
    return (1 + LAST.index(slug) if slug in LAST else 0), slug


PROVIDERS: Mapping[str, Provider] = MappingProxyType(
    {provider.slug: provider for provider in sorted(_find_providers(), key=lambda found: _find_place(found.slug))},
)
PRICED_FIELDS = frozenset(name for provider in PROVIDERS.values() for name in provider.priced_fields)
"""All vendors' priced fields: a request without one needs no second look."""
