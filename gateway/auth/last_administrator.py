"""Ensures that an active administrator remains: without one, no member can manage the gateway any more."""

from gateway.domain.member import LAST_ADMINISTRATOR
from gateway.errors import Conflict
from gateway.storage.accounts import AccountRepository
from gateway.storage.members import MemberRepository


async def check_account_may_go(members: MemberRepository, accounts: AccountRepository, account_id: int) -> None:
    """Raise ``Conflict`` if every active administrator belongs to the account ``account_id``."""
    active_ids = {account.id for account in await accounts.list_accounts() if account.status == "active"}
    account_ids = {
        member.account_id
        for member in await members.list_members()
        if member.role == "administrator" and member.status == "active"
    }
    if account_ids & active_ids == {account_id}:
        raise Conflict(LAST_ADMINISTRATOR)
