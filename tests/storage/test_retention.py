"""What every driver promises of rows that are deleted for their age: nothing that they cost is forgotten, or twice."""

from collections.abc import Sequence

import attrs
import pytest

from gateway.domain.request_log import RequestRecord
from gateway.domain.traffic import HOUR_MS, TrafficFilter
from gateway.storage.retention import RetentionBatch
from tests.support.ledger_balances import TODAY, read_ids, read_spending, read_totals
from tests.support.request_records import NOON_MS, charge
from tests.support.stores import Archive, Stores
from tests.support.video_records import make_job

DAY_MS = 86_400_000


def history(count: int = 6) -> list[RequestRecord]:
    """Rows a day apart, of two keys in turn; the first was settled at noon."""
    rows = [
        charge(number, 10 + number, at_ms=NOON_MS + number * DAY_MS, key=11 + number % 2) for number in range(count)
    ]
    return [attrs.evolve(row, started_ms=row.settled_ms - 500) for row in rows]


async def test_what_is_old_goes_and_what_it_cost_stays(stores: Stores) -> None:
    await stores.ledger.post(history())
    before = await read_totals(stores.ledger), await read_spending(stores.ledger, TODAY)
    done = await stores.retirement.retire_requests(NOON_MS + 3 * DAY_MS, 0, 100)
    assert (done.retired, done.ended) == (3, True)
    assert await read_ids(stores.requests) == ["req_3", "req_4", "req_5"]
    assert (await read_totals(stores.ledger), await read_spending(stores.ledger, TODAY)) == before


async def test_it_goes_on_where_it_stopped_in_steps_of_a_size(stores: Stores) -> None:
    await stores.ledger.post(history())
    total, after, steps = 0, 0, 0
    while True:
        done = await stores.retirement.retire_requests(NOON_MS + 5 * DAY_MS, after, 2)
        assert done.retired <= 2
        total, after, steps = total + done.retired, done.last, steps + 1
        if done.ended:
            break
    assert (total, steps) == (5, 4)
    assert await read_ids(stores.requests) == ["req_5"]
    assert await stores.retirement.retire_requests(NOON_MS + 5 * DAY_MS, after, 2) == RetentionBatch(
        0, after, ended=True
    )


async def test_it_ends_where_nothing_is_old_and_where_there_is_nothing(stores: Stores) -> None:
    assert await stores.retirement.retire_requests(NOON_MS, 0, 2) == RetentionBatch(0, 0, ended=True)
    await stores.ledger.post(history())
    done = await stores.retirement.retire_requests(NOON_MS, 0, 2)
    assert (done.retired, done.ended) == (0, True)
    assert len(await read_ids(stores.requests)) == 6


async def test_of_rows_out_of_order_the_old_ones_go(stores: Stores) -> None:
    first, second, third, *_ = history()
    await stores.ledger.post([first, third, second])
    before = await read_totals(stores.ledger)
    done = await stores.retirement.retire_requests(third.settled_ms, 0, 100)
    assert done.retired == 2
    assert await read_ids(stores.requests) == ["req_2"]
    assert await read_totals(stores.ledger) == before


async def test_what_is_known_to_be_retired_never_becomes_less(stores: Stores) -> None:
    early, _, late, *_ = history()
    await stores.ledger.post([late, early])
    for after in (0, 1):
        assert (await stores.retirement.retire_requests(NOON_MS + 9 * DAY_MS, after, 1)).retired == 1
    between = attrs.evolve(late, started_ms=early.settled_ms + 1)
    await stores.ledger.post_again([between])
    assert await read_ids(stores.requests) == []


async def retire_three(stores: Stores) -> Sequence[RequestRecord]:
    """Of six rows the first three are retired: of key 11 the first and the third, of key 12 the second."""
    rows = history()
    await stores.ledger.post(rows)
    assert (await stores.retirement.retire_requests(NOON_MS + 3 * DAY_MS, 0, 100)).retired == 3
    return rows


async def test_what_a_crash_has_left_of_a_retired_row_is_not_charged_again(stores: Stores) -> None:
    """A journal may have notes of what was stored long ago; of a call whose end it missed it says another cost."""
    rows = await retire_three(stores)
    before = await read_totals(stores.ledger), await read_ids(stores.requests)
    interrupted = attrs.evolve(rows[1], settled_ms=NOON_MS + 99 * DAY_MS, cost_nanos=999, outcome="interrupted")
    await stores.ledger.post_again([rows[0], interrupted, rows[2], rows[4]])
    assert (await read_totals(stores.ledger), await read_ids(stores.requests)) == before


async def test_what_a_crash_has_left_and_nobody_has_stored_is_charged(stores: Stores) -> None:
    rows = await retire_three(stores)
    fresh = [attrs.evolve(rows[5], id="req_fresh"), attrs.evolve(rows[2], id="req_other", key_id=13)]
    await stores.ledger.post_again([rows[0], *fresh, rows[5]])
    assert await read_ids(stores.requests) == ["req_3", "req_4", "req_5", "req_fresh", "req_other"]
    assert (1, 13, 12, 12, 12) in await read_totals(stores.ledger)


async def test_a_call_as_old_as_the_newest_retired_one_of_its_key_is_known_and_a_younger_one_is_not(
    stores: Stores,
) -> None:
    rows = await retire_three(stores)
    until_ms = rows[2].settled_ms
    at_the_edge = [attrs.evolve(rows[2], id=f"req_{shift}", started_ms=until_ms + shift) for shift in (0, 1)]
    await stores.ledger.post_again(at_the_edge)
    assert await read_ids(stores.requests) == ["req_3", "req_4", "req_5", "req_1"]


async def test_rounds_add_up(stores: Stores) -> None:
    rows = history()
    await stores.ledger.post(rows)
    before = await read_totals(stores.ledger)
    for days in range(1, 7):
        await stores.retirement.retire_requests(NOON_MS + days * DAY_MS, 0, 100)
        assert await read_totals(stores.ledger) == before
    assert await read_ids(stores.requests) == []
    await stores.ledger.post_again(rows)
    assert await read_totals(stores.ledger) == before


@pytest.mark.parametrize("state", ["queued", "processing", "completed", "failed"])
async def test_the_row_of_a_job_on_record_stays_until_that_is_forgotten(archive: Archive, state: str) -> None:
    """The end of one that goes on is yet to be told; with the row of one that ended the books are compared."""
    rows = history(3)
    job = attrs.evolve(make_job(1, state=state, cost_nanos=rows[1].cost_nanos), receipt=rows[1])
    if state == "failed":
        rows[1] = attrs.evolve(rows[1], cost_nanos=0)
    await archive.videos.create(job)
    await archive.ledger.post(rows)
    done = await archive.retirement.retire_requests(NOON_MS + 9 * DAY_MS, 0, 100)
    assert done.retired == 2
    assert await read_ids(archive.requests) == ["req_1"]
    assert await archive.videos.list_contradictions() == []
    if state in {"completed", "failed"}:
        await archive.videos.remove(job)
        assert (await archive.retirement.retire_requests(NOON_MS + 9 * DAY_MS, 0, 100)).retired == 1


async def test_hours_go_one_by_one_and_days_stay(stores: Stores) -> None:
    """The first hour of a day is of the same number as the day."""
    midnight = [attrs.evolve(row, settled_ms=row.settled_ms - DAY_MS // 2) for row in history(3)]
    await stores.ledger.post(midnight)
    hour = (NOON_MS - DAY_MS // 2) // HOUR_MS
    everything = TrafficFilter(0, 10**6)
    assert await stores.retirement.retire_hours(hour) == 0
    assert await stores.retirement.retire_hours(hour + 25) == 1
    assert await stores.retirement.retire_hours(hour + 25) == 1
    assert await stores.retirement.retire_hours(hour + 25) == 0
    assert [line.label for line in await stores.traffic.list_traffic("hour", everything)] == [str(hour + 48)]
    assert [line.requests for line in await stores.traffic.list_traffic("day", everything)] == [1, 1, 1]
