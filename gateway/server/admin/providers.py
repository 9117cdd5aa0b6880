"""Admin API: the providers that channels can be created for."""

from gateway.frozen import frozen
from gateway.providers.registry import PROVIDERS
from gateway.server.admin.handler import AdminRequest, admin_operation

_BUILT_IN = "demo"


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
    known = sorted((one for one in PROVIDERS.values() if one.slug != _BUILT_IN), key=lambda one: one.title.lower())
    return [
        ProviderView(
            slug=one.slug,
            title=one.title,
            base_url=one.base_url,
            local=one.local_port is not None,
            lists_models=one.models_path is not None,
        )
        for one in known
    ]
