"""What is kept of a key that is deleted: nothing in memory, also after a restart; its spending stays the account's."""

from collections.abc import Callable, Collection

from gateway.billing.balances import Balances
from gateway.domain.account import Account, ApiKey, Caller
from gateway.domain.balance import Quota, Reservation, parse_day
from gateway.domain.ledger import Spending
from tests.support.billing_services import NOON
from tests.support.credit_cluster import MemoryNode
from tests.support.credit_memory import MemoryCredit
from tests.support.table_rows import table_rows

NOW_S = 1_800_000_000.0
ACCOUNT = Account(1, "acme")
MANY = 1_000
Delete = Callable[[], None]
Use = Callable[[Balances, Delete], None]


def make_caller(number: int, quota_nanos: int | None = None) -> Caller:
    quota = Quota() if quota_nanos is None else Quota(quota_nanos, "lifetime")
    return Caller(ACCOUNT, ApiKey(number, 1, f"key {number}", b"", "", quota=quota))


def count(balances: Balances) -> tuple[int, int, int]:
    return len(balances.list_balances("key")), len(balances.list_balances("account")), len(balances._pairs)


def find_spent(balances: Balances) -> int:
    return balances.find_balance("account", 1).lifetime.spent_nanos


def hold(balances: Balances, nanos: int = 5) -> Reservation:
    reservation = balances.reserve_now(make_caller(1), nanos)
    assert reservation is not None
    return reservation


def delete(balances: Balances, keys: Collection[int], accounts: Collection[int] = ()) -> None:
    """Delete ``keys`` of all that have a balance, and ``accounts``."""
    known = {owner: {number for number, _ in balances.list_balances(owner)} for owner in ("key", "account")}
    living = {"key": known["key"] - set(keys), "account": known["account"] - set(accounts)}
    balances.drop_gone(living, {"key": keys, "account": accounts})  # type: ignore[arg-type]


def end_before(balances: Balances, delete: Delete) -> None:
    balances.settle(hold(balances), 3, NOW_S)
    delete()


def end_after(balances: Balances, delete: Delete) -> None:
    reservation = hold(balances)
    delete()
    balances.settle(reservation, 3, NOW_S)


def end_free(balances: Balances, delete: Delete) -> None:
    reservation = hold(balances, 0)
    delete()
    balances.settle(reservation, 3, NOW_S)


def release(balances: Balances, delete: Delete) -> None:
    reservation = hold(balances)
    balances.settle(hold(balances), 3, NOW_S)
    delete()
    balances.release(reservation)


def begin_after(balances: Balances, delete: Delete) -> None:
    balances.settle(hold(balances), 0, NOW_S)
    delete()
    balances.settle(hold(balances), 3, NOW_S)


def restore_job(balances: Balances, delete: Delete) -> None:
    delete()
    balances.settle(balances.restore(1, 1, 5), 3, NOW_S)


def end_two(balances: Balances, delete: Delete) -> None:
    first, second = hold(balances), hold(balances, 0)
    delete()
    balances.settle(first, 3, NOW_S)
    assert count(balances)[0] == 1  # the second has it still
    balances.settle(second, 0, NOW_S)


@table_rows("use", [end_before, end_after, end_free, release, begin_after, restore_job, end_two])
@table_rows("node", ["alone", "of several"])
def test_the_balance_of_a_deleted_key_is_dropped_once_nothing_is_reserved(use: Use, node: str) -> None:
    balances = Balances(lambda: NOW_S) if node == "alone" else MemoryNode(MemoryCredit(), "a").balances
    balances.find_balance("account", 1)
    use(balances, lambda: balances.drop_gone({"key": (), "account": {1}}, {"key": {1}, "account": ()}))
    assert count(balances) == (0, 1, 0)
    assert find_spent(balances) == 3
    assert not balances.reservations


def test_an_account_is_dropped_with_its_keys() -> None:
    balances = Balances(lambda: NOW_S)
    for number in range(MANY):
        reservation = balances.reserve_now(make_caller(number), 5)
        assert reservation is not None
        balances.settle(reservation, 3, NOW_S)
    delete(balances, range(1, MANY))
    assert count(balances) == (1, 1, 1)
    assert find_spent(balances) == 3 * MANY
    delete(balances, [0], [1])
    assert count(balances) == (0, 0, 0)


def test_a_key_that_a_reload_has_not_seen_yet_keeps_its_credit() -> None:
    balances = Balances(lambda: NOW_S)
    balances.drop_gone({"key": (), "account": {1}}, {"key": (), "account": ()})
    balances.find_balance("key", 1).add_credit(100, balances.today)  # the key is stored
    balances.drop_gone({"key": (), "account": {1}}, {"key": (), "account": ()})  # by a reload that began before
    balances.drop_gone({"key": {1}, "account": {1}}, {"key": (), "account": ()})
    balances.settle(hold(balances), 3, NOW_S)
    assert balances.find_balance("key", 1).lifetime.credit_nanos == 100


async def test_a_node_returns_the_credit_of_a_deleted_key() -> None:
    credit, caller = MemoryCredit(), make_caller(1, 1_000)
    node = MemoryNode(credit, "a")
    credit.open(("key", 1), 1_000, parse_day(NOON))
    request = node.begin(caller, 10)
    await node.step()
    node.settle(caller, await request, 7)
    assert node.find(("key", 1)).room_nanos > 0
    node.balances.drop_gone({"key": (), "account": {1}}, {"key": {1}, "account": ()})
    assert count(node.balances) == (0, 1, 0)
    await node.step()
    node.post()
    assert [lease.outstanding for lease in credit.balances["key", 1].leases.values()] == [0]


def test_balances_of_deleted_keys_are_not_loaded() -> None:
    balances, day = Balances(lambda: NOW_S), parse_day(NOW_S)
    balances.existing = {"key": {1}, "account": {1}}
    lines = [Spending(1, number, 7, 5, 3, 100, 100, 100) for number in range(MANY)]
    balances.add_spending([*lines, Spending(2, 5, 7), Spending(1, None, lifetime_credit_nanos=11)], day)
    assert count(balances)[:2] == (1, 1)
    account = balances.find_balance("account", 1)
    assert (account.lifetime.spent_nanos, account.lifetime.credit_nanos) == (7 * MANY, 11)
    assert account.begin_day(day)[0].spent_nanos == 3 * MANY
    assert balances.find_balance("key", 1).lifetime.credit_nanos == 100
