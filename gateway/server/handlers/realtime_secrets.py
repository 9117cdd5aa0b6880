"""``POST /v1/realtime/client_secrets``: short-lived keys for browsers to open realtime sessions."""

import secrets
from collections.abc import Iterable
from typing import Any

from aiohttp import web

from gateway.deferred import load
from gateway.domain.account import Caller
from gateway.domain.attribution import BUDGET_HEADER
from gateway.domain.channel import Channel
from gateway.errors import GatewayError, InvalidRequest
from gateway.formats.realtime.client_secrets import build_secret_answer, parse_secret_request
from gateway.formats.realtime.events import build_session_inference
from gateway.server.context import CALLER, SERVICES, Services
from gateway.server.realtime_session import check_settings
from gateway.server.request_body import read_json


async def create_secret(request: web.Request, *, flat: bool) -> web.Response:
    """Create a client secret. ``flat``: the body has the form of the beta version.

    Settings that are not allowed are refused here, and again when a session begins. Raises ``InvalidRequest`` without
    an API key, and the errors of ``check_settings``.
    """
    if BUDGET_HEADER in request.headers:
        raise load("server.request_checks:make_budget_refusal")("name it when the realtime session begins")
    caller, services = request[CALLER], request.app[SERVICES]
    secret_request = parse_secret_request(await read_json(request), is_flat=flat)
    if not caller.key.id:
        raise InvalidRequest("A client secret needs an API key", should_retry=False)
    await services.billing.quota.check_rate(caller)
    channels: Iterable[Channel] = services.routing.router.catalog.channels
    if secret_request.model is not None:
        route = services.routing.router.route(caller, build_session_inference(secret_request.model))
        channels = [target.channel for target in route.targets]
    _check_settings(services, caller, secret_request.settings, channels)
    secret, expires_s = await services.auth.client_secrets.create(
        caller, secret_request.model, secret_request.settings, secret_request.ttl_s
    )
    answer = build_secret_answer(secret_request, secret, expires_s, f"sess_{secrets.token_hex(12)}")
    return web.json_response(answer, headers={"Cache-Control": "no-store"})


def _check_settings(services: Services, caller: Caller, settings: dict[str, Any], channels: Iterable[Channel]) -> None:
    problem = None
    for channel in channels:
        try:
            check_settings(services, caller, settings, settings_field="session", channel=channel)
        except GatewayError as error:
            problem = problem or error
        else:
            return
    if problem is not None:
        raise problem
