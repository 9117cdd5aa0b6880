"""Admin API: a member's identities at sign-in providers."""

from functools import partial
from typing import Any

from gateway.domain.member_spec import ConsentSpec
from gateway.frozen import frozen
from gateway.server.admin.handler import AdminRequest, admin_operation
from gateway.server.admin.sessions import build_client_info, read_small
from gateway.server.provider_flow import begin_flow, get_provider_sign_in, set_flow_cookie

_AFTER = "/console/account"


@frozen(kw_only=True)
class IdentityView:
    """A sign-in provider; ``linked``: the member can sign in with it."""

    name: str
    title: str
    linked: bool


@frozen(kw_only=True)
class BegunLink:
    """Where the browser goes on."""

    continue_at: str


@frozen(kw_only=True)
class UnlinkedIdentity:
    """A sign-in provider that the member can no longer sign in with."""

    name: str
    linked: bool


@admin_operation()
async def list_identities(request: AdminRequest) -> list[IdentityView]:
    """List the sign-in providers; ``linked`` marks those that you can sign in with."""
    service, signed = request.services.sign_in, request.signed
    found: Any = [] if service is None else await service.list_identities(signed.member)
    return [IdentityView(**one) for one in found]


@admin_operation(takes=ConsentSpec)
async def link_identity(request: AdminRequest) -> BegunLink:
    """Link your identity at a sign-in provider to you; the browser goes on at ``continue_at``."""
    spec, signed = await read_small(request, ConsentSpec), request.signed
    sessions = request.services.auth.sessions
    get_provider_sign_in(request.http)
    await sessions.check_consent(signed, spec.passphrase, build_client_info(request.http))
    begun = await begin_flow(request.http, _AFTER, signed)
    request.finish.append(partial(set_flow_cookie, request.http, begun=begun))
    return BegunLink(continue_at=begun.url)


@admin_operation(takes=ConsentSpec)
async def unlink_identity(request: AdminRequest) -> UnlinkedIdentity:
    """Unlink your identity at a sign-in provider; you then sign in with your passphrase."""
    spec, signed, name = await read_small(request, ConsentSpec), request.signed, request.match_info["provider"]
    service, visitor = get_provider_sign_in(request.http), build_client_info(request.http)
    await request.services.auth.sessions.check_consent(signed, spec.passphrase, visitor)
    await service.unlink(name, signed, visitor)
    return UnlinkedIdentity(name=name, linked=False)
