"""Puts limits into force while the gateway runs. Nothing else of them is imported before the first one."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gateway.billing.balances import Balances
from gateway.billing.limit_spec import LimitSpec
from gateway.billing.write_queue import WriteQueue
from gateway.deferred import load
from gateway.domain.request_log import RequestRecord
from gateway.storage.database import Database

if TYPE_CHECKING:
    from gateway.billing.limits import SpendingLimits


class LiveLimits:
    """The limits in force: those of the file, and stored ones.

    Attributes:
        spending: the balances of the subjects; None before the first limit.
    """

    def __init__(self, database: Database, queue: WriteQueue, clock: Callable[[], float]) -> None:
        self._database = database
        self._queue = queue
        self._clock = clock
        self._balances: Balances | None = None
        self._specs: tuple[LimitSpec, ...] = ()
        self.spending: SpendingLimits | None = None

    def list_charges(self, row: RequestRecord) -> str:
        """Return the ``limit_charges`` of a row whose request was interrupted by the end of its process."""
        return self.spending.list_charges(row) if self.spending is not None and self._specs else ""

    async def retire(self, now_s: float) -> int:
        """Delete the sums of windows that ended long ago; return their number. Raises ``StoreUnavailable``."""
        return 0 if self.spending is None else await self.spending.retire(now_s)

    def attach(self, balances: Balances) -> None:
        """Let requests that reserve in ``balances`` reserve under the limits, too."""
        self._balances = balances
        balances.limits = self.spending if self._specs else None

    def replace(self, specs: Sequence[LimitSpec]) -> None:
        """Put ``specs`` into force in place of all limits. What running requests have reserved does not change."""
        if tuple(specs) == self._specs:
            return
        self._specs = tuple(specs)
        if self.spending is None:
            counters = load("storage.limit_counters:LimitCounters")(self._database)
            self.spending = load("billing.limits:SpendingLimits")(counters, self._queue, self._clock)
        self.spending.replace([spec.limit() for spec in specs])
        if self._balances is not None:
            self._balances.limits = self.spending if specs else None
