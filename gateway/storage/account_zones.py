"""The accounts with a time zone, read when the gateway starts."""

from collections import defaultdict
from collections.abc import Sequence
from zoneinfo import ZoneInfoNotFoundError

from sqlalchemy import select

from gateway.domain.account_zone import AccountZone, make_zone
from gateway.domain.zone_quotas import CLUSTER_REASON, LOCAL_PERIODS
from gateway.frozen import frozen
from gateway.storage.database import Database, DatabaseStartupError
from gateway.storage.row_mapping import parse_account, parse_zones
from gateway.storage.schema import accounts, keys


@frozen
class ZonedAccount:
    """An account with a time zone, and its keys."""

    id: int
    key_ids: Sequence[int]
    zone: AccountZone


async def list_zoned_accounts(database: Database, *, is_node: bool) -> list[ZonedAccount]:
    """Return the accounts with a time zone.

    Raises ``DatabaseStartupError`` if this machine does not know a time zone and, with ``is_node``, if the quota of
    such an account or of one of its keys begins in the account's time zone.
    """
    has_zone, is_local = accounts.c.zones.is_not(None), keys.c.quota_period.in_(LOCAL_PERIODS)
    key_ids: defaultdict[int, list[int]] = defaultdict(list)
    local_keys: dict[int, str] = {}
    query = select(
        keys.c.id, keys.c.account_id, keys.c.name, (is_local & keys.c.quota_nanos.is_not(None)).label("local")
    )
    for row in await database.read_long(query.join(accounts, accounts.c.id == keys.c.account_id).where(has_zone)):
        key_ids[row.account_id].append(row.id)
        if row.local:
            local_keys[row.account_id] = f"key {row.name!r}"
    zoned_accounts = []
    for row in await database.read_long(select(accounts).where(has_zone)):
        account = parse_account(row)
        owner = f"account {account.name!r}" if account.quota.period in LOCAL_PERIODS and account.quota.capped else None
        owner = owner or local_keys.get(account.id)
        if is_node and account.timezone is not None and owner is not None:
            raise DatabaseStartupError(f"The account {account.name!r} has a time zone. The {owner} {CLUSTER_REASON}")
        try:
            zone = make_zone(parse_zones(row.zones))
        except ZoneInfoNotFoundError as error:
            raise DatabaseStartupError(f"The account {account.name!r}: {error}. Install the package tzdata") from None
        zoned_accounts.append(ZonedAccount(account.id, key_ids[account.id], zone))
    return zoned_accounts
