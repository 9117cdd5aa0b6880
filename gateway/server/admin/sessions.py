"""Admin API: sign in and out, and what members change about themselves."""

from functools import partial
from typing import TypeVar

from aiohttp import web

from gateway.auth.sessions import ClientInfo, CurrentUser, NewSession
from gateway.domain.account_spec import build_time
from gateway.domain.member import ROLES, Session
from gateway.domain.member_spec import (
    CodeSpec,
    ConsentSpec,
    LinkUseSpec,
    PassphraseSpec,
    RemovalSpec,
    SetupSpec,
    SignInSpec,
    TokenSpec,
    build_member,
)
from gateway.errors import RequestTooLarge
from gateway.parsing import parse_spec
from gateway.server.admin.handler import AdminRequest, Fields, admin_operation
from gateway.server.client_ip import find_client_ip, find_origin
from gateway.server.openapi import schema as s
from gateway.server.request_body import read_json
from gateway.server.sessions import check_still_signed, clear_cookie, find_reference, set_cookie

MEMBER = s.record(
    id=s.INTEGER,
    name=s.TEXT,
    role=s.one_of(*ROLES),
    second_factor=s.FLAG,
    recovery_left=s.COUNT,
    authenticator=s.FLAG,
    passkeys=s.COUNT,
    created_at=s.MOMENT,
    signed_in_at=s.maybe(s.MOMENT),
)
S = TypeVar("S")
_MAX_BODY = 16 * 1024
_ACCOUNT = s.record(id=s.INTEGER, name=s.TEXT)
_SESSION = s.record(id=s.TEXT, created_at=s.MOMENT, seen_at=s.MOMENT, address=s.TEXT, agent=s.TEXT)
ENTRY = s.record(member=MEMBER, account=_ACCOUNT, expires_at=s.MOMENT)
_SIGNED_OUT = s.record(signed_out=s.FLAG, continue_at=s.maybe(s.TEXT))
_OPENED = s.record(
    kind=s.one_of("invite", "reset"), account=s.TEXT, role=s.one_of(*ROLES), name=s.maybe(s.TEXT), expires_at=s.MOMENT
)


@admin_operation(takes=SignInSpec, answer=ENTRY, status=201)
async def sign_in(request: AdminRequest) -> Fields:
    """Sign in. The answer sets the session's cookie.

    401 ``second_factor_needed``: repeat the request with a ``code``. After five wrong attempts each further one must
    wait
    (429, ``Retry-After``).
    """
    spec = await read_small(request, SignInSpec)
    entry = await request.services.auth.sessions.sign_in(
        spec.name, spec.passphrase, spec.code, build_client_info(request.http)
    )
    return build_signed_in(request, entry)


@admin_operation(answer=s.record(member=MEMBER, account=_ACCOUNT, session=_SESSION))
async def get_session(request: AdminRequest) -> Fields:
    """Get the member who is signed in."""
    signed = request.signed
    return {**_build_user(signed), "session": _build_session(signed.session)}


@admin_operation(answer=s.record(signed_out=s.FLAG, continue_at=s.maybe(s.TEXT)))
async def sign_out(request: AdminRequest) -> Fields:
    """Sign out: end the session and clear its cookie.

    ``continue_at`` is the page at which the browser ends its session at the sign-in provider that began this one.
    """
    services, signed = request.services, request.signed
    origin = services.http.base_url or find_origin(request.http)
    back = f"{origin}/console/sign-in" if origin else None
    elsewhere = None if services.sign_in is None else await services.sign_in.sign_out(signed, back)
    await services.auth.sessions.sign_out(signed, build_client_info(request.http))
    request.finish.append(partial(clear_cookie, request.http))
    return {"signed_out": True, "continue_at": elsewhere}


@admin_operation(answer=s.listing(s.extend(_SESSION, current=s.FLAG)))
async def list_sessions(request: AdminRequest) -> list[Fields]:
    """List your own sessions, the newest first; ``current`` marks the one of this request."""
    signed = request.signed
    found = await request.services.auth.sessions.list_sessions(signed)
    return [{**_build_session(session), "current": session.digest == signed.session.digest} for session in found]


@admin_operation(answer=s.record(id=s.TEXT, deleted=s.FLAG))
async def end_session(request: AdminRequest) -> Fields:
    """End one of your own sessions."""
    session_id = request.match_info["id"]
    await request.services.auth.sessions.end_session(request.signed, session_id, build_client_info(request.http))
    return {"id": session_id, "deleted": True}


@admin_operation(answer=s.record(deleted=s.COUNT))
async def end_other_sessions(request: AdminRequest) -> Fields:
    """End all of your own sessions except this one."""
    ended = await request.services.auth.sessions.end_others(request.signed, build_client_info(request.http))
    return {"deleted": ended}


@admin_operation(takes=PassphraseSpec, answer=ENTRY)
async def change_passphrase(request: AdminRequest) -> Fields:
    """Change your passphrase. All other sessions end, and the answer sets a new cookie."""
    spec, signed = await read_small(request, PassphraseSpec), request.signed
    sessions = request.services.auth.sessions
    entry = await sessions.change_passphrase(signed, spec.current, spec.passphrase, build_client_info(request.http))
    return build_signed_in(request, entry)


@admin_operation(takes=ConsentSpec, answer=s.record(secret=s.TEXT, uri=s.TEXT, qr_svg=s.TEXT))
async def begin_second_factor(request: AdminRequest) -> Fields:
    """Start the setup of a second factor. It is in force after ``confirm`` gets a code, within 10 minutes."""
    spec = await read_small(request, ConsentSpec)
    made = await request.services.auth.sessions.enrol(request.signed, spec.passphrase, build_client_info(request.http))
    return {"secret": made.secret, "uri": made.uri, "qr_svg": made.qr_svg}


@admin_operation(takes=CodeSpec, answer=s.record(recovery_codes=s.array(s.TEXT)))
async def confirm_second_factor(request: AdminRequest) -> Fields:
    """Confirm a second factor with its first code. The answer is the only one that shows the recovery codes."""
    spec = await read_small(request, CodeSpec)
    codes = await request.services.auth.sessions.confirm(request.signed, spec.code, build_client_info(request.http))
    return {"recovery_codes": codes}


@admin_operation(takes=RemovalSpec, answer=s.record(second_factor=s.FLAG))
async def remove_second_factor(request: AdminRequest) -> Fields:
    """Remove your second factor."""
    spec, signed = await read_small(request, RemovalSpec), request.signed
    sessions = request.services.auth.sessions
    await sessions.remove_second_factor(signed, spec.passphrase, spec.code, build_client_info(request.http))
    return {"second_factor": False}


@admin_operation(answer=s.record(open=s.FLAG))
async def get_setup(request: AdminRequest) -> Fields:
    """Get whether the console still needs its first administrator."""
    return {"open": await request.services.auth.invitations.find_setup_token() is not None}


@admin_operation(takes=SetupSpec, answer=ENTRY, status=201)
async def set_up(request: AdminRequest) -> Fields:
    """Create the first administrator, with the token of the link that the gateway prints at its start, and sign in."""
    spec = await read_small(request, SetupSpec)
    entry = await request.services.auth.invitations.set_up(
        spec.token, spec.name, spec.passphrase, build_client_info(request.http)
    )
    return build_signed_in(request, entry)


@admin_operation(takes=TokenSpec, answer=_OPENED)
async def open_link(request: AdminRequest) -> Fields:
    """Get the purpose of a link; ``name`` is the member whose passphrase it resets."""
    opened = await request.services.auth.invitations.open_link((await read_small(request, TokenSpec)).token)
    member, link = opened.member, opened.link
    return {
        "kind": link.kind,
        "account": opened.account.name,
        "role": link.role if member is None else member.role,
        "name": None if member is None else member.name,
        "expires_at": build_time(link.expires_ms // 1000),
    }


@admin_operation(takes=LinkUseSpec, answer=ENTRY, status=201)
async def use_link(request: AdminRequest) -> Fields:
    """Use a link: create a member by ``name``, or set a new passphrase, and sign in.

    401 ``second_factor_needed``: repeat the request with the ``code`` of the member whose passphrase is reset.
    """
    spec, visitor = await read_small(request, LinkUseSpec), build_client_info(request.http)
    entry = await request.services.auth.invitations.use_link(spec.token, spec.name, spec.passphrase, spec.code, visitor)
    return build_signed_in(request, entry)


async def read_small(request: AdminRequest, kind: type[S]) -> S:
    """Parse a small body: anyone may send one, signed in or not."""
    try:
        fields = await read_json(request.http.clone(client_max_size=_MAX_BODY))
    except RequestTooLarge:
        raise RequestTooLarge(f"The request body is larger than {_MAX_BODY // 1024} KB") from None
    await check_still_signed(request.http)
    return parse_spec(fields, kind)


def build_client_info(request: web.Request) -> ClientInfo:
    """Return the address, the user agent and the session reference of a request."""
    agent = request.headers.get("User-Agent", "").encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return ClientInfo(find_client_ip(request) or "", agent, find_reference(request))


def build_signed_in(request: AdminRequest, entry: NewSession) -> Fields:
    """Return the member who signed in; the response sets the cookie of the session."""
    request.finish.append(partial(set_cookie, request.http, reference=entry.reference))
    return {**_build_user(entry.signed), "expires_at": build_time(entry.signed.expires_ms // 1000)}


def _build_user(signed: CurrentUser) -> Fields:
    account = signed.account
    return {"member": build_member(signed.member), "account": {"id": account.id, "name": account.name}}


def _build_session(session: Session) -> Fields:
    return {
        "id": session.id,
        "created_at": build_time(session.created_ms // 1000),
        "seen_at": build_time(session.seen_ms // 1000),
        "address": session.address,
        "agent": session.agent,
    }
