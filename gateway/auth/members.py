"""Administration of members: invite, change and remove them, and create links that reset a passphrase."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs
import orjson

from gateway.auth.invitations import parse_member_name
from gateway.auth.sessions import digest_reference, make_reference
from gateway.domain.account import Account
from gateway.domain.account_spec import build_time
from gateway.domain.audit_log import OPERATOR, Actor, AuditRow
from gateway.domain.member import LINK_LIFETIME_MS, PASSWORDS_DISABLED, InviteLink, LinkKind, Member, find_difference
from gateway.domain.member_spec import InviteSpec, MemberSpec, build_member_fields
from gateway.errors import Conflict, NotFound
from gateway.storage.accounts import AccountRepository
from gateway.storage.members import MemberRepository

Fields = dict[str, Any]
_HOUR_MS = 3_600 * 1000
_SHOWN_FIELDS = ("name", "role", "status", "may_read_bodies")
"""Fields whose old and new values appear in the audit log."""


class MemberService:
    """Administers members and the links that invite them.

    ``change_lock`` is held during every change of a member. Accounts use the same lock, because removing a member or an
    account must leave an active administrator. ``is_local`` says whether members may have a passphrase; if not, no link
    is created.
    """

    def __init__(
        self,
        members: MemberRepository,
        accounts: AccountRepository,
        *,
        clock: Callable[[], float],
        change_lock: asyncio.Lock,
        is_local: bool,
    ) -> None:
        self._members = members
        self._accounts = accounts
        self._clock = clock
        self.change_lock = change_lock
        self._is_local = is_local

    async def list_members(self, account: str | None = None) -> list[Fields]:
        names = await self._name_accounts()
        account_id = None if account is None else (await self._get_account(account)).id
        members = await self._members.list_members()
        return [_show(member, names) for member in members if account_id in {None, member.account_id}]

    async def count_members(self) -> Mapping[int, int]:
        """Return the number of members of each account that has any, by the account's id."""
        return await self._members.count_members()

    async def get(self, member_id: int) -> Fields:
        return _show(await self._get(member_id), await self._name_accounts())

    async def invite(self, spec: InviteSpec, actor: Actor = OPERATOR) -> Fields:
        """Create a link for a new member. Only this result contains its token.

        Raises ``NotFound``, and ``Conflict`` if the account is disabled or members sign in without passwords.
        """
        account = await self._get_account(spec.account)
        if account.status != "active":
            raise Conflict(f"The account {account.name!r} is disabled", param="account")
        expires_ms = self._now_ms() + spec.hours * _HOUR_MS
        return await self._create_link(
            InviteLink(b"", "invite", account.id, spec.role, 0, expires_ms), actor, account.name
        )

    async def reset(self, member_id: int, actor: Actor = OPERATOR) -> Fields:
        """Create a link that resets a passphrase. Only this result contains its token.

        Raises ``NotFound``, and ``Conflict`` if the member is disabled or members sign in without passwords.
        """
        member = await self._get(member_id)
        if member.status != "active":
            raise Conflict(f"{member.name} is disabled")
        expires_ms = self._now_ms() + LINK_LIFETIME_MS
        link = InviteLink(b"", "reset", member.account_id, member.role, 0, expires_ms, member.id)
        return await self._create_link(link, actor, member.name)

    async def _create_link(self, link: InviteLink, actor: Actor, subject: str) -> Fields:
        if not self._is_local:
            raise Conflict(PASSWORDS_DISABLED)
        token = make_reference()
        stored_link = attrs.evolve(
            link, digest=digest_reference(token), created_ms=self._now_ms(), created_by=actor.name or actor.kind
        )
        detail = {"kind": link.kind, "role": link.role, "id": stored_link.id}
        audit = self._build_audit_row(actor, "link.created", link.account_id, subject, detail)
        await self._members.add_link(stored_link, audit)
        link_fields = await self._show_links([stored_link])
        return {**link_fields[0], "token": token}

    async def list_links(self) -> list[Fields]:
        now_ms = self._now_ms()
        return await self._show_links(link for link in await self._members.list_links() if now_ms < link.expires_ms)

    async def delete_link(self, link_id: str, actor: Actor = OPERATOR) -> None:
        for link in await self._members.list_links():
            if link.id == link_id:
                audit = self._build_audit_row(actor, "link.deleted", link.account_id, link.id, {"kind": link.kind})
                if await self._members.delete_link(link.digest, audit):
                    return
        raise NotFound(f"No link has the id {link_id[:40]!r}")

    async def edit(self, member_id: int, spec: MemberSpec, actor: Actor = OPERATOR) -> Fields:
        """Change the fields that ``spec`` names. A changed role or status ends the member's sessions and reset links.

        Raises ``NotFound``, ``InvalidRequest`` for an unsuitable name, and ``Conflict`` if the name is taken, the
        same field was changed meanwhile, or no administrator would be left.
        """
        current_member = await self._get(member_id)
        changed_member = attrs.evolve(
            current_member,
            name=current_member.name if spec.name is None else parse_member_name(spec.name),
            role=spec.role or current_member.role,
            status=spec.status or current_member.status,
            may_read_bodies=(current_member.may_read_bodies if spec.may_read_bodies is None else spec.may_read_bodies),
        )
        if spec.second_factor is False:
            changed_member = attrs.evolve(changed_member, totp=None, recovery=(), passkeys=0)
        if spec.passkeys is False:
            changed_member = attrs.evolve(changed_member, passkeys=0)
        differences = find_difference(current_member, changed_member)
        if differences:
            detail: Fields = {
                name: [getattr(current_member, name), getattr(changed_member, name)]
                for name in _SHOWN_FIELDS
                if name in differences
            }
            if current_member.has_second_factor != changed_member.has_second_factor:
                detail["second_factor"] = [True, False]
            if current_member.passkeys != changed_member.passkeys:
                detail["passkeys"] = [current_member.passkeys, 0]
            audit = self._build_audit_row(
                actor, "member.edited", current_member.account_id, current_member.name, detail
            )
            ends_sessions = bool(differences & {"role", "status"})
            async with self.change_lock:
                await self._members.put_member(current_member, changed_member, audit, end_sessions=ends_sessions)
        return _show(changed_member, await self._name_accounts())

    async def delete(self, member_id: int, actor: Actor = OPERATOR) -> Member:
        member = await self._get(member_id)
        audit = self._build_audit_row(actor, "member.deleted", member.account_id, member.name, {"role": member.role})
        async with self.change_lock:
            await self._members.delete_member(member_id, audit)
        return member

    async def _get(self, member_id: int) -> Member:
        member = await self._members.find_member(member_id)
        if member is None:
            raise NotFound(f"No member has the id {member_id}")
        return member

    async def _get_account(self, name: str) -> Account:
        for account in await self._accounts.list_accounts():
            if account.name == name:
                return account
        raise NotFound(f"No account is called {name!r}", param="account")

    async def _name_accounts(self) -> dict[int, str]:
        return {account.id: account.name for account in await self._accounts.list_accounts()}

    async def _show_links(self, links: Iterable[InviteLink]) -> list[Fields]:
        accounts = await self._name_accounts()
        members = {member.id: member.name for member in await self._members.list_members()}
        return [_show_link(link, accounts.get(link.account_id, ""), members.get(link.member_id or 0)) for link in links]

    def _build_audit_row(self, actor: Actor, action: str, account_id: int, subject: str, detail: Fields) -> AuditRow:
        fields = orjson.dumps(detail).decode()
        return AuditRow(
            0,
            self._now_ms(),
            actor.kind,
            actor.name,
            actor.member_id,
            actor.address,
            action,
            account_id,
            subject,
            fields,
        )

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)


def _show(member: Member, accounts: dict[int, str]) -> Fields:
    return {**build_member_fields(member), "account": accounts.get(member.account_id, ""), "status": member.status}


def _show_link(link: InviteLink, account: str, name: str | None) -> Fields:
    """Return a link as JSON, without its token.

    ``name`` is that of the member whose passphrase the link resets; None for an invitation.
    """
    kind: LinkKind = link.kind
    return {
        "id": link.id,
        "kind": kind,
        "account": account,
        "role": link.role,
        "name": name,
        "created_at": build_time(link.created_ms // 1000),
        "created_by": link.created_by,
        "expires_at": build_time(link.expires_ms // 1000),
    }
