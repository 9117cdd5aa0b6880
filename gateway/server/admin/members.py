"""Admin API: members, and the links for invitations and passphrase resets."""

from collections.abc import Sequence

from gateway.answer_fields import Moment
from gateway.domain.account import Status
from gateway.domain.member import ROLES, LinkKind, Role
from gateway.domain.member_spec import InviteSpec, MemberSpec
from gateway.errors import InvalidRequest, NotFound
from gateway.frozen import frozen
from gateway.parsing import parse_spec
from gateway.server.admin.answer import build_view
from gateway.server.admin.handler import AdminRequest, Fields, ListPage, Query, admin_operation
from gateway.server.admin.io import ACCOUNT_QUERY, read_change
from gateway.server.admin.listing import Listing
from gateway.server.admin.passkeys import PasskeyView
from gateway.server.admin.sessions import MemberView
from gateway.server.client_ip import find_public_url
from gateway.server.openapi import schema as s
from gateway.server.query import is_number

JOIN_PATH = "/console/join"
SETUP_PATH = "/console/setup"


@frozen(kw_only=True)
class ListedMemberView(MemberView):
    """A member as administrators see it."""

    account: str
    status: Status


@frozen(kw_only=True)
class WholeMemberView(ListedMemberView):
    """A member with its passkeys."""

    passkey_list: Sequence[PasskeyView]


@frozen(kw_only=True)
class LinkView:
    """A link; ``name`` is the member whose passphrase it resets."""

    id: str
    kind: LinkKind
    account: str
    role: Role
    name: str | None
    created_at: Moment
    created_by: str
    expires_at: Moment


@frozen(kw_only=True)
class NewLinkView(LinkView):
    """A link with its token, which only the answer to its creation has."""

    token: str
    url: str


@frozen(kw_only=True)
class DeletedMember:
    """A member that was deleted."""

    id: int
    name: str
    deleted: bool


@frozen(kw_only=True)
class DeletedLink:
    """A link that was deleted."""

    id: str
    deleted: bool


_LISTING = Listing[ListedMemberView](
    find_id=lambda member: str(member.id),
    find_texts=lambda member: (member.name, member.account),
    sort_keys={
        "name": lambda member: member.name,
        "account": lambda member: member.account,
        "role": lambda member: member.role,
        "status": lambda member: member.status,
        "created_at": lambda member: member.created_at,
        "signed_in_at": lambda member: member.signed_in_at,
    },
    searched_fields="the member's name or account",
)
_ROLE_QUERY = Query("role", "Only members with this role.", s.one_of(*ROLES))


@admin_operation(query=(ACCOUNT_QUERY, _ROLE_QUERY, *_LISTING.query))
async def list_members(request: AdminRequest) -> ListPage[ListedMemberView]:
    """List members, of all accounts or of one."""
    role = request.query.get("role")
    if role is not None and role not in ROLES:
        raise InvalidRequest(f"'role' must be one of {', '.join(ROLES)}", param="role")
    members = await request.services.auth.members.list_members(request.query.get("account"))
    views = (ListedMemberView(**member) for member in members)
    return _LISTING.list_page(request, (member for member in views if role in {None, member.role}))


@admin_operation()
async def get_member(request: AdminRequest) -> WholeMemberView:
    """Get a member with its passkeys, as ``passkey_list``."""
    auth, member_id = request.services.auth, _parse_member_id(request)
    member = await auth.members.get(member_id)
    passkeys = await auth.passkeys.list_passkeys(member_id)
    return WholeMemberView(**member, passkey_list=[build_view(PasskeyView, passkey) for passkey in passkeys])


@admin_operation(takes=MemberSpec, partly=True)
async def edit_member(request: AdminRequest) -> ListedMemberView:
    """Change fields of a member.

    A change of role or status ends its sessions; ``second_factor: false`` removes that with all passkeys, and
    ``passkeys: false`` only the passkeys.
    """
    spec = parse_spec(await read_change(request), MemberSpec)
    return ListedMemberView(**await request.services.auth.members.edit(_parse_member_id(request), spec, request.actor))


@admin_operation()
async def delete_member(request: AdminRequest) -> DeletedMember:
    """Delete a member. Its account and the account's keys stay."""
    member = await request.services.auth.members.delete(_parse_member_id(request), request.actor)
    return DeletedMember(id=member.id, name=member.name, deleted=True)


@admin_operation(status=201)
async def reset_member(request: AdminRequest) -> NewLinkView:
    """Create a link that resets a member's passphrase: single use, valid for three days, shown only in this answer."""
    return _add_url(request, await request.services.auth.members.reset(_parse_member_id(request), request.actor))


@admin_operation(takes=InviteSpec, status=201)
async def add_link(request: AdminRequest) -> NewLinkView:
    """Create an invitation link for a new member of an account: single use, shown only in this answer."""
    spec = parse_spec(await read_change(request), InviteSpec)
    return _add_url(request, await request.services.auth.members.invite(spec, request.actor))


@admin_operation()
async def list_links(request: AdminRequest) -> list[LinkView]:
    """List the valid links, the newest first, without their tokens."""
    return [LinkView(**link) for link in await request.services.auth.members.list_links()]


@admin_operation()
async def delete_link(request: AdminRequest) -> DeletedLink:
    """Revoke a link."""
    link_id = request.match_info["id"]
    await request.services.auth.members.delete_link(link_id, request.actor)
    return DeletedLink(id=link_id, deleted=True)


def _add_url(request: AdminRequest, link: Fields) -> NewLinkView:
    # Browsers do not send the fragment after '#', which keeps the token out of server logs.
    return NewLinkView(**link, url=f"{find_public_url(request.http)}{JOIN_PATH}#{link['token']}")


def _parse_member_id(request: AdminRequest) -> int:
    text = request.match_info["id"]
    if not is_number(text):
        raise NotFound(f"No member has the id {text[:40]!r}")
    return int(text)
