"""Admin API: members, and the links that invite them or let them set a new passphrase."""

from gateway.domain.member import ROLES
from gateway.domain.member_spec import InviteSpec, MemberSpec
from gateway.domain.passkey_spec import build_passkey
from gateway.errors import NotFound
from gateway.parsing import parse_spec
from gateway.server.admin.handler import AdminRequest, Fields, Query, admin_operation
from gateway.server.admin.io import read_change
from gateway.server.admin.passkeys import PASSKEY
from gateway.server.admin.sessions import MEMBER
from gateway.server.client_ip import find_public_url
from gateway.server.openapi import schema as s
from gateway.server.query import is_number

JOIN_PATH = "/console/join"
SETUP_PATH = "/console/setup"
_SHOWN = s.extend(MEMBER, account=s.TEXT, status=s.one_of("active", "disabled"))
_LINK = s.record(
    id=s.TEXT,
    kind=s.one_of("invite", "reset"),
    account=s.TEXT,
    role=s.one_of(*ROLES),
    name=s.maybe(s.TEXT),
    created_at=s.MOMENT,
    created_by=s.TEXT,
    expires_at=s.MOMENT,
)
_NEW_LINK = s.extend(_LINK, token=s.TEXT, url=s.TEXT)


_DELETED = s.record(id=s.INTEGER, name=s.TEXT, deleted=s.FLAG)


@admin_operation(query=(Query("account", "A name."),), answer=s.listing(_SHOWN))
async def list_members(request: AdminRequest) -> list[Fields]:
    """List members, of all accounts or of one."""
    return await request.services.auth.members.list_members(request.query.get("account"))


@admin_operation(answer=s.extend(_SHOWN, passkey_list=s.array(PASSKEY)))
async def get_member(request: AdminRequest) -> Fields:
    """Get a member with its passkeys, as ``passkey_list``."""
    auth, member_id = request.services.auth, _parse_member_id(request)
    member = await auth.members.get(member_id)
    passkeys = await auth.passkeys.list_passkeys(member_id)
    return {**member, "passkey_list": list(map(build_passkey, passkeys))}


@admin_operation(takes=MemberSpec, partly=True, answer=_SHOWN)
async def edit_member(request: AdminRequest) -> Fields:
    """Change fields of a member.

    A change of role or status ends its sessions; ``second_factor: false`` removes that with all passkeys, and
    ``passkeys: false`` only the passkeys.
    """
    spec = parse_spec(await read_change(request), MemberSpec)
    return await request.services.auth.members.edit(_parse_member_id(request), spec, request.actor)


@admin_operation(answer=_DELETED)
async def delete_member(request: AdminRequest) -> Fields:
    """Delete a member. Its account and the account's keys stay."""
    member = await request.services.auth.members.delete(_parse_member_id(request), request.actor)
    return {"id": member.id, "name": member.name, "deleted": True}


@admin_operation(answer=_NEW_LINK, status=201)
async def reset_member(request: AdminRequest) -> Fields:
    """Create a link that resets a member's passphrase: single use, valid for three days, shown only in this answer."""
    return _add_url(request, await request.services.auth.members.reset(_parse_member_id(request), request.actor))


@admin_operation(takes=InviteSpec, answer=_NEW_LINK, status=201)
async def add_link(request: AdminRequest) -> Fields:
    """Create an invitation link for a new member of an account: single use, shown only in this answer."""
    spec = parse_spec(await read_change(request), InviteSpec)
    return _add_url(request, await request.services.auth.members.invite(spec, request.actor))


@admin_operation(answer=s.listing(_LINK))
async def list_links(request: AdminRequest) -> list[Fields]:
    """List the valid links, the newest first, without their tokens."""
    return await request.services.auth.members.list_links()


@admin_operation(answer=s.record(id=s.TEXT, deleted=s.FLAG))
async def delete_link(request: AdminRequest) -> Fields:
    """Revoke a link."""
    link_id = request.match_info["id"]
    await request.services.auth.members.delete_link(link_id, request.actor)
    return {"id": link_id, "deleted": True}


def _add_url(request: AdminRequest, link: Fields) -> Fields:
    # Browsers do not send what follows a '#', so it gets into no server's log.
    return {**link, "url": f"{find_public_url(request.http)}{JOIN_PATH}#{link['token']}"}


def _parse_member_id(request: AdminRequest) -> int:
    """Return the member id in the path. Raises ``NotFound``."""
    text = request.match_info["id"]
    if not is_number(text):
        raise NotFound(f"No member has the id {text[:40]!r}")
    return int(text)
