"""What money costs in CPU: printed, never asserted as time. ``make bench-parts`` shows it.

Budget: 25 us a request for admission and settlement in memory, 40 us a request in the writer at 1,000 a second.
"""

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from gateway.billing.balances import Balances
from gateway.billing.quota import QuotaService
from gateway.billing.rate_limiter import InMemoryRateLimiter
from gateway.billing.settlement import Settlement
from gateway.billing.write_queue import FULL_BATCH_ROWS, WriteQueue
from gateway.domain.account import Account, ApiKey, Caller
from gateway.domain.balance import Quota
from gateway.domain.channel import Channel
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.price import Price
from gateway.domain.rate_limit import Limits
from gateway.domain.request_log import RequestRecord, RequestStart
from gateway.domain.usage import Usage
from gateway.providers.base import CHAT
from gateway.routing.channel_state import ChannelState, KeyState
from gateway.routing.target import Target
from gateway.storage.journal import RequestJournal
from gateway.storage.ledger import LedgerRepository
from gateway.storage.open import open_database
from tests.support.contexts import make_attempt, make_context

CALLS = 2_000
ROUNDS = 5
PER_COMMIT = FULL_BATCH_ROWS
"""Rows a commit at 1,000 requests a second."""

PRICE = Price("m", input_nanos_per_million=10**9, output_nanos_per_million=4 * 10**9)
LINE = ChannelState(Channel("up", "custom", "http://127.0.0.1/v1"), (KeyState(""),))
OPTIONS = [Target(LINE, CHAT, "m", PRICE)]
CALL = InferenceRequest("chat", "m", {}, stream=True, prompt_chars=400, max_prompt_tokens=500, max_output_tokens=4_096)
CAPPED = Quota(10**15, "monthly")


class NoJournal(RequestJournal):
    """A journal without a file: what remains is the cost of the money."""

    def __init__(self) -> None:
        self.failing = False

    @override
    def start_at_once(self, start: RequestStart) -> bool:
        return True

    @override
    def record_end(self, row: RequestRecord) -> None:
        """Nothing."""

    @override
    def forget(self, ids: Iterable[str]) -> None:
        """Nothing."""


class LedgerScenario:
    """Admission and settlement with everything on, and no request around them."""

    def __init__(self, journal: RequestJournal, limits: Limits) -> None:
        self.write_queue = WriteQueue(max_rows=10**9)
        self.balances = Balances(time.time)
        self.quota = QuotaService(
            self.balances, InMemoryRateLimiter(time.monotonic), journal, self.write_queue, refresh=lambda caller: caller
        )
        self.settlement = Settlement(
            self.quota, journal, self.write_queue, find_abandoned=lambda: "charge", ended=deque()
        )
        account = Account(1, "acme", quota=CAPPED, limits=limits)
        self.caller = Caller(account, ApiKey(1, 1, "test", b"", "last", quota=CAPPED, limits=limits))

    async def call(self, number: int) -> RequestRecord:
        now_ms = int(time.time() * 1000)
        ctx = make_context(self.caller, CALL, request_id=f"req_{number:024x}", started_ms=now_ms, started_at=10.0)
        await self.quota.admit(ctx, OPTIONS)
        ctx.attempts.append(make_attempt(OPTIONS[0]))
        ctx.usage = Usage(100, 200, 0, "upstream")
        return self.settlement.settle(ctx, "completed", now_s=11.0, now_ms=now_ms)


async def measure(work: Callable[[int], Any]) -> float:
    """The median over rounds of CPU microseconds of the whole process a call."""
    costs = []
    for round_ in range(ROUNDS):
        began = time.process_time()
        for number in range(CALLS):
            await work(round_ * CALLS + number)
        costs.append((time.process_time() - began) / CALLS * 1e6)
    return statistics.median(costs)


@pytest.mark.cost
async def test_admission_and_settlement(tmp_path: Path) -> None:
    """Each kind of scenario settles every call it admitted."""
    journal = RequestJournal(tmp_path / "requests.journal")
    limited = Limits(10**8, 10**9, 10**6)
    for name, scenario in (
        ("in memory, two caps", LedgerScenario(NoJournal(), Limits())),
        ("in memory, two caps, six rate limits", LedgerScenario(NoJournal(), limited)),
        ("with the journal, two caps, six rate limits", LedgerScenario(journal, limited)),
    ):
        cost_us = await measure(scenario.call)
        print(f"\nadmission + settlement, {name}: {cost_us:.1f} us a request")
        assert len(scenario.write_queue) == CALLS * ROUNDS
        assert scenario.balances.find_balance("key", 1).lifetime.spent_nanos == CALLS * ROUNDS * 900_000
        assert not scenario.balances.reservations
    journal.close()


@pytest.mark.cost
async def test_the_writer(tmp_path: Path) -> None:
    """Every row is stored, and the sums of the day are those of the rows."""
    scenario = LedgerScenario(NoJournal(), Limits())
    rows = [await scenario.call(number) for number in range(CALLS * 2)]
    database = await open_database(f"sqlite:///{tmp_path / 'gateway.db'}")
    ledger = LedgerRepository(database)
    costs = []
    for batch in (PER_COMMIT, 500):
        stored = rows[:CALLS] if batch == PER_COMMIT else rows[CALLS:]
        began = time.process_time()
        for first in range(0, CALLS, batch):
            await ledger.post(stored[first : first + batch])
        costs.append((time.process_time() - began) / CALLS * 1e6)
        print(f"\nthe writer, {batch} rows a commit: {costs[-1]:.1f} us a request")
    (totals,) = await ledger.list_totals()
    assert totals.entries_nanos == totals.usage_nanos == totals.requests_nanos == CALLS * 2 * 900_000
    await database.close()
