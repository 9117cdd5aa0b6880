"""Sessions in the request log: listed by their last request in bounded pages, and summed up."""

import attrs
import pytest

from gateway.domain.request_log import RequestRecord
from gateway.domain.session_usage import SessionFilter, SessionKey
from gateway.storage.database import Database
from gateway.storage.ledger import LedgerRepository
from gateway.storage.session_log import SessionLogRepository
from tests.support.request_records import make_row

A, B, C = (1, "a"), (1, "b"), (2, "a")


async def store(database: Database, *sessions: SessionKey | None) -> None:
    rows: list[RequestRecord] = []
    for number, session in enumerate(sessions):
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
        assert before is None or page.next < before
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
