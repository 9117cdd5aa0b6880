"""Admin API: a member's identities at sign-in providers."""

from aiohttp import web

from gateway.domain.member_spec import ConsentSpec
from gateway.server.admin.handler import admin_operation
from gateway.server.admin.io import respond_json, respond_list
from gateway.server.admin.sessions import build_client_info, read_small
from gateway.server.context import SERVICES
from gateway.server.openapi import schema as s
from gateway.server.provider_flow import begin_flow, get_provider_sign_in, set_flow_cookie
from gateway.server.sessions import get_signed

_AFTER = "/console/account"


@admin_operation(answer=s.listing(s.record(name=s.TEXT, title=s.TEXT, linked=s.FLAG)))
async def list_identities(request: web.Request) -> web.Response:
    """List the sign-in providers; ``linked`` marks those that you can sign in with."""
    service, signed = request.app[SERVICES].sign_in, get_signed(request)
    return respond_list([] if service is None else await service.list_identities(signed.member))


@admin_operation(takes=ConsentSpec, answer=s.record(continue_at=s.TEXT))
async def link_identity(request: web.Request) -> web.Response:
    """Link your identity at a sign-in provider to you; the browser goes on at ``continue_at``."""
    spec, signed = await read_small(request, ConsentSpec), get_signed(request)
    sessions = request.app[SERVICES].auth.sessions
    get_provider_sign_in(request)
    await sessions.check_consent(signed, spec.passphrase, build_client_info(request))
    begun = await begin_flow(request, _AFTER, signed)
    response = respond_json({"continue_at": begun.url})
    set_flow_cookie(request, response, begun)
    return response


@admin_operation(takes=ConsentSpec, answer=s.record(name=s.TEXT, linked=s.FLAG))
async def unlink_identity(request: web.Request) -> web.Response:
    """Unlink your identity at a sign-in provider; you then sign in with your passphrase."""
    spec, signed, name = await read_small(request, ConsentSpec), get_signed(request), request.match_info["provider"]
    service, visitor = get_provider_sign_in(request), build_client_info(request)
    await request.app[SERVICES].auth.sessions.check_consent(signed, spec.passphrase, visitor)
    await service.unlink(name, signed, visitor)
    return respond_json({"name": name, "linked": False})
