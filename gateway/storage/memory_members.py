"""Members, their sessions and links in memory. They ship, and keep the same contract as the database's.

Nothing here waits for anything but a store in memory, so on the event loop each verb is as whole as a commit.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from gateway.domain.account import Account
from gateway.domain.audit_log import AuditRow
from gateway.domain.member import (
    CHANGED_MEANWHILE,
    DISABLED,
    LAST_ADMINISTRATOR,
    LINK_GONE,
    Credential,
    Forbidden,
    InviteLink,
    Member,
    Session,
    WrongPassphrase,
    find_difference,
)
from gateway.errors import Conflict, NotFound
from gateway.storage.memory_audit import MemoryAuditTrail


class MemoryMemberStore:
    """``domain.member.MemberStore`` in dictionaries.

    Args:
        accounts: in memory too; members of an account that is gone are gone.
        trail: where audit rows go.
    """

    def __init__(self, accounts: Any, trail: MemoryAuditTrail) -> None:
        self._accounts = accounts
        self._trail = trail
        self._members: dict[int, Member] = {}
        self._sessions: dict[bytes, Session] = {}
        self._links: dict[bytes, InviteLink] = {}
        self._last_id = 0

    async def list_members(self) -> Sequence[Member]:
        """Every member, by id."""
        await self._follow_accounts()
        return list(self._members.values())

    async def find_member(self, member_id: int) -> Member | None:
        """One member."""
        await self._follow_accounts()
        return self._members.get(member_id)

    async def find_member_called(self, name: str) -> Member | None:
        """The member of that name."""
        return next((member for member in await self.list_members() if member.name == name), None)

    async def is_administered(self) -> bool:
        """Whether an active member of an active account is an administrator."""
        return _is_administered(self._members, await self._follow_accounts())

    async def add_member(self, member: Member, audit: AuditRow | None = None, *, link: bytes | None = None) -> Member:
        """Store a new member and return it with its id."""
        accounts = await self._follow_accounts()
        self._check_link(link)
        self._check_name(member)
        if member.account_id not in accounts:
            raise NotFound(f"No account has the id {member.account_id}")
        self._last_id += 1
        made = attrs.evolve(member, id=self._last_id)
        self._members[made.id] = made
        self._links.pop(link or b"", None)
        self._trail.note(audit)
        return made

    async def put_member(
        self,
        before: Member,
        after: Member,
        audit: AuditRow | None = None,
        *,
        link: bytes | None = None,
        end_sessions: bool = False,
    ) -> None:
        """Change what differs."""
        accounts = await self._follow_accounts()
        now = self._get(after.id)
        different = find_difference(before, after)
        if find_difference(before, now) & different:
            raise Conflict(CHANGED_MEANWHILE)
        self._check_link(link)
        self._check_name(after)
        changed = attrs.evolve(now, **{name: getattr(after, name) for name in different})
        self._replace({**self._members, after.id: changed}, accounts)
        self._links.pop(link or b"", None)
        if end_sessions:
            self._forget(after.id)
        self._trail.note(audit)

    async def delete_member(self, member_id: int, audit: AuditRow | None = None) -> None:
        """Remove a member with its sessions and links."""
        accounts = await self._follow_accounts()
        self._get(member_id)
        self._replace({key: member for key, member in self._members.items() if key != member_id}, accounts)
        self._forget(member_id)
        self._trail.note(audit)

    async def add_session(
        self,
        session: Session,
        proof: Credential,
        audit: AuditRow | None = None,
        *,
        replaces: bytes | None = None,
    ) -> None:
        """Store a new session, and use up what was shown for it."""
        accounts = await self._follow_accounts()
        known = self._members.get(session.member_id)
        member = None if known is None else known.accept(proof)
        if member is None:
            raise WrongPassphrase
        if {member.status, accounts[member.account_id].status} != {"active"}:
            raise Forbidden(DISABLED, should_retry=False)
        self._members[member.id] = attrs.evolve(member, signed_in_ms=session.created_ms)
        self._sessions.pop(replaces or b"", None)
        self._sessions[session.digest] = session
        self._trail.note(audit)

    async def find_session(self, digest: bytes) -> tuple[Session, Member, Account] | None:
        """A session, its member and that one's account."""
        accounts = await self._follow_accounts()
        session = self._sessions.get(digest)
        if session is None:
            return None
        member = self._members[session.member_id]
        return session, member, accounts[member.account_id]

    async def touch_session(self, digest: bytes, seen_ms: int) -> None:
        """It was used."""
        session = self._sessions.get(digest)
        if session is not None and session.seen_ms < seen_ms:
            self._sessions[digest] = attrs.evolve(session, seen_ms=seen_ms)

    async def list_sessions(self, member_id: int) -> Sequence[Session]:
        """A member's sessions, the newest first."""
        await self._follow_accounts()
        own = (session for session in self._sessions.values() if session.member_id == member_id)
        return sorted(own, key=lambda session: (-session.created_ms, session.digest))

    async def delete_sessions(self, digests: Sequence[bytes], audit: AuditRow | None = None) -> int:
        """End sessions; how many there were."""
        await self._follow_accounts()
        ended = sum(self._sessions.pop(digest, None) is not None for digest in digests)
        self._trail.note(audit if ended else None)
        return ended

    async def sweep_sessions(self, now_ms: int) -> int:
        """Forget sessions that are over and links that are no longer good; how many there were."""
        before = len(self._sessions) + len(self._links)
        self._sessions = {key: session for key, session in self._sessions.items() if not session.is_over(now_ms)}
        self._links = {key: link for key, link in self._links.items() if now_ms < link.expires_ms}
        return before - len(self._sessions) - len(self._links)

    async def add_link(self, link: InviteLink, audit: AuditRow | None = None) -> None:
        """Store a new link."""
        accounts = await self._follow_accounts()
        if link.account_id not in accounts or (link.member_id is not None and link.member_id not in self._members):
            raise NotFound("The account or the member that the link is for is not there any more")
        self._links[link.digest] = link
        self._trail.note(audit)

    async def find_link(self, digest: bytes) -> InviteLink | None:
        """A link, good or not."""
        await self._follow_accounts()
        return self._links.get(digest)

    async def list_links(self) -> Sequence[InviteLink]:
        """Every link, the newest first."""
        await self._follow_accounts()
        return sorted(self._links.values(), key=lambda link: (-link.created_ms, link.digest))

    async def delete_link(self, digest: bytes, audit: AuditRow | None = None) -> bool:
        """Take a link back; whether there was one."""
        await self._follow_accounts()
        found = self._links.pop(digest, None) is not None
        self._trail.note(audit if found else None)
        return found

    async def _follow_accounts(self) -> dict[int, Account]:
        """Every account, by id; what was of one that is gone is gone from here on."""
        accounts = {account.id: account for account in await self._accounts.list_accounts()}
        for member in [member for member in self._members.values() if member.account_id not in accounts]:
            del self._members[member.id]
            self._forget(member.id)
        self._links = {key: link for key, link in self._links.items() if link.account_id in accounts}
        return accounts

    def _replace(self, members: dict[int, Member], accounts: Mapping[int, Account]) -> None:
        if _is_administered(self._members, accounts) and not _is_administered(members, accounts):
            raise Conflict(LAST_ADMINISTRATOR)
        self._members = members

    def _forget(self, member_id: int) -> None:
        self._sessions = {key: one for key, one in self._sessions.items() if one.member_id != member_id}
        self._links = {key: link for key, link in self._links.items() if link.member_id != member_id}

    def _get(self, member_id: int) -> Member:
        if member_id not in self._members:
            raise NotFound(f"No member has the id {member_id}")
        return self._members[member_id]

    def _check_link(self, link: bytes | None) -> None:
        if link is not None and link not in self._links:
            raise NotFound(LINK_GONE)

    def _check_name(self, member: Member) -> None:
        if any(other.name == member.name and other.id != member.id for other in self._members.values()):
            raise Conflict(f"A member called {member.name!r} exists already", param="name")


def _is_administered(members: Mapping[int, Member], accounts: Mapping[int, Account]) -> bool:
    return any(
        member.role == "administrator" and {member.status, accounts[member.account_id].status} == {"active"}
        for member in members.values()
    )
