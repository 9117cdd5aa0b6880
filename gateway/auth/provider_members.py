"""Members of OpenID Connect providers: the claims of an ID token decide about admission, role and account.

A member is identified by issuer and subject, never by its name or e-mail address, which others may choose. Each sign-in
evaluates role and account again. A removed member returns only if ``create`` is true, as a new member, which the audit
log records. To keep a person out, disable the member instead, or remove the role at the provider.
"""

import asyncio
from collections.abc import Callable

import attrs
import orjson

from gateway.auth.sessions import ClientInfo, build_audit
from gateway.auth.sign_in_flow import Flow
from gateway.auth.sign_in_provider import Claims, SignInProvider, list_names
from gateway.domain.account import Account
from gateway.domain.audit_log import GATEWAY, Actor, build_change
from gateway.domain.member import DISABLED_TEXT, Forbidden, Identity, Member, find_difference
from gateway.storage.accounts import AccountRepository
from gateway.storage.identities import IdentityRepository
from gateway.storage.members import MemberRepository

BEGIN_AGAIN = "This sign-in was not begun in this browser, has ended, or took too long: begin again"
ROLE_MISSING = "The sign-in provider knows you, but has given you no role here. Ask an administrator"
MEMBER_MISSING = "You are not a member here. Ask an administrator"
CLAIM_MISSING = "The sign-in provider does not say which account you belong to (claim {!r}). Ask an administrator"
ACCOUNT_MISSING = "The account that you belong to does not exist here, or is disabled. Ask an administrator"


class ProviderMembers:
    """Finds, creates and changes members by their claims. ``change_lock`` is the lock of ``MemberService``."""

    def __init__(
        self,
        members: MemberRepository,
        identities: IdentityRepository,
        accounts: AccountRepository,
        *,
        clock: Callable[[], float],
        change_lock: asyncio.Lock,
    ) -> None:
        self._members = members
        self._identities = identities
        self._accounts = accounts
        self._clock = clock
        self._change_lock = change_lock

    async def admit(self, spec: SignInProvider, claims: Claims, visitor: ClientInfo) -> Member:
        """Return the member of the claims, created or updated from them. Raises ``Forbidden``, ``Conflict``."""
        async with self._change_lock:
            identity = await self._identities.find_identity(claims["iss"], claims["sub"])
            member = None
            if identity is not None and identity.member_id is not None:
                member = await self._members.find_member(identity.member_id)
            if member is None:
                return await self._create(spec, claims, visitor, was_removed=identity is not None)
            return await self._update(spec, claims, member, visitor)

    async def _create(self, spec: SignInProvider, claims: Claims, visitor: ClientInfo, *, was_removed: bool) -> Member:
        role = spec.find_role(claims) if spec.roles else "viewer"
        if not spec.create:
            raise Forbidden(MEMBER_MISSING, should_retry=False)
        if role is None:
            raise Forbidden(ROLE_MISSING, should_retry=False)
        account = await self._find_account(spec, claims)
        identity, now_ms = Identity(claims["iss"], claims["sub"]), self._now_ms()
        detail = orjson.dumps({"provider": spec.name, "role": role, "removed_before": was_removed}).decode()
        taken_names = {member.name for member in await self._members.list_members()}
        names = list_names(claims)
        name = next((name for name in names if name not in taken_names), names[-1])
        member = Member(0, account.id, name, role, created_ms=now_ms)
        audit = build_audit(_act(visitor), "member.created", member, now_ms, detail)
        return await self._members.add_member(member, audit, identity=identity)

    async def _update(
        self, spec: SignInProvider, claims: Claims, current_member: Member, visitor: ClientInfo
    ) -> Member:
        """Update the member's role and account from the claims; return the member.

        A change, or the loss of the role, ends all sessions of the member. Raises ``Forbidden`` if the member is
        disabled or the claims give no role or account.
        """
        if current_member.status != "active":
            raise Forbidden(DISABLED_TEXT, should_retry=False)
        role = spec.find_role(claims) if spec.roles else current_member.role
        if role is None:
            await self._end_sessions(current_member, visitor)
            raise Forbidden(ROLE_MISSING, should_retry=False)
        account_id = current_member.account_id
        if spec.account_claim is not None:
            account_id = (await self._find_account(spec, claims)).id
        changed_member = attrs.evolve(current_member, role=role, account_id=account_id)
        if find_difference(current_member, changed_member):
            fields = ("role", "account_id")
            change = build_change(
                *({name: getattr(member, name) for name in fields} for member in (current_member, changed_member))
            )
            audit = build_audit(_act(visitor), "member.edited", current_member, self._now_ms(), change)
            await self._members.put_member(current_member, changed_member, audit, end_sessions=True)
        return changed_member

    async def _end_sessions(self, member: Member, visitor: ClientInfo) -> None:
        digests = [session.digest for session in await self._members.list_sessions(member.id)]
        audit = build_audit(_act(visitor), "session.ended", member, self._now_ms())
        await self._members.delete_sessions(digests, audit)

    async def _find_account(self, spec: SignInProvider, claims: Claims) -> Account:
        name = spec.find_account(claims)
        if name is None and spec.account_claim is not None:
            raise Forbidden(CLAIM_MISSING.format(spec.account_claim), should_retry=False)
        for account in await self._accounts.list_accounts():
            if account.name == name and account.status == "active":
                return account
        raise Forbidden(ACCOUNT_MISSING, should_retry=False)

    async def link(self, claims: Claims, flow: Flow, visitor: ClientInfo) -> None:
        """Link the identity to the member whose session began the flow.

        Raises ``Forbidden`` if the session has ended or the member is disabled, and ``Conflict`` if the identity
        belongs to another member.
        """
        stored_session = await self._members.find_session(bytes.fromhex(flow.session))
        if stored_session is None or stored_session[0].is_over(self._now_ms()) or stored_session[1].status != "active":
            raise Forbidden(BEGIN_AGAIN, should_retry=False)
        member, detail = stored_session[1], orjson.dumps({"provider": flow.provider}).decode()
        audit = build_audit(_act(visitor), "member.linked", member, self._now_ms(), detail)
        async with self._change_lock:
            await self._identities.link(Identity(claims["iss"], claims["sub"], member.id), audit)

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)


def _act(visitor: ClientInfo) -> Actor:
    return attrs.evolve(GATEWAY, address=visitor.address)
