"""What charts are drawn from, in both databases: histograms that a job sums from rows, and failures by cause."""

import asyncio
from collections.abc import Sequence
from typing import Any

import attrs
from sqlalchemy import delete, select, update

from gateway.domain.request_log import RequestRecord, has_failed
from gateway.domain.speed import Speed, SpeedKey, TimedRow, sum_speed
from gateway.domain.traffic import HOUR_MS, TimeRange, TrafficFilter
from gateway.storage.database import Database
from gateway.storage.ledger_rows import reverse_rows
from gateway.storage.retention import RetentionRepository
from gateway.storage.schema import requests, rollups, speed_hours
from gateway.storage.speed import SpeedRepository
from gateway.storage.subject_sums import SubjectSums
from gateway.storage.traffic_series import TrafficSeriesReader
from tests.support.request_records import charge, read_ms, refuse
from tests.support.stores import Stores

MIDNIGHT_MS = read_ms("2026-03-15 00:00")
TODAY = MIDNIGHT_MS // HOUR_MS
ALWAYS = TrafficFilter(0, 10**6)
DAYS = [TimeRange(24, 0, 10**6)]


def make_rows(first: int, count: int, **values: Any) -> list[RequestRecord]:
    rows = []
    for number in range(first, first + count):
        row = charge(f"r{number}", 1, at_ms=MIDNIGHT_MS + number * 1_000_000, key=(11, 12, 21)[number % 3])
        facts = {"stream": number % 2 == 0, "total_ms": 100 + number * 37, "first_byte_ms": 40 + number}
        rows.append(attrs.evolve(row, model=f"m{number % 2}", channel="up", **{**facts, **values}))
    return rows


def expect_cells(rows: list[RequestRecord]) -> dict[SpeedKey, Speed]:
    completed = [row for row in rows if row.outcome == "completed"]
    return sum_speed(TimedRow(*(getattr(row, name) for name in TimedRow._fields)) for row in completed)


async def read_cells(database: Database) -> dict[SpeedKey, Speed]:
    """Every stored cell, by way of what pages ask."""
    names: Sequence[Sequence[Any]] = await database.read(select(*list(speed_hours.c)[:5]))
    speed, cells = SpeedRepository(database), {}
    for span, hour, kind, name, account_id in names:
        asked = attrs.evolve(
            ALWAYS,
            account_id=account_id or None,
            key_id=int(name) if kind == "key" else None,
            model=name if kind == "model" else None,
            channel=name if kind == "channel" else None,
        )
        lines = await speed.list_speed([TimeRange(span, hour, hour + span)], asked)
        assert lines is not None
        (line,) = lines
        cells[SpeedKey(span, hour, kind, name, account_id)] = line.speed
    return cells


async def count_causes(database: Database, period: TimeRange, **values: Any) -> dict[str, int]:
    reader = TrafficSeriesReader(database, attrs.evolve(ALWAYS, **values), uses_splits=False)
    series = await reader.list_series("cause", period, 10)
    return {line.label: line.requests for line in series.top if line.requests}


async def sum_all(speed: SpeedRepository) -> None:
    while await speed.add_new_rows():
        pass
    while await speed.add_old_rows():
        pass


async def test_rows_before_and_after_the_first_run_are_counted_once(database: Database, stores: Stores) -> None:
    speed = SpeedRepository(database, max_rows=4)
    rows = make_rows(0, 10)
    await stores.ledger.post(rows)
    await speed.add_new_rows()
    rows += (new_rows := [*make_rows(10, 9), refuse(make_rows(19, 1)[0])])
    await stores.ledger.post(new_rows)
    assert await speed.add_new_rows()
    assert await speed.find_since_ms() == rows[10].settled_ms
    await sum_all(speed)
    assert await read_cells(database) == expect_cells(rows)
    assert await speed.find_since_ms() == rows[0].settled_ms
    await sum_all(speed)
    assert await read_cells(database) == expect_cells(rows)


async def test_two_processes_count_no_row_twice(database: Database, stores: Stores) -> None:
    rows = make_rows(0, 40)
    await stores.ledger.post(rows[:20])
    runs = [SpeedRepository(database, max_rows=3) for _ in range(3)]
    await runs[0].add_new_rows()
    await stores.ledger.post(rows[20:])
    await asyncio.gather(*(sum_all(run) for run in runs))
    await sum_all(runs[0])
    assert await read_cells(database) == expect_cells(rows)


async def test_a_state_of_another_database_begins_anew(database: Database, stores: Stores) -> None:
    rows = make_rows(0, 5)
    await stores.ledger.post(rows)
    speed = SpeedRepository(database)
    await sum_all(speed)
    await database.change(update(rollups).values(cursor="no cursor"))
    await sum_all(speed)
    assert await read_cells(database) == expect_cells(rows)


async def test_rows_that_were_deleted_before_they_were_summed_are_not_waited_for(
    database: Database, stores: Stores
) -> None:
    rows = make_rows(0, 12)
    await stores.ledger.post(rows)
    speed = SpeedRepository(database, max_rows=2)
    await speed.add_new_rows()
    await database.change(delete(requests).where(requests.c.settled_ms < rows[6].settled_ms))
    await sum_all(speed)
    assert await read_cells(database) == expect_cells(rows[6:])


async def test_old_hours_are_deleted_and_days_stay(database: Database, stores: Stores) -> None:
    rows = [*make_rows(0, 3), *make_rows(90, 1), refuse(make_rows(1, 1)[0])]
    rows[-1] = attrs.evolve(rows[-1], id="req_refused")
    await stores.ledger.post(rows)
    await sum_all(SpeedRepository(database))
    retention = RetentionRepository(database)
    while await retention.retire_hours(TODAY + 2):
        pass
    cells = expect_cells(rows)
    assert await read_cells(database) == {
        key: cell for key, cell in cells.items() if key.span == 24 or key.hour > TODAY + 2
    }
    assert not await count_causes(database, TimeRange(1, TODAY - 24, TODAY + 2))
    assert len(await count_causes(database, TimeRange(24, TODAY, TODAY + 24))) == 1


async def test_only_cells_of_exactly_the_filter_answer(database: Database, stores: Stores) -> None:
    await stores.ledger.post(make_rows(0, 6))
    speed = SpeedRepository(database)
    await sum_all(speed)
    for values in ({"key_id": 11, "model": "m0"}, {"channel": "up", "account_id": 1}, {"status": 200}):
        assert await speed.list_speed(DAYS, attrs.evolve(ALWAYS, **values)) is None
    foreign = await speed.list_speed(DAYS, attrs.evolve(ALWAYS, key_id=21, account_id=1))
    assert foreign == []


async def test_failures_are_counted_by_cause_and_reversed(database: Database, stores: Stores) -> None:
    rows = make_rows(0, 4)
    failed = [
        refuse(make_rows(4, 1)[0]),
        *make_rows(5, 2, outcome="interrupted", status=500, error_code=None),
        *make_rows(7, 2, outcome="failed", status=502, error_code="upstream_error"),
    ]
    await stores.ledger.post([*rows, *failed])
    day = TimeRange(24, TODAY, TODAY + 24)
    causes = await count_causes(database, day)
    assert sum(causes.values()) == sum(map(has_failed, failed))
    assert causes == {f"refused/{failed[0].error_code}": 1, "interrupted/": 2, "failed/upstream_error": 2}
    assert sum((await count_causes(database, day, key_id=failed[0].key_id, model=failed[0].model)).values()) == 1
    await database.write(lambda connection: reverse_rows(connection, failed[1:3], SubjectSums()))
    assert {label.partition("/")[0] for label in await count_causes(database, day)} == {"refused", "failed"}
