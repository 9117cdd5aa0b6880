"""Admin API: passkeys of members. Options and answers are those of the browser's ``navigator.credentials``."""

from collections.abc import Sequence

from gateway.answer_fields import Moment
from gateway.domain.member_spec import ConsentSpec
from gateway.domain.passkey import RelyingParty
from gateway.domain.passkey_spec import AssertionSpec, AttestationSpec, PasskeyNameSpec, PasskeyStartSpec
from gateway.errors import InvalidRequest, NotFound
from gateway.frozen import frozen
from gateway.server.admin.answer import build_view
from gateway.server.admin.handler import AdminRequest, Fields, admin_operation
from gateway.server.admin.sessions import SignedInView, build_client_info, build_signed_in, read_small_body
from gateway.server.openapi import schema as s
from gateway.server.query import is_number
from gateway.server.sessions import find_site


@frozen(kw_only=True)
class PasskeyView:
    """A passkey of a member."""

    id: int
    name: str
    transports: Sequence[str]
    created_at: Moment
    used_at: Moment | None


@frozen(kw_only=True)
class DeletedPasskey:
    """A passkey that was removed."""

    id: int
    deleted: bool


_CREDENTIALS_SCHEMA = s.array(s.record(type=s.TEXT, id=s.TEXT, transports=s.array(s.TEXT)))
_CREATION_SCHEMA = s.record(
    challenge=s.TEXT,
    rp=s.record(id=s.TEXT, name=s.TEXT),
    user=s.record(id=s.TEXT, name=s.TEXT, displayName=s.TEXT),
    pubKeyCredParams=s.array(s.record(type=s.TEXT, alg=s.INTEGER)),
    authenticatorSelection=s.record(residentKey=s.TEXT, userVerification=s.TEXT),
    attestation=s.TEXT,
    excludeCredentials=_CREDENTIALS_SCHEMA,
    timeout=s.COUNT,
)
_REQUEST_SCHEMA = s.record(
    challenge=s.TEXT, rpId=s.TEXT, allowCredentials=_CREDENTIALS_SCHEMA, userVerification=s.TEXT, timeout=s.COUNT
)


@admin_operation(takes=PasskeyStartSpec, answer=_REQUEST_SCHEMA)
async def start_passkey_sign_in(request: AdminRequest) -> Fields:
    """Get options to sign in with a passkey: alone, or as second factor after ``name`` and ``passphrase``.

    The challenge is valid for five minutes and for one sign-in.
    """
    spec, service, site = (
        await read_small_body(request, PasskeyStartSpec),
        request.services.auth.passkeys,
        _get_relying_party(request),
    )
    if spec.name is None and spec.passphrase is None:
        return service.start_sign_in(site)
    if spec.name is None or spec.passphrase is None:
        raise InvalidRequest("Send both name and passphrase, or none of them", param="name")
    client = build_client_info(request.http)
    return await service.start_second_factor(site, spec.name, spec.passphrase, client)


@admin_operation(takes=AssertionSpec, status=201)
async def sign_in_with_passkey(request: AdminRequest) -> SignedInView:
    """Sign in with a passkey. The answer sets the session's cookie."""
    spec = await read_small_body(request, AssertionSpec)
    new_session = await request.services.auth.passkeys.sign_in(
        _get_relying_party(request), spec.parse(), build_client_info(request.http)
    )
    return build_signed_in(request, new_session)


@admin_operation()
async def list_passkeys(request: AdminRequest) -> list[PasskeyView]:
    """List your own passkeys, the oldest first."""
    passkeys = await request.services.auth.passkeys.list_passkeys(request.user.member.id)
    return [build_view(PasskeyView, passkey) for passkey in passkeys]


@admin_operation(takes=ConsentSpec, answer=_CREATION_SCHEMA)
async def start_passkey_registration(request: AdminRequest) -> Fields:
    """Get options to register a passkey. The challenge is valid for five minutes, once, in this session."""
    spec, user = await read_small_body(request, ConsentSpec), request.user
    client = build_client_info(request.http)
    return await request.services.auth.passkeys.start_registration(
        _get_relying_party(request), user, spec.passphrase, client
    )


@admin_operation(takes=AttestationSpec, status=201)
async def register_passkey(request: AdminRequest) -> PasskeyView:
    """Register a passkey. From now on you sign in with it, or with your passphrase and a second factor."""
    spec, user = await read_small_body(request, AttestationSpec), request.user
    client = build_client_info(request.http)
    passkey = await request.services.auth.passkeys.register(_get_relying_party(request), user, spec.parse(), client)
    return build_view(PasskeyView, passkey)


@admin_operation(takes=PasskeyNameSpec)
async def rename_passkey(request: AdminRequest) -> PasskeyView:
    """Rename one of your own passkeys."""
    spec, user = await read_small_body(request, PasskeyNameSpec), request.user
    service = request.services.auth.passkeys
    passkey = await service.rename(user, _parse_id(request), spec.name, build_client_info(request.http))
    return build_view(PasskeyView, passkey)


@admin_operation(takes=ConsentSpec)
async def remove_passkey(request: AdminRequest) -> DeletedPasskey:
    """Remove one of your own passkeys."""
    spec, user, passkey_id = await read_small_body(request, ConsentSpec), request.user, _parse_id(request)
    service = request.services.auth.passkeys
    await service.remove(user, passkey_id, spec.passphrase, build_client_info(request.http))
    return DeletedPasskey(id=passkey_id, deleted=True)


def _get_relying_party(request: AdminRequest) -> RelyingParty:
    return request.services.auth.passkeys.check_ready(find_site(request.http))


def _parse_id(request: AdminRequest) -> int:
    text = request.match_info["id"]
    if not is_number(text):
        raise NotFound(f"You have no passkey with the id {text[:40]!r}")
    return int(text)
