"""In a cluster, an account with a time zone has no quota that would have to begin at its midnight."""

import pytest

from gateway.domain.account import Account, ApiKey
from gateway.domain.balance import Quota, QuotaPeriod
from gateway.domain.zone_quotas import check_quotas
from gateway.errors import InvalidRequest


@pytest.mark.parametrize("period", ["daily", "monthly"])
def test_local_quotas_are_refused_with_their_owner_and_field(period: QuotaPeriod) -> None:
    quota = Quota(1, period)
    with pytest.raises(InvalidRequest, match="The account 'a' has a daily or monthly quota") as refused:
        check_quotas(Account(1, "a", quota=quota), (), "timezone")
    assert refused.value.param == "timezone"
    with pytest.raises(InvalidRequest, match="The key 'k' has a daily or monthly quota") as refused:
        check_quotas(Account(1, "a"), [ApiKey(1, 1, "k", b"", "", quota=quota)], "quota_period")
    assert refused.value.param == "quota_period"


def test_quotas_without_a_midnight_are_allowed() -> None:
    keys = [ApiKey(1, 1, "k", b"", "", quota=quota) for quota in (Quota(1, "lifetime"), Quota(None, "daily"), Quota())]
    check_quotas(Account(1, "a", quota=Quota(5, "none")), keys, "timezone")
