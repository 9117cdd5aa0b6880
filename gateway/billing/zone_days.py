"""Makes the days of balances and limits begin in the time zones of their accounts."""

from collections.abc import Collection, Iterable, Sequence

import attrs
import structlog

from gateway.billing.balances import Balances
from gateway.billing.live_limits import LiveLimits
from gateway.domain.account import Account, Caller
from gateway.domain.account_zone import AccountZone, make_known_zone
from gateway.domain.balance import UtcDay

log = structlog.stdlib.get_logger(__name__)


def narrow_day(day: UtcDay, zones: Collection[AccountZone], now_s: float) -> UtcDay:
    """Return the part of ``day`` around ``now_s`` in which no day or month of ``zones`` begins."""
    local_days = [zone.find_local_day(int(now_s)) for zone in zones]
    starts_s = [max(local.start_s, local.month_start_s) for local in local_days]
    ends_s = [min(local.end_s, local.month_end_s) for local in local_days]
    return attrs.evolve(day, since_s=max(day.start_s, *starts_s), until_s=min(day.end_s, *ends_s))


def set_zones(
    accounts: Sequence[Account], callers: Iterable[Caller], balances: Balances | None, limits: LiveLimits | None
) -> None:
    """Let balances and limits follow the time zones of ``accounts``. ``callers`` are all keys in force.

    A time zone that only another node of the cluster knows is logged, and the former one stays in force.
    """
    key_ids: dict[int, list[int]] = {account.id: [] for account in accounts}
    for caller in callers:
        if caller.account.id in key_ids:
            key_ids[caller.account.id].append(caller.key.id)
    for account in accounts:
        zone = make_known_zone(account.zones)
        if zone.periods != account.zones:
            log.error("account_zone_unknown", account=account.name, reason="Install the package tzdata of all nodes")
        if balances is not None:
            balances.set_zone(account.id, key_ids[account.id], zone)
        if limits is not None:
            limits.set_zone(account.id, key_ids[account.id], zone)
