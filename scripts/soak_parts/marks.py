"""What the callers of a soak know of their calls, and what the gateway's rows say of them."""

import collections
import time
from collections.abc import Iterable, Mapping, Sequence

import attrs

from gateway.domain.charged_units import parse_charged_usage
from gateway.domain.price import Price, compute_cost_nanos
from gateway.domain.request_log import RequestRecord

LATE_S = 20.0
"""A call that ended so long ago has its row: a commit waits for at most some seconds."""
CRASHED = "interrupted"


@attrs.define
class Marks:
    """Every call has a mark of its own, which the gateway keeps with the row (``client_request_id``).

    Attributes:
        prices: of each model, all that it has had: a row is charged by one of them.
        problems: what is wrong, in words.
    """

    prices: Mapping[str, Sequence[Price | None]]
    problems: list[str] = attrs.Factory(list)
    rows: int = 0
    outcomes: collections.Counter[str] = attrs.Factory(collections.Counter)
    _number: int = 0
    _begun: set[str] = attrs.Factory(set)
    _answered: dict[str, float] = attrs.Factory(dict)
    _seen: set[str] = attrs.Factory(set)

    def begin(self) -> str:
        """A new mark; its call may have one row."""
        self._number += 1
        mark = f"soak-{self._number}"
        self._begun.add(mark)
        return mark

    def answer(self, mark: str) -> None:
        """The call was answered with success, and has ended: it must have a row, now or soon."""
        self._answered[mark] = time.monotonic()

    def take(self, rows: Iterable[RequestRecord]) -> None:
        """Compare rows, each of which is given once, with what is known."""
        for row in rows:
            self.rows += 1
            self.outcomes[row.outcome] += 1
            mark = row.client_request_id
            if mark in self._seen:
                self.problems.append(f"two rows of the call {mark}")
            elif mark in self._begun:
                self._begun.remove(mark)
                self._seen.add(mark)
                self._answered.pop(mark, None)
            self._check_cost(row)

    def check_late(self, *, late_s: float = LATE_S) -> None:
        """Name the calls that have waited for their row for too long; once each."""
        until = time.monotonic() - late_s
        for mark in [mark for mark, ended in self._answered.items() if ended <= until]:
            del self._answered[mark]
            self.problems.append(f"no row of the answered call {mark}")

    def _check_cost(self, row: RequestRecord) -> None:
        """The charge is that of the usage by one of the model's prices; a call that a crash interrupted is free."""
        usage, multiplier = parse_charged_usage(row), row.batch_multiplier_ppm or 1_000_000
        costs = {compute_cost_nanos(price, usage, multiplier) for price in self.prices.get(row.model, (None,))}
        if row.outcome == CRASHED:
            costs.add(0)
        if row.cost_nanos not in costs:
            self.problems.append(
                f"{row.operation} {row.id} of {row.model} cost {row.cost_nanos} nano-USD, and {sorted(costs)} is right"
            )
