"""Admin API: sign in and out, create the first administrator, use links, and change one's own sign-in data."""

from collections.abc import Sequence
from functools import partial
from typing import TypeVar

from aiohttp import web

from gateway.answer_fields import Count, Moment
from gateway.auth.sessions import ClientInfo, CurrentUser, NewSession
from gateway.domain.account_spec import build_time
from gateway.domain.member import LinkKind, Role
from gateway.domain.member_spec import (
    CodeSpec,
    ConsentSpec,
    LinkUseSpec,
    PassphraseSpec,
    RemovalSpec,
    SetupSpec,
    SignInSpec,
    TokenSpec,
    build_member_fields,
)
from gateway.errors import RequestTooLarge
from gateway.frozen import frozen
from gateway.parsing import parse_spec
from gateway.server.admin.answer import build_view
from gateway.server.admin.handler import AdminRequest, Fields, admin_operation
from gateway.server.client_ip import find_client_ip, find_origin
from gateway.server.request_body import read_json
from gateway.server.sessions import check_still_signed_in, clear_cookie, find_reference, set_cookie

S = TypeVar("S")
_MAX_BODY_BYTES = 16 * 1024


@frozen(kw_only=True)
class MemberView:
    """A member as it sees itself."""

    id: int
    name: str
    role: Role
    second_factor: bool
    authenticator: bool
    recovery_left: Count
    passkeys: Count
    may_read_bodies: bool
    created_at: Moment
    signed_in_at: Moment | None


@frozen(kw_only=True)
class OwnAccountView:
    """The account of a member."""

    id: int
    name: str


@frozen(kw_only=True)
class SessionView:
    """A session of a member."""

    id: str
    created_at: Moment
    seen_at: Moment
    address: str
    agent: str


@frozen(kw_only=True)
class ListedSessionView(SessionView):
    """A session; ``current`` is the one of the request."""

    current: bool


@frozen(kw_only=True)
class OwnSessionView:
    """The member who is signed in, and its session.

    ``keep_bodies`` is the rule by which the gateway keeps prompts and answers of keys that have no rule of their own.
    """

    member: MemberView
    account: OwnAccountView
    session: SessionView
    keep_bodies: str


@frozen(kw_only=True)
class SignedInView:
    """The member who has signed in."""

    member: MemberView
    account: OwnAccountView
    expires_at: Moment


@frozen(kw_only=True)
class SignedOutView:
    """The answer to a sign-out. ``continue_at`` is the page that ends the session at the sign-in provider, or null."""

    signed_out: bool
    continue_at: str | None


@frozen(kw_only=True)
class EndedSession:
    """A session that was ended."""

    id: str
    deleted: bool


@frozen(kw_only=True)
class EndedSessions:
    """How many sessions were ended."""

    deleted: Count


@frozen(kw_only=True)
class NewSecondFactor:
    """The secret of a second factor, as an authenticator app reads it."""

    secret: str
    uri: str
    qr_svg: str


@frozen(kw_only=True)
class RecoveryCodes:
    """The codes that replace a second factor, each of them once."""

    recovery_codes: Sequence[str]


@frozen(kw_only=True)
class SecondFactorState:
    """Whether the member has a second factor."""

    second_factor: bool


@frozen(kw_only=True)
class SetupState:
    """Whether the console still needs its first administrator."""

    open: bool


@frozen(kw_only=True)
class OpenedLinkView:
    """What a link is for; ``name`` is the member whose passphrase it resets."""

    kind: LinkKind
    account: str
    role: Role
    name: str | None
    expires_at: Moment


@admin_operation(takes=SignInSpec, status=201)
async def sign_in(request: AdminRequest) -> SignedInView:
    """Sign in. The answer sets the session's cookie.

    401 ``second_factor_needed``: repeat the request with a ``code``. After five wrong attempts each further one must
    wait (429, ``Retry-After``).
    """
    spec = await read_small_body(request, SignInSpec)
    new_session = await request.services.auth.sessions.sign_in(
        spec.name, spec.passphrase, spec.code, build_client_info(request.http)
    )
    return build_signed_in(request, new_session)


@admin_operation()
async def get_session(request: AdminRequest) -> OwnSessionView:
    """Get the member who is signed in, and the session."""
    user = request.user
    rule = request.services.live_config.keep_bodies or "none"
    return OwnSessionView(**_build_user(user), session=build_view(SessionView, user.session), keep_bodies=rule)


@admin_operation()
async def sign_out(request: AdminRequest) -> SignedOutView:
    """Sign out: end the session and clear its cookie.

    ``continue_at`` is the page at which the browser also signs out of the sign-in provider; null without a provider, or
    if it has no such page.
    """
    services, user = request.services, request.user
    origin = services.http.base_url or find_origin(request.http)
    return_url = f"{origin}/console/sign-in" if origin else None
    provider_url = None if services.sign_in is None else await services.sign_in.sign_out(user, return_url)
    await services.auth.sessions.sign_out(user, build_client_info(request.http))
    request.finish.append(partial(clear_cookie, request.http))
    return SignedOutView(signed_out=True, continue_at=provider_url)


@admin_operation()
async def list_sessions(request: AdminRequest) -> list[ListedSessionView]:
    """List your own sessions, the newest first; ``current`` marks the one of this request."""
    user = request.user
    sessions = await request.services.auth.sessions.list_sessions(user)
    return [
        build_view(ListedSessionView, session, current=session.digest == user.session.digest) for session in sessions
    ]


@admin_operation()
async def end_session(request: AdminRequest) -> EndedSession:
    """End one of your own sessions."""
    session_id = request.match_info["id"]
    await request.services.auth.sessions.end_session(request.user, session_id, build_client_info(request.http))
    return EndedSession(id=session_id, deleted=True)


@admin_operation()
async def end_other_sessions(request: AdminRequest) -> EndedSessions:
    """End all of your own sessions except this one."""
    ended_count = await request.services.auth.sessions.end_others(request.user, build_client_info(request.http))
    return EndedSessions(deleted=ended_count)


@admin_operation(takes=PassphraseSpec)
async def change_passphrase(request: AdminRequest) -> SignedInView:
    """Change your passphrase. All other sessions end, and the answer sets a new cookie."""
    spec, user = await read_small_body(request, PassphraseSpec), request.user
    sessions = request.services.auth.sessions
    new_session = await sessions.change_passphrase(user, spec.current, spec.passphrase, build_client_info(request.http))
    return build_signed_in(request, new_session)


@admin_operation(takes=ConsentSpec)
async def begin_second_factor(request: AdminRequest) -> NewSecondFactor:
    """Start the setup of a second factor. It is in force after ``confirm`` gets a code, within 10 minutes."""
    spec = await read_small_body(request, ConsentSpec)
    enrolment = await request.services.auth.sessions.enrol(
        request.user, spec.passphrase, build_client_info(request.http)
    )
    return NewSecondFactor(secret=enrolment.secret, uri=enrolment.uri, qr_svg=enrolment.qr_svg)


@admin_operation(takes=CodeSpec)
async def confirm_second_factor(request: AdminRequest) -> RecoveryCodes:
    """Confirm a second factor with its first code. The answer is the only one that shows the recovery codes."""
    spec = await read_small_body(request, CodeSpec)
    codes = await request.services.auth.sessions.confirm(request.user, spec.code, build_client_info(request.http))
    return RecoveryCodes(recovery_codes=codes)


@admin_operation(takes=RemovalSpec)
async def remove_second_factor(request: AdminRequest) -> SecondFactorState:
    """Remove your second factor."""
    spec, user = await read_small_body(request, RemovalSpec), request.user
    sessions = request.services.auth.sessions
    await sessions.remove_second_factor(user, spec.passphrase, spec.code, build_client_info(request.http))
    return SecondFactorState(second_factor=False)


@admin_operation()
async def get_setup(request: AdminRequest) -> SetupState:
    """Get whether the console still needs its first administrator."""
    return SetupState(open=await request.services.auth.invitations.find_setup_token() is not None)


@admin_operation(takes=SetupSpec, status=201)
async def set_up(request: AdminRequest) -> SignedInView:
    """Create the first administrator, with the token of the link that the gateway prints at its start, and sign in."""
    spec = await read_small_body(request, SetupSpec)
    new_session = await request.services.auth.invitations.set_up(
        spec.token, spec.name, spec.passphrase, build_client_info(request.http)
    )
    return build_signed_in(request, new_session)


@admin_operation(takes=TokenSpec)
async def open_link(request: AdminRequest) -> OpenedLinkView:
    """Get the purpose of a link; ``name`` is the member whose passphrase it resets."""
    opened_link = await request.services.auth.invitations.open_link((await read_small_body(request, TokenSpec)).token)
    member, link = opened_link.member, opened_link.link
    return OpenedLinkView(
        kind=link.kind,
        account=opened_link.account.name,
        role=link.role if member is None else member.role,
        name=None if member is None else member.name,
        expires_at=build_time(link.expires_ms // 1000),
    )


@admin_operation(takes=LinkUseSpec, status=201)
async def use_link(request: AdminRequest) -> SignedInView:
    """Use a link: create a member by ``name``, or set a new passphrase, and sign in.

    401 ``second_factor_needed``: repeat the request with the ``code`` of the member whose passphrase is reset.
    """
    spec, visitor = await read_small_body(request, LinkUseSpec), build_client_info(request.http)
    new_session = await request.services.auth.invitations.use_link(
        spec.token, spec.name, spec.passphrase, spec.code, visitor
    )
    return build_signed_in(request, new_session)


async def read_small_body(request: AdminRequest, kind: type[S]) -> S:
    """Parse a small body. The limit is low because clients without a session may send one.

    Raises ``SignedOut`` if the sender's session has ended, ``InvalidRequest``, and the errors of ``read_json``.
    """
    try:
        fields = await read_json(request.http.clone(client_max_size=_MAX_BODY_BYTES))
    except RequestTooLarge:
        raise RequestTooLarge(f"The request body is larger than {_MAX_BODY_BYTES // 1024} KB") from None
    await check_still_signed_in(request.http)
    return parse_spec(fields, kind)


def build_client_info(request: web.Request) -> ClientInfo:
    """Return the address, the user agent and the session reference of a request."""
    agent = request.headers.get("User-Agent", "").encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return ClientInfo(find_client_ip(request) or "", agent, find_reference(request))


def build_signed_in(request: AdminRequest, new_session: NewSession) -> SignedInView:
    """Return the signed-in member, and set the session cookie in the response."""
    request.finish.append(partial(set_cookie, request.http, reference=new_session.reference))
    return SignedInView(**_build_user(new_session.user), expires_at=build_time(new_session.user.expires_ms // 1000))


def _build_user(user: CurrentUser) -> Fields:
    account = user.account
    return {
        "member": MemberView(**build_member_fields(user.member)),
        "account": OwnAccountView(id=account.id, name=account.name),
    }
