"""What a crash has left gets its rows and, if so decided, its charges: once."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import attrs
import pytest
from structlog.testing import capture_logs

from gateway.billing.recovery import recover
from gateway.domain.balance import parse_day
from gateway.domain.ledger import OnCrash, UsageLine
from gateway.domain.request_log import RequestFilter, RequestRecord
from gateway.errors import StoreUnavailable
from gateway.storage.database import Database
from gateway.storage.journal import RequestJournal
from gateway.storage.ledger import LedgerRepository
from gateway.storage.open import open_database
from gateway.storage.request_log import RequestLogRepository
from tests.support.journal_entries import begin, find, interrupted
from tests.support.ledger_balances import ALWAYS, read_ids, read_spending, read_totals
from tests.support.repositories import Repositories
from tests.support.request_records import make_row
from tests.support.stores import copy_template

NOW_MS = 1_790_000_000_456
RUNNING = interrupted(make_row("running", reserved_nanos=700))
"""As it is noted before a provider is asked."""
ENDED = make_row("ended", cost_nanos=50, reserved_nanos=90)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "requests.journal"


def crash(path: Path, *settled: RequestRecord, running: Sequence[RequestRecord] = ()) -> None:
    """A process that had noted these calls is no more."""
    journal = RequestJournal(path)
    for row in running:
        journal.start_at_once(begin(row))
    for row in settled:
        journal.start_at_once(begin(attrs.evolve(RUNNING, id=row.id)))
        journal.record_end(row)
    journal.close()


async def start_again(path: Path, ledger: LedgerRepository, on_crash: OnCrash | None = "release") -> None:
    """What the next process does about it."""
    journal = RequestJournal(path)
    try:
        await recover(journal.leftovers, ledger, journal, on_crash=on_crash, now_ms=NOW_MS, list_charges=lambda _: "")
    finally:
        journal.close()


async def read_rows(log: RequestLogRepository) -> list[RequestRecord]:
    return [stored.row for stored in await log.list_requests(RequestFilter(), 100)]


async def test_a_call_that_had_ended_is_charged_what_it_cost_when_it_ended(path: Path) -> None:
    store = Repositories()
    crash(path, ENDED)
    await start_again(path, store, "charge")
    assert await read_rows(store) == [ENDED]
    assert await read_spending(store, parse_day(ENDED.settled_ms / 1000)) == {(3, 5): (50, 50, 50, 0, 0, 0)}
    assert find(path) == {}


@pytest.mark.parametrize(("on_crash", "cost"), [("release", 0), ("charge", 700)])
async def test_a_call_that_was_cut_off_is_interrupted_and_released_or_charged_what_was_held(
    path: Path, on_crash: OnCrash, cost: int
) -> None:
    store = Repositories()
    crash(path, running=[RUNNING])
    await start_again(path, store, on_crash)
    assert await read_rows(store) == [attrs.evolve(RUNNING, settled_ms=NOW_MS, cost_nanos=cost)]
    assert await read_totals(store) == ({(3, 5, cost, cost, cost)} if cost else set())
    assert await store.list_usage("key", ALWAYS) == [UsageLine("5", 1, 0, 0, 0, cost)]
    assert find(path) == {}


async def test_without_a_policy_what_was_cut_off_is_left_for_whom_it_is_to_decide(path: Path) -> None:
    store = Repositories()
    crash(path, ENDED, running=[RUNNING])
    for _ in range(2):
        await start_again(path, store, None)
        assert await read_rows(store) == [ENDED]
        assert find(path) == {RUNNING.id: False}
    await start_again(path, store, "charge")
    assert [row.cost_nanos for row in await read_rows(store)] == [ENDED.cost_nanos, 700]


async def test_a_charge_for_a_call_that_was_cut_off_is_of_the_day_it_was_found(path: Path) -> None:
    store = Repositories()
    crash(path, running=[RUNNING])
    await start_again(path, store, "charge")
    assert await read_spending(store, parse_day(NOW_MS / 1000)) == {(3, 5): (700, 700, 700, 0, 0, 0)}
    assert await read_spending(store, parse_day(RUNNING.started_ms / 1000)) == {(3, 5): (700, 0, 0, 0, 0, 0)}


async def test_a_call_that_was_held_nothing_for_is_charged_nothing(path: Path) -> None:
    store = Repositories()
    crash(path, running=[attrs.evolve(RUNNING, reserved_nanos=0)])
    await start_again(path, store, "charge")
    assert await read_totals(store) == set()
    assert await read_ids(store) == ["req_running"]


@pytest.mark.parametrize("on_crash", ["release", "charge"])
async def test_a_row_that_was_retired_since_it_was_stored_is_charged_no_second_time(
    path: Path, on_crash: OnCrash
) -> None:
    """The journal of a quiet gateway has notes of what was stored long ago, and perhaps not of how it ended."""
    store, long_ago = Repositories(), attrs.evolve(ENDED, id=RUNNING.id, started_ms=RUNNING.started_ms)
    await store.post([long_ago, ENDED])
    assert (await store.retire_requests(ENDED.settled_ms + 1, 0, 9)).retired == 2
    before = await read_totals(store)
    crash(path, ENDED, running=[RUNNING])
    await start_again(path, store, on_crash)
    assert (await read_totals(store), await read_rows(store)) == (before, [])
    assert find(path) == {}


async def test_nothing_left_asks_nothing_of_the_store(path: Path) -> None:
    with capture_logs() as reported:
        await start_again(path, RefusingStore())
    assert reported == []


async def test_what_was_interrupted_is_told_call_by_call(path: Path) -> None:
    crash(path, ENDED, running=[RUNNING, attrs.evolve(RUNNING, id="req_2", model="n")])
    with capture_logs() as reported:
        await start_again(path, Repositories(), "charge")
    interrupted = [line for line in reported if line["event"] == "request_interrupted"]
    assert [(line["request_id"], line["model"], line["cost_nanos"]) for line in interrupted] == [
        ("req_running", "m", 700),
        ("req_2", "n", 700),
    ]
    assert {(line["account"], line["key"], line["log_level"]) for line in interrupted} == {
        ("acme", "laptop", "warning")
    }
    assert reported[-1] == {"event": "journal_recovered", "log_level": "info", "rows": 3, "interrupted": 2}


class RefusingStore(Repositories):
    """A store that takes nothing."""

    async def post_again(self, _rows: Sequence[RequestRecord]) -> None:
        raise StoreUnavailable("not now")


async def test_what_cannot_be_stored_is_left_for_the_next_start(path: Path) -> None:
    crash(path, ENDED, running=[RUNNING])
    with pytest.raises(StoreUnavailable):
        await start_again(path, RefusingStore(), "charge")
    assert find(path) == {"req_running": False, "req_ended": True}
    store = Repositories()
    await start_again(path, store)
    assert (await read_rows(store))[1] == ENDED
    assert find(path) == {}


@pytest.fixture
async def database(tmp_path: Path, template_path: Path) -> AsyncIterator[Database]:
    opened = await open_database(f"sqlite:///{await copy_template(template_path, tmp_path)}")
    yield opened
    await opened.close()


async def test_what_the_store_has_already_stays_as_it_is(path: Path, database: Database) -> None:
    """A call that was stored and not yet forgotten, or noted as running only, when the process was killed."""
    ledger, log = LedgerRepository(database), RequestLogRepository(database)
    unnoted = make_row("running", cost_nanos=3)
    await ledger.post([ENDED, unnoted])
    new = make_row("new", cost_nanos=4)
    crash(path, attrs.evolve(ENDED, cost_nanos=999), new, running=[RUNNING])
    await start_again(path, ledger, "charge")
    assert await read_rows(log) == [ENDED, unnoted, new]
    assert await read_totals(ledger) == {(3, 5, 57, 57, 57)}
    assert find(path) == {}


async def test_a_process_that_is_killed_while_it_recovers_charges_nothing_twice(path: Path, database: Database) -> None:
    ledger = LedgerRepository(database)
    crash(path, ENDED, running=[RUNNING])
    content = path.read_bytes()
    for _ in range(3):
        path.write_bytes(content)  # stored, and killed before it was forgotten
        await start_again(path, ledger, "charge")
    assert await read_totals(ledger) == {(3, 5, 750, 750, 750)}
    assert await read_ids(RequestLogRepository(database)) == ["req_running", "req_ended"]
