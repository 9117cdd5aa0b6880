"""The registry: complete, and consistent with its own rules."""

import importlib
import pkgutil

import gateway.providers
from gateway.providers.base import Provider, find_url_problem
from gateway.providers.registry import PROVIDERS


def find_declared() -> dict[str, Provider]:
    """Module -> the provider that it defines."""
    found = {}
    for module in pkgutil.iter_modules(gateway.providers.__path__):
        if module.name in {"base", "registry"}:
            continue
        values = vars(importlib.import_module(f"gateway.providers.{module.name}")).values()
        (found[module.name],) = [value for value in values if isinstance(value, Provider)]
    return found


def test_every_vendors_file_defines_one_provider_that_is_registered_under_its_name() -> None:
    declared = find_declared()
    assert len(declared) >= 10
    assert dict(PROVIDERS) == declared


def test_every_vendor_has_a_title_and_no_two_share_a_variable_or_a_port() -> None:
    assert all(provider.title for provider in PROVIDERS.values())
    assert all(slug == provider.slug for slug, provider in PROVIDERS.items())
    for values in (
        [provider.env_key for provider in PROVIDERS.values() if provider.env_key],
        [provider.local_port for provider in PROVIDERS.values() if provider.local_port],
    ):
        assert len(values) == len(set(values))


def test_remote_vendors_are_reached_by_tls_and_local_ones_on_their_port() -> None:
    for provider in PROVIDERS.values():
        if provider.local_port:
            assert provider.base_url == f"http://127.0.0.1:{provider.local_port}/v1"
            assert provider.env_key is None
        elif provider.base_url:
            assert provider.base_url.startswith("https://")
            assert provider.env_key
        assert provider.base_url is None or find_url_problem(provider.base_url) is None
        assert provider.base_url is None or not provider.base_url.endswith("/")


def test_the_variables_are_those_people_have_set_already() -> None:
    keys = {provider.env_key for provider in PROVIDERS.values() if provider.env_key}
    assert keys == {"OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "OPENROUTER_API_KEY"}
