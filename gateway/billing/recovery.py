"""Recovery at start: stores the rows and charges that a crash kept from the ledger, and loads the balances."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs
import structlog

from gateway.billing.balances import Balances
from gateway.domain.balance import Owner, parse_day
from gateway.domain.ledger import OnCrash, UnfinishedRequest
from gateway.domain.request_log import RequestRecord
from gateway.storage.journal import RequestJournal
from gateway.storage.ledger import LedgerRepository

if TYPE_CHECKING:  # only if an account has a time zone
    from gateway.domain.account_zone import AccountZone

log = structlog.stdlib.get_logger(__name__)


async def recover(
    leftovers: Sequence[UnfinishedRequest],
    ledger: LedgerRepository,
    journal: RequestJournal,
    *,
    on_crash: OnCrash | None,
    now_ms: int,
    list_charges: Callable[[RequestRecord], str],
) -> None:
    """Store the unfinished requests. Rows that are already stored do not change.

    A request that had ended is charged its cost. Any other one was interrupted: ``on_crash`` decides whether its
    reservation is released or charged. If ``on_crash`` is None, the request stays in the journal for a later decision.
    ``list_charges`` returns the ``limit_charges`` of an interrupted row.
    """
    rows = [
        leftover.row if leftover.ended else _interrupt(leftover.row, now_ms, on_crash, list_charges)
        for leftover in leftovers
        if leftover.ended or on_crash is not None
    ]
    if not rows:
        return
    await ledger.post_again(rows)
    journal.forget([row.id for row in rows])
    log_interrupted(rows)
    log.info("journal_recovered", rows=len(rows), interrupted=sum(row.outcome == "interrupted" for row in rows))


def _interrupt(
    row: RequestRecord, now_ms: int, on_crash: OnCrash | None, list_charges: Callable[[RequestRecord], str]
) -> RequestRecord:
    interrupted = interrupt(row, now_ms, is_charged=on_crash == "charge")
    if not interrupted.cost_nanos:
        return interrupted
    return attrs.evolve(interrupted, limit_charges=list_charges(interrupted))


async def load_balances(
    ledger: LedgerRepository,
    clock: Callable[[], float],
    existing: Mapping[Owner, Collection[int]] | None = None,
    zones: "Mapping[int, AccountZone] | None" = None,
) -> Balances:
    """Return the balances with all stored spending as of today, and yesterday's in case the clock is set back.

    ``existing`` restricts the owners.

    ``zones``: the time zones of accounts; those without one have UTC.
    """
    balances = Balances(clock, zones)
    balances.existing = existing
    today, yesterday = balances.today, parse_day(balances.today.start_s - 1)
    balances.add_earlier_spending(await ledger.list_spending(yesterday), yesterday)
    balances.add_spending(await ledger.list_spending(today, balances.zones), today)
    latest_s = (await ledger.find_latest_s(balances.zones, today.until_s) or 0) if balances.zones else 0
    balances.confirm(yesterday, today, latest=await ledger.find_last_day(), latest_s=latest_s)
    return balances


def interrupt(row: RequestRecord, now_ms: int, *, is_charged: bool) -> RequestRecord:
    """Return the row of an interrupted request. It costs its reservation if ``is_charged``, otherwise nothing."""
    return attrs.evolve(row, settled_ms=now_ms, cost_nanos=row.reserved_nanos if is_charged else 0)


def log_interrupted(rows: Iterable[RequestRecord]) -> None:
    """Log a warning for each of ``rows`` that was interrupted."""
    for row in rows:
        if row.outcome == "interrupted":
            log.warning(
                "request_interrupted",
                request_id=row.id,
                account=row.account,
                key=row.key_name,
                model=row.model,
                cost_nanos=row.cost_nanos,
            )
