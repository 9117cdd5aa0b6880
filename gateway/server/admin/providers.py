"""Admin API: the providers that channels can be created for."""

from gateway.providers.registry import PROVIDERS
from gateway.server.admin.handler import AdminRequest, Fields, admin_operation
from gateway.server.openapi import schema as s

_BUILT_IN = "demo"
_PROVIDER = s.record(slug=s.TEXT, title=s.TEXT, base_url=s.maybe(s.TEXT), local=s.FLAG, lists_models=s.FLAG)


@admin_operation(answer=s.listing(_PROVIDER))
async def list_providers(request: AdminRequest) -> list[Fields]:  # noqa: ARG001 - the same for everyone
    """List the known providers by title, with their addresses and whether they list their models."""
    known = sorted((one for one in PROVIDERS.values() if one.slug != _BUILT_IN), key=lambda one: one.title.lower())
    return [
        {
            "slug": one.slug,
            "title": one.title,
            "base_url": one.base_url,
            "local": one.local_port is not None,
            "lists_models": one.models_path is not None,
        }
        for one in known
    ]
