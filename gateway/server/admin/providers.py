"""The admin API's list of providers: what a channel can be made for."""

from aiohttp import web

from gateway.providers.registry import PROVIDERS
from gateway.server.admin.io import write_listing
from gateway.server.admin.operation import AdminOperation
from gateway.server.openapi import schema as s

_BUILT_IN = "demo"


async def list_providers(request: web.Request) -> web.Response:  # noqa: ARG001 - the same for everyone
    """Every provider that is known, by its title: where it is, and whether it can be asked for its models."""
    known = sorted((one for one in PROVIDERS.values() if one.slug != _BUILT_IN), key=lambda one: one.title.lower())
    return write_listing(
        [
            {
                "slug": one.slug,
                "title": one.title,
                "base_url": one.base_url,
                "local": one.local_port is not None,
                "lists_models": one.models_path is not None,
            }
            for one in known
        ],
    )


PROVIDER_DOORS: tuple[AdminOperation, ...] = (
    AdminOperation(
        "GET",
        "/providers",
        list_providers,
        answer=s.listing(
            s.record(slug=s.TEXT, title=s.TEXT, base_url=s.maybe(s.TEXT), local=s.FLAG, lists_models=s.FLAG)
        ),
    ),
)
