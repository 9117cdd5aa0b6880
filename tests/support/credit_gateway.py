"""A gateway's money as a node of a cluster: journal, queue, ledger, leases and admission over a PostgreSQL database."""

import asyncio
import os
from collections import deque
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import attrs

from gateway.background import JobRunner
from gateway.billing.accounting import AccountingService
from gateway.billing.flush_worker import LedgerFlusher
from gateway.billing.live_limits import LiveLimits
from gateway.billing.quota import QuotaService
from gateway.billing.rate_limiter import InMemoryRateLimiter
from gateway.billing.recovery import recover
from gateway.billing.settlement import Settlement
from gateway.billing.write_queue import WriteQueue
from gateway.cluster.credit.node_credit import NodeCredit
from gateway.cluster.credit.store import PostgresCredit
from gateway.domain.account import Caller
from gateway.domain.attribution import Attribution
from gateway.domain.balance import parse_day
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.request_log import RequestRecord
from gateway.domain.usage import Usage
from gateway.request_context import RequestContext
from gateway.storage.journal import RequestJournal
from gateway.storage.ledger import LedgerRepository
from gateway.storage.postgres.address import Address
from gateway.storage.postgres.database import PostgresDatabase
from tests.support.any_user import AnyUser
from tests.support.billing_services import NANO_A_TOKEN, NOON, call_for, option_of
from tests.support.contexts import make_attempt, make_context

_numbers = count(1)


@attrs.define
class Holder:
    """A node: its id, how many live, whether it leads them, and how often it has registered."""

    id: str
    live_count: int
    clock: Any
    leads: bool = False
    epoch: int = 1

    @property
    def process(self) -> str:
        return f"{self.id}:{self.epoch}"


class LeasedGateway:
    """A node named ``name`` whose journal is in ``folder``. ``now`` is its clock (Unix seconds)."""

    def __init__(self, url: str, name: str, folder: Path, live: int = 2) -> None:
        self.now, self.least_s = NOON, 0.0
        self._path = folder / f"{name}.journal"
        make_credit = partial(PostgresCredit, node=name, today=lambda: parse_day(self.now))
        self.database = PostgresDatabase(Address(url), AnyUser(), make_credit)
        self.journal = RequestJournal(self._path)
        self.queue = WriteQueue()
        self.ledger = LedgerRepository(self.database)
        self.flusher = LedgerFlusher(self.queue, self.ledger, self.journal)
        self.credit = NodeCredit(
            Holder(name, live, self), Address(url, name), self.ledger, self.queue, clock=lambda: self.now
        )
        self.credit.keeper.wait_s = 60.0
        self.balances = self.credit.balances
        self.limits = LiveLimits(self.database, self.queue, lambda: self.now, self.credit)
        self.limits.attach(self.balances)
        self.quota = QuotaService(
            self.balances,
            InMemoryRateLimiter(lambda: self.now),
            self.journal,
            self.queue,
            refresh=lambda caller: caller,
        )
        self.settlement = Settlement(
            self.quota, self.journal, self.queue, find_abandoned=lambda: "charge", ended=deque()
        )
        self.accounting = AccountingService(
            self.balances,
            self.ledger,
            self.queue,
            clock=lambda: self.now,
            jobs=None,
            check_leases=self.credit.keeper.check,
        )
        self.workers = JobRunner()

    def advance_to(self, at_s: float) -> None:
        """As the clock of a node."""
        self.least_s = max(self.least_s, at_s)
        self.now = max(self.now, at_s)

    async def start(self) -> None:
        await self.limits.load_sessions()
        left, now_ms, list_charges = self.journal.leftovers, int(self.now * 1000), self.limits.list_charges
        post = partial(
            recover, left, self.ledger, self.journal, on_crash="release", now_ms=now_ms, list_charges=list_charges
        )
        await self.credit.open(self.database, post)
        self.journal.renew()
        self.workers.start("keep_credit", self.credit.keeper.run)
        self.workers.start("flush_ledger", self.flusher.run)

    async def stop(self) -> None:
        """As on SIGTERM."""
        await self.workers.stop()
        await self.flusher.finish()
        await self.credit.close()
        self.journal.close()
        await self.database.close()

    async def kill(self) -> None:
        """As ``kill -9``: what is in memory is gone, nothing is stored or folded, and the journal stays."""
        await self.workers.stop()
        os.close(self.journal._file)
        await self.credit._authority.close()
        await self.database.close()

    async def admit(
        self,
        caller: Caller,
        inference: int | InferenceRequest,
        *,
        user: str = "",
        session: str = "",
        own_nanos: int | None = None,
    ) -> RequestContext:
        """Admit ``inference`` of an end user or session, or one that may cost so much. Raises the errors of ``admit``.

        ``own_nanos``: the budget of this request alone.
        """
        inference = call_for(inference) if isinstance(inference, int) else inference
        times: dict[str, Any] = {"started_ms": int(self.now * 1000), "started_at": 0.0}
        ctx = make_context(caller, inference, request_id=f"req_{next(_numbers)}", **times)
        ctx.attribution = Attribution(end_user=user, session=session)
        if own_nanos is not None:
            self.limits.open_budgets().set_own(ctx, own_nanos)
        target = option_of(NANO_A_TOKEN, model=inference.model)
        await self.quota.admit(ctx, [target])
        ctx.attempts.append(make_attempt(target))
        return ctx

    async def open_budget(self, caller: Caller, session: str, nanos: int) -> None:
        """Open or change the budget of a session. Raises the errors of ``RequestBudgets.open``."""
        await self.limits.open_budgets().open(caller.account.id, session, nanos, caller.key)

    def settle(self, ctx: RequestContext, nanos: int) -> RequestRecord:
        ctx.usage, ctx.first_byte_at = Usage(nanos, 0, 0, "upstream"), 0.0
        return self.settlement.settle(ctx, "completed", now_s=0.0, now_ms=int(self.now * 1000))


async def try_all(
    gateways: list[LeasedGateway], caller: Caller, call: int | InferenceRequest, callers: int
) -> list[Any]:
    """Let ``callers`` ask at once, in turn at each gateway; return each one's context or error."""
    asked = [gateways[number % len(gateways)].admit(caller, call) for number in range(callers)]
    return await asyncio.gather(*asked, return_exceptions=True)
