"""The books as the roof joins them, over a store in memory and a journal on disk, their clocks turned by hand."""

import asyncio
import os
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import attrs

from gateway.billing.accounting import AccountingService
from gateway.billing.balances import Balances
from gateway.billing.flush_worker import LedgerFlusher
from gateway.billing.quota import QuotaService
from gateway.billing.rate_limiter import InMemoryRateLimiter
from gateway.billing.recovery import load_balances, recover
from gateway.billing.settlement import Settlement
from gateway.billing.write_queue import WriteQueue
from gateway.domain.account import Account, ApiKey, Caller
from gateway.domain.account_spec import CreditSpec
from gateway.domain.account_zone import AccountZone
from gateway.domain.audit_log import AuditRow
from gateway.domain.balance import Quota, QuotaPeriod, UtcDay
from gateway.domain.channel import Channel
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.ledger import LedgerEntry, OnCrash, Spending
from gateway.domain.price import ONE_PPM, Price
from gateway.domain.request_log import Outcome, RequestFilter, RequestRecord
from gateway.domain.usage import Usage
from gateway.errors import ProviderTimeout, StoreUnavailable
from gateway.providers.base import CHAT
from gateway.request_context import RequestContext
from gateway.routing.channel_state import ChannelState, KeyState
from gateway.routing.target import Target
from gateway.storage.journal import RequestJournal
from gateway.storage.ledger import DecideCredit
from tests.support.contexts import make_attempt, make_context
from tests.support.ledger_model import LedgerModel
from tests.support.repositories import Repositories

T = TypeVar("T")

UP = Channel("up", "custom", "http://up/v1", models=("m",))
NANO_A_TOKEN = Price("m", input_nanos_per_million=ONE_PPM, output_nanos_per_million=ONE_PPM)
"""A token costs one nano-USD, so that an amount and a number of tokens are the same."""
ACCOUNT = Account(1, "acme")
KEY = ApiKey(7, 1, "laptop", b"", "")


def unix(moment: str) -> float:
    """A moment in UTC (``2027-05-15T12:00``) as Unix seconds."""
    return datetime.fromisoformat(f"{moment}Z").timestamp()


MOST_WORDS = 10_000
"""Of a prompt; a request for dollars would have hundreds of millions, which no test reads."""
NOON = unix("2027-05-15T12:00")


def capped(limit: int, period: QuotaPeriod = "lifetime", **more: Any) -> Quota:
    return Quota(limit, period, **more)


def caller_of(account: Quota | None = None, key: Quota | None = None, **more: Any) -> Caller:
    """A caller whose account and key have these caps; ``more`` is the key's."""
    return Caller(attrs.evolve(ACCOUNT, quota=account or Quota()), attrs.evolve(KEY, quota=key or Quota(), **more))


def option_of(price: Price | None = None, multiplier_ppm: int = ONE_PPM, *, model: str = "m") -> Target:
    """A way to serve a call over ``UP`` at ``price``, under the provider's own name ``model``."""
    return Target(ChannelState(UP, (KeyState(""),)), CHAT, model, price, multiplier_ppm)


def call_for(nanos: int, *, output: int = 0) -> InferenceRequest:
    """A call that at ``NANO_A_TOKEN`` may cost ``nanos`` and ``output`` more. Its prompt is estimated at two thirds."""
    body = {"messages": [{"role": "user", "content": "a " * min(nanos * 2 // 3, MOST_WORDS)}]}
    return InferenceRequest(
        "chat", "m", body, prompt_chars=4 * nanos, max_prompt_tokens=nanos, max_output_tokens=output
    )


class _Disk:
    """While it is ``full``, nothing can be written to the ledger behind it."""

    full = False
    list_requests: Any

    async def post(self, rows: Sequence[RequestRecord]) -> None:
        self._check()
        await super().post(rows)  # type: ignore[misc]

    async def post_again(self, rows: Sequence[RequestRecord]) -> None:
        self._check()
        await super().post_again(rows)  # type: ignore[misc]

    async def add_credit(
        self, entry: LedgerEntry, audit: AuditRow | None = None, decide: DecideCredit | None = None
    ) -> tuple[LedgerEntry, bool]:
        self._check()
        return await super().add_credit(entry, audit, decide)  # type: ignore[misc, no-any-return]

    def _check(self) -> None:
        if self.full:
            raise StoreUnavailable("no space left on device")

    async def rows(self) -> list[RequestRecord]:
        """Every row, in the order of writing."""
        return [stored.row for stored in await self.list_requests(RequestFilter(), 10**6)]


class Disk(_Disk, Repositories):  # type: ignore[misc]
    """The database."""


class ModelDisk(_Disk, LedgerModel, Repositories):  # type: ignore[misc]
    """The database, with its ledger in plain Python for many steps; ``storage/test_ledger.py`` compares the two."""

    def __init__(self) -> None:
        Repositories.__init__(self)
        LedgerModel.__init__(self)


class SlowDisk(Disk):
    """A store whose every answer waits until ``go`` is set; ``waiting`` is set while one does."""

    def __init__(self) -> None:
        super().__init__()
        self.go, self.waiting = asyncio.Event(), asyncio.Event()
        self.go.set()

    async def wait(self) -> None:
        self.waiting.set()
        await asyncio.sleep(0)
        await self.go.wait()
        self.waiting.clear()

    async def post(self, rows: Sequence[RequestRecord]) -> None:
        await self.wait()
        await super().post(rows)

    async def add_credit(
        self, entry: LedgerEntry, audit: AuditRow | None = None, decide: DecideCredit | None = None
    ) -> tuple[LedgerEntry, bool]:
        await self.wait()
        return await super().add_credit(entry, audit, decide)

    async def list_spending(self, day: UtcDay, zones: Mapping[int, AccountZone] | None = None) -> Sequence[Spending]:
        await self.wait()
        return await super().list_spending(day, zones)


async def begin(work: Coroutine[Any, Any, T], disk: SlowDisk) -> "asyncio.Task[T]":
    """Start ``work`` and let it run until it waits for the store."""
    disk.go.clear()
    task = asyncio.create_task(work)
    async with asyncio.timeout(1):
        await disk.waiting.wait()
    return task


def top_up(usd: str, reference: str | None = None) -> CreditSpec:
    return CreditSpec(Decimal(usd), "top_up", reference)


def put(usd: str, reference: str | None = None) -> CreditSpec:
    """Set a balance."""
    return CreditSpec(Decimal(usd), "set", reference)


class BillingServices:
    """A gateway's money: ``now`` is its clock (Unix seconds) and ``pulse`` its monotonic one."""

    def __init__(self, folder: Path, now: float = NOON, disk: Disk | ModelDisk | None = None) -> None:
        self.now, self.pulse = now, 1_000.0
        self.disk = disk or Disk()
        self._path = folder / "requests.journal"
        self._numbers = count(1)
        self._open()

    def _open(self) -> None:
        self.journal = RequestJournal(self._path, rotate_bytes=2_000)
        self.write_queue = WriteQueue()
        self.flush = LedgerFlusher(self.write_queue, self.disk, self.journal)
        self._build(Balances(lambda: self.now))

    def _build(self, balances: Balances) -> None:
        self.balances = balances
        self.quota = QuotaService(
            self.balances,
            InMemoryRateLimiter(lambda: self.pulse),
            self.journal,
            self.write_queue,
            refresh=lambda caller: caller,
        )
        self.settlement = Settlement(
            self.quota, self.journal, self.write_queue, find_abandoned=lambda: "charge", ended=deque()
        )
        self.accounting = AccountingService(
            self.balances, self.disk, self.write_queue, clock=lambda: self.now, jobs=None, check_leases=None
        )

    async def crash(self, on_crash: OnCrash) -> None:
        """All memory is gone; the process starts again from its journal and the store."""
        os.close(self.journal._file)
        zones = self.balances.zones  # as the accounts in the store say
        self._open()
        left = self.journal.leftovers
        await recover(
            left, self.disk, self.journal, on_crash=on_crash, now_ms=int(self.now * 1000), list_charges=lambda _: ""
        )
        self._build(await load_balances(self.disk, lambda: self.now, zones=zones))

    async def set_clock(self, now: float) -> None:
        """The machine's clock is set; returns when the purses know what was spent on that day."""
        self.now = now
        assert self.balances.today.contains(now)
        await self.accounting.close()

    def close(self) -> None:
        """As on SIGTERM: what the next process has to know is in the journal."""
        self.journal.close()

    def arrive(self, caller: Caller, inference: InferenceRequest | None = None) -> RequestContext:
        request_id = f"req_{next(self._numbers)}"
        started_ms = int(self.now * 1000)
        return make_context(caller, inference, request_id=request_id, started_ms=started_ms, started_at=self.pulse)

    async def admit(
        self, caller: Caller, inference: InferenceRequest, price: Price | None = NANO_A_TOKEN
    ) -> RequestContext:
        """A call that is now running; raises what ``QuotaService.admit`` raises."""
        ctx, target = self.arrive(caller, inference), option_of(price)
        await self.quota.admit(ctx, [target])
        ctx.attempts.append(make_attempt(target))
        return ctx

    def settle(self, ctx: RequestContext, nanos: int) -> RequestRecord:
        """The call has ended, and cost ``nanos`` at ``NANO_A_TOKEN``."""
        ctx.usage = Usage(nanos, 0, 0, "upstream")
        ctx.first_byte_at = self.pulse
        return self.settlement.settle(ctx, "completed", **self.times)

    def abort(self, ctx: RequestContext, outcome: Outcome, *, written: bool) -> RequestRecord:
        """The call was broken off, and ``written`` to its provider before that or not."""
        ctx.attempts[:] = [make_attempt(option_of(NANO_A_TOKEN), pending=written)]
        error = ProviderTimeout("The provider took too long") if outcome == "failed" else None
        return self.settlement.settle(ctx, outcome, error, **self.times)

    async def spend(self, caller: Caller, nanos: int) -> RequestRecord:
        """A call from its beginning to its end."""
        return self.settle(await self.admit(caller, call_for(nanos)), nanos)

    @property
    def times(self) -> dict[str, Any]:
        """Both clocks, as a settlement takes them."""
        return {"now_s": self.pulse, "now_ms": int(self.now * 1000)}
