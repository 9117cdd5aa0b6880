"""Finds declared accounts whose time zones the nodes of a cluster cannot follow."""

from collections.abc import Iterator, Sequence

from gateway.domain.account_spec import AccountSpec, KeySpec
from gateway.domain.zone_quotas import CLUSTER_REASON, LOCAL_PERIODS


def find_zone_problems(accounts: Sequence[AccountSpec], keys: Sequence[KeySpec]) -> Iterator[tuple[str, str]]:
    """Yield path and problem of each account that has a time zone, and a daily or monthly quota for itself or a key."""
    for index, account in enumerate(accounts):
        if account.timezone in {None, "UTC"}:
            continue
        owners: list[AccountSpec | KeySpec] = [account, *(key for key in keys if key.account == account.name)]
        for owner in owners:
            if owner.quota_usd is not None and owner.quota_period in LOCAL_PERIODS:
                noun = "account" if owner is account else "key"
                yield f"account[{index}].timezone", f"expected no value: the {noun} {owner.name!r} {CLUSTER_REASON}"
                break
