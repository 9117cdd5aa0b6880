"""A middleware runs on every path below its application, also on the paths that skip aiohttp's resolver."""

from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.app import create_app
from gateway.config.schema import Config
from gateway.options import AppOptions
from gateway.server.context import API, DrainState
from gateway.server.fast_routes import FastRoutes
from gateway.server.protocol import GatewayRunner
from gateway.services import open_services
from gateway.storage.data_folder import DataFolder
from tests.support.gateway import CHAT, KEY
from tests.support.started_gateways import StartGateway

PATHS = (
    ("POST", CHAT), ("POST", "/v1/messages"), ("POST", "/v1/images/edits"), ("POST", "/v1/videos"),
    ("GET", "/v1/models"), ("GET", "/v1/nothing"), ("PATCH", CHAT), ("POST", "/v1/threads"),
    ("GET", "/admin/v1/channels"), ("POST", "/admin/v1/reload"), ("GET", "/console/"), ("GET", "/console/nothing"),
    ("GET", "/"), ("GET", "/healthz"), ("GET", "/openapi.json"), ("GET", "/nothing"),
)  # fmt: skip


async def test_a_middleware_of_the_root_runs_once_for_every_request(tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []

    @web.middleware
    async def note(request: web.Request, handler: Handler) -> web.StreamResponse:
        seen.append((request.method, request.path))
        return await handler(request)

    folder = DataFolder(tmp_path)
    options = AppOptions(config=Config(), folder=folder, environ={}, demo_pace_s=0.0)
    async with open_services(options, DrainState()) as services:
        app = create_app(options, services)
        app.middlewares.append(note)
        runner = GatewayRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            host, port = runner.addresses[0][:2]
            async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as client:
                for method, path in PATHS:
                    async with client.request(method, f"http://{host}:{port}{path}", allow_redirects=False) as response:
                        await response.read()
        finally:
            await runner.cleanup()
    folder.close()
    assert seen == list(PATHS)


async def test_the_hot_paths_run_the_lists_of_the_root_and_of_the_api(gateway_with: StartGateway) -> None:
    """The same functions in the same order as by way of aiohttp's resolver."""
    app = (await gateway_with({})).app
    api = app[API]
    routes = FastRoutes(app, app._handle)._routes
    assert {CHAT, "/v1/embeddings", "/v1/messages", "/v1/responses", "/v1/videos"} <= routes.keys()
    for path, (match, composed) in routes.items():
        chain, handler = [], composed
        while handler is not match.handler:
            chain.append(handler.func)  # type: ignore[attr-defined]
            handler = handler.keywords["handler"]  # type: ignore[attr-defined]
        assert chain == [*app.middlewares, *api.middlewares], path


@pytest.mark.parametrize(
    ("method", "path", "status", "where"),
    [
        ("GET", "/v1/nothing", 404, "openai"),
        ("PATCH", "/v1/chat/completions", 405, "openai"),
        ("POST", "/v1/chat/completions", 401, "openai"),
        ("GET", "/v1/messages", 405, "anthropic"),
        ("POST", "/v1/messages", 401, "anthropic"),
        ("GET", "/admin/v1/nothing", 401, "openai"),
        ("GET", "/admin/v1/channels", 401, "openai"),
        ("GET", "/console/nothing", 404, "page"),
        ("POST", "/console/", 405, "page"),
        ("GET", "/console/keys", 303, "redirect"),
        ("GET", "/nothing", 404, "openai"),
        ("POST", "/healthz", 405, "openai"),
    ],
)
async def test_an_error_has_the_form_of_its_prefix(
    standing_with: StartGateway, method: str, path: str, status: int, where: str
) -> None:
    """None of these requests carries a key: what is not served is not served to anyone."""
    gateway = await standing_with({})
    async with (
        aiohttp.ClientSession() as client,
        client.request(method, gateway.url + path, allow_redirects=False) as response,
    ):
        assert response.status == status
        assert response.headers["X-Request-Id"].startswith("req_")
        assert "Server" not in response.headers
        assert ("Allow" in response.headers) == (status == 405 and where != "page")
        if where == "page":
            assert response.content_type == "text/html"
        elif where != "redirect":
            body = await response.json()
            assert body.get("type") == ("error" if where == "anthropic" else None)
            assert body["error"]["message"]
