"""Admin API: a member's identities at sign-in providers."""

from functools import partial
from typing import Any

from gateway.domain.member_spec import ConsentSpec
from gateway.frozen import frozen
from gateway.server.admin.handler import AdminRequest, admin_operation
from gateway.server.admin.sessions import build_client_info, read_small_body
from gateway.server.provider_flow import begin_flow, get_provider_sign_in, set_flow_cookie

_RETURN_PATH = "/console/account"


@frozen(kw_only=True)
class IdentityView:
    """A sign-in provider; ``linked``: the member can sign in with it."""

    name: str
    title: str
    linked: bool


@frozen(kw_only=True)
class BegunLink:
    """The address at which the browser continues."""

    continue_at: str


@frozen(kw_only=True)
class UnlinkedIdentity:
    """A sign-in provider that the member can no longer sign in with."""

    name: str
    linked: bool


@admin_operation()
async def list_identities(request: AdminRequest) -> list[IdentityView]:
    """List the sign-in providers; ``linked`` marks those that you can sign in with."""
    service, user = request.services.sign_in, request.user
    identities: Any = [] if service is None else await service.list_identities(user.member)
    return [IdentityView(**identity) for identity in identities]


@admin_operation(takes=ConsentSpec)
async def link_identity(request: AdminRequest) -> BegunLink:
    """Link your identity at a sign-in provider to you; the browser goes on at ``continue_at``."""
    spec, user = await read_small_body(request, ConsentSpec), request.user
    sessions = request.services.auth.sessions
    get_provider_sign_in(request.http)
    await sessions.check_consent(user, spec.passphrase, build_client_info(request.http))
    redirect = await begin_flow(request.http, _RETURN_PATH, user)
    request.finish.append(partial(set_flow_cookie, request.http, flow=redirect))
    return BegunLink(continue_at=redirect.url)


@admin_operation(takes=ConsentSpec)
async def unlink_identity(request: AdminRequest) -> UnlinkedIdentity:
    """Unlink your identity at a sign-in provider; you then sign in with your passphrase."""
    spec, user, name = await read_small_body(request, ConsentSpec), request.user, request.match_info["provider"]
    service, visitor = get_provider_sign_in(request.http), build_client_info(request.http)
    await request.services.auth.sessions.check_consent(user, spec.passphrase, visitor)
    await service.unlink(name, user, visitor)
    return UnlinkedIdentity(name=name, linked=False)
