"""Links that create members (the first administrator's is printed at startup), and links that reset a passphrase."""

import asyncio
import hmac
from collections.abc import Callable

import attrs

from gateway.auth.sessions import ClientInfo, NewSession, SessionService, build_audit, digest_reference
from gateway.auth.setup_token import NEVER_MS, SETUP, find_setup_token
from gateway.auth.short_lived import ShortLived
from gateway.domain.account import Account
from gateway.domain.audit_log import GATEWAY, KINDS, Actor
from gateway.domain.member import LINK_GONE, MEMBER_NAME, Credential, InviteLink, Member
from gateway.errors import Conflict, InvalidRequest, NotFound
from gateway.frozen import frozen
from gateway.storage.accounts import AccountRepository
from gateway.storage.members import MemberRepository

PASSKEY_REQUIRED = (
    "Your second factor is a passkey, which a reset link cannot ask for: sign in with the passkey alone, or ask an "
    "administrator to remove your passkeys"
)
FIRST_ACCOUNT = "local"
"""Name of the first administrator's account: preferred among active accounts, and created if none is active."""


@frozen
class OpenedInvite:
    """A valid link. ``member`` is the member whose passphrase the link resets; None if the link creates a member."""

    link: InviteLink
    account: Account
    member: Member | None


class Invitations:
    """Signs in members by links. ``values`` stores the token of the first administrator's link."""

    def __init__(
        self,
        members: MemberRepository,
        accounts: AccountRepository,
        sessions: SessionService,
        *,
        values: ShortLived,
        clock: Callable[[], float],
    ) -> None:
        self._members = members
        self._accounts = accounts
        self._sessions = sessions
        self._clock = clock
        self._values = values
        self._setup_lock = asyncio.Lock()

    async def find_setup_token(self) -> str | None:
        """Return the first administrator's token; None if an administrator is active, or passwords are off."""
        return await find_setup_token(self._members, self._values, is_local=self._sessions.is_local)

    async def set_up(self, token: str, name: str, passphrase: str, visitor: ClientInfo) -> NewSession:
        """Create the first administrator, and sign that member in.

        Raises ``NotFound`` if the token is not valid, ``InvalidRequest`` for an unsuitable name or passphrase,
        ``Conflict`` for a taken name, ``RateLimited``.
        """
        name = parse_member_name(name)
        async with self._setup_lock:
            setup_token = await self.find_setup_token()
            if setup_token is None or not hmac.compare_digest(token.encode("utf-8", "replace"), setup_token.encode()):
                raise NotFound(LINK_GONE, param="token", should_retry=False)
            passphrase_hash = await self._sessions.hash_passphrase(passphrase, name)
            account = await self._choose_account()
            if not await self._values.remove(*SETUP):  # another node has just used the token
                raise NotFound(LINK_GONE, param="token", should_retry=False)
            member = None
            try:
                member = await self._add_member(
                    Member(0, account.id, name, "administrator", passphrase=passphrase_hash), visitor, None
                )
            finally:
                if member is None:
                    await self._values.put(*SETUP, setup_token.encode(), NEVER_MS)
        return await self._open_session(member, visitor)

    async def open_link(self, token: str) -> OpenedInvite:
        """Return a link with its account, and the member whose passphrase it resets.

        Raises ``NotFound`` if the link is unknown, has expired, or its account or member is disabled, and if members
        sign in without passwords.
        """
        link = await self._members.find_link(digest_reference(token))
        if not self._sessions.is_local or link is None or self._now_ms() >= link.expires_ms:
            raise NotFound(LINK_GONE, param="token", should_retry=False)
        accounts = await self._accounts.list_accounts()
        account = next((account for account in accounts if account.id == link.account_id), None)
        member = None if link.member_id is None else await self._members.find_member(link.member_id)
        is_disabled = (
            account is None or account.status != "active" or (member is not None and member.status != "active")
        )
        if account is None or is_disabled or (link.kind == "reset") != (member is not None):
            raise NotFound(LINK_GONE, param="token", should_retry=False)
        return OpenedInvite(link, account, member)

    async def use_link(
        self, token: str, name: str | None, passphrase: str, code: str | None, visitor: ClientInfo
    ) -> NewSession:
        """Create a member or change a passphrase, and sign in. The link becomes invalid.

        A member with a second factor needs a code of it. Raises ``NotFound`` for an invalid link, ``InvalidRequest``,
        ``SecondFactorNeeded``, ``WrongPassphrase``, ``RateLimited``, and ``Conflict`` for a taken name, or if a passkey
        is the member's only second factor.
        """
        opened_invite = await self.open_link(token)
        if opened_invite.member is not None:
            return await self._reset_passphrase(opened_invite.link, opened_invite.member, passphrase, code, visitor)
        member_name = parse_member_name(name or "")
        passphrase_hash = await self._sessions.hash_passphrase(passphrase, member_name)
        link = opened_invite.link
        member = await self._add_member(
            Member(0, link.account_id, member_name, link.role, passphrase=passphrase_hash), visitor, link.digest
        )
        return await self._open_session(member, visitor)

    async def _reset_passphrase(
        self, link: InviteLink, member: Member, passphrase: str, code: str | None, visitor: ClientInfo
    ) -> NewSession:
        if member.passkeys and member.totp is None:
            raise Conflict(PASSKEY_REQUIRED)
        proof = await self._sessions.verify_second_factor(member, code, visitor)
        passphrase_hash = await self._sessions.hash_passphrase(passphrase, member.name)
        changed_member = attrs.evolve(member, passphrase=passphrase_hash)
        audit = build_audit(_act(member, visitor), "member.passphrase_changed", member, self._now_ms())
        await self._members.put_member(member, changed_member, audit, link=link.digest, end_sessions=True)
        return await self._sessions.open(changed_member, attrs.evolve(proof, passphrase=passphrase_hash), visitor)

    async def _add_member(self, member: Member, visitor: ClientInfo, link: bytes | None) -> Member:
        now_ms = self._now_ms()
        audit = build_audit(_act(member, visitor), "member.created", member, now_ms)
        return await self._members.add_member(attrs.evolve(member, created_ms=now_ms), audit, link=link)

    async def _open_session(self, member: Member, visitor: ClientInfo) -> NewSession:
        return await self._sessions.open(member, Credential(member.passphrase, is_known=True), visitor)

    async def _choose_account(self) -> Account:
        """Return the active account ``local``, else the first active account, which is created if necessary."""
        accounts = await self._accounts.list_accounts()
        active_accounts = [account for account in accounts if account.status == "active"]
        if active_accounts:
            return next((account for account in active_accounts if account.name == FIRST_ACCOUNT), active_accounts[0])
        taken_names, name, number = {account.name for account in accounts}, FIRST_ACCOUNT, 1
        while name in taken_names:
            number += 1
            name = f"{FIRST_ACCOUNT}-{number}"
        now_ms = self._now_ms()
        return await self._accounts.add_account(Account(0, name, created_ms=now_ms))

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)


def parse_member_name(text: str) -> str:
    """Return a new member's name in lower case. Raises ``InvalidRequest``."""
    name = text.strip().lower()
    if MEMBER_NAME.match(name) is None:
        raise InvalidRequest(
            "A name has 1 to 64 letters, digits or ._@+-, and begins with a letter or digit", param="name"
        )
    if name in KINDS:  # the audit log uses these for actors without a name
        raise InvalidRequest(f"Nobody is called {name!r} here", param="name")
    return name


def _act(member: Member, visitor: ClientInfo) -> Actor:
    if not member.id:
        return attrs.evolve(GATEWAY, address=visitor.address)
    return Actor("member", member.name, member.id, member.account_id, member.account_id, visitor.address)
