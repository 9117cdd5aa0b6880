"""The application: middlewares, outermost first, and routes. ``services.py`` opens what they work with."""

from functools import partial

from aiohttp import web

from gateway.options import AppOptions
from gateway.server.admin.auth import finish_changes, require_access
from gateway.server.admin.operation import OPERATIONS, PREFIX, register_operations
from gateway.server.admin.routes import list_admin_operations
from gateway.server.console.page import ROOT, console_pages
from gateway.server.console.routes import add_console
from gateway.server.context import API, SERVICES, Services
from gateway.server.cors import CORS, CrossOrigin
from gateway.server.error_responses import GOOGLE_ROOT
from gateway.server.google_api import add_google_routes
from gateway.server.handlers.health import add_probes
from gateway.server.handlers.media import add_media_routes
from gateway.server.handlers.metrics import add_metrics
from gateway.server.help.routes import add_help
from gateway.server.middlewares import authenticate, error_responses, request_context
from gateway.server.openapi.routes import add_docs
from gateway.server.responses import add_common_headers
from gateway.server.routes import add_api_routes, get_root
from gateway.server.shutdown import drain
from gateway.server.tracing import trace_request
from gateway.services import open_services
from gateway.services.media import MIB


def create_app(options: AppOptions) -> web.Application:
    """Build the gateway: four sub-applications under one root. Nothing is opened before startup."""
    server = options.config.server
    app = web.Application(middlewares=[request_context, error_responses], client_max_size=server.max_body_mb * MIB)
    if options.config.tracing.endpoint:
        app.middlewares.insert(1, trace_request)  # it needs the context of the request
    if server.cors_origins:
        app[CORS] = cors = CrossOrigin(server.cors_origins)
        app.middlewares.append(cors.handle)
    app[API] = api = web.Application(middlewares=[authenticate])
    google = web.Application(middlewares=[authenticate])
    admin = web.Application(middlewares=[require_access, finish_changes])
    console = web.Application(middlewares=[console_pages])
    add_api_routes(api)
    add_google_routes(google)
    operations = register_operations(admin, list_admin_operations())
    add_console(console)
    services = Services(options)
    for part in (app, api, google, admin, console):
        part[SERVICES], part[OPERATIONS] = services, operations
    app.add_subapp("/v1", api)
    app.add_subapp(GOOGLE_ROOT, google)
    app.add_subapp(PREFIX, admin)
    app.add_subapp(ROOT, console)
    app.router.add_get("/", get_root)
    add_docs(app)
    add_help(app)
    add_media_routes(app)
    add_probes(app)
    add_metrics(app)
    app.on_response_prepare.append(add_common_headers)
    app.on_shutdown.append(partial(drain, timeout_s=server.drain_timeout_s))
    app.cleanup_ctx.append(open_services)
    return app
