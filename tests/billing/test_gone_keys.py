"""What is kept of a key that is deleted: nothing in memory, also after a restart; its spending stays the account's."""

from gateway.billing.balances import Balances
from gateway.domain.account import Account, ApiKey, Caller
from gateway.domain.balance import parse_day
from gateway.domain.ledger import Spending

NOW_S = 1_800_000_000.0
ACCOUNT = Account(1, "acme")
MANY = 1_000


def make_caller(number: int) -> Caller:
    return Caller(ACCOUNT, ApiKey(number, 1, f"key {number}", b"", ""))


def count(balances: Balances) -> tuple[int, int, int]:
    return len(balances.list_balances("key")), len(balances.list_balances("account")), len(balances._pairs)


def find_spent(balances: Balances) -> int:
    return balances.find_balance("account", 1).lifetime.spent_nanos


def test_balances_of_deleted_keys_are_dropped_once_nothing_is_reserved() -> None:
    balances = Balances(lambda: NOW_S)
    held = [balances.hold_now(make_caller(number), 5 * (number % 2)) for number in range(MANY)]
    for reservation in held[4:]:
        assert reservation is not None
        balances.settle(reservation, 3, NOW_S)
    balances.drop_gone({MANY - 1}, {1})
    assert count(balances) == (5, 1, 5)  # four run, one exists
    for reservation in held[:4]:
        assert reservation is not None
        balances.settle(reservation, 3, NOW_S)
    assert find_spent(balances) == 3 * MANY
    balances.drop_gone({MANY - 1}, {1})
    assert count(balances) == (1, 1, 1)
    assert (find_spent(balances), len(balances.holds)) == (3 * MANY, 0)
    balances.drop_gone((), ())
    assert count(balances) == (0, 0, 0)


def test_balances_of_deleted_keys_are_not_loaded() -> None:
    balances, day = Balances(lambda: NOW_S), parse_day(NOW_S)
    balances.living = {"key": {1}, "account": {1}}
    lines = [Spending(1, number, 7, 5, 3, 100, 100, 100) for number in range(MANY)]
    balances.load([*lines, Spending(2, 5, 7), Spending(1, None, lifetime_credit_nanos=11)], day)
    assert count(balances)[:2] == (1, 1)
    account = balances.find_balance("account", 1)
    assert (account.lifetime.spent_nanos, account.lifetime.credit_nanos) == (7 * MANY, 11)
    assert account.turn_to(day)[0].spent_nanos == 3 * MANY
    assert balances.find_balance("key", 1).lifetime.credit_nanos == 100
