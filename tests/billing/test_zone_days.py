"""Accounts follow their time zones, also if this machine does not know the time zone of one of them."""

import attrs
from structlog.testing import capture_logs

from gateway.billing.balances import Balances
from gateway.billing.zone_days import set_zones
from gateway.domain.account import Account, ApiKey, Caller
from tests.support.billing_services import NOON

BERLIN, KOLKATA = (0, "Europe/Berlin"), (0, "Asia/Kolkata")


def test_a_time_zone_that_only_another_node_knows_leaves_the_former_one_and_the_other_accounts_theirs() -> None:
    balances = Balances(lambda: NOON)
    accounts = [Account(1, "acme", zones=(BERLIN,)), Account(2, "beta", zones=(KOLKATA,))]
    callers = [Caller(account, ApiKey(account.id, account.id, "app", b"", "last")) for account in accounts]
    set_zones(accounts[:1], callers, balances, None)
    changed_accounts = [attrs.evolve(accounts[0], zones=(BERLIN, (int(NOON), "Mars/Olympus_Mons"))), accounts[1]]
    with capture_logs() as logs:
        set_zones(changed_accounts, callers, balances, None)
    assert {owner: zone.periods for owner, zone in balances.zones.items()} == {1: (BERLIN,), 2: (KOLKATA,)}
    assert [(line["event"], line["account"]) for line in logs] == [("account_zone_unknown", "acme")]
