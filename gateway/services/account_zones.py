"""Reads the time zones of accounts for limits and balances when the gateway starts."""

from gateway.billing.live_limits import LiveLimits
from gateway.domain.account_zone import AccountZone
from gateway.storage.account_zones import list_zoned_accounts
from gateway.storage.database import Database


async def load_zones(database: Database, limits: LiveLimits, *, is_node: bool) -> dict[int, AccountZone]:
    """Set the time zones of accounts in ``limits``; return the time zones by the accounts' ids.

    Raises the errors of ``list_zoned_accounts``.
    """
    zoned_accounts = await list_zoned_accounts(database, is_node=is_node)
    for zoned_account in zoned_accounts:
        limits.set_zone(zoned_account.id, zoned_account.key_ids, zoned_account.zone)
    return {zoned_account.id: zoned_account.zone for zoned_account in zoned_accounts}
