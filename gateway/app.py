"""Builds the application, with its routes and middlewares, and opens it on a runner, with all services."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Middleware

from gateway.deferred import defer_handler
from gateway.domain.media import MEDIA_PATH
from gateway.options import AppOptions
from gateway.server.admin.operation import OPERATIONS, register_operations
from gateway.server.admin.prefix import PREFIX
from gateway.server.admin.routes import list_admin_operations
from gateway.server.console.routes import ROOT, add_console
from gateway.server.context import API, SERVICES, DrainState, Services
from gateway.server.cors import CORS, CrossOrigin
from gateway.server.error_responses import GOOGLE_ROOT
from gateway.server.google_api import add_google_routes
from gateway.server.handlers.health import add_probes
from gateway.server.handlers.metrics import add_metrics
from gateway.server.middlewares import authenticate, error_responses, request_context
from gateway.server.protocol import GatewayRunner
from gateway.server.responses import add_common_headers
from gateway.server.routes import add_api_routes, get_root
from gateway.server.shutdown import drain
from gateway.server.tracing import trace_request
from gateway.services import open_services
from gateway.services.media import MIB

_PAGES: Mapping[str, str] = {
    "/openapi.json": "server.openapi.routes:get_openapi",
    "/docs": "server.openapi.routes:get_docs",
    "/help": "server.help.routes:get_page",
    "/help/{page:.*}": "server.help.routes:get_page",
    f"{MEDIA_PATH}/{{id}}": "server.handlers.media:get_media",
}


@asynccontextmanager
async def open_runner(
    options: AppOptions, drain_state: DrainState | None = None, **settings: Any
) -> AsyncIterator[GatewayRunner]:
    """Open the services, and set up the application on a runner, which listens nowhere yet.

    At the end of the block requests in progress are drained, and the services close. ``settings`` are those of
    ``GatewayRunner``. Raises ``DatabaseStartupError``, ``DataFolderDamaged``, ``ConfigError``.
    """
    async with open_services(options, drain_state or DrainState()) as services:
        runner = GatewayRunner(create_app(options, services), access_log=None, **settings)
        try:
            await runner.setup()
            yield runner
        finally:
            await runner.cleanup()


def create_app(options: AppOptions, services: Services) -> web.Application:
    """Build the gateway: four sub-applications under one root."""
    server = options.config.server
    app = web.Application(middlewares=[request_context, error_responses], client_max_size=server.max_body_mb * MIB)
    if options.config.tracing.endpoint:
        app.middlewares.insert(1, trace_request)  # after the middleware that creates the request context
    if server.cors_origins:
        app[CORS] = cors = CrossOrigin(server.cors_origins)
        app.middlewares.append(cors.handle)
    app[API] = api = web.Application(middlewares=[authenticate])
    google = web.Application(middlewares=[authenticate])
    admin = web.Application(
        middlewares=[
            _defer_middleware("server.admin.auth:require_access"),
            _defer_middleware("server.admin.auth:finish_changes"),
        ]
    )
    console = web.Application(middlewares=[_defer_middleware("server.console.page:console_pages")])
    add_api_routes(api)
    add_google_routes(google)
    operations = register_operations(admin, list_admin_operations())
    add_console(console)
    for application in (app, api, google, admin, console):
        application[SERVICES], application[OPERATIONS] = services, operations
    app.add_subapp("/v1", api)
    app.add_subapp(GOOGLE_ROOT, google)
    app.add_subapp(PREFIX, admin)
    app.add_subapp(ROOT, console)
    app.router.add_get("/", get_root)
    for path, import_path in _PAGES.items():
        app.router.add_get(path, defer_handler(import_path))
    add_probes(app)
    add_metrics(app)
    app.on_response_prepare.append(add_common_headers)
    app.on_shutdown.append(partial(drain, timeout_s=server.drain_timeout_s))
    return app


def _defer_middleware(import_path: str) -> Middleware:
    """Return a middleware that is imported on the first request to its application."""
    return web.middleware(defer_handler(import_path))
