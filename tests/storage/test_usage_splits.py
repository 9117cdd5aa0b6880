"""Splits of past days say what the daily sums say, in both databases, also after rows that are stored late."""

import asyncio
from collections.abc import Iterable
from itertools import cycle, product

import attrs
import pytest
from sqlalchemy import func, select, update
from typing_extensions import override

from gateway.domain.request_log import RequestRecord
from gateway.domain.traffic import TimeRange, TrafficFilter
from gateway.errors import StoreUnavailable
from gateway.services.speed import SpeedWorker
from gateway.storage.database import Database
from gateway.storage.ledger_rows import reverse_rows
from gateway.storage.schema import rollups, usage_splits
from gateway.storage.speed import SpeedRepository
from gateway.storage.subject_sums import SubjectSums
from gateway.storage.traffic import TrafficRepository
from gateway.storage.traffic_series import TrafficSeries, TrafficSeriesReader
from gateway.storage.usage_splits import SplitAxis, SplitRepository, list_split_days
from tests.support.module_sleep import replace_sleep
from tests.support.request_records import charge, read_ms, refuse
from tests.support.stores import Stores

DAY_S = 86_400
FIRST_MS = read_ms("2026-03-10 00:00")
FIRST_DAY = FIRST_MS // 1000 // DAY_S
NOW_S = FIRST_MS / 1000 + 4 * DAY_S + 3_600
"""The fifth day has begun: three have ended more than a day ago."""
PERIOD = TimeRange(24, FIRST_DAY * 24, (FIRST_DAY + 4) * 24)
AXES: tuple[SplitAxis, ...] = ("model", "key", "account", "channel", "status", "cause")
ALL = TrafficFilter(0, 0)
FILTERS = [
    ALL, attrs.evolve(ALL, account_id=1), attrs.evolve(ALL, model="m1"), attrs.evolve(ALL, channel="spare"),
    attrs.evolve(ALL, key_id=11), attrs.evolve(ALL, account_id=2, model="m0"), attrs.evolve(ALL, model="other"),
]  # fmt: skip


def make_rows(first: int, count: int, *, day: int | None = None) -> list[RequestRecord]:
    rows = []
    for number in range(first, first + count):
        at_ms = FIRST_MS + (number % 4 if day is None else day) * DAY_S * 1000 + number * 60_000
        row = charge(f"r{number}", 1 + number % 9, at_ms=at_ms, key=(11, 12, 21, 13, 14, 15, 16)[number % 7])
        row = attrs.evolve(row, model=f"m{number % 3}", channel=("up", "spare")[number % 2])
        rows.append(refuse(row) if number % 5 == 0 else row)
    return [attrs.evolve(row, id=f"req_{number}") for number, row in enumerate(rows, first)]


async def open_reader(database: Database, traffic_filter: TrafficFilter, *, splits: bool) -> TrafficSeriesReader:
    changed_days = await SplitRepository(database).find_changed_days(3)
    assert changed_days is not None
    return TrafficSeriesReader(database, traffic_filter, uses_splits=splits, changed_days=changed_days)


async def read(database: Database, traffic_filter: TrafficFilter, axis: SplitAxis, *, splits: bool) -> TrafficSeries:
    reader = await open_reader(database, traffic_filter, splits=splits)
    return await reader.list_series(axis, PERIOD, 3)


SOME = (ALL, FILTERS[1], FILTERS[5])


async def compare_state(database: Database) -> None:
    """Compare each axis once, and some selections: a day that wrongly counts, or does not, is wrong in all of them."""
    await compare(database, SOME, zip(cycle(SOME), AXES))


async def compare(
    database: Database, filters: Iterable[TrafficFilter], pairs: Iterable[tuple[TrafficFilter, SplitAxis]]
) -> None:
    """Read selections by axes with and without splits, and the sums of a period that ends within a day."""
    for traffic_filter, axis in pairs:
        expected = await read(database, traffic_filter, axis, splits=False)
        assert await read(database, traffic_filter, axis, splits=True) == expected, (traffic_filter, axis)
        assert len(expected.top) <= 3
    assert (await read(database, ALL, "key", splits=True)).buckets.keys() == set(range(PERIOD.since, PERIOD.until, 24))
    for traffic_filter in filters:
        sums = []
        for splits in (True, False):
            reader = await open_reader(database, traffic_filter, splits=splits)
            sums.append(await reader.sum_traffic(PERIOD.since - 5, PERIOD.until - 20))
        assert sums[0] == sums[1]
        await compare_lines(database, traffic_filter)


async def compare_lines(database: Database, traffic_filter: TrafficFilter) -> None:
    """Read the lines of each axis with splits, and from the sums of hours and days."""
    since, until = PERIOD.since - 5, PERIOD.until - 20
    reader = await open_reader(database, traffic_filter, splits=True)
    stored = TrafficRepository(database)
    for axis in ("day", "model", "key", "account", "channel", "status"):
        expected = await stored.list_traffic(axis, attrs.evolve(traffic_filter, since=since, until=until))
        assert sorted(await reader.list_lines(axis, since, until), key=attrs.astuple) == sorted(
            expected, key=attrs.astuple
        ), (traffic_filter, axis)


async def catch_up(splits: SplitRepository, now_s: float = NOW_S) -> None:
    while await splits.look_at_new_rows() or await splits.add_day(now_s):
        pass


async def find_days(database: Database) -> list[int]:
    return sorted(day - FIRST_DAY for day in await list_split_days(database, range(FIRST_DAY - 9, FIRST_DAY + 9)))


async def test_splits_are_the_sums_of_days_that_have_ended(database: Database, stores: Stores) -> None:
    splits = SplitRepository(database, max_rows=7)
    assert not await splits.look_at_new_rows()  # there are no rows
    await stores.ledger.post(make_rows(0, 60))
    await catch_up(splits)
    assert await find_days(database) == [0, 1, 2]
    await compare(database, FILTERS, product(FILTERS, AXES))
    await catch_up(splits, FIRST_MS / 1000 + 5 * DAY_S - 1)
    assert await find_days(database) == [0, 1, 2]  # the last rows of the fourth may be under way


async def test_a_row_that_is_stored_late_takes_its_day_out(database: Database, stores: Stores) -> None:
    splits = SplitRepository(database, max_rows=4)
    await stores.ledger.post(make_rows(0, 20))
    await catch_up(splits)
    await stores.ledger.post(make_rows(20, 9, day=3) + make_rows(29, 2, day=1))
    while await splits.look_at_new_rows():
        pass
    assert await find_days(database) == [0, 2]
    await compare_state(database)
    await catch_up(splits)
    assert await find_days(database) == [0, 1, 2]
    await compare_state(database)


async def test_rows_that_are_taken_back_take_their_day_out(database: Database, stores: Stores) -> None:
    splits, rows = SplitRepository(database), make_rows(0, 20)
    await stores.ledger.post(rows)
    await catch_up(splits)
    taken_back = [row for row in rows if (row.settled_ms - FIRST_MS) // (DAY_S * 1000) == 2][:2]
    await database.write(lambda connection: reverse_rows(connection, taken_back, SubjectSums()))
    assert await find_days(database) == [0, 1]
    await compare_state(database)
    await catch_up(splits)
    await compare_state(database)


async def test_processes_at_once_and_a_state_of_another_database(database: Database, stores: Stores) -> None:
    await stores.ledger.post(make_rows(0, 40))
    runs = [SplitRepository(database, max_rows=3) for _ in range(3)]
    await runs[0].look_at_new_rows()
    await stores.ledger.post(make_rows(40, 20))
    await asyncio.gather(*map(catch_up, runs))
    await catch_up(runs[0])
    assert await find_days(database) == [0, 1, 2]
    await compare_state(database)
    ((count,),) = await database.read(select(func.count()).select_from(usage_splits))
    await database.change(update(rollups).where(rollups.c.name == "splits").values(cursor="no cursor"))
    await catch_up(runs[0])
    assert await find_days(database) == [0, 1, 2]
    assert [tuple(row) for row in await database.read(select(func.count()).select_from(usage_splits))] == [(count,)]


class _Interrupted(Exception):
    """Ends a job between two commits, as a kill does."""


async def test_a_day_is_written_in_small_commits_and_counts_after_the_last(
    database: Database, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another job, a reversal, a late row and a kill come between two commits."""
    await stores.ledger.post(make_rows(0, 40))
    splits = SplitRepository(database, commit_rows=10)
    await splits.look_at_new_rows()
    pauses, between = [0], [_interrupt]

    async def pause(_seconds: float) -> None:
        pauses[0] += 1
        if pauses[0] == 2:
            await between[0]()

    async def reverse() -> None:
        row = next(row for row in make_rows(0, 40) if (row.settled_ms - FIRST_MS) // (DAY_S * 1000) == 2)
        await database.write(lambda connection: reverse_rows(connection, [row], SubjectSums()))

    async def store_late_row() -> None:
        await stores.ledger.post(make_rows(50, 1, day=2))

    async def run_another_job() -> None:
        pauses[0] = -10_000
        assert await splits.add_day(NOW_S)
        assert await find_days(database) == [2]

    with monkeypatch.context() as patched:
        replace_sleep(patched, "gateway.storage.usage_splits", pause)
        with pytest.raises(_Interrupted):
            await splits.add_day(NOW_S)
        assert await count_rows(database) == 20  # two commits of ten, which no chart reads
        assert await find_days(database) == []
        await compare_state(database)
        pauses[0], between[0] = 0, reverse
        assert not await splits.add_day(NOW_S)
        assert await find_days(database) == []
        pauses[0], between[0] = -3, store_late_row  # after the deletion of the rows of the last call
        await splits.add_day(NOW_S)
        assert await splits.find_changed_days(3) == frozenset({FIRST_DAY + 2})
        await compare_state(database)
        await splits.look_at_new_rows()
        assert await find_days(database) == []
        pauses[0], between[0] = 0, run_another_job
        assert not await splits.add_day(NOW_S)
    assert await find_days(database) == [2]
    await catch_up(splits)
    await compare_state(database)


async def _interrupt() -> None:
    raise _Interrupted


async def count_rows(database: Database) -> int:
    ((count,),) = await database.read(select(func.count()).select_from(usage_splits))
    return int(count)


async def test_a_day_with_too_many_sums_is_tried_once(database: Database, stores: Stores) -> None:
    await stores.ledger.post(make_rows(0, 40) + make_rows(40, 1, day=5))
    for limit in (5, 60):  # the daily sums are too many, or the rows of the day are
        splits = SplitRepository(database, max_sums=limit)
        while await splits.look_at_new_rows() or await splits.add_day(NOW_S):
            pass
        assert await find_days(database) == []
        assert await count_rows(database) == 3
        await compare_state(database)
        assert not await SplitRepository(database).add_day(NOW_S)
        await database.change(usage_splits.delete())
    await catch_up(SplitRepository(database))
    assert await find_days(database) == [0, 1, 2]


async def test_a_reader_of_new_rows_writes_nothing(database: Database, stores: Stores) -> None:
    splits = SplitRepository(database, max_rows=4)
    assert await splits.find_changed_days(3) == frozenset()
    await stores.ledger.post(make_rows(0, 20))
    assert await splits.find_changed_days(3) == frozenset()  # no job has begun, and no day is complete
    await catch_up(splits)
    before = await database.read(select(rollups).order_by(rollups.c.name))
    await stores.ledger.post(make_rows(20, 5, day=1))
    assert await splits.find_changed_days(3) == frozenset({FIRST_DAY + 1})
    assert await splits.find_changed_days(1) is None
    assert await database.read(select(rollups).order_by(rollups.c.name)) == before
    assert await find_days(database) == [0, 1, 2]
    await compare_state(database)
    await database.change(update(rollups).where(rollups.c.name == "splits").values(cursor="no cursor"))
    assert await splits.find_changed_days(3) is None


async def test_what_the_database_refuses_does_not_stop_the_other_sums(database: Database, stores: Stores) -> None:
    await stores.ledger.post(make_rows(0, 20))

    class Refused(SplitRepository):
        @override
        async def add_day(self, now_s: float) -> bool:
            raise StoreUnavailable("The gateway's store cannot be written to", retry_after_s=5)

    speed = SpeedRepository(database, max_rows=3)
    await SpeedWorker(speed, Refused(database), lambda: NOW_S, pause_s=0).sum_rows()
    ((before,),) = await database.read(select(rollups.c.before).where(rollups.c.name == "speed"))
    assert before == 0  # all old rows are summed
