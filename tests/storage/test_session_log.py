"""Sessions in the request log: listed by their last request in bounded pages, and summed up."""

from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete

from gateway.domain.request_log import RequestRecord
from gateway.domain.session_usage import SessionCursor, SessionFilter, SessionKey, SessionPage
from gateway.storage.database import Database
from gateway.storage.ledger import LedgerRepository
from gateway.storage.schema import requests
from gateway.storage.session_log import SessionLogRepository
from tests.support.database_kinds import SQLITE_ONLY
from tests.support.request_records import make_row
from tests.support.sqlite_steps import count_steps

A, B, C = (1, "a"), (1, "b"), (2, "a")
_REPEATS = st.sampled_from([1, 1, 2, 30])
"""How often the same request is repeated: also more often than a list searches for one session at first."""


async def store(database: Database, *sessions: SessionKey | None, first: int = 0) -> None:
    rows: list[RequestRecord] = []
    for number, session in enumerate(sessions, first):
        account_id, name = session or (1, "")
        row = make_row(f"{number:024x}", account_id=account_id, session=name, settled_ms=1_000_000 + number * 60_000)
        rows.append(attrs.evolve(row, prompt_tokens=10 * number, cached_tokens=number, cost_nanos=7))
    await LedgerRepository(database).post(rows)


async def list_all(log: SessionLogRepository, limit: int, **filters: object) -> list[list[SessionKey]]:
    """The pages, up to the last one."""
    pages, before = [], None
    while True:
        page = await log.list_sessions(SessionFilter(**filters, before=before), limit)  # type: ignore[arg-type]
        pages.append(list(page.sessions))
        if page.next is None:
            return pages
        assert before is None or (page.next.sequence, -page.next.searched) < (before.sequence, -before.searched)
        before = page.next


async def test_sessions_are_listed_by_their_last_request_each_once(database: Database) -> None:
    await store(database, A, B, None, A, C, C, None, B, A)
    log = SessionLogRepository(database)
    assert await list_all(log, 10) == [[A, B, C]]
    assert await list_all(log, 1) == [[A], [B], [C]]
    assert await list_all(log, 10, account_id=1) == [[A, B]]
    assert await list_all(log, 10, since_ms=1_000_000 + 7 * 60_000) == [[A, B]]


async def test_a_page_reads_a_bounded_number_of_rows(database: Database) -> None:
    await store(database, A, B, None, A, C, C, None, B, A)
    log = SessionLogRepository(database, max_rows=2)
    pages = await list_all(log, 10)
    assert [session for page in pages for session in page] == [A, B, C]
    assert len(pages) == 5
    recent = await list_all(log, 10, since_ms=1_000_000 + 7 * 60_000)
    assert recent[0] == [A, B]
    assert len(recent) < len(pages), "it stops where no request is new enough"


@pytest.mark.parametrize("name", ["key_id", "end_user"])
async def test_filters_ask_for_a_request_of_the_session(database: Database, name: str) -> None:
    value = {"key_id": 9, "end_user": "ann"}[name]
    rows = [
        make_row("0", session="a", **{"key_id": 1, "end_user": "", name: value}),
        make_row("1", session="b", key_id=1, end_user=""),
        make_row("2", session="a", key_id=1, end_user=""),
    ]
    await LedgerRepository(database).post(rows)
    assert await list_all(SessionLogRepository(database), 5, **{name: value}) == [[(3, "a")]]


async def test_usage_is_that_of_all_requests_of_the_session(database: Database) -> None:
    await store(database, A, B, A, C, A)
    log = SessionLogRepository(database)
    usages = await log.sum_up([A, C, (3, "none")])
    assert usages.keys() == {A, C}
    usage = usages[A]
    assert (usage.requests, usage.prompt_tokens, usage.cached_tokens, usage.cost_nanos) == (3, 60, 6, 21)
    assert (usage.first_prompt_tokens, usage.last_prompt_tokens) == (20, 40), "the first request read no prompt"
    assert usage.settled_ms == 1_000_000 + 4 * 60_000
    assert await log.find_accounts("a", None) == [1, 2]
    assert await log.find_accounts("a", 2) == [2]


async def test_a_session_with_more_rows_than_are_summed_has_the_sums_of_the_latest(database: Database) -> None:
    await store(database, A, C, A, B, A, A)
    usages = await SessionLogRepository(database, summed_rows=3).sum_up([A, B, C])
    assert {key: (usage.requests, usage.is_partial) for key, usage in usages.items()} == {
        A: (3, True),
        B: (1, False),
        C: (1, False),
    }
    assert (usages[A].prompt_tokens, usages[A].first_prompt_tokens) == (20 + 40 + 50, 20)
    whole = await SessionLogRepository(database, summed_rows=4).sum_up([A, C])
    assert [(whole[key].requests, whole[key].is_partial) for key in (A, C)] == [(4, False), (1, False)]


async def test_requests_of_another_account_with_the_same_name_change_no_sums(database: Database) -> None:
    log = SessionLogRepository(database, summed_rows=20)
    await store(database, *[A] * 5)
    alone = await log.sum_up([A])
    await store(database, *[C] * 50, first=5)
    assert await log.list_sessions(SessionFilter(), 10) == SessionPage((C, A))
    both = await log.sum_up([A, C])
    assert both[A] == alone[A]
    assert (both[A].requests, both[A].cost_nanos, both[A].is_partial) == (5, 5 * 7, False)
    assert (both[C].requests, both[C].cost_nanos, both[C].is_partial) == (20, 20 * 7, True)
    assert await log.find_accounts("a", None) == [1, 2]
    assert [await log.find_accounts("a", account_id) for account_id in (1, 2, 3)] == [[1], [2], []]
    assert await log.find_accounts("none", None) == []


async def test_a_session_on_an_earlier_page_is_not_on_a_later_one(database: Database) -> None:
    """Only requests of its own account count, and only those that match."""
    key_ids = enumerate([1, 2, 1, 2, 2])
    rows = [make_row(f"{number:024x}", account_id=1, session="a", key_id=key_id) for number, key_id in key_ids]
    await LedgerRepository(database).post(rows)
    await store(database, C, C, first=5)
    log = SessionLogRepository(database)
    for key_id, pages in {None: {8: (C, A), 7: (A,), 6: (A,), 5: ()}, 1: {8: (A,), 4: (A,), 3: ()}}.items():
        for before, sessions in pages.items():
            page = await log.list_sessions(SessionFilter(key_id=key_id, before=SessionCursor(before)), 10)
            assert page.sessions == sessions, (key_id, before)


@pytest.mark.timeout(400)  # a list that is wrong is made again and again, until it is short
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # each example empties the table
@given(
    blocks=st.lists(
        st.tuples(st.sampled_from([A, B, C, (2, "")]), st.sampled_from([1, 2]), st.sampled_from(["", "ann"]), _REPEATS),
        min_size=1,
        max_size=12,
    ),
    filters=st.fixed_dictionaries(
        {
            "account_id": st.sampled_from([None, 1]),
            "key_id": st.sampled_from([None, 1, 1]),
            "end_user": st.sampled_from([None, "ann"]),
            "since_ms": st.sampled_from([None, 1_300_000]),
        }
    ),
    bounds=st.fixed_dictionaries(
        {
            "max_rows": st.sampled_from([4, 1_000]),
            "by_index": st.sampled_from([4, 1_000]),
            "search_steps": st.sampled_from([1, 3, 1_000]),
        }
    ),
    limit=st.sampled_from([1, 2, 5]),
)
async def test_all_pages_of_a_list_have_each_session_once(
    database: Database,
    blocks: list[tuple[SessionKey, int, str, int]],
    filters: dict[str, Any],
    bounds: dict[str, int],
    limit: int,
) -> None:
    """Under each filter, also where a later page begins at a request that another key or user has followed."""
    await database.write(lambda connection: connection.execute(delete(requests)))
    flat = [block[:3] for block in blocks for _ in range(block[3])]
    rows = [
        make_row(
            f"{number:024x}",
            account_id=account_id,
            session=name,
            key_id=key_id,
            end_user=user,
            settled_ms=1_000_000 + number * 30_000,
            cost_nanos=7,  # the counters of limits keep what all examples have cost
        )
        for number, ((account_id, name), key_id, user) in enumerate(flat)
    ]
    await LedgerRepository(database).post(rows)
    since_ms = filters["since_ms"] or 0
    wanted = {name: value for name, value in filters.items() if name != "since_ms" and value is not None}
    latest = {
        (row.account_id, row.session): number
        for number, row in enumerate(rows)
        if row.session and row.settled_ms >= since_ms and all(getattr(row, name) == wanted[name] for name in wanted)
    }
    pages = await list_all(SessionLogRepository(database, **bounds), limit, **filters)
    assert [key for page in pages for key in page] == sorted(latest, key=lambda key: -latest[key])


@pytest.mark.parametrize("is_used_later", [False, True])
async def test_a_search_of_earlier_pages_is_continued_by_the_next_page(
    database: Database, *, is_used_later: bool
) -> None:
    """Each step of the search leads to a request of the session with another key."""
    rows = [make_row(f"{0:024x}", account_id=1, session="a", key_id=1)]
    for number in range(1, 100):
        key_id, session = (1, "b") if number % 2 else (2, "a")
        rows.append(make_row(f"{number:024x}", account_id=1, session=session, key_id=key_id))
    if is_used_later:
        rows.append(make_row(f"{100:024x}", account_id=1, session="a", key_id=1))
    await LedgerRepository(database).post(rows)
    pages = await list_all(SessionLogRepository(database, by_index=4, search_steps=5), 1, key_id=1)
    assert [page for page in pages if page] == ([[A], [B]] if is_used_later else [[B], [A]])
    assert len(pages) > 10, "most pages only search"


@SQLITE_ONLY
async def test_a_page_that_searches_earlier_pages_costs_the_same_with_ten_times_as_many(database: Database) -> None:
    steps, first = [], 1
    await LedgerRepository(database).post([make_row(f"{0:024x}", account_id=1, session="a", key_id=1)])
    for number in (400, 4_000):
        alternate = [("b", 1), ("a", 2)] * number
        rows = [
            make_row(f"{place:024x}", account_id=1, session=session, key_id=key_id, cost_nanos=7)
            for place, (session, key_id) in enumerate(alternate, first)
        ]
        first += len(rows)
        await LedgerRepository(database).post(rows)
        async with count_steps(database) as counts:
            filter_of_key = SessionFilter(key_id=1, before=SessionCursor(2))
            page = await SessionLogRepository(database, search_steps=300).list_sessions(filter_of_key, 5)
            steps.append(counts["steps"])
        assert not page.sessions
        assert page.next is not None
        assert page.next.sequence == 2
    assert steps[0] > 1_000
    assert steps[1] < 1.2 * steps[0]


@SQLITE_ONLY
async def test_sums_of_a_session_of_all_requests_cost_the_same_with_ten_times_as_many(database: Database) -> None:
    steps = []
    for number in (400, 4_000):
        await store(database, *[A] * number, B, first=number)
        log = SessionLogRepository(database, summed_rows=200)
        async with count_steps(database) as counts:
            assert (await log.sum_up([A, B]))[A].is_partial
            assert await log.find_accounts("a", None) == [1]
            assert await log.find_accounts("a", 2) == []
            steps.append(counts["steps"])
    assert steps[0] > 1_000
    assert steps[1] < 1.2 * steps[0]


@SQLITE_ONLY
@pytest.mark.parametrize(("later", "key_id"), [(C, None), (C, 7), (A, 7)])
async def test_a_page_costs_the_same_with_ten_times_as_many_later_requests(
    database: Database, later: SessionKey, key_id: int | None
) -> None:
    """Those of another account, or of the session itself with another key than that of the filter."""
    rows = [make_row(f"{number:024x}", account_id=1, session="a", key_id=7) for number in range(300)]
    await LedgerRepository(database).post(rows)
    log, steps, first = SessionLogRepository(database), [], 300
    for number in (400, 4_000):
        await store(database, *[later] * number, first=first)
        first += number
        async with count_steps(database) as counts:
            page = await log.list_sessions(SessionFilter(key_id=key_id, before=SessionCursor(301)), 10)
            steps.append(counts["steps"])
        assert page.sessions == (A,)
    assert steps[0] > 1_000
    assert steps[1] < 1.2 * steps[0]
