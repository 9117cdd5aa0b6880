"""What three limits beside those of key and account add to a request, in Python-level calls and in CPU time."""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

from gateway.billing.balances import Balances
from gateway.billing.limits import SpendingLimits
from gateway.billing.write_queue import WriteQueue
from gateway.domain.account import Account, ApiKey, Caller
from gateway.domain.attribution import Attribution
from gateway.domain.limit import Limit
from gateway.domain.limit_balance import LimitBalance
from gateway.domain.limit_window import parse_window
from gateway.storage.database import Database
from gateway.storage.limit_counters import LimitCounters
from tests.support.billing_services import call_for
from tests.support.called_functions import list_called
from tests.support.contexts import make_context

NOW_S = 1_750_000_000.0
MAX_CALLS = 25
MAX_US = 12
BLOCKS, ROUNDS = 10, 200
LIMITS = (
    Limit("each user", "user", cap_nanos=10**15, window=parse_window("day"), timezone="Europe/Berlin"),
    Limit("each team", "tag", "team", cap_nanos=10**15, window=parse_window("rolling:7d")),
    Limit("large models", "model", "m*", cap_nanos=10**15, window=parse_window("month")),
)


def pay(limits: tuple[Limit, ...]) -> Callable[[], Any]:
    """A request reserved and settled, as the quota does."""
    balances = Balances(lambda: NOW_S)
    caller = Caller(Account(1, "acme"), ApiKey(7, 1, "laptop", b"", ""))
    ctx = make_context(caller, call_for(1_000))
    ctx.attribution = Attribution("u-17", "run-42", "feature=search,team=web")
    if limits:
        balances.limits = spending = SpendingLimits(LimitCounters(cast("Database", None)), WriteQueue(), lambda: NOW_S)
        spending.replace(limits)
        assert balances.reserve_now(caller, 1, ctx) is None, "what was spent is not known yet"
        for book in spending.list_books():
            for balance in book.balances.values():
                assert isinstance(balance, LimitBalance)
                balance.adopt({}, book.start_s - book.rolling_s)

    def run() -> None:
        reservation = balances.reserve_now(caller, 1_000, ctx)
        assert reservation is not None
        balances.settle(reservation, 100, NOW_S)
        assert bool(reservation.limit_charges) == bool(limits)

    run()
    return run


def test_three_limits_take_few_steps_more() -> None:
    plain, limited = Counter(list_called(pay(()))), Counter(list_called(pay(LIMITS)))
    more = limited - plain
    print(f"\nthree limits: {more.total()} calls more of at most {MAX_CALLS}", end="")
    assert more.total() <= MAX_CALLS, more


def test_the_time_of_three_limits_is_shown() -> None:
    """In turn, and of each the best block: what else the machine does makes a block slower, and none faster."""
    blocks_us: list[list[float]] = [[], []]
    works = pay(()), pay(LIMITS)
    for _ in range(BLOCKS):
        for work, block_us in zip(works, blocks_us, strict=True):
            start_ns = time.process_time_ns()
            for _ in range(ROUNDS):
                work()
            block_us.append((time.process_time_ns() - start_ns) / ROUNDS / 1000)
    plain_us, limited_us = map(min, blocks_us)
    print(f"\nthree limits: {limited_us - plain_us:.1f} us more than {plain_us:.1f} us, of at most {MAX_US}", end="")
    assert limited_us > plain_us
