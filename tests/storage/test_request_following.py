"""Following the request log while several connections write it: rows commit in another order than that of sequences."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import attrs
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from gateway.domain.request_log import RequestFilter, RequestPage, RequestRecord
from gateway.errors import InvalidRequest
from gateway.storage.database import Database
from gateway.storage.ledger import LedgerRepository
from gateway.storage.ledger_rows import post_rows
from gateway.storage.open import open_database
from gateway.storage.request_cursor import MAX_RUNNING, MAX_STEP, Snapshot
from gateway.storage.request_log import RequestLogRepository
from gateway.storage.subject_sums import SubjectSums
from tests.support import request_records
from tests.support.postgres import SharedPostgres

WRITERS = 8
COMMITS = 15


def make_rows(*names: object, **values: Any) -> list[RequestRecord]:
    """Rows for nobody: a new user waits for other transactions with new users."""
    return request_records.make_rows(*names, end_user="", session="", tags="", limit_charges="", **values)


@pytest.fixture
async def url(shared_postgres: SharedPostgres) -> str:
    return await shared_postgres.empty()


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    opened = await open_database(url)
    yield opened
    await opened.close()


@asynccontextmanager
async def open_writers(url: str) -> AsyncIterator[AsyncEngine]:
    """Connections that do not wait for one another, and longer for a busy server than those of ``Database``."""
    engine = create_async_engine("postgresql+asyncpg://", async_creator=lambda: asyncpg.connect(url), pool_size=9)
    yield engine
    await engine.dispose()


async def write(engine: AsyncEngine, writer: int, commits: int) -> list[str]:
    """Commit some rows again and again, a while after their sequences were given; return the rows' ids."""
    rng, written = random.Random(writer), []  # noqa: S311 - times and sizes
    for number in range(commits):
        first = (writer * commits + number) * 5
        rows = make_rows(*range(first, first + rng.randint(1, 5)), account_id=writer, key_id=writer, model=f"m{writer}")
        async with engine.connect() as connection:
            await connection.begin()
            await post_rows(connection, rows, SubjectSums())
            await asyncio.sleep(rng.choice((0, 0, 0.01, 0.05)))
            if rng.random() < 0.1:  # its sequences remain unused
                await connection.rollback()
            else:
                await connection.commit()
                written += [row.id for row in rows]
    return written


async def follow(
    log: RequestLogRepository, wanted: RequestFilter, over: asyncio.Event, shown: asyncio.Event | None = None
) -> list[tuple[int, str]]:
    """Everything after ``wanted.after`` until nothing has come since ``over``, as a follower reads it.

    ``shown`` is set once there is a row.
    """
    seen: list[tuple[int, str]] = []
    while True:
        ends = over.is_set()
        page = await log.list_requests(wanted, 7)
        assert [one.sequence for one in page] == sorted(one.sequence for one in page)
        seen += [(one.sequence, one.row.id) for one in page]
        if seen and shown is not None:
            shown.set()
        wanted = attrs.evolve(wanted, after=page.next)
        if not page.more and ends:
            return seen
        await asyncio.sleep(0 if page.more else 0.01)


async def test_a_follower_sees_every_row_of_eight_writers_once(url: str, database: Database) -> None:
    log, small = RequestLogRepository(database), RequestLogRepository(database, in_order=10, by_index=3)
    over, start = asyncio.Event(), (await log.list_requests(RequestFilter(), 1)).newest
    shown, late = asyncio.Event(), make_rows(10_000, account_id=WRITERS, key_id=WRITERS)
    async with open_writers(url) as engine, engine.connect() as slow:
        await slow.begin()
        await post_rows(slow, late, SubjectSums())  # the lowest sequence, which becomes visible last
        followers = [
            asyncio.create_task(follow(log, RequestFilter(after=start), over, shown)),
            asyncio.create_task(follow(small, RequestFilter(after=start), over)),
            asyncio.create_task(follow(small, RequestFilter(after=start, key_id=3, status=200), over)),
        ]
        written = await asyncio.gather(*(write(engine, writer, COMMITS) for writer in range(WRITERS)))
        await asyncio.wait_for(shown.wait(), 20)
        await slow.commit()
        over.set()
        everything, in_steps, of_one = await asyncio.gather(*followers)
    ids = sorted([*(one for each in written for one in each), *(row.id for row in late)])
    assert sorted(one for _, one in everything) == ids
    assert sorted(one for _, one in in_steps) == ids
    assert sorted(one for _, one in of_one) == sorted(written[3])
    assert everything != sorted(everything), "no row became visible late: the test has tried nothing"


async def test_pages_of_a_list_show_every_row_once_while_others_write(url: str, database: Database) -> None:
    log = RequestLogRepository(database)
    async with open_writers(url) as engine:
        first = await write(engine, WRITERS, COMMITS)
        writers = asyncio.gather(*(write(engine, writer, COMMITS) for writer in range(WRITERS)))
        for _ in range(20):
            await asyncio.sleep(0.01)
            page = await log.list_requests(RequestFilter(), 5)
            shown = [one.row.id for one in page]
            while page.next is not None:
                page = await log.list_requests(RequestFilter(before=int(page.next)), 100)
                shown += [one.row.id for one in page]
            assert len(shown) == len(set(shown))
            assert set(first) <= set(shown)
        written = [*first, *(one for each in await writers for one in each)]
    everything = [one.row.id for one in await log.list_requests(RequestFilter(after="0"), 10_000)]
    assert sorted(everything) == sorted(written)


async def test_a_list_and_what_follows_it_share_no_row_and_lack_none(url: str, database: Database) -> None:
    log, over = RequestLogRepository(database), asyncio.Event()
    async with open_writers(url) as engine:
        writers = asyncio.gather(*(write(engine, writer, COMMITS) for writer in range(WRITERS)))
        pages: list[RequestPage] = []
        followers = []
        while not writers.done():
            pages.append(await log.list_requests(RequestFilter(), 10_000))
            followers.append(asyncio.create_task(follow(log, RequestFilter(after=pages[-1].newest), over)))
            await asyncio.sleep(0.05)
        ids = Counter(one for each in await writers for one in each)
        over.set()
        for page, later in zip(pages, await asyncio.gather(*followers), strict=True):
            assert Counter([*(one.row.id for one in page), *(one for _, one in later)]) == ids


async def test_a_row_that_commits_late_comes_after_rows_with_higher_sequences(url: str, database: Database) -> None:
    log = RequestLogRepository(database)
    await LedgerRepository(database).post(make_rows(1))
    start = (await log.list_requests(RequestFilter(), 9)).newest
    async with open_writers(url) as engine, engine.connect() as slow:
        await slow.begin()
        await post_rows(slow, make_rows(2, account_id=7), SubjectSums())
        await LedgerRepository(database).post(make_rows(3, account_id=8))
        page = await log.list_requests(RequestFilter(after=start), 9)
        assert [one.sequence for one in page] == [3]
        assert [one.sequence for one in await log.list_requests(RequestFilter(after="1"), 9)] == [3]
        await slow.commit()
    after = page.next
    page = await log.list_requests(RequestFilter(after=after), 9)
    assert ([one.sequence for one in page], page.more) == ([2], False)
    assert [one.sequence for one in await log.list_requests(RequestFilter(after=start), 9)] == [2, 3]
    assert not await log.list_requests(RequestFilter(after=page.next), 9)


async def test_a_page_that_is_cut_goes_on_although_later_rows_have_come(url: str, database: Database) -> None:
    """Rows that commit between two pages of one window wait for the next window, wherever their sequences are."""
    log, ledger = RequestLogRepository(database), LedgerRepository(database)
    start = (await log.list_requests(RequestFilter(), 9)).newest
    async with open_writers(url) as engine, engine.connect() as slow:
        await slow.begin()
        await post_rows(slow, make_rows(1, account_id=7), SubjectSums())
        await ledger.post(make_rows(2, 3, 4, account_id=8))
        page = await log.list_requests(RequestFilter(after=start), 2)
        assert ([one.row.id for one in page], page.more) == (["req_2", "req_3"], True)
        await slow.commit()
    await ledger.post(make_rows(5))
    page = await log.list_requests(RequestFilter(after=page.next), 9)
    assert ([one.row.id for one in page], page.more) == (["req_4"], True)
    page = await log.list_requests(RequestFilter(after=page.next), 9)
    assert ([one.row.id for one in page], page.more) == (["req_1", "req_5"], False)


async def test_an_old_cursor_is_caught_up_with_in_steps(url: str, database: Database) -> None:
    log, ledger = RequestLogRepository(database), LedgerRepository(database)
    after: str | None = (await log.list_requests(RequestFilter(), 9)).newest
    await ledger.post(make_rows(1))
    connection = await asyncpg.connect(url)
    await connection.execute(
        f"DO $$ BEGIN FOR one IN 1..{MAX_STEP} LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$"
    )
    await connection.close()
    await ledger.post(make_rows(2))
    pages: list[Any] = []
    while not pages or pages[-1].more:
        pages.append(await log.list_requests(RequestFilter(after=after), 9))
        after = pages[-1].next
    assert [[one.row.id for one in page] for page in pages if page] == [["req_1"], ["req_2"]]


async def test_rows_of_another_server_are_listed_and_are_not_news(url: str, database: Database) -> None:
    """A dump keeps the numbers of the transactions that wrote the rows; another server's may be far behind."""
    log, ledger = RequestLogRepository(database), LedgerRepository(database)
    await ledger.post(make_rows(1, 2))
    connection = await asyncpg.connect(url)
    await connection.execute("UPDATE requests SET txid = txid + 1000000")
    await connection.close()
    page = await log.list_requests(RequestFilter(), 9)
    assert [one.sequence for one in page] == [1, 2]
    await ledger.post(make_rows(3))
    assert [one.sequence for one in await log.list_requests(RequestFilter(after=page.newest), 9)] == [3]


async def test_a_cursor_ahead_of_the_server_finds_what_comes_next(database: Database) -> None:
    """A standby that lacks the last transactions has taken over."""
    log, ledger = RequestLogRepository(database), LedgerRepository(database)
    end = int((await log.list_requests(RequestFilter(), 9)).newest.removeprefix("t").split(".")[0])
    page = await log.list_requests(RequestFilter(after=f"t{end + 1000}"), 9)
    await ledger.post(make_rows(1))
    assert [one.sequence for one in await log.list_requests(RequestFilter(after=page.next), 9)] == [1]


@pytest.mark.parametrize(
    "after",
    ["", "x", "-1", "t", "t1.", "t1-t2", "t1-t2-3", "t1-2-3-4", "1-2", f"t{2**63}", f"{2**63}", "t1.2 ", "\u0661"],
)
async def test_what_is_no_cursor_is_refused(database: Database, after: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await RequestLogRepository(database).list_requests(RequestFilter(after=after), 9)
    assert refused.value.param == "after"


def test_a_snapshot_names_a_bounded_number_of_transactions() -> None:
    running = tuple(range(10, 10 + 3 * MAX_RUNNING))
    assert Snapshot(1_000, running).bound() == Snapshot(10 + MAX_RUNNING, running[:MAX_RUNNING])
    assert Snapshot(9, ()).bound() == Snapshot(9)
    since = Snapshot(500, running[:5])
    assert Snapshot(600, running[:5]).bound(since) == Snapshot(600, running[:5])
    assert Snapshot(500 + MAX_STEP + 9, (12, 500 + MAX_STEP + 3)).bound(since) == Snapshot(500 + MAX_STEP, (12,))
    crowded = Snapshot(1_000, (12, *range(600, 600 + MAX_RUNNING)))
    assert crowded.bound(since) == Snapshot(600 + MAX_RUNNING - 1, crowded.running[:MAX_RUNNING])
