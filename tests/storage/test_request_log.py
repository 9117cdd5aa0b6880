"""Lists of requests in the database: never more than a bounded look, page after page, and nothing left out."""

from collections.abc import AsyncIterator
from typing import Any, get_args

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.domain.request_log import NON_FAILURES, Outcome, RequestFilter, RequestPage, StoredRequest
from gateway.storage.database import Database
from gateway.storage.ledger import LedgerRepository
from gateway.storage.request_log import SLACK_MS, RequestLogRepository
from tests.support.request_records import NOON_MS, make_row, make_rows

STEP_MS = 3_000
ROWS = 150
IDS = [f"req_{number:024x}" for number in range(ROWS)]
FAILURES: dict[int, dict[str, Any]] = {
    3: {"status": 429, "outcome": "refused", "error_code": "rate_limit_exceeded", "error": "Wait 5 s", "channel": None},
    5: {"status": 200, "outcome": "failed", "error_code": "upstream_error", "error": "It broke off: 50% done"},
    7: {"status": 400, "outcome": "refused", "error_code": None, "error": "Context_length is 8"},
    9: {"status": 409, "outcome": "cancelled", "error_code": "request_cancelled", "error": "It was cancelled, 50%"},
    11: {"status": 499, "outcome": "client_closed", "error_code": None, "error": ""},
    13: {"status": 500, "outcome": "interrupted", "error_code": None, "error": ""},
}
"""What every so-and-so-manieth row is instead of an answer."""
WELL: dict[str, Any] = {"status": 200, "outcome": "completed", "error_code": None, "error": ""}


def make_history() -> list[Any]:
    """Rows some seconds apart, and stored out of order as far as the slack goes."""
    rows = []
    for number, request_id in enumerate(IDS):
        wrong = next((values for every, values in FAILURES.items() if number % every == every - 1), WELL)
        jitter = (number * 7_919) % (2 * SLACK_MS) - SLACK_MS + 1
        row = make_row(
            number, account_id=number % 3, key_id=number % 10, model=f"m{number % 4}", channel=f"c{number % 2}"
        )
        settled_ms = NOON_MS + number * STEP_MS + jitter
        named: dict[str, Any] = {"end_user": f"u{number % 5}", "tags": f"env=e_{number % 2},team=t"}
        row = attrs.evolve(row, route=f"r{number % 2}", session=f"s{number % 7}", **(named if number % 4 else {}))
        row = attrs.evolve(row, served_model="m3" if number % 6 == 1 else "")
        rows.append(attrs.evolve(row, id=request_id, settled_ms=settled_ms, cost_nanos=0, **wrong))
    return rows


@attrs.frozen
class Logs:
    """Rows, and a database with them that looks at few of them at a time."""

    rows: list[StoredRequest]
    database: RequestLogRepository


@pytest.fixture
async def logs(database: Database) -> Logs:
    history = make_history()
    await LedgerRepository(database).post(history)
    rows = [StoredRequest(sequence, row) for sequence, row in enumerate(history, 1)]
    return Logs(rows, RequestLogRepository(database, in_order=40, by_index=7))


async def walk(log: RequestLogRepository, wanted: RequestFilter, limit: int) -> AsyncIterator[RequestPage]:
    """Every page until there are no more, as a reader goes on."""
    while True:
        page = await log.list_requests(wanted, limit)
        assert len(page) <= limit
        yield page
        if not page.more:
            return
        assert page.next is not None
        if wanted.after is None:
            assert wanted.before is None or int(page.next) < wanted.before
            wanted = attrs.evolve(wanted, before=int(page.next))
        else:
            assert page.next != wanted.after
            wanted = attrs.evolve(wanted, after=page.next)


def find_last(page: RequestPage) -> int:
    """The sequence that the next page goes on from."""
    assert page.next is not None
    return int(page.next.split("-")[2] if "-" in page.next else page.next)


MOMENTS = st.none() | st.integers(-5, ROWS + 5).map(lambda step: NOON_MS + step * STEP_MS)
TEXTS = ("wait", "50%", "%", "_length", "LENGTH", "upstream", "RATE_limit", "zebra", IDS[2], IDS[-1], "req_1")


def seldom(*values: Any) -> st.SearchStrategy[Any]:
    """Mostly nothing: of ten wishes at once hardly a row fulfils all."""
    return st.sampled_from([*[None] * 4 * len(values), *values])


WISHES = st.builds(
    RequestFilter,
    key_id=seldom(0, 3, 9, 77),
    account_id=seldom(0, 2, 77),
    model=seldom("m0", "m3", "M3", ""),
    channel=seldom("c0", "C1"),
    status=seldom(200, 409, 429, 499, 500, 418),
    outcome=seldom("completed", "refused", "client_closed", "cancelled", "interrupted", "failed"),
    verdict=seldom("ok", "error"),
    since_ms=MOMENTS,
    until_ms=MOMENTS,
    text=seldom(*TEXTS),
    route=seldom("r1", "r2"),
    end_user=seldom("u1", "u4", "u9", ""),
    session=seldom("s0", "s6", "S0"),
    served_model=seldom("m3", "m1", "M3", ""),
    tag=seldom("env=e_1", "team=t", "env=e", "env", "e_1,team=t"),
    before=st.none() | st.integers(0, ROWS + 9),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(wanted=WISHES, limit=st.sampled_from([1, 6, 6, 50, 50]), follows=st.none() | st.integers(0, ROWS))
async def test_page_by_page_exactly_what_is_wanted_is_found(
    logs: Logs, wanted: RequestFilter, limit: int, follows: int | None
) -> None:
    """Whatever is asked for together, from either end, in pages of any size."""
    if follows is not None:
        wanted = attrs.evolve(wanted, after=str(follows), before=None)
    everything: list[StoredRequest] = []
    async for page in walk(logs.database, wanted, limit):
        everything = [*everything, *page] if follows is not None else [*page, *everything]
    matching = [one for one in logs.rows if wanted.matches(one) and one.sequence > (follows or 0)]
    assert [one.row for one in everything] == [one.row for one in matching]
    sequences = [one.sequence for one in everything]
    assert sequences == sorted(set(sequences))


async def test_a_page_that_found_nothing_says_how_far_it_looked(logs: Logs) -> None:
    page = await logs.database.list_requests(RequestFilter(channel="nobody"), 5)
    assert (len(page), page.more, page.next) == (0, True, str(ROWS - 40 + 1))
    assert page.searched_ms == logs.rows[ROWS - 40].row.settled_ms


@pytest.mark.parametrize(
    ("wish", "every", "first"),
    [
        ({"session": "s3"}, 7, 3),
        ({"key_id": 3}, 10, 3),
        ({"model": "m1"}, 4, 1),
        ({"account_id": 2}, 3, 2),
        ({"key_id": 3, "model": "m1"}, 10, 3),
    ],
)
async def test_by_an_index_so_many_rows_are_looked_at_and_it_is_the_one_that_reaches_furthest(
    database: Database, wish: dict[str, Any], every: int, first: int
) -> None:
    await LedgerRepository(database).post(make_history())
    log = RequestLogRepository(database, in_order=15, by_index=7)
    found = [number + 1 for number in range(first, ROWS, every)]
    wanted = RequestFilter(**wish, channel="nobody")
    assert find_last(await log.list_requests(wanted, 5)) == found[-7]
    assert find_last(await log.list_requests(attrs.evolve(wanted, after="0"), 5)) == found[6]
    furthest = RequestLogRepository(database, in_order=100, by_index=7)
    assert find_last(await furthest.list_requests(wanted, 5)) == ROWS + 1 - 100
    assert find_last(await furthest.list_requests(attrs.evolve(wanted, after="0"), 5)) == 100


async def test_the_last_page_leads_nowhere(logs: Logs) -> None:
    page = await logs.database.list_requests(RequestFilter(before=11), 10)
    assert (len(page), page.more, page.next, page.searched_ms) == (10, False, None, None)


async def test_a_full_page_leads_on_from_its_oldest_row(logs: Logs) -> None:
    page = await logs.database.list_requests(RequestFilter(), 4)
    assert ([one.sequence for one in page], page.more, page.next) == ([147, 148, 149, 150], True, "147")
    assert page.searched_ms == page[0].row.settled_ms
    page = await logs.database.list_requests(RequestFilter(after="10"), 4)
    assert ([one.sequence for one in page], page.more, find_last(page)) == ([11, 12, 13, 14], True, 14)
    assert page.searched_ms == page[-1].row.settled_ms


async def test_whoever_follows_goes_on_after_all_that_was_looked_at(logs: Logs) -> None:
    """Also where nothing was found: else the same rows would be looked at for ever."""
    assert find_last(await logs.database.list_requests(RequestFilter(channel="nobody", after="0"), 5)) == 40
    last = await logs.database.list_requests(RequestFilter(channel="nobody", after="140"), 5)
    assert (last.more, last.next) == (False, last.newest)
    for after in (last.newest, str(ROWS), "999"):
        page = await logs.database.list_requests(RequestFilter(after=after), 5)
        assert (len(page), page.more) == (0, False)
        assert page.next == ("999" if (after, page.newest) == ("999", str(ROWS)) else page.newest)


async def test_an_empty_log_has_an_empty_page(database: Database) -> None:
    log = RequestLogRepository(database)
    page = await log.list_requests(RequestFilter(), 5)
    assert (len(page), page.more, page.next, page.searched_ms) == (0, False, None, None)
    for after in (page.newest, "3"):
        later = await log.list_requests(RequestFilter(after=after), 5)
        assert (len(later), later.more, later.searched_ms) == (0, False, None)
    await LedgerRepository(database).post(make_rows(1))
    assert [one.row.id for one in await log.list_requests(RequestFilter(after=page.newest), 5)] == ["req_1"]
    assert await log.find_request("req_2") is None


async def test_a_request_is_found_by_its_id(logs: Logs) -> None:
    found = await logs.database.find_request(IDS[5])
    assert found is not None
    assert found.row == make_history()[5]
    assert await logs.database.find_request("req_none") is None


async def test_a_model_is_known_once_it_has_a_request(logs: Logs) -> None:
    assert await logs.database.has_model(["nothing", "m1"])
    assert not await logs.database.has_model(["nothing", "m"])


async def test_a_number_is_not_taken_for_a_failure_where_the_caller_left(database: Database) -> None:
    """499 is the one status above 400 that no failure need have."""
    rows = [*make_rows(1, 2, status=499, outcome="client_closed"), *make_rows(3, status=499, outcome="refused")]
    await LedgerRepository(database).post(rows)
    page = await RequestLogRepository(database, in_order=1, by_index=1).list_requests(RequestFilter(status=499), 9)
    assert [one.row.id for one in page] == ["req_3"]
    page = await RequestLogRepository(database).list_requests(RequestFilter(status=499), 9)
    assert [one.row.id for one in page] == ["req_1", "req_2", "req_3"]


@pytest.mark.parametrize("outcome", get_args(Outcome))
async def test_verdicts_part_all_endings(database: Database, outcome: Outcome) -> None:
    await LedgerRepository(database).post(make_rows(1, outcome=outcome))
    log = RequestLogRepository(database)
    found = [len(await log.list_requests(RequestFilter(verdict=verdict), 9)) for verdict in ("ok", "error")]
    assert found == ([1, 0] if outcome in NON_FAILURES else [0, 1])


async def test_rows_that_a_retired_stretch_has_left_apart_are_found_by_time(database: Database) -> None:
    """Where nothing is any more, a search for a time finds no row to compare with."""
    await LedgerRepository(database).post(make_history())
    async with database._writer.begin() as connection:  # type: ignore[attr-defined]
        await connection.exec_driver_sql("DELETE FROM requests WHERE sequence BETWEEN 2 AND 145")
    log = RequestLogRepository(database)
    for number in (0, 145, 147):
        settled_ms = make_history()[number].settled_ms
        wanted = RequestFilter(since_ms=settled_ms, until_ms=settled_ms + 1)
        assert [one.sequence for one in await log.list_requests(wanted, 9)] == [number + 1]
