"""The script that weighs lists among millions of rows, among few; and that no list or facet reads through a table."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from sqlalchemy import event

from gateway.domain.request_log import RequestFilter
from gateway.domain.traffic import HOUR_MS, TrafficAxis, TrafficFilter
from gateway.server.console.routes import list_pages
from gateway.storage.database import Database
from gateway.storage.open import open_database
from gateway.storage.request_log import RequestLogRepository
from gateway.storage.retention import RetentionRepository
from gateway.storage.traffic import TrafficRepository
from scripts import pages_load, rows_load
from scripts.rows_load import DAY_MS, DAYS, START_MS, Clock, World
from tests.support.gateway import make_template

ROWS = 3_000
UNTIL = (START_MS + DAYS * DAY_MS) // HOUR_MS
QUESTIONS = rows_load.list_questions(ROWS)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rows") / "gateway.db"


@pytest.fixture
async def database(filled: Path, template_path: Path) -> AsyncIterator[Database]:
    if not filled.exists():
        if not template_path.exists():
            await make_template(template_path)
        shutil.copy(template_path, filled)
        rows_load.fill(filled, ROWS)
    opened = await open_database(f"sqlite:///{filled}")
    yield opened
    await opened.close()


@attrs.frozen
class Plans:
    """Everything that readers ask a database, and how that goes about it."""

    database: Database
    asked: list[tuple[str, Any]] = attrs.field(factory=list)

    def listen(self) -> None:
        @event.listens_for(self.database._reader.sync_engine, "before_cursor_execute")  # type: ignore[attr-defined]
        def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
            if statement.startswith("SELECT"):
                self.asked.append((statement, parameters))

    async def explain(self) -> list[tuple[str, list[str]]]:
        """Every statement since the last time, with its steps."""
        found = []
        async with self.database._reader.connect() as connection:  # type: ignore[attr-defined]
            for statement, parameters in self.asked[:]:
                steps = await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
                found.append((statement, [row[3] for row in steps]))
        self.asked.clear()
        return found


@pytest.fixture
def plans(database: Database) -> Plans:
    plans = Plans(database)
    plans.listen()
    return plans


IN_ORDER = "INTEGER PRIMARY KEY (rowid>? AND rowid<?)"
EXPECTED = {
    "everything": IN_ORDER,
    "a busy key": "INDEX requests_by_key (key_id=? AND sequence>? AND sequence<?)",
    "a quiet account": "INDEX requests_by_account (account_id=? AND sequence>? AND sequence<?)",
    "a model": "INDEX requests_by_model (model=? AND sequence>? AND sequence<?)",
    "no such channel": IN_ORDER,
    "status 299: none": IN_ORDER,
    "status 429": "INDEX requests_wrong (sequence>? AND sequence<?)",
    "failures": "INDEX requests_wrong (sequence>? AND sequence<?)",
    "text": "INDEX requests_wrong (sequence>? AND sequence<?)",
    "an id that is nowhere": "INDEX sqlite_autoindex_requests_1 (id=?)",
    "a busy key, a strange model": "INDEX requests_by_model (model=? AND sequence>? AND sequence<?)",
    "after the first, a quiet key": "INDEX requests_by_key (key_id=? AND sequence>? AND sequence<?)",
}
"""What rows are found by."""


@pytest.mark.parametrize("name", QUESTIONS)
async def test_no_list_reads_through_a_table_or_puts_rows_in_order(plans: Plans, name: str) -> None:
    log = RequestLogRepository(plans.database, in_order=50, by_index=20)
    await log.list_requests(QUESTIONS[name], 5)
    explained = await plans.explain()
    for statement, steps in explained:
        assert not [step for step in steps if step.startswith("SCAN") and step != "SCAN CONSTANT ROW"], statement
        assert not [step for step in steps if "TEMP B-TREE" in step], statement
    found_by = [steps for statement, steps in explained if "requests.operation" in statement]
    assert [len(steps) for steps in found_by] in ([], [1])
    if name in EXPECTED:
        assert found_by == [[f"SEARCH requests USING {EXPECTED[name]}"]]


async def test_facets_and_charts_look_at_their_hours_and_days_alone(plans: Plans) -> None:
    traffic = TrafficRepository(plans.database)
    axes: tuple[TrafficAxis, ...] = ("day", "hour", "model", "key", "account", "status", "channel")
    for since in (UNTIL - 30 * 24, UNTIL - 30 * 24 + 5):
        wanted = TrafficFilter(since, UNTIL - 1)
        await traffic.list_facets(attrs.evolve(wanted, key_id=1))
        for axis in axes:
            await traffic.list_traffic(axis, wanted)
    steps = [step for _, steps in await plans.explain() for step in steps if "usage_hours" in step]
    assert len(steps) > 2 * len(axes)
    assert {step.partition(" USING ")[2] for step in steps} == {"PRIMARY KEY (span=? AND hour>? AND hour<?)"}


async def test_what_the_script_makes_are_rows_and_their_sums(database: Database) -> None:
    page = await RequestLogRepository(database).list_requests(RequestFilter(), ROWS)
    assert [one.row for one in page] == list(World().make(ROWS))
    (total,) = [
        sum(
            line.requests for line in await TrafficRepository(database).list_traffic("day", TrafficFilter(0, 2 * UNTIL))
        )
    ]
    assert total == ROWS
    assert 0.95 < sum(one.row.outcome == "completed" for one in page) / ROWS < 0.99


async def test_the_script_asks_everything(database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock(rounds=1)
    await rows_load.weigh_lists(database, clock)
    await rows_load.weigh_sums(database, clock)
    await rows_load.weigh_export(database)
    printed = capsys.readouterr().out
    assert all(
        f"  {name} " in printed for name in (*QUESTIONS, "180 days, a key", "by channel, 90 days", "csv", "jsonl")
    )


async def test_the_script_retires_what_it_weighs(tmp_path: Path, filled: Path, database: Database) -> None:
    del database  # which has filled it
    opened = await open_database(f"sqlite:///{shutil.copy(filled, tmp_path / 'gateway.db')}")
    await rows_load.weigh_retirement(opened)
    done = await RetentionRepository(opened).retire_requests(START_MS + DAY_MS, 0, 10)
    assert (done.retired, done.ended) == (0, True)
    assert len(await RequestLogRepository(opened).list_requests(RequestFilter(), ROWS)) < ROWS
    await opened.close()


def test_every_page_with_a_list_is_timed() -> None:
    timed = {path.partition("?")[0] for path in pages_load.PAGES}
    forms = {"/", "/connect", "/playground", "/account", "/new-channel", "/settings", "/nodes"}
    lists = {page.path for page in list_pages() if page.needs is not None and "{" not in page.path}
    assert lists - forms == {path for path in timed if path.count("/") < 2}
