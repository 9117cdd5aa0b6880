"""Daily and monthly quotas, which nodes of a cluster cannot begin at midnight of an account's time zone."""

from collections.abc import Iterable

from gateway.domain.account import Account, ApiKey
from gateway.domain.balance import QuotaPeriod
from gateway.errors import InvalidRequest

CLUSTER_REASON = (
    "has a daily or monthly quota, which begins at midnight UTC in a cluster: with a time zone, use a [[limit]] of "
    '"key" or "account" instead'
)
LOCAL_PERIODS: tuple[QuotaPeriod, ...] = ("daily", "monthly")
"""The quotas whose periods begin at midnight."""


def check_quotas(account: Account, keys: Iterable[ApiKey], param: str) -> None:
    """Raise ``InvalidRequest`` if the account, or one of its keys, has a daily or monthly quota.

    Call it for an account with a time zone: the days of such quotas would have to begin at midnight there.
    """
    owners: list[Account | ApiKey] = [account, *keys]
    for owner in owners:
        if owner.quota.capped and owner.quota.period in LOCAL_PERIODS:
            noun = "account" if owner is account else "key"
            raise InvalidRequest(f"The {noun} {owner.name!r} {CLUSTER_REASON}", param=param)
