"""``POST /v1/realtime/client_secrets``: a short-lived key with which a browser opens sessions."""

import secrets
from functools import partial

from aiohttp import web

from gateway.errors import InvalidRequest
from gateway.formats.openai.realtime import build_session_call
from gateway.formats.openai.realtime_secrets import build_secret_answer, parse_secret_request
from gateway.server.context import CALLER, SERVICES
from gateway.server.realtime_session import check_settings
from gateway.server.request_body import read_json


def add_secret_routes(app: web.Application) -> None:
    """Register the routes; the second one is the beta version's."""
    app.router.add_post("/realtime/client_secrets", partial(create_secret, flat=False))
    app.router.add_post("/realtime/sessions", partial(create_secret, flat=True))


async def create_secret(request: web.Request, *, flat: bool) -> web.Response:
    """Make a client secret. What its sessions may not have is refused here, and again when one begins."""
    caller, services = request[CALLER], request.app[SERVICES]
    asked = parse_secret_request(await read_json(request), flat=flat)
    if not caller.key.id:
        raise InvalidRequest("A client secret needs an API key", should_retry=False)
    await services.billing.quota.check_rate(caller)
    if asked.model is not None:
        services.routing.router.route(caller, build_session_call(asked.model))
    check_settings(services, caller, asked.settings)
    secret, expires_s = await services.auth.client_secrets.create(caller, asked.model, asked.settings, asked.ttl_s)
    answer = build_secret_answer(asked, secret, expires_s, f"sess_{secrets.token_hex(12)}")
    return web.json_response(answer, headers={"Cache-Control": "no-store"})
