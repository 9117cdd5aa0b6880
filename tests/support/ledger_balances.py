"""What a ledger says of its purses, whatever lines its driver has it in."""

import attrs

from gateway.domain.balance import UtcDay, parse_day
from gateway.domain.ledger import UsageAxis, UsageFilter
from gateway.domain.request_log import RequestFilter
from gateway.storage.ledger import LedgerRepository
from gateway.storage.request_log import RequestLogRepository
from tests.support.request_records import NOON_MS, read_ms

Sums = tuple[int, int, int, int, int, int]
AXES: tuple[UsageAxis, ...] = ("day", "model", "key", "account")
ALWAYS = UsageFilter(0, 10**6)
TODAY = parse_day(NOON_MS // 1000)


def day_at(text: str) -> UtcDay:
    """The day of a moment in UTC."""
    return parse_day(read_ms(text) / 1000)


async def read_spending(ledger: LedgerRepository, day: UtcDay) -> dict[tuple[int, int | None], Sums]:
    """A purse's lines added up: charged ever, this month, today; credited ever, this month, today."""
    found: dict[tuple[int, int | None], Sums] = {}
    for spent in await ledger.list_spending(day):
        sums = attrs.astuple(spent)[2:]
        known = found.get((spent.account_id, spent.key_id), (0,) * 6)
        found[spent.account_id, spent.key_id] = tuple(map(sum, zip(known, sums, strict=True)))  # type: ignore[assignment]
    return {balance: sums for balance, sums in found.items() if any(sums)}


async def read_totals(ledger: LedgerRepository) -> set[tuple[int, ...]]:
    """Every key that was charged anything, anywhere: its account, its id, and what each place says."""
    totals = [attrs.astuple(total) for total in await ledger.list_totals()]
    assert len({total[:2] for total in totals}) == len(totals), "a key is listed twice"
    return {total for total in totals if any(total[2:])}


async def read_ids(log: RequestLogRepository) -> list[str]:
    """The ids of all rows, in the order of writing."""
    return [stored.row.id for stored in await log.list_requests(RequestFilter(), 10**6)]
