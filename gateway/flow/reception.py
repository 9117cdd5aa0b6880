"""Who is at the door of the console: members sign in, are known by their sessions, and leave."""

import hashlib
from collections.abc import Callable

import attrs

from gateway.domain.audit import Actor
from gateway.domain.caller import Account, AccountStore
from gateway.domain.member import Member, MemberStore, Session


@attrs.frozen
class Signed:
    """Somebody who is signed in, as the store has it at this moment."""

    member: Member
    account: Account
    session: Session

    def act(self, address: str) -> Actor:
        """Who asks for a change, and from where."""
        member = self.member
        scope = None if member.role == "administrator" else member.account_id
        return Actor("member", member.name, member.id, member.account_id, scope, address)


SEEN_EVERY_MS = 60_000
"""A session's last use is written this often at most."""


class Reception:
    """Knows who is signed in.

    Args:
        members: where members, their sessions and links live.
        accounts: where accounts live.
        clock: Unix seconds.
    """

    def __init__(self, members: MemberStore, accounts: AccountStore, *, clock: Callable[[], float]) -> None:
        self._members = members
        self._accounts = accounts
        self._clock = clock

    async def find(self, reference: str) -> Signed | None:
        """Who is signed in with the session of that reference; None where it is over, or they may not be any more.

        Raises ``StoreUnavailable``.
        """
        found = await self._members.find_session(digest_reference(reference))
        if found is None:
            return None
        session, member = found
        now_ms = int(self._clock() * 1000)
        if session.is_over(now_ms) or member.status != "active":
            return None
        accounts = await self._accounts.list_accounts()
        account = next((account for account in accounts if account.id == member.account_id), None)
        if account is None or account.status != "active":
            return None
        if now_ms >= session.seen_ms + SEEN_EVERY_MS:
            await self._members.touch_session(session.digest, now_ms)
        return Signed(member, account, session)


def digest_reference(reference: str) -> bytes:
    """What is kept of a session's reference or a link's: 256 random bits need no key to be hashed under."""
    return hashlib.sha256(reference.encode("utf-8", "surrogateescape")).digest()
