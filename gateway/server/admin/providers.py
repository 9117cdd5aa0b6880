"""Admin API: the providers that channels can be created for."""

from gateway.frozen import frozen
from gateway.providers.registry import PROVIDERS
from gateway.server.admin.handler import AdminRequest, admin_operation

_BUILT_IN_SLUG = "demo"


@frozen(kw_only=True)
class ProviderView:
    """A provider that the gateway knows."""

    slug: str
    title: str
    base_url: str | None
    local: bool
    lists_models: bool


@admin_operation()
async def list_providers(request: AdminRequest) -> list[ProviderView]:  # noqa: ARG001 - the same for everyone
    """List the known providers by title, with their addresses and whether they list their models."""
    providers = sorted(
        (provider for provider in PROVIDERS.values() if provider.slug != _BUILT_IN_SLUG),
        key=lambda provider: provider.title.lower(),
    )
    return [
        ProviderView(
            slug=provider.slug,
            title=provider.title,
            base_url=provider.base_url,
            local=provider.local_port is not None,
            lists_models=provider.models_path is not None,
        )
        for provider in providers
    ]
